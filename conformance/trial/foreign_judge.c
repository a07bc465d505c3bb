/* foreign_judge.c: tiers 1 and 2 over dense results (docs/judging.md). Bounds are written so that NaN fails. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "foreign_internal.h"
#include "repeats.h"
#include "say.h"
#include "tier2.h"

typedef long long ll; /* for messages */

typedef struct judging {
  const foreign_call *f;
  int32_t output;
  const assay_tensor *about;
  const unsigned char *got, *before; /* before: the contents before the call */
  bool exact, cache, new_rows;       /* cache: judges the new tokens' rows, where slots say */
  double floor;                      /* half a subnormal ulp of the type */
  foreign_verdict *verdict;
} judging;

static void raise_to(double *largest, double value) {
  if (!(value <= *largest)) *largest = assay_is_nan(value) ? (double)INFINITY : value;
}

static bool same_bits(const judging *j, int64_t at, int64_t from) {
  const size_t size = (size_t)assay_dtype_size(j->about->dtype);
  return memcmp(j->got + (size_t)at * size, j->before + (size_t)from * size, size) == 0;
}

/* Writes the place of an element as indices of the whole tensor. */
static void describe(const judging *j, int64_t at, char *text, size_t size) {
  const assay_tensor *t = j->about;
  const char *name = j->f->op->args[j->f->output[j->output]].name;
  int64_t rest = at, index[ASSAY_MAX_RANK];
  if (j->new_rows) {
    const pool_axes p = foreign_pool(j->f, j->f->output[j->output]);
    (void)snprintf(text, size, "%s, new row %lld, head %lld, channel %lld", name, (ll)(at / p.channels / p.heads),
                   (ll)(at / p.channels % p.heads), (ll)(at % p.channels));
    return;
  }
  for (int32_t a = t->rank - 1; a >= 0; --a) {
    index[a] = t->shape[a] > 0 ? rest % t->shape[a] : 0;
    rest = t->shape[a] > 0 ? rest / t->shape[a] : 0;
  }
  size_t used = (size_t)snprintf(text, size, "%s[", name);
  for (int32_t a = 0; a < t->rank && used < size; ++a)
    used += (size_t)snprintf(text + used, size - used, "%s%lld", a > 0 ? ", " : "", (ll)index[a]);
  if (used < size) (void)snprintf(text + used, size - used, "]");
}

static void note(judging *j, int64_t at, double got, double expected, double allowed) {
  foreign_verdict *v = j->verdict;
  char where[160], wrong[200];
  ++v->wrong_elements;
  if (v->wrong) return;
  v->wrong = true;
  v->first = at;
  v->first_got = got, v->first_expected = expected, v->first_allowed = allowed;
  describe(j, at, where, sizeof where);
  say_wrong(j->about->dtype, got, expected, allowed, wrong, sizeof wrong);
  (void)snprintf(v->message, sizeof v->message, "%s: %s", where, wrong);
}

/* Notes a 16-bit value that no number near the expected one rounds to (check rounding). */
static void note_rounding(judging *j, int64_t at, double got, double expected, double ratio) {
  foreign_verdict *v = j->verdict;
  char where[160];
  ++v->wrong_elements;
  if (v->wrong) return;
  v->wrong = true;
  v->first = at;
  v->first_got = got, v->first_expected = expected;
  describe(j, at, where, sizeof where);
  (void)snprintf(v->message, sizeof v->message,
                 "%s: got %.9g, expected %.9g rounded once to %s, which is %.9g: rounding %.3g times the allowed",
                 where, got, expected, assay_dtype_name(j->about->dtype), assay_round_f64(expected, j->about->dtype),
                 ratio);
}

static double narrowed(double value, assay_dtype dtype) {
  return dtype == ASSAY_I32 || dtype == ASSAY_I64 ? value : assay_round_f64(value, dtype);
}

/* Tells whether both are NaN. All NaN count as one, except in fp8, where the definition says which bits. */
static bool same_nan(const judging *j, int64_t at, double got, double expected) {
  if (!assay_is_nan(got) || !assay_is_nan(expected)) return false;
  return assay_dtype_size(j->about->dtype) != 1 || j->got[at] == 0x7F;
}

/* Tells whether a copy has lost the sign of a zero (docs/definitions.md, section 9). */
static bool lost_sign(const judging *j, int64_t element, double got, double value) {
  const foreign_call *f = j->f;
  if (!(got == 0 && value == 0) || signbit(got) == signbit(value) || f->op->copies == NULL) return false;
  return f->op->copies(&(assay_call){f->op, f->arg, f->param}, j->output, element);
}

