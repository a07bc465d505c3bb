/* lm_head_argmax: the id of the largest logit of each selected row. For selected row r and token id v:
 *
 *   l_rv    = sum_c x[row_index_r, c] W_vc
 *   token_r = the lowest v of the largest l_rv
 *   logit_r = that l_rv
 *
 * It is summed in f32; only logit_r is stored. -Inf bans an id. A row is broken if a logit is NaN or +Inf, or if all
 * are -Inf. It has token -1, logit 0 and a status, as the sampler has it. A row_index outside [0, T) is an input error.
 * Source: docs/definitions.md, section 6. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/error_model.h"
#include "ref/lib/gemm.h"
#include "ref/lib/lattice.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"
#include "ref/lib/selected.h"

enum { ARG_X, ARG_W, ARG_ROW_INDEX, ARG_TOKEN, ARG_STATUS, ARG_LOGIT, ARG_COUNT };
enum { STATUS_OK, STATUS_NOT_FINITE, STATUS_ALL_BANNED };
enum {
  SPOIL_NONE = -1,
  SPOIL_TIES_BY_HIGHEST_ID,
  SPOIL_LAST_IDS_LEFT_OUT, /* the last eighth, at least one */
  SPOIL_LAST_CHANNEL_DROPPED,
  SPOIL_ROWS_NOT_SELECTED,
  SPOIL_INDEX_ONE_OFF,
  SPOIL_ROW_SWAPPED,
  SPOIL_LARGEST_MAGNITUDE,
  SPOIL_SMALLEST,
  SPOIL_NAN_LOSES,  /* NaN and +Inf are passed over */
  SPOIL_BANNED_WINS /* id 0 where all are banned */
};

const assay_op *assay_op_lm_head_argmax(void);

/* ---- the definition ---------------------------------------------------------------------------------- */

typedef struct choice {
  int64_t token; /* -1 unless status is 0 */
  int32_t status;
  double logit;
} choice;

/* Returns the choice of a row of logits [V]. */
static choice choose(const double *logit, int64_t V) {
  choice c = {-1, STATUS_ALL_BANNED, 0};
  for (int64_t v = 0; v < V; ++v) {
    if (isnan(logit[v]) || logit[v] == (double)INFINITY) return (choice){-1, STATUS_NOT_FINITE, 0};
    if (logit[v] == -(double)INFINITY) continue;
    if (c.status == STATUS_ALL_BANNED || logit[v] > c.logit) c = (choice){v, STATUS_OK, logit[v]};
  }
  return c;
}

/* ---- planted errors ------------------------------------------------------------------------------------ */

/* Changes the logits by a planted error. */
static void spoil_logits(double *logit, int64_t V, int32_t spoil) {
  const int64_t left_out = V / 8 > 0 ? V / 8 : 1;
  for (int64_t v = 0; v < V; ++v) {
    const bool broken = isnan(logit[v]) || logit[v] == (double)INFINITY;
    if (spoil == SPOIL_LAST_IDS_LEFT_OUT && v >= V - left_out && V > 1) logit[v] = -(double)INFINITY;
    if (spoil == SPOIL_LARGEST_MAGNITUDE && isfinite(logit[v])) logit[v] = fabs(logit[v]);
    if (spoil == SPOIL_SMALLEST && isfinite(logit[v])) logit[v] = -logit[v];
    if (spoil == SPOIL_NAN_LOSES && broken) logit[v] = -(double)INFINITY;
  }
}

