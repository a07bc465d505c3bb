/* kv_append: writes the new tokens' keys and values to their slots of the paged cache. For row n with slot
 * s = slots[n], kv head h and channel d (of D in K, of D_v in V):
 *
 *   K[block s / block_size][offset s mod block_size][h][d] = store(k[n][h][d], k_scale_h),   V likewise
 *   s = -1: nothing
 *
 * store(x, scale) is x in the cache's type. For fp8 it is the code nearest to x / scale (the quotient rounded to f32),
 * ties to even. Beyond the largest finite value it is that value, and NaN for NaN.
 *
 * Every other bit of the pool stays. Source: docs/definitions.md, section 1. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "ref/lib/append.h"
#include "ref/lib/paged_check.h"
#include "ref/lib/paged_tables.h"
#include "ref/lib/plain.h"

enum { ARG_K, ARG_V, ARG_SLOTS, ARG_K_CACHE, ARG_V_CACHE, ARG_K_SCALE, ARG_V_SCALE, ARG_COUNT };
enum { PARAM_LAYOUT, PARAM_SCALE_PER_HEAD, PARAM_COUNT };

const assay_op *assay_op_kv_append(void);

/* ---- the definition ---------------------------------------------------------------------------------- */

/* Computes stored [H_kv, D] of one row x [H_kv, D]. */
static void kv_append(int64_t H_kv, int64_t D, const double *x, const assay_tensor *scale, assay_dtype cache,
                      double *stored) {
  for (int64_t h = 0; h < H_kv; ++h)
    for (int64_t d = 0; d < D; ++d)
      stored[h * D + d] = append_stored(x[h * D + d], append_scale(scale, h), cache);
}

/* ---- planted errors ---------------------------------------------------------------------------------- */

typedef enum append_spoil {
  SPOIL_ROWS_SWAPPED,       /* the last two written rows are exchanged */
  SPOIL_ROW_DROPPED,        /* the last written row is not written */
  SPOIL_V_IS_K,             /* the V cache receives keys */
  SPOIL_HEADS_REVERSED,     /* kv heads in reverse order */
  SPOIL_SCALE_LOST,         /* fp8: not divided */
  SPOIL_SCALES_SWAPPED,     /* fp8: k is divided by v's factor and v by k's */
  SPOIL_HEAD_SCALE_LOST,    /* fp8: every head takes the factor of head 0 */
  SPOIL_RECIPROCAL,         /* fp8: times 1 / scale */
  SPOIL_TOWARDS_ZERO,       /* fp8: rounded towards zero */
  SPOIL_HALVES_AWAY,        /* fp8: ties away from zero */
  SPOIL_NOT_SATURATED,      /* fp8: NaN beyond the largest value */
  SPOIL_SUBNORMALS_FLUSHED, /* fp8: codes below the smallest normal become 0 */
  SPOIL_V_HEAD_BY_D,        /* heads of the new values are read D channels apart */
  SPOIL_COUNT,
  SPOIL_NONE
} append_spoil;

static double smallest_normal(assay_dtype cache) {
  return cache == ASSAY_E4M3 ? 0x1p-6 : 0x1p-14;
}

/* Returns the code next to a stored code, on the side of `to`. */
static double code_towards(double code, double to, assay_dtype cache) {
  const double step = assay_ulp(code, cache), away = code + (to > code ? step : -step);
  const double half = code + (to > code ? step / 2 : -step / 2); /* below a power of two the step is half as wide */
  return assay_round_f64(half, cache) == half ? half : away;
}

static double stored_wrong(append_spoil spoil, double x, float scale, assay_dtype cache) {
  if (spoil == SPOIL_SCALE_LOST) scale = 1;
  const double right = append_stored(x, scale, cache);
  const double quotient = (double)((float)x / scale);
  if ((cache != ASSAY_E4M3 && cache != ASSAY_E5M2) || assay_is_nan(right)) return right;
  const double largest = cache == ASSAY_E4M3 ? 448 : 57344;
  if (spoil == SPOIL_RECIPROCAL) return assay_round_f64((double)((float)x * (1.0f / scale)), cache);
  if (spoil == SPOIL_NOT_SATURATED && fabs(quotient) > largest + assay_ulp(largest, cache) / 2) return (double)NAN;
  if (spoil == SPOIL_SUBNORMALS_FLUSHED && fabs(right) < smallest_normal(cache)) return 0;
  if (fabs(quotient) >= largest || quotient == right) return right;
  if (spoil == SPOIL_TOWARDS_ZERO && fabs(right) > fabs(quotient)) return code_towards(right, 0, cache);
  if (spoil == SPOIL_HALVES_AWAY && fabs(right) < fabs(quotient)) {
    const double other = code_towards(right, quotient, cache);
    return quotient - right == other - quotient ? other : right;
  }
  return right;
}