/* Judges an element. `element` counts over the output's rows as the reference gives them, `at` over the tensor. */
static void judge_element(judging *j, int64_t element, int64_t at, tier2_sums *group) {
  const foreign_call *f = j->f;
  const assay_dtype dtype = j->about->dtype;
  const double value = f->expected[j->output].value[element], sigma = f->expected[j->output].sigma[element];
  const double got = foreign_load(j->got, dtype, at);
  ++j->verdict->elements;
  if (sigma < 0) { /* the bits from before the call */
    const int64_t from = sigma == ASSAY_MOVED ? (int64_t)value : at;
    if (!same_bits(j, at, from)) {
      raise_to(&j->verdict->ratio_element, (double)INFINITY);
      note(j, at, got, foreign_load(j->before, dtype, from), 0);
    }
    return;
  }
  const double rounded = narrowed(value, dtype), target = sigma > 0 ? value : rounded;
  const bool exact = (j->exact && !(j->cache && sigma > 0)) || !assay_is_finite(target);
  const double allowed = exact ? 0 : f->op->kappa_element * sigma + j->floor;
  const double error = exact ? fabs(got - rounded) : tier2_error(got, target, allowed, dtype);
  const double rounding = exact || !(sigma > 0) ? 0 : tier2_rounding(got, target, sigma, f->op->kappa_element, dtype);
  const bool within = (exact ? got == rounded || same_nan(j, at, got, rounded) : error <= allowed) &&
                      !lost_sign(j, element, got, value);
  const bool right = within && rounding <= 1;
  if (!right && f->op->accepts != NULL &&
      f->op->accepts(&(assay_call){f->op, f->arg, f->param}, &f->contract, j->output, element, got))
    return;
  if (!right || !exact) raise_to(&j->verdict->ratio_element, exact ? (double)INFINITY : error / allowed);
  if (!right || !exact) raise_to(&j->verdict->largest, error);
  if (!exact) raise_to(&j->verdict->ratio_element, rounding);
  if (within && !right)
    note_rounding(j, at, got, target, rounding);
  else if (!right)
    note(j, at, got, exact ? rounded : target, allowed);
  if (!exact) tier2_note(group, error, sigma, target, dtype);
}

static void judge_mean(judging *j, const tier2_sums *s, int64_t independent, const char *what, int64_t at,
                       double *worst) {
  int32_t row;
  double over_sigma;
  const double ratio = tier2_mean(s, j->f->op->name, j->about->dtype, independent, j->floor, &row, &over_sigma);
  raise_to(worst, ratio);
  if (ratio <= 1 || j->verdict->wrong) return; /* NaN goes on */
  char where[160];
  j->verdict->wrong = true;
  j->verdict->first = at;
  describe(j, at, where, sizeof where);
  (void)snprintf(j->verdict->message, sizeof j->verdict->message,
                 "%s from %s on, %lld elements: RMS of the error is %.3g times the allowed", what, where, (ll)s->count,
                 ratio);
}

/* Returns the end of the rows of the request that has `row`. Without cu_q a request has one row, unless the
 * manifest says otherwise. A plain operator's
 * rows are judged together. */
static int64_t request_end(const judging *j, int64_t row, int64_t rows) {
  const foreign_call *f = j->f;
  if (f->op->form == ASSAY_PLAIN) return rows;
  for (int64_t b = 0; b < f->requests; ++b)
    if (f->request_end[b] > row) return f->request_end[b] < rows ? f->request_end[b] : rows;
  for (int32_t i = 0; i < f->op->arg_count; ++i) {
    if (f->op->args[i].content != ASSAY_CU_Q || f->arg[i].data == NULL) continue;
    const int32_t *bound = f->arg[i].data;
    for (int64_t b = 0; b + 1 < f->arg[i].shape[0]; ++b)
      if (bound[b + 1] > row) return bound[b + 1] < rows ? bound[b + 1] : rows;
    return rows;
  }
  return row + 1;
}

/* Returns a dimension of the call by its name, from the axis that has it; 0 where none has. */
static int64_t dim_of(const foreign_call *f, const char *name) {
  const double layout = assay_find_param(&(assay_call){f->op, f->arg, f->param}, "layout");
  const size_t length = strlen(name);
  for (int32_t i = 0; i < f->op->arg_count; ++i) {
    const char *at = f->op->args[i].shape;
    for (int skip = 0; strchr(at, '|') != NULL && skip < (int)layout; ++skip)
      at = strchr(at, '|') + 1;
    for (int32_t a = 0; a < f->arg[i].rank && f->arg[i].data != NULL && *at != '\0' && *at != '|'; ++a) {
      const size_t n = strcspn(at, ",|");
      if (n == length && memcmp(at, name, n) == 0) return f->arg[i].shape[a];
      at += n + (at[n] == ',');
    }
  }
  return 0;
}

