/* rope_append: rotary position embedding of q and k, and k and v written to their slots of the paged cache: rope, then
 * kv_append, in one call. For row n at p = positions_n with slot s, each pair (a, b) of the first R channels as in
 * rope:
 *
 *   q <- turn(q, p)                                 in place, or into q_out; of every row, whatever its slot
 *   k' = turn(k, p), rounded to the type of k       k stays as it is; k' into k_out, where that is there
 *   K[slot s] = store(k', k_scale_h),  V[slot s] = store(v, v_scale_h);  s = -1: nothing
 *
 * turn and store are those of rope (ref/lib/rope.c) and kv_append (ref/lib/append.c). Every other bit of the pool
 * stays. A position outside [0, max_pos) is an input error. Source: operator definitions, sections 1 and 4. */
#include <math.h>

#include "core/dtype.h"
#include "ref/lib/append.h"
#include "ref/lib/paged_check.h"
#include "ref/lib/plain.h"
#include "ref/lib/rope.h"
#include "ref/lib/rowwise.h"

enum {
  ARG_Q,
  ARG_K,
  ARG_V,
  ARG_COS,
  ARG_SIN,
  ARG_POSITIONS,
  ARG_SLOTS,
  ARG_K_CACHE,
  ARG_V_CACHE,
  ARG_K_SCALE,
  ARG_V_SCALE,
  ARG_Q_OUT,
  ARG_K_OUT,
  ARG_COUNT
};
enum { PARAM_LAYOUT, PARAM_STYLE, PARAM_SCALE_PER_HEAD, PARAM_COUNT };
enum { INTERLEAVED = 1, MOST_D = 256 };

const assay_op *assay_op_rope_append(void);

/* ---- planted errors ---------------------------------------------------------------------------------- */

typedef enum planted {
  ERROR_POSITION_ONE_OFF, /* the position behind the row's own */
  ERROR_OTHER_STYLE,      /* the other way of pairing channels */
  ERROR_TURNED_BACK,      /* rotated the other way round */
  ERROR_Q_NOT_ROTATED,
  ERROR_K_NOT_ROTATED,
  ERROR_V_ROTATED,
  ERROR_PAD_Q_NOT_ROTATED, /* a row without a slot is left alone as a whole */
  ERROR_REST_DROPPED,      /* channels from R on of the stored k are 0 */
  ERROR_ROWS_EXCHANGED,    /* slots of two neighbouring rows have changed places */
  ERROR_V_IS_K,            /* the V cache gets keys */
  ERROR_SCALE_LOST,        /* fp8: not divided */
  ERROR_HEAD_SCALE_LOST,   /* fp8: every head takes the factor of head 0 */
  ERROR_K_NOT_ROUNDED,     /* fp8: quantised as it comes, not as the type of k holds it */
  ERROR_COUNT,
  ERROR_NONE
} planted;

/* ---- one head ---------------------------------------------------------------------------------------- */

/* A head of a row with its angles. */
typedef struct turned {
  double x[MOST_D], cosine[MOST_D / 2], sine[MOST_D / 2];
  rope_head head; /* points here */
} turned;

static void load_head(const assay_call *call, int32_t arg, int64_t n, int64_t h, planted wrong, turned *t) {
  const assay_tensor *x = &call->arg[arg], *cosine = &call->arg[ARG_COS];
  const int64_t max_pos = cosine->shape[0], half = cosine->shape[1], D = x->shape[2];
  int64_t position = plain_integer(&call->arg[ARG_POSITIONS], n);
  if (wrong == ERROR_POSITION_ONE_OFF) position = (position + 1) % max_pos;
  const int64_t row = x->shape[0] > 1 ? n * x->stride[0] : 0;
  assay_load_f64_row(x->data, x->dtype, row + h * D, 1, D, t->x);
  assay_load_f64_row(cosine->data, ASSAY_F32, position * half, 1, half, t->cosine);
  assay_load_f64_row(call->arg[ARG_SIN].data, ASSAY_F32, position * half, 1, half, t->sine);
  for (int64_t i = 0; i < half && wrong == ERROR_TURNED_BACK; ++i)
    t->sine[i] = -t->sine[i];
  const bool interleaved = call->param[PARAM_STYLE] == INTERLEAVED;
  t->head = (rope_head){t->x, t->cosine, t->sine, 2 * half, D, wrong == ERROR_OTHER_STYLE ? !interleaved : interleaved};
}