/* Returns the row of the case that is written in place of row n. */
static int64_t source_row(append_spoil spoil, const assay_tensor *slots, int64_t n) {
  int64_t last = -1, before = -1;
  if (spoil != SPOIL_ROWS_SWAPPED && spoil != SPOIL_ROW_DROPPED) return n;
  for (int64_t i = slots->shape[0] - 1; i >= 0 && before < 0; --i) {
    if (append_slot(slots, i) < 0) continue;
    if (last < 0)
      last = i;
    else
      before = i;
  }
  if (spoil == SPOIL_ROW_DROPPED) return n == last ? -1 : n;
  return before < 0 ? n : n == last ? before : n == before ? last : n;
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

/* Computes one output, K (which 0) or V (which 1), over the rows. */
static void compute(const assay_call *call, const assay_rows *rows, int which, append_spoil spoil, double *x,
                    assay_expected *expected) {
  const assay_tensor *slots = &call->arg[ARG_SLOTS];
  const int from = spoil == SPOIL_V_IS_K ? 0 : which, factor = spoil == SPOIL_SCALES_SWAPPED ? 1 - which : which;
  const assay_tensor *rows_in = &call->arg[from == 0 ? ARG_K : ARG_V];
  const assay_tensor *scale = &call->arg[factor == 0 ? ARG_K_SCALE : ARG_V_SCALE];
  const assay_dtype cache = call->arg[which == 0 ? ARG_K_CACHE : ARG_V_CACHE].dtype;
  /* D: channels of the output, K or V; from_D: of the rows that are read */
  const int64_t H_kv = rows_in->shape[1], from_D = rows_in->shape[2];
  const int64_t D = call->arg[which == 0 ? ARG_K : ARG_V].shape[2], width = H_kv * D;
  const int64_t apart = spoil == SPOIL_V_HEAD_BY_D ? call->arg[ARG_K].shape[2] : from_D;
  const int64_t count = rows != NULL && rows->index != NULL ? rows->count : slots->shape[0];
  for (int64_t i = 0; i < count; ++i) {
    const int64_t n = rows != NULL && rows->index != NULL ? rows->index[i] : i;
    double *value = expected->value + i * width;
    for (int64_t e = 0; e < width; ++e)
      value[e] = 0;
    if (expected->sigma != NULL)
      for (int64_t e = 0; e < width; ++e)
        expected->sigma[i * width + e] = 0;
    if (append_slot(slots, n) < 0) continue;
    const int64_t source = source_row(spoil, slots, n);
    if (source < 0) {
      for (int64_t e = 0; e < width; ++e)
        value[e] = (double)NAN; /* the bits that were there before */
      continue;
    }
    plain_load_row(rows_in, source, x);
    if (spoil == SPOIL_NONE) {
      kv_append(H_kv, D, x, scale, cache, value);
      continue;
    }
    for (int64_t e = 0; e < width; ++e) {
      const int64_t h = spoil == SPOIL_HEADS_REVERSED ? H_kv - 1 - e / D : e / D;
      const float s = append_scale(scale, spoil == SPOIL_HEAD_SCALE_LOST ? 0 : e / D);
      value[e] = stored_wrong(spoil, x[(h * apart + e % D) % (H_kv * from_D)], s, cache);
    }
  }
}

static int64_t pool_slots(const assay_call *call) {
  const assay_tensor *k = &call->arg[ARG_K_CACHE];
  const int layout = (int)call->param[PARAM_LAYOUT];
  return k->shape[0] * k->shape[layout == LAYOUT_NHD ? 1 : layout == LAYOUT_HND ? 2 : 3];
}

static assay_status both(const assay_call *call, const assay_rows *rows, append_spoil spoil, assay_expected *expected,
                         assay_error *error) {
  assay_status status = append_check_distinct(&call->arg[ARG_SLOTS], pool_slots(call), error);
  if (status != ASSAY_OK) return status;
  const int64_t k = call->arg[ARG_K].shape[2], v = call->arg[ARG_V].shape[2];
  const int64_t width = call->arg[ARG_K].shape[1] * (k > v ? k : v);
  double *x = malloc((size_t)width * sizeof *x);
  if (x == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "kv_append reference: out of memory");
  compute(call, rows, 0, spoil, x, &expected[0]);
  compute(call, rows, 1, spoil, x, &expected[1]);
  free(x);
  return ASSAY_OK;
}

/* Computes the expectation. f32 division and one rounding to a code are the same everywhere. Thus every result is
 * exact, on any inputs. */
static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)contract;
  (void)exact;
  if (seen != NULL) seen->visible_keys = seen->live_keys = 0;
  return both(call, rows, SPOIL_NONE, expected, error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  (void)contract;
  if (index < 0 || index >= SPOIL_COUNT)
    return assay_fail(error, ASSAY_ERR_INPUT, "spoil: found number %d, allowed 0 to %d", index, SPOIL_COUNT - 1);
  assay_expected values[2] = {{expected[0].value, NULL}, {expected[1].value, NULL}};
  return both(call, rows, (append_spoil)index, values, error);
}

