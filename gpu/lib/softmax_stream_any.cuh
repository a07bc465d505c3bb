/* softmax_stream_any.cuh: the streamed decode with a softmax (softmax_stream.cuh) for heads of any size
 * (stream_any.cuh). Caches of q's type pass through shared memory (softmax_stream_ring.cuh), and codes through
 * registers. */
#ifndef ASSAY_GPU_LIB_SOFTMAX_STREAM_ANY_CUH
#define ASSAY_GPU_LIB_SOFTMAX_STREAM_ANY_CUH

#include "gpu/lib/softmax_stream_ring.cuh"
#include "gpu/lib/softmax_stream_start.cuh"
#include "gpu/lib/stream_any.cuh"
#include "gpu/lib/stream_any_plan.h"

namespace ASSAY_NS {

template <int D, int heads>
using softmax_any_pace = std::conditional_t<stream_lean<D, heads>, stream_no_pace, stream_pace>;

/* softmax_stream_any: does what softmax_stream does, with another walk.
 * Grid:   as softmax_stream. Block: 8, 4 or 2 warps, each with a run of its own.
 * Shared: as softmax_stream; during the walk, q lies after the weights.
 * Align:  16 bytes for q, K, V and all their strides. Arch: sm_80 and above, with clusters sm_90.
 * Limit:  bytes: 2 * L * D * sizeof(KV) per row and kv head. */
template <class T, class KV, int D, int heads>
__global__ void __launch_bounds__(32 * stream_any_warps, 1) softmax_stream_any(softmax_params p) {
  ASSAY_DYNAMIC_SHARED(float, shared);
  ASSAY_SHARED(int32_t, all_blocks, 1);
  constexpr int floats = softmax_shared_floats<D, heads>;
  const attention_params &a = p.a;
  const stream_place at = stream_place_of(a, p.cluster);
  if (p.cluster > 1) cluster_arrive();
  stream_ask(a, at);
  dependents_launch();
  stream_ask_first<KV, D, true>(a, at);
  if (p.block_ns > 0.0f && threadIdx.x < 32) {
    const int32_t blocks = stream_all_blocks(a, at);
    if (threadIdx.x == 0) all_blocks[0] = blocks;
  }
  dependency_wait();
  float *const own = shared + static_cast<int32_t>(threadIdx.x) / 32 * floats;
  const stream_entries entries = stream_entries_of<true>(a, at);
  const stream_run run = stream_run_of<true>(keys_of_row(a, at.row), at);
  const bool known = entries.begin >= 0;
  const int64_t block = known ? entries.block : stream_block_of(a.cache, run, run.begin, run.begin);
  const int64_t next = known ? entries.next : stream_block_of(a.cache, run, run.begin + run.step, run.begin);
  stream_ring<KV, D, heads> ring = {};
  stream_first_units<false, KV, D, heads>(a, run, block, ring);
  stream_put_query<T, KV, D, heads>(a, at.row, at.kv_head, own);
  softmax_weigher<KV, heads> weigher;
  weigher.begin(p, run);
  stream_sums<D, heads> sum = {};
  softmax_any_pace<D, heads> pace;
  if constexpr (!stream_lean<D, heads>) pace.begin(run, all_blocks, p.block_ns, p.round_ns);
  stream_walk_any<false, T, KV, D, heads>(a, run, ring, block, next, own, weigher, sum, pace);
  stream_put_sums<T, KV, D, heads>(sum, own, a.D);
  weigher.put(own + stream_shared_floats<D, heads>);
  __syncthreads(); /* the warps' sums are written */
  softmax_stream_end<T, KV, D, heads>(p, at, shared, floats);
}

/* ---- launcher ---------------------------------------------------------------------------------------- */

template <class T, class KV>
assay_status softmax_stream_codes_launch(const softmax_params &p, assay_env *env, assay_error *error) {
  return stream_any_sizes<true>(p.a.D, p.a.G, [&](auto channels, auto columns) {
    constexpr int D = decltype(channels)::is, heads = decltype(columns)::is;
    const stream_shape shape = stream_shape_of(p.a, stream_any_warps);
    const int64_t sent = p.cluster > 1 ? 8 * p.cluster * softmax_sent_words(p.a.G, p.a.D) : 0;
    const int64_t shared = 4 * shape.warps * softmax_shared_floats<D, heads> + sent;
    softmax_params paced = p;
    const stream_speed speed = stream_speed_of(p.a, shape, sizeof(KV), env->memory_rate);
    paced.block_ns = stream_lean<D, heads> ? 0.0f : speed.block_ns;
    paced.round_ns = speed.round_ns;
    ASSAY_TRY(ASSAY_LAUNCH_WITH(error, (softmax_stream_any<T, KV, D, heads>), stream_grid(p.a, shape), 32 * shape.warps,
                                shared, stream_options(shape, shared), env->stream, paced));
    if (!stream_merges(shape)) return ASSAY_OK;
    return ASSAY_LAUNCH_WITH(error, (softmax_stream_merge<T, KV>), stream_merge_grid(p.a), stream_merge_block(p.splits),
                             0, in_turn(), env->stream, p);
  });
}

template <class Types>
assay_status softmax_stream_any_launch(const softmax_params &p, const attention_types &types, assay_env *env,
                                       assay_error *error) {
  return Types::of(types, [&](auto type, auto cached) {
    using T = typename decltype(type)::type;
    using KV = typename decltype(cached)::type;
    if constexpr (is_fp8<KV>::value)
      return softmax_stream_codes_launch<T, KV>(p, env, error);
    else
      return softmax_stream_ring_launch<T>(p, env, error);
  });
}

/* Returns the shape of a plan that expect_stream_any has accepted. */
inline stream_shape softmax_any_shape(const softmax_plan &plan) {
  const bool codes = assay_dtype_size(plan.types.kv) == 1;
  return codes ? stream_shape_of(plan.p.a, stream_any_warps) : softmax_ring_shape(plan.p);
}
inline void softmax_any_path(const softmax_plan &plan, assay_env *env, const char *name) {
  stream_any_path(plan.p.a, softmax_any_shape(plan).warps, plan.p.splits, plan.p.cluster, env, name);
}

/* Refuses calls that the softmax cannot run, and sets the splits and the workspace of a plan that expect_stream_any has
 * accepted. The plan must have its types. */
inline assay_status softmax_stream_any_plan(softmax_plan *plan, assay_error *error) {
  ASSAY_TRY(softmax_expect_dense(plan->p, error));
  const stream_shape shape = softmax_any_shape(*plan);
  plan->p.splits = shape.splits;
  plan->p.cluster = shape.cluster;
  plan->workspace = stream_workspace(plan->p.a, shape, plan->p.a.D + 2);
  return ASSAY_OK;
}

/* The strategy of softmax_attention over the cache's Types: stream_same or stream_fp8. */
template <class Types> struct softmax_streamed_any {
  using plan = softmax_plan;
  static assay_status read(const assay_call *call, plan *made, assay_error *error) {
    ASSAY_TRY(softmax_read(call, made, error));
    ASSAY_TRY(softmax_expect_D_v(made->p, error));
    ASSAY_TRY(Types::expect(made->types, error));
    ASSAY_TRY(expect_stream_any(call, made->p.a, error));
    return softmax_stream_any_plan(made, error);
  }
  static void path(const plan &made, assay_env *env) { softmax_any_path(made, env, "stream_any"); }
  static assay_status start(plan &made, assay_env *env, assay_error *error) {
    softmax_stream_place(&made.p, env->workspace);
    return softmax_stream_any_launch<Types>(made.p, made.types, env, error);
  }
};

} // namespace ASSAY_NS
#endif