/* y[D]: the head after its turn; turns: false: as it is. */
static void turn(const turned *t, bool turns, double *y) {
  const rope_head *h = &t->head;
  rope_rotate(h->x, h->cosine, h->sine, turns ? h->R : 0, h->D, h->interleaved, y);
}

/* The number that the cache holds for a rotated channel. */
static double stored_k(const assay_call *call, int64_t h, double y, planted wrong) {
  const float own = append_scale(&call->arg[ARG_K_SCALE], wrong == ERROR_HEAD_SCALE_LOST ? 0 : h);
  const double k = wrong == ERROR_K_NOT_ROUNDED ? y : assay_round_f64(y, call->arg[ARG_K].dtype);
  return append_stored(k, wrong == ERROR_SCALE_LOST ? 1.0f : own, call->arg[ARG_K_CACHE].dtype);
}

static double stored_v(const assay_call *call, int64_t h, double v, planted wrong) {
  const float own = append_scale(&call->arg[ARG_V_SCALE], wrong == ERROR_HEAD_SCALE_LOST ? 0 : h);
  return append_stored(v, wrong == ERROR_SCALE_LOST ? 1.0f : own, call->arg[ARG_V_CACHE].dtype);
}

static assay_status admit(const assay_call *call, int64_t n, const rope_head *h, assay_error *error) {
  int64_t channel = 0;
  double bits = 0;
  if (rope_exact(h, &channel, &bits)) return ASSAY_OK;
  return rowwise_refuse(call, n, channel, "significant bits of x_a cos and x_b sin, and of their sum", bits, 24, error);
}

/* ---- rows -------------------------------------------------------------------------------------------- */

typedef struct run {
  const assay_call *call;
  bool exact;
  planted wrong;
  assay_expected *q, *k_out, *cache[2]; /* K, V; k_out NULL: not there */
  int64_t slot;                         /* of the row */
} run;

/* Head h of row n of q, as element `at` of the result on. */
static assay_status q_head(const run *r, int64_t n, int64_t h, int64_t at, assay_error *error) {
  turned t;
  load_head(r->call, ARG_Q, n, h, r->wrong, &t);
  const bool left = r->wrong == ERROR_Q_NOT_ROTATED || (r->wrong == ERROR_PAD_Q_NOT_ROTATED && r->slot < 0);
  turn(&t, !left, r->q->value + at);
  if (r->q->sigma != NULL) rope_sigma(&t.head, r->call->arg[ARG_Q].dtype, r->q->sigma + at);
  return r->exact ? admit(r->call, n, &t.head, error) : ASSAY_OK;
}

/* The same of k. An f32 cache takes what the arithmetic makes of it; any other the rounded number, and accepts() says
 * which others rounding may make of it. */
static assay_status k_head(const run *r, int64_t n, int64_t h, int64_t at, assay_error *error) {
  turned t;
  double y[MOST_D], sigma[MOST_D];
  const assay_dtype dtype = r->call->arg[ARG_K].dtype, cache = r->call->arg[ARG_K_CACHE].dtype;
  load_head(r->call, ARG_K, n, h, r->wrong, &t);
  turn(&t, r->wrong != ERROR_K_NOT_ROTATED, y);
  rope_sigma(&t.head, dtype, sigma);
  for (int64_t d = 0; d < t.head.D; ++d) {
    const assay_expected *out = r->k_out, *to = r->cache[0];
    if (out != NULL && r->wrong != ERROR_ROWS_EXCHANGED) out->value[at + d] = y[d];
    if (out != NULL && out->sigma != NULL) out->sigma[at + d] = sigma[d];
    const bool dropped = r->wrong == ERROR_REST_DROPPED && d >= t.head.R;
    to->value[at + d] = r->slot < 0 || dropped ? 0 : stored_k(r->call, h, y[d], r->wrong);
    if (to->sigma != NULL) to->sigma[at + d] = cache == ASSAY_F32 && r->slot >= 0 ? sigma[d] : 0;
  }
  return r->exact ? admit(r->call, n, &t.head, error) : ASSAY_OK;
}

