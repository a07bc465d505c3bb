/* kv_check.c: checks of the block manager's bookkeeping, by counting it again. */
#include "core/kv_parts.h"

static assay_status wrong(assay_error *error, const char *what, int64_t block) {
  return assay_fail(error, ASSAY_ERR_INTERNAL, "kv_check: %s: block %lld", what, (long long)block);
}

/* Checks that every list holds the blocks that belong to it, in its order, and that its size is right. */
static assay_status check_lists(const assay_kv *kv, assay_error *error) {
  int64_t listed = 0;
  for (int list = 0; list < LISTS; ++list) {
    int64_t size = 0;
    for (int32_t b = kv->first[list], previous = -1; b >= 0; previous = b, b = kv->block[b].next) {
      const kv_block *block = &kv->block[b];
      if (++size > kv->num_blocks) return wrong(error, "a list is a ring", b);
      if (block->previous != previous || block->list != list) return wrong(error, "a list's links disagree", b);
      if (block->count != 0) return wrong(error, "in a list, and used", b);
      if ((block->ready > kv->done) != (list == LIST_HELD)) return wrong(error, "held for no step, or not held", b);
      if (list != LIST_HELD && block->indexed != (list == LIST_IDLE)) return wrong(error, "idle and free mixed up", b);
      if (list == LIST_IDLE && previous >= 0 && kv->block[previous].left >= block->left)
        return wrong(error, "idle blocks out of order", b);
      if (block->next < 0 && kv->last[list] != b) return wrong(error, "a list's end is wrong", b);
    }
    if (size != kv->size[list]) return wrong(error, "a list's size is wrong", kv->first[list]);
    listed += size;
  }
  if (listed + kv->stats.used != kv->num_blocks) return wrong(error, "used, free and idle are not all", -1);
  return ASSAY_OK;
}

/* Checks that keys are where their hash says, below a parent that has a key. */
static assay_status check_keys(const assay_kv *kv, assay_error *error) {
  int64_t keys = 0;
  for (uint64_t i = 0; i <= kv->bucket_mask; ++i)
    for (int32_t b = kv->bucket[i]; b >= 0; b = kv->block[b].bucket_next) {
      const kv_block *block = &kv->block[b];
      if (++keys > kv->num_blocks) return wrong(error, "a bucket is a ring", b);
      if (!block->indexed || (block->hash & kv->bucket_mask) != i) return wrong(error, "in a bucket, without key", b);
      if (block->parent >= 0 && !kv->block[block->parent].indexed) return wrong(error, "its parent has no key", b);
      for (int32_t c = block->child; c >= 0; c = kv->block[c].younger)
        if (kv->block[c].parent != b) return wrong(error, "not the parent of its child", b);
      if (block->elder >= 0 ? kv->block[block->elder].younger != b
                            : block->parent >= 0 && kv->block[block->parent].child != b)
        return wrong(error, "not among its parent's children", b);
    }
  return keys == kv->stats.keys ? ASSAY_OK : wrong(error, "number of keys is wrong", -1);
}

/* Checks that counts equal the tables' entries. The first pass takes one off a block's count for each entry; the second
 * pass puts it back. In between every count must be 0. Thus nothing is allocated. */
static assay_status check_counts(assay_kv *kv, assay_error *error) {
  int64_t requests = 0, bad = -1;
  for (int sign = -1; sign <= 1; sign += 2) {
    for (int64_t i = 0; i < kv->max_requests; ++i) {
      const kv_request *r = &kv->request[i];
      if (!r->open) continue;
      requests += sign > 0;
      for (int64_t j = 0; j < kv_blocks_for(kv, r->length); ++j)
        kv->block[r->table[j]].count += sign;
    }
    for (int64_t b = 0; sign < 0 && b < kv->num_blocks && bad < 0; ++b)
      if (kv->block[b].count != 0) bad = b;
  }
  if (bad >= 0) return wrong(error, "its count is not the number of tables that name it", bad);
  if (requests != kv->stats.requests) return wrong(error, "number of open requests is wrong", -1);
  int64_t state[3] = {0}, indexed = 0;
  for (int64_t b = 0; b < kv->num_blocks; ++b) {
    ++state[assay_kv_block_state(kv, b)];
    indexed += kv->block[b].indexed;
    if ((kv->block[b].count > 0) != (kv->block[b].list == LIST_NONE)) return wrong(error, "in no list, or used", b);
  }
  if (state[ASSAY_KV_FREE] != kv->stats.free || state[ASSAY_KV_USED] != kv->stats.used ||
      state[ASSAY_KV_IDLE] != kv->stats.idle)
    return wrong(error, "numbers of free, used, idle are wrong", -1);
  return indexed == kv->stats.keys ? ASSAY_OK : wrong(error, "has a key, and is in no bucket", -1);
}

/* Checks that open requests have slots of their own in the pool of states, and that no other slot is taken. The same
 * goes for the slots that are promised to them. */
static assay_status check_states(const assay_kv *kv, assay_error *error) {
  int64_t taken = 0, promised = 0;
  for (int64_t i = 0; i < kv->num_states; ++i) {
    taken += kv->state[i].taken;
    promised += kv->state[i].promised;
  }
  for (int64_t i = 0; i < kv->max_requests; ++i) {
    const kv_request *r = &kv->request[i];
    if (!r->open || r->promised < 0) continue;
    --promised;
    if (!kv->state[r->promised].promised || r->committed >= r->promised_length)
      return assay_fail(error, ASSAY_ERR_INTERNAL, "kv_check: request %lld: its promised slot is not, or need not be",
                        (long long)i);
  }
  if (promised != 0)
    return assay_fail(error, ASSAY_ERR_INTERNAL, "kv_check: %lld promised slots belong to no request",
                      (long long)promised);
  for (int64_t i = 0; i < kv->max_requests && kv->num_states > 0; ++i)
    if (kv->request[i].open && !kv->state[kv->request[i].state].taken)
      return assay_fail(error, ASSAY_ERR_INTERNAL, "kv_check: request %lld: its state's slot is not taken",
                        (long long)i);
  return kv->num_states == 0 || taken == kv->stats.requests
             ? ASSAY_OK
             : assay_fail(error, ASSAY_ERR_INTERNAL, "kv_check: %lld slots of states are taken, %lld requests are open",
                          (long long)taken, (long long)kv->stats.requests);
}

assay_status assay_kv_check(assay_kv *kv, assay_error *error) {
  assay_status status = check_lists(kv, error);
  if (status == ASSAY_OK) status = check_keys(kv, error);
  if (status == ASSAY_OK) status = check_counts(kv, error);
  if (status == ASSAY_OK) status = check_states(kv, error);
  for (int64_t i = 0; status == ASSAY_OK && i < kv->max_requests; ++i) {
    const kv_request *r = &kv->request[i];
    if (r->open && (r->committed > kv_queued(kv, r) || kv_queued(kv, r) > r->length || r->length < 0 ||
                    r->length > kv->max_blocks * kv->block_size))
      status = assay_fail(error, ASSAY_ERR_INTERNAL, "kv_check: request %lld: committed %lld, queued %lld, length %lld",
                          (long long)i, (long long)r->committed, (long long)kv_queued(kv, r), (long long)r->length);
  }
  return status;
}
