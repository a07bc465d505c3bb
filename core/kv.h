/* kv.h: who owns which block of the paged KV cache: block manager and prefix cache. Host bookkeeping alone: it
 * never touches keys and values, and both forward passes ask it. One thread at a time.
 *
 * The pool has num_blocks blocks of block_size tokens. Token t of a request lives in block table[t / block_size] at
 * slot = block * block_size + t % block_size. A block's count is the number of tables that name it:
 *   used  count >= 1
 *   idle  count 0, its tokens still in the prefix index: a later prompt may take it up again
 *   free  count 0, not indexed
 * Losing the last table makes a block idle if it is indexed, else free. Allocation takes a free block, then the
 * least recently used idle one, erasing its key. A table is released from its end, so that the end of a prefix is
 * evicted before its beginning.
 *
 * Full blocks are keyed by a chained hash of their tokens, and compared token by token, their predecessors too: a
 * hit is a hit on all the tokens up to there. Two blocks with one prefix (computed side by side): the first one
 * keeps the key, the other stays its request's own and becomes free with it. When a key is erased the keys
 * of longer prefixes built on it go with it, for nothing could verify them any more.
 *
 * One round of an engine, all on one in-order stream:
 *   open, fork, reserve_append ...    what the step is to compute: tables, slots, copies
 *   step = step_begin                 from here on all of that counts as queued; then queue on the device:
 *                                     copy_blocks(copies), before anything is written; kv_append or what replaces
 *                                     it; attention over the tables
 *   commit ...                        the token ids behind the slots; full blocks can be hit from the next step on
 *   release ...                       at any time, also with the step still queued
 *   step_done(step)                   the device has finished it: blocks it used may be reused
 * A step is taken to use every block that a table named when it began, and the blocks of its copies. */
#ifndef ASSAY_CORE_KV_H
#define ASSAY_CORE_KV_H

#include <stdint.h>

#include "assay/status.h"

typedef struct assay_kv assay_kv;

typedef struct assay_kv_config {
  int64_t num_blocks;   /* 1 .. 2^31 - 1 */
  int64_t block_size;   /* tokens, 1 .. 256; kernels take 8, 16, 32, 64, 128, 256 */
  int64_t max_requests; /* open at one time, 1 .. 2^31 - 1 */
  int64_t max_blocks;   /* of one table; max_blocks * block_size <= 2^31 - 1 tokens is the longest request */
  int64_t hash_bits;    /* 64, or fewer so that tests meet collisions; 0: no prefix index, and commit does nothing */
} assay_kv_config;

typedef enum assay_kv_state { ASSAY_KV_FREE, ASSAY_KV_USED, ASSAY_KV_IDLE } assay_kv_state;

/* One row of copy_blocks' pairs: K and V of the whole block, every layer. */
typedef struct assay_kv_copy {
  int32_t source, target;
} assay_kv_copy;

typedef struct assay_kv_stats {
  /* Now. free + used + idle = num_blocks. */
  int64_t free, used, idle; /* blocks */
  int64_t held;             /* of the free and the idle: not to be reused until a step is done */
  int64_t keys;             /* blocks in the prefix index */
  int64_t requests;         /* open */
  int64_t queued_steps;
  /* Since create. */
  int64_t peak_used;
  int64_t allocated, cloned, evicted; /* blocks; evicted: idle ones that lost their key */
  int64_t prompt_tokens, hit_tokens;  /* given to open; found in the index */
  int64_t collisions;                 /* keys with the hash that was looked for and another prefix */
  int64_t duplicates;                 /* full blocks whose prefix had a key already */
  int64_t exhausted;                  /* reservations that found too few blocks */
} assay_kv_stats;

/* All memory is taken here, about num_blocks * (88 + 4 * block_size) + 4 * max_requests * max_blocks bytes; no
 * later call allocates. ASSAY_ERR_INPUT: a value outside its range. ASSAY_ERR_MEMORY. */
assay_status assay_kv_create(const assay_kv_config *config, assay_kv **made, assay_error *error);
void assay_kv_destroy(assay_kv *kv); /* NULL is allowed */

