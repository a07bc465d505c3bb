/* kappa.h: the limits of tier 2, in σ. */
#ifndef ASSAY_CONFORMANCE_TRIAL_KAPPA_H
#define ASSAY_CONFORMANCE_TRIAL_KAPPA_H

#include <stdbool.h>
#include <stdint.h>

#include "assay/tensor.h"

typedef struct kappa_limit {
  const char *op;   /* NULL: the row serves operators without rows of their own */
  bool f32;         /* outputs stored as f32; else of 16 bits */
  int64_t elements; /* the row holds for means over that many elements and more */
  double rms;       /* largest RMS of the error over RMS of σ */
  double clean;     /* the largest value that clean runs reached; 0: not measured */
} kappa_limit;

extern const kappa_limit kappa_table[];
extern const int32_t kappa_count;

/* Returns the index of the table's row for a mean over `elements` elements: one head's output, or all of a request. */
int32_t kappa_row(const char *op, assay_dtype dtype, int64_t elements);

#endif
