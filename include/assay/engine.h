/* engine.h: requests served over a forward pass on a device. It has the block manager, chooses tokens on the device,
 * and replays whole decode steps as graphs. Nothing waits for a token: a step is queued while the one before runs, and
 * the ids come to the host later, in their order. One thread at a time, one engine a thread (docs/models.md).
 *
 *   open      weights go to the device, workspaces are reserved, one graph a bucket and half of the double buffers is
 *             captured: 1, 2, 4, 8 ... rows, at last max_batch
 *   request   a prompt; tokens that the prefix index has need not be computed
 *   step      prompt tokens of some requests, one token of others: prefill, chunks, mixed, decode. Decode alone is a
 *             graph's replay, with pad rows up to its bucket
 *   tokens    what has arrived; wait: everything queued has
 *   release   the request is over; its blocks are another's once the steps that read them are done */
#ifndef ASSAY_ENGINE_H
#define ASSAY_ENGINE_H

#include "device.h"
#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct assay_engine assay_engine;

typedef struct assay_engine_options {
  const char *device; /* "simt", "cuda" */
  int64_t num_blocks; /* of the pool */
  int64_t max_batch;  /* requests open at one time, and of one step */
  int64_t max_tokens; /* rows of one step, at least max_batch */
  int64_t max_length; /* tokens of one request, prompt and output: the capacity that grids and splits follow from; 0:
                         max_pos */
  bool eager;         /* no graphs: every step call by call */
  bool no_prefix;     /* no prefix index */
  const assay_model_options *model; /* forms and forced variants; NULL: as usual */
} assay_engine_options;

/* How a request's tokens are chosen. Temperature 0: the largest logit. `id` is the Philox counter's. */
typedef struct assay_engine_sampling {
  double temperature, top_p, min_p;
  int64_t top_k;
  uint64_t seed, id;
} assay_engine_sampling;

/* ASSAY_ERR_INPUT names the option, what was found and what is allowed; an unknown form, operator or variant is one,
 * and a form that is on and that the model cannot have. ASSAY_ERR_NO_DEVICE: no such device here. `weights` may go
 * after it. */
assay_status assay_engine_open(const assay_model_config *config, const assay_model_weights *weights,
                               const assay_engine_options *options, assay_engine **made, assay_error *error);
void assay_engine_close(assay_engine *engine); /* NULL is allowed; waits for what is queued */

/* A request with its prompt, n >= 1 ids, which are copied. *hit: tokens of it that are in the cache already (NULL
 * allowed). sampling NULL: greedy. ASSAY_ERR_MEMORY: max_batch are open. */
assay_status assay_engine_request(assay_engine *engine, const int32_t *prompt, int64_t n,
                                  const assay_engine_sampling *sampling, int32_t *request, int64_t *hit,
                                  assay_error *error);
/* A second request that goes on where the first one is: same blocks until one of them writes, same tokens so far. The
 * first one has its whole prompt computed. Waits for what is queued. */
assay_status assay_engine_fork(assay_engine *engine, int32_t request, const assay_engine_sampling *sampling,
                               int32_t *child, assay_error *error);
int64_t assay_engine_left(const assay_engine *engine, int32_t request); /* prompt tokens that are not computed yet */

/* One request's share of a step. */
typedef struct assay_engine_part {
  int32_t request;
  int64_t tokens;        /* 1 .. left() of the prompt; with left() 0: 1 */
  const int32_t *forced; /* with left() 0: this id goes on, not the chosen one; NULL: the chosen one */
} assay_engine_part;

/* Reserves slots, uploads tables and lengths beside the step before, queues the step and the choice of the next token
 * of every request whose prompt is through. ASSAY_ERR_MEMORY: the pool is exhausted, and nothing was queued. */
assay_status assay_engine_step(assay_engine *engine, const assay_engine_part *part, int64_t count, assay_error *error);

/* Tokens chosen so far that have arrived: *count of them, in *ids, which live until the next call with this request.
 * Does not wait. ASSAY_ERR_INTERNAL: a row of logits had a NaN, or nothing but -Inf. */
assay_status assay_engine_tokens(assay_engine *engine, int32_t request, const int32_t **ids, int64_t *count,
                                 assay_error *error);
assay_status assay_engine_wait(assay_engine *engine, assay_error *error);
/* Logits [rows, V] that the last step's choices were made from, in the order of its parts, those whose prompt is not
 * through left out. Waits. ASSAY_ERR_INPUT: another number of rows. */
assay_status assay_engine_logits(assay_engine *engine, int64_t rows, double *logits, assay_error *error);
assay_status assay_engine_release(assay_engine *engine, int32_t request, assay_error *error);

/* ---- what was done --------------------------------------------------------------------------------------- */

/* Calls of operators by variant and path, replays included; index from 0, false behind the last. */
bool assay_engine_path(const assay_engine *engine, int32_t index, assay_model_path *path);
/* At the end of a run: ASSAY_ERR_INPUT names the forced variants, or the form that is on, that no call so far took. */
assay_status assay_engine_check_forced(const assay_engine *engine, assay_error *error);

typedef struct assay_engine_stats {
  int64_t steps, replays, captures, rows, pad_rows, prompt_tokens, hit_tokens, copied_blocks;
  int64_t arranged;        /* steps before which ids were put in another order on the device */
  int64_t memory_bytes;    /* on the device, workspaces included */
  int64_t workspace_bytes; /* that graphs use */
} assay_engine_stats;

void assay_engine_get_stats(const assay_engine *engine, assay_engine_stats *stats);
/* On which everything runs, for marks and times around steps. */
const assay_device *assay_engine_device(const assay_engine *engine);

/* Around every call of steps that run call by call (eager, prefill; while a graph is captured too): NULL for none.
 * `path` is set in after(). A hook may use the device's timing, which waits. */
typedef struct assay_engine_hooks {
  void *context;
  void (*before)(void *context, const assay_model_path *call);
  void (*after)(void *context, const assay_model_path *call);
} assay_engine_hooks;

void assay_engine_set_hooks(assay_engine *engine, const assay_engine_hooks *hooks);
/* From the next step on: graphs or call by call. ASSAY_ERR_INPUT: opened with eager, graphs cannot be had. */
assay_status assay_engine_set_eager(assay_engine *engine, bool eager, assay_error *error);

/* What a replay of the last step's graph takes by the device's clock, and what one of the same calls takes without the
 * launches of an operator: medians of replays in turn. */
typedef struct assay_engine_graph_time {
  double whole_us, without_us;
  int64_t calls; /* that were left out; 0: the step has none of them */
} assay_engine_graph_time;

/* `op` without its calls by `variant`, NULL: by any. Waits; at the end all is as the step left it, and nothing has been
 * counted. What follows the calls in the step computes meanwhile from what was there before. ASSAY_ERR_INPUT names an
 * unknown operator or variant; or the last step was none that a graph can do again: prefill, fewer rows than a bucket
 * call by call, opened with eager. ASSAY_ERR_UNSUPPORTED: the device has no clock. */
assay_status assay_engine_time_without(assay_engine *engine, const char *op, const char *variant,
                                       assay_engine_graph_time *time, assay_error *error);

#ifdef __cplusplus
}
#endif
#endif
