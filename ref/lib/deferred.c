/* deferred.c: the factor of a row whose rms_norm is deferred to the product that reads it. */
#include "ref/lib/deferred.h"

#include <math.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/error_model.h"
#include "ref/lib/lattice.h"
#include "ref/lib/rowwise.h"

enum { PART = 8 }; /* channels of a part */

int64_t deferred_parts(int64_t K) {
  return (K + PART - 1) / PART;
}

static double part_of(const assay_tensor *squares, int64_t m, int64_t j) {
  return assay_load_f64(squares->data, ASSAY_F32, m * squares->shape[1] + j);
}

static double sum_of(const assay_tensor *squares, int64_t m, int64_t parts) {
  double sum = 0;
  for (int64_t j = 0; j < parts; ++j)
    sum += part_of(squares, m, j);
  return sum;
}

/* Adds eps, unless it is at most half an ulp of the mean in f32: no implementation has it then. */
static double root_of(double mean, double eps) {
  return eps > mean * 0x1p-24 ? mean + eps : mean;
}

static double factor_of(double mean, double eps) {
  return 1 / sqrt(root_of(mean, eps));
}

/* Returns the variance of rounding `value` to f32, relative to its square. */
static double of_value(double value) {
  const double whole = value * value;
  return whole > 0x1p-1000 ? storing_variance(value, ASSAY_F32) / whole : f32_variance;
}

/* Counts the sum, the division, + eps, the root, which halves the error of its argument, and the inverse. */
deferred_factor deferred_measure(const assay_tensor *squares, int64_t m, int64_t K, double eps,
                                 const assay_contract *contract) {
  const int64_t parts = deferred_parts(K);
  double size = 0, square = 0;
  for (int64_t j = 0; j < parts; ++j) {
    const double part = part_of(squares, m, j);
    size += part;
    square += part * part;
  }
  const double mean = size / (double)K, root = root_of(mean, eps), weight = mean / root, value = factor_of(mean, eps);
  const double of_sum = outlier_variance(size, square, (double)parts, 1) + of_value(mean);
  return (deferred_factor){value, (weight * weight * of_sum + of_value(root)) / 4 + of_value(1 / value) +
                                      of_value(value) + function_variance(contract->exp_ulp)};
}

double deferred_spoiled(const assay_tensor *squares, int64_t m, int64_t K, double eps, deferred_spoil spoil) {
  const int64_t row = spoil == DEFERRED_ROW_BEFORE && m > 0 ? m - 1 : m, parts = deferred_parts(K);
  const double all = sum_of(squares, row, parts), mean = all / (double)K;
  if (spoil == DEFERRED_LAST_PART_LOST) return factor_of(sum_of(squares, row, parts - 1) / (double)K, eps);
  /* Elsewhere eps is too small to be seen. */
  if (spoil == DEFERRED_EPS_LOST && eps >= mean / 8) return factor_of(mean, 0);
  if (spoil == DEFERRED_SUM_FOR_MEAN) return factor_of(all, eps);
  if (spoil == DEFERRED_ROOT_LOST) return 1 / root_of(mean, eps);
  if (spoil == DEFERRED_FACTOR_LOST) return 1;
  return factor_of(mean, eps);
}

float deferred_by_lanes(const assay_tensor *squares, int64_t m, int64_t K, double eps, int64_t lanes) {
  enum { MOST = 32 };
  float sum[MOST] = {0};
  if (lanes < 1 || lanes > MOST || (lanes & (lanes - 1)) != 0) return NAN;
  for (int64_t j = 0; j < deferred_parts(K); ++j)
    sum[j % lanes] += (float)part_of(squares, m, j);
  for (int64_t apart = lanes / 2; apart > 0; apart /= 2)
    for (int64_t lane = 0; lane < apart; ++lane)
      sum[lane] += sum[lane + apart];
  return 1.0f / sqrtf(sum[0] / (float)K + (float)eps);
}

assay_status deferred_admit(const assay_call *call, const assay_tensor *squares, int64_t m, int64_t K, double eps,
                            double *exact, assay_error *error) {
  const int64_t parts = deferred_parts(K);
  int low = LATTICE_ZERO, exponent;
  double size = 0;
  for (int64_t j = 0; j < parts; ++j) {
    const double part = part_of(squares, m, j);
    const int own = lattice_low(part);
    low = own < low ? own : low;
    size += fabs(part);
  }
  const double mean = size / (double)K;
  if (!lattice_admits(size, low, 24)) return rowwise_refuse(call, m, 0, "sum of squares", size, 0x1p24, error);
  if (frexp(mean, &exponent) != 0.5 || exponent % 2 == 0)
    return rowwise_refuse(call, m, 0, "mean of squares, which is no power of 4", mean, mean, error);
  if (eps > mean * 0x1p-24) return rowwise_refuse(call, m, 0, "eps", eps, mean * 0x1p-24, error);
  *exact = 1 / sqrt(mean);
  return ASSAY_OK;
}

/* Draws parts of rows whose mean is about 1/4, 1 or 16, and of one row in four mostly 0, or far from 1. Results of
 * f16 would be infinite beside rows of 0, and have none. On the lattice a part differs from its share by what the next
 * part makes up for. */
void deferred_fill(const assay_fill *fill, int32_t arg, int64_t K, double *value, int64_t count) {
  static const double scales[] = {0.25, 1, 16}, far[] = {0, 0x1p-110, 0x1p-40, 0x1p-16, 0x1p40, 0x1p104};
  const int64_t parts = deferred_parts(K);
  assay_rng rng = {fill->seed, 0x6465666500 + (uint64_t)arg, 0};
  int64_t more = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = i / parts, j = i % parts, width = j + 1 < parts ? PART : K - j * PART;
    const double unit = (double)width;
    if (fill->values != ASSAY_LATTICE) {
      assay_rng own = {fill->seed, 0x6465666600 + (uint64_t)arg, 4 * (uint64_t)row};
      const int64_t kind = assay_rng_range(&own, 0, 7);
      const bool is_far = row % 4 == 1 && kind < 6 && (kind > 3 || fill->call->arg[0].dtype != ASSAY_F16);
      value[i] = (is_far ? far[kind] : scales[row % 3]) * unit * (0.25 + 1.5 * assay_rng_unit(&rng));
      continue;
    }
    if (j % 2 == 0) more = j + 1 < parts ? assay_rng_range(&rng, 0, K - j * PART - PART < PART ? 0 : 7) : 0;
    const int64_t own = width + (j % 2 == 0 ? more : -more);
    value[i] = ldexp((double)own, row % 2 == 0 ? 26 : 24);
  }
}
