/* cuda.h: force-included (-include) when a .cu file is compiled by the host compiler (C++20). It provides the subset of
 * CUDA that the kernels use. Every rendezvous of threads goes through one table of functions, so a plug-in built with
 * this header needs nothing to link. Anything that is not here does not compile: write ASSAY_SHARED for __shared__ and
 * ASSAY_LAUNCH for <<<>>> (launch.h).
 *
 * A CUDA thread is a fiber. Blocks run one after the other, and threads switch only at a rendezvous. Only one host
 * thread may launch at a time. Kernels are C-like: after an error the fibers are abandoned where they stand, and no
 * destructors run. */
#ifndef ASSAY_SIMT_CUDA_H
#define ASSAY_SIMT_CUDA_H

#define ASSAY_SIMT 1

/* A contract names the fields that differ from 0 (gpu/lib): g++ warns of the others, as it does not in C. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#endif
/* Vectors have an assignment of their own, and are copied and filled as plain data (vectors.h). */
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wdeprecated-copy"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wclass-memaccess"
#endif
#endif

#if defined(__SANITIZE_THREAD__)
#define ASSAY_SIMT_TSAN_KERNEL 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ASSAY_SIMT_TSAN_KERNEL 1
#endif
#endif

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <bit>
#include <cmath>
#include <tuple>
#include <type_traits>

#include <assay/status.h>

#include "vectors.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static const
/* Expanded at every call, a small function is compiled hundreds of times over. ASSAY_CALL_ALL leaves that to the
 * compiler, where its time counts for more than that of the kernels. */
#ifdef ASSAY_CALL_ALL
#define __forceinline__ inline
#else
#define __forceinline__ inline __attribute__((always_inline))
#endif
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

/* ---- the table -------------------------------------------------------------------------------------- */

enum { ASSAY_SIMT_ABI = 6 };

typedef struct assay_simt_thread {
  uint3 index; /* threadIdx */
  uint32_t lane;
} assay_simt_thread;

typedef struct assay_simt_now {
  const assay_simt_thread *thread; /* the running thread */
  uint3 block_index;
  dim3 block_dim, grid_dim;
  void *dynamic_shared;
  int64_t shared_shift; /* from a site's memory to the memory of the running block */
  uint64_t launch;      /* counts launches, from 1 */
  uint32_t elected;     /* the lane that elect_one() chooses */
} assay_simt_now;

/* One array in shared memory, declared at one place of the source (once for every template instance). */
typedef struct assay_simt_site {
  const char *name, *file;
  int32_t line;
  int64_t bytes, align;
  uint64_t launch; /* the launch to which `memory` belongs */
  void *memory;
} assay_simt_site;

typedef struct assay_simt_launch {
  const char *name;
  int64_t grid[3], block[3], shared_bytes;
  void (*body)(const void *closure); /* runs one thread */
  const void *closure;
  int64_t closure_bytes; /* the closure may be copied, and run later */
  int32_t cluster, resident;
  bool dependent, followed;
} assay_simt_launch;

typedef enum assay_simt_op {
  ASSAY_SIMT_SYNCTHREADS,
  ASSAY_SIMT_SYNCTHREADS_COUNT,
  ASSAY_SIMT_SYNCTHREADS_AND,
  ASSAY_SIMT_SYNCTHREADS_OR,
  ASSAY_SIMT_SYNCWARP,
  ASSAY_SIMT_SHFL,
  ASSAY_SIMT_SHFL_UP,
  ASSAY_SIMT_SHFL_DOWN,
  ASSAY_SIMT_SHFL_XOR,
  ASSAY_SIMT_BALLOT,
  ASSAY_SIMT_ANY,
  ASSAY_SIMT_ALL,
  ASSAY_SIMT_REDUCE_ADD, /* on 32-bit integers */
  ASSAY_SIMT_REDUCE_MAX,
  ASSAY_SIMT_MMA, /* from here to STMATRIX, value is the address of the lane's operands (hopper.h) */
  ASSAY_SIMT_LDMATRIX,
  ASSAY_SIMT_STMATRIX,
  ASSAY_SIMT_WGMMA_WAIT, /* value: groups that may be left incomplete */
  ASSAY_SIMT_NAMED_SYNC,
  ASSAY_SIMT_NAMED_ARRIVE,
  ASSAY_SIMT_MBARRIER_WAIT,
  ASSAY_SIMT_CLUSTER_WAIT,
  ASSAY_SIMT_REGISTERS,
  ASSAY_SIMT_DEPENDENCY_WAIT,
  ASSAY_SIMT_POLL,
  ASSAY_SIMT_OP_COUNT
} assay_simt_op;

