/* distribution.c: the law `distribution`: rows that are alike, except in their numbers, draw every answer as often as
 * they should. One row of the case is repeated, with a seed, a step and a request of its own for each copy. Answers
 * that few copies should have are counted as one. The sum of (found - expected)^2 / expected may be 7.5 standard
 * deviations above its mean, in the normal scale of limit_of. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "conformance/generate/generate.h"
#include "conformance/trial/trial.h"
#include "laws_internal.h"

/* simt runs thousands of times slower than a GPU: its calls stay small. */
enum { SIMT_ELEMENTS = 1 << 14, SIMT_ROWS = 256, CUDA_ELEMENTS = 1 << 24, CUDA_ROWS = 16384, LEAST_ROWS = 128 };
static const double least_expected = 10; /* copies that an answer of its own should have */
static const double deviations = 7.5;

bool distribution_applies(const trial *t) {
  const assay_op *op = t->one->op;
  return trial_has_law(t, "distribution") && op->chances != NULL && op->row_dim != NULL && t->first.rows > 0;
}

/* Tells whether argument `arg` is one by which copies draw apart. */
static bool draws(const assay_op *op, int32_t arg) {
  const char *name = op->args[arg].name;
  const size_t n = strlen(name);
  for (const char *at = op->draw_args; *at != '\0'; at += *at == ',') {
    const size_t m = strcspn(at, ",");
    if (m == n && memcmp(at, name, n) == 0) return true;
    at += m;
  }
  return false;
}

/* Gives every copy a number of its own. */
static void number_copies(const trial *t, int32_t arg, assay_dtype dtype, unsigned char *value, int64_t copies) {
  assay_rng rng = {logical_hash(t->one, STREAM_DISTRIBUTION), (uint64_t)arg, 0};
  for (int64_t i = 0; i < copies; ++i) {
    const int64_t wide = (int64_t)assay_rng_u64(&rng);
    const int32_t narrow = (int32_t)(i & INT32_MAX);
    if (dtype == ASSAY_I64)
      memcpy(value + i * 8, &wide, 8);
    else
      memcpy(value + i * 4, &narrow, 4);
  }
}

/* Writes row `row` of the case to every copy. Returns false where an argument has another form in a larger call. */
static bool repeat(const trial *t, const trial *big, int64_t row, int64_t copies) {
  const assay_op *op = t->one->op;
  for (int32_t i = 0; i < op->arg_count; ++i) {
    const assay_tensor *from = &t->first.arg[i];
    unsigned char *const to = big->first.logical->values[i];
    const unsigned char *const own = t->first.logical->values[i];
    const int32_t axis = place_row_axis(&t->first, i);
    if (own == NULL && to == NULL) continue;
    if (own == NULL || to == NULL || (axis > 0)) return false;
    int64_t bytes = assay_dtype_size(from->dtype);
    for (int32_t a = axis + 1; a < from->rank; ++a)
      bytes *= from->shape[a];
    if (axis == 0 && draws(op, i))
      number_copies(t, i, from->dtype, to, copies);
    else if (axis == 0)
      for (int64_t c = 0; c < copies; ++c)
        memcpy(to + c * bytes, own + row * bytes, (size_t)bytes);
    else
      memcpy(to, own, (size_t)bytes);
  }
  return true;
}

/* Makes the call. Returns false where there is none, or where the variant declines. */
static bool prepare(const trial *t, trial *big, int64_t row, int64_t copies, case_result *unused) {
  assay_error error = {""};
  if (!trial_shape(big, unused) || big->count != t->count) return false;
  assay_status status = image_fill(&big->first, NULL, &error);
  if (status == ASSAY_OK && !repeat(t, big, row, copies)) return false;
  if (status == ASSAY_OK) status = image_fill(&big->first, NULL, &error);
  if (status == ASSAY_ERR_MEMORY) return verdict_no_memory(unused);
  if (status != ASSAY_OK || t->one->op->check(&big->first.call, &error) != ASSAY_OK) return false;
  return trial_takes(big, &big->first, unused);
}

/* Returns the limit of a sum of `freedom` squares of normal numbers (Wilson and Hilferty's cube). */
static double limit_of(double freedom) {
  const double a = 2 / (9 * freedom), root = 1 - a + deviations * sqrt(a);
  return freedom * root * root * root;
}

