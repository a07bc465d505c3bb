/* run.h: prompts through a forward pass, step by step, over a paged cache. */
#ifndef ASSAY_CONFORMANCE_MODELS_RUN_H
#define ASSAY_CONFORMANCE_MODELS_RUN_H

#include "assay/model.h"

/* Gives the id number `step` of request `request` from [V] logits. */
typedef assay_status (*run_pick)(void *context, int64_t request, int64_t step, const double *logits, int32_t *id,
                                 assay_error *error);

typedef struct run_request {
  const int32_t *prompt;
  int64_t prompt_count, steps; /* steps: number of ids wanted */
  int32_t *ids;                /* [steps] out */
  double *logits;              /* [prompt_count + steps - 1, V] out, for every position; NULL: not wanted */
} run_request;

typedef struct run_plan {
  assay_model_mode mode;
  int64_t chunk; /* prompt tokens per step; 0: all at once */
  bool shuffled; /* blocks of the cache in random order; else request after request */
  run_pick pick; /* NULL: picks the largest logit, the lowest id of a tie */
  void *context;
  const assay_model_taps *taps;     /* called in every step; NULL: none */
  const assay_model_options *model; /* options of the session; NULL: the defaults */
} run_plan;

/* Runs all requests side by side. The first steps are their prompts (or chunks of them); later steps have one token per
 * request. Fails with ASSAY_ERR_INPUT on an id outside the vocabulary or more positions than the model has; nothing was
 * computed then. */
assay_status run_requests(const assay_model_backend *backend, const assay_model_config *config,
                          const assay_model_weights *weights, const run_plan *plan, run_request *request, int64_t count,
                          assay_error *error);
/* Checks prompts and steps only. Fails with ASSAY_ERR_INPUT as above. */
assay_status run_check(const assay_model_config *config, const run_request *request, int64_t count, assay_error *error);
/* Returns the lowest id of the largest logit, or -1 if one is NaN. */
int32_t run_largest(const double *logits, int64_t V);

#endif
