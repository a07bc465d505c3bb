/* merge_states: merges softmax attention over splits of the keys. Split s gives its own normalised result o_s and
 * lse_s = ln sum exp(score). For row n and head h:
 *
 *   lse = ln sum_s exp(lse_s)          out = sum_s exp(lse_s - lse) o_s
 *
 * An empty split has lse_s = -inf and weight 0, whatever its o_s holds. If all are empty, out is 0 and lse -inf. lse_s
 * is finite or -inf. A sink_h is one more term of the denominator, once in the whole, without a value of its own:
 *
 *   out = sum_s exp(lse_s) o_s / (sum_s exp(lse_s) + exp(sink_h))          lse stays without it
 *
 * sink_h is finite or -inf, which is the operator without it. Source: Dao et al. 2022 (FlashAttention);
 * docs/definitions.md, section 2.3. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/error_model.h"
#include "ref/lib/lattice.h"
#include "ref/lib/plain.h"
#include "ref/lib/vector.h"

enum { ARG_O, ARG_LSE, ARG_SINK, ARG_OUT, ARG_LSE_OUT, ARG_COUNT };

const assay_op *assay_op_merge_states(void);

typedef enum merge_spoil {
  SPOIL_LAST_SPLIT_DROPPED,
  SPOIL_AVERAGED,       /* all splits that are not empty have the same weight */
  SPOIL_BASE_2,         /* 2^x in place of e^x */
  SPOIL_NEIGHBOUR_LSE,  /* the weights are those of the next head */
  SPOIL_SPLITS_TURNED,  /* the weights are in reverse order of the splits */
  SPOIL_MAXIMUM_LOST,   /* exp of lse itself, without subtracting the maximum, in f32 */
  SPOIL_LSE_IS_MAXIMUM, /* lse is that of the heaviest split */
  SPOIL_ROW_SWAPPED,    /* the result of the next row, or of the first row in the last one */
  SPOIL_SINK_LOST,
  SPOIL_SINK_PER_SPLIT,         /* the sink is added with every split */
  SPOIL_LSE_WITH_SINK,          /* lse_out counts the sink too */
  SPOIL_EMPTY_SPLIT_MULTIPLIED, /* 0 times what an empty split holds is added */
  SPOIL_LSE_OUT_OTHER_BASE,     /* lse_out is a logarithm to base 2 */
  SPOIL_COUNT,
  SPOIL_NONE
} merge_spoil;

/* The state of one row and head. */
typedef struct state {
  int64_t splits, D;
  double *lse, *weight, *o; /* [splits], exp(lse_s - max), [splits, D] */
  double max, sum;
  double sink, whole; /* -inf for none; sum + exp(sink - max) */
  double *y, result;  /* [D], lse */
  key_sum terms;      /* the sum of exp(lse_s - max) o_s */
  key_sum total;      /* the sum of exp(lse_s - max): one channel */
  equal_terms equal;  /* its terms that are alike */
  void *slots;
} state;

/* ---- the definition ---------------------------------------------------------------------------------- */

static void merge_states(state *m) {
  m->max = -(double)INFINITY;
  m->sum = m->whole = 0;
  vector_zero(m->y, m->D);
  m->result = -(double)INFINITY;
  for (int64_t s = 0; s < m->splits; ++s)
    if (m->lse[s] > m->max) m->max = m->lse[s];
  if (m->max == -(double)INFINITY) return;
  for (int64_t s = 0; s < m->splits; ++s) {
    m->weight[s] = m->lse[s] > -(double)INFINITY ? exp(m->lse[s] - m->max) : 0;
    m->sum += m->weight[s];
  }
  m->whole = m->sum + exp(m->sink - m->max);
  for (int64_t s = 0; s < m->splits; ++s)
    if (m->lse[s] > -(double)INFINITY) vector_add(m->y, m->weight[s] / m->whole, m->o + s * m->D, m->D);
  m->result = m->max + log(m->sum);
}

/* ---- the error model --------------------------------------------------------------------------------- */

/* Returns the relative variance that the sink adds to the denominator: its exponent, exp, and one addition. Beyond the
 * range of exp in f32 the denominator is infinite, and the result 0. */
static double sink_variance(const state *m, const assay_contract *c) {
  const double argument = m->sink - m->max, part = 1 - m->sum / m->whole;
  if (m->sink == -(double)INFINITY) return 0;
  return part * part * (3 * f32_variance * argument * argument + function_variance(c->exp_ulp)) + f32_variance +
         (argument > 87 ? 1 : 0);
}

