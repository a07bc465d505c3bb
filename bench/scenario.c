/* scenario.c: runs of one scenario, their check, their figures. */
#include "scenario.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/trial/trial.h"
#include "ranges.h"

enum { ROWS = 8192, HOLD_US = 100 };

typedef struct run {
  const scenario_setup *setup;
  const scenario *one;
  assay_engine *engine;
  int64_t max_tokens;
  int32_t **prompt; /* [batch] */
  int32_t *request; /* [batch] */
  assay_engine_part *part;
  int32_t *ids; /* [batch, output] of the last run */
  double *wall; /* [SCENARIO_RUNS] ms */
  scenario_result *result;
} run;

/* ---- one run ----------------------------------------------------------------------------------------- */

static assay_status open_requests(run *r, assay_error *error) {
  assay_status status = ASSAY_OK;
  for (int64_t i = 0; i < r->one->batch && status == ASSAY_OK; ++i)
    status =
        assay_engine_request(r->engine, r->prompt[i], scenario_prompt(r->one, i), NULL, &r->request[i], NULL, error);
  return status;
}

/* Prompts in their order, as many rows a step as there may be. */
static assay_status run_prompts(run *r, assay_error *error) {
  assay_status status = ASSAY_OK;
  for (int64_t i = 0; i < r->one->batch && status == ASSAY_OK;) {
    int64_t rows = 0, count = 0, last = i;
    for (; last < r->one->batch && rows < r->max_tokens; ++last) {
      const int64_t left = assay_engine_left(r->engine, r->request[last]), room = r->max_tokens - rows;
      r->part[count++] = (assay_engine_part){.request = r->request[last], .tokens = left < room ? left : room};
      rows += r->part[count - 1].tokens;
      if (left > room) break;
    }
    status = assay_engine_step(r->engine, r->part, count, error);
    i = last;
  }
  return status;
}

static assay_status run_steps(run *r, int64_t steps, assay_error *error) {
  assay_status status = ASSAY_OK;
  for (int64_t i = 0; i < r->one->batch; ++i)
    r->part[i] = (assay_engine_part){.request = r->request[i], .tokens = 1};
  for (int64_t s = 0; s < steps && status == ASSAY_OK; ++s)
    status = assay_engine_step(r->engine, r->part, r->one->batch, error);
  return status;
}

/* Exactly `output` tokens of each request, the same as in the run before, if there was one. */
static assay_status collect(run *r, bool again, bool *same, assay_error *error) {
  const int64_t output = r->one->output;
  assay_status status = ASSAY_OK;
  *same = true;
  for (int64_t i = 0; i < r->one->batch && status == ASSAY_OK; ++i) {
    const int32_t *ids = NULL;
    int64_t count = 0;
    status = assay_engine_tokens(r->engine, r->request[i], &ids, &count, error);
    if (status == ASSAY_OK && count != output)
      status = assay_fail(error, ASSAY_ERR_INTERNAL, "scenario %s: request %lld has %lld tokens, asked for %lld",
                          r->one->name, (long long)i, (long long)count, (long long)output);
    if (status != ASSAY_OK) break;
    *same = *same && (!again || memcmp(r->ids + i * output, ids, (size_t)output * sizeof *ids) == 0);
    memcpy(r->ids + i * output, ids, (size_t)output * sizeof *ids);
  }
  for (int64_t i = 0; i < r->one->batch && status == ASSAY_OK; ++i)
    status = assay_engine_release(r->engine, r->request[i], error);
  return status == ASSAY_OK ? assay_engine_wait(r->engine, error) : status;
}

static assay_status timed_run(run *r, double *ms, assay_error *error) {
  assay_status status = open_requests(r, error);
  const double start = device_now_ms();
  if (status == ASSAY_OK) status = run_prompts(r, error);
  if (status == ASSAY_OK) status = run_steps(r, r->one->output - 1, error);
  if (status == ASSAY_OK) status = assay_engine_wait(r->engine, error);
  *ms = device_now_ms() - start;
  return status;
}

/* ---- where the time of a step goes ------------------------------------------------------------------- */

typedef struct split {
  const assay_device *device;
  scenario_result *result;
  assay_status status;
  assay_error error;
} split;

