/* race.h: what ThreadSanitizer is told when kernels are compiled with it (ASSAY_SANITIZE=thread). Every CUDA thread, or
 * every warp, is a TSan fiber of its own, whatever stacks it runs on. A switch from one to another orders nothing.
 * Order comes from what gives order on a GPU: a rendezvous, among its participants; fences with atomics; the boundaries
 * of a launch. The scheduler itself is not instrumented. Without TSan these functions do nothing.
 *
 * The copy engine of a block is a fiber too. It has seen what threads did only through proxy fences. A fence passes on
 * what its thread has seen, be it of other threads. An mbarrier passes on what threads did to threads alone. */
#ifndef ASSAY_SIMT_RACE_H
#define ASSAY_SIMT_RACE_H

#include <stddef.h>
#include <stdint.h>

namespace assay_simt_host {

struct Thread;

#ifdef ASSAY_SIMT_TSAN

constexpr bool race_checked = true;

void race_begin_launch(bool within); /* within: inside another launch */
void race_begin_block();             /* makes a new fiber for each thread; all see what happened before */
void race_fresh(const void *from,
                size_t bytes);        /* memory that no thread has used yet: the stack of a thread that begins */
void race_turn(const Thread *thread); /* this thread runs from here on; NULL: the host */
void race_meet(uint32_t count, Thread *const *threads); /* each has seen what all of them did */
void race_release(void *object);                        /* the running thread passes on what it has done */
void race_acquire(void *object, const Thread *thread);  /* the thread has seen what the object passes on */
void race_end_thread();                                 /* ends the running thread; the host will see what it did */
void race_end_launch(bool within);
void race_check();                     /* fails the launch if a race was reported since the last check */
void race_quiet(bool begin);           /* ignores accesses of the running thread: they are the scheduler's own */
void race_atomic(const void *address); /* comes before a relaxed atomic of the running thread */
void race_fence();
void race_read(const void *from, size_t bytes); /* the running thread reads, through the copy engine */
void race_made(uint64_t *word);                 /* the running thread writes a word that is a barrier's from then on */
void race_used(const uint64_t *word);           /* the running thread touches it as a barrier: atomically */
void race_proxy();                              /* the running thread calls the proxy fence */
/* Tells TSan that the block's copy engine may write from here on. Threads that wait for the barrier see what it wrote.
 * file, line: where the kernel starts the copy. */
void race_engine(void *to, size_t bytes, void *barrier, const char *file, int32_t line);

#else

constexpr bool race_checked = false;

inline void race_begin_launch(bool) {}
inline void race_begin_block() {}
inline void race_fresh(const void *, size_t) {}
inline void race_turn(const Thread *) {}
inline void race_meet(uint32_t, Thread *const *) {}
inline void race_release(void *) {}
inline void race_acquire(void *, const Thread *) {}
inline void race_end_thread() {}
inline void race_end_launch(bool) {}
inline void race_check() {}
inline void race_quiet(bool) {}
inline void race_atomic(const void *) {}
inline void race_fence() {}
inline void race_read(const void *, size_t) {}
inline void race_made(uint64_t *) {}
inline void race_used(const uint64_t *) {}
inline void race_proxy() {}
inline void race_engine(void *, size_t, void *, const char *, int32_t) {}

#endif

} /* namespace assay_simt_host */

#endif
