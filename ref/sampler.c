/* sampler: one token per row, from logits l over V ids, in this order:
 *
 *   seen in prompt or outputs:  l <- l > 0 ? l / r : l · r
 *   n times in the outputs:     l <- l - (frequency · n + presence · [n > 0])
 *   temperature T = 0:          the lowest id of the largest l, and nothing else
 *   top-k:                      the k first in the order "larger l, then lower id"; 0 or k >= V: all
 *   softmax at T:               mass_i = exp((l_i - l_max) / T)
 *   top-p:                      the shortest prefix of that order whose mass is >= p of what top-k kept
 *   min-p:                      mass_i >= m · mass_max
 *   draw:                       the lowest id whose running mass exceeds u · (all kept mass)
 *
 * u = (x_0 >> 8) · 2^-24, x = Philox4x32-10(key seed, counter (step, 0, request low, request high)). -Inf bans a token.
 * A row with NaN or +Inf, or with nothing but -Inf, has token -1 and a status. Source: docs/definitions.md, section
 * 6. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "ref/lib/plain.h"
#include "ref/lib/sampler_bound.h"
#include "ref/lib/sampler_call.h"
#include "ref/lib/sampler_spoil.h"

const assay_op *assay_op_sampler(void);

/* ---- rows -------------------------------------------------------------------------------------------- */

static double real_of(const assay_call *call, int32_t arg, int64_t b, double absent) {
  const assay_tensor *t = &call->arg[arg];
  return t->data != NULL ? (double)((const float *)t->data)[b] : absent;
}

static int64_t history_of(const assay_call *call, int32_t arg, int64_t b, const int32_t **token) {
  const assay_tensor *t = &call->arg[arg];
  if (t->data == NULL) return 0;
  *token = (const int32_t *)t->data + b * t->shape[1];
  return t->shape[1];
}

sampler_row sampler_row_of(const assay_call *call, int64_t b, double *logit) {
  const assay_tensor *k = &call->arg[ARG_TOP_K];
  sampler_row row = sampler_row_neutral;
  plain_load_row(&call->arg[ARG_LOGITS], b, logit);
  row.V = call->arg[ARG_LOGITS].shape[1];
  row.logit = logit;
  row.prompt_count = history_of(call, ARG_PROMPT, b, &row.prompt);
  row.output_count = history_of(call, ARG_OUTPUT, b, &row.output);
  row.repetition = real_of(call, ARG_REPETITION, b, row.repetition);
  row.frequency = real_of(call, ARG_FREQUENCY, b, row.frequency);
  row.presence = real_of(call, ARG_PRESENCE, b, row.presence);
  row.temperature = real_of(call, ARG_TEMPERATURE, b, row.temperature);
  row.top_k = k->data != NULL ? plain_integer(k, b) : 0;
  row.top_p = real_of(call, ARG_TOP_P, b, row.top_p);
  row.min_p = real_of(call, ARG_MIN_P, b, row.min_p);
  row.seed = (uint64_t)plain_integer(&call->arg[ARG_SEED], b);
  row.step = (uint32_t)plain_integer(&call->arg[ARG_STEP], b);
  row.request = (uint64_t)plain_integer(&call->arg[ARG_REQUEST], b);
  return row;
}

/* Refuses contents that no batch may hold. A kernel reports a status for them; the reference names them. */
static assay_status check_row(const sampler_row *row, int64_t b, assay_error *error) {
  double found;
  const char *allowed;
  int64_t place;
  int32_t token;
  const char *name = sampler_illegal_parameter(row, &found, &allowed);
  if (name != NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %.9g in row %lld, allowed %s", name, found, (long long)b,
                      allowed);
  name = sampler_illegal_token(row, &place, &token);
  if (name != NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found token %d at [%lld, %lld], allowed 0 to %lld, and -1 for none",
                      name, token, (long long)b, (long long)place, (long long)(row->V - 1));
  return ASSAY_OK;
}

static assay_status check_penalised(const sampler_row *row, const sampler_scratch *scratch, int64_t b,
                                    assay_error *error) {
  for (int64_t i = 0; i < row->V; ++i)
    if (assay_is_finite(row->logit[i]) && !(fabs(scratch->value[i]) <= (double)FLT_MAX))
      return assay_fail(error, ASSAY_ERR_INPUT,
                        "logits: found %.9g at [%lld, %lld], which the penalties take to %.9g, allowed what f32 holds",
                        row->logit[i], (long long)b, (long long)i, scratch->value[i]);
  return ASSAY_OK;
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

typedef struct work {
  double *logit;
  sampler_scratch scratch;
} work;

static void work_free(work *w) {
  free(w->logit);
  sampler_scratch_free(&w->scratch);
}

static assay_status work_make(const assay_call *call, work *w, assay_error *error) {
  const int64_t V = call->arg[ARG_LOGITS].shape[1];
  *w = (work){.logit = malloc((size_t)V * sizeof *w->logit)};
  if (w->logit == NULL)
    return assay_fail(error, ASSAY_ERR_MEMORY, "sampler: %lld logits do not fit in memory", (long long)V);
  return sampler_scratch_make(V, &w->scratch, error);
}

static assay_status check_exact(const sampler_row *row, const sampler_scratch *scratch, int64_t b, assay_error *error) {
  double found = 0;
  const char *why = sampler_inexact(row, scratch, &found);
  if (why == NULL) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "exact tier: sampler row %lld: %s: found %.9g", (long long)b, why, found);
}

