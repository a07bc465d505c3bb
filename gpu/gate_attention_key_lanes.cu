/* gate_attention_key_lanes.cu: decode, and few ragged rows, on CUDA cores; it takes every type, layout, head size and
 * group. gate_attention.cu has the definition, gpu/lib/key_lanes.cuh the schedule.
 *
 * A tile also reads the F - 1 scores left of its first key. Every score, weight and sum is f32. */
#include "gpu/lib/gate_call.h"
#include "gpu/lib/key_lanes.cuh"

namespace ASSAY_NS {
namespace {

template <int heads> struct gate_lanes {
  using params = gate_params;
  struct common {};

  float tap[max_taps], gamma[heads];

  __device__ __forceinline__ void begin(const gate_params &, int32_t, int32_t, int32_t, common &) {}
  static __device__ __forceinline__ int32_t overlap(const gate_params &p) { return p.F - 1; }
  __device__ __forceinline__ bool sees(const gate_params &, int32_t, int32_t, int32_t) const { return true; }
  __device__ __forceinline__ float score(const gate_params &p, float dot, bool, int32_t, int32_t) const {
    const float score = dot * p.a.scale;
    return p.relu_pre ? fmaxf(score, 0.0f) : score;
  }
  __device__ __forceinline__ void publish(common &) const {}
  __device__ __forceinline__ void weighing(const gate_params &p, int32_t head, int32_t here, const common &) {
    ASSAY_UNROLL
    for (int j = 0; j < max_taps; ++j)
      tap[j] = j < p.F ? p.taps[j] : 0.0f;
    ASSAY_UNROLL
    for (int h = 0; h < heads; ++h)
      gamma[h] = h < here ? p.gamma[head + h] : 0.0f;
  }
  __device__ __forceinline__ float weigh(const gate_params &p, int h, const float *r) const {
    float z = 0.0f;
    ASSAY_UNROLL
    for (int j = 0; j < max_taps; ++j)
      if (j < p.F) z += tap[j] * r[-j];
    return gamma[h] * fminf(fmaxf(z, p.lo), p.hi);
  }
  __device__ __forceinline__ float shrink(int) const { return 1.0f; }
  __device__ __forceinline__ void close(common &) const {}
  __device__ __forceinline__ float result(const gate_params &, const key_lanes_shape &, int, int32_t, float sum) const {
    return sum;
  }
  __device__ __forceinline__ void finish(const gate_params &, const key_lanes_shape &, int, int64_t, int32_t) const {}
};

/* gate_lanes_sum: adds the sums of the splits of a row and head that hold visible keys, in split order.
 * Grid: (N rows, H heads). Block: 32 to 256 threads, one channel each. Shared: none. Arch: any.
 * Limit: bytes: 4 D per split. */
__global__ void __launch_bounds__(attention_max_D) gate_lanes_sum(gate_params p, key_lanes_shape s) {
  const int32_t d = static_cast<int32_t>(threadIdx.x), keys_of_split = s.tiles * key_lanes_tile;
  const int64_t row = blockIdx.x, at = row * p.a.H + blockIdx.y;
  if (d >= p.a.D) return;
  const row_keys keys = keys_of_row(p.a, row);
  const float *const partial = p.partial + at * s.splits * p.a.D + d;
  float sum = 0.0f;
  if (keys.last >= keys.first)
    for (int32_t b = keys.first / keys_of_split; b <= keys.last / keys_of_split; ++b)
      sum += partial[static_cast<int64_t>(b) * p.a.D];
  store_as(s.q, p.a.out, at * p.a.D + d, sum);
}

/* ---- launchers -------------------------------------------------------------------------------------- */

/* Workspace: partial[N, H, splits, D] of f32, if there are several splits. */
struct lanes {
  using plan = gate_plan;
  static assay_status read(const assay_call *call, plan *made, assay_error *error) {
    ASSAY_TRY(gate_read(call, made, error));
    const attention_params &a = made->p.a;
    return key_lanes_plan(a, key_lanes_shape_of(a, made->types), a.D, &made->workspace, error);
  }
  static void path(const plan &made, assay_env *env) {
    key_lanes_path(made.p.a, key_lanes_shape_of(made.p.a, made.types), env);
  }
  static assay_status start(plan &made, assay_env *env, assay_error *error) {
    gate_params &p = made.p;
    const key_lanes_shape s = key_lanes_shape_of(p.a, made.types);
    p.partial = static_cast<float *>(env->workspace);
    ASSAY_TRY(launch_key_lanes<gate_lanes>(p, made.types, s, env, error));
    if (s.splits == 1) return ASSAY_OK;
    return ASSAY_LAUNCH(error, gate_lanes_sum, launch_extent(p.a.N, p.a.H), key_lanes_merge_threads(p.a), 0,
                        env->stream, p, s);
  }
};

constexpr assay_contract lanes_contract = key_lanes_contract(0.0);

} // namespace
} // namespace ASSAY_NS

#define KEY_LANES                                                                                                      \
  SCHEDULE_VARIANT("gate_attention", "key_lanes",                                                                      \
                   "decode of whatever streams decline, and few ragged rows: a group's heads share K and V",           \
                   "decode,prefill,chunked,mixed", lanes_contract, lanes)
ASSAY_VARIANTS(gate_attention_key_lanes, KEY_LANES)
