/* gate_stream.cuh: the streamed decode (stream.cuh) with the gate's weights: a filter along the keys and a clip.
 *
 * The filter takes one shuffle per tap and block of 16 keys. Lanes whose neighbour lies in the previous block keep the
 * neighbour's scores. A run that begins inside a row reads the last keys before it once more. V of a key that no head
 * of the group needs is never read. A key that is dead for one head adds nothing to that head's sum. Warps, then
 * splits, are added in their order, so the same call gives the same bits. The grid follows from the capacity alone, and
 * lengths are read on the device. */
#ifndef ASSAY_GPU_LIB_GATE_STREAM_CUH
#define ASSAY_GPU_LIB_GATE_STREAM_CUH

#include "gpu/lib/gate_call.h"
#include "gpu/lib/launch.h"
#include "gpu/lib/stream.cuh"
#include "gpu/lib/stream_merge.cuh"
#include "gpu/lib/stream_plan.h"
#include "gpu/lib/stream_walk.cuh"

namespace ASSAY_NS {

/* ---- from scores to weights -------------------------------------------------------------------------- */

/* Turns scores into weights. tap: F taps, 0 beyond. `behind[i][k - 1]`: for a lane whose key's k-th neighbour lies in
 * the previous block, that neighbour's r, for the i-th head that the lane keeps. */
template <class KV, int heads, int taps_> struct gate_weigher {
  static constexpr int taps = taps_, halo = taps - 1;
  static constexpr int halves = stream_held<heads>::halves, width = stream_held<heads>::width;
  stream_factor<KV> scale;
  float lo, hi, tap[taps], behind[width][halo];
  int32_t first, last, lane;
  bool relu_pre;

  __device__ __forceinline__ void begin(const gate_params &p, const stream_run &run) {
    scale.begin(p.a.scale, p.a, run.kv_head);
    lo = p.lo;
    hi = p.hi;
    relu_pre = p.relu_pre;
    first = run.first;
    last = run.last;
    lane = static_cast<int32_t>(threadIdx.x % 32);
    ASSAY_UNROLL
    for (int k = 0; k < taps; ++k)
      tap[k] = k < p.F ? p.taps[k] : 0.0f;
    ASSAY_UNROLL
    for (int i = 0; i < width; ++i)
      ASSAY_UNROLL
    for (int k = 0; k < halo; ++k)
      behind[i][k] = 0.0f;
  }

  /* Turns the scores of the keys that this lane keeps into r, and sets r to 0 outside the row's keys. */
  __device__ __forceinline__ void keep(float (&r)[halves][width], int32_t t) const {
    ASSAY_UNROLL
    for (int h = 0; h < halves; ++h) {
      const int32_t key = t + stream_kept_key<heads>(lane) + 8 * h;
      const bool visible = key >= first && key <= last;
      ASSAY_UNROLL
      for (int i = 0; i < width; ++i) {
        const float s = scale.times(r[h][i]);
        r[h][i] = visible ? (relu_pre ? fmaxf(s, 0.0f) : s) : 0.0f;
      }
    }
  }

  /* Returns r of the k-th neighbour to the left, for head i, and keeps what the next block needs. */
  __device__ __forceinline__ void left(const float (&r)[halves][width], int k, int i, float (&before)[halves]) {
    const int32_t g = lane / 4, j = lane % 4, from = 4 * ((g - k) & 7);
    const bool over = g < k; /* the neighbour lies in the other half */
    if constexpr (heads >= 8) {
      const float low = __shfl_sync(all_lanes, r[0][i], from + j), high = __shfl_sync(all_lanes, r[1][i], from + j);
      before[0] = over ? behind[i][k - 1] : low;
      before[1] = over ? low : high;
      behind[i][k - 1] = high;
    } else {
      const float other = __shfl_sync(all_lanes, r[0][i], from + (over ? j ^ 2 : j));
      before[0] = over && j < 2 ? behind[i][k - 1] : other;
      behind[i][k - 1] = other;
    }
  }

  __device__ __forceinline__ void edge(float (&r)[halves][width], int32_t t) {
    float before[halves];
    keep(r, t);
    ASSAY_UNROLL
    for (int i = 0; i < width; ++i) {
      ASSAY_UNROLL
      for (int k = 1; k < taps; ++k)
        left(r, k, i, before);
    }
  }

  template <class Sum>
  __device__ __forceinline__ uint32_t weigh(const float (&r)[halves][width], int32_t t, float *weight, Sum &) {
    float p[halves][width], before[halves];
    bool needed[halves] = {};
    ASSAY_UNROLL
    for (int i = 0; i < width; ++i) {
      ASSAY_UNROLL
      for (int h = 0; h < halves; ++h)
        p[h][i] = tap[0] * r[h][i];
      ASSAY_UNROLL
      for (int k = 1; k < taps; ++k) {
        left(r, k, i, before);
        ASSAY_UNROLL
        for (int h = 0; h < halves; ++h)
          p[h][i] += tap[k] * before[h];
      }
    }
    ASSAY_UNROLL
    for (int h = 0; h < halves; ++h) {
      const int32_t key = t + stream_kept_key<heads>(lane) + 8 * h;
      const bool visible = key >= first && key <= last;
      ASSAY_UNROLL
      for (int i = 0; i < width; ++i) {
        p[h][i] = visible ? fminf(fmaxf(p[h][i], lo), hi) : 0.0f;
        needed[h] = needed[h] || p[h][i] != 0.0f;
      }
    }
    stream_put_weights<heads>(p, lane, weight);
    return stream_mask<heads>(needed);
  }
};

/* ---- kernels ----------------------------------------------------------------------------------------- */

/* Returns the number of warps per multiprocessor that the registers allow: 12 with 168 registers per thread, 8 with
 * 255. */
__host__ __device__ constexpr int gate_stream_warps(int D, int heads, int taps) {
  return D == 128 && (taps > 3 || heads >= 8) ? 8 : 12;
}

/* Adds the warps' sums of a thread block, which are in `shared`, and writes or sends the result. gamma: those of the
 * group. The whole block must call it after a barrier. */
template <class T, class KV, int D, int heads, int most_warps>
__device__ __forceinline__ void gate_stream_end(const gate_params &p, const stream_place &at, float *shared,
                                                const float *gamma) {
  const attention_params &a = p.a;
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  const int32_t channels = stream_channels<D>(a), count = a.G * channels;
  float *const sent = shared + threads / 32 * stream_shared_floats<D, heads>; /* [splits][count] */
  const auto write_out = [&](int32_t i, float total) {
    static_cast<T *>(a.out)[at.segment * count + i] =
        from_float<T>(gamma[i / channels] * stream_value<KV>(total, a, at.kv_head));
  };
  if (p.cluster > 1) cluster_wait(); /* the cluster's thread blocks have started */
  for (int32_t i = thread; i < count; i += threads) {
    float total = 0.0f;
    ASSAY_UNROLL
    for (int32_t w = 0; w < most_warps; ++w)
      if (w < threads / 32) total += shared[w * stream_shared_floats<D, heads> + i];
    if (p.cluster > 1)
      *cluster_shared(sent + static_cast<int32_t>(at.split) * count + i, 0) = total;
    else if (p.splits > 1)
      p.partial[(at.segment * p.splits + at.split) * count + i] = total;
    else
      write_out(i, total);
  }
  if (p.cluster == 1) return;

  cluster_arrive();
  if (at.split > 0) return;
  cluster_wait(); /* all that the splits sent has arrived */
  for (int32_t i = thread; i < count; i += threads) {
    float total = 0.0f;
    ASSAY_ROLLED
    for (int32_t split = 0; split < p.cluster; ++split)
      total += sent[split * count + i];
    write_out(i, total);
  }
}

/* gate_stream: handles the keys of one (row, kv head), or one split of them. Splits of a cluster are added by its first
 * thread block, in their order. Other splits leave sums to gate_stream_merge.
 * Grid:   (N rows * H_kv, splits), or, with clusters, (N rows * H_kv * splits). Block: 12, 6, 4 or 3 warps, or 8, 4, 2,
 * each with a run of its own.
 * Shared: stream_shared_floats per warp: the weights of two blocks of 16 keys, and later the warp's sums. In a cluster,
 * what the splits send comes after them.
 * Align:  16 bytes for q, K, V and all their strides. Arch: sm_80 and above, with clusters sm_90.
 * Limit:  bytes: L * D * sizeof(KV) of K, and as much of V as is live for any head of the group, per row and kv
 * head. */
template <class T, class KV, int D, int heads, int taps>
__global__ void __launch_bounds__(32 * gate_stream_warps(D, heads, taps), 1) gate_stream(gate_params p) {
  ASSAY_SHARED(float, gamma, heads);
  ASSAY_DYNAMIC_SHARED(float, shared);
  constexpr int most_warps = gate_stream_warps(D, heads, taps);
  const attention_params &a = p.a;
  const stream_place at = stream_place_of(a, p.cluster);
  if (p.cluster > 1) cluster_arrive();
  stream_ask(a, at);
  dependents_launch();
  stream_ask_first<KV, D, false>(a, at);
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  stream_run run = {};
  if (a.settled) run = stream_run_of<false>(keys_of_row(a, at.row), at);
  dependency_wait();
  const float factor = thread < a.G ? p.gamma[at.kv_head * a.G + thread] : 0.0f;
  uint4 q[stream_query_loads<KV, D, heads>];
  stream_load_query<T, KV, D, heads>(a, at.row, at.kv_head, q);
  if (!a.settled) run = stream_run_of<false>(keys_of_row(a, at.row), at);
  gate_weigher<KV, heads, taps> weigher;
  weigher.begin(p, run);
  stream_sums<D, heads> sum = {};
  float *const own = shared + thread / 32 * stream_shared_floats<D, heads>;
  stream_walk<T, KV, D, heads>(a, run, q, own, weigher, sum);
  stream_put_sums<T, KV, D, heads>(sum, own, D);
  if (thread < a.G) gamma[thread] = factor;
  __syncthreads(); /* the warps' sums and gamma are written */
  gate_stream_end<T, KV, D, heads, most_warps>(p, at, shared, gamma);
}

/* gate_stream_merge: adds the sums of a (row, kv head). Each group adds its splits in their order, then the groups are
 * added in their order.
 * Grid:   (N rows * H_kv, G D / 128). Block: 128 threads per group.
 * Shared: one sum per thread. Arch: any.
 * Limit:  bytes: 4 G D per split. */
template <class T, class KV>
__global__ void __launch_bounds__(stream_merge_threads *stream_merge_groups) gate_stream_merge(gate_params p) {
  ASSAY_SHARED(float, shared, stream_merge_threads *stream_merge_groups);
  take_turn();
  const attention_params &a = p.a;
  const int64_t segment = blockIdx.x;
  const int32_t thread = static_cast<int32_t>(threadIdx.x),
                groups = static_cast<int32_t>(blockDim.x) / stream_merge_threads;
  const int32_t count = a.G * a.D,
                i = static_cast<int32_t>(blockIdx.y) * stream_merge_threads + thread % stream_merge_threads;
  const float *const partial = p.partial + segment * p.splits * count + min(i, count - 1);
  float own = 0.0f;
  ASSAY_ROLLED
  for (int32_t b = thread / stream_merge_threads; b < p.splits; b += groups * stream_batch) {
    float of[stream_batch];
    stream_load_splits(partial, count, b, groups, p.splits, of);
    ASSAY_UNROLL
    for (int32_t k = 0; k < stream_batch; ++k)
      own += of[k];
  }
  const float total = stream_add_groups(own, shared);
  if (thread >= stream_merge_threads || i >= count) return;
  const int64_t head = segment % a.H_kv * a.G + i / a.D;
  const float value = stream_value<KV>(total, a, static_cast<int32_t>(segment % a.H_kv));
  static_cast<T *>(a.out)[segment * count + i] = from_float<T>(p.gamma[head] * value);
}

/* ---- launcher ---------------------------------------------------------------------------------------- */

inline stream_shape gate_stream_shape(const gate_params &p) {
  return stream_shape_of(p.a, gate_stream_warps(p.a.D, stream_heads(p.a.G, p.a.D), p.F <= 3 ? 3 : max_taps));
}

/* Sets the splits and the workspace of a plan that expect_stream has accepted. */
inline void gate_stream_plan(gate_plan *plan) {
  const stream_shape shape = gate_stream_shape(plan->p);
  plan->p.splits = shape.splits;
  plan->p.cluster = shape.cluster;
  plan->workspace = stream_workspace(plan->p.a, shape, plan->p.a.D);
}

inline void gate_stream_path(const gate_params &p, assay_env *env, const char *name = "stream") {
  (void)snprintf(env->path, sizeof env->path, "%s warps=%d splits=%d cluster=%d D=%d G=%d taps=%s%s%s", name,
                 gate_stream_shape(p).warps, p.splits, p.cluster, p.a.D, p.a.G, p.F <= 3 ? "3" : "8", cache_word(p.a),
                 p.a.settled ? " settled" : "");
}

template <class Types>
assay_status gate_stream_launch(const gate_params &p, const attention_types &types, assay_env *env,
                                assay_error *error) {
  return stream_with<Types>(types, p.a.D, p.a.G, [&](auto type, auto cached, auto channels, auto columns) {
    using T = typename decltype(type)::type;
    using KV = typename decltype(cached)::type;
    constexpr int D = decltype(channels)::is, heads = decltype(columns)::is;
    const stream_shape shape = gate_stream_shape(p);
    const int64_t sent = p.cluster > 1 ? 4 * p.cluster * p.a.G * D : 0;
    const int64_t shared = 4 * shape.warps * stream_shared_floats<D, heads> + sent;
    const launch_extent grid = stream_grid(p.a, shape);
    const launch_options options = stream_options(shape, shared);
    constexpr int most_taps = heads == 16 ? 3 : max_taps;
    ASSAY_TRY(p.F <= 3 ? ASSAY_LAUNCH_WITH(error, (gate_stream<T, KV, D, heads, 3>), grid, 32 * shape.warps, shared,
                                           options, env->stream, p)
                       : ASSAY_LAUNCH_WITH(error, (gate_stream<T, KV, D, heads, most_taps>), grid, 32 * shape.warps,
                                           shared, options, env->stream, p));
    if (!stream_merges(shape)) return ASSAY_OK;
    return ASSAY_LAUNCH_WITH(error, (gate_stream_merge<T, KV>), stream_merge_grid(p.a), stream_merge_block(p.splits), 0,
                             in_turn(), env->stream, p);
  });
}

/* Refuses filters for which the registers do not hold the neighbours of sixteen heads. A program of fewer shapes takes
 * sixteen columns for fewer heads too. */
inline assay_status gate_expect_taps(const gate_params &p, assay_error *error) {
  const int32_t heads = stream_heads(p.a.G, p.a.D);
  if (heads <= 8 || p.F <= 3) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "F: found %d taps, allowed 3 with the columns of %d heads", p.F,
                    heads);
}

