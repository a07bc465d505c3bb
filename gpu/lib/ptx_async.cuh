/* ptx_async.cuh: wrappers of asynchronous copies, of what waits for them, and of the order between blocks, each with a
 * second body for simt. */
#ifndef ASSAY_GPU_PTX_ASYNC_CUH
#define ASSAY_GPU_PTX_ASYNC_CUH

#include "gpu/lib/ptx.cuh"
#include "gpu/lib/tensor_map.h"

namespace ASSAY_NS {

#ifdef ASSAY_SIMT
/* Starts a load. Its destination is undefined from here until the barrier. The thread itself overwrites it, so that
 * sanitizers can see it. */
inline void simt_load(const assay_simt_bulk &copy, const char *file, int32_t line) {
  memset(copy.shared, 0xFF, assay_simt->hopper->bulk_check(&copy, file, line));
  assay_simt->hopper->bulk_load(&copy, file, line);
}
inline void simt_tma_load(void *shared, const tensor_map *map, uint64_t *barrier, int32_t rank, const int32_t (&at)[5],
                          const char *file, int32_t line) {
  simt_load(assay_simt_bulk{shared, barrier, map, rank, {at[0], at[1], at[2], at[3], at[4]}, nullptr, 0}, file, line);
}
inline void simt_tma_store(const tensor_map *map, const void *shared, int32_t rank, const int32_t (&at)[5],
                           const char *file, int32_t line) {
  const assay_simt_bulk copy = {const_cast<void *>(shared),          nullptr, map, rank,
                                {at[0], at[1], at[2], at[3], at[4]}, nullptr, 0};
  assay_simt->hopper->bulk_store(&copy, file, line);
}
#endif

/* ---- cp.async: 16 bytes per thread, in groups --------------------------------------------------------- */

/* Copies the first `bytes` (0 to 16) of 16 bytes and fills the rest with zeros. Both addresses must be multiples of 16.
 * With bytes 0 nothing is read. The destination is undefined until the thread's wait. */
__device__ __forceinline__ void cp_async_16(void *shared, const void *global, int bytes ASSAY_AT) {
#ifdef ASSAY_SIMT
  if (reinterpret_cast<uintptr_t>(shared) % 16 != 0 || reinterpret_cast<uintptr_t>(global) % 16 != 0)
    assay_simt->fault("cp_async_16: address is not a multiple of 16", file, line);
  if (bytes < 0 || bytes > 16) assay_simt->fault("cp_async_16: bytes are not 0 to 16", file, line);
  assay_simt_copy copy = {shared, {0, 0, 0, 0}};
  if (bytes > 0) memcpy(copy.data, global, static_cast<size_t>(bytes));
  memset(shared, 0xFF, 16); /* undefined from here to the wait */
  assay_simt->hopper->copy_begin(&copy);
#else
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(bytes)
               : "memory");
#endif
}

/* The same, `to` bytes after `shared` and `from` bytes after `global`, which the instruction itself adds. */
template <int to, int from>
__device__ __forceinline__ void cp_async_16_beside(void *shared, const void *global, int bytes ASSAY_AT) {
#ifdef ASSAY_SIMT
  cp_async_16(static_cast<char *>(shared) + to, static_cast<const char *>(global) + from, bytes, file, line);
#else
  asm volatile("cp.async.cg.shared.global.L2::128B [%0 + %3], [%1 + %4], 16, %2;" ::"r"(shared_address(shared)),
               "l"(global), "r"(bytes), "n"(to), "n"(from)
               : "memory");
#endif
}

#ifdef ASSAY_SIMT
/* Marks reads whose result decides only the speed. Such a read is neither a race nor a use of uninitialised memory. */
#ifdef __clang__
#define ASSAY_UNJUDGED __attribute__((noinline, no_sanitize("thread", "memory")))
#else
#define ASSAY_UNJUDGED __attribute__((noinline, no_sanitize_thread))
#endif
template <class T> ASSAY_UNJUDGED inline T unjudged_load(const T *address) {
  return *static_cast<const volatile T *>(address);
}
/* Returns the time of a clock of the host's thread; the threads of a block are one thread of the host. */
ASSAY_UNJUDGED inline uint32_t unjudged_clock() {
  static thread_local uint32_t now = 0;
  return now += 1000;
}
#endif

