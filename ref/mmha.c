/* mmha: a decode step of masked multi-head attention on the fused projection. For the row of request i, at position
 * last = L_i - 1, of qkv[H + 2 H_kv, D]:
 *
 *   x <- qkv + bias        q, k <- rope(x, cos[last], sin[last]),  v <- x        then attention_append of (q, k, v)
 *
 * k and v are rounded to the type of qkv and then stored (quantised); the attention sees them so. q stays in f32
 * unless the contract says that it is rounded. A pad row has L = 0 and slot -1: its qkv is not read, out is 0.
 * Source: operator definitions, sections 2.5 and 4. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "ref/lib/append.h"
#include "ref/lib/error_model.h"
#include "ref/lib/mmha.h"
#include "ref/lib/paged_check.h"
#include "ref/lib/plain.h"
#include "ref/lib/rope.h"

enum {
  ARG_QKV,
  ARG_BIAS,
  ARG_COS,
  ARG_SIN,
  ARG_SLOTS,
  ARG_K_CACHE,
  ARG_V_CACHE,
  ARG_K_SCALE,
  ARG_V_SCALE,
  ARG_TABLE,
  ARG_KV_LEN,
  ARG_TAPS,
  ARG_GAMMA,
  ARG_OUT,
  ARG_COUNT
};
enum { OUT_K, OUT_V, OUT_OUT };
enum { MAX_TAPS = 8, MOST_D = 256 };

const assay_op *assay_op_mmha(void);

static const char *const error_names[MMHA_ERROR_COUNT] = {
    "",          "bias_lost", "position_one_off", "other_style", "turned_back", "q_not_rotated", "k_not_rotated",
    "v_rotated", "bias_after"};

/* ---- one row ----------------------------------------------------------------------------------------- */

/* An input of the attention that rounding may leave on either side of a boundary: the number in its place instead. */
typedef struct doubt {
  int64_t row, head, channel; /* place among the rows; head as in qkv */
  double other;
} doubt;

typedef struct mmha_run {
  const assay_call *call;
  const assay_contract *contract;
  mmha m;
  append_cache cache;
  mmha_error wrong;
  bool exact;
  assay_dtype rotated; /* q after bias and rotation; F32: stays so */
  assay_dtype q;       /* type of the tensor that holds it: that of qkv where q has it anyway, else f32 */
  assay_expected *expected;
  double *sent, *variance; /* [rows, H + 2 H_kv, D] what attends, and its variance where that is f32 */
  doubt *doubts;
  int64_t doubt_count, doubt_room;
} mmha_run;

static int64_t heads_of(const mmha_run *run) {
  return run->m.H + 2 * run->m.H_kv;
}

/* The number that attends in place of the exact value. */
static double sent_form(const mmha_run *run, int64_t head, double value) {
  const assay_dtype dtype = run->m.qkv->dtype;
  if (head < run->m.H) return assay_round_f64(value, run->rotated);
  const int64_t h = (head - run->m.H) % run->m.H_kv;
  const bool k = head < run->m.H + run->m.H_kv;
  const assay_tensor *cache = &run->call->arg[k ? ARG_K_CACHE : ARG_V_CACHE];
  const float scale = append_scale(&run->call->arg[k ? ARG_K_SCALE : ARG_V_SCALE], h);
  return append_stored(assay_round_f64(value, dtype), scale, cache->dtype);
}

/* Is what attends an f32 number, so that its errors are as fine as those of the arithmetic? */
static bool is_fine(const mmha_run *run, int64_t head) {
  if (head < run->m.H) return run->rotated == ASSAY_F32;
  return run->call->arg[ARG_K_CACHE].dtype == ASSAY_F32;
}

static assay_status add_doubt(mmha_run *run, doubt one, assay_error *error) {
  if (run->doubt_count == run->doubt_room) {
    const int64_t room = 2 * run->doubt_room + 64;
    doubt *more = realloc(run->doubts, (size_t)room * sizeof *more);
    if (more == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "mmha reference: out of memory");
    run->doubts = more;
    run->doubt_room = room;
  }
  run->doubts[run->doubt_count++] = one;
  return ASSAY_OK;
}

