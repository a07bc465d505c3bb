/* tier2.h: the arithmetic of tier 2 (docs/judging.md), for our own runs and for results of other engines. */
#ifndef ASSAY_CONFORMANCE_TRIAL_TIER2_H
#define ASSAY_CONFORMANCE_TRIAL_TIER2_H

#include <stdint.h>

#include "assay/tensor.h"

/* Sums for a mean over elements: one head's output, or a request. */
typedef struct tier2_sums {
  double error2, sigma2, own2; /* own2: the part of sigma2 that the output's own rounding makes at most */
  double open2;                /* own2 of the elements that are not known exactly */
  double free2, free_own2;     /* sigma2 and own2 of the free elements: open, and not just off by one ulp or none */
  double sigma4;
  int64_t count;
} tier2_sums;

/* Returns |got - expected| where both are finite, or where `got` is NaN. An infinite `got` has error 0 if a value
 * within `allowed` of `expected` rounds to it in the type. */
double tier2_error(double got, double expected, double allowed, assay_dtype dtype);
/* Judges the rounding of a stored 16-bit value. σ without the store's own rounding, times kappa, is how far off a right
 * kernel's f32 result may be. The stored value is right if some number within that reach of `expected` rounds to it, to
 * nearest and to even. Returns the distance of `expected` from the numbers that round to `got`, over the reach. It is
 * above 1 where the value is wrong, and 0 where `expected` itself rounds to it, or where one step is allowed. Infinite
 * if the result before the store is exact and `got` is another number. Other types than f16 and bf16 give 0. */
double tier2_rounding(double got, double expected, double sigma, double kappa, assay_dtype dtype);
/* Adds one element. */
void tier2_note(tier2_sums *sums, double error, double sigma, double value, assay_dtype dtype);
/* Adds another sum. */
void tier2_add(tier2_sums *sums, const tier2_sums *more);
/* Returns the RMS of the error over the allowed RMS; `floor` stands in where σ is 0. Without elements returns 0, and
 * row -1.
 * independent: the number of elements that may err independently. Where sums are most of the error, their variances may
 * be worth less (Satterthwaite: (Σσ²)² / Σσ⁴), and that number counts. An outlier's error is the row's.
 * row: receives the row of kappa_table. over_sigma: receives the RMS of the error over the RMS of σ; 0 where σ is below
 * the floor. */
double tier2_mean(const tier2_sums *sums, const char *op, assay_dtype dtype, int64_t independent, double floor,
                  int32_t *row, double *over_sigma);
/* Returns the number of a request's elements that may err independently; its rows have a part for each of H heads.
 * Heads that share one key and its value have the same result and the same error. In f32, sums are most of the error,
 * and rows that share keys may share sums. Only kv heads are independent then; they count for what their parts of the
 * variance are worth (Satterthwaite).
 * share [H_kv]: sum of σ² of the request's outputs of that kv head. */
int64_t tier2_independent(const tier2_sums *sums, assay_dtype dtype, int64_t width, int64_t H, int64_t H_kv,
                          const double *share);

#endif