/* Prefetches the line of the address into the L2 cache, without waiting. On simt the address must be readable. */
__device__ __forceinline__ void prefetch_l2(const void *global) {
#ifdef ASSAY_SIMT
  (void)unjudged_load(static_cast<const char *>(global));
#else
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
#endif
}

/* Loads 4 bytes of global memory that the previous launch may still be writing. Use it to decide what to prefetch,
 * never for a result. The bytes are not kept in L1, where a load after dependency_wait() would find them. */
__device__ __forceinline__ int32_t load_early(const int32_t *address) {
#ifdef ASSAY_SIMT
  return unjudged_load(address);
#else
  int32_t value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(address));
  return value;
#endif
}

/* Returns the nanoseconds, modulo 2^32, of a clock that all multiprocessors share. Use it to decide when to do
 * something, never for a result. On simt a microsecond passes between two calls. */
__device__ __forceinline__ uint32_t clock_ns() {
#ifdef ASSAY_SIMT
  return unjudged_clock();
#else
  uint32_t now;
  asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(now));
  return now;
#endif
}

/* Returns the pointer, hiding from the compiler how it was computed. The compiler would otherwise add up what can be
 * added separately. */
template <class T> __device__ __forceinline__ const T *separate(const T *at) {
#ifndef ASSAY_SIMT
  asm("" : "+l"(at));
#endif
  return at;
}

__device__ __forceinline__ void cp_async_commit() {
#ifdef ASSAY_SIMT
  assay_simt->hopper->copy_commit();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Waits until at most `pending` of this thread's groups, the youngest, are incomplete. Other threads see the data after
 * a barrier. */
template <int pending> __device__ __forceinline__ void cp_async_wait() {
#ifdef ASSAY_SIMT
  assay_simt_copy copy;
  while (assay_simt->hopper->copy_arrives(pending, &copy))
    memcpy(copy.to, copy.data, 16);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#endif
}

/* Arrives at the barrier when all copies that this thread has begun are complete. It counts as one of the barrier's
 * arrivals. */
__device__ __forceinline__ void cp_async_arrive_noinc(uint64_t *barrier ASSAY_AT) {
#ifdef ASSAY_SIMT
  assay_simt->hopper->copy_arrive(barrier, file, line);
#else
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
#endif
}

/* ---- mbarriers: phases of `count` arrivals and the bytes that were announced ---------------------------- */

__device__ __forceinline__ void mbarrier_init(uint64_t *barrier, uint32_t count ASSAY_AT) {
#ifdef ASSAY_SIMT
  assay_simt->hopper->mbarrier_init(barrier, count, file, line);
#else
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
#endif
}

/* Makes the barrier usable by copies and by the cluster's other blocks. The thread that called mbarrier_init calls it
 * afterwards. The block's other threads may use the barrier after __syncthreads. */
__device__ __forceinline__ void mbarrier_fence_init() {
#ifdef ASSAY_SIMT
  assay_simt->hopper->proxy_fence();
#else
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

__device__ __forceinline__ void mbarrier_arrive(uint64_t *barrier ASSAY_AT) {
#ifdef ASSAY_SIMT
  assay_simt->hopper->mbarrier_arrive(barrier, false, 0, file, line);
#else
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
#endif
}

/* Arrives and announces `bytes` that copies will deliver in this phase. */
__device__ __forceinline__ void mbarrier_expect(uint64_t *barrier, uint32_t bytes ASSAY_AT) {
#ifdef ASSAY_SIMT
  assay_simt->hopper->mbarrier_arrive(barrier, true, bytes, file, line);
#else
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
#endif
}

/* Waits until the phase of this parity is over. The parity is 0 for the first phase, then 1, 0 and so on. On a fresh
 * barrier, waiting for parity 1 returns at once. */
__device__ __forceinline__ void mbarrier_wait(uint64_t *barrier, uint32_t parity ASSAY_AT) {
#ifdef ASSAY_SIMT
  assay_simt->hopper->mbarrier_wait(barrier, parity, file, line);
#else
  const uint32_t at = shared_address(barrier);
  uint32_t done;
  do {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(at), "r"(parity)
                 : "memory");
  } while (done == 0);
#endif
}

/* ---- the copy engine: one thread issues ---------------------------------------------------------------- */

/* Makes this thread's earlier writes to shared memory visible to copies and wgmma that are issued after a barrier.
 * Every writing thread calls it, before that barrier. */
__device__ __forceinline__ void fence_proxy_async() {
#ifdef ASSAY_SIMT
  assay_simt->hopper->proxy_fence();
#else
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

__device__ __forceinline__ void tensor_map_prefetch(const tensor_map *map) {
#ifdef ASSAY_SIMT
  (void)map;
#else
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
#endif
}

/* Loads the box whose first element is (c0, c1, …) to shared memory; c0 is in the contiguous dimension. The barrier
 * counts the bytes of the whole box, including those outside the tensor. */
__device__ __forceinline__ void tma_load(void *shared, const tensor_map *map, uint64_t *barrier, int32_t c0,
                                         int32_t c1 ASSAY_AT) {
#ifdef ASSAY_SIMT
  const int32_t at[5] = {c0, c1};
  simt_tma_load(shared, map, barrier, 2, at, file, line);
#else
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
               "[%1, {%3, %4}], [%2];" ::"r"(shared_address(shared)),
               "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1)
               : "memory");
#endif
}

__device__ __forceinline__ void tma_load(void *shared, const tensor_map *map, uint64_t *barrier, int32_t c0, int32_t c1,
                                         int32_t c2 ASSAY_AT) {
#ifdef ASSAY_SIMT
  const int32_t at[5] = {c0, c1, c2};
  simt_tma_load(shared, map, barrier, 3, at, file, line);
#else
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
               "[%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(shared)),
               "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2)
               : "memory");
#endif
}

