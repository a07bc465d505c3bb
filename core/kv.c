/* kv.c: the block manager: reservations, forks, steps. The prefix index is kv_prefix.c; the lists of blocks and the
 * table of requests, which both use, are kv_lists.c. */
#include "core/kv.h"

#include <stdlib.h>
#include <string.h>

#include "core/kv_parts.h"

/* Removes one table's reference to a block. A block taken before the last step began is used by that step. */
static void drop(assay_kv *kv, int32_t block) {
  kv_block *b = &kv->block[block];
  if (--b->count > 0) return;
  b->count = 0;
  if (b->taken < kv->begun && b->ready < kv->begun) b->ready = kv->begun;
  b->left = ++kv->clock;
  --kv->stats.used;
  ++*(b->indexed ? &kv->stats.idle : &kv->stats.free);
  kv_place(kv, block);
}

static int64_t available(const assay_kv *kv) {
  return kv->size[LIST_FREE] + kv->size[LIST_IDLE];
}

/* Returns a free block; else the least recently used idle block, without its key. A block must be available. */
static int32_t allocate(assay_kv *kv) {
  if (kv->size[LIST_FREE] == 0) kv_erase_key(kv, kv->first[LIST_IDLE]);
  const int32_t block = kv->first[LIST_FREE];
  kv_take(kv, block);
  ++kv->stats.allocated;
  return block;
}

static assay_status check_range(const char *name, int64_t value, int64_t low, int64_t high, assay_error *error) {
  if (value >= low && value <= high) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "kv_create: %s: found %lld, allowed %lld to %lld", name, (long long)value,
                    (long long)low, (long long)high);
}

static assay_status check_config(const assay_kv_config *c, assay_error *error) {
  assay_status status = check_range("num_blocks", c->num_blocks, 1, INT32_MAX, error);
  if (status == ASSAY_OK) status = check_range("block_size", c->block_size, 1, 256, error);
  if (status == ASSAY_OK) status = check_range("max_requests", c->max_requests, 1, INT32_MAX, error);
  if (status == ASSAY_OK) status = check_range("max_blocks", c->max_blocks, 1, INT32_MAX / c->block_size, error);
  if (status == ASSAY_OK) status = check_range("hash_bits", c->hash_bits, 0, 64, error);
  if (status == ASSAY_OK) status = check_range("num_states", c->num_states, 0, 65536, error);
  return status;
}

assay_status assay_kv_create(const assay_kv_config *config, assay_kv **created, assay_error *error) {
  *created = NULL;
  assay_status status = check_config(config, error);
  if (status != ASSAY_OK) return status;
  assay_kv *kv = calloc(1, sizeof *kv);
  if (kv == NULL) goto done;
  const size_t blocks = (size_t)config->num_blocks, requests = (size_t)config->max_requests;
  size_t buckets = 16;
  while (buckets < blocks)
    buckets *= 2;
  kv->num_blocks = config->num_blocks;
  kv->block_size = config->block_size;
  kv->max_requests = config->max_requests;
  kv->max_blocks = config->max_blocks;
  kv->hash_mask = config->hash_bits == 0 ? 0 : UINT64_MAX >> (64 - config->hash_bits);
  kv->bucket_mask = buckets - 1;
  kv->block = calloc(blocks, sizeof *kv->block);
  kv->tokens = calloc(blocks, (size_t)kv->block_size * sizeof *kv->tokens);
  kv->bucket = malloc(buckets * sizeof *kv->bucket);
  kv->request = calloc(requests, sizeof *kv->request);
  kv->closed = malloc(requests * sizeof *kv->closed);
  kv->num_states = config->num_states;
  kv->state = calloc((size_t)config->num_states + 1, sizeof *kv->state);
  kv->state_copy = calloc((size_t)config->num_states + 1, sizeof *kv->state_copy);
  kv->tables = calloc(requests, (size_t)kv->max_blocks * sizeof *kv->tables);
  if (!kv->block || !kv->tokens || !kv->bucket || !kv->request || !kv->closed || !kv->tables) goto done;
  if (!kv->state || !kv->state_copy) goto done;
  for (int64_t i = 0; i < kv->num_states; ++i)
    kv->state[i].block = -1;
  memset(kv->bucket, -1, buckets * sizeof *kv->bucket);
  for (int list = 0; list < LISTS; ++list)
    kv->first[list] = kv->last[list] = -1;
  /* The lowest block and the lowest request are taken first. */
  for (int32_t b = (int32_t)kv->num_blocks - 1; b >= 0; --b) {
    kv->block[b] = (kv_block){.bucket_next = -1, .parent = -1, .child = -1, .elder = -1, .younger = -1};
    kv_link(kv, b, LIST_FREE);
  }
  for (int64_t r = 0; r < kv->max_requests; ++r) {
    kv->request[r].table = kv->tables + r * kv->max_blocks;
    kv->closed[r] = (int32_t)(kv->max_requests - 1 - r);
  }
  kv->stats.free = kv->num_blocks;
  *created = kv;
done:
  if (*created == NULL) {
    assay_kv_destroy(kv);
    status = assay_fail(error, ASSAY_ERR_MEMORY,
                        "kv_create: out of memory for %lld blocks of %lld tokens, %lld tables of %lld blocks",
                        (long long)config->num_blocks, (long long)config->block_size, (long long)config->max_requests,
                        (long long)config->max_blocks);
  }
  return status;
}

