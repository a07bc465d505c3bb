/* merge_states: softmax attention over splits of the keys, merged. Split s gives its own normalised result o_s and
 * lse_s = ln sum exp(score). For row n and head h:
 *
 *   lse = ln sum_s exp(lse_s)          out = sum_s exp(lse_s - lse) o_s
 *
 * An empty split has lse_s = -inf and weight 0, whatever its o_s holds; if all are empty, out is 0 and lse -inf.
 * lse_s is finite or -inf. Source: Dao et al. 2022 (FlashAttention); operator definitions, section 2.3. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/error_model.h"
#include "ref/lib/lattice.h"
#include "ref/lib/plain.h"
#include "ref/lib/vector.h"

enum { ARG_O, ARG_LSE, ARG_OUT, ARG_LSE_OUT, ARG_COUNT };

const assay_op *assay_op_merge_states(void);

typedef enum merge_error {
  ERROR_LAST_SPLIT_DROPPED,
  ERROR_AVERAGED,       /* splits that are not empty weigh the same */
  ERROR_BASE_2,         /* 2^x for e^x */
  ERROR_NEIGHBOUR_LSE,  /* weights of the next head */
  ERROR_SPLITS_TURNED,  /* weights in reverse order of the splits */
  ERROR_MAXIMUM_LOST,   /* exp of lse itself, in f32 */
  ERROR_LSE_IS_MAXIMUM, /* lse of the heaviest split */
  ERROR_ROW_SWAPPED,    /* of the row behind it, or the first for the last */
  ERROR_COUNT,
  ERROR_NONE
} merge_error;

/* One row and head. */
typedef struct state {
  int64_t splits, D;
  double *lse, *weight, *o; /* [splits], exp(lse_s - max), [splits, D] */
  double max, sum;
  double *y, result; /* [D], lse */
  key_sum terms;     /* of exp(lse_s - max) o_s */
  key_sum total;     /* of exp(lse_s - max): one channel */
} state;

/* ---- the definition ---------------------------------------------------------------------------------- */

static void merge_states(state *m) {
  m->max = -(double)INFINITY;
  m->sum = 0;
  vector_zero(m->y, m->D);
  m->result = -(double)INFINITY;
  for (int64_t s = 0; s < m->splits; ++s)
    if (m->lse[s] > m->max) m->max = m->lse[s];
  if (m->max == -(double)INFINITY) return;
  for (int64_t s = 0; s < m->splits; ++s) {
    m->weight[s] = m->lse[s] > -(double)INFINITY ? exp(m->lse[s] - m->max) : 0;
    m->sum += m->weight[s];
  }
  for (int64_t s = 0; s < m->splits; ++s)
    if (m->lse[s] > -(double)INFINITY) vector_add(m->y, m->weight[s] / m->sum, m->o + s * m->D, m->D);
  m->result = m->max + log(m->sum);
}

/* ---- the error model --------------------------------------------------------------------------------- */

/* A weight: its exponent lse_s - max (or - lse) and that as a power of two, each rounded, and exp. It moves out by
 * p_s (o_s - out). Then the products, their sum and the sum of the weights, as a kernel adds them (key_sum: light
 * splits may be lost beside heavy ones), the quotient; and where weights are made with lse itself, its rounding, for
 * all alike.
 */
static void merge_sigma(state *m, const assay_contract *c, assay_dtype out, double *sigma, double *lse_sigma) {
  const double one = 1;
  double sum_variance = 0, total = 0; /* total: relative variance of the sum of the weights */
  vector_zero(sigma, m->D);
  if (lse_sigma != NULL) *lse_sigma = 0;
  if (m->max == -(double)INFINITY) return;
  const double lse_variance = storing_variance(m->result, ASSAY_F32);
  key_sum_start(&m->terms, m->y, m->sum);
  key_sum_start(&m->total, &one, m->sum);
  for (int64_t s = 0; s < m->splits; ++s) {
    const double p = m->weight[s] / m->sum, argument = m->lse[s] - m->max, *o = m->o + s * m->D;
    if (!(p != 0)) continue;
    const double moves =
        p * p * (3 * f32_variance * argument * argument + function_variance(c->exp_ulp) + f32_variance);
    sum_variance += moves;
    for (int64_t d = 0; d < m->D; ++d) {
      const double from_mean = o[d] - m->y[d];
      sigma[d] += moves * from_mean * from_mean;
    }
    key_sum_add(&m->terms, s, m->weight[s], o);
    key_sum_add(&m->total, s, m->weight[s], &one);
  }
  key_sum_finish(&m->terms, m->splits, sigma);
  key_sum_finish(&m->total, m->splits, &total);
  for (int64_t d = 0; d < m->D; ++d) {
    const double y = m->y[d];
    sigma[d] += y * y * (2 * total + 2 * f32_variance + lse_variance);
    if (m->terms.abs[d] != 0) sigma[d] += storing_variance(y, out);
    sigma[d] = sqrt(sigma[d]);
  }
  if (lse_sigma == NULL) return;
  const double logarithm = m->result - m->max;
  *lse_sigma = sqrt(sum_variance + 2 * total + function_variance(c->exp_ulp) * logarithm * logarithm +
                    storing_variance(logarithm, ASSAY_F32) + 2 * lse_variance);
}

