/* taps.h: records every stage of a run, and compares it with f64 and with a run that rounds where a device stores. */
#ifndef ASSAY_CONFORMANCE_MODELS_TAPS_H
#define ASSAY_CONFORMANCE_MODELS_TAPS_H

#include "assay/model.h"

typedef struct model_tap {
  char name[ASSAY_MODEL_NAME];
  int64_t rows, width;
  double *value;
} model_tap;

/* The stages in the order of their arrival. */
typedef struct model_record {
  model_tap *tap;
  int64_t count, capacity;
  bool residuals_only; /* only streams, final and logits */
  bool full;           /* out of memory: a stage is missing */
} model_record;

/* Returns taps that record, also those that a device has. record_free frees the record. */
assay_model_taps record_taps(model_record *r);
void record_free(model_record *r);

/* The result of a comparison. Ratios are observed over allowed. */
typedef struct taps_verdict {
  int64_t stages, values;
  double worst; /* ratio */
  char worst_at[96];
  char first[320];  /* the first stage that departs, in words; "": none does */
  char growth[160]; /* RMS of the error of the stream after each layer, over its own RMS */
} taps_verdict;

/* Compares stage by stage, in order: RMS(device - exact) <= 1.5 RMS(mirror - exact) + floor by depth. */
void taps_compare(const assay_model_config *config, const model_record *exact, const model_record *mirror,
                  const model_record *device, taps_verdict *v);
/* Does the same for values after `depth` layers. */
bool taps_within(int64_t depth, const double *exact, const double *mirror, const double *device, int64_t count,
                 double *ratio, double *rms);

#endif