static void put(mmha_run *run, int64_t i, int64_t head, const double *value) {
  const int64_t H = run->m.H, H_kv = run->m.H_kv;
  if (head < H)
    append_cache_put_q(&run->cache, i, head, value);
  else if (head < H + H_kv)
    append_cache_put_k(&run->cache, i, head - H, value);
  else
    append_cache_put_v(&run->cache, i, head - H - H_kv, value);
}

static assay_status refuse(int64_t n, int64_t head, int64_t d, const char *what, double found, double allowed,
                           assay_error *error) {
  return assay_fail(error, ASSAY_ERR_INPUT,
                    "exact tier: row %lld, head %lld, channel %lld: %s: found %.17g, allowed %.17g", (long long)n,
                    (long long)head, (long long)d, what, found, allowed);
}

/* One head of row i: the definition, what attends of it, and what rounding may change about that. */
static assay_status one_head(mmha_run *run, int64_t i, int64_t head, assay_error *error) {
  double value[MOST_D], bound[MOST_D], variance[MOST_D];
  const int64_t n = append_cache_row(&run->cache, i), position = run->cache.length[i] - 1, D = run->m.D;
  const assay_dtype dtype = run->m.qkv->dtype;
  double *sent = run->sent + (i * heads_of(run) + head) * D, *spread = run->variance + (i * heads_of(run) + head) * D;
  assay_status status = ASSAY_OK;
  mmha_head(&run->m, n, head, position, run->wrong, value, bound, variance);
  for (int64_t d = 0; d < D && status == ASSAY_OK; ++d) {
    sent[d] = sent_form(run, head, value[d]);
    spread[d] = is_fine(run, head) && bound[d] > 0 ? variance[d] + storing_variance(value[d], ASSAY_F32) : 0;
    if (run->exact && bound[d] > 0) return refuse(n, head, d, "rounding error in f32", bound[d], 0, error);
    if (run->exact && assay_round_f64(value[d], dtype) != value[d])
      return refuse(n, head, d, "value in the type of qkv", value[d], assay_round_f64(value[d], dtype), error);
    if (run->exact && head < run->m.H && sent[d] != value[d])
      return refuse(n, head, d, "q in the contract's type", value[d], sent[d], error);
    if (is_fine(run, head) || !(bound[d] > 0)) continue;
    for (int side = -1; side <= 1 && status == ASSAY_OK; side += 2) {
      const double other = sent_form(run, head, value[d] + side * 1.01 * bound[d]);
      if (other != sent[d]) status = add_doubt(run, (doubt){i, head, d, other}, error);
    }
  }
  put(run, i, head, sent);
  return status;
}

/* Expected K and V of row i: what was put, and how far it may be off. */
static void expect_stored(mmha_run *run, int64_t i) {
  const int64_t D = run->m.D, H_kv = run->m.H_kv;
  for (int which = 0; which < 2; ++which) {
    const int64_t at = (i * heads_of(run) + run->m.H + which * H_kv) * D, to = i * H_kv * D;
    for (int64_t e = 0; e < H_kv * D; ++e) {
      run->expected[which].value[to + e] = run->sent[at + e];
      if (run->expected[which].sigma != NULL) run->expected[which].sigma[to + e] = sqrt(run->variance[at + e]);
    }
  }
}

static void expect_doubts(mmha_run *run) {
  const int64_t D = run->m.D, H = run->m.H, H_kv = run->m.H_kv;
  for (int64_t j = 0; j < run->doubt_count; ++j) {
    const doubt *one = &run->doubts[j];
    const int which = one->head >= H + H_kv;
    if (one->head < H || run->expected[which].sigma == NULL) continue;
    const int64_t h = one->head - H - which * H_kv;
    double *sigma = &run->expected[which].sigma[(one->row * H_kv + h) * D + one->channel];
    const double moved = fabs(one->other - run->sent[(one->row * heads_of(run) + one->head) * D + one->channel]);
    if (moved > *sigma) *sigma = moved;
  }
}