void assay_kv_destroy(assay_kv *kv) {
  if (kv == NULL) return;
  free(kv->block);
  free(kv->tokens);
  free(kv->bucket);
  free(kv->request);
  free(kv->closed);
  free(kv->tables);
  free(kv->state);
  free(kv->state_copy);
  free(kv);
}

/* Gives the request a copy of its last block, which is shared. Neither block is reused before the copy is done, because
 * the pairs of one step may be copied in any order. */
static void clone_last(assay_kv *kv, kv_request *r, assay_kv_copy *copy) {
  int32_t *last = &r->table[r->length / kv->block_size];
  const int32_t source = *last, target = allocate(kv);
  memcpy(kv_tokens(kv, target), kv_tokens(kv, source), (size_t)kv->block_size * sizeof *kv->tokens);
  kv->block[source].ready = kv->block[target].ready = kv->begun + 1;
  drop(kv, source);
  *last = target;
  *copy = (assay_kv_copy){source, target};
  ++kv->stats.cloned;
}

assay_status assay_kv_reserve_append(assay_kv *kv, int32_t request, int64_t n, int64_t *slots, assay_kv_copy *copies,
                                     int64_t *copy_count, assay_error *error) {
  kv_request *r = kv_find_request(kv, "kv_reserve_append", request, error);
  if (r == NULL) return ASSAY_ERR_INPUT;
  const int64_t longest = kv->max_blocks * kv->block_size, have = kv_blocks_for(kv, r->length);
  if (n < 0 || n > longest - r->length)
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "kv_reserve_append: n: found %lld, allowed 0 to %lld: %lld of %lld tokens", (long long)n,
                      (long long)(longest - r->length), (long long)r->length, (long long)longest);
  if (n == 0) return ASSAY_OK;
  const bool clone = r->length % kv->block_size != 0 && kv->block[r->table[have - 1]].count > 1;
  if (clone && (copies == NULL || copy_count == NULL))
    return assay_fail(error, ASSAY_ERR_INPUT, "kv_reserve_append: copies: none, but request %d shares its last block",
                      request);
  const int64_t want = kv_blocks_for(kv, r->length + n), need = want - have + clone;
  if (need > available(kv)) {
    ++kv->stats.exhausted;
    return assay_fail(error, ASSAY_ERR_MEMORY,
                      "kv_reserve_append: pool exhausted: %lld tokens more need %lld blocks, %lld can be had "
                      "(of %lld: %lld used, %lld held by queued steps)",
                      (long long)n, (long long)need, (long long)available(kv), (long long)kv->num_blocks,
                      (long long)kv->stats.used, (long long)kv->size[LIST_HELD]);
  }
  if (clone) clone_last(kv, r, &copies[(*copy_count)++]);
  for (int64_t j = have; j < want; ++j)
    r->table[j] = allocate(kv);
  if (r->round != kv->begun) {
    r->round = kv->begun;
    r->before = r->length;
  }
  for (int64_t t = r->length; slots != NULL && t < r->length + n; ++t)
    slots[t - r->length] = (int64_t)r->table[t / kv->block_size] * kv->block_size + t % kv->block_size;
  r->length += n;
  return ASSAY_OK;
}

