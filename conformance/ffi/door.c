/* door.c: a library of the tvm-ffi ABI as a plug-in: its table, its calls, its plans. */
#include <stdlib.h>

#include "call.h"
#include "core/registry.h"
#include "ffi.h"

/* Calls of variants have no context, so each binding has functions of its own. */
enum { MOST_DOORS = 16, ROWS = 2 };

typedef struct ffi_door {
  binding b;
  ffi_runtime runtime;
  ffi_function function;
  char library[4096], runtime_file[4096]; /* runtime_file "": not given */
  char name[8300], origin[3 * 4096 + 8];
  assay_variant row[ROWS];
  assay_plugin_table table;
  assay_plugin_door door;
} ffi_door;

static ffi_door *doors[MOST_DOORS];
static int32_t door_count;

/* ---- calls ------------------------------------------------------------------------------------------- */

static assay_status supports(const ffi_door *d, const assay_call *call, assay_error *error) {
  return call_supports(&d->function, call, error);
}

static assay_status workspace(const ffi_door *d, const assay_call *call, int64_t *bytes, assay_error *error) {
  *bytes = 0;
  return call_supports(&d->function, call, error);
}

/* A plan belongs to a device. The device is the one that has a plan of the call. */
static assay_status launch(const ffi_door *d, const assay_call *call, assay_env *env, assay_error *error) {
  const assay_device *cuda = d->b.cuda ? assay_device_find("cuda") : NULL;
  const assay_device *simt = d->b.simt ? assay_device_find("simt") : NULL;
  const bool on_cuda = cuda != NULL && plans_find(&d->b, &d->runtime, cuda, call, false) != NULL;
  const assay_device *device = on_cuda || simt == NULL ? cuda : simt;
  if (device == NULL) return assay_fail(error, ASSAY_ERR_INTERNAL, "ffi: no device");
  const assay_status status = call_supports(&d->function, call, error);
  return status == ASSAY_OK ? call_launch(&d->function, device, call, env, error) : status;
}

static assay_status plan(void *context, const assay_variant *row, const assay_call *call, assay_env *env,
                         assay_error *error) {
  const ffi_door *d = context;
  const assay_device *device = assay_device_find(row->device);
  (void)env;
  if (device == NULL) return assay_fail(error, ASSAY_ERR_INTERNAL, "ffi: no device %s", row->device);
  return call_plan(&d->function, device, call, error);
}

static assay_status sums(const ffi_door *d, assay_sums *sums, assay_error *error) {
  if (d->b.sums.unit == ASSAY_SUM_NONE)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "sums: found none in %s", d->b.path);
  *sums = d->b.sums;
  return ASSAY_OK;
}

#define CALLS(n)                                                                                                       \
  static assay_status supports_##n(const assay_call *call, assay_error *error) {                                       \
    return supports(doors[n], call, error);                                                                            \
  }                                                                                                                    \
  static assay_status workspace_##n(const assay_call *call, int64_t *bytes, assay_error *error) {                      \
    return workspace(doors[n], call, bytes, error);                                                                    \
  }                                                                                                                    \
  static assay_status launch_##n(const assay_call *call, assay_env *env, assay_error *error) {                         \
    return launch(doors[n], call, env, error);                                                                         \
  }                                                                                                                    \
  static assay_status sums_##n(const assay_call *call, const assay_env *env, assay_sums *to, assay_error *error) {     \
    (void)call, (void)env;                                                                                             \
    return sums(doors[n], to, error);                                                                                  \
  }
#define EACH(of) of(0) of(1) of(2) of(3) of(4) of(5) of(6) of(7) of(8) of(9) of(10) of(11) of(12) of(13) of(14) of(15)
EACH(CALLS)

#define ROW(n) {supports_##n, workspace_##n, launch_##n, sums_##n},
static const struct {
  assay_status (*supports)(const assay_call *call, assay_error *error);
  assay_status (*workspace)(const assay_call *call, int64_t *bytes, assay_error *error);
  assay_status (*launch)(const assay_call *call, assay_env *env, assay_error *error);
  assay_status (*sums)(const assay_call *call, const assay_env *env, assay_sums *sums, assay_error *error);
} calls[MOST_DOORS] = {EACH(ROW)};