/* Computes sigma. A weight has the roundings of its exponent lse_s - max (or - lse), of that as a power of two, and of
 * exp. A weight's error moves out by p_s (o_s - out). The products, their sum and the sum of the weights follow, as a
 * kernel adds them (key_sum: light splits may be lost beside heavy ones). Splits with the
 * same lse have the same weight, and err alike in that sum. The quotient follows. Where weights are made with lse
 * itself, its rounding counts for all of them alike. */
static void merge_sigma(state *m, const assay_contract *c, assay_dtype out, double *sigma, double *lse_sigma) {
  const double one = 1;
  double sum_variance = 0, total = 0; /* total: relative variance of the sum of the weights */
  vector_zero(sigma, m->D);
  if (lse_sigma != NULL) *lse_sigma = 0;
  if (m->max == -(double)INFINITY) return;
  const double lse_variance = storing_variance(m->result, ASSAY_F32), share = m->sum / m->whole;
  const double with_sink = sink_variance(m, c);
  key_sum_start(&m->terms, m->y, m->whole);
  key_sum_start(&m->total, &one, m->sum);
  equal_terms_start(&m->equal, m->splits, m->slots);
  for (int64_t s = 0; s < m->splits; ++s) {
    const double p = m->weight[s] / m->sum, argument = m->lse[s] - m->max, *o = m->o + s * m->D;
    if (!(p != 0)) continue;
    double moves = p * p * (3 * f32_variance * argument * argument + function_variance(c->exp_ulp) + f32_variance);
    if (m->weight[s] < 0x1p-126) moves += 0x1p-298 / (m->sum * m->sum); /* exp errs by units there */
    sum_variance += moves;
    for (int64_t d = 0; d < m->D; ++d) {
      const double from_mean = o[d] - m->y[d];
      sigma[d] += share * share * moves * from_mean * from_mean;
    }
    key_sum_add(&m->terms, s, m->weight[s], o);
    key_sum_add(&m->total, s, m->weight[s], &one);
    equal_terms_add(&m->equal, m->weight[s], key_sum_running(&m->total));
  }
  key_sum_finish(&m->terms, m->splits, sigma);
  key_sum_finish(&m->total, m->splits, &total);
  total += equal_terms_additions(&m->equal) / (m->sum * m->sum);
  sum_variance += function_variance(c->exp_ulp) * equal_terms_shared(&m->equal) / (m->sum * m->sum);
  for (int64_t d = 0; d < m->D; ++d) {
    const double y = m->y[d];
    sigma[d] += y * y * (2 * share * share * total + 2 * f32_variance + lse_variance + with_sink);
    if (m->terms.abs[d] != 0) sigma[d] += storing_variance(y, out);
    sigma[d] = sqrt(sigma[d]);
  }
  if (lse_sigma == NULL) return;
  const double logarithm = m->result - m->max;
  *lse_sigma = sqrt(sum_variance + 2 * total + function_variance(c->exp_ulp) * logarithm * logarithm +
                    storing_variance(logarithm, ASSAY_F32) + 2 * lse_variance);
}

/* ---- the exact tier ---------------------------------------------------------------------------------- */

/* Admits a state to the exact tier. 2^m splits are at the maximum, all others at least 800 below it. A sink at the
 * maximum counts as a split without values. Otherwise it lies 800 below it or more, or 800 above: out is 0 then. The
 * values of the splits are positive, their sum is exact, and the mean is a number of the result's type. That type has
 * 16 bits: errors of 2^-22 that a logarithm brings do not move it. */
