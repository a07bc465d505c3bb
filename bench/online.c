/* online.c: the loop of a server without a network. Its clock is the host's; a token counts when the host has it. */
#include "online.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "conformance/trial/trial.h"
#include "core/rng.h"

enum { PROBES = 2, PROBE_PROMPT = 256 };

typedef enum stage { FUTURE, WAITING, OPEN, DONE } stage;

typedef struct client {
  double arrival_ms; /* from the start of the run */
  int64_t prompt, output, queued, have;
  int32_t *text;  /* [prompt + output] */
  double *at_ms;  /* [output] when each token came */
  int64_t opened; /* tokens of the text that were its prompt when it was opened last */
  int32_t request;
  stage stage;
} client;

typedef struct server {
  const scenario_setup *setup;
  const online_plan *plan;
  assay_engine *engine;
  client *client; /* in order of arrival */
  int64_t count, arrived, done, open;
  int64_t *order; /* [max_batch] open ones, oldest first */
  assay_engine_part *part;
  double start_ms;
  online_result *result;
} server;

/* ---- requests ---------------------------------------------------------------------------------------- */

static int64_t part_of(int64_t n, int64_t part) {
  return n / part > 0 ? n / part : 1;
}

/* Blocks of a trace with equal ids are equal texts; a trace without ids has a text of its own for each request. */
static void make_text(const server *s, int64_t index, client *c) {
  const trace *t = s->plan->from;
  const trace_request *r = &t->request[index];
  const int64_t block = part_of(TRACE_BLOCK, s->plan->part);
  const int64_t V = s->setup->config->vocab;
  for (int64_t i = 0; i < c->prompt; ++i) {
    const int64_t b = i / block;
    const uint64_t who = b < r->hash_count ? (uint64_t)(uint32_t)t->hash[r->first_hash + b] : (uint64_t)index << 32;
    const assay_philox x = assay_philox4x32(s->setup->seed, (uint32_t)who, (uint32_t)(who >> 32),
                                            (uint32_t)(b < r->hash_count ? i % block : i), STREAM_IDS);
    c->text[i] = (int32_t)((uint64_t)x.x[0] * (uint64_t)V >> 32);
  }
}

static assay_status make_client(const server *s, client *c, assay_error *error) {
  c->text = calloc((size_t)(c->prompt + c->output), sizeof *c->text);
  c->at_ms = calloc((size_t)c->output, sizeof *c->at_ms);
  (void)s;
  return c->text != NULL && c->at_ms != NULL ? ASSAY_OK : assay_fail(error, ASSAY_ERR_MEMORY, "online: out of memory");
}

static int by_arrival(const void *a, const void *b) {
  const client *x = a, *y = b;
  return (x->arrival_ms > y->arrival_ms) - (x->arrival_ms < y->arrival_ms);
}

/* Two requests whose first tokens are known stand among the others, a third and two thirds into the run. */
static assay_status add_probes(server *s, double last_ms, assay_error *error) {
  assay_status status = ASSAY_OK;
  for (int64_t p = 0; p < PROBES && status == ASSAY_OK; ++p) {
    client *c = &s->client[s->count++];
    *c = (client){.arrival_ms = last_ms * (double)(p + 1) / (PROBES + 1),
                  .prompt = part_of(PROBE_PROMPT, s->plan->part),
                  .output = EXPECTED_STEPS,
                  .request = -1 - (int32_t)p};
    status = make_client(s, c, error);
    if (status == ASSAY_OK) assay_model_prompt(s->setup->config, s->setup->seed, p, c->prompt, c->text);
  }
  qsort(s->client, (size_t)s->count, sizeof *s->client, by_arrival);
  return status;
}

