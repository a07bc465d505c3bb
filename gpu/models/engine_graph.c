/* engine_graph.c: one step's calls, and graphs of them: a decode step with pad rows for each bucket and each half. It
 * also times what a graph takes without an operator. */
#include <stdlib.h>
#include <string.h>

#include "gpu/models/engine_parts.h"

enum { TIMED_ROUNDS = 7, TIMED_REPLAYS = 4, HOLD_US = 100 };

static void aim_vector(assay_tensor *t, void *data, int64_t count) {
  t->data = data;
  t->shape[0] = count;
}

void engine_aim(assay_engine *e, int half, int64_t N, int64_t requests, int64_t logits, bool wide, int64_t ids,
                assay_error *error) {
  const engine_input *in = &e->on[half];
  pass *m = e->m;
  pass_resize(m, N, requests, logits);
  aim_vector(&m->ids, e->ids + ids, N);
  aim_vector(&m->positions, wide ? in->wide_positions : in->positions, N);
  aim_vector(&m->slots, wide ? in->wide_slots : in->slots, N);
  aim_vector(&m->kv_len, in->kv_len, requests);
  aim_vector(&m->cu_q, in->cu_q, requests + 1);
  aim_vector(&m->rows, in->rows, logits);
  if (e->S > 0) aim_vector(&m->state_slots, in->states, requests);
  if (e->S > 0) aim_vector(&m->fresh, in->fresh_states, requests);
  m->table.data = in->table;
  m->table.shape[0] = requests;
  m->table.shape[1] = m->table.stride[0] = e->W;
  m->decode = !wide || (MISTAKE(ENGINE_ONE_IS_GENERATED) && N == requests);
  m->tails = m->ragged = m->greedy = m->argmax = false;
  if (!MISTAKE(ENGINE_RUNS_STAY)) m->runs = 0;
  m->layer = -1;
  m->status = ASSAY_OK;
  m->error = error;
  m->taps = NULL;
  m->waiting.post = m->waiting.residual = NULL;
  m->waiting.product = NULL;
  m->waiting.last = NULL;
  m->waiting.division = false;
}

void engine_aim_generated(assay_engine *e, int half, int64_t parts, int64_t rows, int64_t sampled, int64_t count,
                          int64_t ids, assay_error *error) {
  const engine_input *in = &e->on[half];
  pass *m = e->m;
  engine_aim(e, half, count, count, count, true, ids + rows, error);
  m->positions.data = in->wide_positions + rows;
  m->slots.data = in->wide_slots + rows;
  m->kv_len.data = in->kv_len + parts;
  m->rows.data = in->rows + sampled;
  m->table.data = in->table + parts * e->W;
  m->decode = true;
}

static assay_tensor vector(void *data, assay_dtype dtype, int64_t count) {
  return (assay_tensor){.data = data, .dtype = dtype, .rank = 1, .shape = {count}, .stride = {1}};
}

static void choose_tokens(assay_engine *e, int half, int64_t first) {
  const engine_input *in = &e->on[half];
  const int64_t rows = e->m->logits.shape[0];
  const pass_param none[] = {{NULL, 0}};
  const pass_arg args[] = {{"logits", e->m->logits},
                           {"seed", vector(in->seed + first, ASSAY_I64, rows)},
                           {"step", vector(in->step + first, ASSAY_I32, rows)},
                           {"request", vector(in->id + first, ASSAY_I64, rows)},
                           {"temperature", vector(in->temperature + first, ASSAY_F32, rows)},
                           {"top_k", vector(in->top_k + first, ASSAY_I32, rows)},
                           {"top_p", vector(in->top_p + first, ASSAY_F32, rows)},
                           {"min_p", vector(in->min_p + first, ASSAY_F32, rows)},
                           {"token", vector(e->ids + (1 - half) * e->N + first, ASSAY_I32, rows)},
                           {"status", vector(e->status + first, ASSAY_I32, rows)},
                           {.name = NULL}};
  e->m->layer = -1;
  e->m->stage = "token";
  if (rows > 0) pass_call(e->m, "sampler", args, none);
}

