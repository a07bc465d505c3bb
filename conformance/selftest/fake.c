/* fake.c: see fake.h. */
#include "fake.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "core/dtype.h"
#include "core/rng.h"

fake_fault fake_broken = FAULT_NONE;
int32_t fake_broken_length = -1;
double fake_delay_ms = 0;

static uint64_t calls;
static bool device_faults;

/* ---- the call, by hand ------------------------------------------------------------------------------- */

typedef struct fake_view {
  const assay_tensor *q, *k, *v, *k_scale, *v_scale, *table, *length, *cu_q, *out, *count;
  int64_t B, N, H, H_kv, D, block_size;
  int layout;
} fake_view;

static fake_view view_of(const assay_call *call) {
  fake_view w = {.q = assay_find_arg(call, "q"),
                 .k = assay_find_arg(call, "k_cache"),
                 .v = assay_find_arg(call, "v_cache"),
                 .k_scale = assay_find_arg(call, "k_scale"),
                 .v_scale = assay_find_arg(call, "v_scale"),
                 .table = assay_find_arg(call, "block_table"),
                 .length = assay_find_arg(call, "kv_len"),
                 .cu_q = assay_find_arg(call, "cu_q"),
                 .out = assay_find_arg(call, "out"),
                 .count = assay_find_arg(call, "count"),
                 .layout = (int)assay_find_param(call, "layout")};
  if (w.q == NULL || w.length == NULL || w.v == NULL || w.k == NULL || w.out == NULL) return (fake_view){.q = NULL};
  w.N = w.q->shape[0];
  w.H = w.q->shape[1];
  w.D = w.q->shape[2];
  w.B = w.length->shape[0];
  w.H_kv = w.v->shape[w.layout == 0 ? 2 : 1];
  w.block_size = w.v->shape[w.layout == 0 ? 1 : w.layout == 1 ? 2 : 3];
  return w;
}

/* Element of a cache: address arithmetic of its own, so that the generator's is checked by another. */
static double cache_at(const fake_view *w, bool is_k, int64_t block, int64_t off, int64_t h, int64_t d) {
  const assay_tensor *t = is_k ? w->k : w->v, *scale = is_k ? w->k_scale : w->v_scale;
  const int64_t *s = t->stride;
  int64_t at = block * s[0];
  if (w->layout == 0) at += off * s[1] + h * s[2] + d * s[3];
  if (w->layout == 1) at += h * s[1] + off * s[2] + d * s[3];
  if (w->layout == 2 && is_k) at += h * s[1] + d / t->shape[4] * s[2] + off * s[3] + d % t->shape[4] * s[4];
  if (w->layout == 2 && !is_k) at += h * s[1] + d * s[2] + off * s[3];
  const uintptr_t address = (uintptr_t)t->data + (uintptr_t)(at * assay_dtype_size(t->dtype));
  const double factor = scale != NULL ? (double)((const float *)scale->data)[scale->shape[0] > 1 ? h : 0] : 1.0;
  return assay_load_f64((const void *)address, t->dtype, 0) * factor;
}

typedef struct fake_row {
  int64_t slot, last; /* place in the batch, position */
} fake_row;

static fake_row row_at(const fake_view *w, int64_t row) {
  const int32_t *length = w->length->data, *cu_q = w->cu_q != NULL ? w->cu_q->data : NULL;
  if (cu_q == NULL) return (fake_row){row, length[row] - 1};
  int64_t slot = 0;
  while (cu_q[slot + 1] <= row)
    ++slot;
  return (fake_row){slot, length[slot] - (cu_q[slot + 1] - cu_q[slot]) + row - cu_q[slot]};
}

static int64_t block_at(const fake_view *w, int64_t slot, int64_t token) {
  return ((const int32_t *)w->table->data)[slot * w->table->stride[0] + token / w->block_size];
}

/* ---- operator ---------------------------------------------------------------------------------------- */

