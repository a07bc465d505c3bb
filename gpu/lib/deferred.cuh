/* deferred.cuh: the factor of a row whose rms_norm is deferred to the product that reads it. An earlier epilogue has
 * stored the row times the norm's weight, and the sum of squares of each eight channels. */
#ifndef ASSAY_GPU_LIB_DEFERRED_CUH
#define ASSAY_GPU_LIB_DEFERRED_CUH

#include "gpu/lib/warp.cuh"

namespace ASSAY_NS {

constexpr int deferred_part = 8;  /* channels of a part */
constexpr int deferred_lanes = 8; /* neighbouring lanes that add the parts of a row */

/* Returns the part of eight channels from their squares, which four neighbours hold in pairs. Their lanes are `apart`
 * and 2 * apart away from each other. All lanes of the warp take part. */
template <int apart> __device__ __forceinline__ float deferred_pairs(float pair) {
  pair = __fadd_rn(pair, __shfl_xor_sync(0xffffffffu, pair, apart));
  return __fadd_rn(pair, __shfl_xor_sync(0xffffffffu, pair, 2 * apart));
}

/* Returns 1 / sqrt(sum / K + eps) to each of the row's lanes; parts: those of the row. The parts are added in the same
 * order whatever the launch. */
__device__ __forceinline__ float deferred_factor(const float *parts, int32_t K, float eps) {
  constexpr int ahead = 8;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % deferred_lanes;
  const int32_t count = (K + deferred_part - 1) / deferred_part;
  float sum = 0.0f;
  for (int32_t j = lane; j < count; j += ahead * deferred_lanes) {
    float part[ahead];
    ASSAY_UNROLL
    for (int i = 0; i < ahead; ++i)
      part[i] = j + i * deferred_lanes < count ? parts[j + i * deferred_lanes] : 0.0f;
    ASSAY_UNROLL
    for (int i = 0; i < ahead; ++i)
      sum = __fadd_rn(sum, part[i]);
  }
  sum = group_sum<deferred_lanes>(sum);
  return 1.0f / sqrtf(sum / static_cast<float>(K) + eps);
}

} // namespace ASSAY_NS
#endif