__device__ __forceinline__ void tma_load(void *shared, const tensor_map *map, uint64_t *barrier, int32_t c0, int32_t c1,
                                         int32_t c2, int32_t c3 ASSAY_AT) {
#ifdef ASSAY_SIMT
  const int32_t at[5] = {c0, c1, c2, c3};
  simt_tma_load(shared, map, barrier, 4, at, file, line);
#else
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
               "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(shared)),
               "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
               : "memory");
#endif
}

__device__ __forceinline__ void tma_load(void *shared, const tensor_map *map, uint64_t *barrier, int32_t c0, int32_t c1,
                                         int32_t c2, int32_t c3, int32_t c4 ASSAY_AT) {
#ifdef ASSAY_SIMT
  const int32_t at[5] = {c0, c1, c2, c3, c4};
  simt_tma_load(shared, map, barrier, 5, at, file, line);
#else
  asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
               "[%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(shared_address(shared)),
               "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
               : "memory");
#endif
}

/* Stores the box from shared memory to the tensor, as part of the thread's current bulk group. */
__device__ __forceinline__ void tma_store(const tensor_map *map, const void *shared, int32_t c0, int32_t c1 ASSAY_AT) {
#ifdef ASSAY_SIMT
  const int32_t at[5] = {c0, c1};
  simt_tma_store(map, shared, 2, at, file, line);
#else
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%1, {%2, %3}], [%0];" ::"r"(shared_address(shared)),
      "l"(map), "r"(c0), "r"(c1)
      : "memory");
#endif
}

__device__ __forceinline__ void tma_store(const tensor_map *map, const void *shared, int32_t c0, int32_t c1,
                                          int32_t c2 ASSAY_AT) {
#ifdef ASSAY_SIMT
  const int32_t at[5] = {c0, c1, c2};
  simt_tma_store(map, shared, 3, at, file, line);
#else
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%1, {%2, %3, %4}], [%0];" ::"r"(
                   shared_address(shared)),
               "l"(map), "r"(c0), "r"(c1), "r"(c2)
               : "memory");
