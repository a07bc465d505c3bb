/* model_driver.c: requests run through a model. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "model_driver.h"

enum { STATES = 24 };

static assay_error error;

static void *take(int64_t count, size_t size) {
  void *memory = calloc((size_t)count + 1, size);
  cr_assert_not_null(memory);
  return memory;
}

void driver_open(model_driver *d, const assay_model_config *config, const assay_model_weights *weights, int64_t blocks,
                 int64_t max_tokens, int64_t max_requests, assay_model_mode mode) {
  driver_open_on(d, assay_model_ref(), config, weights, blocks, max_tokens, max_requests, mode);
}

void driver_open_on(model_driver *d, const assay_model_backend *backend, const assay_model_config *config,
                    const assay_model_weights *weights, int64_t blocks, int64_t max_tokens, int64_t max_requests,
                    assay_model_mode mode) {
  *d = (model_driver){.config = *config, .backend = backend, .max_blocks = blocks};
  d->max_tokens = max_tokens;
  d->max_requests = max_requests;
  error.text[0] = '\0';
  const bool has_states = assay_model_has_states(config);
  const assay_kv_config kv = {blocks, config->block_size, 64, blocks, 64, has_states ? STATES : 0};
  cr_assert_eq(assay_kv_create(&kv, &d->kv, &error), ASSAY_OK, "%s", error.text);
  const assay_model_limits limits = {blocks, max_tokens, max_requests, max_tokens, has_states ? STATES : 0};
  cr_assert_eq(d->backend->open(config, weights, &limits, mode, &d->session, &error), ASSAY_OK, "%s", error.text);
  d->request = take(max_requests, sizeof *d->request);
  d->cu_q = take(max_requests + 1, sizeof *d->cu_q);
  d->kv_len = take(max_requests, sizeof *d->kv_len);
  d->table = take(max_requests * blocks, sizeof *d->table);
  d->ids = take(max_tokens, sizeof *d->ids);
  d->slots = take(max_tokens, sizeof *d->slots);
  d->logit_rows = take(max_tokens, sizeof *d->logit_rows);
  d->copies = take(max_requests, sizeof *d->copies);
  d->states = has_states ? take(max_requests, sizeof *d->states) : NULL;
  d->keeps = has_states;
  d->logits = take(max_tokens * config->vocab, sizeof *d->logits);
}

void driver_close(model_driver *d) {
  d->backend->close(d->session);
  assay_kv_destroy(d->kv);
  void *const all[] = {d->request, d->cu_q,       d->kv_len, d->table,  d->ids,
                       d->slots,   d->logit_rows, d->copies, d->logits, d->states};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i)
    free(all[i]);
  *d = (model_driver){0};
}

int32_t driver_request(model_driver *d, const int32_t *prompt, int64_t n, int64_t *hit) {
  int32_t request = -1;
  int64_t found = 0;
  cr_assert_eq(assay_kv_open(d->kv, prompt, n, &request, hit != NULL ? hit : &found, &error), ASSAY_OK, "%s",
               error.text);
  return request;
}

void driver_add(model_driver *d, int32_t request, const int32_t *ids, int64_t n, bool all) {
  cr_assert(d->requests < d->max_requests && d->tokens + n <= d->max_tokens);
  cr_assert_eq(assay_kv_reserve_append(d->kv, request, n, d->slots + d->tokens, d->copies, &d->copy_count, &error),
               ASSAY_OK, "%s", error.text);
  memcpy(d->ids + d->tokens, ids, (size_t)n * sizeof *ids);
  for (int64_t i = all ? 0 : n - 1; i < n; ++i)
    d->logit_rows[d->logit_count++] = (int32_t)(d->tokens + i);
  d->request[d->requests++] = request;
  d->tokens += n;
  d->cu_q[d->requests] = (int32_t)d->tokens;
}

void driver_add_pad(model_driver *d) {
  cr_assert(d->requests < d->max_requests && d->tokens < d->max_tokens);
  d->ids[d->tokens] = 0;
  d->slots[d->tokens] = -1;
  d->request[d->requests++] = -1;
  d->cu_q[d->requests] = (int32_t)++d->tokens;
}

assay_model_batch driver_batch(model_driver *d) {
  cr_assert_eq(assay_kv_tables(d->kv, d->request, d->requests, d->max_blocks, d->table, d->kv_len, &error), ASSAY_OK,
               "%s", error.text);
  int64_t state_copies = 0;
  const assay_kv_copy *pairs = assay_kv_state_copies(d->kv, &state_copies);
  for (int64_t i = 0; i < d->requests && d->states != NULL; ++i)
    d->states[i] = d->request[i] >= 0 ? assay_kv_state_slot(d->kv, d->request[i]) : -1;
  return (assay_model_batch){.requests = d->requests,
                             .cu_q = d->cu_q,
                             .ids = d->ids,
                             .kv_len = d->kv_len,
                             .slots = d->slots,
                             .block_table = d->table,
                             .max_blocks = d->max_blocks,
                             .copies = &d->copies[0].source,
                             .copy_count = d->copy_count,
                             .logit_rows = d->logit_rows,
                             .logit_count = d->logit_count,
                             .states = d->states,
                             .state_copies = state_copies > 0 ? &pairs[0].source : NULL,
                             .state_copy_count = state_copies};
}

const double *driver_step(model_driver *d, const assay_model_taps *taps) {
  const assay_model_batch batch = driver_batch(d);
  error.text[0] = '\0';
  cr_assert_eq(d->backend->forward(d->session, &batch, d->logits, taps, &error), ASSAY_OK, "%s", error.text);
  const int64_t step = assay_kv_step_begin(d->kv); /* this empties the list of states' pairs */
  for (int64_t i = 0; i < d->requests; ++i)
    if (d->request[i] >= 0) {
      bool kept = false;
      cr_assert_eq(assay_kv_commit(d->kv, d->request[i], d->ids + d->cu_q[i], d->cu_q[i + 1] - d->cu_q[i], &error),
                   ASSAY_OK, "%s", error.text);
      if (d->keeps) cr_assert_eq(assay_kv_keep_state(d->kv, d->request[i], &kept, &error), ASSAY_OK, "%s", error.text);
    }
  cr_assert_eq(assay_kv_step_done(d->kv, step, &error), ASSAY_OK, "%s", error.text);
  d->requests = d->tokens = d->logit_count = d->copy_count = 0;
  return d->logits;
}

int32_t driver_argmax(const double *logits, int64_t vocab) {
  int32_t best = 0;
  for (int32_t i = 1; i < vocab; ++i)
    if (logits[i] > logits[best]) best = i;
  return best;
}

void driver_prompt(model_driver *d, const int32_t *ids, int64_t n, int64_t chunk, double *logits) {
  const int32_t request = driver_request(d, NULL, 0, NULL);
  if (chunk == 0) chunk = n;
  for (int64_t at = 0; at < n; at += chunk) {
    const int64_t count = n - at < chunk ? n - at : chunk;
    driver_add(d, request, ids + at, count, true);
    memcpy(logits + at * d->config.vocab, driver_step(d, NULL), (size_t)(count * d->config.vocab) * sizeof *logits);
  }
  cr_assert_eq(assay_kv_release(d->kv, request, &error), ASSAY_OK, "%s", error.text);
}