#include "hopper.h"

typedef struct assay_simt_api {
  uint32_t abi, struct_size;
  const assay_simt_now *now;
  assay_status (*launch)(const assay_simt_launch *launch, assay_error *error);
  int32_t (*barrier)(assay_simt_op op, int32_t predicate, const char *file, int32_t line);
  /* value: what this lane contributes. source: the lane that a shuffle reads (bytes: 4 or 8, 0 for votes). */
  uint64_t (*warp)(assay_simt_op op, uint32_t bytes, uint32_t mask, uint64_t value, uint32_t source, const char *file,
                   int32_t line);
  void (*yield)(void);
  void (*shared)(assay_simt_site *site);
  void *(*dynamic_shared_1024)(void);
  /* Ends the launch with an error. It does not return. */
  void (*fault)(const char *what, const char *file, int32_t line);
  /* Called by kernels that are compiled with ThreadSanitizer, before an atomic and at a fence. */
  void (*atomic)(const void *address);
  void (*fence)(void);
  const assay_simt_hopper *hopper;
} assay_simt_api;

/* The table of a shared object: set by assay_simt_host_api() in the host, by assay_plugin() in a plug-in. */
inline __attribute__((visibility("hidden"))) const assay_simt_api *assay_simt = nullptr;

extern "C" const assay_simt_api *assay_simt_host_api(void);

inline void assay_simt_expect_aligned(const void *at, size_t size) {
#if defined(__GNUC__)
  asm("" : "+r"(at)); /* the compiler takes the address for a multiple, because the type says so */
#endif
  if (reinterpret_cast<uintptr_t>(at) % size != 0)
    assay_simt->fault("a vector is stored beside a multiple of its size", __FILE__, __LINE__);
}

#define threadIdx (assay_simt->now->thread->index)
#define blockIdx  (assay_simt->now->block_index)
#define blockDim  (assay_simt->now->block_dim)
#define gridDim   (assay_simt->now->grid_dim)
#define warpSize  32

/* ---- barriers, shuffles, votes: the source line comes in by default arguments ------------------------ */

#define ASSAY_SIMT_HERE const char *file = __builtin_FILE(), int32_t line = __builtin_LINE()

inline void __syncthreads(ASSAY_SIMT_HERE) {
  (void)assay_simt->barrier(ASSAY_SIMT_SYNCTHREADS, 0, file, line);
}

inline int __syncthreads_count(int predicate, ASSAY_SIMT_HERE) {
  return assay_simt->barrier(ASSAY_SIMT_SYNCTHREADS_COUNT, predicate, file, line);
}

inline int __syncthreads_and(int predicate, ASSAY_SIMT_HERE) {
  return assay_simt->barrier(ASSAY_SIMT_SYNCTHREADS_AND, predicate, file, line);
}

inline int __syncthreads_or(int predicate, ASSAY_SIMT_HERE) {
  return assay_simt->barrier(ASSAY_SIMT_SYNCTHREADS_OR, predicate, file, line);
}

inline void __syncwarp(unsigned mask = 0xffffffffu, ASSAY_SIMT_HERE) {
  (void)assay_simt->warp(ASSAY_SIMT_SYNCWARP, 0, mask, 0, 0, file, line);
}

/* Exchanges values between lanes, which are divided into segments of `width`. A lane whose source lies outside its
 * segment gets its own value. A lane whose source is not in the mask gets all bits set (in CUDA this is undefined). */
template <class T>
inline T assay_simt_shuffle(assay_simt_op op, unsigned mask, T value, unsigned source, const char *file, int32_t line) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8), "shuffles move 4 or 8 bytes");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  bits = assay_simt->warp(op, sizeof(T), mask, bits, source, file, line);
  memcpy(&value, &bits, sizeof value);
  return value;
}