static assay_status check(const assay_call *call, assay_error *error) {
  const fake_view w = view_of(call);
  static const char *const needed[] = {"q", "k_cache", "v_cache", "kv_len", "out"};
  for (size_t i = 0; i < sizeof needed / sizeof needed[0]; ++i)
    if (assay_find_arg(call, needed[i]) == NULL) return assay_fail(error, ASSAY_ERR_INPUT, "%s: is NULL", needed[i]);
  if ((uintptr_t)w.q->data % (uintptr_t)assay_dtype_size(w.q->dtype) != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "q: misaligned");
  if (w.q->stride[2] != 1) return assay_fail(error, ASSAY_ERR_INPUT, "q: stride of the last axis");
  if (w.k->dtype == ASSAY_I32) return assay_fail(error, ASSAY_ERR_INPUT, "k_cache: dtype i32");
  if (w.out->shape[0] != w.N) return assay_fail(error, ASSAY_ERR_INPUT, "out: shape");
  if (w.H_kv < 1 || w.H % w.H_kv != 0) return assay_fail(error, ASSAY_ERR_INPUT, "H: not a multiple of H_kv");
  return ASSAY_OK;
}

/* A sixth of an ulp may be lost before a 16-bit store. A mean can be wrong then where no element is. */
static double sigma_of(double value, double terms, assay_dtype dtype) {
  const double ulp = assay_ulp(value, dtype), before = dtype == ASSAY_F32 ? 0 : 0.16 * ulp;
  return 0x1p-23 * terms + sqrt(ulp * ulp / 12 + before * before);
}

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  const fake_view w = view_of(call);
  (void)contract;
  for (int64_t r = 0; r < rows->count; ++r) {
    const fake_row at = row_at(&w, rows->index != NULL ? rows->index[r] : r);
    for (int64_t h = 0; h < w.H; ++h) {
      double *y = expected[0].value + (r * w.H + h) * w.D, *sigma = expected[0].sigma + (r * w.H + h) * w.D, live = 0;
      const int64_t kv = h / (w.H / w.H_kv);
      for (int64_t d = 0; d < w.D; ++d)
        y[d] = sigma[d] = 0;
      for (int64_t t = 0; t <= at.last; ++t) {
        const int64_t block = block_at(&w, at.slot, t), off = t % w.block_size;
        if (seen != NULL) ++seen->visible_keys;
        if (!(cache_at(&w, true, block, off, kv, 0) > 0)) continue;
        live += 1;
        if (seen != NULL) ++seen->live_keys;
        if (seen != NULL && seen->v_needed != NULL)
          seen->v_needed[(block * w.block_size + off - seen->first_slot) * w.H_kv + kv] = 1;
        for (int64_t d = 0; d < w.D; ++d) {
          const double v = cache_at(&w, false, block, off, kv, d);
          y[d] += v;
          sigma[d] += fabs(v);
          if (exact && floor(v * 256) != v * 256)
            return assay_fail(error, ASSAY_ERR_INPUT, "v: %g is not on the lattice", v);
        }
      }
      for (int64_t d = 0; d < w.D; ++d)
        sigma[d] = sigma_of(y[d], sigma[d], w.out->dtype);
      if (w.count != NULL) {
        expected[1].value[r * w.H + h] = live > 0 ? live : -(double)INFINITY;
        expected[1].sigma[r * w.H + h] = 0;
      }
    }
  }
  return ASSAY_OK;
}

static uint64_t stream_of(uint64_t kind, int64_t a, int64_t b) {
  return kind << 56 | (uint64_t)a << 16 | (uint64_t)b;
}

static void draw_values(const assay_fill *fill, uint64_t stream, double *value) {
  assay_rng_normals(fill->seed, stream, value, fill->D);
  for (int64_t d = 0; d < fill->D && fill->values == ASSAY_LATTICE; ++d)
    value[d] = rint(value[d] * 4);
}
static void fill_q(const assay_fill *fill, int64_t request, int64_t position, int64_t head, double *value) {
  draw_values(fill, stream_of(1, request << 20 | position, head), value);
}
static void fill_k(const assay_fill *fill, int64_t content, int64_t kv_head, double *value) {
  draw_values(fill, stream_of(2, content, kv_head), value);
  if (fill->important(fill->context, content)) value[0] = 1;
}
static void fill_v(const assay_fill *fill, int64_t content, int64_t kv_head, double *value) {
  draw_values(fill, stream_of(3, content, kv_head), value);
}
static bool visible(const assay_call *call, int64_t request, int64_t length, int64_t first_position, int64_t token) {
  (void)call, (void)request, (void)first_position;
  return token < length;
}

