/* gate_attention_query_tile.cu: attention of ragged prompts on CUDA cores; gate_attention.cu has the definition,
 * gpu/lib/query_tile.cuh the schedule.
 *
 * The left neighbours of a key are those of its lane, so the filter consists of shuffles. The upper half of each tile's
 * scores is kept for the next tile. Every score, weight and sum is f32; sums run in key order. */
#include "gpu/lib/gate_call.h"
#include "gpu/lib/query_tile.cuh"

namespace ASSAY_NS {
namespace {

struct gate_lines {
  using params = gate_params;
  static constexpr int32_t blocks = 4;
  struct line {
    int32_t first, last;
    float gamma;
  };

  float before[lines_a_warp]; /* r of the key that lies 32 before the lane's first */

  static __device__ __forceinline__ void prepare(const gate_params &p, int64_t, int32_t head, line &to) {
    to.gamma = p.gamma[head];
  }
  static __device__ __forceinline__ bool sparse(const gate_params &) { return false; }
  static __device__ __forceinline__ bool sees(const gate_params &, const line &, int32_t) { return true; }

  __device__ __forceinline__ void start() {
    ASSAY_UNROLL
    for (int l = 0; l < lines_a_warp; ++l)
      before[l] = 0.0f;
  }

  /* r of a score; 0 for a key that the line does not see. */
  static __device__ __forceinline__ float rectify(const gate_params &p, float dot, bool visible) {
    const float score = dot * p.a.scale;
    return visible ? (p.relu_pre ? fmaxf(score, 0.0f) : score) : 0.0f;
  }

  __device__ __forceinline__ void weigh(const gate_params &p, const line &own, int l, int32_t t, float (&s)[2],
                                        line_sums &) {
    const int32_t lane = static_cast<int32_t>(lane_id());
    const bool visible[2] = {t >= own.first && t <= own.last, t + 32 >= own.first && t + 32 <= own.last};
    const float r[2] = {rectify(p, s[0], visible[0]), rectify(p, s[1], visible[1])};
    float z[2] = {0.0f, 0.0f};
    ASSAY_ROLLED
    for (int32_t j = 0; j < p.F; ++j) {
      const bool wraps = lane >= 32 - j; /* the lane's scores are needed by the first keys of the next 32 */
      const int32_t from = (lane - j) & 31;
      const float tap = p.taps[j];
      z[0] += tap * __shfl_sync(0xffffffffu, wraps ? before[l] : r[0], from);
      z[1] += tap * __shfl_sync(0xffffffffu, wraps ? r[0] : r[1], from);
    }
    before[l] = r[1];
    ASSAY_UNROLL
    for (int h = 0; h < 2; ++h)
      s[h] = visible[h] ? own.gamma * fminf(fmaxf(z[h], p.lo), p.hi) : 0.0f;
  }

  __device__ __forceinline__ void finish(const gate_params &, int, int64_t, line_sums &) const {}
};

/* ---- launcher --------------------------------------------------------------------------------------- */

struct gate_tile : gate_operator {
  using weights = gate_lines;
};

} // namespace
} // namespace ASSAY_NS

/* There is no exp. */
#define QUERY_TILE QUERY_TILE_VARIANT("gate_attention", 0.0, gate_tile)

ASSAY_VARIANTS(gate_attention_query_tile, QUERY_TILE)