inline unsigned assay_simt_segment(int width, const char *file, int32_t line) {
  const bool legal = width > 0 && width <= 32 && (width & (width - 1)) == 0;
  if (!legal) assay_simt->fault("shuffle width is not 1, 2, 4, 8, 16 or 32", file, line);
  return ~(static_cast<unsigned>(width) - 1u) & 31u; /* the bits of a lane number that name its segment */
}

template <class T> inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32, ASSAY_SIMT_HERE) {
  const unsigned segment = assay_simt_segment(width, file, line), own = assay_simt->now->thread->lane;
  const unsigned source = (own & segment) | (static_cast<unsigned>(lane) & ~segment & 31u);
  return assay_simt_shuffle(ASSAY_SIMT_SHFL, mask, value, source, file, line);
}

template <class T> inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, ASSAY_SIMT_HERE) {
  const unsigned segment = assay_simt_segment(width, file, line), own = assay_simt->now->thread->lane;
  const unsigned source = (own & ~segment) >= delta ? own - delta : own;
  return assay_simt_shuffle(ASSAY_SIMT_SHFL_UP, mask, value, source, file, line);
}

template <class T> inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, ASSAY_SIMT_HERE) {
  const unsigned segment = assay_simt_segment(width, file, line), own = assay_simt->now->thread->lane;
  const unsigned room = static_cast<unsigned>(width) - 1u - (own & ~segment);
  return assay_simt_shuffle(ASSAY_SIMT_SHFL_DOWN, mask, value, delta <= room ? own + delta : own, file, line);
}

/* A source in a later segment gives the lane's own value; a source in an earlier segment is read, as in CUDA. */
template <class T> inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, ASSAY_SIMT_HERE) {
  const unsigned segment = assay_simt_segment(width, file, line), own = assay_simt->now->thread->lane;
  const unsigned source = own ^ (static_cast<unsigned>(lane_mask) & 31u);
  const bool inside = source <= ((own & segment) | (~segment & 31u));
  return assay_simt_shuffle(ASSAY_SIMT_SHFL_XOR, mask, value, inside ? source : own, file, line);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, ASSAY_SIMT_HERE) {
  return static_cast<unsigned>(assay_simt->warp(ASSAY_SIMT_BALLOT, 0, mask, predicate != 0, 0, file, line));
}

inline int __any_sync(unsigned mask, int predicate, ASSAY_SIMT_HERE) {
  return static_cast<int>(assay_simt->warp(ASSAY_SIMT_ANY, 0, mask, predicate != 0, 0, file, line));
}

inline int __all_sync(unsigned mask, int predicate, ASSAY_SIMT_HERE) {
  return static_cast<int>(assay_simt->warp(ASSAY_SIMT_ALL, 0, mask, predicate != 0, 0, file, line));
}

inline int __reduce_add_sync(unsigned mask, int value, ASSAY_SIMT_HERE) {
  const uint64_t sum = assay_simt->warp(ASSAY_SIMT_REDUCE_ADD, 0, mask, static_cast<unsigned>(value), 0, file, line);
  return static_cast<int>(static_cast<unsigned>(sum));
}

inline int __reduce_max_sync(unsigned mask, int value, ASSAY_SIMT_HERE) {
  const uint64_t most = assay_simt->warp(ASSAY_SIMT_REDUCE_MAX, 0, mask, static_cast<unsigned>(value), 0, file, line);
  return static_cast<int>(static_cast<unsigned>(most));
}

/* Lets the other threads of the block run first. A loop that polls memory must call it. */
inline void __nanosleep(unsigned) {
  assay_simt->yield();
}

inline void __trap(ASSAY_SIMT_HERE) {
  assay_simt->fault("__trap", file, line);
}

/* ---- shared memory and launches; launch.h wraps them in macros --------------------------------------- */

inline void *assay_simt_shared(assay_simt_site *site) {
  if (site->launch != assay_simt->now->launch) assay_simt->shared(site);
  return static_cast<char *>(site->memory) + assay_simt->now->shared_shift;
}

template <class... P> struct assay_simt_closure {
  void (*kernel)(P...);
  std::tuple<P...> parameters;
  static void run(const void *closure) {
    const auto *self = static_cast<const assay_simt_closure *>(closure);
    std::apply(self->kernel, self->parameters);
  }
};

#include "intrinsics.h"

#endif
