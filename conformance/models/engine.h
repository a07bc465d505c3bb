/* engine.h: prompts through an engine on a device. */
#ifndef ASSAY_CONFORMANCE_MODELS_ENGINE_H
#define ASSAY_CONFORMANCE_MODELS_ENGINE_H

#include <stdio.h>

#include "assay/engine.h"
#include "run.h"
#include "sample.h"

typedef struct engine_plan {
  const char *device;
  bool eager;
  int64_t chunk;                    /* prompt tokens per step; 0: all at once */
  const sample_options *sampler;    /* NULL: greedy; its penalties must be off */
  const assay_model_options *model; /* NULL: the defaults */
  FILE *paths;                      /* receives the variants and paths called, with counts; NULL: not wanted */
} engine_plan;

/* Runs all requests side by side as run_requests does, but gives no logits. */
assay_status run_engine(const assay_model_config *config, const assay_model_weights *weights, const engine_plan *plan,
                        run_request *request, int64_t count, assay_error *error);
/* Prints a line per variant and path of an engine: operator, variant, calls, path. */
void engine_print_paths(const assay_engine *engine, FILE *to);
/* Tells whether penalties are on. They need the history, which the device's step does not keep. */
bool sample_has_penalties(const sample_options *options);

#endif
