/* kv_lists.c: the lists in which blocks with count 0 wait, and the table of requests. It is the lowest of the block
 * manager's files. */
#include "core/kv_parts.h"

/* Puts a block into a list. Free blocks are last in, first out. Held blocks are in the order of their arrival. Idle
 * blocks are ordered by the time they were left. A block from the held list may be older than the idle list's end,
 * hardly ever by much. */
void kv_link(assay_kv *kv, int32_t block, kv_list list) {
  kv_block *b = &kv->block[block];
  int32_t after = list == LIST_FREE ? -1 : kv->last[list];
  if (list == LIST_IDLE)
    while (after >= 0 && kv->block[after].left > b->left)
      after = kv->block[after].previous;
  const int32_t before = after >= 0 ? kv->block[after].next : kv->first[list];
  b->previous = after;
  b->next = before;
  *(after >= 0 ? &kv->block[after].next : &kv->first[list]) = block;
  *(before >= 0 ? &kv->block[before].previous : &kv->last[list]) = block;
  b->list = (int8_t)list;
  ++kv->size[list];
}

void kv_unlink(assay_kv *kv, int32_t block) {
  kv_block *b = &kv->block[block];
  const int list = b->list;
  *(b->previous >= 0 ? &kv->block[b->previous].next : &kv->first[list]) = b->next;
  *(b->next >= 0 ? &kv->block[b->next].previous : &kv->last[list]) = b->previous;
  b->previous = b->next = -1;
  b->list = LIST_NONE;
  --kv->size[list];
}

void kv_place(assay_kv *kv, int32_t block) {
  const kv_block *b = &kv->block[block];
  const bool held = b->ready > kv->done;
  kv_link(kv, block, held ? LIST_HELD : b->indexed ? LIST_IDLE : LIST_FREE);
}

void kv_take(assay_kv *kv, int32_t block) {
  kv_block *b = &kv->block[block];
  if (b->count++ > 0) return;
  kv_unlink(kv, block);
  b->taken = kv->begun;
  --*(b->indexed ? &kv->stats.idle : &kv->stats.free);
  if (++kv->stats.used > kv->stats.peak_used) kv->stats.peak_used = kv->stats.used;
}

kv_request *kv_find_request(const assay_kv *kv, const char *call, int32_t request, assay_error *error) {
  if (request >= 0 && request < kv->max_requests && kv->request[request].open) return &kv->request[request];
  (void)assay_fail(error, ASSAY_ERR_INPUT, "%s: request %d is not open", call, request);
  return NULL;
}

kv_request *kv_new_request(assay_kv *kv, const char *call, assay_error *error) {
  if (kv->stats.requests == kv->max_requests) {
    (void)assay_fail(error, ASSAY_ERR_MEMORY, "%s: max_requests: all %lld are open", call, (long long)kv->max_requests);
    return NULL;
  }
  kv_request *r = &kv->request[kv->closed[kv->max_requests - ++kv->stats.requests]];
  *r = (kv_request){.table = r->table, .open = true, .round = kv->begun, .chain = -1, .promised = -1};
  return r;
}

void kv_close_request(assay_kv *kv, kv_request *r) {
  r->open = false;
  kv->closed[kv->max_requests - kv->stats.requests--] = (int32_t)(r - kv->request);
}