assay_status engine_compute(assay_engine *e, int half, int64_t first) {
  const int64_t rows = e->m->logits.shape[0], to = MISTAKE(ENGINE_GREEDY_STAYS) ? half : 1 - half;
  e->m->token = vector(e->ids + to * e->N + first, ASSAY_I32, rows);
  e->m->token_status = vector(e->status + first, ASSAY_I32, rows);
  pass_forward(e->m);
  if (!e->m->argmax) choose_tokens(e, half, first);
  return e->m->status;
}

/* ---- graphs ------------------------------------------------------------------------------------------ */

static assay_status decode_step(assay_engine *e, int64_t rows, int half, int kind, assay_error *error) {
  engine_aim(e, half, rows, rows, rows, false, half * e->N, error);
  e->m->ragged = (kind & ENGINE_EVEN) != 0;
  e->m->greedy = (kind & ENGINE_GREEDY) != 0;
  return engine_compute(e, half, 0);
}

/* Records a decode step, with the workspace of graphs. The caller must release *graph whatever the status is. */
static assay_status capture(assay_engine *e, int64_t rows, int half, int kind, void **graph, assay_error *error) {
  pass *m = e->m;
  void *const usual = m->workspace;
  const int64_t usual_bytes = m->workspace_bytes;
  void *stream = NULL;
  assay_error late = {""};
  assay_status status = e->device->graph_capture_begin(&stream, error);
  if (status != ASSAY_OK) return status;
  m->stream = stream;
  m->workspace = e->workspace;
  m->workspace_bytes = e->workspace_bytes;
  status = decode_step(e, rows, half, kind, error);
  m->workspace = usual;
  m->workspace_bytes = usual_bytes;
  m->stream = e->device->stream();
  const assay_status ended = e->device->graph_capture_end(graph, &late);
  return status == ASSAY_OK && ended != ASSAY_OK ? assay_fail(error, ended, "%s", late.text) : status;
}

/* Moves the calls that a capture made from the counts to the graph; they are counted when the graph is replayed. */
static assay_status count_calls(engine_graph *g, pass_counts *counts, const int64_t *before, int32_t known,
                                assay_error *error) {
  g->count = counts->count;
  g->calls = calloc((size_t)counts->count + 1, sizeof *g->calls);
  if (g->calls == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "engine: out of memory");
  for (int32_t i = 0; i < counts->count; ++i) {
    g->calls[i] = counts->row[i].calls - (i < known ? before[i] : 0);
    counts->row[i].calls -= g->calls[i];
  }
  return ASSAY_OK;
}

static assay_status capture_one(assay_engine *e, engine_bucket *bucket, int half, int kind, assay_error *error) {
  engine_graph *g = &bucket->graph[kind][half];
  pass *m = e->m;
  const int32_t known = m->counts.count;
  int64_t *before = calloc((size_t)known + 1, sizeof *before);
  if (before == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "engine: out of memory");
  for (int32_t i = 0; i < known; ++i)
    before[i] = m->counts.row[i].calls;
  assay_status status = capture(e, bucket->rows, half, kind, &g->graph, error);
  if (status == ASSAY_OK) status = count_calls(g, &m->counts, before, known, error);
  free(before);
  ++e->stats.captures;
  return status;
}

/* Says whether steps of a kind have a graph of their own in the bucket. */
static bool has_graph(const engine_bucket *bucket, int kind) {
  return (kind & ~bucket->kinds) == 0;
}

/* Runs every bucket once with only pad rows, call by call, so that what a first call loads or makes is not captured. */
static assay_status warm(assay_engine *e, assay_error *error) {
  assay_status status = ASSAY_OK;
  for (int32_t b = 0; b < e->buckets; ++b)
    for (int kind = 0; kind < ENGINE_KINDS && status == ASSAY_OK; ++kind)
      if (has_graph(&e->bucket[b], kind)) status = decode_step(e, e->bucket[b].rows, 0, kind, error);
  if (status == ASSAY_OK) status = e->device->synchronize(error);
  for (int32_t i = 0; i < e->m->counts.count; ++i)
    e->m->counts.row[i].calls = 0;
  return status;
}