assay_status assay_kv_fork(assay_kv *kv, int32_t request, int32_t *child, assay_error *error) {
  const kv_request *from = kv_find_request(kv, "kv_fork", request, error);
  if (from == NULL) return ASSAY_ERR_INPUT;
  const int64_t ready = kv->hash_mask == 0 ? kv_queued(kv, from) : from->committed;
  if (ready < from->length)
    return assay_fail(error, ASSAY_ERR_INPUT, "kv_fork: request %d: %lld of its %lld tokens are not %s yet", request,
                      (long long)(from->length - ready), (long long)from->length,
                      kv->hash_mask == 0 ? "in a step that has begun" : "committed");
  kv_request *to = kv_new_request(kv, "kv_fork", error);
  if (to == NULL) return ASSAY_ERR_MEMORY;
  if (kv->num_states > 0 && !kv_state_take(kv, to, from->state)) {
    kv_close_request(kv, to);
    return assay_fail(error, ASSAY_ERR_MEMORY, "kv_fork: num_states: none of %lld is left", (long long)kv->num_states);
  }
  to->length = to->before = from->length;
  to->committed = from->committed;
  to->chain = from->chain;
  to->chain_serial = from->chain_serial;
  for (int64_t j = 0; j < kv_blocks_for(kv, from->length); ++j) {
    to->table[j] = from->table[j];
    kv_take(kv, to->table[j]);
  }
  *child = (int32_t)(to - kv->request);
  return ASSAY_OK;
}

assay_status assay_kv_release(assay_kv *kv, int32_t request, assay_error *error) {
  kv_request *r = kv_find_request(kv, "kv_release", request, error);
  if (r == NULL) return ASSAY_ERR_INPUT;
  for (int64_t j = kv_blocks_for(kv, r->length) - 1; j >= 0; --j)
    drop(kv, r->table[j]);
  kv_state_leave(kv, r);
  kv_close_request(kv, r);
  return ASSAY_OK;
}

int64_t assay_kv_step_begin(assay_kv *kv) {
  kv->state_copies = 0;
  return ++kv->begun;
}

assay_status assay_kv_step_done(assay_kv *kv, int64_t step, assay_error *error) {
  if (step <= kv->done || step > kv->begun)
    return assay_fail(error, ASSAY_ERR_INPUT, "kv_step_done: step: found %lld, queued are %lld to %lld",
                      (long long)step, (long long)kv->done + 1, (long long)kv->begun);
  kv->done = step;
  for (int32_t b = kv->first[LIST_HELD]; b >= 0;) {
    const int32_t next = kv->block[b].next;
    if (kv->block[b].ready <= kv->done) {
      kv_unlink(kv, b);
      kv_place(kv, b);
    }
    b = next;
  }
  return ASSAY_OK;
}

int64_t assay_kv_length(const assay_kv *kv, int32_t request) {
  const kv_request *r = kv_find_request(kv, "", request, NULL);
  return r != NULL ? r->length : -1;
}

const int32_t *assay_kv_table(const assay_kv *kv, int32_t request, int64_t *blocks) {
  const kv_request *r = kv_find_request(kv, "", request, NULL);
  if (blocks != NULL) *blocks = r != NULL ? kv_blocks_for(kv, r->length) : -1;
  return r != NULL ? r->table : NULL;
}

assay_status assay_kv_tables(const assay_kv *kv, const int32_t *requests, int64_t count, int64_t max_blocks,
                             int32_t *table, int32_t *kv_len, assay_error *error) {
  for (int64_t i = 0; i < count; ++i) {
    if (requests[i] == -1) continue;
    const kv_request *r = kv_find_request(kv, "kv_tables", requests[i], error);
    if (r == NULL) return ASSAY_ERR_INPUT;
    if (kv_blocks_for(kv, r->length) > max_blocks)
      return assay_fail(error, ASSAY_ERR_INPUT, "kv_tables: max_blocks: found %lld, request %d has %lld blocks",
                        (long long)max_blocks, requests[i], (long long)kv_blocks_for(kv, r->length));
  }
  for (int64_t i = 0; i < count; ++i) {
    const kv_request *r = requests[i] == -1 ? NULL : &kv->request[requests[i]];
    const int64_t blocks = r == NULL ? 0 : kv_blocks_for(kv, r->length);
    for (int64_t j = 0; j < max_blocks; ++j)
      table[i * max_blocks + j] = j < blocks ? r->table[j] : -1;
    kv_len[i] = r == NULL ? 0 : (int32_t)r->length;
  }
  return ASSAY_OK;
}

int64_t assay_kv_count(const assay_kv *kv, int64_t block) {
  return block < 0 || block >= kv->num_blocks ? -1 : kv->block[block].count;
}

assay_kv_state assay_kv_block_state(const assay_kv *kv, int64_t block) {
  const kv_block *b = &kv->block[block];
  return b->count > 0 ? ASSAY_KV_USED : b->indexed ? ASSAY_KV_IDLE : ASSAY_KV_FREE;
}

void assay_kv_get_stats(const assay_kv *kv, assay_kv_stats *stats) {
  *stats = kv->stats;
  stats->held = kv->size[LIST_HELD];
  stats->queued_steps = kv->begun - kv->done;
}
