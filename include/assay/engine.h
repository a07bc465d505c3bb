/* engine.h: an engine that serves requests over a forward pass on a device. It owns the block manager, chooses tokens
 * on the device, and replays whole decode steps as graphs. The host waits for no token: it queues a step while the step
 * before runs, and the ids arrive later, in order. An engine belongs to one thread at a time (docs/models.md).
 *
 *   open      uploads weights, reserves workspaces, captures one graph per bucket and half of the double buffers;
 *             buckets are 1, 2, 4, 8 ... rows, the last is max_batch. Lengths that differ much may have a second one
 *   request   adds a prompt; tokens found in the prefix index need not be computed
 *   step      runs prompt tokens of some requests and one token of others: prefill, chunks, mixed, decode. A step of
 *             decode alone is a graph's replay, with pad rows up to its bucket
 *   tokens    gives the ids that have arrived; after wait: all queued ones
 *   release   ends a request; its blocks are reused once the steps that read them are done */
#ifndef ASSAY_ENGINE_H
#define ASSAY_ENGINE_H

#include "device.h"
#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct assay_engine assay_engine;

/* Options of an engine. */
typedef struct assay_engine_options {
  const char *device; /* "simt", "cuda" */
  int64_t num_blocks; /* blocks of the pool */
  int64_t max_batch;  /* most requests open at one time, and in one step */
  int64_t max_tokens; /* most rows of one step, at least max_batch */
  /* Most tokens of one request, prompt and output. Grids and splits follow from this capacity. 0: max_pos. */
  int64_t max_length;
  bool eager;     /* no graphs: every step runs call by call */
  bool no_prefix; /* no prefix index */
  /* Slots of the pool of states, in families whose requests have states; others allow 0. At least max_batch, and one
   * more with a prefix index. Slots without a request keep states at the ends of blocks: a prefix is a hit only up to
   * such an end. 0: as many again as requests can need. */
  int64_t num_states;
  const assay_model_options *model; /* forms and forced variants; NULL: the defaults */
} assay_engine_options;

/* How a request's tokens are chosen. Temperature 0 takes the largest logit. `id` is the Philox counter's id. */
typedef struct assay_engine_sampling {
  double temperature, top_p, min_p;
  int64_t top_k;
  uint64_t seed, id;
} assay_engine_sampling;

/* Opens an engine and writes it to *made; the caller closes it. `weights` may be freed afterwards. Returns
 * ASSAY_ERR_INPUT with a message that names the option, what was found and what is allowed. Unknown forms, operators
 * and variants are such errors, and so is a form that is on although the model cannot have it. ASSAY_ERR_NO_DEVICE:
 * this machine has no such device. */
assay_status assay_engine_open(const assay_model_config *config, const assay_model_weights *weights,
                               const assay_engine_options *options, assay_engine **made, assay_error *error);
/* Waits for queued work, then frees the engine. NULL is allowed. */
void assay_engine_close(assay_engine *engine);

/* Opens a request with a prompt of n >= 1 ids, which are copied. *hit, unless NULL, gets the number of its tokens that
 * the cache already holds. sampling NULL: greedy. ASSAY_ERR_MEMORY: max_batch requests are open. */
assay_status assay_engine_request(assay_engine *engine, const int32_t *prompt, int64_t n,
                                  const assay_engine_sampling *sampling, int32_t *request, int64_t *hit,
                                  assay_error *error);
/* Opens a second request that continues from the present state of the first. Both share blocks until one of them
 * writes, and both have the same tokens so far. The first one's whole prompt must be computed. Waits for queued
 * work. */
assay_status assay_engine_fork(assay_engine *engine, int32_t request, const assay_engine_sampling *sampling,
                               int32_t *child, assay_error *error);
/* Returns how many prompt tokens are not computed yet; -1 if the request is unknown. */
int64_t assay_engine_left(const assay_engine *engine, int32_t request);
/* Returns how many tokens of its prompt the request should have in the next step, `most` or fewer. Where requests have
 * states, the tokens end with a block if they reach its end, so that a later prompt can start there. -1 if the request
 * is unknown. */
int64_t assay_engine_chunk(const assay_engine *engine, int32_t request, int64_t most);

/* The share of one request in a step. */
typedef struct assay_engine_part {
  int32_t request;
  int64_t tokens;        /* 1 .. left() tokens of the prompt; 1 if left() is 0 */
  const int32_t *forced; /* if left() is 0: the id to continue with; NULL: the chosen one */
} assay_engine_part;

