/* proxy.cpp: shared memory as the copy engine and wgmma see it, in a block that uses either. The engine's writes are
 * visible to all. A thread's writes become visible to the engine after the thread's warp has called the proxy fence.
 * Ordinary stores are not intercepted. At a fence, and when a warp comes to a barrier, the memory is compared with its
 * last known contents. Changes are attributed to the warps that have run since, in pieces of 16 bytes. */
#include "simt/scheduler.h"

namespace assay_simt_host {

constexpr int64_t piece = 16, pieces = shared_arena_bytes / piece;
constexpr uint64_t foreign = UINT64_C(1) << 32; /* not a warp: a warp that has not waited cannot publish the piece */

/* The warps that have waited for an mbarrier, and that have nothing to gain from waiting again until `changes` differs.
 * Each lane of a warp waits by itself, and pieces may be thousands. */
struct Waited {
  int64_t offset;
  uint64_t changes;
  uint32_t warps;
};

/* A place in a kernel that calls the fence. whole: all live lanes of a warp called it one after another, and nothing
 * came between, in this launch. */
struct Site {
  const void *at;
  uint64_t launch;
  bool whole;
};

/* Fences that lanes of one warp called one after another at one site. Only this warp runs, and its next fence publishes
 * whatever this one would. A fence can therefore wait for the next one, as long as nothing reads the view. */
struct Round {
  Site *site;
  uint32_t warp, lanes; /* bits */
  bool waits;           /* some fence of the round was left to the next one */
};

/* The state of one place. */
struct Proxy {
  alignas(1024) unsigned char view[shared_arena_bytes];
  alignas(1024) unsigned char known[shared_arena_bytes];
  uint64_t owners[pieces]; /* warps of which any one's fence publishes the piece; 0: it is published */
  int64_t brought[pieces]; /* if `foreign` is among the owners: the mbarrier that reports the piece */
  uint32_t hidden[pieces]; /* the pieces that have owners */
  uint32_t hidden_count;
  uint32_t ran;      /* warps that ran since the last look */
  int quiet;         /* looks that found nothing since a barrier released threads */
  uint64_t changes;  /* counts what proxy_watch and proxy_foreign have done */
  bool any_foreign;  /* some piece came from proxy_foreign since the block is watched */
  Waited waited[64]; /* by the mbarrier's offset: the last one that proxy_waited saw there */
  Round round;
};

static Proxy proxies[max_places];
constexpr int patience = 32;

static Proxy *own() {
  return &proxies[here->place];
}

static uint32_t own_warp() {
  return 1u << (current()->number / 32);
}

static void hide(Proxy *p, int64_t at, uint64_t warps) {
  if (p->owners[at] == 0) p->hidden[p->hidden_count++] = static_cast<uint32_t>(at);
  p->owners[at] |= warps;
}

/* Marks simt's own loops, which also read redzones and uninitialised memory. They are not watched, to be fast. */
#if defined(ASSAY_SIMT_ASAN)
#define ASSAY_UNSEEN __attribute__((no_sanitize("address", "undefined")))
#elif defined(ASSAY_SIMT_MSAN)
#define ASSAY_UNSEEN __attribute__((no_sanitize("memory")))
#else
#define ASSAY_UNSEEN
#endif

ASSAY_UNSEEN static bool same(const unsigned char *a, const unsigned char *b, int64_t bytes) {
#if !defined(ASSAY_SIMT_ASAN) && !defined(ASSAY_SIMT_MSAN) && !defined(ASSAY_SIMT_TSAN)
  return memcmp(a, b, static_cast<size_t>(bytes)) == 0; /* the C library's, with the widest registers */
#else
  uint64_t difference = 0;
  for (int64_t i = 0; i < bytes; i += 8) {
    uint64_t x, y;
    __builtin_memcpy(&x, a + i, 8);
    __builtin_memcpy(&y, b + i, 8);
    difference |= x ^ y;
  }
  return difference == 0;
#endif
}

ASSAY_UNSEEN static void take(unsigned char *to, const unsigned char *from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 8)
    __builtin_memcpy(to + i, from + i, 8);
}

/* Overwrites a view with 0xFF. The views are simt's own, so this is not an access of the thread on whose behalf it is
 * done. */
static void forget(unsigned char *at, int64_t bytes) {
  race_quiet(true);
  memset(at, 0xFF, static_cast<size_t>(bytes));
  race_quiet(false);
}

/* Begins to watch the block. Earlier writes are attributed to any warp of the block. */
void proxy_watch() {
  if (here->watched) return;
  here->watched = true;
  Proxy *p = own();
  const int64_t used = shared_used();
  forget(p->view, used);
  take(p->known, shared_arena(), used);
  int64_t offset, bytes;
  for (int i = 0; shared_array(i, &offset, &bytes); ++i)
    forget(p->known + offset, bytes);
  for (uint32_t i = 0; i < p->hidden_count; ++i)
    p->owners[p->hidden[i]] = 0;
  p->hidden_count = 0;
  p->ran = 0xFFFFFFFFu;
  p->quiet = 0;
  ++p->changes;
  p->any_foreign = false;
  p->round.lanes = 0;
  p->round.waits = false;
}

void proxy_extend(int64_t from, int64_t to) {
  for (uint32_t place = run.first_place; place < run.first_place + run.places; ++place) {
    forget(proxies[place].view + from, to - from);
    take(proxies[place].known + from / 8 * 8, shared_arenas[place] + from / 8 * 8, to - from / 8 * 8);
  }
}