/* ---- the exact tier ---------------------------------------------------------------------------------- */

/* 2^m splits at the maximum, all else at least 800 below it; their values positive, the sum exact, the mean in the
 * type of the result, which has 16 bits: errors of 2^-22 that a logarithm brings do not move it. */
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
  if ((matches & (matches - 1)) != 0) {
    what = "splits at the largest lse (allowed: a power of two)";
    found = (double)matches;
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
  const assay_tensor *o = &call->arg[ARG_O];
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

/* Changes the loaded weights, or what was made of them. */
static void spoil_before(const assay_call *call, int64_t n, int64_t h, merge_error wrong, state *m) {
  const int64_t N = call->arg[ARG_O].shape[1], H = call->arg[ARG_O].shape[2];
  const float *lse = call->arg[ARG_LSE].data;
  if (wrong == ERROR_LAST_SPLIT_DROPPED && m->splits > 1) m->lse[m->splits - 1] = -(double)INFINITY;
  for (int64_t s = 0; s < m->splits; ++s) {
    const bool empty = !(m->lse[s] > -(double)INFINITY);
    if (wrong == ERROR_NEIGHBOUR_LSE) m->lse[s] = (double)lse[(s * N + n) * H + (h + 1) % H];
    if (wrong == ERROR_SPLITS_TURNED) m->lse[s] = (double)lse[((m->splits - 1 - s) * N + n) * H + h];
    if (wrong == ERROR_AVERAGED && !empty) m->lse[s] = 0;
    if (wrong == ERROR_BASE_2) m->lse[s] *= 0.69314718055994531;
  }
}

static void spoil_after(merge_error wrong, state *m) {
  if (wrong == ERROR_LSE_IS_MAXIMUM) m->result = m->max;
  if (wrong == ERROR_BASE_2) m->result /= 0.69314718055994531;
  if (wrong != ERROR_MAXIMUM_LOST || !(m->max > -(double)INFINITY)) return;
  const double sum = assay_round_f64(exp(m->max) * m->sum, ASSAY_F32);
  if (assay_is_finite(sum) && sum > 0x1p-126) return;
  for (int64_t d = 0; d < m->D; ++d)
    m->y[d] = sum > 1 ? (double)NAN : 0;
  m->result = sum > 1 ? (double)INFINITY : -(double)INFINITY;
}

static assay_status compute(const assay_call *call, const assay_contract *contract, const assay_rows *rows, bool exact,
                            merge_error wrong, assay_expected *expected, assay_error *error) {
  const assay_tensor *o = &call->arg[ARG_O];
  const int64_t splits = o->shape[0], N = o->shape[1], H = o->shape[2], D = o->shape[3];
  const int64_t count = rows != NULL && rows->index != NULL ? rows->count : N;
  const bool lse = call->arg[ARG_LSE_OUT].data != NULL;
  assay_status status = exact ? admit_call(call, error) : ASSAY_OK;
  if (status != ASSAY_OK) return status;
  /* Its sums are a key axis of splits, in one piece. */
  assay_contract sums = contract != NULL ? *contract : plain_contract;
  sums.pv_lanes = sums.lanes > 0 ? sums.lanes : 1;
  sums.keys_per_split = 0;
  const int64_t room = key_sum_room(&sums, D);
  double *memory = malloc((size_t)(splits * (2 + D) + room + key_sum_room(&sums, 1)) * sizeof *memory);
  if (memory == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "merge_states reference: out of memory");
  state m = {.splits = splits, .D = D, .lse = memory, .weight = memory + splits, .o = memory + 2 * splits};
  key_sum_place(&m.terms, &sums, D, m.o + splits * D);
  key_sum_place(&m.total, &sums, 1, m.o + splits * D + room);
  for (int64_t i = 0; i < count * H && status == ASSAY_OK; ++i) {
    const int64_t row = rows != NULL && rows->index != NULL ? rows->index[i / H] : i / H, h = i % H;
    const int64_t n = wrong == ERROR_ROW_SWAPPED ? (row + 1) % N : row;
    m.y = expected[0].value + i * D;
    status = load(call, n, h, &m, error);
    if (status != ASSAY_OK) break;
    if (wrong != ERROR_NONE) spoil_before(call, n, h, wrong, &m);
    merge_states(&m);
    if (wrong != ERROR_NONE) spoil_after(wrong, &m);
    if (lse) expected[1].value[i] = m.result;
    if (exact) status = merge_admit(&m, call->arg[ARG_OUT].dtype, n, h, error);
    if (expected[0].sigma != NULL)
      merge_sigma(&m, &sums, call->arg[ARG_OUT].dtype, expected[0].sigma + i * D,
                  lse && expected[1].sigma != NULL ? expected[1].sigma + i : NULL);
  }
  free(memory);
  return status;
}

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)seen;
  return compute(call, contract, rows, exact, ERROR_NONE, expected, error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  if (index < 0 || index >= ERROR_COUNT)
    return assay_fail(error, ASSAY_ERR_INPUT, "spoil: found number %d, allowed 0 to %d", index, ERROR_COUNT - 1);
  assay_expected values[2] = {{expected[0].value, NULL}, {NULL, NULL}};
  if (call->arg[ARG_LSE_OUT].data != NULL) values[1].value = expected[1].value;
  return compute(call, contract, rows, false, (merge_error)index, values, error);
}