static assay_status check(const assay_call *call, assay_error *error) {
  const assay_tensor *k = &call->arg[ARG_K];
  assay_status status = check_params(call, error);
  if (status != ASSAY_OK) return status;
  if (k->dtype != ASSAY_F32 && k->dtype != ASSAY_F16 && k->dtype != ASSAY_BF16)
    return assay_fail(error, ASSAY_ERR_INPUT, "k: found type %s, allowed f32, f16, bf16", assay_dtype_name(k->dtype));
  status = check_rank(call, ARG_K, 3, error);
  if (status == ASSAY_OK) status = check_range("N", k->shape[0], 0, INT32_MAX, 1, error);
  if (status == ASSAY_OK) status = check_range("H_kv", k->shape[1], 1, 256, 1, error);
  if (status == ASSAY_OK) status = check_range("D", k->shape[2], 8, 256, 8, error);
  const char *const names[] = {"k", "v"};
  const int64_t D_v = call->arg[ARG_V].rank == 3 ? call->arg[ARG_V].shape[2] : k->shape[2];
  if (status == ASSAY_OK) status = check_range("D_v, v", D_v, 8, 256, 8, error);
  for (int i = 0; i < 2 && status == ASSAY_OK; ++i)
    status = append_check_rows(call, names[i], k->dtype, k->shape[0], k->shape[1], i == 0 ? k->shape[2] : D_v, error);
  if (status == ASSAY_OK) status = append_check_slots(call, k->shape[0], error);
  if (status != ASSAY_OK) return status;
  const check_cache cache = {.rows = ARG_K,
                             .k = ARG_K_CACHE,
                             .v = ARG_V_CACHE,
                             .k_scale = ARG_K_SCALE,
                             .v_scale = ARG_V_SCALE,
                             .layout = (paged_layout)(int)call->param[PARAM_LAYOUT],
                             .scale_per_head = call->param[PARAM_SCALE_PER_HEAD] != 0};
  status = check_pools(call, &cache, error);
  const int64_t H_kv = call->arg[ARG_K_CACHE].shape[cache.layout == LAYOUT_NHD ? 2 : 1];
  if (status == ASSAY_OK) status = check_extent(call, ARG_V_CACHE, cache.layout == LAYOUT_X ? 2 : 3, D_v, error);
  if (status == ASSAY_OK && H_kv != k->shape[1])
    status = assay_fail(error, ASSAY_ERR_INPUT, "H_kv: found %lld in k_cache, allowed %lld, that of k", (long long)H_kv,
                        (long long)k->shape[1]);
  if (status == ASSAY_OK) status = check_scales(call, &cache, error);
  return status;
}