/* Reserves slots, uploads tables and lengths while the step before runs, and queues the step. Also queues the choice of
 * the next token for every request whose prompt is complete. ASSAY_ERR_MEMORY: the pool is exhausted and nothing was
 * queued. */
assay_status assay_engine_step(assay_engine *engine, const assay_engine_part *part, int64_t count, assay_error *error);

/* Gives the chosen tokens that have arrived: *count ids at *ids, valid until the next call with this request. Does not
 * wait. ASSAY_ERR_INTERNAL: a row of logits had a NaN, +Inf, or nothing but -Inf. */
assay_status assay_engine_tokens(assay_engine *engine, int32_t request, const int32_t **ids, int64_t *count,
                                 assay_error *error);
/* Waits until all queued steps are done and their tokens have arrived. Returns the status of the first step that
 * failed. */
assay_status assay_engine_wait(assay_engine *engine, assay_error *error);
/* Waits, then writes the logits [rows, V] from which the last step's choices were made. Rows follow the order of the
 * step's parts, without the parts whose prompt is not complete. A step that chose its tokens by lm_head_argmax wrote
 * none: its logits are computed now, by lm_head, whose sums may be rounded otherwise. ASSAY_ERR_INPUT: `rows` is
 * another number. */
assay_status assay_engine_logits(assay_engine *engine, int64_t rows, double *logits, assay_error *error);
/* Ends a request. ASSAY_ERR_INPUT: no such request is open. */
assay_status assay_engine_release(assay_engine *engine, int32_t request, assay_error *error);

/* ---- what was done --------------------------------------------------------------------------------------- */

/* Describes the calls of operators by variant and path, replays included. `index` counts from 0. Returns false past the
 * last entry. */
bool assay_engine_path(const assay_engine *engine, int32_t index, assay_model_path *path);
/* Checks, at the end of a run, that forced variants and forms were used. ASSAY_ERR_INPUT names the forced variants, or
 * the form that is on, that no call took so far. */
assay_status assay_engine_check_forced(const assay_engine *engine, assay_error *error);

typedef struct assay_engine_stats {
  int64_t steps, replays, captures, rows, pad_rows, prompt_tokens, hit_tokens, copied_blocks;
  int64_t arranged;        /* steps before which ids were reordered on the device */
  int64_t memory_bytes;    /* on the device, workspaces included */
  int64_t workspace_bytes; /* workspaces that graphs use */
  int64_t copied_states;   /* pairs of slots of the pool of states */
} assay_engine_stats;

void assay_engine_get_stats(const assay_engine *engine, assay_engine_stats *stats);
/* Returns the device on which everything runs, for marks and times around steps. It is valid while the engine is
 * open. */
const assay_device *assay_engine_device(const assay_engine *engine);

/* Functions called around every call of a step that runs call by call (eager, prefill), and while a graph is captured.
 * NULL: none. `path` is set in after(). A hook may use the device's timing, which waits. */
typedef struct assay_engine_hooks {
  void *context;
  void (*before)(void *context, const assay_model_path *call);
  void (*after)(void *context, const assay_model_path *call);
} assay_engine_hooks;

/* Sets the hooks, which are copied; NULL removes them. */
void assay_engine_set_hooks(assay_engine *engine, const assay_engine_hooks *hooks);
/* Chooses between graphs and call by call from the next step on. ASSAY_ERR_INPUT: the engine was opened with `eager`,
 * and graphs are wanted. */
assay_status assay_engine_set_eager(assay_engine *engine, bool eager, assay_error *error);

/* Times by the device's clock: a replay of the last step's graph, and a replay of the same calls without the launches
 * of one operator. Both are medians of replays in turn. */
typedef struct assay_engine_graph_time {
  double whole_us, without_us;
  int64_t calls; /* calls left out; 0: the step has none of them */
} assay_engine_graph_time;

/* Times the last step without the calls of `op` by `variant` (NULL: by any variant). Waits. Afterwards everything is as
 * the step left it, and nothing has been counted. During the measurement, calls that follow the left-out ones compute
 * from old values. ASSAY_ERR_INPUT names an unknown operator or variant, or says that no graph can repeat the last
 * step. A prefill, a call-by-call step with fewer rows than a bucket, and an engine opened with `eager` are such cases.
 * ASSAY_ERR_UNSUPPORTED: the device has no clock. */
assay_status assay_engine_time_without(assay_engine *engine, const char *op, const char *variant,
                                       assay_engine_graph_time *time, assay_error *error);

#ifdef __cplusplus
}
#endif
#endif
