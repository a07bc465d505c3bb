/* model_driver.h: requests run through a model: block manager and session, side by side, as an engine does it. */
#ifndef ASSAY_SELFTEST_MODEL_DRIVER_H
#define ASSAY_SELFTEST_MODEL_DRIVER_H

#include "assay/model.h"
#include "core/kv.h"

typedef struct model_driver {
  assay_model_config config;
  const assay_model_backend *backend;
  assay_model_session *session;
  assay_kv *kv;
  int64_t max_blocks, max_tokens, max_requests;
  /* The step that is being put together. */
  int64_t requests, tokens, logit_count, copy_count;
  int32_t *request, *cu_q, *ids, *kv_len, *table, *logit_rows;
  int64_t *slots;
  assay_kv_copy *copies;
  int32_t *states; /* [max_requests] slots; NULL where the family has no states */
  bool keeps;      /* the state of every request is kept where its tokens fill their blocks */
  double *logits;
} model_driver;

/* A pool of `blocks` blocks, steps of up to max_tokens rows in up to max_requests requests. Failures are assertions. */
void driver_open(model_driver *d, const assay_model_config *config, const assay_model_weights *weights, int64_t blocks,
                 int64_t max_tokens, int64_t max_requests, assay_model_mode mode);
void driver_open_on(model_driver *d, const assay_model_backend *backend, const assay_model_config *config,
                    const assay_model_weights *weights, int64_t blocks, int64_t max_tokens, int64_t max_requests,
                    assay_model_mode mode);
void driver_close(model_driver *d);

/* A request whose first *hit tokens are there already (hit may be NULL). */
int32_t driver_request(model_driver *d, const int32_t *prompt, int64_t n, int64_t *hit);
/* n more tokens of a request in the next step; logits of all of them, or of the last. */
void driver_add(model_driver *d, int32_t request, const int32_t *ids, int64_t n, bool all);
/* Adds a row that belongs to no request. */
void driver_add_pad(model_driver *d);
/* Runs the step and commits its tokens: logits, in the order of the rows. They live until the next step. */
const double *driver_step(model_driver *d, const assay_model_taps *taps);
/* The step as it stands, for tests that spoil it. */
assay_model_batch driver_batch(model_driver *d);

/* Greedy: the largest logit, the lower id where there are two. */
int32_t driver_argmax(const double *logits, int64_t vocab);
/* Logits [n, V] of one prompt alone, computed `chunk` tokens a step (0: all at once). */
void driver_prompt(model_driver *d, const int32_t *ids, int64_t n, int64_t chunk, double *logits);

#endif