static assay_status make_clients(server *s, assay_error *error) {
  const online_plan *plan = s->plan;
  const trace *t = plan->from;
  const double first = t->request[0].arrival_s;
  s->client = calloc((size_t)t->count + PROBES, sizeof *s->client);
  assay_status status = s->client != NULL ? ASSAY_OK : assay_fail(error, ASSAY_ERR_MEMORY, "online: out of memory");
  double last_ms = 0;
  for (int64_t i = 0; i < t->count && status == ASSAY_OK; ++i) {
    const trace_request *r = &t->request[i];
    const double at = r->arrival_s - first;
    if (r->arrival_s < 0 || at < 0)
      return assay_fail(error, ASSAY_ERR_INPUT, "trace %s: request %lld: no time of arrival, or one before the first's",
                        t->name, (long long)i);
    if ((plan->seconds > 0 && at > plan->seconds) || (plan->requests > 0 && s->count >= plan->requests)) break;
    client *c = &s->client[s->count++];
    *c = (client){.arrival_ms = at * 1e3 / plan->scale,
                  .prompt = part_of(r->prompt, plan->part),
                  .output = part_of(r->output, plan->part)};
    if (c->prompt + c->output > plan->max_length) {
      ++s->result->cut;
      if (c->output > plan->max_length / 2) c->output = plan->max_length / 2;
      if (c->prompt + c->output > plan->max_length) c->prompt = plan->max_length - c->output;
    }
    last_ms = c->arrival_ms;
    status = make_client(s, c, error);
    if (status == ASSAY_OK) make_text(s, i, c);
  }
  s->result->offered_rate = last_ms > 0 ? (double)s->count * 1e3 / last_ms : 0;
  return status == ASSAY_OK ? add_probes(s, last_ms, error) : status;
}

/* ---- the loop ---------------------------------------------------------------------------------------- */

static double now_ms(const server *s) {
  return device_now_ms() - s->start_ms;
}

/* Tokens that have come; requests that have all of theirs are over. */
static assay_status poll_tokens(server *s, assay_error *error) {
  assay_status status = ASSAY_OK;
  int64_t kept = 0;
  for (int64_t o = 0; o < s->open && status == ASSAY_OK; ++o) {
    client *c = &s->client[s->order[o]];
    const int32_t *ids = NULL;
    int64_t count = 0;
    status = assay_engine_tokens(s->engine, c->request, &ids, &count, error);
    if (status != ASSAY_OK) break;
    const int64_t before = c->opened - c->prompt; /* output tokens from before its preemption */
    for (; c->have < before + count; ++c->have) {
      c->text[c->prompt + c->have] = ids[c->have - before];
      c->at_ms[c->have] = now_ms(s);
    }
    if (c->have < c->output) {
      s->order[kept++] = s->order[o];
      continue;
    }
    status = assay_engine_release(s->engine, c->request, error);
    c->stage = DONE;
    ++s->done;
  }
  if (status == ASSAY_OK) s->open = kept;
  return status;
}

static assay_status open_waiting(server *s, assay_error *error) {
  assay_status status = ASSAY_OK;
  while (s->arrived < s->count && s->client[s->arrived].arrival_ms <= now_ms(s))
    s->client[s->arrived++].stage = WAITING;
  for (int64_t i = 0; i < s->arrived && s->open < s->plan->max_batch && status == ASSAY_OK; ++i) {
    client *c = &s->client[i];
    int64_t hit = 0;
    if (c->stage != WAITING) continue;
    c->opened = c->prompt + c->have;
    status = assay_engine_request(s->engine, c->text, c->opened, NULL, &c->request, &hit, error);
    if (status != ASSAY_OK) break;
    s->result->hit_tokens += hit;
    s->result->prompt_tokens += c->opened;
    c->queued = c->have;
    c->stage = OPEN;
    s->order[s->open++] = i;
    if (s->open > s->result->most_open) s->result->most_open = s->open;
  }
  return status;
}

/* The youngest gives its blocks back and waits, with what it has as its prompt. */
static assay_status preempt(server *s, assay_error *error) {
  assay_status status = assay_engine_wait(s->engine, error);
  if (status == ASSAY_OK) status = poll_tokens(s, error);
  if (status != ASSAY_OK || s->open < 2) return status;
  int64_t youngest = 0;
  for (int64_t o = 1; o < s->open; ++o)
    if (s->order[o] > s->order[youngest]) youngest = o;
  client *c = &s->client[s->order[youngest]];
  status = assay_engine_release(s->engine, c->request, error);
  c->stage = WAITING;
  ++s->result->preempted;
  for (int64_t o = youngest; o + 1 < s->open; ++o)
    s->order[o] = s->order[o + 1];
  --s->open;
  return status == ASSAY_OK ? assay_engine_wait(s->engine, error) : status;
}

