/* tier2.h: the arithmetic of tier 2 (docs/judging.md), for our own runs and for another engine's results. */
#ifndef ASSAY_CONFORMANCE_TIER2_H
#define ASSAY_CONFORMANCE_TIER2_H

#include <stdint.h>

#include "assay/tensor.h"

/* Sums for a mean over elements: of one head's output, or of a request. */
typedef struct tier2_sums {
  double error2, sigma2, own2; /* own2: of sigma2, what the output's own rounding is at most */
  double open2;                /* own2 of the elements that are not known exactly */
  double free2, free_own2;     /* sigma2 and own2 of those of them that are not just off by one ulp or none */
  double sigma4;
  int64_t count;
} tier2_sums;

/* |got - expected| where the two are finite; a value that may round to Inf in the type may be Inf. */
double tier2_error(double got, double expected, double allowed, assay_dtype dtype);
/* One more element; and all of another sum. */
void tier2_note(tier2_sums *sums, double error, double sigma, double value, assay_dtype dtype);
void tier2_add(tier2_sums *sums, const tier2_sums *more);
/* RMS of the error over what is allowed; the floor stands in where σ is 0. `independent`: how many of the elements may
 * err independently of each other; where sums are most of the error, no more than their variances are worth
 * (Satterthwaite: (Σσ²)² / Σσ⁴), since an outlier's error is the row's. row: of kappa_table; over_sigma: RMS of the
 * error over RMS of σ, 0 where σ is below the floor. Without elements 0, and row -1. */
double tier2_mean(const tier2_sums *sums, const char *op, assay_dtype dtype, int64_t independent, double floor,
                  int32_t *row, double *over_sigma);
/* How many of a request's elements may, whose rows have a part for each of H heads. Heads that share one key and its
 * value have the same result, and the same error. In f32 sums are most of the error, and rows that share keys may share
 * those: what is independent is a kv head; as many of them as their parts of the variance are worth (Satterthwaite).
 * share [H_kv]: sum of σ² of the request's outputs of that kv head. */
int64_t tier2_independent(const tier2_sums *sums, assay_dtype dtype, int64_t width, int64_t H, int64_t H_kv,
                          const double *share);

#endif
