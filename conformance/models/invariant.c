/* invariant.c: one request in other company, bit for bit. */
#include "invariant.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef long long ll; /* for messages */

enum { WHOLE = 1 << 20, LONG_OTHER = 8, SHORT_OTHER = 9, MOST_CHUNKS = 5, PIECE = 7 };

/* The company of the request, and the steps in which its prompt is computed. */
typedef struct company {
  int64_t batch, chunk;
  bool eager, prefix; /* prefix: the cache has the prompt already */
} company;

static const company ways[] = {{2, WHOLE, false, false}, {7, 7, false, false},     {32, 64, true, false},
                               {7, 1, false, false},     {32, WHOLE, true, false}, {1, 1, true, false},
                               {2, 64, false, true},     {1, WHOLE, true, true},   {128, 512, false, false}};
enum { WAYS_IN_ALL = sizeof ways / sizeof *ways };

typedef struct subject {
  const invariant_plan *plan;
  int32_t *ids;   /* [prompt + steps] */
  double *logits; /* [steps + 1, V] of the request alone */
  double *got;    /* [batch, V] of one step */
  int64_t longest, max_batch;
  char *differs;
  size_t size;
  int64_t *compared;
  assay_error *error;
} subject;

/* Others: every eighth has a prompt as long as the subject's, the rest have a few tokens. */
static int64_t prompt_of(const subject *s, int64_t i) {
  return i % LONG_OTHER == 0 ? s->plan->prompt : 1 + i % SHORT_OTHER;
}

static void words_of(const company *way, char *text, size_t size) {
  char chunk[40] = "whole";
  if (way->chunk < WHOLE) (void)snprintf(chunk, sizeof chunk, "in chunks of %lld", (ll)way->chunk);
  (void)snprintf(text, size, "batch of %lld, %s, %s%s", (ll)way->batch, chunk, way->eager ? "call by call" : "graph",
                 way->prefix ? ", prefix found" : "");
}

/* Keeps the logits of a step, or compares them with those that were kept. */
static void take(subject *s, const company *way, int64_t step, const double *row) {
  const size_t bytes = (size_t)s->plan->config->vocab * sizeof *row;
  double *const own = s->logits + step * s->plan->config->vocab;
  char words[120];
  if (way == NULL) {
    memcpy(own, row, bytes);
    return;
  }
  ++*s->compared;
  if (s->differs[0] != '\0' || memcmp(own, row, bytes) == 0) return;
  words_of(way, words, sizeof words);
  (void)snprintf(s->differs, s->size, "%s: step %lld has other bits than alone", words, (ll)step);
}

/* ---- engines ----------------------------------------------------------------------------------------- */

static assay_status begin(const subject *s, assay_engine *e, int64_t i, bool own, int32_t *request, int64_t *hit) {
  const invariant_plan *p = s->plan;
  if (own) return assay_engine_request(e, s->ids, p->prompt, NULL, request, hit, s->error);
  int32_t *ids = calloc((size_t)prompt_of(s, i), sizeof *ids);
  if (ids == NULL) return assay_fail(s->error, ASSAY_ERR_MEMORY, "model: out of memory");
  assay_model_prompt(p->config, p->seed, 100 + i, prompt_of(s, i), ids);
  const assay_status status = assay_engine_request(e, ids, prompt_of(s, i), NULL, request, NULL, s->error);
  free(ids);
  return status;
}

/* Puts the prompt into the cache, by a request that goes before the others come. */
static assay_status leave_prefix(const subject *s, assay_engine *e) {
  assay_engine_part part = {.tokens = 0};
  assay_status status = begin(s, e, 0, true, &part.request, NULL);
  while (status == ASSAY_OK && (part.tokens = assay_engine_chunk(e, part.request, s->plan->prompt)) > 0)
    status = assay_engine_step(e, &part, 1, s->error);
  if (status == ASSAY_OK) status = assay_engine_wait(e, s->error);
  return status == ASSAY_OK ? assay_engine_release(e, part.request, s->error) : status;
}

/* Returns how many tokens request i has in the next step, with `left` of its prompt to come. The last MOST_CHUNKS
 * chunks of the subject's prompt are small; what lies before them comes in one. The first other's prompt comes in
 * pieces, so that the subject also decodes beside a prompt. */
static int64_t next_tokens(const company *way, int64_t i, int64_t own, int64_t left) {
  const int64_t chunk = i == 0 && own != 0 ? PIECE : i == own && way != NULL ? way->chunk : WHOLE;
  const int64_t small = i == own && chunk < WHOLE ? chunk * MOST_CHUNKS : WHOLE;
  if (left == 0) return 1;
  if (left > small) return left - small;
  return left < chunk ? left : chunk;
}

/* A batch whose requests leave. */
typedef struct company_now {
  assay_engine_part *part;
  int64_t batch, own; /* requests that are left; the subject's place among them */
} company_now;

/* A seventh of the company leaves, so that steps of many sizes are asked for. The subject stays. */
static assay_status leave(const subject *s, assay_engine *e, int64_t whole, company_now *now) {
  assay_status status = ASSAY_OK;
  for (int64_t i = 0; i < (whole + 6) / 7 && now->batch > 1 && status == ASSAY_OK; ++i) {
    const bool first = now->own + 1 == now->batch;
    status = assay_engine_release(e, now->part[first ? 0 : now->batch - 1].request, s->error);
    --now->batch;
    now->own -= first;
    if (first) memmove(now->part, now->part + 1, (size_t)now->batch * sizeof *now->part);
  }
  return status;
}

