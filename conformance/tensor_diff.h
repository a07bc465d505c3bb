/* tensor_diff.h: two tensors of one shape, element by element. */
#ifndef ASSAY_CONFORMANCE_TENSOR_DIFF_H
#define ASSAY_CONFORMANCE_TENSOR_DIFF_H

#include <stdio.h>

#include "npy.h"

enum { DIFF_BINS = 12 };

/* Equal are equal bits, +0 and -0, and any two NaN. The distance of two others is counted in steps between
 * neighbours of the type where both have the same, else in ulp of the coarser type at the larger of the two values.
 * Bins: 0 | up to 0.5 | 1 | 2 | 4 … 256 | 4096 | more | a NaN on one side. */
typedef struct tensor_diff {
  int type; /* whose ulp is counted */
  int64_t count, different, one_nan, both_nan;
  int64_t first, worst; /* -1: none. worst: the largest distance; a NaN on one side is larger than any */
  double worst_ulp, worst_absolute;
  double rms_ulp; /* of those without NaN */
  int64_t bin[DIFF_BINS + 1];
} tensor_diff;

assay_status tensor_diff_make(const npy_tensor *a, const npy_tensor *b, tensor_diff *made, assay_error *error);
/* Distance of one element; Inf where just one is NaN. */
double tensor_distance(const npy_tensor *a, const npy_tensor *b, int type, int64_t index);
/* Counts, histogram, first and worst element with their indices, and the next differences up to `show`. */
void tensor_diff_print(const tensor_diff *d, const npy_tensor *a, const npy_tensor *b, int64_t show, FILE *to);

#endif