/* Compares counts [answers] with the chances. */
static bool judge(const double *chance, const int64_t *count, int64_t answers, int64_t copies, case_result *result) {
  double sum = 0, freedom = -1, rare = 0, worst = 0;
  int64_t rarely = 0, worst_at = 0;
  for (int64_t i = 0; i < answers; ++i) {
    const double expected = chance[i] * (double)copies;
    if (chance[i] == 0 && count[i] > 0) {
      verdict_set(result, VERDICT_FAIL, "distribution", "answer %lld came %lld times in %lld copies, allowed 0",
                  (long long)i, (long long)count[i], (long long)copies);
      return false;
    }
    if (expected < least_expected) {
      rare += expected;
      rarely += count[i];
      continue;
    }
    const double off = (double)count[i] - expected, share = off * off / expected;
    sum += share;
    freedom += 1;
    if (share > worst) worst_at = i;
    if (share > worst) worst = share;
  }
  if (rare >= least_expected) {
    sum += ((double)rarely - rare) * ((double)rarely - rare) / rare;
    freedom += 1;
  }
  if (freedom < 1 || sum <= limit_of(freedom)) return true;
  verdict_set(result, VERDICT_FAIL, "distribution",
              "answer %lld came %lld times in %lld copies of a row, expected %.1f; the sum over %d answers is %.1f, "
              "allowed %.1f",
              (long long)worst_at, (long long)count[worst_at], (long long)copies, chance[worst_at] * (double)copies,
              (int)freedom + 1, sum, limit_of(freedom));
  return false;
}

static bool draw_copies(const trial *t, const trial *big, const double *chance, int64_t answers, int64_t copies,
                        case_result *result) {
  outputs got = {{NULL}};
  int64_t *count = calloc((size_t)answers, sizeof *count);
  bool good = (outputs_make(big, &got) && count != NULL) || verdict_no_memory(result);
  if (good) good = device_run(big, &big->first, t->one->seed, &got, result);
  for (int64_t i = 0; i < copies && good; ++i) {
    const double answer = assay_load_f64(got.bits[0], t->output[0].dtype, i);
    if (answer >= 0 && answer < (double)answers)
      ++count[(int64_t)answer];
    else
      verdict_set(result, VERDICT_FAIL, "distribution", "copy %lld has the answer %.9g, allowed 0 to %lld",
                  (long long)i, answer, (long long)answers - 1);
    good = result->verdict == VERDICT_PASS;
  }
  good = good && judge(chance, count, answers, copies, result);
  if (good) result_add_law(result, "distribution");
  outputs_free(&got);
  free(count);
  return good;
}

static int64_t copies_of(const trial *t, int64_t answers) {
  const bool simt = strcmp(t->one->device, "simt") == 0;
  const int64_t copies = (simt ? SIMT_ELEMENTS : CUDA_ELEMENTS) / answers, most = simt ? SIMT_ROWS : CUDA_ROWS;
  return copies < LEAST_ROWS ? 0 : copies < most ? copies : most;
}

/* Tells whether two answers or more have enough copies to be counted by themselves. Otherwise nothing is compared. */
static bool is_comparable(const double *chance, int64_t answers, int64_t copies) {
  int64_t common = 0;
  for (int64_t i = 0; i < answers; ++i)
    common += chance[i] * (double)copies >= least_expected;
  return common >= 2;
}

/* Begins at a drawn row and takes the first whose answers can be compared. The law is not asked where there is none. */
bool distribution_check(const trial *t, const outputs *base, case_result *result) {
  const assay_op *op = t->one->op;
  const int64_t answers = op->chances(&t->first.call, &t->variant->contract, 0, NULL), rows = t->first.rows;
  const int64_t copies = answers > 0 ? copies_of(t, answers) : 0;
  double *chance = answers > 0 ? calloc((size_t)answers, sizeof *chance) : NULL;
  bool good = true, done = copies == 0;
  (void)base;
  if (answers > 0 && chance == NULL) return verdict_no_memory(result);
  for (int64_t i = 0; i < rows && !done; ++i) {
    const int64_t row = (int64_t)((logical_hash(t->one, STREAM_DISTRIBUTION) + (uint64_t)i) % (uint64_t)rows);
    if (op->chances(&t->first.call, &t->variant->contract, row, chance) == 0) continue;
    if (!is_comparable(chance, answers, copies)) continue;
    assay_case one = *t->one;
    one.rows = 0;
    for (int32_t d = 0; d < op->dim_count; ++d)
      if (strcmp(op->dims[d].name, op->row_dim) == 0) one.dim[d] = copies;
    case_result unused = {.verdict = VERDICT_PASS};
    trial big = {.one = &one, .variant = t->variant, .device = t->device, .facts = t->facts};
    done = prepare(t, &big, row, copies, &unused);
    good = done ? draw_copies(t, &big, chance, answers, copies, result) : verdict_take_host(result, &unused);
    trial_free(&big);
    done = true;
  }
  free(chance);
  return good;
}
