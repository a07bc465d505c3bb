/* values.c: tiers 1 and 2, the comparison of two runs, and the description of an element in the problem's own terms.
 * Bounds are written so that NaN fails. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "conformance/generate/generate.h"
#include "repeats.h"
#include "say.h"
#include "trial.h"
#include "tier2.h"

double values_load(const trial *t, const outputs *got, output_place where) {
  const trial_output *out = &t->output[where.output];
  return assay_load_f64(got->bits[where.output], out->dtype, where.row * out->width + where.element);
}

bool values_poisoned(const trial *t, const outputs *got, output_place where, uint8_t poison) {
  const trial_output *out = &t->output[where.output];
  const int64_t size = assay_dtype_size(out->dtype);
  unsigned char pattern[8];
  poison_fill(pattern, size, poison);
  return memcmp(got->bits[where.output] + (where.row * out->width + where.element) * size, pattern, (size_t)size) == 0;
}

bool values_equal(const trial *t, const outputs *a, const outputs *b, output_place *first, int64_t *count) {
  *count = 0;
  for (int32_t o = 0; o < t->count; ++o) {
    const int64_t size = assay_dtype_size(t->output[o].dtype), elements = t->output[o].rows * t->output[o].width;
    if (elements == 0 || memcmp(a->bits[o], b->bits[o], (size_t)(elements * size)) == 0) continue;
    for (int64_t i = 0; i < elements; ++i) {
      if (memcmp(a->bits[o] + i * size, b->bits[o] + i * size, (size_t)size) == 0) continue;
      if (*count == 0) *first = (output_place){o, i / t->output[o].width, i % t->output[o].width};
      ++*count;
    }
  }
  return *count == 0;
}

/* ---- in the problem's own terms ---------------------------------------------------------------------- */

/* Writes "y: N 3 of 7, C 5 of 64": the axes by the names of the shape. */
static void describe_plain(const trial *t, output_place where, char *text, size_t size) {
  const trial_output *out = &t->output[where.output];
  const assay_tensor *arg = &t->first.arg[out->arg];
  const char *term = t->one->op->args[out->arg].shape;
  int64_t index[ASSAY_MAX_RANK] = {where.row}, rest = where.element;
  for (int32_t a = arg->rank - 1; a > 0; --a) {
    index[a] = rest % arg->shape[a];
    rest /= arg->shape[a];
  }
  int used = snprintf(text, size, "%s:", t->one->op->args[out->arg].name);
  for (int32_t a = 0; a < arg->rank && used > 0 && (size_t)used < size; ++a) {
    const size_t n = strcspn(term, ",");
    used += snprintf(text + used, size - (size_t)used, "%s %.*s %lld of %lld", a > 0 ? "," : "", (int)n, term,
                     (long long)index[a], (long long)arg->shape[a]);
    term += n + (term[n] == ',');
  }
}

void values_describe(const trial *t, output_place where, char *text, size_t size) {
  if (t->output[where.output].kind == OUTPUT_WHOLE || t->one->op->form == ASSAY_PLAIN) {
    describe_plain(t, where, text, size);
    return;
  }
  const logical *l = t->first.logical;
  const trial_output *out = &t->output[where.output];
  const int64_t request = t->first.request_of_row[where.row], n = where.row - l->row_start[request];
  const int64_t length = l->length[request], last = length - l->fresh[request] + n;
  const int64_t split = t->variant->contract.keys_per_split;
  char inside[64] = "", keys[160] = "sees no key";
  if (out->kind == OUTPUT_CACHE)
    (void)snprintf(inside, sizeof inside, "kv head %lld, channel %lld", (long long)(where.element / out->group),
                   (long long)(where.element % out->group));
  else if (t->first.arg[out->arg].rank == 2) /* [N, H] */
    (void)snprintf(inside, sizeof inside, "head %lld", (long long)where.element);
  else
    (void)snprintf(inside, sizeof inside, "head %lld, channel %lld", (long long)(where.element / out->group),
                   (long long)(where.element % out->group));
  if (last >= 0) {
    const int64_t block = last / l->block_size;
    const int64_t physical =
        t->first.first_block + t->first.physical[l->block_identity[l->block_start[request] + block]];
    int used =
        t->first.contiguous
            ? snprintf(keys, sizeof keys, "last key %lld is row %lld of K and V", (long long)last,
                       (long long)(physical + last % l->block_size))
            : snprintf(keys, sizeof keys, "last key %lld is slot %lld of its block %lld (physical %lld)",
                       (long long)last, (long long)(last % l->block_size), (long long)block, (long long)physical);
    if (split > 0 && used > 0 && (size_t)used < sizeof keys)
      (void)snprintf(keys + used, sizeof keys - (size_t)used, ", split %lld of %lld keys", (long long)(last / split),
                     (long long)split);
  }
  (void)snprintf(text, size, "%s: request %lld, row %lld of its %d, %s; kv_len %lld, %s",
                 t->one->op->args[out->arg].name, (long long)request, (long long)n, l->fresh[request], inside,
                 (long long)length, keys);
}

