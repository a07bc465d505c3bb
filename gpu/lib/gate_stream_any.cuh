/* gate_stream_any.cuh: the streamed decode with the gate's weights (gate_stream.cuh) for heads of any size
 * (stream_any.cuh). */
#ifndef ASSAY_GPU_LIB_GATE_STREAM_ANY_CUH
#define ASSAY_GPU_LIB_GATE_STREAM_ANY_CUH

#include "gpu/lib/gate_stream.cuh"
#include "gpu/lib/stream_any.cuh"
#include "gpu/lib/stream_any_plan.h"

namespace ASSAY_NS {

/* gate_stream_any: does what gate_stream does, with another walk.
 * Grid:   as gate_stream. Block: 8, 4 or 2 warps, each with a run of its own.
 * Shared: as gate_stream; during the walk, q lies after the weights.
 * Align:  16 bytes for q, K, V and all their strides. Arch: sm_80 and above, with clusters sm_90.
 * Limit:  bytes: as gate_stream. */
template <class T, class KV, int D, int heads, int taps>
__global__ void __launch_bounds__(32 * stream_any_warps, 1) gate_stream_any(gate_params p) {
  ASSAY_SHARED(float, gamma, heads);
  ASSAY_DYNAMIC_SHARED(float, shared);
  const attention_params &a = p.a;
  const stream_place at = stream_place_of(a, p.cluster);
  if (p.cluster > 1) cluster_arrive();
  stream_ask(a, at);
  dependents_launch();
  stream_ask_first<KV, D, false>(a, at);
  dependency_wait();
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  if (thread < a.G) gamma[thread] = p.gamma[at.kv_head * a.G + thread];
  float *const own = shared + thread / 32 * stream_shared_floats<D, heads>;
  const stream_run run = stream_run_of<false>(keys_of_row(a, at.row), at);
  const int64_t block = stream_block_of(a.cache, run, run.begin, run.begin);
  const int64_t next = stream_block_of(a.cache, run, run.begin + run.step, run.begin);
  gate_weigher<KV, heads, taps> weigher;
  weigher.begin(p, run);
  stream_ring<KV, D, heads> ring = {};
  {
    stream_edge<KV, D> edge = {};
    stream_load_edge<taps - 1, KV, D, heads>(a, run, edge);
    stream_first_units<true, KV, D, heads>(a, run, block, ring);
    stream_put_query<T, KV, D, heads>(a, at.row, at.kv_head, own);
    stream_score_edge<T, KV, D, heads>(run, edge, own, weigher);
  }
  stream_sums<D, heads> sum = {};
  stream_walk_any<true, T, KV, D, heads>(a, run, ring, block, next, own, weigher, sum, stream_no_pace());
  stream_put_sums<T, KV, D, heads>(sum, own, a.D);
  __syncthreads(); /* the warps' sums and gamma are written */
  gate_stream_end<T, KV, D, heads, stream_any_warps>(p, at, shared, gamma);
}

/* ---- launcher ---------------------------------------------------------------------------------------- */

/* Refuses groups for which there are too few registers. */
inline assay_status gate_expect_any(const gate_params &p, assay_error *error) {
  if (p.a.G > 8 && stream_any_size(p.a.D) == 256)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "G: found %d, allowed up to 8 with D %d", p.a.G, p.a.D);
  const int32_t heads = stream_any_heads(p.a.G, p.a.D);
  if (heads > 8 && p.F > 3)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "F: found %d taps, allowed 3 with the columns of %d heads", p.F,
                      heads);
  return ASSAY_OK;
}

/* Sets the splits and the workspace of a plan that expect_stream_any has accepted. */
inline void gate_stream_any_plan(gate_plan *plan) {
  const stream_shape shape = stream_shape_of(plan->p.a, stream_any_warps);
  plan->p.splits = shape.splits;
  plan->p.cluster = shape.cluster;
  plan->workspace = stream_workspace(plan->p.a, shape, plan->p.a.D);
}

template <class Types>
assay_status gate_stream_any_launch(const gate_params &p, const attention_types &types, assay_env *env,
                                    assay_error *error) {
  return stream_any_with<Types, false>(types, p.a.D, p.a.G, [&](auto type, auto cached, auto channels, auto columns) {
    using T = typename decltype(type)::type;
    using KV = typename decltype(cached)::type;
    constexpr int D = decltype(channels)::is, heads = decltype(columns)::is;
    constexpr int most_taps = heads == 16 ? 3 : max_taps;
    const stream_shape shape = stream_shape_of(p.a, stream_any_warps);
    const int64_t sent = p.cluster > 1 ? 4 * p.cluster * p.a.G * p.a.D : 0;
    const int64_t shared = 4 * shape.warps * stream_shared_floats<D, heads> + sent;
    const launch_extent grid = stream_grid(p.a, shape);
    const launch_options options = stream_options(shape, shared);
    ASSAY_TRY(p.F <= 3 ? ASSAY_LAUNCH_WITH(error, (gate_stream_any<T, KV, D, heads, 3>), grid, 32 * shape.warps, shared,
                                           options, env->stream, p)
                       : ASSAY_LAUNCH_WITH(error, (gate_stream_any<T, KV, D, heads, most_taps>), grid, 32 * shape.warps,
                                           shared, options, env->stream, p));
    if (!stream_merges(shape)) return ASSAY_OK;
    return ASSAY_LAUNCH_WITH(error, (gate_stream_merge<T, KV>), stream_merge_grid(p.a), stream_merge_block(p.splits), 0,
                             in_turn(), env->stream, p);
  });
}

/* The strategy of gate_attention over the cache's Types: stream_same or stream_fp8. */
template <class Types> struct gate_streamed_any {
  using plan = gate_plan;
  static assay_status read(const assay_call *call, plan *made, assay_error *error) {
    ASSAY_TRY(gate_read(call, made, error));
    ASSAY_TRY(Types::expect(made->types, error));
    ASSAY_TRY(expect_stream_any(call, made->p.a, error));
    ASSAY_TRY(gate_expect_any(made->p, error));
    ASSAY_TRY(gate_expect_cut(*made, error));
    gate_stream_any_plan(made);
    return ASSAY_OK;
  }
  static void path(const plan &made, assay_env *env) {
    stream_any_path(made.p.a, stream_shape_of(made.p.a, stream_any_warps).warps, made.p.splits, made.p.cluster, env,
                    "stream_any");
  }
  static assay_status start(plan &made, assay_env *env, assay_error *error) {
    made.p.partial = static_cast<float *>(env->workspace);
    return gate_stream_any_launch<Types>(made.p, made.types, env, error);
  }
};

} // namespace ASSAY_NS
#endif