/* A token of each that decodes, then prompt tokens as far as there is room. */
static int64_t plan_step(server *s) {
  int64_t count = 0, rows = 0;
  for (int pass = 0; pass < 2; ++pass)
    for (int64_t o = 0; o < s->open && rows < s->plan->max_tokens; ++o) {
      const client *c = &s->client[s->order[o]];
      const int64_t left = assay_engine_left(s->engine, c->request), room = s->plan->max_tokens - rows;
      if ((left == 0) != (pass == 0) || (left == 0 && c->queued >= c->output)) continue;
      const int64_t tokens = left == 0 ? 1 : assay_engine_chunk(s->engine, c->request, room);
      s->part[count++] = (assay_engine_part){.request = c->request, .tokens = tokens};
      rows += s->part[count - 1].tokens;
    }
  return count;
}

static void count_queued(server *s, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    for (int64_t o = 0; o < s->open; ++o) {
      client *c = &s->client[s->order[o]];
      if (c->request == s->part[i].request) c->queued += assay_engine_left(s->engine, c->request) == 0;
    }
}

static assay_status step(server *s, bool *idle, assay_error *error) {
  int64_t count = plan_step(s);
  *idle = count == 0;
  if (*idle) return ASSAY_OK;
  assay_status status = assay_engine_step(s->engine, s->part, count, error);
  for (int tries = 0; status == ASSAY_ERR_MEMORY && tries <= s->plan->max_batch; ++tries) {
    status = preempt(s, error);
    count = plan_step(s);
    if (status != ASSAY_OK || count == 0) return status;
    status = assay_engine_step(s->engine, s->part, count, error);
  }
  if (status == ASSAY_OK) count_queued(s, count);
  return status;
}

static void pause_until(const server *s, double ms) {
  const double left = ms - now_ms(s);
  const long most = 500000, wanted = left > 0 ? (long)(left * 1e6 < (double)most ? left * 1e6 : (double)most) : 0;
  const struct timespec pause = {0, wanted};
  if (wanted > 0) (void)nanosleep(&pause, NULL);
}

static assay_status serve(server *s, assay_error *error) {
  assay_status status = ASSAY_OK;
  s->start_ms = device_now_ms();
  while (s->done < s->count && status == ASSAY_OK) {
    bool idle = true;
    status = open_waiting(s, error);
    if (status == ASSAY_OK) status = step(s, &idle, error);
    if (status == ASSAY_OK) status = poll_tokens(s, error);
    if (status == ASSAY_OK && idle && s->open > 0) {
      status = assay_engine_wait(s->engine, error); /* only the last tokens are missing */
      if (status == ASSAY_OK) status = poll_tokens(s, error);
    } else if (idle && s->arrived < s->count) {
      pause_until(s, s->client[s->arrived].arrival_ms);
    }
  }
  return status;
}

/* ---- figures ----------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

void online_points_of(double *ms, int64_t count, online_points *made) {
  *made = (online_points){.p50 = 0};
  if (count < 1) return;
  qsort(ms, (size_t)count, sizeof *ms, by_value);
  for (int64_t i = 0; i < count; ++i)
    made->mean += ms[i] / (double)count;
  double *const point[] = {&made->p50, &made->p90, &made->p99};
  static const double share[] = {0.5, 0.9, 0.99};
  for (int p = 0; p < 3; ++p) { /* the smallest that is no less than this share of them */
    const int64_t rank = (int64_t)ceil(share[p] * (double)count) - 1;
    *point[p] = ms[rank < 0 ? 0 : rank];
  }
}