static assay_status rows_of(mmha_run *run, assay_error *error) {
  const int64_t heads = heads_of(run), width = heads * run->m.D, count = run->cache.count;
  assay_status status = ASSAY_OK;
  run->sent = calloc((size_t)(count * width + 1), sizeof *run->sent);
  run->variance = calloc((size_t)(count * width + 1), sizeof *run->variance);
  if (run->sent == NULL || run->variance == NULL)
    return assay_fail(error, ASSAY_ERR_MEMORY, "mmha reference: out of memory");
  for (int64_t i = 0; i < count && status == ASSAY_OK; ++i) {
    for (int64_t head = 0; head < heads && run->cache.length[i] > 0 && status == ASSAY_OK; ++head)
      status = one_head(run, i, head, error);
    expect_stored(run, i);
  }
  expect_doubts(run);
  return status;
}

/* ---- the error model --------------------------------------------------------------------------------- */

/* Beside the attention's own: what its inputs may be off. A number near a rounding boundary is put on the other side,
 * one after the other, and the result's whole move counts. Errors of f32 size: all at once, large enough to be f32
 * numbers still (and small enough to stay between the edges of a clip), with other signs 32 times; the mean square of
 * the move, scaled back. The signs of one channel over the draws are a Walsh function, so that up to 32 channels (of q,
 * k and v together) do not mix at all: the mean is the sum of their squares. Further channels share functions with
 * these, and signs of their own. */
enum { DRAWS = 32 };
static const double magnified = 0x1p4;

static bool is_up(int64_t row, int64_t place, int draw) {
  const uint64_t own = ((uint64_t)row * 8191 + (uint64_t)place) * 6364136223846793005u + 1442695040888963407u;
  uint32_t odd = (uint32_t)place & (uint32_t)draw;
  for (int shift = 16; shift > 0; shift /= 2)
    odd ^= odd >> shift;
  return ((odd ^ (uint32_t)(own >> 63)) & 1u) != 0;
}

static void add_move(const assay_expected *out, const double *moved, int64_t from, int64_t count, double weight) {
  for (int64_t e = 0; e < count; ++e) {
    const double move = moved[e] - out->value[from + e];
    out->sigma[from + e] += weight * move * move;
  }
}

static assay_status add_doubts(mmha_run *run, const assay_expected *out, double *moved, assay_error *error) {
  const int64_t D = run->m.D, width = run->m.H * D;
  assay_status status = ASSAY_OK;
  for (int64_t j = 0; j < run->doubt_count && status == ASSAY_OK; ++j) {
    const doubt *one = &run->doubts[j];
    double *sent = run->sent + (one->row * heads_of(run) + one->head) * D;
    const double kept = sent[one->channel];
    assay_expected got = {moved, NULL};
    sent[one->channel] = one->other;
    put(run, one->row, one->head, sent);
    status = append_cache_reference(&run->cache, run->contract, false, one->row, &got, NULL, error);
    if (status == ASSAY_OK) add_move(out, moved, one->row * width, width, 1);
    sent[one->channel] = kept;
    put(run, one->row, one->head, sent);
  }
  return status;
}

static assay_status add_draw(mmha_run *run, int draw, const assay_expected *out, double *moved, assay_error *error) {
  const int64_t D = run->m.D, heads = heads_of(run), count = run->cache.count;
  double value[MOST_D];
  for (int64_t row = 0; row < count * heads; ++row) {
    if (run->cache.length[row / heads] <= 0 || !is_fine(run, row % heads)) continue;
    const int64_t head = row % heads, kind = head < run->m.H ? 0 : head < run->m.H + run->m.H_kv ? 1 : 2;
    for (int64_t d = 0; d < D; ++d) {
      const double step = magnified * sqrt(run->variance[row * D + d]);
      value[d] = run->sent[row * D + d] + (is_up(row, 3 * d + kind, draw) ? step : -step);
    }
    put(run, row / heads, row % heads, value);
  }
  assay_expected got = {moved, NULL};
  const assay_status status = append_cache_reference(&run->cache, run->contract, false, -1, &got, NULL, error);
  if (status == ASSAY_OK) add_move(out, moved, 0, count * run->m.H * D, 1 / (DRAWS * magnified * magnified));
  return status;
}