/* Counts each value as read once and written once, and a division per fp8 code. */
/* Without a scale a number is copied. */
static bool copies(const assay_call *call, int32_t output, int64_t element) {
  (void)output;
  (void)element;
  return call->arg[ARG_K_SCALE].data == NULL;
}

static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *k = &call->arg[ARG_K], *cache = &call->arg[ARG_K_CACHE];
  int64_t rows = 0;
  for (int64_t n = 0; n < k->shape[0]; ++n)
    rows += append_slot(&call->arg[ARG_SLOTS], n) >= 0;
  const double channels = (double)(k->shape[2] + call->arg[ARG_V].shape[2]);
  const double elements = (double)rows * (double)k->shape[1] * channels;
  const double size = (double)(assay_dtype_size(k->dtype) + assay_dtype_size(cache->dtype));
  return (assay_cost){.flops = assay_dtype_size(cache->dtype) == 1 ? elements : 0,
                      .bytes = elements * size + 8 * (double)k->shape[0]};
}

/* ---- values for the generator ------------------------------------------------------------------------ */

/* Fills a row. For fp8 the special values are those of the quotient. Ties, subnormals and the edge of saturation thus
 * occur. */
static void fill_row(const assay_fill *fill, uint64_t stream, double scale, double *value) {
  plain_fill(fill, stream, value, fill->D);
  const bool fp8 = fill->kv_dtype == ASSAY_E4M3 || fill->kv_dtype == ASSAY_E5M2;
  const double size = !fp8 ? 1 : fill->values == ASSAY_NORMAL ? 16 * scale : scale;
  for (int64_t d = 0; d < fill->D; ++d)
    value[d] *= size;
}

static void fill_k(const assay_fill *fill, int64_t content, int64_t kv_head, double *value) {
  fill_row(fill, (uint64_t)(2 * (content * 256 + kv_head)), fill->k_scale, value);
}

static void fill_v(const assay_fill *fill, int64_t content, int64_t kv_head, double *value) {
  fill_row(fill, (uint64_t)(2 * (content * 256 + kv_head) + 1), fill->v_scale, value);
}

/* Returns false: no token is read, so nothing depends on the pool's contents. */
static bool visible(const assay_call *call, int64_t request, int64_t length, int64_t first_position, int64_t token) {
  (void)call;
  (void)request;
  (void)length;
  (void)first_position;
  (void)token;
  return false;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    PAGED_N("new tokens"), PAGED_H_KV(""),  PAGED_D,   PAGED_BLOCK_SIZE(""),
    PAGED_NUM_BLOCKS(""),  PAGED_KV_SCALES, PAGED_D_V,
};

static const assay_arg args[ARG_COUNT] = {
    {"k", ASSAY_IN, ASSAY_K_NEW, false, "f32,f16,bf16", "N,H_kv,D", "new keys; the row stride is free", true},
    {"v", ASSAY_IN, ASSAY_V_NEW, false, "=k", "N,H_kv,D_v", "new values; the row stride is free", true},
    PAGED_SLOTS("not written"),
    PAGED_CACHE_OF(ASSAY_INOUT, "=k,e4m3,e5m2", "D_v"),
};

static const assay_param params[PARAM_COUNT] = {
    PAGED_LAYOUT(""),
    PAGED_SCALE_PER_HEAD,
};

static const assay_op op = {
    .name = "kv_append",
    .title = "new keys and values written to their slots of a paged cache",
    .source = "docs/definitions.md, section 1",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .params = params,
    .param_count = PARAM_COUNT,
    .laws = "run_to_run,dead_bytes,renumbering,permutation",
    .spoils = "rows_swapped,row_dropped,v_is_k,heads_reversed,scale_lost,scales_swapped,head_scale_lost,reciprocal,"
              "towards_zero,halves_away,not_saturated,subnormals_flushed,v_head_by_D",
    .kappa_element = 2.5,
    .takes_special = true,
    .confirmed_by =
        "a nearest search over all 256 codes, in order of value; what was appended, read back (ref_cache_test)",
    .largest = 0x1.fffffep127,
    .check = check,
    .reference = reference,
    .cost = cost,
    .fill_k = fill_k,
    .fill_v = fill_v,
    .visible = visible,
    .spoil = spoil,
    .copies = copies,
};

const assay_op *assay_op_kv_append(void) {
  return &op;
}