/* Runs the steps. The subject is in the middle of the batch; the others decode while its prompt comes in chunks, and
 * leave meanwhile. */
static assay_status run_company(subject *s, assay_engine *e, const company *way, assay_engine_part *part) {
  const invariant_plan *p = s->plan;
  const int64_t batch = way != NULL ? way->batch : 1, own = batch / 2;
  int64_t hit = 0;
  assay_status status = assay_engine_set_eager(e, way == NULL || way->eager, s->error);
  if (status == ASSAY_OK && way != NULL && way->prefix) status = leave_prefix(s, e);
  for (int64_t i = 0; i < batch && status == ASSAY_OK; ++i)
    status = begin(s, e, i, i == own, &part[i].request, i == own ? &hit : NULL);
  if (status == ASSAY_OK && (hit > 0) != (way != NULL && way->prefix))
    status = assay_fail(s->error, ASSAY_ERR_INTERNAL, "prefix: %lld tokens were found", (ll)hit);
  company_now now = {part, batch, own};
  for (int64_t step = 0; step <= p->steps && status == ASSAY_OK;) {
    int64_t rows = 0, row = 0;
    const int64_t left = assay_engine_left(e, part[now.own].request);
    for (int64_t i = 0; i < now.batch; ++i) {
      const int64_t of = assay_engine_left(e, part[i].request);
      part[i].tokens = next_tokens(way, i, now.own, of);
      part[i].forced = i == now.own && of == 0 ? &s->ids[p->prompt + step - 1] : NULL;
      row = i == now.own ? rows : row;
      rows += of <= part[i].tokens;
    }
    const int64_t tokens = part[now.own].tokens;
    status = assay_engine_step(e, part, now.batch, s->error);
    const bool small = tokens == 1 && left > 1 && left <= MOST_CHUNKS;
    if (status == ASSAY_OK && left <= tokens) status = assay_engine_logits(e, rows, s->got, s->error);
    if (status == ASSAY_OK && left <= tokens) take(s, way, step++, s->got + row * p->config->vocab);
    if (status == ASSAY_OK && (left == 0 || small)) status = leave(s, e, batch, &now);
  }
  for (int64_t i = 0; i < now.batch && status == ASSAY_OK; ++i)
    status = assay_engine_release(e, part[i].request, s->error);
  return status == ASSAY_OK ? assay_engine_wait(e, s->error) : status;
}

static assay_status by_engine(subject *s, const company *way) {
  const invariant_plan *p = s->plan;
  const int64_t size = p->config->block_size, batch = way != NULL ? way->batch : 1;
  const int64_t long_ones = batch / LONG_OTHER + 3, blocks = (s->longest + size - 1) / size;
  const int64_t steps = p->prompt + p->steps + SHORT_OTHER; /* tokens of an other while chunks of 1 come */
  const assay_engine_options options = {.device = p->device,
                                        .num_blocks = long_ones * blocks + batch * (steps / size + 2),
                                        .max_batch = batch,
                                        .max_tokens = long_ones * p->prompt + batch * SHORT_OTHER,
                                        .max_length = s->longest,
                                        .no_prefix = way == NULL || !way->prefix,
                                        .model = p->model};
  assay_engine *e = NULL;
  assay_engine_part *part = calloc((size_t)batch, sizeof *part);
  if (part == NULL) return assay_fail(s->error, ASSAY_ERR_MEMORY, "model: out of memory");
  assay_status status = assay_engine_open(p->config, p->weights, &options, &e, s->error);
  if (status == ASSAY_OK) status = run_company(s, e, way, part);
  if (status == ASSAY_OK) status = assay_engine_check_forced(e, s->error);
  assay_engine_close(e);
  free(part);
  return status;
}

/* ---- all ways ---------------------------------------------------------------------------------------- */

static assay_status run_all(subject *s) {
  assay_status status = by_engine(s, NULL);
  for (int32_t w = 0; w < WAYS_IN_ALL && status == ASSAY_OK && s->differs[0] == '\0'; ++w)
    if (ways[w].batch <= s->plan->batch) status = by_engine(s, &ways[w]);
  return status;
}

assay_status invariant_judge(const invariant_plan *plan, char *differs, size_t size, int64_t *compared,
                             assay_error *error) {
  const int64_t V = plan->config->vocab, all = plan->prompt + plan->steps;
  subject s = {.plan = plan,
               .ids = calloc((size_t)all, sizeof *s.ids),
               .logits = calloc((size_t)((plan->steps + 1) * V), sizeof *s.logits),
               .got = calloc((size_t)(plan->batch * V), sizeof *s.got),
               .longest = 2 * all + SHORT_OTHER, /* a long other decodes while the subject's prompt comes */
               .differs = differs,
               .size = size,
               .compared = compared,
               .error = error};
  differs[0] = '\0';
  *compared = 0;
  assay_status status = ASSAY_OK;
  if (s.ids == NULL || s.logits == NULL || s.got == NULL)
    status = assay_fail(error, ASSAY_ERR_MEMORY, "model: out of memory");
  if (status == ASSAY_OK) assay_model_prompt(plan->config, plan->seed, 0, all, s.ids);
  if (status == ASSAY_OK) status = run_all(&s);
  free(s.ids);
  free(s.logits);
  free(s.got);
  return status;
}