/* Computes the rows. planted: the planted error, or -1. */
static assay_status compute(const assay_call *call, const assay_rows *rows, bool exact, int32_t planted,
                            assay_expected *expected, assay_error *error) {
  const int64_t B = call->arg[ARG_LOGITS].shape[0];
  const int64_t count = rows != NULL && rows->index != NULL ? rows->count : B;
  work w = {0};
  assay_status status = work_make(call, &w, error);
  for (int64_t i = 0; i < count && status == ASSAY_OK; ++i) {
    const int64_t b = rows != NULL ? plain_row(rows, i) : i;
    const sampler_row row = sampler_row_of(call, b, w.logit);
    int32_t token = -1;
    sampler_code code = SAMPLER_OK;
    status = check_row(&row, b, error);
    if (status == ASSAY_OK) code = sampler_token(&row, &w.scratch, &token);
    if (status == ASSAY_OK && code == SAMPLER_OK) {
      status = check_penalised(&row, &w.scratch, b, error);
      if (status == ASSAY_OK && exact) status = check_exact(&row, &w.scratch, b, error);
      if (planted >= 0) token = sampler_spoilt(&row, &w.scratch, (sampler_spoil)planted, b);
    }
    expected[0].value[i] = token;
    expected[1].value[i] = code;
    if (expected[0].sigma != NULL) expected[0].sigma[i] = 0;
    if (expected[1].sigma != NULL) expected[1].sigma[i] = 0;
  }
  work_free(&w);
  return status;
}

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)contract;
  (void)seen;
  return compute(call, rows, exact, -1, expected, error);
}

/* Tells whether a planted error only draws another of the kept tokens, or keeps fewer. Such a token alone says nothing
 * of a generator that is not the definition's: the law `distribution` judges it. */
static bool only_draws(sampler_spoil spoil) {
  return spoil == SPOIL_COUNTER_BY_ROW || spoil == SPOIL_STEP_LOST || spoil == SPOIL_SEED_HIGH_LOST ||
         spoil == SPOIL_REQUEST_HIGH_LOST || spoil == SPOIL_DRAW_AT_LEAST || spoil == SPOIL_TOP_P_DROPS_CROSSING ||
         spoil == SPOIL_MIN_P_FIRST || spoil == SPOIL_MIN_P_OF_ONE;
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  if (contract != NULL && contract->generator == ASSAY_GENERATOR_OWN && only_draws((sampler_spoil)index)) index = -1;
  assay_expected values[2] = {{expected[0].value, NULL}, {expected[1].value, NULL}};
  return compute(call, rows, false, index, values, error);
}

/* Accepts another token than the reference's if rounding can reach it, or if the implementation's own generator can. A
 * row on the lattice has one right token for a given number. */
static bool accepts(const assay_call *call, const assay_contract *contract, int32_t output, int64_t element,
                    double got) {
  const int64_t V = call->arg[ARG_LOGITS].shape[1];
  if (output != 0 || !(got >= 0 && got < (double)V)) return false;
  unsigned char *possible = calloc((size_t)V, 1);
  work w = {0};
  bool right = false;
  if (possible != NULL && work_make(call, &w, NULL) == ASSAY_OK) {
    const sampler_row row = sampler_row_of(call, element, w.logit);
    const bool own = contract != NULL && contract->generator == ASSAY_GENERATOR_OWN;
    int32_t token;
    double found;
    if (sampler_token(&row, &w.scratch, &token) != SAMPLER_OK)
      right = false;
    else if (own)
      right =
          sampler_kept(&row, &w.scratch, contract, false, possible, NULL) == ASSAY_OK && possible[(int64_t)got] != 0;
    else if (sampler_inexact(&row, &w.scratch, &found) == NULL)
      right = got == token;
    else if (sampler_possible(&row, &w.scratch, contract, possible, NULL) == ASSAY_OK)
      right = possible[(int64_t)got] != 0;
  }
  free(possible);
  work_free(&w);
  return right;
}

