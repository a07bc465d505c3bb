/* foreign_judge.c: tiers 1 and 2 over dense results (docs/judging.md). Bounds are written so that NaN fails. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "foreign_parts.h"
#include "kappa.h"

typedef long long ll; /* for messages */

typedef struct judging {
  const foreign_call *f;
  int32_t output;
  const assay_tensor *about;
  const unsigned char *got, *before; /* before: of an argument that the call changes */
  bool exact, new_rows;
  double floor; /* half a subnormal ulp of the type */
  foreign_verdict *made;
} judging;

typedef struct sums {
  double error2, sigma2;
  int64_t count;
} sums;

static void raise_to(double *largest, double value) {
  if (!(value <= *largest)) *largest = assay_is_nan(value) ? (double)INFINITY : value;
}

static bool same_bits(const judging *j, int64_t at, int64_t from) {
  const size_t size = (size_t)assay_dtype_size(j->about->dtype);
  return memcmp(j->got + (size_t)at * size, j->before + (size_t)from * size, size) == 0;
}

/* Where an element is, as indices of the whole tensor. */
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
  foreign_verdict *v = j->made;
  char where[160];
  ++v->wrong_elements;
  if (v->wrong) return;
  v->wrong = true;
  describe(j, at, where, sizeof where);
  if (allowed > 0)
    (void)snprintf(v->message, sizeof v->message,
                   "%s: got %.9g, expected %.9g, error %.3g is %.3g times the allowed %.3g", where, got, expected,
                   fabs(got - expected), fabs(got - expected) / allowed, allowed);
  else
    (void)snprintf(v->message, sizeof v->message, "%s: got %.9g, expected exactly %.9g", where, got, expected);
}

static double narrowed(double value, assay_dtype dtype) {
  return dtype == ASSAY_I32 || dtype == ASSAY_I64 ? value : assay_round_f64(value, dtype);
}

/* |got - expected| where the two are finite; what may round to Inf in the type may be Inf. */
static double error_of(double got, double expected, double allowed, assay_dtype dtype) {
  if (assay_is_finite(got) || assay_is_nan(got) || !assay_is_finite(expected)) return fabs(got - expected);
  const double reach = expected + (got > 0 ? allowed : -allowed);
  return narrowed(reach, dtype) == got ? 0.0 : (double)INFINITY;
}

/* NaN is one NaN, but for fp8, where the definition says which. */
static bool same_nan(const judging *j, int64_t at, double got, double expected) {
  if (!assay_is_nan(got) || !assay_is_nan(expected)) return false;
  return assay_dtype_size(j->about->dtype) != 1 || j->got[at] == 0x7F;
}

/* `element` counts over the output's rows as the reference gives them, `at` over the tensor. */
static void judge_element(judging *j, int64_t element, int64_t at, sums *group) {
  const foreign_call *f = j->f;
  const assay_dtype dtype = j->about->dtype;
  const double value = f->expected[j->output].value[element], sigma = f->expected[j->output].sigma[element];
  const double got = foreign_load(j->got, dtype, at);
  ++j->made->elements;
  if (sigma < 0) { /* bits that were there before */
    const int64_t from = sigma == ASSAY_MOVED ? (int64_t)value : at;
    if (!same_bits(j, at, from)) {
      raise_to(&j->made->ratio_element, (double)INFINITY);
      note(j, at, got, foreign_load(j->before, dtype, from), 0);
    }
    return;
  }
  const double rounded = narrowed(value, dtype);
  const bool equal = got == rounded || same_nan(j, at, got, rounded);
  if (!equal && f->op->accepts != NULL &&
      f->op->accepts(&(assay_call){f->op, f->arg, f->param}, &f->contract, j->output, element, got))
    return;
  if (j->exact || sigma == 0 || !assay_is_finite(value)) {
    if (!equal) {
      raise_to(&j->made->ratio_element, (double)INFINITY);
      raise_to(&j->made->largest, fabs(got - rounded));
      note(j, at, got, rounded, 0);
    }
    return;
  }
  const double allowed = f->op->kappa_element * sigma + j->floor, error = error_of(got, value, allowed, dtype);
  raise_to(&j->made->ratio_element, error / allowed);
  raise_to(&j->made->largest, error);
  if (!(error <= allowed)) note(j, at, got, value, allowed);
  group->error2 += error * error;
  group->sigma2 += sigma * sigma;
  ++group->count;
}

/* A mean over elements; `alike`: that many of them may have one error between them. */
static void judge_mean(judging *j, const sums *s, int64_t alike, const char *what, int64_t at, double *worst) {
  if (s->count == 0) return;
  const int64_t independent = s->count > alike ? s->count / alike : 1;
  const kappa_limit *limit = &kappa_table[kappa_row(j->f->op->name, j->about->dtype, independent)];
  const double sigma = sqrt(s->sigma2 / (double)s->count), error = sqrt(s->error2 / (double)s->count);
  const double ratio = error / (limit->rms * sigma + j->floor);
  raise_to(worst, ratio);
  if (ratio <= 1 || j->made->wrong) return; /* NaN goes on */
  char where[160];
  j->made->wrong = true;
  describe(j, at, where, sizeof where);
  (void)snprintf(j->made->message, sizeof j->made->message,
                 "%s from %s on, %lld elements: RMS of the error %.3g is %.3g times the allowed", what, where,
                 (ll)s->count, error, ratio);
}