/* v of row n; of a pad row nothing is read. */
static void v_head(const run *r, int64_t n, int64_t h, int64_t at) {
  turned t;
  double y[MOST_D];
  const int64_t D = r->call->arg[ARG_V].shape[2];
  if (r->slot >= 0) {
    load_head(r->call, r->wrong == ERROR_V_IS_K ? ARG_K : ARG_V, n, h, r->wrong, &t);
    turn(&t, r->wrong == ERROR_V_ROTATED, y);
  }
  for (int64_t d = 0; d < D; ++d) {
    r->cache[1]->value[at + d] = r->slot < 0 ? 0 : stored_v(r->call, h, y[d], r->wrong);
    if (r->cache[1]->sigma != NULL) r->cache[1]->sigma[at + d] = 0;
  }
}

/* Row whose k and v row n's slot gets. */
static int64_t source_row(const run *r, int64_t n) {
  const assay_tensor *slots = &r->call->arg[ARG_SLOTS];
  const int64_t other = n % 2 == 0 ? n + 1 : n - 1;
  const bool both = r->slot >= 0 && other < slots->shape[0] && append_slot(slots, other) >= 0;
  return r->wrong == ERROR_ROWS_EXCHANGED && both ? other : n;
}

static int64_t pool_slots(const assay_call *call) {
  const assay_tensor *k = &call->arg[ARG_K_CACHE];
  const int layout = (int)call->param[PARAM_LAYOUT];
  return k->shape[0] * k->shape[layout == LAYOUT_NHD ? 1 : layout == LAYOUT_HND ? 2 : 3];
}

static assay_status compute(const assay_call *call, const assay_rows *rows, bool exact, planted wrong,
                            assay_expected *expected, assay_error *error) {
  const int64_t N = call->arg[ARG_Q].shape[0], H = call->arg[ARG_Q].shape[1], H_kv = call->arg[ARG_K].shape[1];
  const int64_t D = call->arg[ARG_Q].shape[2], max_pos = call->arg[ARG_COS].shape[0];
  const bool apart = call->arg[ARG_Q_OUT].data != NULL;
  run r = {.call = call, .exact = exact, .wrong = wrong};
  assay_status status = rope_check_positions(&call->arg[ARG_POSITIONS], max_pos, error);
  if (status == ASSAY_OK) status = append_check_distinct(&call->arg[ARG_SLOTS], pool_slots(call), error);
  r.q = &expected[rowwise_output(call, apart ? ARG_Q_OUT : ARG_Q)];
  r.cache[0] = &expected[rowwise_output(call, ARG_K_CACHE)];
  r.cache[1] = &expected[rowwise_output(call, ARG_V_CACHE)];
  if (call->arg[ARG_K_OUT].data != NULL) r.k_out = &expected[rowwise_output(call, ARG_K_OUT)];
  for (int64_t i = 0; i < rowwise_count(rows, N) && status == ASSAY_OK; ++i) {
    const int64_t n = rowwise_index(rows, i);
    r.slot = append_slot(&call->arg[ARG_SLOTS], n);
    const int64_t from = source_row(&r, n);
    for (int64_t h = 0; h < H && status == ASSAY_OK; ++h)
      status = q_head(&r, n, h, (i * H + h) * D, error);
    for (int64_t h = 0; h < H_kv && status == ASSAY_OK; ++h) {
      status = k_head(&r, from, h, (i * H_kv + h) * D, error);
      v_head(&r, from, h, (i * H_kv + h) * D);
    }
  }
  if (status == ASSAY_OK && apart) rowwise_unchanged(&call->arg[ARG_Q], rows, &expected[rowwise_output(call, ARG_Q)]);
  return status;
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)contract;
  if (seen != NULL) seen->visible_keys = seen->live_keys = 0;
  return compute(call, rows, exact, ERROR_NONE, expected, error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  (void)contract;
  assay_expected values[ASSAY_MAX_OUTPUTS];
  for (int32_t i = 0; i < rowwise_output(call, ARG_COUNT); ++i)
    values[i] = (assay_expected){expected[i].value, NULL};
  return compute(call, rows, false, (planted)index, values, error);
}

/* A stored key in another type than f32 is what some number that f32 arithmetic may give is stored as. */
static bool accepts(const assay_call *call, const assay_contract *contract, int32_t output, int64_t element,
                    double got) {
  (void)contract;
  const int64_t H_kv = call->arg[ARG_K].shape[1], D = call->arg[ARG_K].shape[2];
  const int64_t n = element / (H_kv * D), h = element / D % H_kv, d = element % D;
  if (output != rowwise_output(call, ARG_K_CACHE) || call->arg[ARG_K_CACHE].dtype == ASSAY_F32) return false;
  if (append_slot(&call->arg[ARG_SLOTS], n) < 0) return false;
  turned t;
  double y[MOST_D], bound[MOST_D];
  load_head(call, ARG_K, n, h, ERROR_NONE, &t);
  turn(&t, true, y);
  rope_bound(&t.head, bound);
  return got >= stored_k(call, h, y[d] - 1.01 * bound[d], ERROR_NONE) &&
         got <= stored_k(call, h, y[d] + 1.01 * bound[d], ERROR_NONE);
}

