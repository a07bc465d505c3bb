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
  /* The run of a device whose routers' choices this run takes over; NULL: it makes its own. */
  const struct model_record *chosen;
  int64_t chosen_at, experts;
  bool full; /* out of memory: a stage is missing */
} model_record;

/* Returns taps that record, also those that a device has. record_free frees the record. */
assay_model_taps record_taps(model_record *r);
void record_free(model_record *r);
/* Adds the rows of every stage that `like` has too to the stage of that name in `pooled`. `like` is a device's run of
 * the same steps: it lacks what a fused operator does not store. With few_only, stages with few values in a step alone.
 */
void record_pool(const model_record *r, const model_record *like, bool few_only, model_record *pooled);

/* Holds the choices of a device's routers against the exact run that took them over. A choice that the exact logits do
 * not make may cost them 4 times what a stage may be off, and no more. */
typedef struct routes_verdict {
  int64_t rows, differ; /* rows of all routers; those whose ids are not the exact logits' */
  char wrong[200];      /* the first choice that is none, in words; "": there is no such choice */
  int64_t wrong_at;     /* its place among the device's stages */
} routes_verdict;
void routes_check(const assay_model_config *config, const assay_model_weights *weights, const model_record *exact,
                  const model_record *mirror, const model_record *device, routes_verdict *v);

/* The result of a comparison. Ratios are observed over allowed. */
typedef struct taps_verdict {
  int64_t stages, values;
  double worst; /* ratio */
  char worst_at[96];
  char first[320];  /* the first stage that departs, in words; "": none does */
  int64_t first_at; /* its place among the device's stages */
  char growth[160]; /* RMS of the error of the stream after each layer, over its own RMS */
} taps_verdict;

/* Compares stage by stage, in order: RMS(device - exact) <= 1.5 RMS(mirror - exact) + floor by depth. In f32 the floor
 * is 5 RMS(mirror - exact) at least. Stages with few values in a step, as a router's weights and the gates of a delta
 * rule, are one stage over all steps. */
void taps_compare(const assay_model_config *config, const model_record *exact, const model_record *mirror,
                  const model_record *device, taps_verdict *v);
/* Does the same for values after `depth` layers. */
bool taps_within(const assay_model_config *config, double depth, const double *exact, const double *mirror,
                 const double *device, int64_t count, double *ratio, double *rms);

#endif
