/* scenario.h: whole batches through a forward pass on a device: prompts at once, greedy, exact output lengths. No
 * figure before the first tokens of two requests are the reference's. */
#ifndef ASSAY_BENCH_SCENARIO_H
#define ASSAY_BENCH_SCENARIO_H

#include "assay/engine.h"
#include "expected.h"
#include "run.h"

enum { SCENARIO_MIXED = 8, SCENARIO_MAX_PARTS = 48, SCENARIO_RUNS = 3 };

typedef struct scenario {
  const char *name;
  int64_t batch, prompt[SCENARIO_MIXED]; /* in turn; 0: no more */
  int64_t output;
  double published_s; /* asynct's wall, published; 0: none is known */
} scenario;

/* operators.md, section 8; index from 0, false behind the last. */
bool scenario_at(int32_t index, scenario *one);
/* NULL-terminated names are not needed: false: no such scenario. `part` n: an n-th of batch, prompts and output. */
bool scenario_find(const char *name, int64_t part, scenario *one);
/* asynct's published wall at the production width, in s; 0: none, or of something else. */
double scenario_published(const scenario *one, const assay_model_config *config);
int64_t scenario_prompt(const scenario *one, int64_t request);

/* What the calls of one decode step took, by operator and variant. */
typedef struct scenario_part {
  char op[48], variant[48];
  int64_t calls, graph_calls; /* graph_calls: in the step's graph; 0: graph_us is not known */
  double us, graph_us;        /* graph_us: that a replay takes less without them, which may be below 0 */
} scenario_part;

typedef struct scenario_result {
  bool there; /* false: no figure, `why` says why not */
  char why[400];
  double wall_ms, wall_low_ms, wall_high_ms; /* median and extremes of SCENARIO_RUNS runs */
  double prefill_ms, step_ms;                /* of a run that waits behind the prompts */
  double span_us;                            /* of a decode step by the device's clock; 0: it has none */
  double eager_us;                           /* sum of `part` */
  double graph_us, graph_rest_us;            /* of a replay of the step's graph, and what no part has; 0: not known */
  int64_t tokens, steps, calls;              /* output tokens; decode steps; calls of operators a decode step */
  int64_t agreed[2];                         /* of the first tokens of two requests, before one that may differ */
  double live;                               /* share of live keys, gate alone */
  double bytes, flops;                       /* of the whole run, the fewest that must be moved and done */
  double limit_ms;                           /* 0: not known */
  scenario_part part[SCENARIO_MAX_PARTS];
  int32_t parts;
} scenario_result;

typedef struct scenario_setup {
  const char *device, *expected_file; /* NULL: computed on the spot */
  const assay_model_config *config;
  const assay_model_weights *weights;
  const assay_model_options *model;
  uint64_t seed;
  const bench_limits *limits;
  int64_t max_tokens; /* rows of a step; 0: 8192 */
} scenario_setup;

/* Errors of input and device as status; a wrong run is a result without a figure. */
assay_status scenario_run(const scenario_setup *setup, const scenario *one, scenario_result *result,
                          assay_error *error);
/* graph_us of the parts and of the step: of the last step, a decode. Leaves them as they are where the device has no
 * clock. */
assay_status scenario_graph(assay_engine *engine, scenario_result *result, assay_error *error);
/* The fewest bytes and operations of `tokens` new tokens behind `before`, one request after the other in the lists, in
 * one step; live: share of live keys. */
assay_cost scenario_step_cost(const assay_model_config *config, const int64_t *before, const int64_t *tokens,
                              int64_t requests, int64_t logits, double live);
void scenario_write(FILE *to, const scenario_setup *setup, const scenario *one, const scenario_result *result);

#endif