static scenario_part *part_of(scenario_result *result, const assay_model_path *call) {
  for (int32_t i = 0; i < result->parts; ++i)
    if (strcmp(result->part[i].op, call->op) == 0 && strcmp(result->part[i].variant, call->variant) == 0)
      return &result->part[i];
  if (result->parts == SCENARIO_MAX_PARTS) return NULL;
  scenario_part *part = &result->part[result->parts++];
  *part = (scenario_part){.calls = 0};
  (void)snprintf(part->op, sizeof part->op, "%s", call->op);
  (void)snprintf(part->variant, sizeof part->variant, "%s", call->variant);
  return part;
}

/* The device is kept busy until the call's launches are in its queue: what the host takes is not counted. */
static void before_call(void *context, const assay_model_path *call) {
  split *s = context;
  const assay_device_timing *timing = s->device->timing;
  ranges_push(call->op, call->variant);
  if (timing == NULL || s->status != ASSAY_OK) return;
  s->status = timing->wait_all(&s->error);
  if (s->status == ASSAY_OK && s->device->keep_busy != NULL)
    s->status = s->device->keep_busy(s->device->stream(), 1, HOLD_US, &s->error);
  if (s->status == ASSAY_OK) s->status = timing->mark(0, &s->error);
}

static void after_call(void *context, const assay_model_path *call) {
  split *s = context;
  const assay_device_timing *timing = s->device->timing;
  double us = 0;
  ranges_pop();
  scenario_part *part = part_of(s->result, call);
  if (part != NULL) ++part->calls;
  if (timing == NULL || s->status != ASSAY_OK) return;
  s->status = timing->mark(1, &s->error);
  if (s->status == ASSAY_OK) s->status = timing->wait_all(&s->error);
  if (s->status == ASSAY_OK) s->status = timing->between(&us, &s->error);
  if (part != NULL) part->us += us;
  s->result->eager_us += us;
}

/* Runs with a wait after the prompts. The last step goes call by call, and each call is timed; then its graph is. */
static assay_status phases_run(run *r, assay_error *error) {
  const assay_device *device = assay_engine_device(r->engine);
  split s = {.device = device, .result = r->result, .status = ASSAY_OK};
  const assay_engine_hooks hooks = {&s, before_call, after_call};
  const int64_t steps = r->one->output - 1;
  double us = 0;
  assay_status status = open_requests(r, error);
  const double start = device_now_ms();
  if (status == ASSAY_OK) status = run_prompts(r, error);
  if (status == ASSAY_OK) status = assay_engine_wait(r->engine, error);
  r->result->prefill_ms = device_now_ms() - start;
  const bool clock = device->timing != NULL;
  if (status == ASSAY_OK && clock) status = device->timing->mark(0, error);
  const double begin = device_now_ms();
  ranges_profiler(true);
  if (status == ASSAY_OK) status = run_steps(r, steps > 0 ? steps - 1 : 0, error);
  if (status == ASSAY_OK && clock) status = device->timing->mark(1, error);
  if (status == ASSAY_OK) status = assay_engine_wait(r->engine, error);
  ranges_profiler(false);
  if (steps > 1) r->result->step_ms = (device_now_ms() - begin) / (double)(steps - 1);
  if (status == ASSAY_OK && clock) status = device->timing->between(&us, error);
  if (steps > 1) r->result->span_us = us / (double)(steps - 1);
  if (status != ASSAY_OK || steps < 1) return status;
  status = assay_engine_set_eager(r->engine, true, error);
  assay_engine_set_hooks(r->engine, &hooks);
  if (status == ASSAY_OK) status = run_steps(r, 1, error);
  assay_engine_set_hooks(r->engine, NULL);
  if (status == ASSAY_OK) status = assay_engine_wait(r->engine, error);
  if (status == ASSAY_OK && s.status != ASSAY_OK) {
    *error = s.error;
    status = s.status;
  }
  for (int32_t i = 0; i < r->result->parts; ++i)
    r->result->calls += r->result->part[i].calls;
  if (status == ASSAY_OK && steps > 1) status = scenario_graph(r->engine, r->result, error); /* after a decode step */
  return status;
}

/* ---- the check --------------------------------------------------------------------------------------- */

static assay_status find_expected(const run *r, int64_t request, expected *made, assay_error *error) {
  const scenario_setup *setup = r->setup;
  const int64_t length = scenario_prompt(r->one, request);
  bool found = false;
  assay_status status = ASSAY_OK;
  if (setup->expected_file != NULL)
    status = expected_read(setup->expected_file, setup->config, setup->seed, request, length, made, &found, error);
  if (status != ASSAY_OK || found) return status;
  return expected_compute(setup->config, setup->weights, setup->seed, request, &length, 1, made, error);
}

