/* warp.cuh: sums and maxima over groups of lanes, by shuffles. A group is `lanes` (a power of two up to 32)
 * neighbouring lanes of one warp that starts at a multiple of `lanes`; only they are in the mask, so groups
 * may go different ways. The order of additions is a fixed butterfly and every lane ends with the same bits. */
#ifndef ASSAY_GPU_WARP_CUH
#define ASSAY_GPU_WARP_CUH

#include "ptx.cuh"

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

/* Of a NaN and a number, the number, as fmaxf has it. */
template <int lanes, class T> __device__ __forceinline__ T group_max(T value) {
  const unsigned mask = group_mask<lanes>();
  ASSAY_UNROLL
  for (int step = lanes / 2; step > 0; step /= 2)
    value = max(value, __shfl_xor_sync(mask, value, step));
  return value;
}

/* These of every group at once, where the whole warp is: one instruction a step, and no code for lanes that are
 * elsewhere. */
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

/* What lane 0 has, which all lanes have: as the compiler sees it then, whatever it depends on. */
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
