/* fibers.cpp: the pool of fibers, mapped when first needed. There is at most one per thread of the blocks that run at
 * the same time, such as those of a cluster. A block of the previous launch for which they wait may need 1,024 more. */
#include "simt/fibers.h"

#include <stdint.h>
#include <sys/mman.h>

namespace assay_simt_host {

#if defined(ASSAY_SIMT_ASAN) || defined(ASSAY_SIMT_TSAN) || defined(ASSAY_SIMT_MSAN)
static constexpr size_t stack_bytes = 256 * 1024;
#else
static constexpr size_t stack_bytes = 64 * 1024;
#endif
static constexpr size_t guard_bytes = 4096;
static constexpr int max_fibers = 4 * 1024;

static Fiber fibers[max_fibers];
static int count;
static Fiber *free_list;

/* Returns the first address that a fiber's stack uses, from above. Stacks are a whole number of pages apart. Without an
 * offset the hot lines of all threads would fall into the same few sets of the first-level cache. */
static void *stack_top(const Fiber *fiber) {
  const size_t offset = static_cast<size_t>(fiber - fibers) % 11 * 320;
  return static_cast<char *>(fiber->bottom) + fiber->size - offset;
}

static Fiber *map_fiber() {
  if (count == max_fibers) return nullptr;
  void *memory = mmap(nullptr, guard_bytes + stack_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  if (mprotect(memory, guard_bytes, PROT_NONE) != 0) {
    (void)munmap(memory, guard_bytes + stack_bytes);
    return nullptr;
  }
  Fiber *fiber = &fibers[count++];
  fiber->bottom = static_cast<char *>(memory) + guard_bytes;
  fiber->size = stack_bytes;
  return fiber;
}

Fiber *fiber_take(void (*entry)(context::transfer_t)) {
  Fiber *fiber = free_list;
  if (fiber != nullptr)
    free_list = fiber->next_free;
  else
    fiber = map_fiber();
  if (fiber != nullptr && fiber->context == nullptr) {
    void *top = stack_top(fiber);
#ifdef ASSAY_SIMT_SWITCH
    fiber->context = make_context(top, entry);
#else
    fiber->context = context::make_fcontext(
        top, static_cast<size_t>(static_cast<char *>(top) - static_cast<char *>(fiber->bottom)), entry);
#endif
  }
  return fiber;
}

void fiber_give_back(Fiber *fiber) {
  fiber->next_free = free_list;
  free_list = fiber;
}

#ifdef ASSAY_SIMT_ASAN
/* Takes the fiber's fake stack (detect_stack_use_after_return) as if the fiber ran, and lets it die. */
__attribute__((no_sanitize_address)) static void drop_fake_stack(Fiber *host, Fiber *fiber) {
  if (fiber->fake_stack == nullptr) return;
  __sanitizer_start_switch_fiber(&host->fake_stack, fiber->bottom, fiber->size);
  __sanitizer_finish_switch_fiber(fiber->fake_stack, nullptr, nullptr);
  __sanitizer_start_switch_fiber(nullptr, host->bottom, host->size);
  __sanitizer_finish_switch_fiber(host->fake_stack, nullptr, nullptr);
  fiber->fake_stack = nullptr;
}
#endif

void fiber_reset_all(Fiber *host) {
  (void)host;
  free_list = nullptr;
  for (int i = count - 1; i >= 0; --i) {
    fibers[i].context = nullptr;
#ifdef ASSAY_SIMT_ASAN
    __asan_unpoison_memory_region(fibers[i].bottom, fibers[i].size);
    drop_fake_stack(host, &fibers[i]);
#endif
    fiber_give_back(&fibers[i]);
  }
}

int fiber_count() {
  return count;
}

} /* namespace assay_simt_host */
