/* scenario.h: whole batches through a forward pass on a device: prompts at once, greedy, exact output lengths. No
 * figure before the first tokens of two requests are the reference's. */
#ifndef ASSAY_BENCH_SCENARIO_H
#define ASSAY_BENCH_SCENARIO_H

#include "assay/engine.h"
#include "expected.h"
#include "run.h"

enum { SCENARIO_MIXED = 8, SCENARIO_MAX_PARTS = 48, SCENARIO_RUNS = 3, SCENARIO_CHECKED = 2 };

typedef struct scenario {
  const char *name;
  int64_t batch, prompt[SCENARIO_MIXED]; /* in turn; 0: no more */
  int64_t output;
  double published_s; /* asynct's wall, published; 0: none is known */
} scenario;

/* docs/definitions.md, section 8; index from 0, false after the last. */
bool scenario_at(int32_t index, scenario *one);
/* Finds a scenario by a name that need not end with NUL. Returns false if no scenario has it. `part` n: an n-th of
 * batch, prompts and output. */
bool scenario_find(const char *name, int64_t part, scenario *one);
/* asynct's published wall at the production width, in s; 0: none, or of something else. */
double scenario_published(const scenario *one, const assay_model_config *config);
int64_t scenario_prompt(const scenario *one, int64_t request);

/* Time of the calls of one decode step, by operator and variant. */
typedef struct scenario_part {
  char op[48], variant[48];
  int64_t calls, graph_calls; /* graph_calls: in the step's graph; 0: graph_us is not known */
  double us, graph_us;        /* graph_us: that a replay takes less without them, which may be below 0 */
} scenario_part;

typedef struct scenario_result {
  bool there; /* false: no figure, `why` says why not */
  char why[400];
  double wall_ms, wall_low_ms, wall_high_ms; /* median and extremes of SCENARIO_RUNS runs */
  double prefill_ms, step_ms;                /* in a run that waits after the prompts */
  double span_us;                            /* a decode step by the device's clock; 0: it has none */
  double eager_us;                           /* sum of `part` */
  double graph_us, graph_rest_us;            /* a replay of the step's graph, and its rest; 0: unknown */
  int64_t tokens, steps, calls;              /* output tokens, decode steps, calls per decode step */
  expected want[SCENARIO_CHECKED];           /* tokens of the first requests */
  int64_t checked;                           /* entries of `want` */
  int64_t agreed[SCENARIO_CHECKED];          /* first tokens, before one that may differ */
  double live;                               /* share of live keys, gate alone */
  double bytes, flops;                       /* the fewest that the whole run must move and do */
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
/* Adds the fewest bytes and operations of one step. It has `tokens` new tokens after `before`; the lists hold one entry
 * per request. live: share of live keys. */
assay_cost scenario_step_cost(const assay_model_config *config, const int64_t *before, const int64_t *tokens,
                              int64_t requests, int64_t logits, double live);
void scenario_write(FILE *to, const scenario_setup *setup, const scenario *one, const scenario_result *result);

#endif
