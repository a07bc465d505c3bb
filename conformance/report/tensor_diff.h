/* tensor_diff.h: two tensors of one shape, element by element. */
#ifndef ASSAY_CONFORMANCE_REPORT_TENSOR_DIFF_H
#define ASSAY_CONFORMANCE_REPORT_TENSOR_DIFF_H

#include <stdio.h>

#include "conformance/text/text.h"

enum { DIFF_BINS = 12 };

/* The differences of two tensors. Equal bits are equal, and so are +0 and -0, and any two NaN. Two tensors of one type
 * have distances in steps between neighbours of that type. Otherwise the distance is in ulp of the coarser type, at the
 * larger of the two values. Bins: 0 | up to 0.5 | 1 | 2 | 4 … 256 | 4096 | more | a NaN on one side. */
typedef struct tensor_diff {
  int type; /* whose ulp is counted */
  int64_t count, different, one_nan, both_nan;
  int64_t first, worst; /* -1: none. worst: the largest distance; a NaN on one side is larger than any */
  double worst_ulp, worst_absolute;
  double rms_ulp; /* over pairs without NaN */
  int64_t bin[DIFF_BINS + 1];
} tensor_diff;

assay_status tensor_diff_make(const npy_tensor *a, const npy_tensor *b, tensor_diff *made, assay_error *error);
/* Returns the distance of one element; Inf where exactly one is NaN. */
double tensor_distance(const npy_tensor *a, const npy_tensor *b, int type, int64_t index);
/* Prints counts, the histogram, the first and the worst element with their indices, and up to `show` more. */
void tensor_diff_print(const tensor_diff *d, const npy_tensor *a, const npy_tensor *b, int64_t show, FILE *to);

#endif