/* Compares the memory with its last known contents. Warps that switch between barriers are told apart as long as they
 * write. Redzones between the arrays never change without ending the block. */
static void look() {
  constexpr int64_t stride = 256, many = 16 * stride;
  const int64_t used = shared_used();
  Proxy *p = own();
  const unsigned char *const arena = shared_arena();
  for (int64_t at = 0; at < used; at += stride) {
    /* Most looks find little: one comparison skips many strides at once. */
    if (at % many == 0 && at + many <= used && same(arena + at, p->known + at, many)) {
      at += many - stride;
      continue;
    }
    if (same(arena + at, p->known + at, stride)) continue;
    for (int64_t i = at; i < at + stride; i += piece) {
      if (same(arena + i, p->known + i, piece)) continue;
      take(p->known + i, arena + i, piece);
      hide(p, i / piece, p->ran);
      p->quiet = -1;
    }
  }
  p->ran = own_warp();
  ++p->quiet;
}

/* Compares, and publishes what the warp may publish. */
static void publish(Proxy *p, uint32_t warp) {
  look();
  uint32_t left = 0;
  for (uint32_t i = 0; i < p->hidden_count; ++i) {
    const uint32_t at = p->hidden[i];
    if ((p->owners[at] & warp) == 0) {
      p->hidden[left++] = at;
      continue;
    }
    p->owners[at] = 0;
    take(p->view + at * piece, shared_arena() + at * piece, piece);
  }
  p->hidden_count = left;
}

static Site *site_of(const void *at) {
  static Site sites[64];
  Site *const site = &sites[reinterpret_cast<uintptr_t>(at) % 61];
  if (site->at != at || site->launch != now.launch) *site = Site{at, now.launch, false};
  return site;
}

/* Ends the round of fences before anything that may tell whether a fence was called. A fence that still waits for the
 * next one comes now, and the fences of its site wait no more. */
static void end_round(Proxy *p) {
  p->round.lanes = 0;
  if (!p->round.waits) return;
  p->round.waits = false;
  p->round.site->whole = false;
  publish(p, p->round.warp);
}

void proxy_fence() {
  const void *const caller = __builtin_return_address(0);
  proxy_watch();
  Proxy *p = own();
  const Thread *const self = current();
  const uint32_t warp = own_warp();
  Site *const site = site_of(caller);
  if (p->round.site != site || p->round.warp != warp) p->round.lanes = 0;
  p->round.site = site;
  p->round.warp = warp;
  p->round.lanes |= 1u << self->lane;
  const bool whole = (self->warp->present & ~self->warp->exited & ~p->round.lanes) == 0;
  p->round.waits = site->whole && !whole;
  if (p->round.waits) return;
  if (whole) {
    site->whole = true;
    p->round.lanes = 0;
  }
  publish(p, warp);
}

void proxy_turn(const Thread *self, const Thread *next) {
  if (next->warp == self->warp) return;
  Proxy *p = own();
  end_round(p);
  const bool at_barrier = self->state == AT_BARRIER || self->state == AT_NAMED || self->state == AT_MBARRIER;
  if (at_barrier || p->quiet < patience) look();
  if (block_of(next) == here) p->ran |= 1u << (next->number / 32);
}

void proxy_enter() {
  end_round(own());
  own()->ran |= own_warp();
}

void proxy_release() {
  end_round(own());
  look();
  own()->quiet = 0;
}

void proxy_settle() {
  if (here->watched) end_round(own());
}

unsigned char *proxy_view() {
  end_round(own());
  return own()->view;
}

uint64_t proxy_word(int64_t offset) {
  uint64_t word;
  memcpy(&word, own()->view + offset, 8);
  if (mbarrier_valid(word) || !own()->round.waits) return word;
  memcpy(&word, proxy_view() + offset, 8);
  return word;
}

void proxy_write(int64_t offset, const void *from, int64_t bytes) {
  Proxy *p = own();
  memcpy(shared_arena() + offset, from, static_cast<size_t>(bytes));
  memcpy(p->view + offset, from, static_cast<size_t>(bytes));
  memcpy(p->known + offset, from, static_cast<size_t>(bytes));
}

void proxy_poison(int64_t offset, int64_t bytes) {
  Proxy *p = own();
  forget(p->view + offset, bytes);
  forget(p->known + offset, bytes);
}

void proxy_foreign(int64_t offset, int64_t bytes, const uint64_t *barrier) {
  if (!here->watched) return;
  Proxy *p = own();
  ++p->changes;
  p->any_foreign = true;
  for (int64_t at = offset / piece; at <= (offset + bytes - 1) / piece; ++at) {
    take(p->known + at * piece, shared_arena() + at * piece, piece);
    hide(p, at, foreign);
    p->owners[at] = foreign;
    p->brought[at] = shared_offset(barrier, 8);
  }
}

void proxy_waited(const uint64_t *barrier, uint32_t warps) {
  if (!here->watched) return;
  Proxy *p = own();
  if (!p->any_foreign || p->hidden_count == 0) return;
  const int64_t offset = shared_offset(barrier, 8);
  Waited *const last = &p->waited[offset / 8 % 64];
  const bool again = last->offset == offset && last->changes == p->changes;
  if (again && (warps & ~last->warps) == 0) return;
  *last = Waited{offset, p->changes, again ? last->warps | warps : warps};
  for (uint32_t i = 0; i < p->hidden_count; ++i) {
    const uint32_t at = p->hidden[i];
    if ((p->owners[at] & foreign) != 0 && p->brought[at] == offset) p->owners[at] |= warps;
  }
}

} /* namespace assay_simt_host */
