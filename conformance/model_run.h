/* model_run.h: prompts through a forward pass, step by step, over a paged cache. */
#ifndef ASSAY_CONFORMANCE_MODEL_RUN_H
#define ASSAY_CONFORMANCE_MODEL_RUN_H

#include "assay/model.h"

/* The next id of request `request`, whose `step`-th one it is, from [V] logits. */
typedef assay_status (*run_pick)(void *context, int64_t request, int64_t step, const double *logits, int32_t *id,
                                 assay_error *error);

typedef struct run_request {
  const int32_t *prompt;
  int64_t prompt_count, steps; /* ids wanted */
  int32_t *ids;                /* [steps] out */
  double *logits;              /* [prompt_count + steps - 1, V] out, of every position; NULL: not wanted */
} run_request;

typedef struct run_plan {
  assay_model_mode mode;
  int64_t chunk; /* prompt tokens a step; 0: all at once */
  bool shuffled; /* blocks of the cache in no order; else one request's behind the other's */
  run_pick pick; /* NULL: the largest logit, the lowest id of a tie */
  void *context;
  const assay_model_taps *taps;     /* of every step; NULL: none */
  const assay_model_options *model; /* of a device's session; NULL: as usual */
} run_plan;

/* All requests side by side: first steps are their prompts (or chunks of them), later ones a token each.
 * ASSAY_ERR_INPUT: an id outside the vocabulary, more positions than the model has; nothing was computed. */
assay_status run_requests(const assay_model_backend *backend, const assay_model_config *config,
                          const assay_model_weights *weights, const run_plan *plan, run_request *request, int64_t count,
                          assay_error *error);
/* Prompts and steps alone: ASSAY_ERR_INPUT as above. */
assay_status run_check(const assay_model_config *config, const run_request *request, int64_t count, assay_error *error);
/* The lowest id of the largest logit; -1: a NaN. */
int32_t run_largest(const double *logits, int64_t V);

#endif