/* A new request (a number in [0, max_requests)) that starts with the longest prefix of `prompt` [n] in the index:
 * *hit tokens, a multiple of block_size, at most floor((n - 1) / block_size) blocks, so that at least one token is
 * left to compute. Its length is *hit; reserve the other n - *hit tokens, at once or in chunks. n = 0: no prompt.
 * ASSAY_ERR_MEMORY: max_requests are open. ASSAY_ERR_INPUT: n is negative or longer than a table. */
assay_status assay_kv_open(assay_kv *kv, const int32_t *prompt, int64_t n, int32_t *request, int64_t *hit,
                           assay_error *error);

/* Room for n more tokens: allocates blocks, clones the partial last block if its count is above 1, advances the
 * length. `slots` [n] (or NULL) gets the new tokens' slots; their blocks have count 1. Where a block was cloned,
 * copies[*copy_count] gets the pair and *copy_count grows by one: at most once a call, only with n > 0; both may be
 * NULL only if the request has no forks. n = 0 does nothing.
 * On failure nothing has changed. ASSAY_ERR_MEMORY: the pool is exhausted (preempt something, or wait for a step).
 * ASSAY_ERR_INPUT: no such request, n < 0, longer than a table, a clone without a place for its pair. */
assay_status assay_kv_reserve_append(assay_kv *kv, int32_t request, int64_t n, int64_t *slots, assay_kv_copy *copies,
                                     int64_t *copy_count, assay_error *error);

/* The ids of the next n tokens that have slots but no ids yet; blocks that are now full are indexed.
 * ASSAY_ERR_INPUT: more than have slots, or a slot belongs to a step that has not begun: another request of the
 * same step could otherwise hit a block before it is written. */
assay_status assay_kv_commit(assay_kv *kv, int32_t request, const int32_t *tokens, int64_t n, assay_error *error);

/* A second request with the same tokens, in the same blocks. ASSAY_ERR_MEMORY: max_requests are open.
 * ASSAY_ERR_INPUT: the parent has slots that belong to a step that has not begun, or tokens without ids. */
assay_status assay_kv_fork(assay_kv *kv, int32_t request, int32_t *child, assay_error *error);

/* Ends a request (finished or preempted). If it has slots in a step that has not begun, leave its rows out. */
assay_status assay_kv_release(assay_kv *kv, int32_t request, assay_error *error);

/* Makes at least `blocks` idle blocks free, least recently used first, or as many as are idle and not held; gives
 * how many. */
int64_t assay_kv_evict(assay_kv *kv, int64_t blocks);

/* Steps are numbered from 1 and are done in order: step_done(s) ends all steps up to s.
 * ASSAY_ERR_INPUT: s is done already, or has not begun. */
int64_t assay_kv_step_begin(assay_kv *kv);
assay_status assay_kv_step_done(assay_kv *kv, int64_t step, assay_error *error);

/* Of an open request; -1 or NULL for any other. The table lives until the request is released. */
int64_t assay_kv_length(const assay_kv *kv, int32_t request);                        /* tokens with slots */
const int32_t *assay_kv_table(const assay_kv *kv, int32_t request, int64_t *blocks); /* ceil(length / block_size) */

/* Arrays for upload: table [count, max_blocks], dead entries -1, and kv_len [count]. Request -1 is a pad row:
 * length 0. ASSAY_ERR_INPUT: no such request, or a table wider than max_blocks; nothing is written. */
assay_status assay_kv_tables(const assay_kv *kv, const int32_t *requests, int64_t count, int64_t max_blocks,
                             int32_t *table, int32_t *kv_len, assay_error *error);

int64_t assay_kv_count(const assay_kv *kv, int64_t block); /* -1: no such block */
assay_kv_state assay_kv_block_state(const assay_kv *kv, int64_t block);
void assay_kv_get_stats(const assay_kv *kv, assay_kv_stats *stats);

/* Every invariant of the bookkeeping, by counting all of it again, in O(blocks + sum of tables) time and no memory.
 * ASSAY_ERR_INTERNAL names the first that does not hold. */
assay_status assay_kv_check(assay_kv *kv, assay_error *error);

#endif
