/* proxy.cpp: shared memory as the copy engine and wgmma see it, in a block that uses either. What the engine writes,
 * all see; what a thread writes, the engine sees after the thread's warp has called the proxy fence. Ordinary stores
 * are not intercepted: at a fence, and when a warp comes to a barrier, the memory is compared with what was known, and
 * what has changed belongs to the warps that have run since, in pieces of 16 bytes. */
#include "simt/scheduler.h"

namespace assay_simt_host {

constexpr int64_t piece = 16, pieces = shared_arena_bytes / piece;

alignas(1024) static unsigned char view[shared_arena_bytes], known[shared_arena_bytes];
static uint32_t owners[pieces]; /* warps, one of whose fence publishes the piece; 0: it is published */
static uint32_t hidden[pieces]; /* the pieces that have owners */
static uint32_t hidden_count;
static uint32_t ran; /* warps since the last look */
static int quiet;    /* looks that found nothing, since a barrier let threads go on */
constexpr int patience = 32;

unsigned char *proxy_view() {
  return view;
}

static uint32_t own_warp() {
  return 1u << (current()->number / 32);
}

static void hide(int64_t at, uint32_t warps) {
  if (owners[at] == 0) hidden[hidden_count++] = static_cast<uint32_t>(at);
  owners[at] |= warps;
}

/* What was written before belongs to any warp of the block. */
void proxy_watch() {
  if (block.watched) return;
  block.watched = true;
  const size_t used = static_cast<size_t>(shared_used());
  memset(view, 0xFF, used);
  memset(known, 0xFF, used);
  for (uint32_t i = 0; i < hidden_count; ++i)
    owners[hidden[i]] = 0;
  hidden_count = 0;
  ran = 0xFFFFFFFFu;
  quiet = 0;
}

#if defined(__SANITIZE_ADDRESS__) || defined(ASSAY_SIMT_ASAN)
__attribute__((no_sanitize_address))
#endif
static bool
same(const unsigned char *a, const unsigned char *b, int64_t bytes) {
  uint64_t difference = 0;
  for (int64_t i = 0; i < bytes; i += 8) {
    uint64_t x, y;
    __builtin_memcpy(&x, a + i, 8);
    __builtin_memcpy(&y, b + i, 8);
    difference |= x ^ y;
  }
  return difference == 0;
}

/* Warps that change over between barriers are told apart as long as they write. Redzones between the arrays never
 * change without ending the block. */
static void look() {
  constexpr int64_t stride = 256;
  const int64_t used = shared_used();
  for (int64_t at = 0; at < used; at += stride) {
    if (same(shared_arena + at, known + at, stride)) continue;
    for (int64_t i = at; i < at + stride; i += piece) {
      if (same(shared_arena + i, known + i, piece)) continue;
      if (shared_offset(shared_arena + i, 1) < 0 && shared_offset(shared_arena + i + piece - 1, 1) < 0) continue;
      memcpy(known + i, shared_arena + i, piece);
      hide(i / piece, ran);
      quiet = -1;
    }
  }
  ran = own_warp();
  ++quiet;
}

void proxy_turn(const Thread *self, const Thread *next) {
  if (next->warp == self->warp) return;
  const bool at_barrier = self->state == AT_BARRIER || self->state == AT_NAMED || self->state == AT_MBARRIER;
  if (at_barrier || quiet < patience) look();
  ran |= 1u << (next->number / 32);
}

void proxy_release() {
  look();
  quiet = 0;
}

void proxy_fence() {
  proxy_watch();
  look();
  const uint32_t own = own_warp();
  uint32_t left = 0;
  for (uint32_t i = 0; i < hidden_count; ++i) {
    const uint32_t at = hidden[i];
    if ((owners[at] & own) == 0) {
      hidden[left++] = at;
      continue;
    }
    owners[at] = 0;
    memcpy(view + at * piece, shared_arena + at * piece, piece);
  }
  hidden_count = left;
}

void proxy_write(int64_t offset, const void *from, int64_t bytes) {
  memcpy(shared_arena + offset, from, static_cast<size_t>(bytes));
  memcpy(view + offset, from, static_cast<size_t>(bytes));
  memcpy(known + offset, from, static_cast<size_t>(bytes));
}

void proxy_poison(int64_t offset, int64_t bytes) {
  memset(view + offset, 0xFF, static_cast<size_t>(bytes));
  memset(known + offset, 0xFF, static_cast<size_t>(bytes));
}

void proxy_foreign(int64_t offset, int64_t bytes) {
  if (!block.watched) return;
  for (int64_t at = offset / piece; at <= (offset + bytes - 1) / piece; ++at) {
    memcpy(known + at * piece, shared_arena + at * piece, piece);
    hide(at, 0xFFFFFFFFu);
  }
}

} /* namespace assay_simt_host */