static assay_status merge_admit(const state *m, assay_dtype out, int64_t row, int64_t head, assay_error *error) {
  int64_t matches = 0;
  int low = LATTICE_ZERO;
  const char *what = NULL;
  double found = 0, allowed = 0;
  for (int64_t s = 0; s < m->splits; ++s) {
    const double below = m->lse[s] - m->max;
    if (m->max == -(double)INFINITY) break;
    if (below != 0 && !(below <= -800)) {
      what = "lse below the largest";
      found = below;
      allowed = -800;
    }
    if (below != 0) continue;
    ++matches;
    const int own = lattice_low_row(m->o + s * m->D, m->D);
    if (own < low) low = own;
  }
  const double sink = m->sink - m->max;
  if (m->max > -(double)INFINITY && sink >= 800) return ASSAY_OK;
  if (m->max > -(double)INFINITY && sink != 0 && !(sink <= -800)) {
    what = "sink beside the largest lse";
    found = sink;
    allowed = -800;
  }
  const int64_t terms = matches + (m->max > -(double)INFINITY && sink == 0);
  if ((terms & (terms - 1)) != 0) {
    what = "splits at the largest lse (allowed: a power of two)";
    found = (double)terms;
  }
  for (int64_t d = 0; d < m->D && matches > 0 && what == NULL; ++d) {
    double size = 0;
    bool positive = true;
    for (int64_t s = 0; s < m->splits; ++s) {
      if (m->lse[s] != m->max) continue;
      size += fabs(m->o[s * m->D + d]);
      positive = positive && m->o[s * m->D + d] > 0;
    }
    const double stored = assay_round_f64(m->y[d], out);
    if (!positive || !lattice_admits(size, low, 24) || stored != m->y[d]) {
      what = !positive ? "least o" : "mean of o in the type of out, its sum in f32";
      found = m->y[d];
      allowed = stored;
    }
  }
  if (what == NULL) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "exact tier: row %lld, head %lld: %s: found %.17g, allowed %.17g",
                    (long long)row, (long long)head, what, found, allowed);
}