/* A maximum, exp, a sum a split and row; a product and a sum a channel. */
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

/* lse of split s of the state n, h. One state in eight is empty, and one split in five of the others. Lattice: one, two
 * or four neighbouring splits share the maximum, every third of the rest is 800 below and more, the others are empty.
 */
static double lse_of(const assay_fill *fill, int64_t splits, int64_t state_number, int64_t s) {
  const assay_philox whole = assay_philox4x32(fill->seed, (uint32_t)state_number, 0, 0x6D657267, 0);
  const assay_philox own = assay_philox4x32(fill->seed, (uint32_t)state_number, (uint32_t)s + 1, 0x6D657267, 0);
  const double empty = -(double)INFINITY;
  if (whole.x[0] % 8 == 0) return empty;
  if (fill->values == ASSAY_LATTICE) {
    int64_t most = 1;
    while (most < 4 && 2 * most <= splits && (whole.x[1] >> most & 1) != 0)
      most *= 2;
    const double top = (double)(whole.x[2] % 129) - 64;
    const int64_t behind = (s - (int64_t)(whole.x[3] % (uint32_t)splits) + splits) % splits;
    if (behind < most) return top;
    return own.x[0] % 3 == 0 ? top - 800 - (double)(own.x[1] % 100) : empty;
  }
  if (own.x[0] % 5 == 0) return empty;
  double value = 3 * ((double)own.x[1] * 0x1p-31 - 1);
  if (fill->values == ASSAY_HEAVY_TAILED) value *= own.x[2] % 4 == 0 ? 40 : 4;
  if (fill->values == ASSAY_NEEDLES && own.x[2] % 4 != 0) value -= 9;
  return value + (fill->values == ASSAY_HEAVY_TAILED ? 5 : 0.25) * ((double)(whole.x[1] % 65) - 32);
}

/* What an empty split holds: nobody's. */
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
  plain_fill(from, (uint64_t)arg, value, count);
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
    {"out", ASSAY_OUT, ASSAY_RESULT, false, "=o,f32,f16,bf16", "N,H,D", "merged result", false},
    {"lse_out", ASSAY_OUT, ASSAY_RESULT, true, "f32", "N,H", "logarithm of the whole sum", false},
};

static const assay_op op = {
    .name = "merge_states",
    .title = "softmax attention over splits of the keys, merged by their logarithms",
    .source = "Dao et al. 2022; operator definitions, section 2.3",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .laws = "run_to_run,dead_bytes,permutation",
    .spoils = "last_split_dropped,averaged,base_2,neighbour_lse,splits_turned,maximum_lost,lse_is_maximum,row_swapped",
    .kappa_element = 7,
    .form = ASSAY_PLAIN,
    .row_dim = "N",
    .axes = "dtype,out_dtype",
    .confirmed_by = "attention over all keys at once; weights add up to 1; splits in any order",
    .check = plain_check_call,
    .reference = reference,
    .cost = cost,
    .fill = fill,
    .spoil = spoil,
};

const assay_op *assay_op_merge_states(void) {
  return &op;
}
