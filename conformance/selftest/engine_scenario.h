/* engine_scenario.h: requests that come, wait, fork, share a prefix and go, through an engine; and the same tokens by
 * steps of one request at a time. */
#ifndef ASSAY_SELFTEST_ENGINE_SCENARIO_H
#define ASSAY_SELFTEST_ENGINE_SCENARIO_H

#include "assay/engine.h"

enum { SCENARIO_REQUESTS = 10, SCENARIO_TOKENS = 40, SCENARIO_LENGTH = 96 };

typedef struct scenario_request {
  int32_t prompt[SCENARIO_LENGTH];
  int64_t prompt_count, hit, count;
  int32_t token[SCENARIO_TOKENS];
  assay_engine_sampling sampling;
} scenario_request;

typedef struct scenario {
  scenario_request request[SCENARIO_REQUESTS];
  int64_t requests;
  assay_engine_stats stats;
  assay_status status; /* the first that failed */
  assay_error error;
} scenario;

/* The first of the families in f32, small. */
assay_model_config scenario_model(int number);
void scenario_run(const assay_model_config *config, const assay_model_weights *weights, const char *device, bool eager,
                  uint32_t lag, int32_t short_tail, scenario *s);
/* Runs every request alone, one step per token, call by call. */
void scenario_alone(const assay_model_config *config, const assay_model_weights *weights, const char *device,
                    scenario *s);
/* The first request and token where they differ: false, and nothing is written. */
bool scenario_differs(const scenario *a, const scenario *b, char *text, size_t size);

#endif