static assay_status admit_call(const assay_call *call, assay_error *error) {
  const assay_dtype out = call->arg[ARG_OUT].dtype;
  if (out != ASSAY_F16 && out != ASSAY_BF16)
    return assay_fail(error, ASSAY_ERR_INPUT, "exact tier: out: found type %s, allowed f16, bf16",
                      assay_dtype_name(out));
  if (call->arg[ARG_LSE_OUT].data != NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "exact tier: lse_out: found one, allowed none");
  return ASSAY_OK;
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

static assay_status load(const assay_call *call, int64_t n, int64_t h, state *m, assay_error *error) {
  const assay_tensor *o = &call->arg[ARG_O], *sink = &call->arg[ARG_SINK];
  m->sink = sink->data != NULL ? (double)((const float *)sink->data)[h] : -(double)INFINITY;
  if (!(m->sink < (double)INFINITY))
    return assay_fail(error, ASSAY_ERR_INPUT, "sink: found %g at [%lld], allowed finite numbers and -inf", m->sink,
                      (long long)h);
  const float *lse = call->arg[ARG_LSE].data;
  const int64_t N = o->shape[1], H = o->shape[2], D = o->shape[3];
  for (int64_t s = 0; s < m->splits; ++s) {
    const int64_t at = (s * N + n) * H + h;
    m->lse[s] = (double)lse[at];
    if (!(m->lse[s] < (double)INFINITY))
      return assay_fail(error, ASSAY_ERR_INPUT, "lse: found %g at [%lld, %lld, %lld], allowed finite numbers and -inf",
                        m->lse[s], (long long)s, (long long)n, (long long)h);
    assay_load_f64_row(o->data, o->dtype, at * D, 1, D, m->o + s * D);
  }
  return ASSAY_OK;
}

/* Changes the loaded weights, or results made from them, as a planted error does. */
static void spoil_before(const assay_call *call, int64_t n, int64_t h, merge_spoil spoil, state *m) {
  const int64_t N = call->arg[ARG_O].shape[1], H = call->arg[ARG_O].shape[2];
  const float *lse = call->arg[ARG_LSE].data;
  if (spoil == SPOIL_LAST_SPLIT_DROPPED && m->splits > 1) m->lse[m->splits - 1] = -(double)INFINITY;
  if (spoil == SPOIL_SINK_LOST) m->sink = -(double)INFINITY;
  if (spoil == SPOIL_SINK_PER_SPLIT) m->sink += log((double)m->splits);
  for (int64_t s = 0; s < m->splits; ++s) {
    const bool empty = !(m->lse[s] > -(double)INFINITY);
    if (spoil == SPOIL_NEIGHBOUR_LSE) m->lse[s] = (double)lse[(s * N + n) * H + (h + 1) % H];
    if (spoil == SPOIL_SPLITS_TURNED) m->lse[s] = (double)lse[((m->splits - 1 - s) * N + n) * H + h];
    if (spoil == SPOIL_AVERAGED && !empty) m->lse[s] = 0;
    if (spoil == SPOIL_BASE_2) m->lse[s] *= 0.69314718055994531;
  }
}

static void spoil_after(merge_spoil spoil, state *m) {
  if (spoil == SPOIL_LSE_IS_MAXIMUM) m->result = m->max;
  if (spoil == SPOIL_BASE_2 || spoil == SPOIL_LSE_OUT_OTHER_BASE) m->result /= 0.69314718055994531;
  if (spoil == SPOIL_LSE_WITH_SINK && m->max > -(double)INFINITY) m->result = m->max + log(m->whole);
  for (int64_t s = 0; spoil == SPOIL_EMPTY_SPLIT_MULTIPLIED && m->max > -(double)INFINITY && s < m->splits; ++s)
    for (int64_t d = 0; d < m->D && m->lse[s] == -(double)INFINITY; ++d)
      m->y[d] += 0 * m->o[s * m->D + d];
  if (spoil != SPOIL_MAXIMUM_LOST || !(m->max > -(double)INFINITY)) return;
  const double sum = assay_round_f64(exp(m->max) * m->sum, ASSAY_F32);
  if (assay_is_finite(sum) && sum > 0x1p-126) return;
  for (int64_t d = 0; d < m->D; ++d)
    m->y[d] = sum > 1 ? (double)NAN : 0;
  m->result = sum > 1 ? (double)INFINITY : -(double)INFINITY;
}

static assay_status compute(const assay_call *call, const assay_contract *contract, const assay_rows *rows, bool exact,
                            merge_spoil spoil, assay_expected *expected, assay_error *error) {
  const assay_tensor *o = &call->arg[ARG_O];
  const int64_t splits = o->shape[0], N = o->shape[1], H = o->shape[2], D = o->shape[3];
  const int64_t count = rows != NULL && rows->index != NULL ? rows->count : N;
  const bool lse = call->arg[ARG_LSE_OUT].data != NULL;
  assay_status status = exact ? admit_call(call, error) : ASSAY_OK;
  if (status != ASSAY_OK) return status;
  /* The sums run over a key axis of splits, in one piece. */
  assay_contract sums = contract != NULL ? *contract : default_contract;
  sums.pv_lanes = sums.lanes > 0 ? sums.lanes : 1;
  sums.keys_per_split = 0;
  const int64_t room = key_sum_room(&sums, D);
  double *memory = malloc((size_t)(splits * (2 + D) + room + key_sum_room(&sums, 1)) * sizeof *memory);
  void *slots = malloc((size_t)equal_terms_room(splits));
  if (memory == NULL || slots == NULL) {
    free(memory);
    free(slots);
    return assay_fail(error, ASSAY_ERR_MEMORY, "merge_states reference: out of memory");
  }
  state m = {.splits = splits, .D = D, .lse = memory, .weight = memory + splits, .o = memory + 2 * splits};
  m.slots = slots;
  key_sum_place(&m.terms, &sums, D, m.o + splits * D);
  key_sum_place(&m.total, &sums, 1, m.o + splits * D + room);
  for (int64_t i = 0; i < count * H && status == ASSAY_OK; ++i) {
    const int64_t row = rows != NULL && rows->index != NULL ? rows->index[i / H] : i / H, h = i % H;
    const int64_t n = spoil == SPOIL_ROW_SWAPPED ? (row + 1) % N : row;
    m.y = expected[0].value + i * D;
    status = load(call, n, h, &m, error);
    if (status != ASSAY_OK) break;
    if (spoil != SPOIL_NONE) spoil_before(call, n, h, spoil, &m);
    merge_states(&m);
    if (spoil != SPOIL_NONE) spoil_after(spoil, &m);
    if (lse) expected[1].value[i] = m.result;
    if (exact) status = merge_admit(&m, call->arg[ARG_OUT].dtype, n, h, error);
    if (expected[0].sigma != NULL)
      merge_sigma(&m, &sums, call->arg[ARG_OUT].dtype, expected[0].sigma + i * D,
                  lse && expected[1].sigma != NULL ? expected[1].sigma + i : NULL);
  }
  free(memory);
  free(slots);
  return status;
}

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)seen;
  return compute(call, contract, rows, exact, SPOIL_NONE, expected, error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  if (index < 0 || index >= SPOIL_COUNT)
    return assay_fail(error, ASSAY_ERR_INPUT, "spoil: found number %d, allowed 0 to %d", index, SPOIL_COUNT - 1);
  assay_expected values[2] = {{expected[0].value, NULL}, {NULL, NULL}};
  if (call->arg[ARG_LSE_OUT].data != NULL) values[1].value = expected[1].value;
  return compute(call, contract, rows, false, (merge_spoil)index, values, error);
}

