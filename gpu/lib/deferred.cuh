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

/* Returns the same bits to both of two neighbouring lanes, which add four lanes' parts each. `ahead` fours of parts are
 * asked for at once. parts NULL: there is no row. quads: four parts may be loaded at once. All lanes of the warp take
 * part. */
template <int ahead>
__device__ __forceinline__ float deferred_factor_by_two(const float *parts, int32_t K, float eps, bool quads) {
  constexpr int own = deferred_lanes / 2;
  const int32_t count = parts != nullptr ? (K + deferred_part - 1) / deferred_part : 0;
  float sum[own] = {};
  for (int32_t j = static_cast<int32_t>(threadIdx.x) % 2 * own; j < count; j += ahead * deferred_lanes) {
    float4 part[ahead];
    ASSAY_UNROLL
    for (int i = 0; i < ahead; ++i) {
      const int32_t at = j + i * deferred_lanes;
      part[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (quads && at < count) part[i] = *reinterpret_cast<const float4 *>(parts + at);
      if (quads || at >= count) continue;
      part[i].x = parts[at];
      if (at + 1 < count) part[i].y = parts[at + 1];
      if (at + 2 < count) part[i].z = parts[at + 2];
      if (at + 3 < count) part[i].w = parts[at + 3];
    }
    ASSAY_UNROLL
    for (int i = 0; i < ahead; ++i) {
      sum[0] = __fadd_rn(sum[0], part[i].x);
      sum[1] = __fadd_rn(sum[1], part[i].y);
      sum[2] = __fadd_rn(sum[2], part[i].z);
      sum[3] = __fadd_rn(sum[3], part[i].w);
    }
  }
  ASSAY_UNROLL
  for (int i = 0; i < own; ++i)
    sum[i] = __fadd_rn(sum[i], __shfl_xor_sync(0xffffffffu, sum[i], 1));
  const float whole = __fadd_rn(__fadd_rn(sum[0], sum[2]), __fadd_rn(sum[1], sum[3]));
  return 1.0f / sqrtf(whole / static_cast<float>(K) + eps);
}

/* Tells whether four parts of any row may be loaded at once. */
inline bool deferred_quads(const float *squares, int64_t K) {
  return reinterpret_cast<uintptr_t>(squares) % 16 == 0 && (K + deferred_part - 1) / deferred_part % 4 == 0;
}

} // namespace ASSAY_NS
#endif
