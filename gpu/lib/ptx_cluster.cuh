/* ptx_cluster.cuh: mbarriers at which the blocks of a cluster arrive for each other, each with a second body for simt.
 */
#ifndef ASSAY_GPU_PTX_CLUSTER_CUH
#define ASSAY_GPU_PTX_CLUSTER_CUH

#include "gpu/lib/ptx_async.cuh"

namespace ASSAY_NS {

/* Arrives at the barrier at the same place in the shared memory of the cluster's block `rank`. Threads
 * that wait by mbarrier_wait_cluster see what this thread has written to that block. */
__device__ __forceinline__ void mbarrier_arrive_at(uint64_t *barrier, uint32_t rank ASSAY_AT) {
#ifdef ASSAY_SIMT
  uint64_t *const there = static_cast<uint64_t *>(assay_simt->hopper->cluster_shared(barrier, rank, file, line));
  assay_simt->hopper->mbarrier_arrive(there, false, 0, file, line);
#else
  asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
               "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n}" ::"r"(shared_address(barrier)),
               "r"(rank)
               : "memory");
#endif
}

/* Waits as mbarrier_wait does, for a barrier at which the cluster's other blocks arrive. */
__device__ __forceinline__ void mbarrier_wait_cluster(uint64_t *barrier, uint32_t parity ASSAY_AT) {
#ifdef ASSAY_SIMT
  assay_simt->hopper->mbarrier_wait(barrier, parity, file, line);
#else
  const uint32_t at = shared_address(barrier);
  uint32_t done;
  do {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(at), "r"(parity)
                 : "memory");
  } while (done == 0);
#endif
}

} // namespace ASSAY_NS
#endif
