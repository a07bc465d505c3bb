/* error_model.h: how far a correct implementation may be off, as standard deviations (verification.md, tier 2).
 *
 * One rounding to nearest with spacing ulp has variance ulp^2 / 12. Averaged over a binade of f32 that is
 * (0.41 · 2^-24)^2 of the value's square. A sum of n terms, spread over `lanes` running sums of `chain` = n / lanes
 * terms each, has at most the variance (0.41 · 2^-24 · sum |term|)^2 · (chain / (3 · lanes) + 2). */
#ifndef ASSAY_REF_ERROR_MODEL_H
#define ASSAY_REF_ERROR_MODEL_H

#include "assay/op.h"

/* Variance of one f32 rounding, relative to the value's square. */
static const double f32_variance = 0.41 * 0.41 * 0x1p-48;

/* Variance of rounding `value` to the type; 0 where it is there already, and for ASSAY_NONE. */
double rounding_variance(double value, assay_dtype dtype);
/* The same for a result that is only near `value`: never 0 but for ASSAY_NONE. */
double storing_variance(double value, assay_dtype dtype);

/* Relative to (sum |term|)^2: variance of an f32 sum of `terms` terms on `lanes` running sums. */
double accumulation_variance(double terms, double lanes);
/* A sum over `keys` keys of which `terms` are not 0 (adding 0 rounds nothing); the key axis may be split into
 * pieces of keys_per_split, each on pv_lanes running sums. */
double key_sum_variance(const assay_contract *contract, int64_t keys, int64_t terms);

/* The same for sums whose terms x_t differ in sign, for D channels at once. Every addition rounds a running sum, so
 * the variance is f32_variance · sum_k S_k^2. It is taken for the keys as they stand, and as the mean over all
 * orders, chain · ((S^2 - Q) / (3 lanes) + Q / 2) with Q = sum x^2; the larger counts, at most the bound above. */
typedef struct key_sum {
  double *abs, *running, *walk, *square; /* [D] sum |x|, S_k so far, sum of S_k^2, Q */
  int64_t terms;
} key_sum;

void key_sum_start(key_sum *sum, int64_t D);
/* One more term p v_d in every channel. */
void key_sum_add(key_sum *sum, double p, const double *v, int64_t D);
/* Adds A to variance[D]. */
void key_sum_finish(const key_sum *sum, const assay_contract *contract, int64_t keys, int64_t D, double *variance);

/* Relative variance of exp and tanh whose error bound is `ulp` units in the last place: uniform between the
 * bounds, an ulp being 1.44 · 2^-24 of the value on average. */
static inline double function_variance(double ulp) {
  const double bound = ulp * 1.44 * 0x1p-24;
  return bound * bound / 3;
}

/* Variance of one score's dot product: accumulation, and the rounding of dequantised keys.
 * abs_dot = sum_d |q_d k_d|, square_dot = sum_d (q_d k_d)^2, both before scaling. */
double dot_variance(const assay_contract *contract, int64_t D, double abs_dot, double square_dot, bool k_is_rounded);

/* The contract to assume where the caller has none. */
extern const assay_contract plain_contract;

#endif