/* ---- loading ----------------------------------------------------------------------------------------- */

static assay_status open_door(void *context, void (*step)(char), const assay_plugin_table **table, assay_error *error) {
  ffi_door *d = context;
  const char *runtime = d->runtime_file[0] != '\0' ? d->runtime_file : NULL;
  assay_status status = runtime_open(&d->runtime, d->library, runtime, error);
  if (status == ASSAY_OK && step != NULL) step('l');
  if (status == ASSAY_OK)
    status = runtime_find(&d->runtime, d->b.call.symbol, d->b.call.count, &d->function.call, error);
  if (status == ASSAY_OK && d->b.plan.symbol[0] != '\0')
    status = runtime_find(&d->runtime, d->b.plan.symbol, d->b.plan.count, &d->function.plan, error);
  if (status == ASSAY_OK) status = runtime_allocate_on(&d->runtime, assay_device_find("cuda"), error);
  if (status == ASSAY_OK && step != NULL) step('e');
  *table = &d->table;
  return status;
}

static void close_door(void *context) {
  runtime_close(&((ffi_door *)context)->runtime);
}

static void make_rows(ffi_door *d, int32_t number) {
  const char *const devices[ROWS] = {d->b.simt ? "simt" : "cuda", "cuda"};
  const int32_t count = d->b.simt && d->b.cuda ? 2 : 1;
  for (int32_t i = 0; i < count; ++i)
    d->row[i] = (assay_variant){.struct_size = sizeof(assay_variant),
                                .op = d->b.op->name,
                                .name = d->b.variant,
                                .why = d->b.why,
                                .device = devices[i],
                                .arch = "any",
                                .claims = d->b.claims,
                                .contract = d->b.contract,
                                .supports = calls[number].supports,
                                .workspace = calls[number].workspace,
                                .launch = calls[number].launch,
                                .sums = calls[number].sums};
  d->table = (assay_plugin_table){ASSAY_ABI, sizeof(assay_plugin_table), d->name, d->row, count};
  d->function = (ffi_function){.b = &d->b, .runtime = &d->runtime};
  d->door = (assay_plugin_door){.name = d->name,
                                .origin = d->origin,
                                .entry = "its metadata",
                                .context = d,
                                .open = open_door,
                                .close = close_door,
                                .plan = plan,
                                .direct = true};
}

assay_status ffi_check(const char *bind, assay_error *error) {
  binding *b = malloc(sizeof *b);
  if (b == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "ffi: out of memory");
  const assay_status status = bind_read(bind, b, error);
  free(b);
  return status;
}

assay_status ffi_load(const char *library, const char *bind, const char *runtime, assay_error *error) {
  if (door_count == MOST_DOORS)
    return assay_fail(error, ASSAY_ERR_INPUT, "--bind: given more than %d times", MOST_DOORS);
  ffi_door *d = calloc(1, sizeof *d);
  if (d == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "ffi: out of memory");
  assay_status status = bind_read(bind, &d->b, error);
  if (status != ASSAY_OK) {
    free(d);
    return status;
  }
  (void)snprintf(d->library, sizeof d->library, "%s", library);
  (void)snprintf(d->runtime_file, sizeof d->runtime_file, "%s", runtime != NULL ? runtime : "");
  (void)snprintf(d->name, sizeof d->name, "%s (%s)", library, bind);
  (void)snprintf(d->origin, sizeof d->origin, "ffi\t%s\t%s%s%s", library, bind, runtime != NULL ? "\t" : "",
                 runtime != NULL ? runtime : "");
  make_rows(d, door_count);
  doors[door_count] = d; /* its calls are made in child processes, too */
  status = assay_plugin_load_by(&d->door, error);
  if (status == ASSAY_OK) {
    ++door_count;
  } else {
    doors[door_count] = NULL;
    free(d);
  }
  return status;
}
