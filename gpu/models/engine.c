/* engine.c: an engine's memory, its requests, and its statistics. engine_step.c has the steps. */
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "gpu/models/engine_parts.h"

typedef long long ll; /* for messages */

enum { ALIGNMENT = 256, PLACES = 1 << 20, MOST_STATES = 1 << 16 };

static int64_t aligned(int64_t bytes) {
  return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* ---- memory ------------------------------------------------------------------------------------------ */

static void *cut(engine_input *in, int64_t *at, int64_t count, int64_t size) {
  void *piece = in->base != NULL ? in->base + *at : NULL;
  *at += (count * size + 15) / 16 * 16;
  return piece;
}

/* Divides the memory at `base` into the inputs. If base is NULL, it only counts the bytes. */
static engine_input carve(const assay_engine *e, unsigned char *base) {
  const int64_t B = e->B, N = e->N, W = e->W, with_states = e->S > 0 ? B : 0;
  engine_input in = {.base = base};
  int64_t at = 0;
  in.slots = cut(&in, &at, B, 8);
  in.seed = cut(&in, &at, B, 8);
  in.id = cut(&in, &at, B, 8);
  in.kv_len = cut(&in, &at, B, 4);
  in.cu_q = cut(&in, &at, B + 1, 4);
  in.positions = cut(&in, &at, B, 4);
  in.rows = cut(&in, &at, B, 4);
  in.step = cut(&in, &at, B, 4);
  in.top_k = cut(&in, &at, B, 4);
  in.temperature = cut(&in, &at, B, 4);
  in.top_p = cut(&in, &at, B, 4);
  in.min_p = cut(&in, &at, B, 4);
  in.states = cut(&in, &at, with_states, 4);
  in.fresh_states = cut(&in, &at, with_states, 4);
  in.row_bytes = at;
  at = aligned(at);
  const int64_t wide = at;
  in.wide_slots = cut(&in, &at, N, 8);
  in.copies = cut(&in, &at, 2 * B, 8);
  in.state_copies = cut(&in, &at, 2 * e->S, 8);
  in.wide_positions = cut(&in, &at, N, 4);
  in.index = cut(&in, &at, N + B, 4);
  in.behind = cut(&in, &at, B, 4);
  in.tail_request = cut(&in, &at, N, 4);
  in.tail_len = cut(&in, &at, N, 4);
  in.wide_bytes = at - wide;
  at = aligned(at);
  in.table = cut(&in, &at, B * W, 4);
  at = aligned(at);
  if (e->m->expand_memory != NULL) {
    in.run_cu_q = cut(&in, &at, 2 * B, 4);
    in.run_cu_k = cut(&in, &at, 2 * B, 4);
    in.run_blocks = cut(&in, &at, B * W, 4);
    at = aligned(at);
  }
  in.fresh = cut(&in, &at, N, 4);
  in.bytes = aligned(at);
  return in;
}

/* Fills the inputs with rows that belong to no request: length 0, no slot. */
static void fill_rows(const assay_engine *e, const engine_input *in) {
  memset(in->base, 0, (size_t)in->bytes);
  for (int64_t i = 0; i < e->B; ++i) {
    in->slots[i] = -1;
    in->rows[i] = in->cu_q[i] = (int32_t)i;
    in->top_p[i] = 1;
    if (e->S == 0) continue;
    in->states[i] = -1;
    in->fresh_states[i] = 1;
  }
  in->cu_q[e->B] = (int32_t)e->B;
}

static assay_status take_memory(assay_engine *e, assay_error *error) {
  const engine_input sizes = carve(e, NULL);
  int64_t place = 2 * e->N;
  for (int s = 0; s < 2; ++s) {
    e->scratch[s] = place;
    place += e->N + e->B;
  }
  for (int s = 0; s < 2; ++s) {
    e->fresh[s] = place;
    place += e->N;
  }
  e->zero = place++;
  e->ids_count = place;
  const int64_t ids_bytes = aligned(4 * place), status_bytes = aligned(4 * e->B);
  const int64_t ring_bytes = aligned(4 * ENGINE_RING * e->B);
  e->memory_bytes = 2 * sizes.bytes + ids_bytes + status_bytes;
  assay_status status = e->device->alloc(e->memory_bytes, &e->memory, error);
  if (status != ASSAY_OK) return status;
  void *pinned = NULL;
  if (e->device->alloc_host != NULL)
    status = e->device->alloc_host(2 * sizes.bytes + ring_bytes, &pinned, error);
  else if ((pinned = aligned_alloc(ALIGNMENT, (size_t)(2 * sizes.bytes + ring_bytes))) == NULL)
    status = assay_fail(error, ASSAY_ERR_MEMORY, "engine: out of memory");
  if (status != ASSAY_OK) return status;
  e->pinned = pinned;
  unsigned char *on = e->memory;
  e->m->inputs_begin = (uintptr_t)on;
  e->m->inputs_end = e->m->inputs_begin + (uintptr_t)(2 * sizes.bytes);
  e->ids = (int32_t *)(void *)(on + 2 * sizes.bytes);
  e->status = (int32_t *)(void *)(on + 2 * sizes.bytes + ids_bytes);
  e->ring = (int32_t *)(void *)(e->pinned + 2 * sizes.bytes);
  for (int h = 0; h < 2 && status == ASSAY_OK; ++h) {
    e->host[h] = carve(e, e->pinned + h * sizes.bytes);
    e->on[h] = carve(e, on + h * sizes.bytes);
    e->on[h].fresh = e->ids + e->fresh[h];
    fill_rows(e, &e->host[h]);
    status = e->device->upload(e->on[h].base, e->host[h].base, sizes.bytes, error);
  }
  if (status == ASSAY_OK) status = e->device->synchronize(error);
  void *zeros = calloc(1, (size_t)(ids_bytes + status_bytes));
  if (zeros == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "engine: out of memory");
  if (status == ASSAY_OK) status = e->device->upload(e->ids, zeros, ids_bytes + status_bytes, error);
  if (status == ASSAY_OK) status = e->device->synchronize(error);
  free(zeros);
  return status;
}

static assay_status take_lists(assay_engine *e, assay_error *error) {
  const size_t B = (size_t)e->B;
  bool whole = true;
  e->request = calloc(B, sizeof *e->request);
  e->copies = calloc(B, sizeof *e->copies);
  e->turned_part = calloc(B, sizeof *e->turned_part);
  e->logit_row = calloc(B, sizeof *e->logit_row);
  whole = e->request != NULL && e->copies != NULL && e->turned_part != NULL && e->logit_row != NULL;
  for (int h = 0; h < 2; ++h) {
    e->row_serial[h] = calloc(B, sizeof **e->row_serial);
    e->row_blocks[h] = calloc(B, sizeof **e->row_blocks);
    whole = whole && e->row_serial[h] != NULL && e->row_blocks[h] != NULL;
  }
  for (int32_t i = 0; i < ENGINE_RING; ++i) {
    e->sent[i].request = calloc(B, sizeof *e->sent[i].request);
    e->sent[i].serial = calloc(B, sizeof *e->sent[i].serial);
    whole = whole && e->sent[i].request != NULL && e->sent[i].serial != NULL;
  }
  return whole ? ASSAY_OK : assay_fail(error, ASSAY_ERR_MEMORY, "engine: out of memory");
}

/* ---- open, close ------------------------------------------------------------------------------------- */

static assay_status check(const char *name, int64_t found, int64_t low, int64_t high, assay_error *error) {
  if (found >= low && found <= high) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %lld, allowed %lld to %lld", name, (ll)found, (ll)low, (ll)high);
}

/* Returns the fewest slots of states with which no request waits for one. A request that starts from a kept state needs
 * a slot of its own beside that one. */
static int64_t least_states(const assay_engine_options *o) {
  return o->max_batch + !o->no_prefix;
}

static assay_status check_options(const assay_model_config *c, const assay_engine_options *o, assay_error *error) {
  assay_status status = assay_model_check(c, error);
  if (status == ASSAY_OK) status = check("num_blocks", o->num_blocks, 1, INT32_MAX / c->block_size, error);
  if (status == ASSAY_OK) status = check("max_batch", o->max_batch, 1, 1 << 16, error);
  if (status == ASSAY_OK) status = check("max_tokens", o->max_tokens, o->max_batch, PLACES / 8, error);
  if (status == ASSAY_OK && o->max_length != 0) status = check("max_length", o->max_length, 1, c->max_pos, error);
  if (status == ASSAY_OK && o->device == NULL) status = assay_fail(error, ASSAY_ERR_INPUT, "device: found none");
  if (status == ASSAY_OK && !assay_model_has_states(c)) status = check("num_states", o->num_states, 0, 0, error);
  if (status == ASSAY_OK && o->num_states != 0)
    status = check("num_states", o->num_states, least_states(o), MOST_STATES, error);
  return status;
}

/* Returns the slots of the pool of states: as many as requests can need, and as many to be kept. */
static int64_t states_of(const assay_model_config *c, const assay_engine_options *o) {
  if (!assay_model_has_states(c)) return 0;
  if (o->num_states > 0) return o->num_states;
  const int64_t wanted = least_states(o) + (o->no_prefix ? 0 : o->max_batch);
  return wanted < MOST_STATES ? wanted : MOST_STATES;
}

assay_status assay_engine_open(const assay_model_config *config, const assay_model_weights *weights,
                               const assay_engine_options *options, assay_engine **made, assay_error *error) {
  *made = NULL;
  assay_status status = check_options(config, options, error);
  if (status != ASSAY_OK) return status;
  assay_engine *e = calloc(1, sizeof *e);
  if (e == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "engine: out of memory");
  e->options = *options;
  e->options.model = NULL;
  if (e->options.max_length == 0) e->options.max_length = config->max_pos;
  e->B = options->max_batch;
  e->N = options->max_tokens;
  e->W = (e->options.max_length + config->block_size - 1) / config->block_size;
  e->eager = options->eager;
  e->S = states_of(config, options);
  const assay_model_limits limits = {options->num_blocks, e->N, e->B, e->B, e->S};
  const assay_kv_config kv = {options->num_blocks, config->block_size, e->B, e->W, options->no_prefix ? 0 : 64, e->S};
  status = pass_open(options->device, config, weights, &limits, &e->m, error);
  if (status == ASSAY_OK) {
    e->device = e->m->device;
    e->flow = e->device->flow;
    if (e->flow == NULL || e->device->graph_capture_begin == NULL)
      status = assay_fail(error, ASSAY_ERR_UNSUPPORTED, "engine: device %s has no lanes or no graphs", e->device->name);
  }
  if (status == ASSAY_OK) e->m->served = e->B;
  if (status == ASSAY_OK) status = pass_choices_set(e->m, options->model, error);
  if (status == ASSAY_OK) e->m->no_host = true;
  if (status == ASSAY_OK) e->by_role = e->m->invariant && e->m->layers_memory != NULL;
  if (status == ASSAY_OK) status = assay_kv_create(&kv, &e->kv, error);
  if (status == ASSAY_OK) status = take_lists(e, error);
  if (status == ASSAY_OK) status = take_memory(e, error);
  if (status == ASSAY_OK) status = engine_capture(e, error);
  if (status == ASSAY_OK)
    *made = e;
  else
    assay_engine_close(e);
  return status;
}

void assay_engine_close(assay_engine *e) {
  if (e == NULL) return;
  bool reached = false;
  for (int32_t i = 0; i < ENGINE_RING && e->flow != NULL; ++i)
    (void)e->flow->reached(MARK_DOWN + i, true, &reached, NULL);
  if (e->device != NULL) (void)e->device->synchronize(NULL);
  engine_release_graphs(e);
  for (int64_t i = 0; i < e->B && e->request != NULL; ++i) {
    free(e->request[i].text);
    free(e->request[i].chosen);
  }
  for (int h = 0; h < 2; ++h) {
    free(e->row_serial[h]);
    free(e->row_blocks[h]);
  }
  for (int32_t i = 0; i < ENGINE_RING; ++i) {
    free(e->sent[i].request);
    free(e->sent[i].serial);
  }
  free(e->request);
  free(e->turned_part);
  free(e->logit_row);
  free(e->copies);
  if (e->workspace != NULL) e->device->release(e->workspace);
  if (e->memory != NULL) e->device->release(e->memory);
  if (e->pinned != NULL && e->device->release_host != NULL)
    e->device->release_host(e->pinned);
  else
    free(e->pinned);
  assay_kv_destroy(e->kv);
  pass_close(e->m);
  free(e);
}

/* ---- requests ---------------------------------------------------------------------------------------- */

static engine_request *find(const assay_engine *e, int32_t request, assay_error *error) {
  if (request >= 0 && request < e->B && e->request[request].open) return &e->request[request];
  (void)assay_fail(error, ASSAY_ERR_INPUT, "request: found %d, which is not open", request);
  return NULL;
}

static assay_status new_request(assay_engine *e, const assay_engine_sampling *sampling, int32_t *request,
                                assay_error *error) {
  const assay_engine_sampling greedy = {0, 1, 0, 0, 0, 0};
  const assay_engine_sampling *s = sampling != NULL ? sampling : &greedy;
  if (!(s->temperature >= 0 && s->temperature <= 1e6))
    return assay_fail(error, ASSAY_ERR_INPUT, "temperature: found %g, allowed 0 to 1e6", s->temperature);
  if (!(s->top_p > 0 && s->top_p <= 1))
    return assay_fail(error, ASSAY_ERR_INPUT, "top_p: found %g, allowed above 0, up to 1", s->top_p);
  if (!(s->min_p >= 0 && s->min_p <= 1))
    return assay_fail(error, ASSAY_ERR_INPUT, "min_p: found %g, allowed 0 to 1", s->min_p);
  assay_status status = check("top_k", s->top_k, 0, INT32_MAX, error);
  if (status != ASSAY_OK) return status;
  int32_t i = 0;
  while (i < e->B && e->request[i].open)
    ++i;
  if (i == e->B) return assay_fail(error, ASSAY_ERR_MEMORY, "request: all %lld of max_batch are open", (ll)e->B);
  engine_request *r = &e->request[i];
  int32_t *const text = r->text != NULL ? r->text : calloc((size_t)e->options.max_length + 1, sizeof *text);
  int32_t *const chosen = r->chosen != NULL ? r->chosen : calloc((size_t)e->options.max_length + 1, sizeof *chosen);
  *r = (engine_request){.text = text, .chosen = chosen, .serial = ++e->serial, .sampling = *s, .place = e->zero};
  if (text == NULL || chosen == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "request: out of memory");
  *request = i;
  return ASSAY_OK;
}

/* Copies the states that the next step would copy first, and waits, so that their slots can be given away. */
static assay_status copy_states_now(assay_engine *e, assay_error *error) {
  assay_status status = assay_engine_wait(e, error);
  const int64_t count = engine_put_state_copies(e, 0);
  pass *m = e->m;
  if (status != ASSAY_OK || count == 0) return status;
  const engine_input *from = &e->host[0], *to = &e->on[0];
  status = e->device->upload(to->state_copies, from->state_copies, 16 * count, error);
  if (status != ASSAY_OK) return status;
  m->status = ASSAY_OK;
  m->error = error;
  engine_copy_states(e, 0, count);
  status = m->status == ASSAY_OK ? e->device->synchronize(error) : m->status;
  return status == ASSAY_OK ? assay_kv_step_done(e->kv, assay_kv_step_begin(e->kv), error) : status;
}

assay_status assay_engine_request(assay_engine *e, const int32_t *prompt, int64_t n,
                                  const assay_engine_sampling *sampling, int32_t *request, int64_t *hit,
                                  assay_error *error) {
  int64_t found = 0;
  assay_status status = check("prompt: ids", n, 1, e->options.max_length, error);
  for (int64_t i = 0; i < n && status == ASSAY_OK; ++i)
    if (prompt[i] < 0 || prompt[i] >= e->m->config.vocab)
      status = assay_fail(error, ASSAY_ERR_INPUT, "prompt: found id %d at place %lld, allowed 0 to %lld", prompt[i],
                          (ll)i, (ll)(e->m->config.vocab - 1));
  if (status == ASSAY_OK) status = engine_collect(e, false, error);
  if (status == ASSAY_OK) status = new_request(e, sampling, request, error);
  if (status != ASSAY_OK) return status;
  engine_request *r = &e->request[*request];
  status = assay_kv_open(e->kv, prompt, n, &r->kv, &found, error);
  if (status == ASSAY_ERR_MEMORY && e->S > 0) { /* slots may be waiting for copies that no step has made yet */
    status = copy_states_now(e, error);
    if (status == ASSAY_OK) status = assay_kv_open(e->kv, prompt, n, &r->kv, &found, error);
  }
  if (status != ASSAY_OK) return status;
  memcpy(r->text, prompt, (size_t)n * sizeof *prompt);
  r->open = true;
  r->prompt = r->known = n;
  r->computed = r->committed = found;
  e->stats.hit_tokens += found;
  if (hit != NULL) *hit = found;
  return ASSAY_OK;
}

assay_status assay_engine_fork(assay_engine *e, int32_t request, const assay_engine_sampling *sampling, int32_t *child,
                               assay_error *error) {
  const engine_request *from = find(e, request, error);
  if (from == NULL) return ASSAY_ERR_INPUT;
  if (from->computed < from->prompt)
    return assay_fail(error, ASSAY_ERR_INPUT, "fork: request %d: %lld of its %lld prompt tokens are not computed",
                      request, (ll)(from->prompt - from->computed), (ll)from->prompt);
  assay_status status = assay_engine_wait(e, error);
  if (status == ASSAY_OK) status = new_request(e, sampling, child, error);
  if (status != ASSAY_OK) return status;
  engine_request *to = &e->request[*child];
  int32_t kv = -1;
  status = assay_kv_fork(e->kv, from->kv, &kv, error);
  if (status == ASSAY_ERR_MEMORY && e->S > 0) {
    status = copy_states_now(e, error);
    if (status == ASSAY_OK) status = assay_kv_fork(e->kv, from->kv, &kv, error);
  }
  if (status != ASSAY_OK) return status;
  const engine_request kept = *to;
  *to = *from;
  to->text = kept.text;
  to->chosen = kept.chosen;
  to->serial = kept.serial;
  if (sampling != NULL && !MISTAKE(ENGINE_FORK_KEEPS_SAMPLING)) to->sampling = *sampling;
  to->kv = kv;
  memcpy(to->text, from->text, ((size_t)e->options.max_length + 1) * sizeof *to->text);
  memcpy(to->chosen, from->chosen, ((size_t)e->options.max_length + 1) * sizeof *to->chosen);
  return ASSAY_OK;
}

int64_t assay_engine_chunk(const assay_engine *e, int32_t request, int64_t most) {
  const engine_request *r = find(e, request, NULL);
  if (r == NULL) return -1;
  const int64_t size = e->m->config.block_size, left = r->prompt - r->computed, tokens = left < most ? left : most;
  const int64_t end = (r->computed + tokens) / size * size;
  return e->S > 0 && !e->options.no_prefix && end > r->computed ? end - r->computed : tokens;
}

int64_t assay_engine_left(const assay_engine *e, int32_t request) {
  const engine_request *r = find(e, request, NULL);
  return r != NULL ? r->prompt - r->computed : -1;
}

assay_status assay_engine_tokens(assay_engine *e, int32_t request, const int32_t **ids, int64_t *count,
                                 assay_error *error) {
  const assay_status status = engine_collect(e, false, error);
  const engine_request *r = find(e, request, error);
  if (status != ASSAY_OK || r == NULL) return status != ASSAY_OK ? status : ASSAY_ERR_INPUT;
  *ids = r->chosen;
  *count = r->arrived;
  if (!r->bad) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INTERNAL, "logits: request %d, token %lld: a NaN, +Inf, or nothing but -Inf",
                    request, (ll)r->arrived);
}