static assay_status widen(mmha_run *run, const assay_expected *out, assay_error *error) {
  const int64_t count = run->cache.count * run->m.H * run->m.D;
  const assay_dtype dtype = run->call->arg[ARG_OUT].dtype;
  double *moved = malloc((size_t)(count + 1) * sizeof *moved);
  if (moved == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "mmha reference: out of memory");
  for (int64_t e = 0; e < count; ++e)
    out->sigma[e] *= out->sigma[e];
  assay_status status = add_doubts(run, out, moved, error);
  for (int draw = 0; draw < DRAWS && status == ASSAY_OK; ++draw)
    status = add_draw(run, draw, out, moved, error);
  for (int64_t e = 0; e < count; ++e) {
    if (run->q != dtype && out->sigma[e] > 0) out->sigma[e] += storing_variance(out->value[e], dtype);
    out->sigma[e] = sqrt(out->sigma[e]);
  }
  free(moved);
  return status;
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

static assay_status start(const assay_call *call, const assay_contract *contract, const assay_rows *rows, bool exact,
                          mmha_error wrong, assay_expected *expected, mmha_run *run, assay_error *error) {
  *run = (mmha_run){.call = call,
                    .contract = contract != NULL ? contract : &plain_contract,
                    .m = mmha_of(call),
                    .wrong = wrong,
                    .exact = exact,
                    .expected = expected};
  run->rotated = run->contract->rotated != ASSAY_NONE ? run->contract->rotated : ASSAY_F32;
  run->q = exact || run->rotated == run->m.qkv->dtype ? run->m.qkv->dtype : ASSAY_F32;
  assay_status status = append_cache_make(call, rows, run->q, &run->cache, error);
  if (status == ASSAY_OK) status = rows_of(run, error);
  return status;
}

static void finish(mmha_run *run) {
  append_cache_free(&run->cache);
  free(run->sent);
  free(run->variance);
  free(run->doubts);
}

static assay_status check_contents(const assay_call *call, assay_error *error) {
  const assay_tensor *length = &call->arg[ARG_KV_LEN];
  const int64_t max_pos = call->arg[ARG_COS].shape[0];
  for (int64_t i = 0; i < length->shape[0]; ++i)
    if (plain_integer(length, i) > max_pos)
      return assay_fail(error, ASSAY_ERR_INPUT, "kv_len: found %lld for request %lld, allowed up to max_pos = %lld",
                        (long long)plain_integer(length, i), (long long)i, (long long)max_pos);
  return append_check_contents(call, error);
}

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  mmha_run run;
  assay_status status = check_contents(call, error);
  if (status != ASSAY_OK) return status;
  assay_expected *out = &expected[OUT_OUT];
  status = start(call, contract, rows, exact, MMHA_RIGHT, expected, &run, error);
  if (status == ASSAY_OK) status = append_cache_reference(&run.cache, run.contract, exact, -1, out, seen, error);
  if (status == ASSAY_OK && out->sigma != NULL && !exact) status = widen(&run, out, error);
  finish(&run);
  return status;
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  char name[64];
  append_spoil_name(call->op->spoils, index, name, sizeof name);
  mmha_error wrong = MMHA_RIGHT;
  for (int i = 1; i < MMHA_ERROR_COUNT; ++i)
    if (strcmp(name, error_names[i]) == 0) wrong = (mmha_error)i;
  assay_expected values[3] = {{expected[0].value, NULL}, {expected[1].value, NULL}, {expected[2].value, NULL}};
  bool known = false;
  mmha_run run;
  assay_status status = start(call, contract, rows, false, wrong, values, &run, error);
  if (status == ASSAY_OK && wrong == MMHA_RIGHT)
    status = append_cache_spoil(&run.cache, run.contract, name, &values[OUT_OUT], &known, error);
  if (status == ASSAY_OK && !known)
    status = append_cache_reference(&run.cache, run.contract, false, -1, &values[OUT_OUT], NULL, error);
  finish(&run);
  return status;
}

static assay_status check_tables(const assay_call *call, assay_error *error) {
  const assay_tensor *qkv = &call->arg[ARG_QKV], *cosine = &call->arg[ARG_COS];
  assay_status status = check_rank(call, ARG_COS, 2, error);
  if (status == ASSAY_OK) status = check_range("R", 2 * cosine->shape[1], 2, qkv->shape[2], 2, error);
  if (status == ASSAY_OK) status = check_range("max_pos", cosine->shape[0], 1, INT32_MAX, 1, error);
  if (status == ASSAY_OK) status = check_dense(call, ARG_COS, ASSAY_F32, 2, cosine->shape, error);
  if (status == ASSAY_OK) status = check_dense(call, ARG_SIN, ASSAY_F32, 2, cosine->shape, error);
  if (status == ASSAY_OK && call->arg[ARG_BIAS].data != NULL)
    status = check_dense(call, ARG_BIAS, qkv->dtype, 2, &qkv->shape[1], error);
  return status;
}