/* Returns the place in the result of an element of the reference's rows; -1 for a pad row of a cache. */
static int64_t place_of(const judging *j, const pool_axes *p, int64_t row, int64_t width, int64_t e) {
  const foreign_call *f = j->f;
  if (!j->cache) return row * width + e;
  const int64_t slot = ((const int64_t *)foreign_slots(f)->data)[row];
  if (slot < 0) return -1;
  if (j->new_rows) return row * width + e;
  return foreign_pool_place(p, slot - f->first_block[f->output[j->output]] * p->block_size, e / p->channels,
                            e % p->channels);
}

/* Checks that places which no slot names have their old bits. */
static void judge_rest(judging *j, const unsigned char *written, int64_t count) {
  for (int64_t at = 0; at < count; ++at) {
    if (written[at] || same_bits(j, at, at)) continue;
    raise_to(&j->verdict->ratio_element, (double)INFINITY);
    note(j, at, foreign_load(j->got, j->about->dtype, at), foreign_load(j->before, j->about->dtype, at), 0);
  }
}

static assay_status judge_rows(judging *j, assay_error *error) {
  const foreign_call *f = j->f;
  const int32_t arg = f->output[j->output];
  const int64_t rows = foreign_rows(f, j->output), width = foreign_width(f, j->output);
  const bool paged = f->op->form == ASSAY_PAGED;
  const int64_t H = paged && dim_of(f, "H") > 0 ? dim_of(f, "H") : 1, H_kv = paged ? dim_of(f, "H_kv") : 1;
  const bool by_heads = paged && H_kv > 0 && H % H_kv == 0 && width % H == 0;
  const pool_axes p = j->cache ? foreign_pool(f, arg) : (pool_axes){0};
  const int64_t last = j->cache ? p.channels : j->about->rank > 1 ? j->about->shape[j->about->rank - 1] : 1;
  const int64_t step = last > 0 ? last : 1, alike = by_heads && last == H ? H / H_kv : 1;
  int64_t count = j->cache && !j->new_rows ? j->about->shape[0] - f->first_block[arg] : 0;
  for (int32_t a = 1; a < j->about->rank; ++a)
    count *= j->about->shape[a];
  unsigned char *written = calloc((size_t)count + 1, 1);
  double *share = calloc((size_t)(H_kv > 0 ? H_kv : 1), sizeof *share);
  repeats repeated = {0};
  if (!repeats_open(&repeated, rows) || written == NULL || share == NULL) {
    repeats_close(&repeated);
    free(written);
    free(share);
    return assay_fail(error, ASSAY_ERR_MEMORY, "judge: out of memory");
  }
  for (int64_t row = 0; row < rows;) {
    const int64_t end = request_end(j, row, rows), begin = row;
    tier2_sums request = {0};
    memset(share, 0, (size_t)(H_kv > 0 ? H_kv : 1) * sizeof *share);
    for (; row < end; ++row) {
      const bool again = !paged && repeats_row(&repeated, f->expected[j->output].value, f->expected[j->output].sigma,
                                               width, row, begin);
      for (int64_t first = 0; first < width; first += step) {
        tier2_sums group = {0};
        for (int64_t e = first; e < first + step; ++e) {
          const int64_t at = place_of(j, &p, row, width, e);
          const double sigma = f->expected[j->output].sigma[row * width + e];
          if (at < 0) continue;
          if (count > 0) written[at] = 1;
          judge_element(j, row * width + e, at, &group);
          if (by_heads && sigma > 0) share[e / (width / H_kv)] += sigma * sigma;
        }
        judge_mean(j, &group, group.count / alike, "row", row * width + first, &j->verdict->ratio_row);
        if (!again) tier2_add(&request, &group);
      }
    }
    judge_mean(j, &request,
               by_heads ? tier2_independent(&request, j->about->dtype, width, H, H_kv, share) : request.count,
               "request", begin * width, &j->verdict->ratio_request);
  }
  judge_rest(j, written, count);
  repeats_close(&repeated);
  free(written);
  free(share);
  return ASSAY_OK;
}

assay_status foreign_judge(const foreign_call *f, int32_t output, const void *got, bool new_rows,
                           foreign_verdict *verdict, assay_error *error) {
  const int32_t arg = f->output[output];
  const assay_dtype dtype = f->arg[arg].dtype;
  const bool integer = dtype == ASSAY_I32 || dtype == ASSAY_I64, cache = foreign_is_cache(f, output);
  const bool follows = f->op->form == ASSAY_PLAIN || f->op->args[arg].dtypes[0] == '=';
  judging j = {.f = f,
               .output = output,
               .about = &f->arg[arg],
               .got = got,
               .before = f->owned[arg],
               .exact = integer || cache || (f->exact && follows),
               .cache = cache,
               .new_rows = new_rows && cache,
               .floor = integer ? 0 : 0.5 * assay_ulp(0.0, dtype),
               .verdict = verdict};
  memset(verdict, 0, sizeof *verdict);
  verdict->first = -1;
  verdict->first_got = verdict->first_expected = verdict->first_allowed = (double)NAN;
  return judge_rows(&j, error);
}
