/* model_taps.h: every stage of a run, kept, and held against f64 and against rounding where a device stores. */
#ifndef ASSAY_CONFORMANCE_MODEL_TAPS_H
#define ASSAY_CONFORMANCE_MODEL_TAPS_H

#include "assay/model.h"

typedef struct model_tap {
  char name[ASSAY_MODEL_NAME];
  int64_t rows, width;
  double *value;
} model_tap;

/* Stages in the order in which they came. */
typedef struct model_record {
  model_tap *tap;
  int64_t count, capacity;
  bool residuals_only; /* streams, final and logits alone */
  bool full;           /* out of memory: something is missing */
} model_record;

/* Taps that keep what they are given; those that a device has, too. */
assay_model_taps record_taps(model_record *r);
void record_free(model_record *r);

/* What a comparison found. Ratios are observed over allowed. */
typedef struct taps_verdict {
  int64_t stages, values;
  double worst; /* ratio */
  char worst_at[96];
  char first[320];  /* the first stage that departs, in words; "": none */
  char growth[160]; /* RMS of the error of the stream behind each layer, over its own RMS */
} taps_verdict;

/* RMS(device - exact) <= 1.5 RMS(mirror - exact) + floor by depth, stage by stage, in order. */
void taps_compare(const assay_model_config *config, const model_record *exact, const model_record *mirror,
                  const model_record *device, taps_verdict *v);
/* The same of values behind `depth` layers. */
bool taps_within(int64_t depth, const double *exact, const double *mirror, const double *device, int64_t count,
                 double *ratio, double *rms);

#endif
