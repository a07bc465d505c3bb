/* kv.h: the block manager and prefix cache: which request owns which block of the paged KV cache. It is bookkeeping on
 * the host. It never touches keys and values, and both forward passes ask it. It is for one thread at a time.
 *
 * The pool has num_blocks blocks of block_size tokens. Token t of a request lives in block table[t / block_size] at
 * slot = block * block_size + t % block_size. A block's count is the number of tables that name it.
 *   used  count >= 1.
 *   idle  count 0, its tokens still in the prefix index: a later prompt may use it again.
 *   free  count 0, not indexed.
 * A block that loses its last table becomes idle if it is indexed, else free. Allocation takes a free block. If none is
 * free, it takes the least recently used idle block and erases its key. A table is released from its end, so that the
 * end of a prefix is evicted before its beginning.
 *
 * Full blocks are keyed by a chained hash of their tokens. They are compared token by token, and so are their
 * predecessors: a hit is a hit on all the tokens up to there. Two blocks may have one prefix if they were computed side
 * by side. Then the first one keeps the key; the other one stays its request's own and becomes free with it. When a key
 * is erased, the keys of longer prefixes built on it are erased too, because nothing could verify them any more.
 *
 * One round of an engine, all on one in-order stream:
 *   open, fork, reserve_append ...    set what the step computes: tables, slots, copies
 *   step = step_begin                 from here on all of that counts as queued. Then queue on the device:
 *                                     copy_blocks(copies), before anything is written; kv_append or what replaces
 *                                     it; attention over the tables.
 *   commit ...                        gives the token ids of the slots; full blocks can be hit from the next step on
 *   release ...                       at any time, also while the step is queued
 *   step_done(step)                   the device has finished the step: blocks it used may be reused.
 * A step counts as using every block that a table named when it began, and the blocks of its copies. */
#ifndef ASSAY_CORE_KV_H
#define ASSAY_CORE_KV_H

#include <stdbool.h>
#include <stdint.h>

#include "assay/status.h"

typedef struct assay_kv assay_kv;

typedef struct assay_kv_config {
  int64_t num_blocks;   /* 1 .. 2^31 - 1 */
  int64_t block_size;   /* tokens, 1 .. 256; kernels take 8, 16, 32, 64, 128, 256 */
  int64_t max_requests; /* most requests open at one time, 1 .. 2^31 - 1 */
  /* Blocks of one table. max_blocks * block_size <= 2^31 - 1 tokens is the longest request. */
  int64_t max_blocks;
  /* 64, or fewer so that tests meet collisions. 0: no prefix index, and commit does nothing. */
  int64_t hash_bits;
  /* Slots of the pool of states, 0 to 65536: of models whose requests have a state beside keys and values. A prefix
   * then is a hit only up to the end of a block whose state is kept. 0: there are no states. */
  int64_t num_states;
} assay_kv_config;

typedef enum assay_kv_state { ASSAY_KV_FREE, ASSAY_KV_USED, ASSAY_KV_IDLE } assay_kv_state;

/* One row of copy_blocks' pairs: it stands for K and V of the whole block in every layer. */
typedef struct assay_kv_copy {
  int32_t source, target;
} assay_kv_copy;

typedef struct assay_kv_stats {
  /* Present values. free + used + idle = num_blocks. */
  int64_t free, used, idle; /* blocks */
  int64_t held;             /* among the free and the idle: not reused until a step is done */
  int64_t keys;             /* blocks in the prefix index */
  int64_t requests;         /* open requests */
  int64_t queued_steps;
  /* Totals since create. */
  int64_t peak_used;
  int64_t allocated, cloned, evicted; /* blocks; evicted: idle ones that lost their key */
  int64_t prompt_tokens, hit_tokens;  /* given to open; found in the index */
  int64_t cut_tokens;                 /* found in the index, and no hit for want of a state */
  int64_t collisions;                 /* keys with the wanted hash and another prefix */
  int64_t duplicates;                 /* full blocks whose prefix already had a key */
  int64_t exhausted;                  /* reservations that found too few blocks */
} assay_kv_stats;

/* Creates a block manager; the caller destroys it. All memory is allocated here, about
 * num_blocks * (88 + 4 * block_size) + 4 * max_requests * max_blocks bytes; no later call allocates. ASSAY_ERR_INPUT: a
 * value is outside its range. ASSAY_ERR_MEMORY: out of memory. */
assay_status assay_kv_create(const assay_kv_config *config, assay_kv **created, assay_error *error);
void assay_kv_destroy(assay_kv *kv); /* NULL is allowed */

/* Opens a request, a number in [0, max_requests), that starts with the longest prefix of `prompt` [n] in the index.
 * *hit gets the tokens of that prefix. They are a multiple of block_size, at most floor((n - 1) / block_size) blocks,
 * so that at least one token is left to compute. With states they end where a state is kept. The request's length is
 * *hit. Reserve the other n - *hit tokens, at once or in chunks. n = 0: no prompt. ASSAY_ERR_MEMORY: max_requests are
 * open, or no slot is left for a state. ASSAY_ERR_INPUT: n is negative or longer than a table. */
