/* steps.h: steps of a backend's session, put together request by request over a block manager. */
#ifndef ASSAY_CONFORMANCE_MODELS_STEPS_H
#define ASSAY_CONFORMANCE_MODELS_STEPS_H

#include "assay/model.h"
#include "core/kv.h"

typedef struct model_steps {
  assay_model_config config;
  const assay_model_backend *backend;
  assay_model_session *session;
  const assay_model_taps *taps;
  assay_kv *kv;
  int64_t max_blocks, max_tokens, max_requests;
  assay_status status; /* status of the first call that failed; later calls do nothing */
  assay_error *error;
  /* The step that is being assembled. */
  int64_t requests, tokens, logit_count, copy_count;
  int32_t *request, *cu_q, *ids, *kv_len, *table, *logit_rows;
  int64_t *slots;
  assay_kv_copy *copies;
  int32_t *states; /* [max_requests] slots; NULL where the family has no states */
  double *logits;
} model_steps;

/* `limits` may leave num_states 0: the session gets as many as its requests can need, and as many to be kept. A state
 * is kept wherever a request's tokens fill their blocks. */
void steps_open(model_steps *s, const assay_model_backend *backend, const assay_model_config *config,
                const assay_model_weights *weights, const assay_model_limits *limits, assay_model_mode mode,
                const assay_model_options *options, const assay_model_taps *taps, assay_error *error);
void steps_close(model_steps *s);
/* Adds a request and returns its number. *hit receives how many of its first tokens the cache has already (hit may be
 * NULL). */
int32_t steps_request(model_steps *s, const int32_t *prompt, int64_t n, int64_t *hit);
int32_t steps_fork(model_steps *s, int32_t request);
void steps_release(model_steps *s, int32_t request);
/* Adds n tokens of a request to the next step, with logits of its last `wanted` ones. Request -1: a pad row. */
void steps_add(model_steps *s, int32_t request, const int32_t *ids, int64_t n, int64_t wanted);
/* Runs the step. The logits, in the order of the rows, stay in s->logits until the next step. */
void steps_run(model_steps *s);

#endif