/* ---- tiers ------------------------------------------------------------------------------------------- */

typedef struct judging {
  const trial *t;
  const outputs *outputs;
  finding *found;
  bool only_whether; /* the first wrong element ends the judging */
  int32_t o;
  double floor;                  /* half a subnormal ulp of the output type */
  tier2_sums *request;           /* [B] */
  double *share;                 /* [B, H_kv] sum of sigma^2 of a request's outputs of that kv head */
  repeats repeated;              /* judged rows of an output */
  double *row;                   /* [the widest output] one row of the run's output */
  unsigned char *accepted;       /* [judged rows] 1: the operator accepted a result there; NULL: no rule of rows */
  int64_t at;                    /* the judged row */
  double got, expected, allowed; /* at the first wrong element */
} judging;

static void note_wrong(judging *j, output_place where, const char *check, double got, double expected, double allowed) {
  finding *f = j->found;
  ++f->wrong_elements;
  if (f->wrong && f->message[0] == '\0') return;
  f->message[0] = '\0'; /* one element says more than a mean */
  f->wrong = true;
  f->check = check;
  f->first = where;
  j->got = got;
  j->expected = expected;
  j->allowed = allowed;
}

/* Notes a 16-bit value that no number near the expected one rounds to. */
static void note_rounding(judging *j, output_place where, double got, double expected, double ratio) {
  finding *f = j->found;
  char at[400];
  ++f->wrong_elements;
  if (f->wrong) return;
  f->wrong = true;
  f->check = "rounding";
  f->first = where;
  values_describe(j->t, where, at, sizeof at);
  (void)snprintf(f->message, sizeof f->message,
                 "%s: got %.9g, expected %.9g rounded once to %s, which is %.9g; its distance from the numbers that "
                 "round to %.9g is %.3g times what the contract's f32 arithmetic allows",
                 at, got, expected, assay_dtype_name(j->t->output[j->o].dtype),
                 assay_round_f64(expected, j->t->output[j->o].dtype), got, ratio);
}

static void raise_ratio(double *ratio, double value) {
  if (!(value <= *ratio)) *ratio = assay_is_nan(value) ? (double)INFINITY : value;
}

/* Tells whether the operator itself accepts another value than the expected one. */
static bool is_accepted(const judging *j, output_place where, double got) {
  const trial *t = j->t;
  const int64_t at = where.row * t->output[j->o].width + where.element;
  if (t->one->op->accepts == NULL || !t->one->op->accepts(&t->first.call, &t->variant->contract, j->o, at, got))
    return false;
  if (j->accepted != NULL) j->accepted[j->at] = 1;
  return true;
}

/* Checks the bits of an element of an in-out argument against those before the call of dense element `from`. */
static void judge_bits(judging *j, output_place where, int64_t from) {
  const trial_output *out = &j->t->output[j->o];
  const int64_t size = assay_dtype_size(out->dtype), at = where.row * out->width + where.element;
  const unsigned char *before = j->t->initial.bits[j->o];
  if (memcmp(j->outputs->bits[j->o] + at * size, before + from * size, (size_t)size) == 0) return;
  raise_ratio(&j->found->ratio_element, (double)INFINITY);
  note_wrong(j, where, "exact", assay_load_f64(j->outputs->bits[j->o], out->dtype, at),
             assay_load_f64(before, out->dtype, from), 0);
}