/* Counts a maximum, an exp and a sum per split and row, and a product and a sum per channel. */
static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *o = &call->arg[ARG_O], *out = &call->arg[ARG_OUT];
  const double states = (double)(o->shape[1] * o->shape[2]), splits = (double)o->shape[0], D = (double)o->shape[3];
  double bytes =
      states * (splits * (D * (double)assay_dtype_size(o->dtype) + 4) + D * (double)assay_dtype_size(out->dtype));
  if (call->arg[ARG_LSE_OUT].data != NULL) bytes += 4 * states;
  return (assay_cost){.flops = states * splits * (2 * D + 3), .bytes = bytes};
}

/* ---- values for the generator ------------------------------------------------------------------------ */

/* Draws lse far from 0 on either side, exact zeros of both signs, and numbers too small to matter. All splits of a
 * state lie about one place, or at drawn places. */
static double extreme_lse(const assay_fill *fill, uint32_t state_word, uint32_t word) {
  static const double place[16] = {0,    0,   -0.0, 1e30, -1e30, 88,  -88,      104,
                                   -104, 3e4, -3e4, 1e4,  -1e8,  1e8, 0x1p-149, -1e-40};
  const double own = place[word % 16], common = place[state_word % 16];
  if (fill->magnitude == ASSAY_MIXED) return own;
  const double near = (word >> 4) % 3 == 0 ? 0 : ((double)(word >> 8 & 1023) - 512) * 0x1p-8;
  return fill->magnitude == ASSAY_SMALL ? place[word % 3] + ((word >> 4) % 4 == 0 ? near : 0) : common + near;
}

/* Draws where the sink of a head lies. Lattice: at the largest lse of the head's states, far below it or far above. */
static double sink_of(const assay_fill *fill, int64_t head) {
  const assay_philox word = assay_philox4x32(fill->seed, (uint32_t)head, 0, 0x73696E6B, 0);
  static const double beside[] = {0, 0, -800, 800};
  if (word.x[0] % 8 == 0) return -(double)INFINITY;
  if (fill->values == ASSAY_LATTICE) return (double)(word.x[1] % 129) - 64 + beside[word.x[2] % 4];
  const double value = 3 * ((double)word.x[1] * 0x1p-31 - 1);
  return fill->values == ASSAY_HEAVY_TAILED ? 4 * value : value;
}

/* Draws lse of split s of the state (n, h). One state in eight is empty, and in the other states one split in five.
 * Lattice: one, two or four neighbouring splits share the maximum. Every third of the rest is 800 or more below it. The
 * others are empty. */
static double lse_of(const assay_fill *fill, int64_t splits, int64_t state_number, int64_t s) {
  const int64_t head = state_number % fill->call->arg[ARG_O].shape[2];
  const double sink = fill->call->arg[ARG_SINK].data != NULL ? sink_of(fill, head) : -(double)INFINITY;
  const assay_philox whole = assay_philox4x32(fill->seed, (uint32_t)state_number, 0, 0x6D657267, 0);
  const assay_philox own = assay_philox4x32(fill->seed, (uint32_t)state_number, (uint32_t)s + 1, 0x6D657267, 0);
  const double empty = -(double)INFINITY;
  if (whole.x[0] % 8 == 0) return empty;
  if (fill->values == ASSAY_LATTICE) {
    int64_t most = 1;
    while (most < 4 && 2 * most <= splits && (whole.x[1] >> most & 1) != 0)
      most *= 2;
    const assay_philox word = assay_philox4x32(fill->seed, (uint32_t)head, 0, 0x73696E6B, 0);
    const bool sunk = sink > -(double)INFINITY, at_sink = sunk && word.x[2] % 4 < 2;
    const double top = (double)((sunk ? word.x[1] : whole.x[2]) % 129) - 64;
    if (at_sink) most = most > 2 && splits > 2 ? 3 : 1;
    const int64_t behind = (s - (int64_t)(whole.x[3] % (uint32_t)splits) + splits) % splits;
    if (behind < most) return top;
    return own.x[0] % 3 == 0 ? top - 800 - (double)(own.x[1] % 100) : empty;
  }
  if (own.x[0] % 5 == 0) return empty;
  if (fill->magnitude != ASSAY_USUAL) return extreme_lse(fill, whole.x[1], own.x[1]);
  double value = 3 * ((double)own.x[1] * 0x1p-31 - 1);
  if (fill->values == ASSAY_HEAVY_TAILED) value *= own.x[2] % 4 == 0 ? 40 : 4;
  if (fill->values == ASSAY_NEEDLES && own.x[2] % 4 != 0) value -= 9;
  return value + (fill->values == ASSAY_HEAVY_TAILED ? 5 : 0.25) * ((double)(whole.x[1] % 65) - 32);
}

