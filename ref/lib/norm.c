/* norm.c: the norms of one row of C channels, and how far a correct implementation may be off. */
#include "ref/lib/norm.h"

#include <math.h>

#include "core/dtype.h"
#include "ref/lib/error_model.h"
#include "ref/lib/lattice.h"
#include "ref/lib/rowwise.h"

/* ---- the definition ---------------------------------------------------------------------------------- */

static double weight_of(const norm *f, int64_t c) {
  return f->weight != NULL ? f->weight[c * f->weight_step] : 1;
}

static double alpha_of(const norm *f, int64_t c) {
  return f->alpha != NULL ? f->alpha[c * f->alpha_step] : 1;
}

static double bias_of(const norm *f, int64_t c) {
  return f->bias != NULL ? f->bias[c] : 0;
}

norm_moments norm_measure(const norm *f, const double *x) {
  double sum = 0, square = 0;
  if (f->kind == NORM_UCLIP) return (norm_moments){0, 1};
  for (int64_t c = 0; c < f->C; ++c)
    sum += x[c];
  const double mean = f->kind == NORM_LAYER ? sum / (double)f->C : 0;
  for (int64_t c = 0; c < f->C; ++c)
    square += (x[c] - mean) * (x[c] - mean);
  return (norm_moments){mean, 1 / sqrt(square / (double)f->C + f->eps)};
}

static double clipped_product(const norm *f, int64_t c, double x) {
  const double a = alpha_of(f, c) * x;
  return weight_of(f, c) * (a < -1 ? -1 : a > 1 ? 1 : a);
}

double norm_uclip(const norm *f, int64_t c, double x) {
  return clipped_product(f, c, x) + bias_of(f, c);
}

/* Tells whether the definition rounds inside. A rounding to f32 is one that the error model counts; only a narrower one
 * belongs to the definition. */
static bool rounds_inside(const norm *f) {
  return f->kind == NORM_RMS && f->round_inner && f->dtype != ASSAY_F32;
}

void norm_apply(const norm *f, norm_moments m, const double *x, double *y) {
  for (int64_t c = 0; c < f->C; ++c) {
    if (f->kind == NORM_UCLIP) {
      y[c] = norm_uclip(f, c, x[c]);
      continue;
    }
    double n = (x[c] - m.mean) * m.factor;
    if (rounds_inside(f)) n = assay_round_f64(n, f->dtype);
    y[c] = n * weight_of(f, c) + bias_of(f, c);
  }
}

/* ---- the error model --------------------------------------------------------------------------------- */

static double larger(double a, double b) {
  return a > b ? a : b;
}

double norm_stored(double y, assay_dtype dtype) {
  const double rounded = assay_round_f64(y, dtype);
  return assay_is_finite(rounded) ? rounded : y;
}

void norm_store(double y, double variance, assay_dtype dtype, double kappa, double *value, double *sigma) {
  const double last = variance > 0 ? storing_variance(y, ASSAY_F32) : rounding_variance(y, ASSAY_F32);
  const double all = variance + last;
  if (dtype != ASSAY_F32) {
    const double reach = kappa * sqrt(all), middle = assay_round_f64(y, dtype);
    const double over =
        larger(fabs(assay_round_f64(y + reach, dtype) - middle), fabs(assay_round_f64(y - reach, dtype) - middle));
    if (over <= assay_ulp(middle, dtype)) {
      *value = middle;
      *sigma = over;
      return;
    }
  }
  *value = y;
  *sigma = sqrt(all + (dtype != ASSAY_F32 ? storing_variance(y, dtype) : 0));
}

/* Variances that a row's channels share. */
typedef struct norm_error {
  double mean;   /* variance of the mean */
  double factor; /* variance of the factor, relative to it */
} norm_error;

static double square_of(double x, double mean, double scale) {
  const double distance = (x - mean) * scale;
  return distance * distance;
}

/* Returns the drift of running sums whose spacing is `spacing`, or half or twice of that; the largest counts. square:
 * the terms are squares about `mean`. */