static assay_status check_tables(const assay_call *call, assay_error *error) {
  const assay_tensor *cosine = &call->arg[ARG_COS], *positions = &call->arg[ARG_POSITIONS];
  assay_status status = check_rank(call, ARG_COS, 2, error);
  if (status == ASSAY_OK) status = check_range("R", 2 * cosine->shape[1], 2, call->arg[ARG_Q].shape[2], 2, error);
  if (status == ASSAY_OK) status = check_range("max_pos", cosine->shape[0], 1, INT32_MAX, 1, error);
  if (status == ASSAY_OK) status = check_dense(call, ARG_COS, ASSAY_F32, 2, cosine->shape, error);
  if (status == ASSAY_OK) status = check_dense(call, ARG_SIN, ASSAY_F32, 2, cosine->shape, error);
  if (status != ASSAY_OK) return status;
  if (positions->dtype != ASSAY_I32 && positions->dtype != ASSAY_I64)
    return assay_fail(error, ASSAY_ERR_INPUT, "positions: found type %s, allowed i32, i64",
                      assay_dtype_name(positions->dtype));
  return check_dense(call, ARG_POSITIONS, positions->dtype, 1, call->arg[ARG_Q].shape, error);
}

static assay_status check_cache_of(const assay_call *call, assay_error *error) {
  const check_cache cache = {.rows = ARG_K,
                             .k = ARG_K_CACHE,
                             .v = ARG_V_CACHE,
                             .k_scale = ARG_K_SCALE,
                             .v_scale = ARG_V_SCALE,
                             .layout = (paged_layout)(int)call->param[PARAM_LAYOUT],
                             .scale_per_head = call->param[PARAM_SCALE_PER_HEAD] != 0};
  assay_status status = check_pools(call, &cache, error);
  if (status != ASSAY_OK) return status;
  const int64_t H_kv = call->arg[ARG_K].shape[1];
  const int64_t found = call->arg[ARG_K_CACHE].shape[cache.layout == LAYOUT_NHD ? 2 : 1];
  if (found != H_kv)
    return assay_fail(error, ASSAY_ERR_INPUT, "H_kv: found %lld in k_cache, allowed %lld, that of k", (long long)found,
                      (long long)H_kv);
  return check_scales(call, &cache, error);
}

static assay_status check(const assay_call *call, assay_error *error) {
  const assay_tensor *q = &call->arg[ARG_Q], *k = &call->arg[ARG_K];
  assay_status status = check_params(call, error);
  if (status != ASSAY_OK) return status;
  if (q->dtype != ASSAY_F32 && q->dtype != ASSAY_F16 && q->dtype != ASSAY_BF16)
    return assay_fail(error, ASSAY_ERR_INPUT, "q: found type %s, allowed f32, f16, bf16", assay_dtype_name(q->dtype));
  status = check_rank(call, ARG_Q, 3, error);
  if (status == ASSAY_OK) status = check_rank(call, ARG_K, 3, error);
  const int64_t N = q->shape[0], H = q->shape[1], D = q->shape[2], H_kv = k->shape[1];
  if (status == ASSAY_OK) status = check_range("N", N, 0, INT32_MAX, 1, error);
  if (status == ASSAY_OK) status = check_range("H", H, 1, 256, 1, error);
  if (status == ASSAY_OK) status = check_range("H_kv", H_kv, 1, 256, 1, error);
  if (status == ASSAY_OK) status = check_range("D", D, 8, MOST_D, 8, error);
  if (status == ASSAY_OK) status = append_check_rows(call, "q", q->dtype, N, H, D, error);
  if (status == ASSAY_OK) status = append_check_rows(call, "k", q->dtype, N, H_kv, D, error);
  if (status == ASSAY_OK) status = append_check_rows(call, "v", q->dtype, N, H_kv, D, error);
  if (status == ASSAY_OK) status = check_tables(call, error);
  if (status == ASSAY_OK) status = append_check_slots(call, N, error);
  if (status == ASSAY_OK) status = check_cache_of(call, error);
  const int64_t q_shape[3] = {N, H, D}, k_shape[3] = {N, H_kv, D};
  if (status == ASSAY_OK && call->arg[ARG_Q_OUT].data != NULL)
    status = check_dense(call, ARG_Q_OUT, q->dtype, 3, q_shape, error);
  if (status == ASSAY_OK && call->arg[ARG_K_OUT].data != NULL)
    status = check_dense(call, ARG_K_OUT, q->dtype, 3, k_shape, error);
  return status;
}

