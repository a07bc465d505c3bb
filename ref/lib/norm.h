/* norm.h: the norms of one row of C channels, each defined once: rms_norm, layer_norm, uclip_norm. The operators that
 * add a residual first or use two norms build on them. Source: docs/definitions.md, section 3.
 *
 *   rms     n_c = x_c / sqrt(mean(x^2) + eps)              y_c = round(n_c) g_c
 *   layer   n_c = (x_c - mean) / sqrt(var + eps)           y_c = n_c g_c + b_c            var = mean((x - mean)^2)
 *   uclip   y_c = gamma_c clip(alpha_c x_c, -1, 1) + beta_c
 *
 * The stored numbers of a correct implementation. All arithmetic is f32, and its error is small beside the spacing of a
 * 16-bit type. The stored number is round(y), unless y lies near a boundary between two numbers of the type. There the
 * error may push it over. For 16-bit results value is therefore round(y). sigma is 0, or the distance to the number
 * beyond the boundary. The same holds for the roundings in the middle that are part of a definition. Where the error is
 * not small beside the spacing (f32, cancellation in 16 bits), value is y and sigma the deviation of all roundings. */
#ifndef ASSAY_REF_NORM_H
#define ASSAY_REF_NORM_H

#include "assay/op.h"

typedef enum norm_kind { NORM_RMS, NORM_LAYER, NORM_UCLIP } norm_kind;

/* A norm. Weights are NULL where they are absent: g, gamma and alpha are 1 then, b and beta 0. */
typedef struct norm {
  norm_kind kind;
  int64_t C;
  const double *weight, *bias, *alpha; /* g or gamma, b or beta, alpha */
  int64_t weight_step, alpha_step;     /* 1: one per channel; 0: one for all */
  double eps;
  bool round_inner; /* rms: n is rounded to the type */
  assay_dtype dtype;
  double kappa; /* how many deviations an error may reach: the operator's kappa_element */
} norm;

/* ---- the definition ---------------------------------------------------------------------------------- */

/* The shift and the factor of a row's channels. uclip uses neither. */
typedef struct norm_moments {
  double mean, factor;
} norm_moments;

norm_moments norm_measure(const norm *f, const double *x);
/* Writes y [C], not rounded for storing. */
void norm_apply(const norm *f, norm_moments m, const double *x, double *y);
double norm_uclip(const norm *f, int64_t c, double x);

/* Tells whether a sum over the row leaves the range of f32, or comes within 2^-10 of it. Implementations that rescale
 * are right there too (contract: rescales). Others may have a factor of 0, or NaN where they subtract. */
bool norm_overflows(const norm *f, norm_moments m, const double *x);
/* Tells whether an implementation that does not rescale may have `got` in channel c of such a row. */
bool norm_overflow_accepts(const norm *f, int64_t c, double got);

/* ---- the error model --------------------------------------------------------------------------------- */

/* Returns y as the type stores it, or y itself where that would be Inf: the judge knows where Inf begins. */
double norm_stored(double y, assay_dtype dtype);

/* Computes what is stored of y if f32 arithmetic has given it the variance `variance` and one more rounding follows. */
void norm_store(double y, double variance, assay_dtype dtype, double kappa, double *value, double *sigma);

/* Writes value [C] and sigma [C] of a row with these moments. */
void norm_expect(const norm *f, const assay_contract *contract, norm_moments m, const double *x, double *value,
                 double *sigma);

/* Returns the variance of uclip's f32 arithmetic at a stored x, except for the last rounding. */
double norm_uclip_variance(const norm *f, int64_t c, double x);
/* Returns d y / d x of uclip where |alpha x| may, within the deviation of x, lie below 1; else 0. */
double norm_uclip_slope(const norm *f, int64_t c, double x, double deviation);

/* Tells whether everything that uclip may form of x is exact in f32, for the exact tier. If not, *sum is the number
 * that f32 does not hold. */
bool norm_uclip_exact(const norm *f, int64_t c, double x, double *sum);

#endif
