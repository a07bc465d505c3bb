/* engine_scenario.c: one day of an engine. */
#include "engine_scenario.h"

#include <stdio.h>
#include <string.h>

#include "core/registry.h"
#include "model_small.h"

assay_model_config scenario_model(int number) {
  assay_model_config c = small_model(number);
  c.layers = 2;
  c.vocab = 61;
  c.max_pos = 160;
  c.block_size = 8;
  if (c.kv_dtype == c.act_dtype) c.kv_dtype = ASSAY_F32;
  if (c.experts > 0) { /* many steps of routed rows: as few products as show a mistake */
    c.hidden = 32;
    c.experts = 4;
    c.expert_size = 24;
  }
  c.weight_dtype = c.act_dtype = ASSAY_F32;
  return c;
}

/* A step's contents, until it is sent. */
typedef struct day {
  assay_engine *e;
  scenario *s;
  int32_t number[SCENARIO_REQUESTS]; /* the engine's numbers; -1: gone */
  assay_engine_part part[SCENARIO_REQUESTS];
  int64_t parts;
} day;

static void note(day *d, assay_status status) {
  if (d->s->status == ASSAY_OK) d->s->status = status;
}

static void begin(day *d, int i) {
  scenario_request *r = &d->s->request[i];
  if (d->s->status != ASSAY_OK) return;
  note(d, assay_engine_request(d->e, r->prompt, r->prompt_count, &r->sampling, &d->number[i], &r->hit, &d->s->error));
}

/* Up to `tokens` of the prompt, or one token. */
static void add(day *d, int i, int64_t tokens) {
  if (d->s->status != ASSAY_OK || d->number[i] < 0) return;
  const int64_t left = assay_engine_left(d->e, d->number[i]);
  d->part[d->parts++] = (assay_engine_part){.request = d->number[i],
                                            .tokens = left == 0 ? 1 : assay_engine_chunk(d->e, d->number[i], tokens)};
}

static void send(day *d) {
  if (d->s->status == ASSAY_OK) note(d, assay_engine_step(d->e, d->part, d->parts, &d->s->error));
  d->parts = 0;
}

static void decode(day *d, int from, int to, int times) {
  for (int t = 0; t < times; ++t) {
    for (int i = from; i < to; ++i)
      add(d, i, 1);
    send(d);
  }
}

static void keep(day *d, int i) {
  const int32_t *ids = NULL;
  scenario_request *r = &d->s->request[i];
  if (d->s->status == ASSAY_OK) note(d, assay_engine_wait(d->e, &d->s->error));
  if (d->s->status == ASSAY_OK) note(d, assay_engine_tokens(d->e, d->number[i], &ids, &r->count, &d->s->error));
  if (d->s->status != ASSAY_OK) return;
  if (r->count > SCENARIO_TOKENS) r->count = SCENARIO_TOKENS;
  memcpy(r->token, ids, (size_t)r->count * sizeof *ids);
}

static void end(day *d, int i) {
  keep(d, i);
  if (d->s->status == ASSAY_OK) note(d, assay_engine_release(d->e, d->number[i], &d->s->error));
  d->number[i] = -1;
}

static void prompts(const assay_model_config *c, scenario *s) {
  static const int64_t length[SCENARIO_REQUESTS] = {3, 21, 9, 1, 40, 26, 13, 3, 9, 70};
  memset(s, 0, sizeof *s);
  s->requests = SCENARIO_REQUESTS;
  for (int i = 0; i < SCENARIO_REQUESTS; ++i) {
    scenario_request *r = &s->request[i];
    r->prompt_count = length[i];
    assay_model_prompt(c, 11, i, length[i], r->prompt);
    r->sampling = (assay_engine_sampling){i % 3 == 2 ? 0 : 2.5, 1, 0, 0, 5, (uint64_t)i};
  }
  memcpy(s->request[5].prompt, s->request[1].prompt, 18 * sizeof(int32_t)); /* two blocks of a prefix */
}

