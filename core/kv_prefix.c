/* kv_prefix.c: the prefix index: a hash table whose entries are blocks, and a tree in which a block stands under its
 * predecessor.
 *
 * The key of a block is (parent, its tokens). It is found through a hash that is chained over the whole prefix:
 *   hash_j = H(hash_{j-1}, tokens of block j), cut to hash_bits.
 * The parent is itself a block with a key. By induction equal keys mean equal prefixes, whatever the hash does. That
 * holds as long as a parent keeps its key while there are keys after it: kv_erase_key erases them all. */
#include <string.h>

#include "core/kv_parts.h"

/* Continues a hash with the tokens of one block. It needs one multiplication per token; the constants are those of
 * splitmix64. For a fixed earlier hash it is injective in a single token; nothing relies on more. */
static uint64_t chain_hash(const assay_kv *kv, uint64_t hash, const int32_t *tokens) {
  for (int64_t t = 0; t < kv->block_size; ++t) {
    hash = ((hash ^ (uint32_t)tokens[t]) + 0x9E3779B97F4A7C15u) * 0xBF58476D1CE4E5B9u;
    hash ^= hash >> 29;
  }
  hash *= 0x94D049BB133111EBu;
  return (hash ^ hash >> 32) & kv->hash_mask;
}

static uint64_t hash_after(const assay_kv *kv, int32_t parent, const int32_t *tokens) {
  return chain_hash(kv, parent >= 0 ? kv->block[parent].hash : 0, tokens);
}

/* Returns the block with this key, or -1. */
static int32_t find_key(assay_kv *kv, int32_t parent, uint64_t hash, const int32_t *tokens) {
  const size_t size = (size_t)kv->block_size * sizeof *tokens;
  for (int32_t b = kv->bucket[hash & kv->bucket_mask]; b >= 0; b = kv->block[b].bucket_next) {
    if (kv->block[b].hash != hash) continue;
    if (kv->block[b].parent == parent && memcmp(kv_tokens(kv, b), tokens, size) == 0) return b;
    ++kv->stats.collisions;
  }
  return -1;
}

/* Gives a block, whose hash is known, a key under its parent. */
static void insert_key(assay_kv *kv, int32_t block, int32_t parent) {
  kv_block *b = &kv->block[block];
  int32_t *head = &kv->bucket[b->hash & kv->bucket_mask];
  b->bucket_next = *head;
  *head = block;
  b->parent = parent;
  if (parent >= 0) {
    b->younger = kv->block[parent].child;
    if (b->younger >= 0) kv->block[b->younger].elder = block;
    kv->block[parent].child = block;
  }
  b->indexed = true;
  b->serial = ++kv->serial;
  ++kv->stats.keys;
}

/* Erases the key of a block that no other key follows. */
static void erase_last_key(assay_kv *kv, int32_t block) {
  kv_block *b = &kv->block[block];
  int32_t *link = &kv->bucket[b->hash & kv->bucket_mask];
  while (*link != block)
    link = &kv->block[*link].bucket_next;
  *link = b->bucket_next;
  if (b->elder >= 0)
    kv->block[b->elder].younger = b->younger;
  else if (b->parent >= 0)
    kv->block[b->parent].child = b->younger;
  if (b->younger >= 0) kv->block[b->younger].elder = b->elder;
  b->bucket_next = b->parent = b->elder = b->younger = -1;
  b->indexed = false;
  b->serial = ++kv->serial;
  --kv->stats.keys;
  if (b->count > 0) return;
  ++kv->stats.evicted;
  ++kv->stats.free;
  --kv->stats.idle;
  kv_unlink(kv, block);
  kv_place(kv, block);
}

/* Erases leaves first and the block's own key last, so that the block is the next one to be allocated. */
void kv_erase_key(assay_kv *kv, int32_t block) {
  for (int32_t b = block, parent;; b = parent) {
    while (kv->block[b].child >= 0)
      b = kv->block[b].child;
    parent = kv->block[b].parent;
    erase_last_key(kv, b);
    if (b == block) return;
  }
}

int64_t assay_kv_evict(assay_kv *kv, int64_t blocks) {
  int64_t freed = 0;
  while (freed < blocks && kv->size[LIST_IDLE] > 0) {
    const int64_t before = kv->size[LIST_FREE];
    kv_erase_key(kv, kv->first[LIST_IDLE]);
    freed += kv->size[LIST_FREE] - before;
  }
  return freed;
}

