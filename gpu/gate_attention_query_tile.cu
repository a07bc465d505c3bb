/* gate_attention_query_tile.cu: attention of ragged prompts on CUDA cores; gate_attention.cu has the definition,
 * gpu/lib/query_tile.cuh the schedule.
 *
 * A key's left neighbours are its lane's: the filter is shuffles, and the upper half of each tile's scores is kept for
 * the next. Every score, weight and sum is f32, each added in key order. */
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

  static __device__ __forceinline__ void prepare(const gate_params &p, int32_t head, line &to) {
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
      const bool wraps = lane >= 32 - j; /* the lane's scores go to the first keys of the 32 behind them */
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

assay_status plan_lines(const assay_call *call, gate_plan *plan, assay_error *error) {
  ASSAY_TRY(gate_read(call, plan, error));
  return expect_query_tile(plan->p.a, error);
}

assay_status launch_lines(const assay_call *call, assay_env *env, assay_error *error) {
  gate_plan plan;
  ASSAY_TRY(plan_lines(call, &plan, error));
  return launch_query_tile<gate_lines>(plan.p, plan.types, env, error);
}

/* K and V are rounded to f32 after dequantisation; scores, p and sums stay in f32; no exp. One sum a q . k and a
 * channel. */
constexpr assay_contract lines_contract = {
    ASSAY_F32, ASSAY_F32,       ASSAY_NONE, ASSAY_NONE, ASSAY_NONE, 0.0, 1,          1,    0,
    0.0,       ASSAY_V_SKIPPED, true,       true,       true,       1,   ASSAY_NONE, true, 0};

} // namespace
} // namespace ASSAY_NS

#define QUERY_TILE                                                                                                     \
  ATTENTION_VARIANT("gate_attention", "query_tile", "prompts without tensor cores: 32 rows and heads share K and V",   \
                    "prefill,chunked,mixed", lines_contract, gate_params, plan_lines, launch_lines)

ASSAY_VARIANTS(gate_attention_query_tile, QUERY_TILE)
