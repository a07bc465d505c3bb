/* stream_merge.cuh: what the kernels have in common that merge the splits of a streamed decode (stream.cuh). */
#ifndef ASSAY_GPU_LIB_STREAM_MERGE_CUH
#define ASSAY_GPU_LIB_STREAM_MERGE_CUH

#include "gpu/lib/types.cuh"

namespace ASSAY_NS {

/* Sizes of the merge kernel. A block has groups of threads, and each group covers all elements of the block. Group g
 * has splits g, g + groups, ... */
constexpr int stream_merge_threads = 128, stream_merge_groups = 8;
constexpr int stream_batch = 6; /* splits of a group whose sums are loaded at the same time */

/* Loads the sums of splits b, b + step, ..., which are `pitch` floats apart. Returns 0 for splits after the last
 * one. */
__device__ __forceinline__ void stream_load_splits(const float *from, int32_t pitch, int32_t b, int32_t step,
                                                   int32_t splits, float (&sum)[stream_batch]) {
  ASSAY_UNROLL
  for (int32_t k = 0; k < stream_batch; ++k)
    sum[k] = b + k * step < splits ? from[static_cast<int64_t>(b + k * step) * pitch] : 0.0f;
}

/* Returns the sum over the groups' threads of an element, added in the order of the groups. It is complete in group 0
 * only. shared: [groups][threads]. The whole block must call it; it has a barrier. */
__device__ __forceinline__ float stream_add_groups(float own, float *shared) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  shared[thread] = own;
  __syncthreads(); /* the sums of all groups are written */
  if (thread < stream_merge_threads)
    for (int32_t at = thread + stream_merge_threads; at < threads; at += stream_merge_threads)
      own += shared[at];
  return own;
}

} // namespace ASSAY_NS
#endif