assay_status assay_kv_open(assay_kv *kv, const int32_t *prompt, int64_t n, int32_t *request, int64_t *hit,
                           assay_error *error) {
  const int64_t longest = kv->max_blocks * kv->block_size;
  if (n < 0 || n > longest)
    return assay_fail(error, ASSAY_ERR_INPUT, "kv_open: n: found %lld, allowed 0 to %lld", (long long)n,
                      (long long)longest);
  if (n > 0 && prompt == NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "kv_open: prompt: none, but n is %lld", (long long)n);
  kv_request *r = kv_new_request(kv, "kv_open", error);
  if (r == NULL) return ASSAY_ERR_MEMORY;
  const int64_t most = kv->hash_mask == 0 || n == 0 ? 0 : (n - 1) / kv->block_size;
  int64_t found_blocks = 0, blocks = 0; /* all that match; those that the request starts with */
  int32_t state = -1;
  while (found_blocks < most) {
    const int32_t *tokens = prompt + found_blocks * kv->block_size;
    const int32_t found = find_key(kv, r->chain, hash_after(kv, r->chain, tokens), tokens);
    if (found < 0) break;
    r->table[found_blocks++] = r->chain = found;
  }
  blocks = found_blocks;
  while (kv->num_states > 0 && blocks > 0 && (state = kv_state_of_block(kv, r->table[blocks - 1])) < 0)
    --blocks;
  if (kv->num_states > 0 && !kv_state_take(kv, r, state)) {
    kv_close_request(kv, r);
    return assay_fail(error, ASSAY_ERR_MEMORY, "kv_open: num_states: none of %lld is left", (long long)kv->num_states);
  }
  for (int64_t j = 0; j < blocks; ++j)
    kv_take(kv, r->table[j]);
  r->chain = blocks > 0 ? r->table[blocks - 1] : -1;
  r->chain_serial = blocks > 0 ? kv->block[r->chain].serial : 0;
  r->length = r->committed = r->before = blocks * kv->block_size;
  kv->stats.prompt_tokens += n;
  kv->stats.hit_tokens += r->length;
  kv->stats.cut_tokens += (found_blocks - blocks) * kv->block_size;
  *request = (int32_t)(r - kv->request);
  *hit = r->length;
  return ASSAY_OK;
}

/* Finds or gives the keys of the request's full blocks from block `from` on. The chain before it must hold. If its key
 * is gone, indexing starts again at the first block, and the request's own blocks fill the gaps. */
static void index_blocks(assay_kv *kv, kv_request *r, int64_t from, int64_t full) {
  const bool broken = r->chain >= 0 && kv->block[r->chain].serial != r->chain_serial;
  int32_t parent = broken ? -1 : r->chain;
  for (int64_t j = broken ? 0 : from; j < full; ++j) {
    const int32_t own = r->table[j];
    kv_block *b = &kv->block[own];
    if (!b->indexed) b->hash = hash_after(kv, parent, kv_tokens(kv, own));
    const int32_t found = find_key(kv, parent, b->hash, kv_tokens(kv, own));
    if (found < 0) insert_key(kv, own, parent);
    if (found >= 0 && found != own && j >= from) ++kv->stats.duplicates;
    parent = found < 0 ? own : found;
    kv_state_bind(kv, r, j + 1, parent);
  }
  r->chain = parent;
  r->chain_serial = kv->block[parent].serial;
}

assay_status assay_kv_commit(assay_kv *kv, int32_t request, const int32_t *tokens, int64_t n, assay_error *error) {
  kv_request *r = kv_find_request(kv, "kv_commit", request, error);
  if (r == NULL) return ASSAY_ERR_INPUT;
  if (kv->hash_mask == 0) return ASSAY_OK;
  const int64_t queued = kv_queued(kv, r);
  if (n < 0 || n > queued - r->committed)
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "kv_commit: n: found %lld, allowed 0 to %lld: of %lld tokens with slots %lld are committed, and "
                      "%lld wait for their step to begin",
                      (long long)n, (long long)(queued - r->committed), (long long)r->length, (long long)r->committed,
                      (long long)(r->length - queued));
  for (int64_t i = 0; i < n; ++i) {
    const int64_t t = r->committed + i;
    const int32_t block = r->table[t / kv->block_size];
    kv_tokens(kv, block)[t % kv->block_size] = tokens[i];
  }
  const int64_t from = r->committed / kv->block_size, full = (r->committed + n) / kv->block_size;
  r->committed += n;
  if (full > from) index_blocks(kv, r, from, full);
  return ASSAY_OK;
}