static assay_status check(const assay_call *call, assay_error *error) {
  const assay_tensor *qkv = &call->arg[ARG_QKV];
  assay_status status = check_params(call, error);
  if (status != ASSAY_OK) return status;
  if (qkv->dtype != ASSAY_F32 && qkv->dtype != ASSAY_F16 && qkv->dtype != ASSAY_BF16)
    return assay_fail(error, ASSAY_ERR_INPUT, "qkv: found type %s, allowed f32, f16, bf16",
                      assay_dtype_name(qkv->dtype));
  status = append_check_rows(call, "qkv", qkv->dtype, qkv->shape[0], qkv->shape[1], qkv->shape[2], error);
  if (status != ASSAY_OK) return status;
  append_attention inner;
  append_attention_of(call, &inner);
  status = inner.op->check(&inner.call, error);
  if (status == ASSAY_OK) status = append_check_slots(call, qkv->shape[0], error);
  if (status == ASSAY_OK) status = check_tables(call, error);
  return status;
}

/* Attention's; k and v of the rows read once more, bias, and a row of the tables a row. */
static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  append_attention inner;
  append_attention_of(call, &inner);
  assay_cost total = inner.op->cost(&inner.call, seen);
  const mmha m = mmha_of(call);
  const double size = (double)assay_dtype_size(m.qkv->dtype), N = (double)m.qkv->shape[0];
  total.bytes += N * 2 * (double)(m.H_kv * m.D) * size + 8 * N + N * (double)m.R * 4;
  if (m.bias != NULL) total.bytes += (double)((m.H + 2 * m.H_kv) * m.D) * size;
  total.flops += N * (double)(m.H + m.H_kv) * 3 * (double)m.R;
  return total;
}

/* ---- values for the generator -------------------------------------------------------------------------- */

/* The attention's own values are those after bias and rotation; the row holds what leads there. */

static void inner_fill(const assay_fill *fill, append_attention *inner, assay_fill *own) {
  append_attention_of(fill->call, inner);
  *own = *fill;
  own->call = &inner->call;
}

/* A bias the lattice bears: one step of what it is added to, up or down. */
static void bias_of(const assay_fill *fill, int64_t head, double *bias) {
  append_attention inner;
  assay_fill own;
  const int64_t H = fill->H, H_kv = fill->H_kv, D = fill->D;
  plain_fill(&(assay_fill){.seed = fill->seed, .values = ASSAY_NORMAL}, (uint64_t)(1000 + head), bias, D);
  if (fill->values != ASSAY_LATTICE) return;
  double step[MOST_D];
  inner_fill(fill, &inner, &own);
  if (head < H)
    inner.op->fill_q(&own, 0, 0, head, step);
  else if (head < H + H_kv)
    inner.op->fill_k(&own, 0, head - H, step);
  else
    step[1] = fill->v_scale;
  for (int64_t d = 0; d < D; ++d)
    bias[d] = bias[d] < 0 ? -fabs(step[1]) : fabs(step[1]);
}

/* From what attends back to what the row holds, at `position`. */
static void turn_back(const assay_fill *fill, int64_t position, int64_t head, bool rotates, double *value) {
  const assay_call *call = fill->call;
  double x[MOST_D], cosine[MOST_D], sine[MOST_D];
  const int64_t R = 2 * call->arg[ARG_COS].shape[1], D = fill->D;
  for (int64_t i = 0; i < R / 2 && rotates; ++i) {
    mmha_turn(fill, position, i, &cosine[i], &sine[i]);
    sine[i] = -sine[i];
  }
  memcpy(x, value, (size_t)D * sizeof *x);
  rope_rotate(x, cosine, sine, rotates ? R : 0, D, assay_find_param(call, "style") != 0, value);
  if (call->arg[ARG_BIAS].data == NULL) return;
  bias_of(fill, head, x);
  for (int64_t d = 0; d < D; ++d)
    value[d] -= x[d];
}