void scenario_run(const assay_model_config *config, const assay_model_weights *weights, const char *device, bool eager,
                  uint32_t lag, int32_t short_tail, scenario *s) {
  const assay_model_options model = {.short_tail = short_tail};
  const assay_engine_options options = {.device = device,
                                        .num_blocks = 64,
                                        .max_batch = 8,
                                        .max_tokens = 64,
                                        .max_length = 120,
                                        .eager = eager,
                                        .model = &model};
  day d = {.s = s};
  prompts(config, s);
  const assay_device *on = assay_device_find(device);
  on->flow->lag(lag);
  note(&d, assay_engine_open(config, weights, &options, &d.e, &s->error));
  for (int i = 0; i < 4; ++i)
    begin(&d, i);
  for (int i = 0; i < 4; ++i) /* all prompts at once */
    add(&d, i, 64);
  send(&d);
  decode(&d, 0, 4, 5); /* a bucket without pad rows */
  decode(&d, 1, 4, 3); /* one waits; pad rows */
  decode(&d, 0, 4, 2);
  begin(&d, 4);
  for (int chunk = 0; chunk < 3; ++chunk) { /* chunks of a prompt beside tokens of others */
    add(&d, 4, 16);
    for (int i = 3; i >= 1; --i)
      add(&d, i, 1);
    send(&d);
  }
  end(&d, 2);
  begin(&d, 5); /* its prefix is present */
  add(&d, 5, 64);
  send(&d);
  for (int t = 0; t < 4; ++t) { /* another order, twice the same */
    add(&d, 5, 1);
    add(&d, t < 2 ? 0 : 1, 1);
    add(&d, 4, 1);
    send(&d);
  }
  decode(&d, 0, 1, 6);
  if (s->status == ASSAY_OK) { /* two go on from one place, in a block that they share at first */
    keep(&d, 0);
    s->request[7].sampling.id = 77;
    note(&d, assay_engine_fork(d.e, d.number[0], &s->request[7].sampling, &d.number[7], &s->error));
  }
  for (int t = 0; t < 5; ++t) {
    add(&d, 0, 1);
    add(&d, 7, 1);
    send(&d);
  }
  end(&d, 3);
  end(&d, 1);
  begin(&d, 9); /* long */
  begin(&d, 8);
  add(&d, 9, 40);
  add(&d, 8, 40);
  add(&d, 5, 1);
  send(&d);
  add(&d, 9, 40);
  send(&d);
  for (int t = 0; t < 12; ++t) {
    add(&d, 0, 1);
    add(&d, 9, 1);
    add(&d, 8, 1);
    add(&d, 7, 1);
    add(&d, 5, 1);
    send(&d);
  }
  begin(&d, 6);
  add(&d, 6, 64);
  send(&d);
  decode(&d, 6, 7, 9); /* alone: a bucket of one, as short as the first */
  for (int i = 0; i < SCENARIO_REQUESTS; ++i)
    if (d.number[i] >= 0 && i != 1 && i != 2 && i != 3) keep(&d, i);
  if (d.e != NULL) assay_engine_get_stats(d.e, &s->stats);
  assay_engine_close(d.e);
  on->flow->lag(0);
}

void scenario_alone(const assay_model_config *config, const assay_model_weights *weights, const char *device,
                    scenario *s) {
  const assay_engine_options options = {.device = device,
                                        .num_blocks = 32,
                                        .max_batch = 2,
                                        .max_tokens = 96,
                                        .max_length = 120,
                                        .eager = true,
                                        .no_prefix = true};
  prompts(config, s);
  for (int i = 0; i < SCENARIO_REQUESTS && s->status == ASSAY_OK; ++i) {
    day d = {.s = s};
    s->request[i].hit = 0;
    if (i == 7) continue;
    note(&d, assay_engine_open(config, weights, &options, &d.e, &s->error));
    begin(&d, i);
    add(&d, i, SCENARIO_LENGTH); /* all of it: there is no prefix index */
    send(&d);
    decode(&d, i, i + 1, SCENARIO_TOKENS - 1);
    keep(&d, i);
    assay_engine_close(d.e);
  }
}

bool scenario_differs(const scenario *a, const scenario *b, char *text, size_t size) {
  if (a->status != ASSAY_OK || b->status != ASSAY_OK) {
    (void)snprintf(text, size, "%.150s", a->status != ASSAY_OK ? a->error.text : b->error.text);
    return true;
  }
  for (int i = 0; i < SCENARIO_REQUESTS; ++i) {
    const scenario_request *x = &a->request[i], *y = &b->request[i];
    const int64_t count = x->count < y->count ? x->count : y->count;
    for (int64_t t = 0; t < count; ++t)
      if (x->token[t] != y->token[t]) {
        (void)snprintf(text, size, "request %d, token %d of %d: %d, %d", i, (int)t, (int)count, x->token[t],
                       y->token[t]);
        return true;
      }
  }
  return false;
}
