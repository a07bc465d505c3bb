/* invariant.h: one request in other company. Its logits must have the same bits alone and in batches, in chunks and
 * whole, by graphs and call by call. A prefix may be found or computed. */
#ifndef ASSAY_CONFORMANCE_MODELS_INVARIANT_H
#define ASSAY_CONFORMANCE_MODELS_INVARIANT_H

#include "assay/engine.h"

typedef struct invariant_plan {
  const char *device;
  const assay_model_config *config;
  const assay_model_weights *weights;
  const assay_model_options *model; /* with `invariant` */
  uint64_t seed;
  int64_t prompt, steps, batch; /* batch: of the largest way */
} invariant_plan;

/* Runs the request alone, then in every way. `differs` becomes "" or names the first way and step with other bits.
 * *compared: rows of logits that were compared. */
assay_status invariant_judge(const invariant_plan *plan, char *differs, size_t size, int64_t *compared,
                             assay_error *error);

#endif