/* Tells whether both are NaN. All NaN count as one, except in fp8, where the definition says which bits. */
static bool same_nan(const judging *j, output_place where, double got, double expected) {
  const trial_output *out = &j->t->output[j->o];
  if (!assay_is_nan(got) || !assay_is_nan(expected)) return false;
  return assay_dtype_size(out->dtype) != 1 || j->outputs->bits[j->o][where.row * out->width + where.element] == 0x7F;
}

/* Tells whether a copy has lost the sign of a zero. Elsewhere that sign is free (docs/definitions.md). */
static bool lost_sign(const judging *j, output_place where, double got, double expected) {
  const assay_op *op = j->t->one->op;
  return got == 0 && expected == 0 && signbit(got) != signbit(expected) && op->copies != NULL &&
         op->copies(&j->t->first.call, j->o, where.element);
}

static void note_sign(judging *j, output_place where, double got, double expected) {
  raise_ratio(&j->found->ratio_element, (double)INFINITY);
  note_wrong(j, where, "exact", got, expected, 0);
}

static void judge_exact(judging *j, output_place where, double got, double value) {
  const assay_dtype dtype = j->t->output[j->o].dtype;
  const double expected = assay_round_f64(value, dtype);
  if (lost_sign(j, where, got, expected)) {
    note_sign(j, where, got, expected);
    return;
  }
  if (got == expected || same_nan(j, where, got, expected) || is_accepted(j, where, got)) return;
  raise_ratio(&j->found->ratio_element, (double)INFINITY);
  note_wrong(j, where, "exact", got, expected, 0);
}

/* Where sigma is 0 the definition leaves one value: no bound is given to the message then. */
static void judge_calibrated(judging *j, output_place where, double got, double value, double sigma, tier2_sums *row) {
  const trial *t = j->t;
  /* op.h: exactly this value, rounded to the type */
  if (!(sigma > 0)) value = assay_round_f64(value, t->output[j->o].dtype);
  if (!(sigma > 0) && lost_sign(j, where, got, value)) {
    note_sign(j, where, got, value);
    return;
  }
  if (!assay_is_finite(value)) { /* -Inf, the logarithm of an empty sum: exact */
    if (got == value || same_nan(j, where, got, value)) return;
    raise_ratio(&j->found->ratio_element, (double)INFINITY);
    note_wrong(j, where, "element", got, value, 0);
    return;
  }
  const double allowed = t->one->op->kappa_element * sigma + j->floor;
  const double error = tier2_error(got, value, allowed, t->output[j->o].dtype);
  if (!(error <= allowed) && is_accepted(j, where, got)) return;
  raise_ratio(&j->found->ratio_element, error / allowed);
  if (!(error <= allowed)) {
    note_wrong(j, where, "element", got, value, sigma > 0 ? allowed : 0);
  } else if (sigma > 0) {
    const double ratio = tier2_rounding(got, value, sigma, t->one->op->kappa_element, t->output[j->o].dtype);
    const bool right = ratio <= 1;
    if (right || !is_accepted(j, where, got)) raise_ratio(&j->found->ratio_element, ratio);
    if (!right && !is_accepted(j, where, got)) note_rounding(j, where, got, value, ratio);
  }
  tier2_note(row, error, sigma, value, t->output[j->o].dtype);
}

/* Returns the RMS of the error over the allowed one, and keeps the largest over σ for each limit of the table. */
static double rms_ratio(const judging *j, const tier2_sums *s, int64_t independent) {
  int32_t row = -1;
  double seen = 0;
  const double ratio = tier2_mean(s, j->t->one->op->name, j->t->output[j->o].dtype, independent, j->floor, &row, &seen);
  if (row >= 0 && seen > (double)j->found->rms[row]) j->found->rms[row] = (float)seen;
  return ratio;
}