static const assay_dim dims[] = {
    {"B", 0, 0, 0, 1, ""},          {"N", 0, 0, 0, 1, ""},          {"H", 1, 256, 4, 1, ""},
    {"H_kv", 1, 256, 2, 1, ""},     {"D", 8, 256, 16, 8, ""},       {"block_size", 8, 256, 8, 1, ""},
    {"num_blocks", 0, 0, 0, 1, ""}, {"max_blocks", 0, 0, 0, 1, ""}, {"kv_scales", 0, 0, 0, 1, ""},
};
static const assay_arg args[] = {
    {"q", ASSAY_IN, ASSAY_QUERY, false, "f32,f16,bf16", "N,H,D", "", true},
    {"k_cache", ASSAY_IN, ASSAY_K_CACHE, false, "=q,e4m3,e5m2",
     "num_blocks,block_size,H_kv,D|num_blocks,H_kv,block_size,D|num_blocks,H_kv,D/x,block_size,x", "", false},
    {"v_cache", ASSAY_IN, ASSAY_V_CACHE, false, "=k_cache",
     "num_blocks,block_size,H_kv,D|num_blocks,H_kv,block_size,D|num_blocks,H_kv,D,block_size", "", false},
    {"k_scale", ASSAY_IN, ASSAY_KV_SCALE, true, "f32", "kv_scales", "", false},
    {"v_scale", ASSAY_IN, ASSAY_KV_SCALE, true, "f32", "kv_scales", "", false},
    {"block_table", ASSAY_IN, ASSAY_BLOCK_TABLE, false, "i32", "B,max_blocks", "", false},
    {"kv_len", ASSAY_IN, ASSAY_KV_LEN, false, "i32", "B", "", false},
    {"cu_q", ASSAY_IN, ASSAY_CU_Q, true, "i32", "B+1", "", false},
    {"out", ASSAY_OUT, ASSAY_RESULT, false, "=q", "N,H,D", "", false},
    {"count", ASSAY_OUT, ASSAY_RESULT, true, "f32", "N,H", "", false},
};
static const assay_param params[] = {
    {"layout", ASSAY_ENUM, 0, 2, 0, "nhd,hnd,x", ""},
    {"scale_per_head", ASSAY_BOOL, 0, 1, 0, NULL, ""},
};
enum {
  DIMS = sizeof dims / sizeof dims[0],
  ARGS = sizeof args / sizeof args[0],
  PARAMS = sizeof params / sizeof params[0]
};

const assay_op fake_op = {.name = "fake_gate",
                          .title = "sum of the values whose key is positive",
                          .source = "fake.h",
                          .dims = dims,
                          .dim_count = DIMS,
                          .args = args,
                          .arg_count = ARGS,
                          .params = params,
                          .param_count = PARAMS,
                          .laws = "renumbering,permutation,run_to_run,dead_bytes",
                          .spoils = "",
                          .kappa_element = 7,
                          .check = check,
                          .reference = reference,
                          .fill_q = fill_q,
                          .fill_k = fill_k,
                          .fill_v = fill_v,
                          .visible = visible};

/* ---- variant ----------------------------------------------------------------------------------------- */

static assay_status supports(const assay_call *call, assay_error *error) {
  return call->arg[0].shape[2] == 24 ? assay_fail(error, ASSAY_ERR_UNSUPPORTED, "D: found 24, allowed 16, 32")
                                     : ASSAY_OK;
}

static assay_status workspace(const assay_call *call, int64_t *bytes, assay_error *error) {
  (void)call, (void)error;
  *bytes = 12;
  return ASSAY_OK;
}