assay_status assay_engine_logits(assay_engine *e, int64_t rows, double *logits, assay_error *error) {
  assay_status status = assay_engine_wait(e, error);
  if (status == ASSAY_OK && rows != e->logit_rows)
    status =
        assay_fail(error, ASSAY_ERR_INPUT, "logits: found %lld rows wanted, allowed %lld", (ll)rows, (ll)e->logit_rows);
  const int64_t count = rows * e->m->config.vocab;
  if (status == ASSAY_OK && e->no_logits && !MISTAKE(ENGINE_LOGITS_OLD)) { /* the rows are still there */
    e->m->error = error;
    pass_logits(e->m, &e->m->h);
    status = e->m->status;
    e->no_logits = false;
  }
  if (status == ASSAY_OK)
    status = e->device->download(e->m->host, e->m->logits.data, count * (int64_t)sizeof(float), error);
  if (status == ASSAY_OK) status = e->device->synchronize(error);
  const int64_t V = e->m->config.vocab;
  for (int64_t r = 0; r < rows && status == ASSAY_OK; ++r)
    assay_load_f64_row(e->m->host, ASSAY_F32, (e->turned && !MISTAKE(ENGINE_LOGITS_TURNED) ? e->logit_row[r] : r) * V,
                       1, V, logits + r * V);
  return status;
}

