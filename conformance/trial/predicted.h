/* predicted.h: the check `predicted`: a product's output against the bits that its sum contract gives
 * (docs/last-bit.md). */
#ifndef ASSAY_CONFORMANCE_TRIAL_PREDICTED_H
#define ASSAY_CONFORMANCE_TRIAL_PREDICTED_H

#include <stdbool.h>

#include "assay/op.h"

/* Turns the check on or off; workers inherit it. It is on from the beginning. */
void predicted_use(bool on);
bool predicted_used(void);

typedef struct predicted_finding {
  bool wrong;
  int64_t compared, differ;
  int64_t row, column; /* the first element that differs */
  char message[400];   /* its bits wanted and found, how many differ, and what would explain them */
} predicted_finding;

/* Compares elements of the result with the prediction. Products of more than 2^19 factors are sampled by rows and
 * columns: the first, the last, and some that the seed draws. got: dense [M, N], of the type of `output`. rows: those
 * that are judged. Every NaN counts as every other. Fails as assay_sums_predict does. */
assay_status predicted_compare(const assay_call *call, const assay_sums *sums, const assay_rows *rows,
                               assay_dtype output, const void *got, uint64_t seed, predicted_finding *found,
                               assay_error *error);

#endif