static void sum_row(const fake_view *w, fake_fault fault, int64_t row, int64_t h, const float *scratch) {
  const fake_row at = row_at(w, row);
  const int64_t kv = h / (w->H / w->H_kv);
  float count = 0;
  for (int64_t d = 0; d < w->D; ++d) {
    float sum = 0;
    count = 0;
    for (int64_t t = 0; t <= at.last - (fault == FAULT_LAST_KEY || fault == FAULT_SLOW_LAST_KEY); ++t) {
      const int64_t block = block_at(w, at.slot, t), off = t % w->block_size;
      const bool live = cache_at(w, true, block, off, kv, 0) > 0;
      if (live || fault == FAULT_ZERO_P) sum += (live ? 1.0f : 0.0f) * (float)cache_at(w, false, block, off, kv, d);
      count += live ? 1.0f : 0.0f;
      if (fault == FAULT_RENUMBERING && t == 0 && block % 2 == 1) sum = nextafterf(sum, INFINITY);
    }
    if (fault == FAULT_DEAD_TAIL && at.last >= 0 && (at.last + 1) % w->block_size != 0)
      sum += 0.0f * (float)cache_at(w, false, block_at(w, at.slot, at.last), (at.last + 1) % w->block_size, kv, d);
    if (fault == FAULT_WORKSPACE) sum += 0.0f * scratch[0];
    if (fault == FAULT_ROW_BIAS && sum != 0) sum += (float)assay_ulp((double)sum, w->out->dtype);
    if (fault == FAULT_RUN_TO_RUN && at.last >= 0 && (calls & 1) != 0) sum = nextafterf(sum, INFINITY);
    if (fault == FAULT_PERMUTATION && at.last >= 0 && at.slot == 0) sum = nextafterf(sum, INFINITY);
    if (fault == FAULT_NAN && row == 1 && h == 1 && d == 3) sum = NAN;
    if (fault == FAULT_UNWRITTEN && row == w->N - 1 && h == w->H - 1 && d == w->D - 1) continue;
    assay_store_f64(w->out->data, w->out->dtype, (row * w->H + h) * w->D + d, (double)sum);
  }
  if (w->count != NULL) ((float *)w->count->data)[row * w->H + h] = count > 0 ? count : -INFINITY;
}

static void wait_ms(double ms) {
  const struct timespec pause = {(time_t)(ms / 1e3), (long)(fmod(ms, 1e3) * 1e6)};
  if (ms > 0) (void)nanosleep(&pause, NULL);
}

static assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  const fake_view w = view_of(call);
  const bool broken = w.q != NULL && (fake_broken_length < 0 || ((int32_t *)w.length->data)[0] == fake_broken_length);
  const fake_fault fault = broken || w.q == NULL ? fake_broken : FAULT_NONE;
  (void)snprintf(env->path, sizeof env->path, "rows %lld", (long long)w.N);
  ++calls;
  wait_ms(fake_delay_ms);
  if (fault == FAULT_WRITES_THEN_REFUSES) ((unsigned char *)w.out->data)[1] ^= 1;
  if (fault == FAULT_REFUSES_MUTELY) return assay_fail(error, ASSAY_ERR_INPUT, "something is wrong");
  if (fault != FAULT_ACCEPTS) {
    const assay_status status = check(call, error);
    if (status != ASSAY_OK) return status;
    if (env->workspace == NULL || env->workspace_bytes < 12)
      return assay_fail(error, ASSAY_ERR_INPUT, "workspace: too small");
  }
  if (fault == FAULT_HANG) return assay_fail(error, ASSAY_ERR_HANG, "all threads wait");
  if (fault == FAULT_LAUNCH) return assay_fail(error, ASSAY_ERR_DEVICE, "grid: too large");
  if (fault == FAULT_SPIN) wait_ms(1e6);
  if (fault == FAULT_SLOW_LAST_KEY) wait_ms(500);
  if (fault == FAULT_SEGV) {
    (void)signal(SIGSEGV, SIG_DFL); /* sanitizers have a handler of their own */
    (void)raise(SIGSEGV);
  }
  if (fault == FAULT_EXIT) _exit(7);
  device_faults = fault == FAULT_DEVICE;
  if (fault == FAULT_ACCEPTS) return ASSAY_OK;
  for (int64_t row = 0; row < w.N; ++row)
    for (int64_t h = 0; h < w.H; ++h)
      sum_row(&w, fault, row, h, env->workspace);
  unsigned char *out = w.out->data;
  const int64_t bytes = w.N * w.H * w.D * assay_dtype_size(w.out->dtype);
  if (fault == FAULT_GUARD_AFTER) out[bytes + 2] ^= 0x11;
  if (fault == FAULT_GUARD_BEFORE) out[-3] ^= 0x11;
  if (fault == FAULT_GUARD_WORKSPACE) ((unsigned char *)env->workspace)[13] ^= 0x11;
  if (fault == FAULT_INPUT) ((int32_t *)w.length->data)[1] += 1;
  return ASSAY_OK;
}