assay_status assay_engine_release(assay_engine *e, int32_t request, assay_error *error) {
  engine_request *r = find(e, request, error);
  if (r == NULL) return ASSAY_ERR_INPUT;
  r->open = false;
  return assay_kv_release(e->kv, r->kv, error);
}

/* ---- statistics ---------------------------------------------------------------------------------------- */

bool assay_engine_path(const assay_engine *e, int32_t index, assay_model_path *path) {
  return pass_path(e->m, index, path);
}

assay_status assay_engine_check_forced(const assay_engine *e, assay_error *error) {
  return pass_check_forced(e->m, error);
}

void assay_engine_get_stats(const assay_engine *e, assay_engine_stats *stats) {
  *stats = e->stats;
  stats->workspace_bytes = e->workspace_bytes;
  stats->memory_bytes = e->m->memory_bytes + e->memory_bytes + e->workspace_bytes + e->m->workspace_bytes;
}

const assay_device *assay_engine_device(const assay_engine *e) {
  return e->device;
}

void assay_engine_set_hooks(assay_engine *e, const assay_engine_hooks *hooks) {
  e->m->hooks = hooks != NULL ? *hooks : (assay_engine_hooks){NULL, NULL, NULL};
}

assay_status assay_engine_set_eager(assay_engine *e, bool eager, assay_error *error) {
  if (!eager && e->options.eager)
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "eager: found off, but the engine was opened with it: there are no graphs");
  e->eager = eager;
  return ASSAY_OK;
}
