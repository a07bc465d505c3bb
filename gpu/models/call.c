/* call.c: one operator of a forward pass: arguments by name, the first variant that takes them, taps. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/registry.h"
#include "gpu/models/pass.h"

void pass_fail(pass *m, assay_status status) {
  if (m->status == ASSAY_OK) m->status = status;
}

static void full_name(const pass *m, const char *name, const char *part, char full[ASSAY_MODEL_NAME]) {
  const char *dot = part[0] != '\0' ? "." : "";
  if (m->layer < 0)
    (void)snprintf(full, ASSAY_MODEL_NAME, "%s%s%s", name, dot, part);
  else
    (void)snprintf(full, ASSAY_MODEL_NAME, "layers.%d.%s%s%s", (int)m->layer, name, dot, part);
}

assay_tensor pass_weight(const pass *m, const char *name, const char *part) {
  char full[ASSAY_MODEL_NAME];
  full_name(m, name, part, full);
  const int32_t index = assay_model_weight_index(&m->config, full);
  return index < 0 ? (assay_tensor){.data = NULL} : m->weight[index];
}

assay_tensor pass_view(const pass *m, const assay_tensor *rows, int64_t first, int64_t heads) {
  const int64_t D = m->config.head_size;
  return (assay_tensor){.data = (unsigned char *)rows->data + first * assay_dtype_size(rows->dtype),
                        .dtype = rows->dtype,
                        .rank = 3,
                        .shape = {rows->shape[0], heads, D},
                        .stride = {rows->stride[0], D, 1}};
}

/* ---- one operator ------------------------------------------------------------------------------------ */

static bool fill_args(pass *m, const assay_op *op, const pass_arg *args, assay_tensor *tensor) {
  for (; args->name != NULL; ++args) {
    int32_t i = 0;
    while (i < op->arg_count && strcmp(op->args[i].name, args->name) != 0)
      ++i;
    if (i == op->arg_count) {
      pass_fail(m, assay_fail(m->error, ASSAY_ERR_INTERNAL, "%s has no argument %s", op->name, args->name));
      return false;
    }
    tensor[i] = args->tensor;
  }
  return true;
}

static bool fill_params(pass *m, const assay_op *op, const pass_param *params, double *value) {
  for (int32_t i = 0; i < op->param_count; ++i)
    value[i] = op->params[i].fallback;
  for (; params->name != NULL; ++params) {
    int32_t i = 0;
    while (i < op->param_count && strcmp(op->params[i].name, params->name) != 0)
      ++i;
    if (i == op->param_count) {
      pass_fail(m, assay_fail(m->error, ASSAY_ERR_INTERNAL, "%s has no parameter %s", op->name, params->name));
      return false;
    }
    value[i] = params->value;
  }
  return true;
}

/* The workspace grows between launches, when nothing uses it. */
static assay_status reserve(pass *m, int64_t bytes) {
  if (bytes <= m->workspace_bytes) return ASSAY_OK;
  assay_status status = m->device->synchronize(m->error);
  if (status != ASSAY_OK) return status;
  if (m->workspace != NULL) m->device->release(m->workspace);
  m->workspace = NULL;
  m->workspace_bytes = 0;
  status = m->device->alloc(bytes, &m->workspace, m->error);
  if (status == ASSAY_OK) m->workspace_bytes = bytes;
  return status;
}

static assay_status launch(pass *m, const assay_variant *variant, const assay_call *call) {
  int64_t bytes = 0;
  assay_status status = variant->workspace(call, &bytes, m->error);
  if (status == ASSAY_OK) status = reserve(m, bytes);
  if (status != ASSAY_OK) return status;
  assay_env env = {.stream = m->device->stream(),
                   .workspace = m->workspace,
                   .workspace_bytes = bytes,
                   .multiprocessors = m->multiprocessors};
  return variant->launch(call, &env, m->error);
}

void pass_call(pass *m, const char *name, const pass_arg *args, const pass_param *params) {
  if (m->status != ASSAY_OK) return;
  const assay_op *op = assay_op_find(name);
  assay_tensor tensor[ASSAY_MAX_ARGS] = {{.data = NULL}};
  double value[ASSAY_MAX_PARAMS] = {0};
  if (op == NULL) {
    pass_fail(m, assay_fail(m->error, ASSAY_ERR_INTERNAL, "no operator %s", name));
    return;
  }
  if (!fill_args(m, op, args, tensor) || !fill_params(m, op, params, value)) return;
  const assay_call call = {op, tensor, value};
  char reason[160] = "there is none for this device";
  for (int32_t i = 0; i < assay_variant_count(); ++i) {
    const assay_variant *variant = assay_variant_at(i);
    assay_error why = {""};
    if (strcmp(variant->op, name) != 0 || strcmp(variant->device, m->device->name) != 0) continue;
    const assay_status status = variant->supports(&call, &why);
    if (status == ASSAY_OK) {
      pass_fail(m, launch(m, variant, &call));
      return;
    }
    (void)snprintf(reason, sizeof reason, "%.80s: %.70s", variant->name, why.text);
  }
  pass_fail(m, assay_fail(m->error, ASSAY_ERR_UNSUPPORTED, "%s: no variant takes the call; %s", name, reason));
}

/* ---- taps -------------------------------------------------------------------------------------------- */

/* Of the rows `pick` (NULL: all), `count` of them. */
static void take(pass *m, const char *name, const assay_tensor *y, int64_t first, int64_t width, const int32_t *pick,
                 int64_t count) {
  if (m->status != ASSAY_OK || m->taps == NULL || y->shape[0] == 0 || count == 0) return;
  char full[ASSAY_MODEL_NAME];
  full_name(m, name, "", full);
  if (m->taps->wants != NULL && !m->taps->wants(m->taps->context, full)) return;
  const int64_t rows = y->shape[0], stride = y->stride[0];
  double *value = malloc((size_t)(count * width) * sizeof *value);
  if (value == NULL) {
    pass_fail(m, assay_fail(m->error, ASSAY_ERR_MEMORY, "tap %s: out of memory", full));
    return;
  }
  const int64_t bytes = ((rows - 1) * stride + y->shape[1]) * assay_dtype_size(y->dtype);
  assay_status status = m->device->download(m->host, y->data, bytes, m->error);
  if (status == ASSAY_OK) status = m->device->synchronize(m->error);
  for (int64_t n = 0; n < count && status == ASSAY_OK; ++n) {
    const int64_t row = pick != NULL ? pick[n] : n;
    assay_load_f64_row(m->host, y->dtype, row * stride + first, 1, width, value + n * width);
  }
  if (status == ASSAY_OK) m->taps->take(m->taps->context, full, count, width, value);
  pass_fail(m, status);
  free(value);
}

void pass_take(pass *m, const char *name, const assay_tensor *y, int64_t first, int64_t width) {
  take(m, name, y, first, width, NULL, y->shape[0]);
}

void pass_take_picked(pass *m, const char *name, const assay_tensor *y) {
  take(m, name, y, 0, y->shape[1], m->batch->logit_rows, m->batch->logit_count);
}
