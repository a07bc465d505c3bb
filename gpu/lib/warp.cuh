/* warp.cuh: sums and maxima over groups of lanes, by shuffles. A group is `lanes` (a power of two up to 32)
 * neighbouring lanes of one warp and starts at a multiple of `lanes`. Only these lanes are in the mask, so groups may
 * diverge. The order of additions is a fixed butterfly, and every lane ends with the same bits. */
#ifndef ASSAY_GPU_WARP_CUH
#define ASSAY_GPU_WARP_CUH

#include "gpu/lib/ptx.cuh"

namespace ASSAY_NS {

template <int lanes> __device__ __forceinline__ unsigned group_mask() {
  static_assert(lanes >= 1 && lanes <= 32 && (lanes & (lanes - 1)) == 0, "a group is a power of two up to 32");
  constexpr unsigned first = 0xffffffffu >> (32 - lanes);
  return first << (lane_id() & (32u - static_cast<unsigned>(lanes)));
}

template <int lanes, class T> __device__ __forceinline__ T group_sum(T value) {
  const unsigned mask = group_mask<lanes>();
  ASSAY_UNROLL
  for (int step = lanes / 2; step > 0; step /= 2)
    value += __shfl_xor_sync(mask, value, step);
  return value;
}

/* Returns the maximum over a group. Between a NaN and a number it takes the number, as fmaxf does. */
template <int lanes, class T> __device__ __forceinline__ T group_max(T value) {
  const unsigned mask = group_mask<lanes>();
  ASSAY_UNROLL
  for (int step = lanes / 2; step > 0; step /= 2)
    value = max(value, __shfl_xor_sync(mask, value, step));
  return value;
}

/* Return the same for every group at once, if the whole warp is converged. It takes one instruction per step, and no
 * code for diverged lanes. */
template <int lanes, class T> __device__ __forceinline__ T groups_max(T value) {
  ASSAY_UNROLL
  for (int step = lanes / 2; step > 0; step /= 2)
    value = max(value, __shfl_xor_sync(0xffffffffu, value, step));
  return value;
}

template <int lanes, class T> __device__ __forceinline__ T groups_sum(T value) {
  ASSAY_UNROLL
  for (int step = lanes / 2; step > 0; step /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

/* Returns lane 0's value, which all lanes must have. The compiler then sees that the value is uniform, whatever it
 * depends on. */
__device__ __forceinline__ int32_t of_warp(int32_t value) {
  return __shfl_sync(0xffffffffu, value, 0);
}

template <class T> __device__ __forceinline__ T warp_sum(T value) {
  return group_sum<32>(value);
}
template <class T> __device__ __forceinline__ T warp_max(T value) {
  return group_max<32>(value);
}

} /* namespace ASSAY_NS */

#endif
