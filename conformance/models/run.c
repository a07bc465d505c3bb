/* run.c: makes the batch of every step from the tokens that each request has left. */
#include "run.h"

#include <stdlib.h>
#include <string.h>

#include "core/rng.h"

typedef long long ll; /* for messages */

typedef struct runner {
  const assay_model_config *config;
  const run_plan *plan;
  run_request *request;
  int64_t count, max_blocks;
  int64_t *done; /* [count] tokens in the cache */
  int32_t *ids, *cu_q, *kv_len, *table, *rows;
  int64_t *slots;
  int32_t *states; /* [count] of the requests of a step; NULL: the model has none */
  double *logits;
} runner;

int32_t run_largest(const double *logits, int64_t V) {
  int32_t best = 0;
  for (int64_t i = 0; i < V; ++i) {
    if (!(logits[i] <= logits[best]) && !(logits[i] > logits[best]) && i != best) return -1;
    if (logits[i] > logits[best]) best = (int32_t)i;
  }
  return logits[best] == logits[best] ? best : -1;
}

static int64_t positions_of(const run_request *r) {
  return r->prompt_count + r->steps - 1;
}

assay_status run_check(const assay_model_config *c, const run_request *request, int64_t count, assay_error *error) {
  for (int64_t i = 0; i < count; ++i) {
    const run_request *req = &request[i];
    if (req->prompt_count < 1)
      return assay_fail(error, ASSAY_ERR_INPUT, "ids: request %lld: found none, allowed 1 and more", (ll)i);
    if (req->steps < 1)
      return assay_fail(error, ASSAY_ERR_INPUT, "steps: request %lld: found %lld, allowed 1 and more", (ll)i,
                        (ll)req->steps);
    if (positions_of(req) > c->max_pos)
      return assay_fail(error, ASSAY_ERR_INPUT, "steps: request %lld: found %lld with %lld ids, allowed %lld positions",
                        (ll)i, (ll)req->steps, (ll)req->prompt_count, (ll)c->max_pos);
    for (int64_t n = 0; n < req->prompt_count; ++n)
      if (req->prompt[n] < 0 || req->prompt[n] >= c->vocab)
        return assay_fail(error, ASSAY_ERR_INPUT, "ids: request %lld: found %d at place %lld, allowed 0 to %lld", (ll)i,
                          req->prompt[n], (ll)n, (ll)(c->vocab - 1));
  }
  return ASSAY_OK;
}

/* Places one physical block per logical block. */
static void place_blocks(const runner *r, int64_t blocks) {
  assay_rng rng = {0x626C6F636B, 0, 0};
  for (int64_t i = 0; i < blocks; ++i)
    r->table[i] = (int32_t)i;
  for (int64_t i = blocks - 1; i > 0 && r->plan->shuffled; --i) {
    const int64_t j = assay_rng_range(&rng, 0, i);
    const int32_t kept = r->table[i];
    r->table[i] = r->table[j];
    r->table[j] = kept;
  }
}

/* Makes the batch of the next tokens of each unfinished request. Returns false where nothing remains. */
static bool make_batch(const runner *r, int64_t *active, assay_model_batch *b) {
  const int64_t block = r->config->block_size;
  int64_t N = 0, wanted = 0, B = 0;
  for (int64_t i = 0; i < r->count; ++i) {
    const run_request *req = &r->request[i];
    const int64_t done = r->done[i], left = req->prompt_count - done;
    if (done >= positions_of(req)) continue;
    int64_t next = left > 0 ? left : 1;
    if (r->plan->chunk > 0 && next > r->plan->chunk) next = r->plan->chunk;
    active[B] = i;
    if (r->states != NULL) r->states[B] = (int32_t)(r->plan->shuffled ? r->count - 1 - i : i);
    r->cu_q[B] = (int32_t)N;
    r->kv_len[B] = (int32_t)(done + next);
    for (int64_t n = 0; n < next; ++n, ++N) {
      const int64_t at = done + n;
      r->ids[N] = at < req->prompt_count ? req->prompt[at] : req->ids[at - req->prompt_count];
      r->slots[N] = (int64_t)r->table[i * r->max_blocks + at / block] * block + at % block;
      if (req->logits != NULL || (n == next - 1 && at >= req->prompt_count - 1)) r->rows[wanted++] = (int32_t)N;
    }
    ++B;
  }
  r->cu_q[B] = (int32_t)N;
  *b = (assay_model_batch){.requests = B,
                           .cu_q = r->cu_q,
                           .ids = r->ids,
                           .kv_len = r->kv_len,
                           .slots = r->slots,
                           .max_blocks = r->max_blocks,
                           .logit_rows = r->rows,
                           .logit_count = wanted,
                           .states = r->states};
  return B > 0;
}

