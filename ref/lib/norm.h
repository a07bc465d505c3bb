/* norm.h: the norms of one row of C channels, each defined once: rms_norm, layer_norm, uclip_norm, and the operators
 * that add a residual first or use two of them. Source: the operator definitions of this project, section 3.
 *
 *   rms     n_c = x_c / sqrt(mean(x^2) + eps)              y_c = round(n_c) g_c
 *   layer   n_c = (x_c - mean) / sqrt(var + eps)           y_c = n_c g_c + b_c            var = mean((x - mean)^2)
 *   uclip   y_c = gamma_c clip(alpha_c x_c, -1, 1) + beta_c
 *
 * What a correct implementation stores. All arithmetic is f32, and its error is small beside the spacing of a 16-bit
 * type: the stored number is round(y), unless y lies so near to a boundary between two numbers of the type that the
 * error may push it over. So for 16-bit results value is round(y), and sigma is 0, or how far the number behind the
 * boundary is. The same holds for the roundings in the middle that are part of a definition. Where the error is not
 * small beside the spacing (f32, cancellation in 16 bits) value is y and sigma the deviation of all roundings. */
#ifndef ASSAY_REF_NORM_H
#define ASSAY_REF_NORM_H

#include "assay/op.h"

typedef enum norm_kind { NORM_RMS, NORM_LAYER, NORM_UCLIP } norm_kind;

/* Weights are NULL where they are absent: g, gamma and alpha are 1 then, b and beta 0. */
typedef struct norm {
  norm_kind kind;
  int64_t C;
  const double *weight, *bias, *alpha; /* g or gamma; b or beta; alpha */
  int64_t weight_step, alpha_step;     /* 1: one for each channel; 0: one for all */
  double eps;
  bool round_inner; /* rms: n is rounded to the type */
  assay_dtype dtype;
  double kappa; /* how many deviations an error may reach: the operator's kappa_element */
} norm;

/* ---- the definition ---------------------------------------------------------------------------------- */

/* What a row's channels are shifted and multiplied by. uclip: nothing. */
typedef struct norm_moments {
  double mean, factor;
} norm_moments;

norm_moments norm_measure(const norm *f, const double *x);
/* y [C], not rounded for storing. */
void norm_apply(const norm *f, norm_moments m, const double *x, double *y);
double norm_uclip(const norm *f, int64_t c, double x);

/* ---- the error model --------------------------------------------------------------------------------- */

/* What is stored of y when f32 arithmetic has brought it the variance `variance` and rounds it once more itself. */
void norm_store(double y, double variance, assay_dtype dtype, double kappa, double *value, double *sigma);

/* value [C] and sigma [C] of a row with these moments. */
void norm_expect(const norm *f, const assay_contract *contract, norm_moments m, const double *x, double *value,
                 double *sigma);

/* Variance of uclip's f32 arithmetic at a stored x, but for the last rounding. */
double norm_uclip_variance(const norm *f, int64_t c, double x);
/* d y / d x of uclip where |alpha x| may, within the deviation of x, lie below 1; else 0. */
double norm_uclip_slope(const norm *f, int64_t c, double x, double deviation);

/* The exact tier: is everything that uclip may form of x exact in f32? Else *sum is what f32 does not hold. */
bool norm_uclip_exact(const norm *f, int64_t c, double x, double *sum);

#endif