assay_status engine_capture(assay_engine *e, assay_error *error) {
  pass *m = e->m;
  assay_status status = ASSAY_OK;
  for (int64_t rows = 1;; rows *= 2) {
    e->bucket[e->buckets++].rows = rows < e->B ? rows : e->B;
    if (rows >= e->B) break;
  }
  m->measuring = true;
  for (int32_t b = 0; b < e->buckets && status == ASSAY_OK; ++b) {
    engine_bucket *bucket = &e->bucket[b];
    status = decode_step(e, bucket->rows, 0, 0, error);
    m->evenly = false;
    if (status == ASSAY_OK) status = decode_step(e, bucket->rows, 0, ENGINE_EVEN, error);
    if (m->evenly && m->choices.form[PASS_EVEN_SHARES] == PASS_AUTO) bucket->kinds |= ENGINE_EVEN;
    if (status == ASSAY_OK) status = decode_step(e, bucket->rows, 0, ENGINE_GREEDY, error);
    if (m->argmax) bucket->kinds |= ENGINE_GREEDY;
  }
  m->measuring = false;
  e->workspace_bytes = m->measured_bytes;
  if (status == ASSAY_OK && !e->eager) status = warm(e, error);
  if (status != ASSAY_OK || e->eager) return status;
  status = e->device->alloc(e->workspace_bytes, &e->workspace, error);
  for (int32_t b = 0; b < e->buckets; ++b)
    for (int kind = 0; kind < ENGINE_KINDS; ++kind)
      for (int half = 0; half < 2 && status == ASSAY_OK && has_graph(&e->bucket[b], kind); ++half)
        status = capture_one(e, &e->bucket[b], half, kind, error);
  return status;
}

void engine_release_graphs(assay_engine *e) {
  for (int32_t b = 0; b < e->buckets; ++b)
    for (int i = 0; i < 2 * ENGINE_KINDS; ++i) {
      engine_graph *g = &e->bucket[b].graph[i / 2][i % 2];
      if (g->graph != NULL) e->device->graph_release(g->graph);
      free(g->calls);
    }
}

engine_bucket *engine_bucket_of(assay_engine *e, int64_t rows) {
  int32_t b = 0;
  while (e->bucket[b].rows < rows)
    ++b;
  return &e->bucket[b];
}

const engine_graph *engine_graph_of(const engine_bucket *bucket, int half, int kind) {
  const int of = MISTAKE(ENGINE_GRAPH_OF_OTHER_HALF) ? 1 - half : half;
  return &bucket->graph[kind & bucket->kinds][of];
}

assay_status engine_replay(assay_engine *e, const engine_graph *g, assay_error *error) {
  const assay_status status = e->flow->replay(g->graph, error);
  for (int32_t i = 0; i < g->count && status == ASSAY_OK; ++i)
    e->m->counts.row[i].calls += g->calls[i];
  ++e->stats.replays;
  return status;
}

/* ---- the time of a graph without an operator ------------------------------------------------------------- */

/* Records a graph of the step without what m->left_out names. The counts do not change. */
static assay_status capture_without(assay_engine *e, int64_t rows, int half, void **graph, assay_error *error) {
  pass_counts *c = &e->m->counts;
  const int32_t known = c->count;
  pass_count *kept = calloc((size_t)known + 1, sizeof *kept);
  if (kept == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "engine: out of memory");
  if (known > 0) memcpy(kept, c->row, (size_t)known * sizeof *kept);
  const assay_status status = capture(e, rows, half, e->again_kind, graph, error);
  if (known > 0) memcpy(c->row, kept, (size_t)known * sizeof *kept);
  c->count = known;
  free(kept);
  return status;
}