static void add(sums *to, const sums *more) {
  to->error2 += more->error2;
  to->sigma2 += more->sigma2;
  to->count += more->count;
}

/* New rows as the reference says, every other element as it was. */
static assay_status judge_cache(judging *j, assay_error *error) {
  const foreign_call *f = j->f;
  const int32_t arg = f->output[j->output];
  const pool_axes p = foreign_pool(f, arg);
  const assay_tensor *slots = foreign_slots(f);
  int64_t count = j->new_rows ? 0 : j->about->shape[0] - f->first_block[arg];
  for (int32_t a = 1; a < j->about->rank; ++a)
    count *= j->about->shape[a];
  unsigned char *written = calloc((size_t)count + 1, 1);
  if (written == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "judge: out of memory");
  for (int64_t n = 0; n < slots->shape[0]; ++n) {
    const int64_t slot = ((const int64_t *)slots->data)[n] - f->first_block[arg] * p.block_size;
    sums group = {0, 0, 0};
    if (((const int64_t *)slots->data)[n] < 0) continue;
    for (int64_t i = 0; i < p.heads * p.channels; ++i) {
      const int64_t element = n * p.heads * p.channels + i;
      const int64_t at = j->new_rows ? element : foreign_pool_place(&p, slot, i / p.channels, i % p.channels);
      if (!j->new_rows) written[at] = 1;
      judge_element(j, element, at, &group);
    }
  }
  for (int64_t at = 0; at < count; ++at) {
    if (written[at] || same_bits(j, at, at)) continue;
    raise_to(&j->made->ratio_element, (double)INFINITY);
    note(j, at, foreign_load(j->got, j->about->dtype, at), foreign_load(j->before, j->about->dtype, at), 0);
  }
  free(written);
  return ASSAY_OK;
}

/* Behind the last row of the request that `row` belongs to: without cu_q a request has one row. A plain operator's
 * rows are judged together. */
static int64_t request_end(const judging *j, int64_t row, int64_t rows) {
  const foreign_call *f = j->f;
  if (f->op->form == ASSAY_PLAIN) return rows;
  for (int32_t i = 0; i < f->op->arg_count; ++i) {
    if (f->op->args[i].content != ASSAY_CU_Q || f->arg[i].data == NULL) continue;
    const int32_t *bound = f->arg[i].data;
    for (int64_t b = 0; b + 1 < f->arg[i].shape[0]; ++b)
      if (bound[b + 1] > row) return bound[b + 1] < rows ? bound[b + 1] : rows;
    return rows;
  }
  return row + 1;
}

/* Heads that read one kv head: with a single key they have one error. */
static int64_t heads_alike(const judging *j) {
  const foreign_call *f = j->f;
  for (int32_t i = 0; i < f->op->arg_count; ++i) {
    if (f->op->args[i].content != ASSAY_K_CACHE || f->arg[i].data == NULL || j->about->rank < 2) continue;
    const int64_t heads = foreign_pool(f, i).heads;
    return heads > 0 && j->about->shape[1] > heads ? j->about->shape[1] / heads : 1;
  }
  return 1;
}

static void judge_rows(judging *j) {
  const int64_t rows = foreign_rows(j->f, j->output), width = foreign_width(j->f, j->output), alike = heads_alike(j);
  const int64_t last = j->about->rank > 1 ? j->about->shape[j->about->rank - 1] : 1, step = last > 0 ? last : 1;
  for (int64_t row = 0; row < rows;) {
    const int64_t end = request_end(j, row, rows), begin = row * width;
    sums request = {0, 0, 0};
    for (; row < end; ++row)
      for (int64_t first = row * width; first < (row + 1) * width; first += step) {
        sums group = {0, 0, 0};
        for (int64_t e = first; e < first + step; ++e)
          judge_element(j, e, e, &group);
        judge_mean(j, &group, 1, "row", first, &j->made->ratio_row);
        add(&request, &group);
      }
    judge_mean(j, &request, alike, "request", begin, &j->made->ratio_request);
  }
}

assay_status foreign_judge(const foreign_call *f, int32_t output, const void *got, bool new_rows, foreign_verdict *made,
                           assay_error *error) {
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
               .new_rows = new_rows && cache,
               .floor = integer ? 0 : 0.5 * assay_ulp(0.0, dtype),
               .made = made};
  memset(made, 0, sizeof *made);
  if (cache) return judge_cache(&j, error);
  judge_rows(&j);
  return ASSAY_OK;
}