#endif
}

__device__ __forceinline__ void tma_store(const tensor_map *map, const void *shared, int32_t c0, int32_t c1, int32_t c2,
                                          int32_t c3 ASSAY_AT) {
#ifdef ASSAY_SIMT
  const int32_t at[5] = {c0, c1, c2, c3};
  simt_tma_store(map, shared, 4, at, file, line);
#else
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%1, {%2, %3, %4, %5}], [%0];" ::"r"(
                   shared_address(shared)),
               "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
               : "memory");
#endif
}

__device__ __forceinline__ void tma_store(const tensor_map *map, const void *shared, int32_t c0, int32_t c1, int32_t c2,
                                          int32_t c3, int32_t c4 ASSAY_AT) {
#ifdef ASSAY_SIMT
  const int32_t at[5] = {c0, c1, c2, c3, c4};
  simt_tma_store(map, shared, 5, at, file, line);
#else
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%1, {%2, %3, %4, %5, %6}], [%0];" ::"r"(
                   shared_address(shared)),
               "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
               : "memory");
#endif
}

/* Copy `bytes` bytes. bytes and both addresses must be multiples of 16. */
__device__ __forceinline__ void bulk_load(void *shared, const void *global, uint32_t bytes,
                                          uint64_t *barrier ASSAY_AT) {
#ifdef ASSAY_SIMT
  simt_load(assay_simt_bulk{shared, barrier, nullptr, 0, {0, 0, 0, 0, 0}, const_cast<void *>(global), bytes}, file,
            line);
#else
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
#endif
}

__device__ __forceinline__ void bulk_store(void *global, const void *shared, uint32_t bytes ASSAY_AT) {
#ifdef ASSAY_SIMT
  const assay_simt_bulk copy = {const_cast<void *>(shared), nullptr, nullptr, 0, {0, 0, 0, 0, 0}, global, bytes};
  assay_simt->hopper->bulk_store(&copy, file, line);
#else
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared_address(shared)),
               "r"(bytes)
               : "memory");
#endif
}

__device__ __forceinline__ void bulk_commit() {
#ifdef ASSAY_SIMT
  assay_simt->hopper->bulk_commit();
#else
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

/* Wait until at most `pending` of this thread's groups remain. bulk_wait_read waits until the others have read their
 * shared memory, which may then be written again; bulk_wait waits until they are complete. */
template <int pending> __device__ __forceinline__ void bulk_wait_read() {
#ifdef ASSAY_SIMT
  assay_simt->hopper->bulk_wait(pending, true);
#else
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
#endif
}

template <int pending> __device__ __forceinline__ void bulk_wait() {
#ifdef ASSAY_SIMT
  assay_simt->hopper->bulk_wait(pending, false);
#else
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(pending) : "memory");
#endif
}

/* ---- parts of a block ------------------------------------------------------------------------------------ */

/* Use barrier `id`, 1 to 15 (0 is __syncthreads), for `threads` threads in whole warps. sync waits for the others,
 * arrive does not. */