/* Returns a value for an empty split, which no implementation may use. */
static double nobodys(const assay_fill *fill, uint32_t word) {
  (void)fill;
  const double list[] = {(double)NAN, (double)INFINITY, -(double)INFINITY, 65504, -1};
  return list[word % 5];
}

static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  const assay_tensor *o = &from->call->arg[ARG_O];
  const int64_t splits = o->shape[0], states = o->shape[1] * o->shape[2], D = o->shape[3];
  (void)error;
  if (arg == ARG_LSE) {
    for (int64_t i = 0; i < count; ++i)
      value[i] = lse_of(from, splits, i % states, i / states);
    return ASSAY_OK;
  }
  if (arg == ARG_SINK) {
    for (int64_t i = 0; i < count; ++i)
      value[i] = sink_of(from, i);
    return ASSAY_OK;
  }
  plain_fill(from, arg < ARG_SINK ? (uint64_t)arg : (uint64_t)arg - 1, value, count);
  for (int64_t i = 0; i < count; ++i) {
    if (from->values == ASSAY_LATTICE) value[i] = value[i] == 0 ? 0.125 : fabs(value[i]);
    const int64_t state_number = i / D % states, s = i / D / states;
    if (lse_of(from, splits, state_number, s) == -(double)INFINITY)
      value[i] = nobodys(from, (uint32_t)(from->seed ^ (uint64_t)(state_number + 7 * s)));
  }
  return ASSAY_OK;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"splits", 1, 4096, 4, 1, "splits of the key axis"},
    {"N", 1, 1 << 20, 4, 1, "rows"},
    {"H", 1, 256, 8, 1, "query heads"},
    {"D", 8, 256, 128, 8, "channels of a head"},
};

static const assay_arg args[ARG_COUNT] = {
    {"o", ASSAY_IN, ASSAY_VALUES, false, "f32,f16,bf16", "splits,N,H,D", "normalised result of each split", false},
    {"lse", ASSAY_IN, ASSAY_VALUES, false, "f32", "splits,N,H", "logarithm of its sum of weights; empty: -inf", false},
    {"sink", ASSAY_IN, ASSAY_VALUES, true, "f32", "H", "one more term exp(sink) of the denominator; -inf: none", false},
    {"out", ASSAY_OUT, ASSAY_RESULT, false, "=o,f32,f16,bf16", "N,H,D", "merged result", false},
    {"lse_out", ASSAY_OUT, ASSAY_RESULT, true, "f32", "N,H", "logarithm of the whole sum", false},
};

static const assay_op op = {
    .name = "merge_states",
    .title = "softmax attention over splits of the keys, merged by their logarithms",
    .source = "Dao et al. 2022; docs/definitions.md, section 2.3",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .laws = "run_to_run,dead_bytes,permutation,neutral",
    .spoils = "last_split_dropped,averaged,base_2,neighbour_lse,splits_turned,maximum_lost,lse_is_maximum,row_swapped,"
              "sink_lost,sink_per_split,lse_with_sink,empty_split_multiplied,lse_out_other_base",
    .kappa_element = 7,
    .form = ASSAY_PLAIN,
    .row_dim = "N",
    .axes = "dtype,out_dtype",
    .confirmed_by = "attention over all keys at once; weights add up to 1; splits in any order (ref_cache_test)",
    .extreme_args = "o",
    .check = plain_check_call,
    .reference = reference,
    .cost = cost,
    .fill = fill,
    .spoil = spoil,
};

const assay_op *assay_op_merge_states(void) {
  return &op;
}