static assay_status figures(server *s, assay_error *error) {
  online_result *r = s->result;
  int64_t tokens = 0, gaps = 0, longer = 0;
  for (int64_t i = 0; i < s->count; ++i)
    tokens += s->client[i].output;
  if (s->count < 1 || tokens < s->count) return assay_fail(error, ASSAY_ERR_INTERNAL, "online: no tokens");
  double *list = calloc((size_t)(tokens + 3 * s->count), sizeof *list), last = 0;
  if (list == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "online: out of memory");
  double *first = list + tokens, *each = first + s->count, *whole = each + s->count;
  for (int64_t i = 0; i < s->count; ++i) {
    const client *c = &s->client[i];
    const double end = c->at_ms[c->output - 1];
    first[i] = c->at_ms[0] - c->arrival_ms;
    whole[i] = end - c->arrival_ms;
    if (c->output > 1) each[longer++] = (end - c->at_ms[0]) / (double)(c->output - 1);
    for (int64_t n = 1; n < c->output; ++n)
      list[gaps++] = c->at_ms[n] - c->at_ms[n - 1];
    if (end > last) last = end;
  }
  online_points_of(first, s->count, &r->ttft);
  online_points_of(each, longer, &r->tpot);
  online_points_of(list, gaps, &r->itl);
  online_points_of(whole, s->count, &r->e2e);
  free(list);
  assay_engine_stats stats;
  assay_engine_get_stats(s->engine, &stats);
  r->requests = s->count;
  r->output_tokens = tokens;
  r->steps = stats.steps;
  r->replays = stats.replays;
  r->seconds = last * 1e-3;
  r->output_rate = (double)tokens / r->seconds;
  r->prompt_rate = (double)r->prompt_tokens / r->seconds;
  r->request_rate = (double)s->count / r->seconds;
  r->there = true;
  return ASSAY_OK;
}

static assay_status check_probes(server *s, bool *right, assay_error *error) {
  const scenario_setup *setup = s->setup;
  assay_status status = ASSAY_OK;
  *right = true;
  for (int64_t p = 0; p < PROBES && status == ASSAY_OK && *right; ++p) {
    const int64_t length = part_of(PROBE_PROMPT, s->plan->part);
    int32_t prompt[PROBE_PROMPT];
    expected want;
    bool found = false;
    assay_model_prompt(setup->config, setup->seed, p, length, prompt);
    if (setup->expected_file != NULL)
      status = expected_read(setup->expected_file, setup->config, setup->seed, p, length, &want, &found, error);
    if (status == ASSAY_OK && !found)
      status = expected_compute(setup->config, setup->weights, setup->seed, p, &length, 1, &want, error);
    for (int64_t i = 0; i < s->count && status == ASSAY_OK; ++i) {
      const client *c = &s->client[i];
      if (c->prompt != length || c->output != EXPECTED_STEPS ||
          memcmp(c->text, prompt, (size_t)length * sizeof *prompt) != 0)
        continue;
      *right = expected_check(&want, c->text + length, EXPECTED_STEPS, &s->result->agreed[p], s->result->why,
                              sizeof s->result->why);
    }
  }
  return status;
}

assay_status online_run(const scenario_setup *setup, const online_plan *plan, online_result *result,
                        assay_error *error) {
  server s = {.setup = setup, .plan = plan, .result = result};
  bool right = false;
  assay_error forced = {""};
  *result = (online_result){.there = false};
  const assay_engine_options options = {.device = setup->device,
                                        .num_blocks = plan->num_blocks,
                                        .max_batch = plan->max_batch,
                                        .max_tokens = plan->max_tokens,
                                        .max_length = plan->max_length,
                                        .model = setup->model};
  s.order = calloc((size_t)plan->max_batch, sizeof *s.order);
  s.part = calloc((size_t)plan->max_batch, sizeof *s.part);
  assay_status status =
      s.order != NULL && s.part != NULL ? ASSAY_OK : assay_fail(error, ASSAY_ERR_MEMORY, "online: out of memory");
  if (status == ASSAY_OK) status = make_clients(&s, error);
  if (status == ASSAY_OK) status = assay_engine_open(setup->config, setup->weights, &options, &s.engine, error);
  if (status == ASSAY_OK) status = serve(&s, error);
  if (status == ASSAY_OK) status = check_probes(&s, &right, error);
  if (status == ASSAY_OK && right && assay_engine_check_forced(s.engine, &forced) != ASSAY_OK) {
    (void)snprintf(result->why, sizeof result->why, "%.390s", forced.text);
    right = false;
  }
  if (status == ASSAY_OK && right) status = figures(&s, error);
  assay_engine_close(s.engine);
  for (int64_t i = 0; i < s.count && s.client != NULL; ++i) {
    free(s.client[i].text);
    free(s.client[i].at_ms);
  }
  free(s.client);
  free(s.order);
  free(s.part);
  return status;
}