assay_status assay_kv_open(assay_kv *kv, const int32_t *prompt, int64_t n, int32_t *request, int64_t *hit,
                           assay_error *error);

/* Makes room for n more tokens: allocates blocks, clones the partial last block if its count is above 1, advances the
 * length. `slots` [n] (or NULL) gets the new tokens' slots; their blocks have count 1. If a block was cloned,
 * copies[*copy_count] gets the pair and *copy_count grows by one. That happens at most once per call, and only with n >
 * 0. Both may be NULL only if the request has no forks. n = 0 does nothing.
 * A failure changes nothing. ASSAY_ERR_MEMORY: the pool is exhausted (preempt something, or wait for a step).
 * ASSAY_ERR_INPUT: no such request, n < 0, longer than a table, a clone without a place for its pair. */
assay_status assay_kv_reserve_append(assay_kv *kv, int32_t request, int64_t n, int64_t *slots, assay_kv_copy *copies,
                                     int64_t *copy_count, assay_error *error);

/* Gives the ids of the next n tokens that have slots but no ids yet. Blocks that are full now are indexed.
 * ASSAY_ERR_INPUT: more ids than such tokens, or a slot belongs to a step that has not begun. Otherwise another request
 * of the same step could hit a block before it is written. */
assay_status assay_kv_commit(assay_kv *kv, int32_t request, const int32_t *tokens, int64_t n, assay_error *error);

/* Opens a second request with the same tokens, in the same blocks. ASSAY_ERR_MEMORY: max_requests are open, or no
 * slot is left for a state. ASSAY_ERR_INPUT: the parent has slots that belong to a step that has not begun, or tokens
 * without ids. */
assay_status assay_kv_fork(assay_kv *kv, int32_t request, int32_t *child, assay_error *error);

/* Ends a request, finished or preempted. If it has slots in a step that has not begun, leave its rows out of that
 * step. */
assay_status assay_kv_release(assay_kv *kv, int32_t request, assay_error *error);

/* Makes at least `blocks` idle blocks free, least recently used first, or as many as are idle and not held. Returns how
 * many it freed. */
int64_t assay_kv_evict(assay_kv *kv, int64_t blocks);

/* step_begin returns the step's number. Steps are numbered from 1 and are done in order: step_done(s) ends all steps up
 * to s. ASSAY_ERR_INPUT: s is done already, or has not begun. */
int64_t assay_kv_step_begin(assay_kv *kv);
assay_status assay_kv_step_done(assay_kv *kv, int64_t step, assay_error *error);

/* Describe an open request; -1 or NULL for any other. The table lives until the request is released. */
int64_t assay_kv_length(const assay_kv *kv, int32_t request);                        /* tokens with slots */
const int32_t *assay_kv_table(const assay_kv *kv, int32_t request, int64_t *blocks); /* ceil(length / block_size) */

/* Writes arrays for upload: table [count, max_blocks] with -1 in dead entries, and kv_len [count]. Request -1 is a pad
 * row of length 0. ASSAY_ERR_INPUT: no such request, or a table wider than max_blocks; nothing is written. */
assay_status assay_kv_tables(const assay_kv *kv, const int32_t *requests, int64_t count, int64_t max_blocks,
                             int32_t *table, int32_t *kv_len, assay_error *error);

/* States. An open request has a slot of the pool. It is known here which slots are copied before the next step. A
 * request with a hit starts from a state that is kept, and a fork from its parent's; kv_keep_state keeps one. The list
 * of pairs grows until step_begin, which empties it: ask for it before. No slot is the target of one pair and in
 * another pair too. */
int32_t assay_kv_state_slot(const assay_kv *kv, int32_t request); /* -1: no such request, or no states */
const assay_kv_copy *assay_kv_state_copies(const assay_kv *kv, int64_t *count);
/* Keeps the state of a request whose tokens fill their blocks and belong to steps that have begun. Later prompts can
 * start there once the tokens are committed. Otherwise, and where no slot is left, nothing is kept. A request can have
 * one state that waits for ids. A state is lost with its block's key, or when its slot is needed, least recently used
 * first. */
assay_status assay_kv_keep_state(assay_kv *kv, int32_t request, bool *kept, assay_error *error);

int64_t assay_kv_count(const assay_kv *kv, int64_t block); /* -1: no such block */
assay_kv_state assay_kv_block_state(const assay_kv *kv, int64_t block);
void assay_kv_get_stats(const assay_kv *kv, assay_kv_stats *stats);

/* Checks every invariant of the bookkeeping by counting all of it again, in O(blocks + sum of tables) time and without
 * memory. ASSAY_ERR_INTERNAL names the first invariant that does not hold. */
assay_status assay_kv_check(assay_kv *kv, assay_error *error);

#endif