/* The position at which `content` is a new token; -1: it is in the cache, as it attends. The search begins where the
 * last one ended: tokens are asked for in the order of requests. */
static int64_t new_position(const assay_fill *fill, int64_t content) {
  static _Thread_local int64_t begin;
  const int64_t B = fill->call->arg[ARG_KV_LEN].shape[0];
  for (int64_t n = 0; n < B; ++n) {
    const int64_t i = (begin + n) % B, last = fill->kv_length(fill->context, i) - 1;
    if (last < 0 || fill->content(fill->context, i, last) != content) continue;
    begin = i;
    return last;
  }
  return -1;
}

static void fill_q(const assay_fill *fill, int64_t request, int64_t position, int64_t head, double *value) {
  append_attention inner;
  assay_fill own;
  inner_fill(fill, &inner, &own);
  inner.op->fill_q(&own, request, position, head, value);
  const int64_t last = fill->kv_length(fill->context, request) - 1;
  if (last >= 0) turn_back(fill, last, head, true, value);
}

static void fill_k(const assay_fill *fill, int64_t content, int64_t kv_head, double *value) {
  append_attention inner;
  assay_fill own;
  inner_fill(fill, &inner, &own);
  inner.op->fill_k(&own, content, kv_head, value);
  const int64_t last = new_position(fill, content);
  if (last >= 0) turn_back(fill, last, fill->H + kv_head, true, value);
}

static void fill_v(const assay_fill *fill, int64_t content, int64_t kv_head, double *value) {
  append_attention inner;
  assay_fill own;
  inner_fill(fill, &inner, &own);
  inner.op->fill_v(&own, content, kv_head, value);
  const int64_t last = new_position(fill, content);
  if (last >= 0) turn_back(fill, last, fill->H + fill->H_kv + kv_head, false, value);
}

static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  (void)error;
  if (arg == ARG_BIAS) {
    for (int64_t head = 0; (head + 1) * from->D <= count; ++head)
      bias_of(from, head, value + head * from->D);
    return ASSAY_OK;
  }
  const int64_t half = from->call->arg[ARG_COS].shape[1];
  for (int64_t i = 0; i < count; ++i) {
    double cosine, sine;
    mmha_turn(from, i / half, i % half, &cosine, &sine);
    value[i] = arg == ARG_COS ? cosine : sine;
  }
  return ASSAY_OK;
}

static bool visible(const assay_call *call, int64_t request, int64_t length, int64_t first_position, int64_t token) {
  append_attention inner;
  append_attention_of(call, &inner);
  return inner.op->visible(&inner.call, request, length, first_position, token);
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"B", 0, 0, 0, 1, "requests of the batch"},
    {"N", 0, 0, 0, 1, "rows: one a request"},
    {"H", 1, 256, 8, 1, "query heads"},
    {"H_kv", 1, 256, 4, 1, "key/value heads; query head h reads kv head h / (H / H_kv)"},
    {"D", 8, MOST_D, 128, 8, "channels of a head"},
    {"R", 2, MOST_D, 8, 2, "rotated channels, at most D"},
    {"max_pos", 1, 1 << 20, 1024, 1, "positions of the tables, no length above it"},
    {"block_size", 8, 256, 16, 8, "tokens of a cache block: 8, 16, 32, 64, 128 or 256"},
    {"num_blocks", 0, 0, 0, 1, "blocks of the pool"},
    {"max_blocks", 0, 0, 0, 1, "width of the block table"},
    {"kv_scales", 0, 0, 0, 1, "fp8 factors: 1, or H_kv with scale_per_head"},
    {"F", 1, MAX_TAPS, 3, 1, "filter taps"},
};