const assay_variant fake_variant = {.struct_size = sizeof(assay_variant),
                                    .op = "fake_gate",
                                    .name = "sum",
                                    .why = "to be judged",
                                    .device = "simt",
                                    .arch = "any",
                                    .claims = "f32|same|nhd|decode",
                                    .contract = {.qk_lanes = 1,
                                                 .pv_lanes = 1,
                                                 .keys_per_split = 32,
                                                 .zero_p_v = ASSAY_V_SKIPPED,
                                                 .run_to_run = true,
                                                 .renumbering = true,
                                                 .permutation = true},
                                    .supports = supports,
                                    .workspace = workspace,
                                    .launch = launch};

/* ---- device ------------------------------------------------------------------------------------------ */

static assay_status open_device(assay_error *error) {
  (void)error;
  return ASSAY_OK;
}
static void close_device(void) {}
static assay_status device_info(assay_device_info *info, assay_error *error) {
  (void)error;
  *info = (assay_device_info){.name = "fake \"device\"", .multiprocessors = 2};
  return ASSAY_OK;
}
static assay_status device_alloc(int64_t bytes, void **memory, assay_error *error) {
  *memory = aligned_alloc(256, (size_t)(bytes + 255) / 256 * 256);
  return *memory != NULL ? ASSAY_OK : assay_fail(error, ASSAY_ERR_MEMORY, "no memory");
}
static void device_release(void *memory) {
  free(memory);
}
static assay_status device_copy(void *to, const void *from, int64_t bytes, assay_error *error) {
  (void)error;
  memcpy(to, from, (size_t)bytes);
  return ASSAY_OK;
}
static void *device_stream(void) {
  return NULL;
}
static assay_status device_synchronize(assay_error *error) {
  const bool fault = device_faults;
  device_faults = false;
  return fault ? assay_fail(error, ASSAY_ERR_DEVICE, "illegal address") : ASSAY_OK;
}
static void device_schedule(uint64_t seed) {
  (void)seed;
}

const assay_device fake_device = {.name = "simt",
                                  .open = open_device,
                                  .close = close_device,
                                  .info = device_info,
                                  .alloc = device_alloc,
                                  .release = device_release,
                                  .upload = device_copy,
                                  .download = device_copy,
                                  .stream = device_stream,
                                  .synchronize = device_synchronize,
                                  .schedule = device_schedule};

void fake_register(void) {
  assay_error error = {""};
  if (assay_op_find("fake_gate") != NULL) return;
  (void)assay_registry_add_op(&fake_op, &error);
  (void)assay_registry_add_device(&fake_device, &error);
  (void)assay_registry_add_variants(&fake_variant, 1, "built-in", &error);
}

/* ---- case -------------------------------------------------------------------------------------------- */

void fake_set_dim(assay_case *one, const char *name, int64_t value) {
  for (int32_t i = 0; i < DIMS; ++i)
    if (strcmp(dims[i].name, name) == 0) one->dim[i] = value;
}
void fake_set_param(assay_case *one, const char *name, double value) {
  for (int32_t i = 0; i < PARAMS; ++i)
    if (strcmp(params[i].name, name) == 0) one->param[i] = value;
}

static int32_t *copy4(int32_t a, int32_t b, int32_t c, int32_t d) {
  int32_t *list = malloc(4 * sizeof *list);
  const int32_t value[4] = {a, b, c, d};
  if (list != NULL) memcpy(list, value, sizeof value);
  return list;
}

assay_case fake_case(case_tier tier) {
  assay_case one = {.op = &fake_op,
                    .suite = "selftest",
                    .name = "fake",
                    .tier = tier,
                    .variant = "sum",
                    .device = "simt",
                    .mode = MODE_DECODE,
                    .dtype = ASSAY_F32,
                    .kv_dtype = ASSAY_F32,
                    .present = 1u << FAKE_ARG_COUNT,
                    .batch = 4,
                    .tables = TABLES_SHUFFLED,
                    .values = tier == TIER_EXACT ? ASSAY_LATTICE : ASSAY_NORMAL,
                    .density = -1,
                    .sigma = 0.75,
                    .seed = 42};
  one.kv_len = copy4(5, 16, 0, 37);
  one.new_len = copy4(1, 1, 1, 1);
  one.share_with = copy4(-1, -1, -1, -1);
  one.share_tokens = copy4(0, 0, 0, 0);
  for (int32_t i = 0; i < DIMS; ++i)
    one.dim[i] = dims[i].fallback;
  return one;
}