__device__ __forceinline__ void named_barrier_sync(uint32_t id, uint32_t threads ASSAY_AT) {
#ifdef ASSAY_SIMT
  assay_simt->hopper->named_barrier(ASSAY_SIMT_NAMED_SYNC, id, threads, file, line);
#else
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

__device__ __forceinline__ void named_barrier_arrive(uint32_t id, uint32_t threads ASSAY_AT) {
#ifdef ASSAY_SIMT
  assay_simt->hopper->named_barrier(ASSAY_SIMT_NAMED_ARRIVE, id, threads, file, line);
#else
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

/* Set the registers of each thread of a warpgroup to `count`, a multiple of 8. All threads of the warpgroup must call
 * it. registers_more waits until others have given enough registers back. */
template <int count> __device__ __forceinline__ void registers_more(ASSAY_AT_ALONE) {
  static_assert(count >= 24 && count <= 256 && count % 8 == 0, "24 to 256, a multiple of 8");
#ifdef ASSAY_SIMT
  assay_simt->hopper->registers(count, true, file, line);
#else
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
#endif
}

template <int count> __device__ __forceinline__ void registers_fewer(ASSAY_AT_ALONE) {
  static_assert(count >= 24 && count <= 256 && count % 8 == 0, "24 to 256, a multiple of 8");
#ifdef ASSAY_SIMT
  assay_simt->hopper->registers(count, false, file, line);
#else
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
#endif
}

/* Returns true in one lane of a whole warp, always the same lane. */
__device__ __forceinline__ bool elect_one(ASSAY_AT_ALONE) {
#ifdef ASSAY_SIMT
  (void)assay_simt->warp(ASSAY_SIMT_ANY, 0, 0xFFFFFFFFu, 1, 0, file, line);
  return lane_id() == assay_simt->now->elected;
#else
  uint32_t chosen;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xFFFFFFFF;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(chosen));
  return chosen != 0;
#endif
}

/* ---- between launches, between blocks ------------------------------------------------------------------- */

/* Allows the next launch, if it is a dependent one, to begin once all blocks have called this or ended. */
__device__ __forceinline__ void dependents_launch() {
#ifndef ASSAY_SIMT
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Waits, in a dependent launch, until the previous launch is over and its writes are visible. */
__device__ __forceinline__ void dependency_wait(ASSAY_AT_ALONE) {
#ifdef ASSAY_SIMT
  assay_simt->hopper->dependency_wait(file, line);
#else
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Comes first in a kernel that is launched in_turn(). The next launch may begin, and nothing is read or written before
 * the previous launch is over. The end of one launch and the beginning of the next overlap; on simt this is so for the
 * launches of one call. */
__device__ __forceinline__ void take_turn(ASSAY_AT_ALONE) {
  dependents_launch();
#ifdef ASSAY_SIMT
  dependency_wait(file, line);
#else
  dependency_wait();
#endif
}

__device__ __forceinline__ uint32_t cluster_rank() {
#ifdef ASSAY_SIMT
  return assay_simt->hopper->cluster_rank();
#else
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#endif
}

__device__ __forceinline__ uint32_t cluster_size() {
#ifdef ASSAY_SIMT
  return assay_simt->hopper->cluster_size();
#else
  uint32_t size;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
#endif
}

/* The two halves of the cluster's barrier. Every thread of every block calls both, or ends after the first. */
__device__ __forceinline__ void cluster_arrive(ASSAY_AT_ALONE) {
#ifdef ASSAY_SIMT
  assay_simt->hopper->cluster_arrive(file, line);
#else
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_wait(ASSAY_AT_ALONE) {
#ifdef ASSAY_SIMT
  assay_simt->hopper->cluster_wait(file, line);
#else
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/* Returns the same place in the shared memory of the cluster's block `rank`, for loads and stores. */
template <class T> __device__ __forceinline__ T *cluster_shared(T *shared, uint32_t rank ASSAY_AT) {
#ifdef ASSAY_SIMT
  return static_cast<T *>(assay_simt->hopper->cluster_shared(shared, rank, file, line));
#else
  uint64_t there;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(reinterpret_cast<uint64_t>(shared)), "r"(rank));
  return reinterpret_cast<T *>(there);
#endif
}

/* Load and store 4 or 8 bytes of global memory, at the scope of the device. On simt, a loop that polls with
 * load_acquire yields to other threads. */
template <class T> __device__ __forceinline__ T load_acquire(const T *address ASSAY_AT) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "4 or 8 bytes");
#ifdef ASSAY_SIMT
  assay_simt->hopper->poll(file, line);
  const T value = assay_simt_load(const_cast<T *>(address));
  assay_simt_fence();
  return value;
#else
  T value;
  if constexpr (sizeof(T) == 4) {
    uint32_t bits;
    asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(bits) : "l"(address) : "memory");
    memcpy(&value, &bits, sizeof value);
  } else {
    uint64_t bits;
    asm volatile("ld.acquire.gpu.global.b64 %0, [%1];" : "=l"(bits) : "l"(address) : "memory");
    memcpy(&value, &bits, sizeof value);
  }
  return value;
#endif
}

template <class T> __device__ __forceinline__ void store_release(T *address, T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "4 or 8 bytes");
#ifdef ASSAY_SIMT
  assay_simt_fence();
  (void)assay_simt_load(address);
  assay_simt_store(address, value);
#else
  if constexpr (sizeof(T) == 4) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(address), "r"(bits) : "memory");
  } else {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    asm volatile("st.release.gpu.global.b64 [%0], %1;" ::"l"(address), "l"(bits) : "memory");
  }
