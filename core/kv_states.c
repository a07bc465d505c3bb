/* kv_states.c: slots of the pool of states. An open request has one. A slot without a request may keep what a state was
 * at the end of a block. It belongs to that block's key, and is worth nothing once the key is erased. A block whose
 * last ids are not known yet has no key. Then the slot is promised: it gets the key when the ids come.
 *
 * A pair that is queued reads its source and writes its target when the next step begins. Until then neither slot is
 * given away, and no pair reads what another one writes. A source that is a target itself stands for its own source. */
#include "core/kv_parts.h"

static bool is_kept(const assay_kv *kv, const kv_state *s) {
  return s->block >= 0 && kv->block[s->block].indexed && kv->block[s->block].serial == s->serial;
}

/* Returns a slot that may be given away: one that keeps nothing, else the one that was used least recently. -1: none.
 */
static int32_t find_slot(const assay_kv *kv) {
  int32_t oldest = -1;
  for (int32_t i = 0; i < kv->num_states; ++i) {
    const kv_state *s = &kv->state[i];
    if (s->taken || s->promised || s->held > kv->begun) continue;
    if (!is_kept(kv, s)) return i;
    if (oldest < 0 || s->used < kv->state[oldest].used) oldest = i;
  }
  return oldest;
}

static void queue(assay_kv *kv, int32_t source, int32_t target) {
  for (int64_t i = 0; i < kv->state_copies; ++i)
    if (kv->state_copy[i].target == source) {
      source = kv->state_copy[i].source;
      break;
    }
  kv->state[source].held = kv->state[target].held = kv->begun + 1;
  kv->state_copy[kv->state_copies++] = (assay_kv_copy){source, target};
}

int32_t kv_state_of_block(const assay_kv *kv, int32_t block) {
  for (int32_t i = 0; i < kv->num_states; ++i) {
    const kv_state *s = &kv->state[i];
    if (!s->taken && s->block == block && is_kept(kv, s)) return i;
  }
  return -1;
}

bool kv_state_take(assay_kv *kv, kv_request *r, int32_t source) {
  /* The slot that the request starts from is not the one that it gets. */
  if (source >= 0) kv->state[source].used = ++kv->clock;
  const int64_t held = source >= 0 ? kv->state[source].held : 0;
  if (source >= 0) kv->state[source].held = kv->begun + 1;
  r->state = find_slot(kv);
  if (source >= 0) kv->state[source].held = held;
  if (r->state < 0) return false;
  kv->state[r->state] = (kv_state){.block = -1, .taken = true};
  if (source >= 0) queue(kv, source, r->state);
  return true;
}

void kv_state_leave(assay_kv *kv, const kv_request *r) {
  if (kv->num_states > 0) kv->state[r->state].taken = false;
  if (r->promised >= 0) kv->state[r->promised].promised = false;
}

void kv_state_bind(assay_kv *kv, kv_request *r, int64_t blocks, int32_t block) {
  if (r->promised < 0 || r->promised_length != blocks * kv->block_size) return;
  kv_state *s = &kv->state[r->promised];
  s->promised = false;
  r->promised = -1;
  if (kv_state_of_block(kv, block) >= 0) return;
  s->block = block;
  s->serial = kv->block[block].serial;
  s->used = ++kv->clock;
}

/* Tells whether a slot can be promised: as many are left as the requests that are not open yet can need. One of them
 * needs a slot beside the one that it starts from. */
static bool can_promise(const assay_kv *kv) {
  int64_t left = 0;
  for (int64_t i = 0; i < kv->num_states; ++i)
    left += !kv->state[i].taken && !kv->state[i].promised;
  return left > kv->max_requests - kv->stats.requests + 1;
}

/* Keeps the state of a request whose last ids are not known yet. */
static void promise(assay_kv *kv, kv_request *r, bool *kept) {
  const bool at_end = r->length % kv->block_size == 0 && kv_queued(kv, r) == r->length;
  if (!at_end || r->promised >= 0 || !can_promise(kv)) return;
  const int32_t slot = find_slot(kv);
  if (slot < 0) return;
  kv->state[slot] = (kv_state){.block = -1, .promised = true};
  r->promised = slot;
  r->promised_length = r->length;
  queue(kv, r->state, r->promised);
  *kept = true;
}

assay_status assay_kv_keep_state(assay_kv *kv, int32_t request, bool *kept, assay_error *error) {
  kv_request *r = kv_find_request(kv, "kv_keep_state", request, error);
  *kept = false;
  if (r == NULL) return ASSAY_ERR_INPUT;
  if (kv->num_states == 0 || kv->hash_mask == 0) return ASSAY_OK;
  if (r->committed < r->length) {
    promise(kv, r, kept);
    return ASSAY_OK;
  }
  const bool at_end = r->length > 0 && r->length % kv->block_size == 0 && r->committed == r->length;
  if (!at_end || r->chain < 0 || kv->block[r->chain].serial != r->chain_serial) return ASSAY_OK;
  *kept = kv_state_of_block(kv, r->chain) >= 0;
  const int32_t slot = *kept ? -1 : find_slot(kv);
  if (slot < 0) return ASSAY_OK;
  kv->state[slot] = (kv_state){.block = r->chain, .serial = r->chain_serial, .used = ++kv->clock, .taken = false};
  queue(kv, r->state, slot);
  *kept = true;
  return ASSAY_OK;
}

int32_t assay_kv_state_slot(const assay_kv *kv, int32_t request) {
  const kv_request *r = kv_find_request(kv, "", request, NULL);
  return r != NULL && kv->num_states > 0 ? r->state : -1;
}

const assay_kv_copy *assay_kv_state_copies(const assay_kv *kv, int64_t *count) {
  *count = kv->state_copies;
  return kv->state_copy;
}
