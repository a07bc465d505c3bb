/* registry.c: the operators, variants and devices of this process. Operators come from ops.def at link time. Device
 * tables and plug-ins register themselves. */
#include "core/registry.h"

#include <stdlib.h>
#include <string.h>

#include "core/registry_add.h"

enum { MAX_OPS = 64, MAX_VARIANTS = 1024, MAX_DEVICES = 4 };

typedef struct entry {
  const assay_variant *variant;
  const char *origin;
} entry;

static const assay_op *ops[MAX_OPS];
static assay_op shown[MAX_OPS]; /* the same, for code that is judged */
static int32_t op_count;
static entry variants[MAX_VARIANTS];
static int32_t variant_count;
static const assay_device *devices[MAX_DEVICES];
static int32_t device_count;
static char device_names[64];
static const assay_layers *layers[MAX_DEVICES];

static assay_op without_results(const assay_op *op) {
  assay_op bare = *op;
  bare.reference = NULL;
  bare.spoil = NULL;
  bare.accepts = NULL;
  bare.product = NULL;
  return bare;
}

assay_status assay_registry_add_op(const assay_op *op, assay_error *error) {
  if (op_count == MAX_OPS) return assay_fail(error, ASSAY_ERR_INTERNAL, "registry: more than %d operators", MAX_OPS);
  shown[op_count] = without_results(op);
  ops[op_count++] = op;
  return ASSAY_OK;
}

assay_status assay_registry_add_device(const assay_device *device, assay_error *error) {
  if (device_count == MAX_DEVICES)
    return assay_fail(error, ASSAY_ERR_INTERNAL, "registry: more than %d devices", MAX_DEVICES);
  devices[device_count++] = device;
  if (device_names[0] != '\0') strncat(device_names, ", ", sizeof device_names - strlen(device_names) - 1);
  strncat(device_names, device->name, sizeof device_names - strlen(device_names) - 1);
  return ASSAY_OK;
}

void assay_registry_add_layers(const assay_layers *row) {
  int32_t i = 0;
  while (i < MAX_DEVICES - 1 && layers[i] != NULL && strcmp(layers[i]->device, row->device) != 0)
    ++i;
  layers[i] = row;
}

const assay_layers *assay_layers_find(const char *device) {
  for (int32_t i = 0; i < MAX_DEVICES && layers[i] != NULL; ++i)
    if (strcmp(layers[i]->device, device) == 0) return layers[i];
  return NULL;
}

static assay_status check_row(const assay_variant *row, const char *origin, assay_error *error) {
  if (row->struct_size != sizeof(assay_variant))
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "%s: a variant row of %u bytes, this build's has %zu: rebuild against its headers", origin,
                      row->struct_size, sizeof(assay_variant));
  if (row->op == NULL || row->name == NULL || row->device == NULL || row->claims == NULL || row->supports == NULL ||
      row->workspace == NULL || row->launch == NULL)
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "%s: variant '%s': op, name, device, claims, supports, workspace and launch must be set", origin,
                      row->name != NULL ? row->name : "(no name)");
  if (assay_op_find(row->op) == NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: variant '%s' is of operator '%s', which does not exist", origin,
                      row->name, row->op);
  if (strcmp(row->device, "simt") != 0 && strcmp(row->device, "cuda") != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: variant '%s': device '%s', allowed are simt, cuda", origin,
                      row->name, row->device);
  return ASSAY_OK;
}

assay_status assay_registry_add_variants(const assay_variant *rows, int32_t count, const char *origin,
                                         assay_error *error) {
  if (count > MAX_VARIANTS - variant_count)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: more than %d variants in all", origin, MAX_VARIANTS);
  for (int32_t i = 0; i < count; ++i) {
    const assay_status status = check_row(&rows[i], origin, error);
    if (status != ASSAY_OK) return status;
    if (assay_variant_find(rows[i].op, rows[i].name, rows[i].device) != NULL)
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: variant %s/%s for %s exists already", origin, rows[i].op,
                        rows[i].name, rows[i].device);
    for (int32_t j = 0; j < i; ++j)
      if (strcmp(rows[i].op, rows[j].op) == 0 && strcmp(rows[i].name, rows[j].name) == 0 &&
          strcmp(rows[i].device, rows[j].device) == 0)
        return assay_fail(error, ASSAY_ERR_INPUT, "%s: variant %s/%s for %s is listed twice", origin, rows[i].op,
                          rows[i].name, rows[i].device);
  }
  for (int32_t i = 0; i < count; ++i)
    variants[variant_count++] = (entry){&rows[i], origin};
  return ASSAY_OK;
}

static int32_t index_of(const char *op, const char *name, const char *device) {
  const assay_variant *const wanted = assay_variant_find(op, name, device);
  for (int32_t i = 0; i < variant_count; ++i)
    if (variants[i].variant == wanted) return i;
  return -1;
}

assay_status assay_registry_put_behind(const char *op, const char *name, const char *other, const char *device,
                                       assay_error *error) {
  const int32_t from = index_of(op, name, device), to = index_of(op, other, device);
  if (from < 0 || to < 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "variant %s/%s: unknown for %s", op, from < 0 ? name : other, device);
  const entry moved = variants[from];
  for (int32_t i = from; i < to; ++i)
    variants[i] = variants[i + 1];
  for (int32_t i = from; i > to + 1; --i)
    variants[i] = variants[i - 1];
  variants[from < to ? to : to + 1] = moved;
  return ASSAY_OK;
}

int32_t assay_op_count(void) {
  return op_count;
}
const assay_op *assay_op_at(int32_t index) {
  return ops[index];
}

const assay_op *assay_op_find(const char *name) {
  for (int32_t i = 0; i < op_count; ++i)
    if (strcmp(ops[i]->name, name) == 0) return ops[i];
  return NULL;
}

const assay_op *assay_op_shown(const assay_op *op) {
  static _Thread_local assay_op other;
  for (int32_t i = 0; i < op_count; ++i)
    if (ops[i] == op) return &shown[i];
  other = without_results(op);
  return &other;
}

int32_t assay_variant_count(void) {
  return variant_count;
}
const assay_variant *assay_variant_at(int32_t index) {
  return variants[index].variant;
}
const char *assay_variant_origin(int32_t index) {
  return variants[index].origin;
}

const assay_variant *assay_variant_find(const char *op, const char *name, const char *device) {
  for (int32_t i = 0; i < variant_count; ++i) {
    const assay_variant *v = variants[i].variant;
    if (strcmp(v->op, op) == 0 && strcmp(v->name, name) == 0 && strcmp(v->device, device) == 0) return v;
  }
  return NULL;
}

const assay_device *assay_device_find(const char *name) {
  for (int32_t i = 0; i < device_count; ++i)
    if (strcmp(devices[i]->name, name) == 0) return devices[i];
  return NULL;
}

const char *assay_device_names(void) {
  return device_count > 0 ? device_names : "none";
}
