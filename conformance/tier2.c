/* tier2.c: bounds are written so that NaN fails. */
#include "tier2.h"

#include <math.h>

#include "core/dtype.h"
#include "kappa.h"

double tier2_error(double got, double expected, double allowed, assay_dtype dtype) {
  if (assay_is_finite(got) || assay_is_nan(got) || !assay_is_finite(expected)) return fabs(got - expected);
  const double reach = expected + (got > 0 ? allowed : -allowed);
  return assay_round_f64(reach, dtype) == got ? 0.0 : (double)INFINITY;
}

void tier2_note(tier2_sums *sums, double error, double sigma, double value, assay_dtype dtype) {
  const double ulp = assay_ulp(value, dtype);
  sums->error2 += error * error;
  sums->sigma2 += sigma * sigma;
  sums->sigma4 += sigma * sigma * sigma * sigma;
  sums->own2 += ulp * ulp / 12;
  if (sigma > 0) sums->open2 += ulp * ulp / 12;
  /* What is off by one ulp or none has just that for sigma (norm_store of the references); or half of it, downwards
   * from a power of two. */
  int exponent;
  const double step = fabs(frexp(value, &exponent)) > 0.5 || !(sigma < ulp) ? ulp : ulp / 2;
  const bool stepped = !(sigma < step || sigma > step);
  if (sigma > 0 && !stepped) {
    sums->free2 += sigma * sigma;
    sums->free_own2 += ulp * ulp / 12;
  }
  ++sums->count;
}

void tier2_add(tier2_sums *sums, const tier2_sums *more) {
  sums->error2 += more->error2;
  sums->sigma2 += more->sigma2;
  sums->sigma4 += more->sigma4;
  sums->own2 += more->own2;
  sums->open2 += more->open2;
  sums->free2 += more->free2;
  sums->free_own2 += more->free_own2;
  sums->count += more->count;
}

/* The limits of 16-bit outputs are for means that their own rounding makes: many errors, independent of each other.
 * Where a quarter of the variance or more is not its own (a score that cancels, under one key; a weight that was
 * rounded to 16 bits), one error moves all elements together as it does in f32: by sqrt(3) of its part, which is
 * sqrt(1.5) of all at a quarter. So it does where this is true of the elements that have most of the variance, the
 * others being known exactly (a row's value that cancels against its bias): what those would round is no part of it. */
static assay_dtype scatters_as(const tier2_sums *sums, assay_dtype dtype) {
  const bool shared = sums->own2 < 0.75 * sums->sigma2;
  const bool coarse = sums->free2 > 0.5 * sums->sigma2 && sums->free_own2 < 0.75 * sums->free2;
  return shared || coarse ? ASSAY_F32 : dtype;
}

static double worth(const tier2_sums *sums) {
  return sums->sigma4 > 0 ? sums->sigma2 / sums->sigma4 * sums->sigma2 : (double)sums->count;
}

/* Where the variances are worth less than four elements (heavy tails), hardly anything is averaged: one element's own
 * rounding and a common error reach sqrt(3) times the sum of both parts' roots, which is 2.37 at a quarter, 2.07 at a
 * twentieth. The row is a single draw then, and has the wider of both limits. So it is where the rest of the row is
 * known exactly and only looks as if it scattered; but elements off by none or one ulp, with an ulp for sigma (own
 * rounding a twelfth), reach 1 at most and keep their limit. */
static bool is_single(const tier2_sums *sums) {
  const bool shared = sums->own2 < 0.95 * sums->sigma2;
  const bool few = sums->open2 > 0.1 * sums->sigma2 && sums->open2 < 0.95 * sums->sigma2;
  return worth(sums) < 4 && (shared || few);
}

static int32_t row_of(const tier2_sums *sums, const char *op, assay_dtype dtype, int64_t independent) {
  const int32_t row = kappa_row(op, dtype, independent > 1 ? independent : 1);
  if (dtype == ASSAY_F32 || !is_single(sums)) return row;
  const int32_t single = kappa_row(op, ASSAY_F32, 1);
  return kappa_table[single].rms > kappa_table[row].rms ? single : row;
}

double tier2_mean(const tier2_sums *sums, const char *op, assay_dtype dtype, int64_t independent, double floor,
                  int32_t *row, double *over_sigma) {
  *row = -1;
  *over_sigma = 0;
  if (sums->count == 0) return 0;
  const assay_dtype like = scatters_as(sums, dtype);
  if (like == ASSAY_F32 && worth(sums) + 0.5 < (double)independent) independent = (int64_t)(worth(sums) + 0.5);
  *row = row_of(sums, op, like, independent);
  const double sigma = sqrt(sums->sigma2 / (double)sums->count), error = sqrt(sums->error2 / (double)sums->count);
  if (sigma > floor) *over_sigma = error / sigma;
  return error / (kappa_table[*row].rms * sigma + floor);
}

int64_t tier2_independent(const tier2_sums *sums, assay_dtype dtype, int64_t width, int64_t H, int64_t H_kv,
                          const double *share) {
  int64_t independent = H > 0 ? sums->count * H_kv / H : sums->count;
  if (scatters_as(sums, dtype) != ASSAY_F32) return independent;
  double sum = 0, squares = 0;
  for (int64_t h = 0; h < H_kv; ++h) {
    sum += share[h];
    squares += share[h] * share[h];
  }
  const double heads = squares > 0 ? sum * sum / squares : 1;
  const int64_t channels = (int64_t)(heads * (double)width / (double)H + 0.5);
  if (channels < independent) independent = channels;
  return independent;
}