/* Changes the choice by a planted error. */
static void spoil_choice(const double *logit, int64_t V, int32_t spoil, choice *c) {
  if (spoil == SPOIL_BANNED_WINS && c->status == STATUS_ALL_BANNED) *c = (choice){0, STATUS_OK, -(double)INFINITY};
  for (int64_t v = 0; v < V && spoil == SPOIL_TIES_BY_HIGHEST_ID && c->status == STATUS_OK; ++v)
    if (logit[v] == c->logit) c->token = v;
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

/* Returns the row of x for selected row r. With a planted error it is another row. */
static int64_t selected(const assay_call *call, int64_t r, int32_t spoil) {
  const selected_spoil kind = spoil == SPOIL_ROWS_NOT_SELECTED ? SELECTED_NOT
                              : spoil == SPOIL_INDEX_ONE_OFF   ? SELECTED_ONE_OFF
                              : spoil == SPOIL_ROW_SWAPPED     ? SELECTED_EXCHANGED
                                                               : SELECTED_RIGHT;
  return selected_row(&call->arg[ARG_X], &call->arg[ARG_ROW_INDEX], r, kind);
}

/* Returns the variance of a logit whose sum is stored in f32. */
static double logit_variance(const assay_call *call, const assay_contract *contract, const double *x, const double *w) {
  const int64_t C = call->arg[ARG_X].shape[1];
  const gemm_sum s = gemm_walk(x, w, C);
  return gemm_variance(&s, contract != NULL ? contract : &default_contract, x, w, C, call->arg[ARG_W].dtype) +
         storing_variance(s.sum, ASSAY_F32);
}

/* Tells whether the logit of x [C] and w [C] is exact under the contract. */
static bool is_exact(const assay_contract *contract, const double *x, const double *w, int64_t C, double *found) {
  const gemm_sum s = gemm_walk(x, w, C);
  *found = s.abs;
  return gemm_admits(&s, contract != NULL ? contract : &default_contract, lattice_low_row(x, C), lattice_low_row(w, C));
}

static assay_status compute(const assay_call *call, const assay_contract *contract, const assay_rows *rows, bool exact,
                            int32_t spoil, const assay_expected *expected, assay_error *error) {
  const assay_tensor *X = &call->arg[ARG_X], *W = &call->arg[ARG_W];
  const int64_t R = call->arg[ARG_ROW_INDEX].shape[0], V = W->shape[0], C = X->shape[1];
  const int64_t count = rowwise_count(rows, R), terms = spoil == SPOIL_LAST_CHANNEL_DROPPED ? C - 1 : C;
  double *x = NULL;
  assay_status status = selected_check(X, &call->arg[ARG_ROW_INDEX], error);
  if (status == ASSAY_OK) status = rowwise_reserve(call, count * C + C + count * V, &x, error);
  if (status != ASSAY_OK) return status;
  double *const w = x + count * C, *const logit = w + C;
  for (int64_t i = 0; i < count; ++i)
    plain_load_row(X, selected(call, rowwise_index(rows, i), spoil), x + i * C);

  for (int64_t v = 0; v < V && status == ASSAY_OK; ++v) {
    plain_load_row(W, v, w);
    for (int64_t i = 0; i < count && status == ASSAY_OK; ++i) {
      double found = 0;
      logit[i * V + v] = gemm_dot(x + i * C, w, terms);
      if (exact && !is_exact(contract, x + i * C, w, C, &found))
        status = rowwise_refuse(call, rowwise_index(rows, i), v, "sum |x w|", found, 0x1p24, error);
    }
  }
  for (int64_t i = 0; i < count && status == ASSAY_OK; ++i) {
    spoil_logits(logit + i * V, V, spoil);
    choice c = choose(logit + i * V, V);
    spoil_choice(logit + i * V, V, spoil, &c);
    const double values[] = {(double)c.token, (double)c.status, c.logit};
    for (int32_t o = 0; o < 3; ++o) {
      expected[o].value[i] = values[o];
      if (expected[o].sigma != NULL) expected[o].sigma[i] = 0;
    }
    if (expected[2].sigma == NULL || c.status != STATUS_OK || exact) continue;
    plain_load_row(W, c.token, w);
    expected[2].sigma[i] = sqrt(logit_variance(call, contract, x + i * C, w));
  }
  free(x);
  return status;
}

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)seen;
  return compute(call, contract, rows, exact, SPOIL_NONE, expected, error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  const assay_expected values[3] = {{expected[0].value, NULL}, {expected[1].value, NULL}, {expected[2].value, NULL}};
  return compute(call, contract, rows, false, index, values, error);
}