/* Four products and two sums a pair, a division for every fp8 code. In place only the rotated channels of q move. */
static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *q = &call->arg[ARG_Q], *k = &call->arg[ARG_K], *cosine = &call->arg[ARG_COS];
  const double N = (double)q->shape[0], D = (double)q->shape[2], R = 2 * (double)cosine->shape[1];
  const double size = (double)assay_dtype_size(q->dtype), code = (double)assay_dtype_size(call->arg[ARG_K_CACHE].dtype);
  const double q_heads = N * (double)q->shape[1], k_heads = N * (double)k->shape[1];
  double written = 0;
  for (int64_t n = 0; n < q->shape[0]; ++n)
    written += append_slot(&call->arg[ARG_SLOTS], n) >= 0;
  const double stored = 2 * written * (double)k->shape[1] * D;
  double bytes = 2 * q_heads * (call->arg[ARG_Q_OUT].data != NULL ? D : R) * size + stored * (size + code);
  if (call->arg[ARG_K_OUT].data != NULL) bytes += k_heads * D * size;
  const double table = (double)cosine->shape[0] < N ? (double)cosine->shape[0] : N;
  bytes += table * R * 4 + N * (8 + (double)assay_dtype_size(call->arg[ARG_POSITIONS].dtype));
  return (assay_cost){.flops = 3 * R * (q_heads + k_heads) + (code < 2 ? stored : 0), .bytes = bytes};
}

/* ---- values for the generator ------------------------------------------------------------------------ */

/* fp8: k and v are such that their quotients fill the codes; special values are those of v's quotient, and k is large
 * enough to saturate. q and k hold no special values: their products would. */
static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  (void)error;
  const assay_tensor *cosine = &from->call->arg[ARG_COS];
  const bool fp8 = from->kv_dtype == ASSAY_E4M3 || from->kv_dtype == ASSAY_E5M2,
             special = from->values == ASSAY_SPECIAL;
  assay_fill own = *from;
  if (special) own.values = ASSAY_NORMAL;
  if (arg == ARG_COS || arg == ARG_SIN)
    rope_fill_table(from, cosine->shape[1], arg == ARG_SIN, value, count);
  else if (arg == ARG_POSITIONS)
    rope_fill_positions(from, cosine->shape[0], value, count);
  else
    plain_fill(&own, (uint64_t)arg, value, count);
  if (arg != ARG_K || !fp8) return ASSAY_OK;
  const double size = special ? 400 : from->values == ASSAY_NORMAL ? 16 : 1;
  for (int64_t i = 0; i < count; ++i)
    value[i] *= size * from->k_scale;
  return ASSAY_OK;
}

static void fill_v(const assay_fill *fill, int64_t content, int64_t kv_head, double *value) {
  plain_fill(fill, (uint64_t)(ARG_COUNT + content * 256 + kv_head), value, fill->D);
  const bool fp8 = fill->kv_dtype == ASSAY_E4M3 || fill->kv_dtype == ASSAY_E5M2;
  const double size = !fp8 ? 1 : fill->values == ASSAY_NORMAL ? 16 * fill->v_scale : fill->v_scale;
  for (int64_t d = 0; d < fill->D; ++d)
    value[d] *= size;
}

/* Keys of the cache: none is read, and those of the rows are fill()'s. */
static void fill_k(const assay_fill *fill, int64_t content, int64_t kv_head, double *value) {
  (void)content;
  (void)kv_head;
  for (int64_t d = 0; d < fill->D; ++d)
    value[d] = 0;
}