static const assay_arg args[ARG_COUNT] = {
    {"qkv", ASSAY_IN, ASSAY_QKV_NEW, false, "f32,f16,bf16", "N,H+2*H_kv,D", "fused projection; the row stride is free",
     true},
    {"bias", ASSAY_IN, ASSAY_VALUES, true, "=qkv", "H+2*H_kv,D", "added to every row", false},
    {"cos", ASSAY_IN, ASSAY_VALUES, false, "f32", "max_pos,R/2", "cosines of each position", false},
    {"sin", ASSAY_IN, ASSAY_VALUES, false, "f32", "max_pos,R/2", "sines", false},
    {"slots", ASSAY_IN, ASSAY_SLOTS, false, "i64", "N", "block · block_size + offset of each row; -1: a pad row",
     false},
    {"k_cache", ASSAY_INOUT, ASSAY_K_CACHE, false, "=qkv,e4m3,e5m2",
     "num_blocks,block_size,H_kv,D|num_blocks,H_kv,block_size,D|num_blocks,H_kv,D/x,block_size,x",
     "pool of keys; every stride but the last is free", false},
    {"v_cache", ASSAY_INOUT, ASSAY_V_CACHE, false, "=k_cache",
     "num_blocks,block_size,H_kv,D|num_blocks,H_kv,block_size,D|num_blocks,H_kv,D,block_size",
     "pool of values; every stride but the last is free", false},
    {"k_scale", ASSAY_IN, ASSAY_KV_SCALE, true, "f32", "kv_scales", "K = code · k_scale; with fp8 caches only", false},
    {"v_scale", ASSAY_IN, ASSAY_KV_SCALE, true, "f32", "kv_scales", "V = code · v_scale; with fp8 caches only", false},
    {"block_table", ASSAY_IN, ASSAY_BLOCK_TABLE, false, "i32", "B,max_blocks", "physical block of each logical block",
     false},
    {"kv_len", ASSAY_IN, ASSAY_KV_LEN, false, "i32", "B", "L_i, the new token included; 0: a pad row", false},
    {"taps", ASSAY_IN, ASSAY_TAPS, false, "f32", "F", "gate: filter w; not read with kind softmax", false},
    {"gamma", ASSAY_IN, ASSAY_GAMMA, false, "f32", "H", "gate: factor of each head; not read with kind softmax", false},
    {"out", ASSAY_OUT, ASSAY_RESULT, false, "=qkv", "N,H,D", "sum of p v", false},
};

static const assay_param params[] = {
    {"layout", ASSAY_ENUM, 0, 2, 0, "nhd,hnd,x", "order of the axes of the pools"},
    {"kind", ASSAY_ENUM, 0, 1, 0, "gate,softmax", "which attention"},
    {"style", ASSAY_ENUM, 0, 1, 0, "neox,interleaved", "which channels make a pair"},
    {"scale", ASSAY_REAL, 0, 1e6, 0, NULL, "factor of q·k; 0: 1/sqrt(D)"},
    {"window", ASSAY_INTEGER, 0, INT32_MAX, 0, NULL, "keys seen, the row's own included; 0: all"},
    {"scale_per_head", ASSAY_BOOL, 0, 1, 0, NULL, "one fp8 factor per kv head"},
    {"lo", ASSAY_REAL, 0, 1e6, 0, NULL, "gate: lower clip edge"},
    {"hi", ASSAY_REAL, 0, 1e6, 1, NULL, "gate: upper clip edge, at least lo"},
    {"relu_pre", ASSAY_BOOL, 0, 1, 1, NULL, "gate: rectify scores before the filter"},
};

static const assay_op op = {
    .name = "mmha",
    .title = "a decode step on the fused projection: bias, rotation, append, attention",
    .source = "operator definitions, sections 2.5 and 4",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .params = params,
    .param_count = (int32_t)(sizeof params / sizeof params[0]),
    .laws = "run_to_run,dead_bytes,renumbering,permutation",
    .spoils = "bias_lost,position_one_off,other_style,turned_back,q_not_rotated,k_not_rotated,v_rotated,bias_after,"
              "last_key_dropped,wrong_kv_head,neighbour_block,scale_lost,k_scale_lost,v_scale_lost,row_swapped",
    .kappa_element = 7,
    .confirmed_by = "bias and rotation by complex numbers, then attention_append",
    .check = check,
    .reference = reference,
    .cost = cost,
    .fill_q = fill_q,
    .fill_k = fill_k,
    .fill_v = fill_v,
    .fill = fill,
    .visible = visible,
    .spoil = spoil,
};

const assay_op *assay_op_mmha(void) {
  return &op;
}