/* Accepts another id if rounding can make its logit the largest. Where both logits are exact, it cannot. */
static bool accepts(const assay_call *call, const assay_contract *contract, int32_t output, int64_t element,
                    double got) {
  const int64_t V = call->arg[ARG_W].shape[0], C = call->arg[ARG_X].shape[1];
  if (output != 0 || !(got >= 0 && got < (double)V)) return false;
  double *const x = malloc((size_t)(3 * C + V) * sizeof *x), found;
  if (x == NULL) return false;
  double *const w = x + C, *const best = w + C, *const logit = best + C;
  plain_load_row(&call->arg[ARG_X], selected(call, element, SPOIL_NONE), x);
  for (int64_t v = 0; v < V; ++v) {
    plain_load_row(&call->arg[ARG_W], v, w);
    logit[v] = gemm_dot(x, w, C);
  }
  const choice c = choose(logit, V);
  bool right = false;
  if (c.status == STATUS_OK) {
    plain_load_row(&call->arg[ARG_W], (int64_t)got, w);
    plain_load_row(&call->arg[ARG_W], c.token, best);
    const double sigma = sqrt(logit_variance(call, contract, x, w)) + sqrt(logit_variance(call, contract, x, best));
    const bool decided = is_exact(contract, x, w, C, &found) && is_exact(contract, x, best, C, &found);
    right = !decided && c.logit - logit[(int64_t)got] <= call->op->kappa_element * sigma;
  }
  free(x);
  return right;
}

static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *W = &call->arg[ARG_W];
  const double R = (double)call->arg[ARG_TOKEN].shape[0], V = (double)W->shape[0], C = (double)W->shape[1];
  return (assay_cost){2 * R * V * C, (R * C + V * C) * (double)assay_dtype_size(W->dtype) + 16 * R};
}

/* ---- values for the generator ------------------------------------------------------------------------ */

enum { BROKEN_BANS, BROKEN_ALL, BROKEN_WEIGHT, BROKEN_ROWS, BROKEN_KINDS };

/* Returns what is broken in a call with special values, the same for all of its arguments. */
static int64_t broken_of(const assay_fill *from) {
  assay_rng rng = {from->seed, 0x62726F6B, 0};
  return assay_rng_range(&rng, 0, BROKEN_KINDS - 1);
}

/* Breaks one row of x in three by NaN or an infinity. Channel 0 is above 0, so that -Inf in a weight bans its id. */
static void break_rows(const assay_fill *from, double *value, int64_t T, int64_t C) {
  assay_rng rng = {from->seed, 0x726F7773, 0};
  const bool breaks = broken_of(from) == BROKEN_ROWS;
  for (int64_t t = 0; t < T; ++t) {
    value[t * C] = fabs(value[t * C]) + 0.5;
    const int64_t kind = assay_rng_range(&rng, 0, 8), c = assay_rng_range(&rng, 0, C - 1);
    if (!breaks || kind > 2) continue;
    value[t * C + c] = kind == 0 ? (double)NAN : kind == 1 ? (double)INFINITY : -(double)INFINITY;
  }
}

/* Bans ids by -Inf in channel 0: one in eight or all of them. In some calls the weight of one id is NaN or +Inf. */
static void break_weights(const assay_fill *from, double *value, int64_t V, int64_t C) {
  assay_rng rng = {from->seed, 0x77676874, 0};
  const int64_t broken = broken_of(from), drawn = assay_rng_range(&rng, 0, 2 * V - 1), one = drawn < V ? drawn : V - 1;
  for (int64_t v = 0; v < V; ++v)
    if (assay_rng_range(&rng, 0, 7) == 0 || broken == BROKEN_ALL) value[v * C] = -(double)INFINITY;
  if (broken == BROKEN_WEIGHT) value[one * C] = assay_rng_range(&rng, 0, 1) == 0 ? (double)NAN : (double)INFINITY;
}

/* Makes every number of x 0 or above and every weight 0 or below, in one call of four. No logit is then above 0. */
static void fill_negative(const assay_fill *from, int32_t arg, double *value, int64_t count) {
  assay_rng rng = {from->seed, 0x7369676E, 0};
  if (assay_rng_range(&rng, 0, 3) != 0) return;
  for (int64_t i = 0; i < count; ++i)
    value[i] = arg == ARG_W ? -fabs(value[i]) : fabs(value[i]);
}