static double drift_by(const norm *f, const double *x, double mean, double scale, bool square, double spacing) {
  double most = 0;
  for (int part = -1; part <= 1; ++part) {
    const double magic = 0x1.8p52 * ldexp(spacing, part);
    double sum = 0;
    for (int64_t c = 0; c < f->C; ++c) {
      const double term = square ? square_of(x[c], mean, scale) : x[c] * scale;
      sum += ((term + magic) - magic) - term;
    }
    most = larger(most, fabs(sum));
  }
  return most;
}

/* Returns the drift of a row's running sums. Roundings depend on the terms where these are as small as a sum's spacing,
 * or all alike: each term loses, or gains, the same again. The drift is the sum of (term rounded to the spacing) -
 * term, for the spacing of a lane's complete sum. One lane has the row's largest term, and the spacing of that one if
 * it is larger. The drift counts as a deviation. */
static double drift(const norm *f, const double *x, double mean, double scale, bool square, double lanes) {
  double size = 0, largest = 0;
  for (int64_t c = 0; c < f->C; ++c) {
    const double term = square ? square_of(x[c], mean, scale) : fabs(x[c] * scale);
    size += term;
    largest = larger(largest, term);
  }
  const double of_all = drift_by(f, x, mean, scale, square, assay_ulp(size / lanes, ASSAY_F32));
  if (!(largest > size / lanes)) return of_all;
  return of_all + drift_by(f, x, mean, scale, square, assay_ulp(largest, ASSAY_F32)) / lanes;
}

/* Returns the variance of rounding `value` to f32, relative to its square. A rounding that a row's channels share is
 * one draw, for which the binade's mean (f32_variance) is up to half too little. */
static double of_value(double value) {
  const double whole = value * value;
  return whole > 0x1p-1000 ? storing_variance(value, ASSAY_F32) / whole : f32_variance;
}

bool norm_overflows(const norm *f, norm_moments m, const double *x) {
  const double border = 0x1p128 * (1 - 0x1p-10);
  double sum = 0;
  for (int64_t c = 0; c < f->C && f->kind == NORM_LAYER; ++c)
    sum += fabs(x[c]);
  return sum >= border || (1 / (m.factor * m.factor) - f->eps) * (double)f->C >= border;
}

/* Measures the shared errors, of the row times `scale`. mean: a sum and a division. factor: the sum of squares, the
 * division, + eps, and 1 / sqrt, which halves its argument's error. An error of the mean reaches the sum of squares in
 * second order only. */
static norm_error measure_error(const norm *f, const assay_contract *contract, norm_moments m, double scale,
                                const double *x) {
  const double lanes = contract->lanes > 0 ? contract->lanes : 1, C = (double)f->C;
  const double root = scale * scale / (m.factor * m.factor), mean_square = root - f->eps * scale * scale;
  const double weight = mean_square / root;
  norm_error e = {0, 0};
  if (f->kind == NORM_LAYER) {
    double size = 0, square = 0;
    for (int64_t c = 0; c < f->C; ++c) {
      size += fabs(x[c] * scale);
      square += square_of(x[c], 0, scale);
    }
    const double own = drift(f, x, 0, scale, false, lanes), accumulation = outlier_variance(size, square, C, lanes);
    e.mean = (size * size * accumulation + own * own) / (C * C) + storing_variance(m.mean * scale, ASSAY_F32);
  }
  double size = 0, fourth = 0;
  for (int64_t c = 0; c < f->C; ++c) {
    const double term = square_of(x[c], m.mean, scale);
    size += term;
    fourth += term * term;
  }
  const double accumulation = outlier_variance(size, fourth, C, lanes);
  const double own = mean_square > 0 ? drift(f, x, m.mean, scale, true, lanes) / (mean_square * C) : 0;
  const double square = accumulation + own * own + of_value(mean_square) + (f->kind == NORM_LAYER ? f32_variance : 0);
  e.factor = (weight * weight * square + of_value(root)) / 4 + function_variance(contract->exp_ulp);
  return e;
}

/* Expects a rounded n: round(n) may fall on either side of a boundary. g times it is exact in f32 (two factors of at
 * most 11 bits). */