/* Notes a mean over many elements that is too large although each element is in bounds. */
static void note_mean(judging *j, output_place where, const char *check, double ratio, double *worst) {
  finding *f = j->found;
  raise_ratio(worst, ratio);
  if (ratio <= 1.0 || f->wrong) return;
  char at[400];
  f->wrong = true;
  f->check = check;
  f->first = where;
  values_describe(j->t, where, at, sizeof at);
  (void)snprintf(f->message, sizeof f->message, "%s %s: RMS of the error is %.3g times what is allowed", check, at,
                 ratio);
}

/* Tells whether the output has a part for each head of attention. */
static bool by_heads(const trial *t, const trial_output *out) {
  const logical *l = t->first.logical;
  return t->one->op->form == ASSAY_PAGED && l->H_kv > 0 && l->H % l->H_kv == 0 && out->width % l->H == 0;
}

static void judge_row(judging *j, int64_t r) {
  const trial *t = j->t;
  const trial_output *out = &t->output[j->o];
  const int64_t row = outputs_row(t, j->o, r);
  const double *value = t->expected[j->o].value + r * out->width, *sigma = t->expected[j->o].sigma + r * out->width;
  assay_load_f64_row(j->outputs->bits[j->o], out->dtype, row * out->width, 1, out->width, j->row);
  const logical *l = t->first.logical;
  const int64_t b = out->kind == OUTPUT_WHOLE ? 0 : t->first.request_of_row[row];
  j->at = r;
  tier2_sums *request = &j->request[b];
  const bool again = t->one->op->form == ASSAY_PLAIN &&
                     repeats_row(&j->repeated, t->expected[j->o].value, t->expected[j->o].sigma, out->width, r, b);
  for (int64_t first = 0; first < out->width; first += out->group) {
    tier2_sums group = {0};
    for (int64_t e = first; e < first + out->group; ++e) {
      const output_place where = {j->o, row, e};
      const double got = j->row[e];
      if (sigma[e] < 0)
        judge_bits(j, where, sigma[e] == ASSAY_MOVED ? (int64_t)value[e] : row * out->width + e);
      else if (out->exact && !(out->kind == OUTPUT_CACHE && sigma[e] > 0)) /* stored values may be rounded before */
        judge_exact(j, where, got, value[e]);
      else
        judge_calibrated(j, where, got, value[e], sigma[e], &group);
    }
    const int64_t alike = by_heads(t, out) && out->group == l->H ? l->H / l->H_kv : 1; /* an output of shape [N, H] */
    note_mean(j, (output_place){j->o, row, first}, "row", rms_ratio(j, &group, group.count / alike),
              &j->found->ratio_row);
    if (!again) tier2_add(request, &group);
  }
  for (int64_t e = 0; by_heads(t, out) && e < out->width; ++e)
    if (sigma[e] > 0) j->share[b * l->H_kv + e / (out->width / l->H_kv)] += sigma[e] * sigma[e];
  j->found->elements += out->width;
}

static int64_t independent_in(const judging *j, int64_t b) {
  const logical *l = j->t->first.logical;
  const trial_output *out = &j->t->output[j->o];
  if (!by_heads(j->t, out)) return j->request[b].count;
  return tier2_independent(&j->request[b], out->dtype, out->width, l->H, l->H_kv, j->share + b * l->H_kv);
}

static void judge_output(judging *j) {
  const trial *t = j->t;
  const logical *l = t->first.logical;
  j->floor = 0.5 * assay_ulp(0.0, t->output[j->o].dtype);
  memset(j->request, 0, (size_t)l->B * sizeof *j->request);
  memset(j->share, 0, (size_t)(l->B * l->H_kv) * sizeof *j->share);
  repeats_clear(&j->repeated);
  for (int64_t r = 0; r < outputs_judged(t, j->o); ++r) {
    judge_row(j, r);
    if (j->only_whether && j->found->wrong) return;
  }
  for (int64_t b = 0; b < l->B; ++b)
    if (j->request[b].count > 0)
      note_mean(j, (output_place){j->o, l->row_start[b], 0}, "request",
                rms_ratio(j, &j->request[b], independent_in(j, b)), &j->found->ratio_request);
}

