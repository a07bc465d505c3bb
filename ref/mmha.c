/* mmha: a decode step of masked multi-head attention on the fused projection. For the row of request i, at position
 * last = L_i - 1, of qkv[H + 2 H_kv, D]:
 *
 *   x <- qkv + bias        q, k <- rope(x, cos[last], sin[last]),  v <- x        then attention_append of (q, k, v)
 *
 * k and v are rounded to the type of qkv and then stored (quantised); the attention sees them in that form. q stays in
 * f32 unless the contract says that it is rounded. A pad row has L = 0 and slot -1: its qkv is not read, out is 0.
 * Source: docs/definitions.md, sections 2.5 and 4. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "ref/lib/append.h"
#include "ref/lib/error_model.h"
#include "ref/lib/mmha.h"
#include "ref/lib/paged_check.h"
#include "ref/lib/paged_tables.h"
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

const assay_op *assay_op_mmha(void);

static const char *const error_names[MMHA_ERROR_COUNT] = {
    "",          "bias_lost", "position_one_off", "other_style", "turned_back", "q_not_rotated", "k_not_rotated",
    "v_rotated", "bias_after"};

/* ---- one row ----------------------------------------------------------------------------------------- */

/* An input of the attention that rounding may leave on either side of a boundary: the number in its place instead. */
typedef struct alternative {
  int64_t row, head, channel; /* place among the rows; head as in qkv */
  double other;
} alternative;

typedef struct mmha_run {
  const assay_call *call;
  const assay_contract *contract;
  mmha m;
  append_cache cache;
  mmha_spoil spoil;
  bool exact;
  assay_dtype rotated; /* q after bias and rotation; F32: not rounded */
  assay_dtype q;       /* type of the tensor that holds q: qkv's type if q is rounded to it, else f32 */
  assay_expected *expected;
  double *sent, *variance; /* [rows, H + 2 H_kv, D] the numbers that attend, and their variance where they are f32 */
  alternative *alternatives;
  int64_t alternative_count, alternative_room;
} mmha_run;

static int64_t heads_of(const mmha_run *run) {
  return run->m.H + 2 * run->m.H_kv;
}

/* Returns the number that attends in place of the exact value. */
static double sent_form(const mmha_run *run, int64_t head, double value) {
  const assay_dtype dtype = run->m.qkv->dtype;
  if (head < run->m.H) return assay_round_f64(value, run->rotated);
  const int64_t h = (head - run->m.H) % run->m.H_kv;
  const bool k = head < run->m.H + run->m.H_kv;
  const assay_tensor *cache = &run->call->arg[k ? ARG_K_CACHE : ARG_V_CACHE];
  const float scale = append_scale(&run->call->arg[k ? ARG_K_SCALE : ARG_V_SCALE], h);
  return append_stored(assay_round_f64(value, dtype), scale, cache->dtype);
}

/* Tells whether an f32 number attends, so that its errors are as fine as those of the arithmetic. */
static bool is_fine(const mmha_run *run, int64_t head) {
  if (head < run->m.H) return run->rotated == ASSAY_F32;
  return run->call->arg[ARG_K_CACHE].dtype == ASSAY_F32;
}

static assay_status add_alternative(mmha_run *run, alternative a, assay_error *error) {
  if (run->alternative_count == run->alternative_room) {
    const int64_t room = 2 * run->alternative_room + 64;
    alternative *more = realloc(run->alternatives, (size_t)room * sizeof *more);
    if (more == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "mmha reference: out of memory");
    run->alternatives = more;
    run->alternative_room = room;
  }
  run->alternatives[run->alternative_count++] = a;
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

/* Computes one head of row i: the definition, the numbers that attend, and how rounding may change those numbers. */
static assay_status one_head(mmha_run *run, int64_t i, int64_t head, assay_error *error) {
  double value[PAGED_MAX_D], bound[PAGED_MAX_D], variance[PAGED_MAX_D];
  const int64_t n = append_cache_row(&run->cache, i), position = run->cache.length[i] - 1, D = run->m.D;
  const assay_dtype dtype = run->m.qkv->dtype;
  double *sent = run->sent + (i * heads_of(run) + head) * D, *spread = run->variance + (i * heads_of(run) + head) * D;
  assay_status status = ASSAY_OK;
  mmha_head(&run->m, n, head, position, run->spoil, value, bound, variance);
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
      if (other != sent[d]) status = add_alternative(run, (alternative){i, head, d, other}, error);
    }
  }
  put(run, i, head, sent);
  return status;
}

/* Writes the expected K and V of row i: the numbers put into the cache, and how far they may be off. */
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