/* Writes the share of each kept token in the kept mass. */
static int64_t chances(const assay_call *call, const assay_contract *contract, int64_t b, double *chance) {
  const int64_t V = call->arg[ARG_LOGITS].shape[1];
  unsigned char *kept = calloc((size_t)V, 1);
  work w = {0};
  bool drawn = false;
  if (chance == NULL) drawn = true;
  if (chance != NULL && kept != NULL && work_make(call, &w, NULL) == ASSAY_OK) {
    const sampler_row row = sampler_row_of(call, b, w.logit);
    int32_t token;
    double whole = 0;
    drawn = row.temperature > 0 && sampler_token(&row, &w.scratch, &token) == SAMPLER_OK &&
            sampler_kept(&row, &w.scratch, contract, true, kept, NULL) == ASSAY_OK;
    for (int64_t i = 0; i < V && drawn; ++i)
      whole += kept[i] != 0 ? w.scratch.mass[i] : 0;
    for (int64_t i = 0; i < V && drawn; ++i)
      chance[i] = kept[i] != 0 ? w.scratch.mass[i] / whole : 0;
  }
  free(kept);
  work_free(&w);
  return drawn ? V : 0;
}

/* Counts every logit as read once. Each passes the penalties, exp and the comparisons of a selection. */
static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  double bytes = 0;
  for (int32_t i = 0; i < ARG_COUNT; ++i) {
    const assay_tensor *t = &call->arg[i];
    if (t->data == NULL) continue;
    bytes += (double)(assay_dtype_size(t->dtype) * t->shape[0]) * (t->rank > 1 ? (double)t->shape[1] : 1);
  }
  const assay_tensor *logits = &call->arg[ARG_LOGITS];
  return (assay_cost){8 * (double)logits->shape[0] * (double)logits->shape[1], bytes};
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"B", 1, 1 << 20, 4, 1, "rows"},
    {"V", 1, 1 << 20, 256, 1, "ids"},
    {"P", 1, 1 << 20, 8, 1, "places for prompt tokens"},
    {"O", 1, 1 << 20, 8, 1, "places for output tokens"},
};

static const assay_arg args[ARG_COUNT] = {
    {"logits", ASSAY_IN, ASSAY_VALUES, false, "f32,f16,bf16", "B,V", "-Inf bans a token", true},
    {"seed", ASSAY_IN, ASSAY_VALUES, false, "i64", "B", "Philox key", false},
    {"step", ASSAY_IN, ASSAY_VALUES, false, "i32", "B", "Philox counter, word 0", false},
    {"request", ASSAY_IN, ASSAY_VALUES, false, "i64", "B", "Philox counter, words 2 and 3", false},
    {"repetition", ASSAY_IN, ASSAY_VALUES, true, "f32", "B", "above 0; absent: 1", false},
    {"frequency", ASSAY_IN, ASSAY_VALUES, true, "f32", "B", "absent: 0", false},
    {"presence", ASSAY_IN, ASSAY_VALUES, true, "f32", "B", "absent: 0", false},
    {"temperature", ASSAY_IN, ASSAY_VALUES, true, "f32", "B", "0 or above, 0 for the largest logit; absent: 1", false},
    {"top_k", ASSAY_IN, ASSAY_VALUES, true, "i32", "B", "0 or above; 0, or absent: off", false},
    {"top_p", ASSAY_IN, ASSAY_VALUES, true, "f32", "B", "above 0, up to 1; absent: 1", false},
    {"min_p", ASSAY_IN, ASSAY_VALUES, true, "f32", "B", "0 to 1; absent: 0", false},
    {"prompt", ASSAY_IN, ASSAY_VALUES, true, "i32", "B,P", "ids; -1: no token", false},
    {"output", ASSAY_IN, ASSAY_VALUES, true, "i32", "B,O", "ids; -1: no token", false},
    {"token", ASSAY_OUT, ASSAY_RESULT, false, "i32", "B", "the id drawn; -1 where status is not 0", false},
    {"status", ASSAY_OUT, ASSAY_RESULT, false, "i32", "B",
     "0: ok; 1: a logit is NaN or +Inf; 2: every logit is -Inf; 3, 4: a parameter, a token out of range", false},
};

static const assay_op op = {
    .name = "sampler",
    .title = "penalties, temperature, top-k, top-p, min-p, and a draw: one token per row",
    .source = "docs/definitions.md, section 6; Philox: Salmon et al., SC 2011",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .laws = "run_to_run,dead_bytes,permutation,distribution",
    .spoils = SAMPLER_SPOILS,
    .kappa_element = 7,
    .form = ASSAY_PLAIN,
    .row_dim = "B",
    .takes_special = true,
    .confirmed_by = "a second formulation that sorts; the closed form of equal logits; frequencies of draws by chi "
                    "square; Philox's published answers (ref_sampler_test)",
    .extreme_args = "",
    .fill_wide = sampler_fill_wide,
    .check = plain_check_call,
    .reference = reference,
    .cost = cost,
    .fill = sampler_fill,
    .accepts = accepts,
    .spoil = spoil,
    .chances = chances,
    .draw_args = "seed,step,request",
};

const assay_op *assay_op_sampler(void) {
  return &op;
}