/* Times replays of a graph. The device is kept busy until the first replay is in its queue; each later replay is queued
 * before the previous one is done. */
static assay_status time_replays(assay_engine *e, void *graph, double *us, assay_error *error) {
  const assay_device *device = e->device;
  assay_status status = device->timing->wait_all(error);
  if (status == ASSAY_OK && device->keep_busy != NULL) status = device->keep_busy(device->stream(), 1, HOLD_US, error);
  if (status == ASSAY_OK) status = device->timing->mark(0, error);
  for (int i = 0; i < TIMED_REPLAYS && status == ASSAY_OK; ++i)
    status = e->flow->replay(graph, error);
  if (status == ASSAY_OK) status = device->timing->mark(1, error);
  if (status == ASSAY_OK) status = device->timing->wait_all(error);
  if (status == ASSAY_OK) status = device->timing->between(us, error);
  *us /= TIMED_REPLAYS;
  return status;
}

static int by_us(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Times both graphs in turn, so that changing clocks affect both. The first round warms up. The last replay is of the
 * whole step and corrects what the other replays left. */
static assay_status time_both(assay_engine *e, void *whole, void *without, assay_engine_graph_time *time,
                              assay_error *error) {
  double us[2][TIMED_ROUNDS] = {{0}};
  assay_status status = ASSAY_OK;
  for (int r = 0; r <= TIMED_ROUNDS && status == ASSAY_OK; ++r) {
    const int at = r > 0 ? r - 1 : 0;
    status = time_replays(e, whole, &us[0][at], error);
    if (status == ASSAY_OK) status = time_replays(e, without, &us[1][at], error);
  }
  if (status == ASSAY_OK) status = e->flow->replay(whole, error);
  if (status == ASSAY_OK) status = e->device->timing->wait_all(error);
  if (status != ASSAY_OK) return status;
  for (int g = 0; g < 2; ++g)
    qsort(us[g], TIMED_ROUNDS, sizeof us[g][0], by_us);
  time->whole_us = us[0][TIMED_ROUNDS / 2];
  time->without_us = us[1][TIMED_ROUNDS / 2];
  return ASSAY_OK;
}

assay_status assay_engine_time_without(assay_engine *e, const char *op, const char *variant,
                                       assay_engine_graph_time *time, assay_error *error) {
  pass *m = e->m;
  pass_left_out out = {NULL, NULL, 0, pass_one_launch_named(m, op)};
  void *without = NULL;
  *time = (assay_engine_graph_time){0, 0, 0};
  assay_status status = ASSAY_OK;
  if (!out.layers) status = pass_find_variant(m, op, variant, &out.op, &out.variant, error);
  if (status == ASSAY_OK && e->device->timing == NULL)
    status = assay_fail(error, ASSAY_ERR_UNSUPPORTED, "engine: device %s has no clock of its own", e->device->name);
  if (status == ASSAY_OK) status = assay_engine_wait(e, error);
  if (status == ASSAY_OK && e->again == NULL)
    status = assay_fail(error, ASSAY_ERR_INPUT,
                        "engine: found a last step that no graph can do again, allowed: a decode step by its graph, or "
                        "call by call in the order of the one before with all rows of a bucket");
  if (status != ASSAY_OK) return status;
  const int half = (int)((e->stats.steps - 1) & 1);
  m->left_out = out;
  status = capture_without(e, e->again->rows, half, &without, error);
  time->calls = m->left_out.calls;
  m->left_out = (pass_left_out){NULL, NULL, 0, false};
  if (status == ASSAY_OK) {
    status = time_both(e, engine_graph_of(e->again, half, e->again_kind)->graph, without, time, error);
    e->broken = status; /* rows, cache and ids may be those of half a step */
    if (status != ASSAY_OK) (void)e->device->synchronize(NULL);
  }
  if (without != NULL) e->device->graph_release(without);
  return status;
}