/* Gives rows of logits to their requests, and picks the next ids. */
static assay_status take_logits(const runner *r, const int64_t *active, const assay_model_batch *b,
                                assay_error *error) {
  const int64_t V = r->config->vocab;
  int64_t next = 0;
  for (int64_t i = 0; i < b->requests; ++i) {
    run_request *req = &r->request[active[i]];
    const int64_t fresh = b->cu_q[i + 1] - b->cu_q[i], first = r->done[active[i]];
    for (int64_t n = 0; n < fresh; ++n) {
      if (next >= b->logit_count || b->logit_rows[next] != b->cu_q[i] + n) continue;
      const double *logits = r->logits + next++ * V;
      const int64_t at = first + n, step = at - (req->prompt_count - 1);
      if (req->logits != NULL) memcpy(req->logits + at * V, logits, (size_t)V * sizeof *logits);
      if (step < 0) continue;
      assay_status status = ASSAY_OK;
      if (r->plan->pick != NULL)
        status = r->plan->pick(r->plan->context, active[i], step, logits, &req->ids[step], error);
      else if ((req->ids[step] = run_largest(logits, V)) < 0)
        status = assay_fail(error, ASSAY_ERR_INTERNAL, "logits: request %lld, step %lld: found NaN", (ll)active[i],
                            (ll)step);
      if (status != ASSAY_OK) return status;
    }
    r->done[active[i]] += fresh;
  }
  return ASSAY_OK;
}

static assay_status run_steps(runner *r, const assay_model_backend *backend, assay_model_session *session,
                              int64_t *active, int32_t *tables, assay_error *error) {
  assay_status status = ASSAY_OK;
  assay_model_batch b;
  while (status == ASSAY_OK && make_batch(r, active, &b)) {
    for (int64_t i = 0; i < b.requests; ++i)
      memcpy(tables + i * r->max_blocks, r->table + active[i] * r->max_blocks, (size_t)r->max_blocks * sizeof *tables);
    b.block_table = tables;
    status = backend->forward(session, &b, r->logits, r->plan->taps, error);
    if (status == ASSAY_OK) status = take_logits(r, active, &b, error);
  }
  return status;
}

assay_status run_requests(const assay_model_backend *backend, const assay_model_config *config,
                          const assay_model_weights *weights, const run_plan *plan, run_request *request, int64_t count,
                          assay_error *error) {
  runner r = {.config = config, .plan = plan, .request = request, .count = count};
  assay_model_session *session = NULL;
  int64_t longest = 1, tokens = 0, logit_rows = 0;
  assay_status status = run_check(config, request, count, error);
  if (status != ASSAY_OK) return status;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t first = request[i].prompt_count;
    const int64_t chunk = plan->chunk > 0 && plan->chunk < first ? plan->chunk : first;
    if (positions_of(&request[i]) > longest) longest = positions_of(&request[i]);
    tokens += chunk;
    logit_rows += request[i].logits != NULL ? chunk : 1;
  }
  r.max_blocks = (longest + config->block_size - 1) / config->block_size;
  const int64_t blocks = r.max_blocks * count;
  const size_t B = (size_t)count + 1, N = (size_t)tokens + 1;
  int64_t *wide = calloc(2 * B + N, sizeof *wide);
  int32_t *narrow = calloc(2 * N + 3 * B + 2 * (size_t)blocks + 2, sizeof *narrow);
  r.logits = calloc((size_t)(logit_rows * config->vocab) + 1, sizeof *r.logits);
  if (wide == NULL || narrow == NULL || r.logits == NULL) {
    status = assay_fail(error, ASSAY_ERR_MEMORY, "generate: out of memory");
  } else {
    const assay_model_limits limits = {blocks, tokens, count, logit_rows, assay_model_has_states(config) ? count : 0};
    r.done = wide;
    r.slots = wide + 2 * B;
    r.ids = narrow;
    r.rows = narrow + N;
    r.cu_q = narrow + 2 * N;
    r.kv_len = r.cu_q + B + 1;
    r.table = r.kv_len + B;
    if (assay_model_has_states(config)) r.states = r.table + 2 * blocks;
    place_blocks(&r, blocks);
    status = backend->open(config, weights, &limits, plan->mode, &session, error);
    if (status == ASSAY_OK && plan->model != NULL) status = backend->set_options(session, plan->model, error);
    if (status == ASSAY_OK) status = run_steps(&r, backend, session, wide + B, r.table + blocks, error);
    if (status == ASSAY_OK && backend->check_forced != NULL) status = backend->check_forced(session, error);
    backend->close(session);
  }
  free(wide);
  free(narrow);
  free(r.logits);
  return status;
}