/* *right: the first tokens of the first two requests are the reference's. */
static assay_status check(run *r, const expected *want, int64_t checked, bool *right) {
  scenario_result *result = r->result;
  *right = true;
  for (int64_t i = 0; i < checked && *right; ++i) {
    const int64_t count = r->one->output < EXPECTED_STEPS ? r->one->output : EXPECTED_STEPS;
    *right = expected_check(&want[i], r->ids + i * r->one->output, count, &result->agreed[i], result->why,
                            sizeof result->why);
    if (want[i].live > 0) result->live = want[i].live;
  }
  return ASSAY_OK;
}

/* ---- all of it --------------------------------------------------------------------------------------- */

static void add_cost(const run *r, const int64_t *before, const int64_t *tokens) {
  const bench_limits *limits = r->setup->limits;
  const double rate = limits->rate[ASSAY_RATE_GEMM] > limits->rate[ASSAY_RATE_MMA] ? limits->rate[ASSAY_RATE_GEMM]
                                                                                   : limits->rate[ASSAY_RATE_MMA];
  const assay_cost cost =
      scenario_step_cost(r->setup->config, before, tokens, r->one->batch, r->one->batch, r->result->live);
  r->result->bytes += cost.bytes;
  r->result->flops += cost.flops;
  if (limits->there) r->result->limit_ms += 1e3 * fmax(cost.bytes / limits->rate[ASSAY_RATE_COPY], cost.flops / rate);
}

/* All prompts in one step, then one token per request and step: the least possible. */
static assay_status count_costs(run *r, assay_error *error) {
  const int64_t B = r->one->batch;
  int64_t *before = calloc((size_t)B, sizeof *before), *tokens = calloc((size_t)B, sizeof *tokens);
  assay_status status = ASSAY_OK;
  if (before != NULL && tokens != NULL) {
    for (int64_t i = 0; i < B; ++i)
      tokens[i] = scenario_prompt(r->one, i);
    add_cost(r, before, tokens);
    for (int64_t s = 0; s + 1 < r->one->output; ++s) {
      for (int64_t i = 0; i < B; ++i) {
        before[i] = scenario_prompt(r->one, i) + s;
        tokens[i] = 1;
      }
      add_cost(r, before, tokens);
    }
  } else {
    status = assay_fail(error, ASSAY_ERR_MEMORY, "scenario: out of memory");
  }
  free(before);
  free(tokens);
  return status;
}

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static assay_status prepare(run *r, assay_error *error) {
  const int64_t B = r->one->batch;
  r->prompt = calloc((size_t)B, sizeof *r->prompt);
  r->request = calloc((size_t)B, sizeof *r->request);
  r->part = calloc((size_t)B, sizeof *r->part);
  r->ids = calloc((size_t)(B * r->one->output), sizeof *r->ids);
  r->wall = calloc(SCENARIO_RUNS, sizeof *r->wall);
  bool fine = r->prompt != NULL && r->request != NULL && r->part != NULL && r->ids != NULL && r->wall != NULL;
  for (int64_t i = 0; i < B && fine; ++i) {
    const int64_t n = scenario_prompt(r->one, i);
    r->prompt[i] = calloc((size_t)n, sizeof **r->prompt);
    fine = r->prompt[i] != NULL;
    if (fine) assay_model_prompt(r->setup->config, r->setup->seed, i, n, r->prompt[i]);
  }
  return fine ? ASSAY_OK : assay_fail(error, ASSAY_ERR_MEMORY, "scenario: out of memory");
}

static assay_status open_engine(run *r, assay_error *error) {
  const scenario_setup *setup = r->setup;
  int64_t blocks = 0, longest = 0;
  for (int64_t i = 0; i < r->one->batch; ++i) {
    const int64_t length = scenario_prompt(r->one, i) + r->one->output;
    blocks += (length + setup->config->block_size - 1) / setup->config->block_size;
    if (length > longest) longest = length;
  }
  r->max_tokens = setup->max_tokens > 0 ? setup->max_tokens : ROWS;
  if (r->max_tokens < r->one->batch) r->max_tokens = r->one->batch;
  const assay_engine_options options = {.device = setup->device,
                                        .num_blocks = blocks,
                                        .max_batch = r->one->batch,
                                        .max_tokens = r->max_tokens,
                                        .max_length = longest,
                                        .no_prefix = true, /* the second run computes what the first did */
                                        .model = setup->model};
  return assay_engine_open(setup->config, setup->weights, &options, &r->engine, error);
}