/* Refuses clips that f16 cannot hold. Weights lie between lo and hi; cut into parts of f16 they are multiplied by
 * 128. */
inline assay_status gate_expect_cut(const gate_plan &made, assay_error *error) {
  const float most = fmaxf(fabsf(made.p.lo), fabsf(made.p.hi));
  if (made.types.q != ASSAY_F16 || !(most > 511.0f)) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "lo, hi: found %.9g, allowed with f16 up to 511",
                    static_cast<double>(most));
}

/* The strategy of gate_attention over the cache's Types: stream_same or stream_fp8. */
template <class Types> struct gate_streamed {
  using plan = gate_plan;
  static assay_status read(const assay_call *call, plan *made, assay_error *error) {
    ASSAY_TRY(gate_read(call, made, error));
    ASSAY_TRY(Types::expect(made->types, error));
    ASSAY_TRY(expect_stream(call, made->p.a, error));
    ASSAY_TRY(gate_expect_taps(made->p, error));
    ASSAY_TRY(gate_expect_cut(*made, error));
    gate_stream_plan(made);
    return ASSAY_OK;
  }
  static void path(const plan &made, assay_env *env) { gate_stream_path(made.p, env); }
  static assay_status start(plan &made, assay_env *env, assay_error *error) {
    made.p.partial = static_cast<float *>(env->workspace);
    return gate_stream_launch<Types>(made.p, made.types, env, error);
  }
};

} // namespace ASSAY_NS
#endif
