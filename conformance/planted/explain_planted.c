/* explain_planted.c: explains results of operators other than attention over a cache that it only reads. It looks for
 * the operator's own listed error that gives the wrong result. Otherwise it says whether the row is another row's
 * result, or no result at all. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "explain_internal.h"
#include "power.h"

/* One output of a call with a mistake in it, to be compared with the wrong result. */
typedef struct suspect {
  const trial *t;
  const outputs *got;
  int32_t o;
  const double *value; /* [judged rows × width] */
} suspect;

static bool same_bits(const suspect *s, int64_t element, double from) {
  const trial_output *out = &s->t->output[s->o];
  const int64_t size = assay_dtype_size(out->dtype);
  if (!(from >= 0 && from < (double)(out->rows * out->width))) return false;
  return memcmp(s->got->bits[s->o] + element * size, s->t->initial.bits[s->o] + (int64_t)from * size, (size_t)size) ==
         0;
}

/* Compares one element. σ is that of the right result; a larger result is at least rounded to its type. */
static bool same_element(const suspect *s, int64_t row, int64_t e, double value, double sigma) {
  const trial *t = s->t;
  const trial_output *out = &t->output[s->o];
  const double got = values_load(t, s->got, (output_place){s->o, row, e});
  if (sigma == ASSAY_MOVED) return same_bits(s, row * out->width + e, value);
  const double expected = assay_round_f64(value, out->dtype);
  if (got == expected || (assay_is_nan(got) && assay_is_nan(value))) return true;
  if (out->exact || sigma < 0 || !assay_is_finite(got) || !assay_is_finite(value)) return false;
  const double least = assay_ulp(value, out->dtype) / sqrt(12.0);
  return fabs(got - value) <= t->one->op->kappa_element * (sigma > least ? sigma : least);
}

/* Tells whether judged row r holds in every element what the suspect has in its row `from`. Wide bounds alone do not
 * suffice: the suspect's numbers must be much nearer than the right result is. */
static bool same_row(const suspect *s, int64_t r, int64_t from) {
  const trial *t = s->t;
  const int64_t width = t->output[s->o].width, row = outputs_row(t, s->o, r);
  double before = 0, after = 0;
  for (int64_t e = 0; e < width; ++e) {
    const double value = s->value[from * width + e], right = t->expected[s->o].value[r * width + e];
    const double sigma = t->expected[s->o].sigma[r * width + e],
                 got = values_load(t, s->got, (output_place){s->o, row, e});
    if (!same_element(s, row, e, value, sigma)) return false;
    if (sigma < 0 || !assay_is_finite(got) || !assay_is_finite(right) || !assay_is_finite(value)) continue;
    before += (got - right) * (got - right);
    after += (got - value) * (got - value);
  }
  return 16.0 * after <= before;
}

static int64_t same_rows(const suspect *s) {
  int64_t count = 0;
  for (int64_t r = 0; r < outputs_judged(s->t, s->o); ++r)
    count += same_row(s, r, r);
  return count;
}

/* Returns the place of a row among the judged ones, or -1. */
static int64_t place_of(const trial *t, int32_t o, int64_t row) {
  for (int64_t r = 0; r < outputs_judged(t, o); ++r)
    if (outputs_row(t, o, r) == row) return r;
  return -1;
}

/* Writes the planted error that gives the first wrong row; of several, the one that gives most rows. */
static bool planted(const suspect *first, int64_t r, assay_expected *values, char *text, size_t size) {
  const trial *t = first->t;
  const assay_op *op = t->one->op;
  int64_t most = 0;
  for (int32_t i = 0; i < power_count(op); ++i) {
    const suspect s = {t, first->got, first->o, values[first->o].value};
    for (int32_t o = 0; o < t->count; ++o)
      memcpy(values[o].value, t->expected[o].value,
             (size_t)(outputs_judged(t, o) * t->output[o].width) * sizeof(double));
    if (op->spoil(&t->first.call, &t->variant->contract, &t->rows, i, values, NULL) != ASSAY_OK) continue;
    if (!same_row(&s, r, r)) continue;
    const int64_t rows = same_rows(&s);
    if (rows <= most) continue;
    most = rows;
    power_name(op, i, text, size);
  }
  for (char *at = text; most > 0 && *at != '\0'; ++at)
    if (*at == '_') *at = ' ';
  return most > 0;
}

