/* deferred.h: the factor of a row whose rms_norm is deferred to the product that reads it. An earlier operator has
 * stored the row times the norm's weight, and the sum of squares of each eight channels. For a row of K channels:
 *
 *   f = 1 / sqrt(sum_j squares_j / K + eps)
 *
 * Source: docs/definitions.md, section 3. */
#ifndef ASSAY_REF_DEFERRED_H
#define ASSAY_REF_DEFERRED_H

#include "assay/op.h"

/* Errors that an operator with such rows may plant into the factor. */
typedef enum deferred_spoil {
  DEFERRED_RIGHT,
  DEFERRED_ROW_BEFORE, /* the factor of the row before, as stale squares give it */
  DEFERRED_LAST_PART_LOST,
  DEFERRED_EPS_LOST,
  DEFERRED_SUM_FOR_MEAN,
  DEFERRED_ROOT_LOST,
  DEFERRED_FACTOR_LOST
} deferred_spoil;
#define DEFERRED_SPOILS "factor_of_row_before,last_part_lost,eps_lost,sum_for_mean,root_lost,factor_lost"

typedef struct deferred_factor {
  double value, variance; /* variance relative to the value's square */
} deferred_factor;

/* Returns the number of parts of a row of K channels. */
int64_t deferred_parts(int64_t K);

/* Measures row m of `squares` [M, parts]; eps is rounded to f32 before. */
deferred_factor deferred_measure(const assay_tensor *squares, int64_t m, int64_t K, double eps,
                                 const assay_contract *contract);
/* Returns the factor as an implementation with the planted error has it. */
double deferred_spoiled(const assay_tensor *squares, int64_t m, int64_t K, double eps, deferred_spoil spoil);

/* Returns the factor as f32 arithmetic has it, with one rounding a step. Parts go round `lanes` running sums, whose
 * number is a power of two. Sums of lanes far apart are added first. */
float deferred_by_lanes(const assay_tensor *squares, int64_t m, int64_t K, double eps, int64_t lanes);

/* Admits a row in the exact tier: its parts add up exactly, their mean is a power of 4, and eps vanishes beside it. The
 * factor is then a power of 2, which *exact becomes. */
assay_status deferred_admit(const assay_call *call, const assay_tensor *squares, int64_t m, int64_t K, double eps,
                            double *exact, assay_error *error);

/* Fills `squares`. In the exact tier the mean of a row is 2^26 or 2^24. */
void deferred_fill(const assay_fill *fill, int32_t arg, int64_t K, double *value, int64_t count);

#endif