#endif
}

/* Load and store 8 bytes of global memory that other blocks read or write at the same time. The access is whole, at the
 * scope of the device, and not ordered with anything else. On simt, a loop that polls yields to other threads. */
__device__ __forceinline__ uint64_t load_relaxed(const uint64_t *address ASSAY_AT) {
#ifdef ASSAY_SIMT
  assay_simt->hopper->poll(file, line);
  return assay_simt_load(const_cast<uint64_t *>(address));
#else
  uint64_t value;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(value) : "l"(address));
  return value;
#endif
}

__device__ __forceinline__ void store_relaxed(uint64_t *address, uint64_t value) {
#ifdef ASSAY_SIMT
  (void)assay_simt_load(address);
  assay_simt_store(address, value);
#else
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(address), "l"(value));
#endif
}

/* Loads 16 bytes of a stream that is read once and that no thread writes during the launch. They are not kept in L1,
 * and are fetched into L2 with their neighbours, 128 bytes at a time. The address must be a multiple of 16. */
__device__ __forceinline__ uint4 load_stream_16(const void *address ASSAY_AT) {
#ifdef ASSAY_SIMT
  if (reinterpret_cast<uintptr_t>(address) % 16 != 0)
    assay_simt->fault("load_stream_16: address is not a multiple of 16", file, line);
  return *static_cast<const uint4 *>(address);
#else
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address));
  return v;
#endif
}

/* Does the same if `on`. Otherwise *v keeps its contents and the address is not used. It is one predicated load. */
__device__ __forceinline__ void load_stream_16_if(uint4 *v, const void *address, bool on ASSAY_AT) {
#ifdef ASSAY_SIMT
  if (on) *v = load_stream_16(address, file, line);
#else
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n"
               "@p ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
               : "+r"(v->x), "+r"(v->y), "+r"(v->z), "+r"(v->w)
               : "l"(address), "r"(on ? 1u : 0u));
#endif
}

/* Does the same, but *v becomes 0 if not `on`. The old *v is an input. The load is therefore not moved before the last
 * use of *v, where it would take other registers. */
__device__ __forceinline__ void load_stream_16_or_zero(uint4 *v, const void *address, bool on ASSAY_AT) {
#ifdef ASSAY_SIMT
  *v = on ? load_stream_16(address, file, line) : make_uint4(0u, 0u, 0u, 0u);
#else
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n"
               "@p ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               "@!p mov.u32 %0, 0;\n@!p mov.u32 %1, 0;\n@!p mov.u32 %2, 0;\n@!p mov.u32 %3, 0;\n}"
               : "+r"(v->x), "+r"(v->y), "+r"(v->z), "+r"(v->w)
               : "l"(address), "r"(on ? 1u : 0u));
#endif
}

/* Loads 8 bytes of such a stream if `on`. Otherwise *v keeps its contents. The address must be a multiple of 8. */
__device__ __forceinline__ void load_stream_8_if(uint2 *v, const void *address, bool on ASSAY_AT) {
#ifdef ASSAY_SIMT
  if (!on) return;
  if (reinterpret_cast<uintptr_t>(address) % 8 != 0)
    assay_simt->fault("load_stream_8: address is not a multiple of 8", file, line);
  *v = *static_cast<const uint2 *>(address);
#else
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n"
               "@p ld.global.L1::no_allocate.L2::128B.v2.u32 {%0, %1}, [%2];\n}"
               : "+r"(v->x), "+r"(v->y)
               : "l"(address), "r"(on ? 1u : 0u));
#endif
}

} /* namespace ASSAY_NS */

#endif