static void expect_alternatives(mmha_run *run) {
  const int64_t D = run->m.D, H = run->m.H, H_kv = run->m.H_kv;
  for (int64_t j = 0; j < run->alternative_count; ++j) {
    const alternative *a = &run->alternatives[j];
    const int which = a->head >= H + H_kv;
    if (a->head < H || run->expected[which].sigma == NULL) continue;
    const int64_t h = a->head - H - which * H_kv;
    double *sigma = &run->expected[which].sigma[(a->row * H_kv + h) * D + a->channel];
    const double moved = fabs(a->other - run->sent[(a->row * heads_of(run) + a->head) * D + a->channel]);
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
  expect_alternatives(run);
  return status;
}

/* ---- the error model --------------------------------------------------------------------------------- */

/* The attention has an error model of its own; this one adds the errors of its inputs. A number near a rounding
 * boundary is put on the other side, one number at a time, and the whole move of the result counts. Errors of f32 size
 * are applied all at once, 32 times with different signs. They are made large enough to be f32 numbers still, and small
 * enough to stay between the edges of a clip. The mean square of the move is scaled back. The signs of one channel over
 * the draws are a Walsh function. Thus up to 32 channels (of q, k and v together) do not mix at all: the mean is the
 * sum of their squares. Further channels share functions with these, and have signs of their own. */
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

static assay_status add_alternatives(mmha_run *run, const assay_expected *out, double *moved, assay_error *error) {
  const int64_t D = run->m.D, width = run->m.H * D;
  assay_status status = ASSAY_OK;
  for (int64_t j = 0; j < run->alternative_count && status == ASSAY_OK; ++j) {
    const alternative *a = &run->alternatives[j];
    double *sent = run->sent + (a->row * heads_of(run) + a->head) * D;
    const double kept = sent[a->channel];
    assay_expected got = {moved, NULL};
    sent[a->channel] = a->other;
    put(run, a->row, a->head, sent);
    status = append_cache_reference(&run->cache, run->contract, false, a->row, &got, NULL, error);
    if (status == ASSAY_OK) add_move(out, moved, a->row * width, width, 1);
    sent[a->channel] = kept;
    put(run, a->row, a->head, sent);
  }
  return status;
}

static assay_status add_draw(mmha_run *run, int draw, const assay_expected *out, double *moved, assay_error *error) {
  const int64_t D = run->m.D, heads = heads_of(run), count = run->cache.count;
  double value[PAGED_MAX_D];
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
  assay_status status = add_alternatives(run, out, moved, error);
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
                          mmha_spoil spoil, assay_expected *expected, mmha_run *run, assay_error *error) {
  *run = (mmha_run){.call = call,
                    .contract = contract != NULL ? contract : &default_contract,
                    .m = mmha_of(call),
                    .spoil = spoil,
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
  free(run->alternatives);
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
  mmha_spoil spoil = MMHA_RIGHT;
  for (int i = 1; i < MMHA_ERROR_COUNT; ++i)
    if (strcmp(name, error_names[i]) == 0) spoil = (mmha_spoil)i;
  assay_expected values[3] = {{expected[0].value, NULL}, {expected[1].value, NULL}, {expected[2].value, NULL}};
  bool known = false;
  mmha_run run;
  assay_status status = start(call, contract, rows, false, spoil, values, &run, error);
  if (status == ASSAY_OK && spoil == MMHA_RIGHT)
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

/* Returns the attention's cost, plus one more reading of the rows' k and v, the bias, and a row of the tables per
 * row. */
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

/* The attention's values are those after bias and rotation. The row holds the values from which these result. */

static void inner_fill(const assay_fill *fill, append_attention *inner, assay_fill *own) {
  append_attention_of(fill->call, inner);
  *own = *fill;
  own->call = &inner->call;
}

/* Makes a bias that the lattice admits: one step of the number to which it is added, up or down. */
static void bias_of(const assay_fill *fill, int64_t head, double *bias) {
  append_attention inner;
  assay_fill own;
  const int64_t H = fill->H, H_kv = fill->H_kv, D = fill->D;
  plain_fill(&(assay_fill){.seed = fill->seed, .values = ASSAY_NORMAL}, (uint64_t)(1000 + head), bias, D);
  if (fill->values != ASSAY_LATTICE) return;
  double step[PAGED_MAX_D];
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

/* Computes the row's contents at `position` from the values that attend. */
static void turn_back(const assay_fill *fill, int64_t position, int64_t head, bool rotates, double *value) {
  const assay_call *call = fill->call;
  double x[PAGED_MAX_D], cosine[PAGED_MAX_D], sine[PAGED_MAX_D];
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

/* Returns the position at which `content` is a new token; -1 if it is in the cache, in the form that attends. The
 * search begins where the last one ended, because tokens are asked for in the order of requests. */
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
    PAGED_B,
    PAGED_N("rows: one per request"),
    PAGED_HEADS,
    ROPE_R,
    ROPE_MAX_POS(1024, "positions of the tables, no length above it"),
    PAGED_BLOCK_SIZE(""),
    PAGED_NUM_BLOCKS(""),
    PAGED_MAX_BLOCKS,
    PAGED_KV_SCALES,
    GATE_F,
};

static const assay_arg args[ARG_COUNT] = {
    {"qkv", ASSAY_IN, ASSAY_QKV_NEW, false, "f32,f16,bf16", "N,H+2*H_kv,D", "fused projection; the row stride is free",
     true},
    {"bias", ASSAY_IN, ASSAY_VALUES, true, "=qkv", "H+2*H_kv,D", "added to every row", false},
    ROPE_COS,
    ROPE_SIN,
    PAGED_SLOTS("a pad row"),
    PAGED_CACHE(ASSAY_INOUT, "=qkv,e4m3,e5m2"),
    APPEND_ATTENTION_ARGS("=qkv"),
};

static const assay_param params[] = {
    PAGED_LAYOUT(""), PAGED_KIND, ROPE_STYLE, PAGED_ATTENTION_PARAMS, GATE_PARAMS("gate: "),
};

static const assay_op op = {
    .name = "mmha",
    .title = "a decode step on the fused projection: bias, rotation, append, attention",
    .source = "docs/definitions.md, sections 2.5 and 4",
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
    .confirmed_by = "bias and rotation by complex numbers, then attention_append (ref_append_test)",
    .extreme_args = "",
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
