/* proxy.cpp: shared memory as the copy engine and wgmma see it, in a block that uses either. The engine's writes are
 * visible to all. A thread's writes become visible to the engine after the thread's warp has called the proxy fence.
 * Ordinary stores are not intercepted. At a fence, and when a warp comes to a barrier, the memory is compared with its
 * last known contents. Changes are attributed to the warps that have run since, in pieces of 16 bytes. */
#include "simt/scheduler.h"

namespace assay_simt_host {

constexpr int64_t piece = 16, pieces = shared_arena_bytes / piece;
constexpr int64_t stride = 256, page = 16 * stride, pages = (shared_arena_bytes + page - 1) / page;
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
  uint32_t ran_cold; /* the same, since the last look at all pages */
  bool hot[pages];   /* a look at all pages found a change there, in this block */
  int quiet;         /* looks that found nothing; a barrier of threads takes it back */
  uint64_t changes;  /* counts what proxy_watch and proxy_foreign have done */
  bool any_foreign;  /* some piece came from proxy_foreign since the block is watched */
  Waited waited[64]; /* by the mbarrier's offset: the last one that proxy_waited saw there */
  Round round;
};

static Proxy proxies[max_places];
constexpr int patience = 32, few = 8;

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

/* Copies memory to what is known of it. A compiler may make one memcpy of the loop, which ThreadSanitizer sees: it is
 * no access of the thread on whose behalf it is done. */
ASSAY_UNSEEN static void take(unsigned char *to, const unsigned char *from, int64_t bytes) {
  race_quiet(true);
  for (int64_t i = 0; i < bytes; i += 8)
    __builtin_memcpy(to + i, from + i, 8);
  race_quiet(false);
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
  p->ran = p->ran_cold = 0xFFFFFFFFu;
  memset(p->hot, 0, sizeof p->hot);
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

/* Compares one page. Returns whether it has changed. */
static bool look_at(Proxy *p, int64_t from, int64_t to, uint32_t warps) {
  const unsigned char *const arena = shared_arena();
  /* Most looks find nothing: one comparison skips all strides. */
  if (same(arena + from, p->known + from, to - from)) return false;
  for (int64_t at = from; at < to; at += stride) {
    if (same(arena + at, p->known + at, stride)) continue;
    for (int64_t i = at; i < at + stride; i += piece) {
      if (same(arena + i, p->known + i, piece)) continue;
      take(p->known + i, arena + i, piece);
      hide(p, i / piece, warps);
    }
  }
  return true;
}

/* Compares the memory with its last known contents: all pages, or those that are hot. Warps that switch between
 * barriers are told apart as long as they write. After some looks that found nothing, pages without a change in this
 * block may be left out. A first change there belongs to every warp that ran since the last look at all pages. Redzones
 * between the arrays never change without ending the block. */
static void look(bool all) {
  const int64_t used = shared_used();
  Proxy *p = own();
  all = all || p->quiet < patience;
  for (int64_t i = 0; i * page < used; ++i) {
    if (!p->hot[i] && !all) continue;
    const int64_t from = i * page, to = from + page < used ? from + page : (used + stride - 1) / stride * stride;
    if (!look_at(p, from, to, p->hot[i] ? p->ran : p->ran_cold)) continue;
    p->quiet = -1;
    p->hot[i] = true;
  }
  p->ran = own_warp();
  p->ran_cold = all ? p->ran : p->ran_cold | p->ran;
  ++p->quiet;
}

/* Compares, and publishes what the warp may publish. */
static void publish(Proxy *p, uint32_t warp) {
  look(true);
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
  race_proxy();
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

/* Adds a warp to those that run. */
static void add_warp(Proxy *p, uint32_t warp) {
  p->ran |= warp;
  p->ran_cold |= warp;
}

/* Returns whether all live lanes of the warp wait, or 1, 2, 4, 8 or 16 of them. Warps may come to a barrier lane after
 * lane. Looks at all pages then tell the warps' stores apart without one for every lane. */
static bool worth_a_look(const Warp *w) {
  uint32_t waiting = 0, ready = 0;
  for (uint32_t m = w->present & ~w->exited; m != 0; m &= m - 1)
    ++(w->thread[__builtin_ctz(m)].state == READY ? ready : waiting);
  return ready == 0 || (waiting & (waiting - 1)) == 0;
}

void proxy_turn(const Thread *self, const Thread *next) {
  if (next->warp == self->warp) return;
  Proxy *p = own();
  end_round(p);
  if (p->quiet < patience)
    look(true);
  else if (self->state == AT_BARRIER || self->state == AT_NAMED)
    look(worth_a_look(self->warp));
  else if (self->state == AT_MBARRIER)
    look(false);
  if (block_of(next) == here) add_warp(p, 1u << (next->number / 32));
}

void proxy_enter() {
  end_round(own());
  add_warp(own(), own_warp());
}

void proxy_release() {
  end_round(own());
  look(true);
  own()->quiet = own()->quiet < patience - few ? own()->quiet : patience - few;
}

void proxy_phase() {
  end_round(own());
  look(false);
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
  for (unsigned char *to : {shared_arena() + offset, p->view + offset, p->known + offset})
    if (bytes == 16) /* the usual piece, without a call */
      memcpy(to, from, 16);
    else
      memcpy(to, from, static_cast<size_t>(bytes));
}

void proxy_poison(int64_t offset, int64_t bytes) {
  Proxy *p = own();
  forget(p->view + offset, bytes);
  take(p->known + offset, shared_arena() + offset, bytes);
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
