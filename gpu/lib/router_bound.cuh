/* router_bound.cuh: the k-th largest of numbers of eight lanes. */
#ifndef ASSAY_GPU_ROUTER_BOUND_CUH
#define ASSAY_GPU_ROUTER_BOUND_CUH

#include "gpu/lib/ptx_mma.cuh"
#include "gpu/lib/router_pairs.cuh"

namespace ASSAY_NS {

/* Puts the greater of two numbers into the first. */
__device__ __forceinline__ void in_order(float &a, float &b) {
  const float least = fminf(a, b);
  a = fmaxf(a, b);
  b = least;
}

/* Sorts what falls and then rises, or rises and then falls: the greatest first. */
template <int count> __device__ __forceinline__ void sort_bitonic(float *v) {
  ASSAY_UNROLL
  for (int step = count / 2; step > 0; step /= 2) {
    ASSAY_UNROLL
    for (int i = 0; i < count; ++i)
      if ((i & step) == 0) in_order(v[i], v[i + step]);
  }
}

/* Orders eight numbers of a pair of lanes, which have four each. The even lane gets the four largest, the greatest
 * first. The odd lane gets the others, the least first. Before, `v` falls and then rises through both lanes, or rises
 * and then falls. `sign` is -1 in odd lanes: their numbers are turned, so that both lanes keep what is greater. */
__device__ __forceinline__ void octet_pair(float (&v)[4], float sign) {
  float other[4];
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    v[i] *= sign;
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    other[i] = -__shfl_xor_sync(0xffffffffu, v[3 - i], 1); /* as this lane would have turned it */
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    v[i] = fmaxf(v[i], other[i]);
  sort_bitonic<4>(v);
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    v[i] *= sign;
}

/* Returns the k-th largest of the four numbers of all eight lanes, k up to 8, and the lane's greatest. */
__device__ __forceinline__ float octet_bound(const float (&own)[4], int32_t lane, int32_t k, float *greatest) {
  const float sign = lane % 2 == 0 ? 1.0f : -1.0f;
  float v[4];
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    v[i] = own[i];
  in_order(v[0], v[1]);
  in_order(v[2], v[3]);
  in_order(v[0], v[2]);
  in_order(v[1], v[3]);
  in_order(v[1], v[2]);
  *greatest = v[0];
  octet_pair(v, sign);
  ASSAY_UNROLL
  for (int lanes = 3; lanes <= 5; lanes += 2) { /* the lane whose numbers stand at the other end */
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      v[i] = fmaxf(v[i], __shfl_xor_sync(0xffffffffu, v[i], lanes));
    if (lanes == 3 || k < 8) octet_pair(v, sign);
  }
  if (k == 8) {
    const float least = fminf(fminf(v[0], v[1]), fminf(v[2], v[3]));
    return fminf(least, __shfl_xor_sync(0xffffffffu, least, 1));
  }
  const int32_t at = (k - 1) % 4, from = k > 4 ? 3 - at : at; /* an odd lane has the least first */
  const float bound = from < 2 ? (from == 0 ? v[0] : v[1]) : from == 2 ? v[2] : v[3];
  return __shfl_sync(0xffffffffu, bound, lane / 2 * 2 + (k - 1) / 4);
}

/* Returns the eighth largest of the four numbers of all eight lanes, rounded to 0 as f16. It is a bound that at least
 * eight numbers reach, unless it is negative. The two halves of the words are sorted as two lists. */
__device__ __forceinline__ float octet_bound_by_halves(const float (&own)[4], uint32_t eighth) {
  const bool odd = (eighth & 1u) != 0, third = (eighth & 2u) != 0;
  uint32_t v[2] = {f16_pair_below(own[0], own[1]), f16_pair_below(own[2], own[3])};
  pair_in_order<f16>(v[0], v[1]);
  pair_sorted_lanes<f16>(v, odd, third);
  uint32_t other[2] = {__shfl_xor_sync(0xffffffffu, v[0], 7), __shfl_xor_sync(0xffffffffu, v[1], 7)};
  v[0] = pair_max<f16>(v[0], other[1]); /* falling and rising, in four lanes */
  v[1] = pair_max<f16>(v[1], other[0]);
  pair_exchange<f16>(v, 2, third);
  pair_exchange<f16>(v, 1, odd);
  pair_in_order<f16>(v[0], v[1]);
  /* The greatest numbers of one list meet the least ones of the other. */
  const uint32_t across = __shfl_xor_sync(0xffffffffu, v[1], 3);
  uint32_t least = pair_max<f16>(v[0], byte_permute(across, across, 0x1032));
  least = pair_min<f16>(least, __shfl_xor_sync(0xffffffffu, least, 1));
  least = pair_min<f16>(least, __shfl_xor_sync(0xffffffffu, least, 2));
  least = pair_min<f16>(least, byte_permute(least, least, 0x1032));
  return to_float(f16{static_cast<uint16_t>(least)});
}

} // namespace ASSAY_NS
#endif