/* Nothing depends on what lies in the pool. */
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
    {"N", 0, 0, 0, 1, "rows: new tokens"},
    {"H", 1, 256, 8, 1, "query heads"},
    {"H_kv", 1, 256, 4, 1, "key/value heads"},
    {"D", 8, MOST_D, 128, 8, "channels of a head"},
    {"R", 2, MOST_D, 8, 2, "rotated channels, at most D"},
    {"max_pos", 1, 1 << 20, 64, 1, "positions of the table"},
    {"block_size", 8, 256, 16, 8, "tokens of a cache block: 8, 16, 32, 64, 128 or 256"},
    {"num_blocks", 0, 0, 0, 1, "blocks of the pool"},
    {"kv_scales", 0, 0, 0, 1, "fp8 factors: 1, or H_kv with scale_per_head"},
};

static const assay_arg args[ARG_COUNT] = {
    {"q", ASSAY_INOUT, ASSAY_VALUES, false, "f32,f16,bf16", "N,H,D", "queries; the result, unless q_out is there",
     true},
    {"k", ASSAY_IN, ASSAY_VALUES, false, "=q", "N,H_kv,D", "new keys before rotation; the row stride is free", true},
    {"v", ASSAY_IN, ASSAY_V_NEW, false, "=q", "N,H_kv,D", "new values; the row stride is free", true},
    {"cos", ASSAY_IN, ASSAY_VALUES, false, "f32", "max_pos,R/2", "cosines of each position", false},
    {"sin", ASSAY_IN, ASSAY_VALUES, false, "f32", "max_pos,R/2", "sines", false},
    {"positions", ASSAY_IN, ASSAY_VALUES, false, "i32,i64", "N", "of each row, 0 to max_pos - 1", false},
    {"slots", ASSAY_IN, ASSAY_SLOTS, false, "i64", "N", "block · block_size + offset of each row; -1: not written",
     false},
    {"k_cache", ASSAY_INOUT, ASSAY_K_CACHE, false, "=q,e4m3,e5m2",
     "num_blocks,block_size,H_kv,D|num_blocks,H_kv,block_size,D|num_blocks,H_kv,D/x,block_size,x",
     "pool of keys; every stride but the last is free", false},
    {"v_cache", ASSAY_INOUT, ASSAY_V_CACHE, false, "=k_cache",
     "num_blocks,block_size,H_kv,D|num_blocks,H_kv,block_size,D|num_blocks,H_kv,D,block_size",
     "pool of values; every stride but the last is free", false},
    {"k_scale", ASSAY_IN, ASSAY_KV_SCALE, true, "f32", "kv_scales", "K = code · k_scale; with fp8 caches only", false},
    {"v_scale", ASSAY_IN, ASSAY_KV_SCALE, true, "f32", "kv_scales", "V = code · v_scale; with fp8 caches only", false},
    {"q_out", ASSAY_OUT, ASSAY_RESULT, true, "=q", "N,H,D", "the result; q keeps its bits", false},
    {"k_out", ASSAY_OUT, ASSAY_RESULT, true, "=q", "N,H_kv,D", "the rotated keys, as they are before they are stored",
     false},
};

static const assay_param params[PARAM_COUNT] = {
    {"layout", ASSAY_ENUM, 0, 2, 0, "nhd,hnd,x", "order of the axes of the pools"},
    {"style", ASSAY_ENUM, 0, 1, 0, "neox,interleaved", "which channels make a pair"},
    {"scale_per_head", ASSAY_BOOL, 0, 1, 0, NULL, "one fp8 factor per kv head"},
};

static const assay_op op = {
    .name = "rope_append",
    .title = "rotary position embedding of q and k, with k and v written to their slots of a paged cache",
    .source = "operator definitions, sections 1 and 4",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .params = params,
    .param_count = PARAM_COUNT,
    .laws = "run_to_run,dead_bytes,renumbering,permutation,in_place,parts",
    .spoils = "position_one_off,other_style,turned_back,q_not_rotated,k_not_rotated,v_rotated,pad_q_not_rotated,"
              "rest_dropped,rows_exchanged,v_is_k,scale_lost,head_scale_lost,k_not_rounded",
    .kappa_element = 3.2,
    .takes_special = true,
    .confirmed_by = "rotation by complex numbers, a search over all codes; rope, then kv_append",
    .check = check,
    .reference = reference,
    .cost = cost,
    .fill_k = fill_k,
    .fill_v = fill_v,
    .fill = fill,
    .accepts = accepts,
    .visible = visible,
    .spoil = spoil,
    .parts = "rope,kv_append",
};

const assay_op *assay_op_rope_append(void) {
  return &op;
}
