/* steps.c: one step after the other. */
#include "steps.h"

#include <stdlib.h>
#include <string.h>

static void *room(model_steps *s, int64_t count, size_t size) {
  void *memory = calloc((size_t)count + 1, size);
  if (memory == NULL && s->status == ASSAY_OK)
    s->status = assay_fail(s->error, ASSAY_ERR_MEMORY, "steps: out of memory");
  return memory;
}

static void note(model_steps *s, assay_status status) {
  if (s->status == ASSAY_OK) s->status = status;
}

void steps_open(model_steps *s, const assay_model_backend *backend, const assay_model_config *config,
                const assay_model_weights *weights, const assay_model_limits *limits, assay_model_mode mode,
                const assay_model_options *options, const assay_model_taps *taps, assay_error *error) {
  *s = (model_steps){.config = *config, .backend = backend, .taps = taps, .error = error};
  s->max_blocks = limits->num_blocks;
  s->max_tokens = limits->max_tokens;
  s->max_requests = limits->max_requests;
  const int64_t states = assay_model_has_states(config) ? 2 * (s->max_requests + 8) : 0;
  assay_model_limits own = *limits;
  own.num_states = states;
  const assay_kv_config kv = {limits->num_blocks, config->block_size, s->max_requests + 8, s->max_blocks, 64, states};
  s->request = room(s, s->max_requests, sizeof *s->request);
  s->cu_q = room(s, s->max_requests + 1, sizeof *s->cu_q);
  s->kv_len = room(s, s->max_requests, sizeof *s->kv_len);
  s->table = room(s, s->max_requests * s->max_blocks, sizeof *s->table);
  s->ids = room(s, s->max_tokens, sizeof *s->ids);
  s->slots = room(s, s->max_tokens, sizeof *s->slots);
  s->logit_rows = room(s, s->max_tokens, sizeof *s->logit_rows);
  s->copies = room(s, s->max_requests, sizeof *s->copies);
  s->states = states > 0 ? room(s, s->max_requests, sizeof *s->states) : NULL;
  s->logits = room(s, limits->max_logits * config->vocab, sizeof *s->logits);
  if (s->status == ASSAY_OK) note(s, assay_kv_create(&kv, &s->kv, error));
  if (s->status == ASSAY_OK) note(s, backend->open(config, weights, &own, mode, &s->session, error));
  if (s->status == ASSAY_OK && options != NULL) note(s, backend->set_options(s->session, options, error));
}

void steps_close(model_steps *s) {
  s->backend->close(s->session);
  assay_kv_destroy(s->kv);
  void *const all[] = {s->request, s->cu_q,       s->kv_len, s->table,  s->ids,
                       s->slots,   s->logit_rows, s->copies, s->logits, s->states};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i)
    free(all[i]);
}

int32_t steps_request(model_steps *s, const int32_t *prompt, int64_t n, int64_t *hit) {
  int32_t request = -1;
  int64_t found = 0;
  if (s->status == ASSAY_OK) note(s, assay_kv_open(s->kv, prompt, n, &request, hit != NULL ? hit : &found, s->error));
  return request;
}

int32_t steps_fork(model_steps *s, int32_t request) {
  int32_t child = -1;
  if (s->status == ASSAY_OK) note(s, assay_kv_fork(s->kv, request, &child, s->error));
  return child;
}

void steps_release(model_steps *s, int32_t request) {
  if (s->status == ASSAY_OK) note(s, assay_kv_release(s->kv, request, s->error));
}

void steps_add(model_steps *s, int32_t request, const int32_t *ids, int64_t n, int64_t wanted) {
  if (s->status == ASSAY_OK && (s->requests == s->max_requests || s->tokens + n > s->max_tokens))
    s->status = assay_fail(s->error, ASSAY_ERR_INTERNAL, "steps: more rows than there is room for");
  if (s->status != ASSAY_OK) return;
  if (request < 0) {
    s->ids[s->tokens] = 0;
    s->slots[s->tokens] = -1;
  } else {
    note(s, assay_kv_reserve_append(s->kv, request, n, s->slots + s->tokens, s->copies, &s->copy_count, s->error));
    memcpy(s->ids + s->tokens, ids, (size_t)n * sizeof *ids);
  }
  for (int64_t i = n - wanted; i < n; ++i)
    s->logit_rows[s->logit_count++] = (int32_t)(s->tokens + i);
  s->request[s->requests++] = request;
  s->tokens += n;
  s->cu_q[s->requests] = (int32_t)s->tokens;
}

void steps_run(model_steps *s) {
  if (s->status == ASSAY_OK)
    note(s, assay_kv_tables(s->kv, s->request, s->requests, s->max_blocks, s->table, s->kv_len, s->error));
  if (s->status != ASSAY_OK) return;
  int64_t pairs = 0;
  const assay_kv_copy *pair = assay_kv_state_copies(s->kv, &pairs);
  for (int64_t i = 0; i < s->requests && s->states != NULL; ++i)
    s->states[i] = s->request[i] >= 0 ? assay_kv_state_slot(s->kv, s->request[i]) : -1;
  const assay_model_batch batch = {.requests = s->requests,
                                   .cu_q = s->cu_q,
                                   .ids = s->ids,
                                   .kv_len = s->kv_len,
                                   .slots = s->slots,
                                   .block_table = s->table,
                                   .max_blocks = s->max_blocks,
                                   .copies = &s->copies[0].source,
                                   .copy_count = s->copy_count,
                                   .logit_rows = s->logit_rows,
                                   .logit_count = s->logit_count,
                                   .states = s->states,
                                   .state_copies = pairs > 0 ? &pair[0].source : NULL,
                                   .state_copy_count = pairs};
  note(s, s->backend->forward(s->session, &batch, s->logits, s->taps, s->error));
  const int64_t step = assay_kv_step_begin(s->kv); /* empties the list of states' pairs */
  for (int64_t i = 0; i < s->requests && s->status == ASSAY_OK; ++i)
    if (s->request[i] >= 0) {
      bool kept = false;
      note(s, assay_kv_commit(s->kv, s->request[i], s->ids + s->cu_q[i], s->cu_q[i + 1] - s->cu_q[i], s->error));
      note(s, assay_kv_keep_state(s->kv, s->request[i], &kept, s->error));
    }
  if (s->status == ASSAY_OK) note(s, assay_kv_step_done(s->kv, step, s->error));
  s->requests = s->tokens = s->logit_count = s->copy_count = 0;
}
