/* softmax_stream_start.cuh: the plans and launches of the streamed decode with a softmax, for heads of 64, 96 and 128
 * channels. One or two heads of 96 channels per group pass K and V through shared memory (softmax_stream_ring.cuh); the
 * others have registers for them (softmax_stream.cuh). */
#ifndef ASSAY_GPU_LIB_SOFTMAX_STREAM_START_CUH
#define ASSAY_GPU_LIB_SOFTMAX_STREAM_START_CUH

#include "gpu/lib/softmax_stream_ring.cuh"

namespace ASSAY_NS {

/* Returns whether a call has the ring in shared memory, and the warps per multiprocessor of a call's kernel. */
inline bool softmax_stream_rings(const attention_params &a) {
  return a.D == 96 && a.G <= 2;
}
inline int32_t softmax_stream_most(const attention_params &a) {
  return softmax_stream_rings(a) ? softmax_ring_warps(96, 2) : softmax_stream_warps(a.D, stream_heads(a.G, a.D));
}

inline stream_shape softmax_stream_shape(const softmax_params &p) {
  return stream_shape_of(p.a, softmax_stream_most(p.a));
}

/* Refuses calls that the streamed softmax cannot run, and sets the splits and the workspace of a plan that
 * expect_stream has accepted. */
inline assay_status softmax_stream_plan(softmax_plan *plan, assay_error *error) {
  ASSAY_TRY(softmax_expect_dense(plan->p, error));
  const stream_shape shape = softmax_stream_shape(plan->p);
  plan->p.splits = shape.splits;
  plan->p.cluster = shape.cluster;
  plan->workspace = stream_workspace(plan->p.a, shape, plan->p.a.D + 2);
  return ASSAY_OK;
}

inline void softmax_stream_path(const softmax_params &p, assay_env *env, const char *name = "stream") {
  (void)snprintf(env->path, sizeof env->path, "%s warps=%d splits=%d cluster=%d D=%d G=%d%s%s", name,
                 softmax_stream_shape(p).warps, p.splits, p.cluster, p.a.D, p.a.G, cache_word(p.a),
                 p.a.settled ? " settled" : "");
}

/* Sets where the splits' results lie in the plan's workspace. */
inline void softmax_stream_place(softmax_params *p, void *workspace) {
  p->partial = static_cast<float *>(workspace);
  p->partial_lse = p->partial + p->a.N * p->a.H * p->splits * p->a.D;
}

template <class Types>
assay_status softmax_stream_launch(const softmax_params &p, const attention_types &types, assay_env *env,
                                   assay_error *error) {
  if (softmax_stream_rings(p.a))
    return Types::of(types, [&](auto type, auto) {
      return softmax_ring_start<typename decltype(type)::type, 96, 2>(p, env, error);
    });
  return stream_with<Types>(types, p.a.D, p.a.G, [&](auto type, auto cached, auto channels, auto columns) {
    using T = typename decltype(type)::type;
    using KV = typename decltype(cached)::type;
    constexpr int D = decltype(channels)::is, heads = decltype(columns)::is;
    const stream_shape shape = softmax_stream_shape(p);
    const int64_t sent = p.cluster > 1 ? 8 * p.cluster * softmax_sent_words(p.a.G, D) : 0;
    const int64_t shared = 4 * shape.warps * softmax_shared_floats<D, heads> + sent;
    softmax_params paced = p;
    const stream_speed speed = stream_speed_of(p.a, shape, sizeof(KV), env->memory_rate);
    paced.block_ns = speed.block_ns;
    paced.round_ns = speed.round_ns;
    ASSAY_TRY(ASSAY_LAUNCH_WITH(error, (softmax_stream<T, KV, D, heads>), stream_grid(p.a, shape), 32 * shape.warps,
                                shared, stream_options(shape, shared), env->stream, paced));
    if (!stream_merges(shape)) return ASSAY_OK;
    return ASSAY_LAUNCH_WITH(error, (softmax_stream_merge<T, KV>), stream_merge_grid(p.a), stream_merge_block(p.splits),
                             0, in_turn(), env->stream, p);
  });
}

/* The strategy of softmax_attention over the cache's Types: stream_same or stream_fp8. */
template <class Types> struct softmax_streamed {
  using plan = softmax_plan;
  static assay_status read(const assay_call *call, plan *made, assay_error *error) {
    ASSAY_TRY(softmax_read(call, made, error));
    ASSAY_TRY(softmax_expect_D_v(made->p, error));
    ASSAY_TRY(Types::expect(made->types, error));
    ASSAY_TRY(expect_stream(call, made->p.a, error));
    return softmax_stream_plan(made, error);
  }
  static void path(const plan &made, assay_env *env) { softmax_stream_path(made.p, env); }
  static assay_status start(plan &made, assay_env *env, assay_error *error) {
    softmax_stream_place(&made.p, env->workspace);
    return softmax_stream_launch<Types>(made.p, made.types, env, error);
  }
};

} // namespace ASSAY_NS
#endif
