/* paged.cuh: keys and values of the paged cache, and the request a query row belongs to. The block look-up and the
 * 64-bit offset of a token stand in each kernel file; here is what is the same for all of them. */
#ifndef ASSAY_GPU_LIB_PAGED_CUH
#define ASSAY_GPU_LIB_PAGED_CUH

#include "gpu/lib/attention.h"
#include "gpu/lib/vec.cuh"

namespace ASSAY_NS {

/* The last request whose rows start at or before `row`: requests without rows are stepped over. cu_q[0] = 0 and
 * cu_q does not fall; B where the row lies behind every request. ceil(log2(B + 1)) reads. */
__device__ __forceinline__ int32_t request_of_row(const int32_t *cu_q, int32_t B, int64_t row) {
  int32_t low = 0, high = B + 1; /* cu_q[low] <= row < cu_q[high] */
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    if (cu_q[middle] <= row)
      low = middle;
    else
      high = middle;
  }
  return low;
}

/* Offset of K channel d (a multiple of 4) inside its token. */
__device__ __forceinline__ int64_t k_channel(const paged_cache &cache, int32_t d) {
  return (d >> cache.chunk_shift) * cache.k_chunk + (d & ((1 << cache.chunk_shift) - 1));
}

/* Four products of q and K channels d .. d+3, added to four sums. */
template <class KV>
__device__ __forceinline__ void dot_quad(const paged_cache &cache, int64_t key, int32_t d, const float *q,
                                         float k_scale, float (&sum)[4]) {
  const quad<KV> k = load_quad(element_at<KV>(cache.k, key + k_channel(cache, d)), cache.quads);
  ASSAY_UNROLL
  for (int e = 0; e < 4; ++e)
    sum[e] += q[e] * dequantise(k.element[e], k_scale);
}

} // namespace ASSAY_NS
#endif