/* Asks the reference with one parameter changed. Returns whether that gives the first wrong row. */
static bool with_param(const suspect *first, int64_t r, int32_t param, double value, assay_expected *values) {
  const trial *t = first->t;
  double params[ASSAY_MAX_PARAMS];
  assay_seen seen = {0};
  const suspect s = {t, first->got, first->o, values[first->o].value};
  memcpy(params, t->first.param, sizeof params);
  params[param] = value;
  const assay_call call = {t->one->op, t->first.call.arg, params};
  return t->one->op->reference(&call, &t->variant->contract, &t->rows, false, values, &seen, NULL) == ASSAY_OK &&
         same_row(&s, r, r);
}

/* Writes the parameter without which, or with whose neighbour, the reference gives the first wrong row. A planted error
 * is void where a suite could not see it; a kernel may show it there nevertheless. */
static bool other_param(const suspect *s, int64_t r, assay_expected *values, char *text, size_t size) {
  const assay_op *op = s->t->one->op;
  for (int32_t i = 0; i < op->param_count; ++i) {
    const assay_param *p = &op->params[i];
    const double own = s->t->first.param[i];
    for (int step = 0; step < 2 && p->kind != ASSAY_ENUM; ++step) {
      const double value = p->kind == ASSAY_BOOL ? 1 - own : p->kind == ASSAY_REAL ? step : own + 2 * step - 1;
      const bool same = !(value < own) && !(value > own);
      if (same || (p->kind == ASSAY_BOOL && step > 0) || (p->kind == ASSAY_INTEGER && !(value >= p->min))) continue;
      if (!with_param(s, r, i, value, values)) continue;
      if (p->kind == ASSAY_REAL)
        (void)snprintf(text, size, "%s lost", p->name);
      else if (p->kind == ASSAY_BOOL)
        (void)snprintf(text, size, "%s counts as %s", p->name, own != 0 ? "false" : "true");
      else
        (void)snprintf(text, size, "%s counts as %g instead of %g", p->name, value, own);
      return true;
    }
  }
  return false;
}

static bool other_row(const suspect *s, int64_t r, char *text, size_t size) {
  for (int64_t from = 0; from < outputs_judged(s->t, s->o); ++from) {
    if (from == r || !same_row(s, r, from)) continue;
    (void)snprintf(text, size, "this is the result of row %lld", (long long)outputs_row(s->t, s->o, from));
    return true;
  }
  return false;
}

static void no_result(const suspect *s, int64_t r, char *text, size_t size) {
  const int64_t width = s->t->output[s->o].width, row = outputs_row(s->t, s->o, r);
  for (int64_t e = 0; e < width; ++e)
    if (!(fabs(values_load(s->t, s->got, (output_place){s->o, row, e})) <= 0)) return;
  (void)snprintf(text, size, "nothing was added: the row's result is 0");
}

void explain_planted(const trial *t, const outputs *got, output_place where, char *text, size_t size) {
  const int64_t r = place_of(t, where.output, where.row);
  const suspect right = {t, got, where.output, t->expected[where.output].value};
  assay_expected values[ASSAY_MAX_OUTPUTS] = {{NULL, NULL}};
  bool ready = r >= 0;
  for (int32_t o = 0; o < t->count && ready; ++o) {
    const size_t room = (size_t)(outputs_judged(t, o) * t->output[o].width) + 1;
    values[o].value = calloc(room, sizeof(double));
    values[o].sigma = calloc(room, sizeof(double));
    ready = values[o].value != NULL && values[o].sigma != NULL;
  }
  if (ready && !planted(&right, r, values, text, size) && !other_param(&right, r, values, text, size) &&
      !other_row(&right, r, text, size))
    no_result(&right, r, text, size);
  for (int32_t o = 0; o < t->count; ++o) {
    free(values[o].value);
    free(values[o].sigma);
  }
}
