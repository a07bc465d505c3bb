/* fibers.h: stacks and the switch between them. A fiber runs CUDA threads one after the other; a thread that never
 * waits needs no switch at all. Stacks are mapped once, with a guard page below, and kept. */
#ifndef ASSAY_SIMT_FIBERS_H
#define ASSAY_SIMT_FIBERS_H

#include <stddef.h>

#include <boost/context/detail/fcontext.hpp>

#if defined(__SANITIZE_ADDRESS__)
#define ASSAY_SIMT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ASSAY_SIMT_ASAN 1
#endif
#endif
#if defined(__has_feature)
#if __has_feature(memory_sanitizer)
#define ASSAY_SIMT_MSAN 1
#endif
#endif
#ifdef ASSAY_SIMT_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef ASSAY_SIMT_MSAN
#include <sanitizer/msan_interface.h>
#endif

namespace assay_simt_host {

namespace context = boost::context::detail;

/* On x86-64, and unless a sanitizer watches, the switch is switch.cpp's. Boost's saves and loads the control words of
 * both floating point units each time. That took three quarters of its time, and no kernel changes them. */
#if defined(__x86_64__) && defined(__ELF__) && !defined(ASSAY_SIMT_ASAN) && !defined(ASSAY_SIMT_MSAN) &&               \
    !defined(ASSAY_SIMT_TSAN)
#define ASSAY_SIMT_SWITCH 1
extern "C" context::transfer_t assay_simt_jump(context::fcontext_t to, void *data);
context::fcontext_t make_context(void *top, void (*entry)(context::transfer_t));
#endif

struct Fiber {
  context::fcontext_t context; /* where the fiber stands; NULL: it has not begun */
  void *bottom;                /* lowest address of the stack */
  size_t size;
  Fiber *next_free;
#ifdef ASSAY_SIMT_ASAN
  void *fake_stack;
#endif
};

/* Comes first after a switch: stores where the fiber that was left stands. */
inline void fiber_arrive(Fiber *self, context::transfer_t from) {
#ifdef ASSAY_SIMT_MSAN
  __msan_unpoison(&from, sizeof from); /* the switch is assembly, which MSan does not see */
#endif
  Fiber *left = static_cast<Fiber *>(from.data);
  left->context = from.fctx;
#ifdef ASSAY_SIMT_ASAN
  const void *bottom = nullptr;
  size_t size = 0;
  __sanitizer_finish_switch_fiber(self->fake_stack, &bottom, &size);
  if (left->size == 0) { /* the host's own stack, seen for the first time */
    left->bottom = const_cast<void *>(bottom);
    left->size = size;
  }
#else
  (void)self;
#endif
}

/* Leaves `self`. Returns when another fiber switches back to it. */
inline void fiber_switch(Fiber *self, Fiber *to) {
#ifdef ASSAY_SIMT_ASAN
  __sanitizer_start_switch_fiber(&self->fake_stack, to->bottom, to->size);
#endif
#ifdef ASSAY_SIMT_MSAN
  const context::transfer_t from = context::jump_fcontext(to->context, self);
  __msan_unpoison(&from, sizeof from);
  fiber_arrive(self, from);
#elif defined(ASSAY_SIMT_SWITCH)
  fiber_arrive(self, assay_simt_jump(to->context, self));
#else
  fiber_arrive(self, context::jump_fcontext(to->context, self));
#endif
}

constexpr size_t race_stack_bytes = 32 * 1024; /* bytes that TSan is told are fresh when a thread begins */

/* Returns a fiber that stands in `entry` or at its beginning, or NULL if there is no memory. */
Fiber *fiber_take(void (*entry)(context::transfer_t));
void fiber_give_back(Fiber *fiber);
/* Frees every fiber, so that it begins anew; what was on the stacks is abandoned. It must be called on `host`. */
void fiber_reset_all(Fiber *host);
/* Returns the number of stacks mapped so far, for tests. */
int fiber_count(void);

} /* namespace assay_simt_host */

#endif