static void expect_rounded(const norm *f, int64_t c, double n, double variance, double *value, double *sigma) {
  const double reach = f->kappa * sqrt(variance), g = weight_of(f, c);
  const double low = norm_stored(assay_round_f64(n - reach, f->dtype) * g, f->dtype);
  const double high = norm_stored(assay_round_f64(n + reach, f->dtype) * g, f->dtype);
  *value = norm_stored(assay_round_f64(n, f->dtype) * g, f->dtype);
  *sigma = larger(fabs(low - *value), fabs(high - *value));
}

/* Expects n = (x - mean) · factor. It has two roundings of its own, or one if there is no mean. */
static void expect_scaled(const norm *f, const assay_contract *contract, norm_moments m, const double *x, double *value,
                          double *sigma) {
  const double scale = norm_overflows(f, m, x) ? 0x1p-72 : 1, own = m.factor / scale;
  const norm_error e = measure_error(f, contract, m, scale, x);
  const double centring = f->kind == NORM_LAYER ? f32_variance : 0;
  for (int64_t c = 0; c < f->C; ++c) {
    const double n = (x[c] - m.mean) * m.factor, g = weight_of(f, c);
    double variance = own * own * e.mean + n * n * (e.factor + centring + f32_variance);
    if (rounds_inside(f)) {
      expect_rounded(f, c, n, variance, &value[c], &sigma[c]);
      continue;
    }
    /* n itself may be below the normal numbers, and flushed there. */
    if (n != 0 && fabs(n) < 0x1p-126) variance += storing_variance(0, ASSAY_F32) + (contract->ftz ? n * n : 0);
    variance *= g * g;
    if (f->bias != NULL) variance += storing_variance(n * g, ASSAY_F32);
    norm_store(n * g + bias_of(f, c), variance, f->dtype, f->kappa, &value[c], &sigma[c]);
  }
}

/* Counts alpha · x, then gamma times it. A clipped value is exact. */
double norm_uclip_variance(const norm *f, int64_t c, double x) {
  const double a = alpha_of(f, c) * x, gamma = weight_of(f, c);
  const bool clipped = fabs(a) > 1 + 0x1p-22;
  const double product = clipped_product(f, c, x);
  const double inner = clipped ? 0 : rounding_variance(a, ASSAY_F32);
  double variance = gamma * gamma * inner;
  if (f->bias != NULL)
    variance += inner > 0 ? storing_variance(product, ASSAY_F32) : rounding_variance(product, ASSAY_F32);
  return variance;
}

double norm_uclip_slope(const norm *f, int64_t c, double x, double deviation) {
  const double alpha = alpha_of(f, c);
  return fabs(alpha) * (fabs(x) - f->kappa * deviation) < 1 ? fabs(weight_of(f, c) * alpha) : 0;
}

void norm_expect(const norm *f, const assay_contract *contract, norm_moments m, const double *x, double *value,
                 double *sigma) {
  if (f->kind != NORM_UCLIP) {
    expect_scaled(f, contract, m, x, value, sigma);
    return;
  }
  for (int64_t c = 0; c < f->C; ++c)
    norm_store(norm_uclip(f, c, x[c]), norm_uclip_variance(f, c, x[c]), f->dtype, f->kappa, &value[c], &sigma[c]);
}

bool norm_overflow_accepts(const norm *f, int64_t c, double got) {
  if (assay_is_nan(got)) return true; /* Inf - Inf of a mean, or of a compensated sum */
  return got == assay_round_f64(bias_of(f, c), f->dtype);
}

/* Tells whether alpha · x · gamma is exact in any order: the factors' bits add up. */
bool norm_uclip_exact(const norm *f, int64_t c, double x, double *sum) {
  const double alpha = alpha_of(f, c), gamma = weight_of(f, c), beta = bias_of(f, c);
  const double term[2] = {clipped_product(f, c, x), beta};
  *sum = alpha * x * gamma;
  if (lattice_bits(alpha) + lattice_bits(x) + lattice_bits(gamma) > 24) return false;
  *sum = fabs(term[0]) + fabs(beta);
  return few_terms_exact(term, 2);
}