/* Loads a row of all outputs one after the other. `from`: where each begins. */
static void load_outputs(const judging *j, int64_t row, double *values, const double **from) {
  for (int32_t o = 0; o < j->t->count; ++o) {
    const trial_output *out = &j->t->output[o];
    assay_load_f64_row(j->outputs->bits[o], out->dtype, row * out->width, 1, out->width, values);
    from[o] = values;
    values += out->width;
  }
}

/* Asks the rule of rows of each row in which the operator accepted a result: is what was accepted there one answer? */
static void judge_accepted(judging *j, int64_t rows, double *values) {
  const trial *t = j->t;
  const assay_row_rule *const rule = trial_row_rule(t->one->op);
  const double *from[ASSAY_MAX_OUTPUTS];
  char why[200], at[400];
  for (int64_t r = 0; r < rows && !j->found->wrong; ++r) {
    if (!j->accepted[r]) continue;
    const output_place where = {0, outputs_row(t, 0, r), 0};
    load_outputs(j, where.row, values, from);
    if (rule->fits(&t->first.call, &t->variant->contract, where.row, from, why, sizeof why)) continue;
    j->found->wrong = true;
    j->found->check = "exact";
    j->found->first = where;
    ++j->found->wrong_elements;
    raise_ratio(&j->found->ratio_element, (double)INFINITY);
    values_describe(t, where, at, sizeof at);
    (void)snprintf(j->found->message, sizeof j->found->message,
                   "%s: each result may stand there, but not all together: %s", at, why);
  }
}

static void judge_values(const trial *t, const outputs *got, bool only_whether, finding *found) {
  *found = (finding){.check = ""};
  judging j = {.t = t, .outputs = got, .found = found, .only_whether = only_whether};
  const bool ruled = trial_row_rule(t->one->op) != NULL;
  const int64_t rows = outputs_judged(t, 0);
  int64_t widest = 1, all = 1, most = rows;
  for (int32_t o = 0; o < t->count; ++o) {
    if (t->output[o].width > widest) widest = t->output[o].width;
    if (outputs_judged(t, o) > most) most = outputs_judged(t, o);
    all += t->output[o].width;
  }
  j.request = calloc((size_t)t->first.logical->B + 1, sizeof *j.request);
  j.share = calloc((size_t)(t->first.logical->B * t->first.logical->H_kv) + 1, sizeof *j.share);
  j.row = malloc((size_t)(ruled ? all : widest) * sizeof *j.row);
  if (ruled) j.accepted = calloc((size_t)rows + 1, 1);
  const bool room = repeats_open(&j.repeated, most);
  if (!room || j.request == NULL || j.share == NULL || j.row == NULL || (ruled && j.accepted == NULL)) {
    repeats_close(&j.repeated);
    free(j.request);
    free(j.share);
    free(j.row);
    free(j.accepted);
    found->wrong = found->no_memory = true;
    found->check = "host";
    (void)snprintf(found->message, sizeof found->message, "judge: out of memory");
    return;
  }
  for (j.o = 0; j.o < t->count && !(only_whether && found->wrong); ++j.o)
    judge_output(&j);
  if (ruled) judge_accepted(&j, rows, j.row);
  repeats_close(&j.repeated);
  free(j.request);
  free(j.share);
  free(j.row);
  free(j.accepted);
  if (!found->wrong || found->message[0] != '\0' || only_whether) return;

  char at[400], wrong[240];
  values_describe(t, found->first, at, sizeof at);
  say_wrong(t->output[found->first.output].dtype, j.got, j.expected, j.allowed, wrong, sizeof wrong);
  (void)snprintf(found->message, sizeof found->message, "%s: %s; %lld of %lld elements wrong", at, wrong,
                 (long long)found->wrong_elements, (long long)found->elements);
}

void values_judge(const trial *t, const outputs *got, finding *found) {
  judge_values(t, got, false, found);
}

void values_ask(const trial *t, const outputs *got, finding *found) {
  judge_values(t, got, true, found);
}