/* Makes half of the ids copies of others, in one call of two, so that every largest logit is there twice. The other id
 * is half of all ids away, or as far as two ids of a thread, a warp or a tile may be. */
static void fill_copies(const assay_fill *from, double *value, int64_t V, int64_t C) {
  assay_rng rng = {from->seed, 0x74696573, 0};
  if (assay_rng_range(&rng, 0, 1) == 0) return;
  int64_t apart = V / 2;
  if (assay_rng_range(&rng, 0, 1) == 0) apart = INT64_C(1) << assay_rng_range(&rng, 0, 9);
  for (int64_t v = apart; v < V && apart > 0; ++v)
    for (int64_t c = 0; c < C && v / apart % 2 == 1; ++c)
      value[v * C + c] = value[(v - apart) * C + c];
}

static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  (void)error;
  const int64_t C = from->call->arg[ARG_X].shape[1];
  if (arg == ARG_ROW_INDEX) {
    plain_fill_integers(from, (uint64_t)arg, from->call->arg[ARG_X].shape[0], value, count);
    return ASSAY_OK;
  }
  assay_fill usual = *from;
  if (from->values == ASSAY_SPECIAL) usual.values = ASSAY_NORMAL;
  plain_fill(&usual, (uint64_t)arg, value, count);
  fill_negative(from, arg, value, count);
  if (arg == ARG_W) fill_copies(from, value, count / C, C);
  if (from->values != ASSAY_SPECIAL) return ASSAY_OK;
  if (arg == ARG_W)
    break_weights(from, value, count / C, C);
  else
    break_rows(from, value, count / C, C);
  return ASSAY_OK;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"T", 1, 1 << 20, 8, 1, "rows of x"},
    {"R", 1, 1 << 20, 4, 1, "selected rows"},
    {"V", 1, 1 << 20, 64, 1, "token ids"},
    {"C", 1, 65536, 64, 1, "channels: terms of each sum"},
};

static const assay_arg args[ARG_COUNT] = {
    {"x", ASSAY_IN, ASSAY_VALUES, false, "f32,f16,bf16", "T,C", "activations of every token; the row stride is free",
     true},
    {"w", ASSAY_IN, ASSAY_VALUES, false, "=x", "V,C", "weights, one row per token id", false},
    {"row_index", ASSAY_IN, ASSAY_VALUES, false, "i32", "R", "rows of x that want a token, 0 to T - 1", false},
    {"token", ASSAY_OUT, ASSAY_RESULT, false, "i32", "R",
     "the lowest id of the largest logit; -1 where status is not 0", false},
    {"status", ASSAY_OUT, ASSAY_RESULT, false, "i32", "R", "0: ok; 1: a logit is NaN or +Inf; 2: every logit is -Inf",
     false},
    {"logit", ASSAY_OUT, ASSAY_RESULT, false, "f32", "R", "the largest logit; 0 where status is not 0", false},
};

static const assay_op op = {
    .name = "lm_head_argmax",
    .title = "the id of the largest logit of selected rows",
    .source = "docs/definitions.md, section 6",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .laws = "run_to_run,dead_bytes,permutation",
    .spoils = "ties_by_highest_id,last_ids_left_out,last_channel_dropped,rows_not_selected,index_one_off,row_swapped,"
              "largest_magnitude,smallest,nan_loses,banned_wins",
    .kappa_element = 7,
    .form = ASSAY_PLAIN,
    .row_dim = "R",
    .takes_special = true,
    .confirmed_by = "dgemm of another library over all rows, then the first largest logit of the selected ones; ties, "
                    "bans, NaN and infinities by hand (ref_linear_test)",
    .largest = 0x1p88,
    .check = plain_check_call,
    .reference = reference,
    .cost = cost,
    .fill = fill,
    .accepts = accepts,
    .spoil = spoil,
};

const assay_op *assay_op_lm_head_argmax(void) {
  return &op;
}
