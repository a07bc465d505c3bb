/* scheduler.h: the state of the running launch and its blocks, for the files of this folder. The threads that can
 * continue wait in a ring. A thread that must wait, or ends, takes the next one from the ring and switches to it
 * directly. The ring is filled in an order drawn from the seed. All threads of a block are added at its start and at
 * every __syncthreads, the lanes of a group at every warp rendezvous. One block runs at a time, or as many as the
 * launch says wait for each other. Each of these blocks has a place of its own, with threads and shared memory. */
#ifndef ASSAY_SIMT_SCHEDULER_H
#define ASSAY_SIMT_SCHEDULER_H

#include <assay/device.h>

#include "simt/cuda.h"
#include "simt/fibers.h"
#include "simt/race.h"

namespace assay_simt_host {

constexpr uint32_t max_threads = 1024, max_warps = 32;
constexpr uint32_t max_places = 16, max_resident = 8; /* a launch that was put off runs in places of its own */

enum State : uint8_t {
  READY,
  AT_BARRIER,
  AT_WARP,
  AT_NAMED,
  AT_MBARRIER,
  AT_CLUSTER,
  AT_REGISTERS,
  AT_DEPENDENCY,
  POLLS, /* the thread is in the ring */
  EXITED
};

struct Warp;
struct Block;

/* A thread. A rendezvous of a warp needs its first 64 bytes alone, which are one line of the cache. */
struct alignas(64) Thread : assay_simt_thread {
  uint16_t number; /* x + y·X + z·X·Y */
  uint16_t slot;   /* the same, among all places */
  State state;     /* READY is set by the thread itself when it continues */
  Fiber *fiber;    /* NULL: not begun, or over */
  Warp *warp;
  /* Where the thread waits. */
  const char *file;
  int32_t line;
  assay_simt_op op;
  uint32_t bytes, mask;
  /* Not for a rendezvous of a warp. */
  uint64_t value;
  uint32_t source;
  uint32_t arrived; /* at the cluster's barrier: its phase plus 1; 0: has not arrived, or has waited */
};

struct Warp {
  Thread *thread;           /* the thread of lane 0 */
  uint32_t present, exited; /* lanes */
  uint32_t waiting;         /* lanes at a warp rendezvous */
  uint32_t registers;       /* per thread, if the warp has changed them; else 0 */
  uint64_t last;            /* mask, bytes and operation of the rendezvous that began last */
  uint32_t last_leader;     /* the lane that began it */
  uint32_t leader[32];      /* the lane that came first to the rendezvous at which this lane waits */
  uint32_t arrived[32];     /* by leader: lanes that have arrived */
  uint32_t source[32];      /* by lane: the lane that a shuffle reads */
  uint64_t value[32];       /* by lane: its contribution; on release, its result */
};

struct NamedBarrier {
  uint32_t threads, arrived; /* arrived 0: no thread has arrived since the last release */
  const Thread *first;
};

/* The blocks of a cluster run at the same time. */
struct Cluster {
  uint32_t running; /* number of blocks */
  uint32_t arrived; /* threads at its barrier */
  uint32_t phase;
};

struct Block {
  uint64_t count; /* counts the blocks that have begun */
  uint3 index;
  uint32_t place, rank; /* rank: within the cluster */
  Cluster *cluster;
  uint32_t exited;
  uint32_t at_barrier;
  Thread *first;         /* the first thread that came to the barrier */
  int32_t votes, result; /* for __syncthreads_count and similar functions */
  bool watched;          /* the copy engine's view of shared memory is kept (proxy.cpp) */
  int32_t registers;     /* per lane, given back by its warps (cluster.cpp) */
  NamedBarrier named[16];
  Warp warp[max_warps];
  Thread *thread;
};

/* A launch. A launch that was put off runs within the launch that depends on it. */
struct Run {
  uint32_t threads, warps; /* per block */
  uint32_t first_place, places;
  uint64_t step, at, left; /* for the order of clusters */
  uint32_t head, tail;     /* tail - head threads can continue */
  uint32_t ring_mask;
  uint64_t random;
  uint64_t polls; /* polls since anything else happened */
  uint8_t fresh;  /* every byte of a block's shared memory when it begins */
  bool waits_for; /* the previous launch has not run yet */
  bool eager;     /* copies arrive when they are issued, not when no thread can continue without them */
  uint16_t *ring;
  bool failed;
  assay_status status;
  assay_error *error;
  const assay_simt_launch *launch;
  Fiber host;
};

extern Run run;
extern Block *here; /* the block of the running thread */
extern Block blocks[max_places];
extern Thread all_threads[max_places * max_threads];
extern assay_simt_now now;

inline Thread *current() {
  return static_cast<Thread *>(const_cast<assay_simt_thread *>(now.thread));
}

/* xorshift64: cheap, and never 0. */
inline uint64_t draw() {
  run.random ^= run.random << 13;
  run.random ^= run.random >> 7;
  run.random ^= run.random << 17;
  return run.random;
}

inline void push_back(const Thread *t) {
  run.ring[run.tail++ & run.ring_mask] = t->slot;
}
inline void push_front(const Thread *t) {
  run.ring[--run.head & run.ring_mask] = t->slot;
}

/* Returns the next thread of the ring, or NULL if no thread can continue. */
inline Thread *pop() {
  if (run.head == run.tail) return nullptr;
  return &all_threads[run.ring[run.head++ & run.ring_mask]];
}

/* scheduler.cpp */
void enter(Block *block); /* makes it the running block */
void leave();             /* no thread can continue until the previous launch has run: goes to the host and back */
inline Block *block_of(const Thread *t) {
  return &blocks[t->slot / max_threads];
}
void push_all();              /* adds every thread of the block that has not ended, in a new order */
Fiber *begin(Thread *thread); /* gives the thread a fiber; NULL: no memory, reported */
[[noreturn]] void fail();     /* returns to the host and abandons all fibers; the error was reported before */
[[noreturn]] void hang();     /* reports that no thread can continue */

/* engine.cpp: runs the pending work of the copy engine until a thread can continue; NULL: none ever will. */
Thread *engine_run();

/* proxy.cpp */
void proxy_enter();                                      /* a watched block continues */
void proxy_turn(const Thread *self, const Thread *next); /* before each switch in a watched block */
void proxy_release();                                    /* the same, when a barrier releases its threads */
void proxy_phase();                                      /* the same, when an mbarrier does */

/* Returns the next thread in turn, or NULL if there is none. */
inline Thread *next_turn() {
  Thread *next = pop();
  return next != nullptr ? next : engine_run();
}

/* Has the cache fetch what the switches after the next one touch. The stacks of a block's threads are more than its
 * first level holds. It is part of its caller by force: the compiler drops calls that do nothing but prefetch. */
inline __attribute__((always_inline)) void foresee() {
  const Thread *const soon = &all_threads[run.ring[run.head & run.ring_mask]];
  __builtin_prefetch(&all_threads[run.ring[(run.head + 1) & run.ring_mask]], 1);
  const Fiber *const fiber = soon->fiber;
  if (fiber == nullptr) return;
  __builtin_prefetch(fiber->context, 1);
  __builtin_prefetch(static_cast<const char *>(fiber->context) + 64, 1);
}

inline void give_turn(Thread *next) {
  now.thread = next;
  if (run.places > 1 || here == nullptr) {
    Block *block = block_of(next);
    if (block != here) enter(block);
  }
  race_turn(next);
}

/* Waits for the running thread's turn; the thread is in the ring or waits for others. It is inline because the
 * processor predicts returns wrongly after a switch between different calls, so there should be few returns. */
inline __attribute__((always_inline)) void wait_for_turn() {
  Thread *self = current();
  race_check();
  Thread *next = next_turn();
  foresee();
  if (next == self) return;
  if (next == nullptr && run.waits_for) {
    leave();
    return;
  }
  if (next == nullptr) hang();
  if (here->watched) proxy_turn(self, next);
  Fiber *to = next->fiber;
  if (to == nullptr && (to = begin(next)) == nullptr) fail();
  give_turn(next);
  fiber_switch(self->fiber, to);
}

/* rendezvous.cpp */
int32_t barrier(assay_simt_op op, int32_t predicate, const char *file, int32_t line);
uint64_t warp(assay_simt_op op, uint32_t bytes, uint32_t mask, uint64_t value, uint32_t source, const char *file,
              int32_t line);
void thread_ended(Thread *thread);

/* cluster.cpp: what blocks have to do with each other and with the previous launch; registers */
uint32_t cluster_rank();
uint32_t cluster_size();
void cluster_arrive(const char *file, int32_t line);
void cluster_wait(const char *file, int32_t line);
/* Returns the other block of the cluster in whose shared memory the address is, or NULL. */
Block *cluster_other(const void *shared);
void *cluster_shared(const void *shared, uint32_t rank, const char *file, int32_t line);
void dependency_wait(const char *file, int32_t line);
void dependency_met(); /* the previous launch has run: the threads that waited for it continue */
void registers(int32_t count, bool more, const char *file, int32_t line);
void poll(const char *file, int32_t line);
bool registers_end_block(); /* false: the warps of a warpgroup differ, reported */
void cluster_thread_ended();

/* shared.cpp */
assay_status shared_begin_launch(int64_t dynamic_bytes, assay_error *error);
void shared_begin_block();
void *shared_dynamic();  /* the running block's */
bool shared_end_block(); /* false: a redzone was written; run.error says which */
void shared_end_launch();
void shared_site(assay_simt_site *site);
void *shared_dynamic_1024(); /* moves the dynamic part up to a multiple of 1024, for the rest of the launch */
constexpr int64_t shared_arena_bytes = (227 * 1024 + 66 * 1536 + 1023) / 1024 * 1024;
extern unsigned char shared_arenas[max_places][shared_arena_bytes];
inline unsigned char *shared_arena() { /* the running block's */
  return shared_arenas[here != nullptr ? here->place : run.first_place];
}
struct Layout;
Layout *shared_put_aside();                                /* the running launch's; NULL: no memory */
void shared_take_up(Layout *layout);                       /* continues with it */
int64_t shared_offset(const void *address, int64_t bytes); /* offset in the arena; -1: not within one array */
int64_t shared_used();
bool shared_array(int i, int64_t *offset, int64_t *bytes);
const char *shared_name(const void *address); /* name of the array at the address; "global memory" elsewhere */

/* tensor.cpp: what the lanes of a warp compute together */
void collective(const Warp *w, assay_simt_op op);

/* named.cpp */
void named_barrier(assay_simt_op op, uint32_t id, uint32_t threads, const char *file, int32_t line);

/* copies.cpp: cp.async */
void copy_begin(const assay_simt_copy *copy);
void copy_commit();
bool copy_arrives(int32_t pending, assay_simt_copy *copy);
void copy_arrive(uint64_t *barrier, const char *file, int32_t line);
/* Writes the copies that the thread began before the copy of this number. */
void copy_finish(const Thread *thread, uint64_t before);

/* mbarrier.cpp */
void mbarrier_init(uint64_t *barrier, uint32_t count, const char *file, int32_t line);
void mbarrier_arrive(uint64_t *barrier, bool expect, uint32_t bytes, const char *file, int32_t line);
void mbarrier_wait(uint64_t *barrier, uint32_t parity, const char *file, int32_t line);
bool mbarrier_valid(uint64_t word);
void mbarrier_complete(uint64_t *barrier, uint32_t arrivals, uint32_t bytes, const char *file, int32_t line);
void mbarrier_describe(const uint64_t *barrier, char *text, size_t size);

/* engine.cpp: the copy engine */
uint32_t bulk_check(const assay_simt_bulk *copy, const char *file, int32_t line);
uint32_t load_check(const assay_simt_bulk *copy, const char *file, int32_t line); /* then bulk_load comes */
void bulk_load(const assay_simt_bulk *copy, const char *file, int32_t line);
void bulk_store(const assay_simt_bulk *copy, const char *file, int32_t line);
void bulk_commit();
void bulk_wait(int32_t pending, bool only_read);
void engine_arrive(uint64_t *barrier, uint64_t before, const char *file, int32_t line);
bool engine_end_block(); /* false: something was pending, reported */
void engine_drop();      /* forgets everything */
void engine_put_aside(); /* sets pending work aside, for another launch to run in between */
void engine_take_up();
void engine_idle(); /* a thread polls: now and then some pending work is done */

/* tensor.cpp */
float factor_eight(uint32_t code, assay_simt_eight type); /* the value of the low byte */

/* wgmma.cpp */
uint64_t wgmma_address(const void *shared, const char *file, int32_t line);
void wgmma_fence();
void wgmma_issue(const assay_simt_wgmma *product, const char *file, int32_t line);
void wgmma_commit();
void wgmma_wait(int32_t pending, const char *file, int32_t line);
void wgmma_finish(const Warp *w); /* completes what the warp's lanes, all at their wait, wait for */
bool wgmma_end_block();           /* false: something was not waited for, reported */

/* scheduler.cpp */
void yield();

/* proxy.cpp: shared memory as the copy engine and wgmma see it */
void proxy_watch(); /* from here on, for the rest of the block */
void proxy_fence();
void proxy_extend(int64_t from, int64_t to);                       /* memory that was just laid out */
unsigned char *proxy_view();                                       /* the engine's view of the arena, byte for byte */
uint64_t proxy_word(int64_t offset);                               /* an mbarrier's word in that view */
void proxy_write(int64_t offset, const void *from, int64_t bytes); /* by the engine: visible to all */
void proxy_poison(int64_t offset, int64_t bytes);                  /* undefined, for all */
void proxy_settle();                                               /* before a write that proxy_foreign tells of */
/* Written by no thread in particular. The fence of any warp that has waited for the mbarrier publishes it. */
void proxy_foreign(int64_t offset, int64_t bytes, const uint64_t *barrier);
void proxy_waited(const uint64_t *barrier, uint32_t warps);

/* hopper.cpp */
extern const assay_simt_hopper hopper;

/* scheduler.cpp */
assay_status launch_flush(assay_error *error); /* runs a launch that was put off */
/* Puts every launch off until the next one, or until this is turned off. */
assay_status launch_late(bool on, assay_error *error);

assay_status launch_settle(assay_error *error); /* runs the launch now, if one was put off */
bool launch_is_late();

/* uploads.cpp */
bool uploads_wait();                                            /* whether some uploads were put off */
bool upload_put_off(void *to, const void *from, int64_t bytes); /* false: not put off; the caller must do it */
void uploads_run();                                             /* runs them in their order */

/* graph.cpp */
bool graph_recording();
assay_status graph_record(const assay_simt_launch *request, assay_error *error);
assay_status graph_capture_begin(void **stream, assay_error *error);
assay_status graph_capture_end(void **graph, assay_error *error);
assay_status graph_replay(void *graph, assay_error *error);
void graph_release(void *graph);

/* flow.cpp. flow_drain_own() runs what is queued in the device's own stream, and what that work waits for. flow_drain()
 * does so for all lanes. */
extern const assay_device_flow flow;
extern assay_device_waits waits;
assay_status flow_drain_own(assay_error *error);
assay_status flow_drain(assay_error *error);

/* guarded.cpp */
assay_status guarded_alloc(int64_t bytes, void **memory, int64_t *capacity, assay_error *error);
void guarded_release(void *memory);

/* report.cpp */
const char *base_name(const char *path);
const char *op_name(assay_simt_op op);
void report(assay_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
void report_hang();
void note_barrier(); /* the block meets at a barrier without threads that have ended */
const char *launch_note();

} /* namespace assay_simt_host */

/* Sets the order of threads and blocks of the launches from here on. */
extern "C" void assay_simt_schedule(uint64_t seed);
/* Leaves out blocks of the launches from here on (assay_device.window). */
extern "C" void assay_simt_window(int64_t ends);

#endif