/* The first run, with a look at the logits after the first tokens of the first requests: it warms up as well. */
static assay_status checked_run(run *r, const expected *want, int64_t checked, bool *right, assay_error *error) {
  const int64_t V = r->setup->config->vocab, B = r->one->batch, steps = r->one->output - 1;
  double *logits = calloc((size_t)(B * V), sizeof *logits);
  if (logits == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "scenario: out of memory");
  bool same[SCENARIO_CHECKED] = {true, true};
  assay_status status = open_requests(r, error);
  *right = true;
  if (status == ASSAY_OK) status = run_prompts(r, error);
  for (int64_t s = 0; s < steps && status == ASSAY_OK; ++s) {
    status = run_steps(r, 1, error);
    if (status == ASSAY_OK && s + 1 < EXPECTED_STEPS) status = assay_engine_logits(r->engine, B, logits, error);
    for (int64_t i = 0; i < checked && status == ASSAY_OK && s + 1 < EXPECTED_STEPS; ++i) {
      const int32_t *ids = NULL;
      int64_t count = 0;
      status = assay_engine_tokens(r->engine, r->request[i], &ids, &count, error);
      same[i] = same[i] && count > s && ids[s] == want[i].id[s][0]; /* the same text up to here */
      if (status == ASSAY_OK && same[i] && *right)
        *right = expected_check_logits(&want[i], s + 1, logits + i * V, r->result->why, sizeof r->result->why);
    }
  }
  free(logits);
  return status == ASSAY_OK ? assay_engine_wait(r->engine, error) : status;
}

static assay_status take_runs(run *r, const expected *want, int64_t checked, assay_error *error) {
  bool right = true, same = true;
  assay_error forced = {""};
  assay_status status = checked_run(r, want, checked, &right, error);
  if (status == ASSAY_OK && right && assay_engine_check_forced(r->engine, &forced) != ASSAY_OK) {
    (void)snprintf(r->result->why, sizeof r->result->why, "%.390s", forced.text);
    return ASSAY_OK;
  }
  if (status == ASSAY_OK) status = collect(r, false, &same, error);
  if (status == ASSAY_OK && right) status = check(r, want, checked, &right);
  for (int i = 0; i < SCENARIO_RUNS && status == ASSAY_OK && right && same; ++i) {
    status = timed_run(r, &r->wall[i], error);
    if (status == ASSAY_OK) status = collect(r, true, &same, error);
  }
  if (status == ASSAY_OK && right && same) status = phases_run(r, error);
  if (status != ASSAY_OK || !right) return status;
  if (!same) {
    (void)snprintf(r->result->why, sizeof r->result->why, "%s: other tokens when run again", r->one->name);
    return ASSAY_OK;
  }
  qsort(r->wall, SCENARIO_RUNS, sizeof *r->wall, by_value);
  r->result->wall_ms = r->wall[SCENARIO_RUNS / 2];
  r->result->wall_low_ms = r->wall[0];
  r->result->wall_high_ms = r->wall[SCENARIO_RUNS - 1];
  r->result->tokens = r->one->batch * r->one->output;
  r->result->steps = r->one->output - 1;
  r->result->there = true;
  return count_costs(r, error);
}

assay_status scenario_run(const scenario_setup *setup, const scenario *one, scenario_result *result,
                          assay_error *error) {
  run r = {.setup = setup, .one = one, .result = result};
  *result = (scenario_result){.there = false, .checked = one->batch < SCENARIO_CHECKED ? one->batch : SCENARIO_CHECKED};
  assay_status status = prepare(&r, error);
  for (int64_t i = 0; i < result->checked && status == ASSAY_OK; ++i)
    status = find_expected(&r, i, &result->want[i], error);
  if (status == ASSAY_OK) status = open_engine(&r, error);
  if (status == ASSAY_OK) status = take_runs(&r, result->want, result->checked, error);
  assay_engine_close(r.engine);
  for (int64_t i = 0; i < one->batch && r.prompt != NULL; ++i)
    free(r.prompt[i]);
  free(r.prompt);
  free(r.request);
  free(r.part);
  free(r.ids);
  free(r.wall);
  return status;
}
