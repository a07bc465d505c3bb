/* engine_parts.h: what the engine's files share. Private to gpu/models/engine*.c.
 *
 * Step k reads the inputs of half k & 1, and its sampler writes the next ids into the other half's. Step k + 1 thus
 * finds its ids in place if its rows are the same requests in the same order. Otherwise the ids are arranged first:
 * gathered, with those of requests that pause, into one of two scratches. Rows of ids, scratches and new prompt ids lie
 * in one piece of memory, `ids`. A request knows the place in it where its next id will be.
 *
 * The lanes work as follows. UP waits until step k - 2 is done, fills half k & 1 from pinned memory, and sets MARK_UP.
 * The own lane waits for MARK_UP and until the tokens of step k - 2 are down, computes, and sets MARK_DONE. DOWN waits
 * for MARK_DONE, brings the tokens, and sets MARK_DOWN of the ring's place. The host waits where it would overwrite
 * pinned memory that is still to be read, two steps later. It also waits where it would overwrite tokens that have not
 * been taken, RING steps later. */
#ifndef ASSAY_GPU_MODELS_ENGINE_PARTS_H
#define ASSAY_GPU_MODELS_ENGINE_PARTS_H

#include "core/kv.h"
#include "gpu/models/pass.h"

enum { ENGINE_RING = 8, ENGINE_BUCKETS = 24 };
enum { MARK_DONE, MARK_UP = MARK_DONE + 2, MARK_DOWN = MARK_UP + 2 };

/* Inputs of a step, at the same offsets on the host and on the device. */
typedef struct engine_input {
  unsigned char *base;
  int64_t *slots, *seed, *id; /* [B] */
  int32_t *kv_len, *cu_q, *positions, *rows, *step, *top_k;
  float *temperature, *top_p, *min_p;
  int32_t *states, *fresh_states; /* [B] of families with states: slots of the pool; whether they begin with zeros */
  int64_t row_bytes;              /* all arrays above */
  /* Only used if the step is more than one token per request in place. */
  int64_t *wide_slots, *copies;             /* [N], [B, 2] */
  int64_t *state_copies;                    /* [S, 2] */
  int32_t *wide_positions, *index, *behind; /* [N], [N + B], [B] */
  int32_t *tail_request, *tail_len;         /* [N] */
  int64_t wide_bytes;
  int32_t *table;                            /* [B, W] */
  int32_t *run_cu_q, *run_cu_k, *run_blocks; /* [2 B], [2 B], [B, W] of runs (pass_expand_plan); NULL: no such form */
  int32_t *fresh;                            /* [N] on the host; on the device in `ids` */
  int64_t bytes;
} engine_input;

typedef struct engine_request {
  bool open, sampled; /* sampled: a next token has been chosen, or will be */
  int32_t kv;
  int64_t serial;
  int32_t *text; /* [max_length + 1] the prompt, then the ids that were fed in, as far as they are known */
  int32_t *chosen;
  int64_t prompt, computed, steps, arrived, committed, known; /* computed: prompt tokens; steps: tokens chosen */
  int64_t place;                                              /* where the next id is */
  assay_engine_sampling sampling;
  bool bad;
} engine_request;

typedef struct engine_sent {
  int64_t kv_step, rows; /* rows of tokens */
  int32_t *request;      /* [B] */
  int64_t *serial;       /* [B] */
} engine_sent;

typedef struct engine_graph {
  void *graph;
  int64_t *calls; /* [count] calls that a replay adds to each row of the counts */
  int32_t count;
} engine_graph;

/* Kinds of steps that have graphs of their own. */
enum {
  ENGINE_EVEN = 1,   /* lengths differ much: attention in even shares */
  ENGINE_GREEDY = 2, /* every row takes the largest logit: no logits are written */
  ENGINE_KINDS = 4
};

typedef struct engine_bucket {
  int64_t rows;
  int kinds; /* those that differ from the usual step */
  engine_graph graph[ENGINE_KINDS][2];
} engine_bucket;

struct assay_engine {
  pass *m;
  assay_engine_options options;
  const assay_device *device;
  const assay_device_flow *flow;
  assay_kv *kv;
  int64_t B, N, W; /* max_batch, max_tokens, width of tables */
  int64_t S;       /* slots of the pool of states; 0: the family has none */
  void *memory, *workspace;
  int64_t memory_bytes, workspace_bytes;
  unsigned char *pinned;
  engine_input host[2], on[2];
  int32_t *ids;                                  /* device */
  int32_t *status;                               /* device: the sampler's status */
  int32_t *ring;                                 /* pinned [ENGINE_RING, B] */
  int64_t scratch[2], fresh[2], zero, ids_count; /* places */
  int32_t which;                                 /* scratch of the last arrangement */
  int64_t *row_serial[2], *row_blocks[2];        /* [B], for the host's tables */
  engine_request *request;                       /* [B] */
  engine_sent sent[ENGINE_RING];
  engine_bucket bucket[ENGINE_BUCKETS];
  int32_t buckets;
  engine_bucket *again;  /* its graph repeats the last step from what its half holds; NULL: no graph does */
  int again_kind;        /* the kind of that step */
  bool no_logits;        /* the last step wrote none */
  assay_kv_copy *copies; /* [B] */
  int64_t collected, serial, logit_rows;
  /* Invariant steps with one_launch: generated tokens have sums of their own. A step with both kinds is two passes, and
   * its parts with prompt tokens come first. */
  bool by_role, turned;           /* turned: the last step's parts had another order */
  assay_engine_part *turned_part; /* [B] the step's parts in that order */
  int64_t *logit_row;             /* [B] where the rows of logits are, in the order of the caller's parts */
  bool eager;
  assay_status broken;
  assay_engine_stats stats;
};

/* engine_graph.c */
/* Points the pass's tensors to a half. wide: positions and slots of the wide part, with cu_q. ids: a place. */
void engine_aim(assay_engine *e, int half, int64_t N, int64_t requests, int64_t logits, bool wide, int64_t ids,
                assay_error *error);
/* Runs the forward pass and chooses the tokens, into the other half's ids. first: the number of its first row of logits
 * among those of the step. */
assay_status engine_compute(assay_engine *e, int half, int64_t first);
/* As engine_aim, for the generated tokens of a step whose first `parts`, with `rows` rows and `sampled` rows of logits,
 * have prompt tokens. ids: the place of the step's first id. */
void engine_aim_generated(assay_engine *e, int half, int64_t parts, int64_t rows, int64_t sampled, int64_t count,
                          int64_t ids, assay_error *error);
assay_status engine_capture(assay_engine *e, assay_error *error);
void engine_release_graphs(assay_engine *e);
/* Writes the pairs of states that are to be copied to a half's inputs on the host. Returns how many there are. */
int64_t engine_put_state_copies(assay_engine *e, int half);
/* Copies the pairs that a half's inputs on the device have. */
void engine_copy_states(assay_engine *e, int half, int64_t count);
engine_bucket *engine_bucket_of(assay_engine *e, int64_t rows);
/* Returns the graph of a step of a kind. */
const engine_graph *engine_graph_of(const engine_bucket *bucket, int half, int kind);
assay_status engine_replay(assay_engine *e, const engine_graph *g, assay_error *error);

/* engine_tokens.c */
/* Commits tokens that are known and have slots, so that full blocks of them can be hit. Keeps the request's state if
 * it ends with a block, though its last ids may not be known yet. */
assay_status engine_commit(assay_engine *e, engine_request *r, assay_error *error);
/* Takes the tokens that have arrived; with `wait`, at least those of one step. */
assay_status engine_collect(assay_engine *e, bool wait, assay_error *error);

#endif
