/* softmax_stream.cuh: the streamed decode (stream.cuh) with a softmax.
 *
 * Every warp has an online softmax of its own. Weights are powers of two relative to a `peak`. The peak is raised, and
 * the sums rescaled, only where a score lies more than `slack` above it; one vote per block decides this. Peaks and
 * totals of warps, then of splits, are merged in their order, so the same call gives the same bits. The grid follows
 * from the capacity alone, and lengths are read on the device. Supported are window, soft cap, ALiBi, sinks and lse,
 * but no block-sparse mask. */
#ifndef ASSAY_GPU_LIB_SOFTMAX_STREAM_CUH
#define ASSAY_GPU_LIB_SOFTMAX_STREAM_CUH

#include "gpu/lib/launch.h"
#include "gpu/lib/softmax_call.h"
#include "gpu/lib/softmax_score.cuh"
#include "gpu/lib/softmax_stream_end.cuh"
#include "gpu/lib/softmax_stream_pairs.cuh"
#include "gpu/lib/stream.cuh"
#include "gpu/lib/stream_merge.cuh"
#include "gpu/lib/stream_pace.cuh"
#include "gpu/lib/stream_plan.h"
#include "gpu/lib/stream_walk.cuh"
#include "gpu/lib/warp.cuh"

namespace ASSAY_NS {

/* ---- from scores to weights -------------------------------------------------------------------------- */

constexpr float slack = 8.0f; /* weights stay below 2^8 */

/* Turns scores into weights. Scores here are log2(e) times those of the definition. The peak is the same in all lanes
 * that keep a head; the total is each lane's own. */
template <class KV, int heads> struct softmax_weigher {
  static constexpr int halves = stream_held<heads>::halves, width = stream_held<heads>::width;
  stream_factor<KV> scale;
  float softcap, slope[width], peak[width], total[width];
  int32_t first, last, lane;

  __device__ __forceinline__ void begin(const softmax_params &p, const stream_run &run) {
    lane = static_cast<int32_t>(threadIdx.x % 32);
    softcap = p.softcap;
    scale.begin(softcap > 0.0f ? p.a.scale / softcap : p.a.scale * log2_e, p.a, run.kv_head);
    first = run.first;
    last = run.last;
    ASSAY_UNROLL
    for (int i = 0; i < width; ++i) {
      const int32_t head = run.kv_head * p.a.G + min(stream_kept_head<heads>(lane) + i, p.a.G - 1);
      slope[i] = p.slopes != nullptr ? p.slopes[head] * log2_e : 0.0f;
      peak[i] = -INFINITY;
      total[i] = 0.0f;
    }
  }

  /* Returns the largest of a head's values in the warp. */
  __device__ __forceinline__ static float highest(float x) {
    ASSAY_UNROLL
    for (int step = heads >= 8 ? 4 : 2; step < 32; step *= 2)
      x = fmaxf(x, __shfl_xor_sync(all_lanes, x, step));
    return x;
  }

  /* Raises the peaks as far as x requires, and rescales the sums to them. */
  template <int steps> __device__ __forceinline__ void raise(const float (&x)[halves][width], float (&sum)[steps][4]) {
    float shrink[width == 4 ? 4 : 2];
    ASSAY_UNROLL
    for (int i = 0; i < width; ++i) {
      const float top = fmaxf(peak[i], highest(fmaxf(x[0][i], x[halves - 1][i])));
      shrink[i] = power_below(peak[i], top);
      peak[i] = top;
      total[i] *= shrink[i];
    }
    /* A lane's sums are those of the heads that it keeps. With two heads they are the sums of both. */
    if constexpr (heads == 2) {
      shrink[1] = __shfl_sync(all_lanes, shrink[0], 1);
      shrink[0] = __shfl_sync(all_lanes, shrink[0], 0);
    }
    constexpr int of_set = steps / stream_column_sets<heads>;
    ASSAY_UNROLL
    for (int i = 0; i < steps; ++i) {
      ASSAY_UNROLL
      for (int c = 0; c < 4; ++c)
        sum[i][c] *= shrink[i / of_set * 2 + c % 2];
    }
  }

  /* Scales the scores of the keys that this lane keeps, and sets them to -inf outside the row's keys. */
  __device__ __forceinline__ void keep(float (&x)[halves][width], int32_t t) const {
    ASSAY_UNROLL
    for (int h = 0; h < halves; ++h) {
      const int32_t key = t + stream_kept_key<heads>(lane) + 8 * h;
      const bool visible = key >= first && key <= last;
      ASSAY_UNROLL
      for (int i = 0; i < width; ++i) {
        float s = scale.times(x[h][i]);
        if (softcap > 0.0f) s = softcap * log2_e * tanhf(s);
        s += slope[i] * static_cast<float>(key - last);
        x[h][i] = visible ? s : -INFINITY;
      }
    }
  }

  template <int steps>
  __device__ __forceinline__ void weigh(const float (&x)[halves][width], float *weight, float (&sum)[steps][4]) {
    float p[halves][width];
    bool above = false;
    ASSAY_UNROLL
    for (int h = 0; h < halves; ++h) {
      ASSAY_UNROLL
      for (int i = 0; i < width; ++i)
        above = above || x[h][i] > peak[i] + slack;
    }
    if (__any_sync(all_lanes, above)) raise(x, sum);
    ASSAY_UNROLL
    for (int h = 0; h < halves; ++h) {
      ASSAY_UNROLL
      for (int i = 0; i < width; ++i) {
        p[h][i] = power_below(x[h][i], peak[i]);
        total[i] += p[h][i];
      }
    }
    stream_put_weights<heads>(p, lane, weight);
  }

  /* Writes the peaks and totals of the warp to shared memory: [heads], [heads]. */
  __device__ __forceinline__ void put(float *to) {
    ASSAY_UNROLL
    for (int i = 0; i < width; ++i) {
      ASSAY_UNROLL
      for (int step = heads >= 8 ? 4 : 2; step < 32; step *= 2)
        total[i] += __shfl_xor_sync(all_lanes, total[i], step);
      if (lane < heads / width) {
        to[lane * width + i] = peak[i];
        to[heads + lane * width + i] = total[i];
      }
    }
  }
};

/* ---- kernels ----------------------------------------------------------------------------------------- */

/* Returns the number of warps per multiprocessor that the registers allow: 16 with 128 registers per thread, 12 with
 * 168, 8 with 255. */
__host__ __device__ constexpr int softmax_stream_warps(int D, int heads) {
  return D == 128 && heads == 16 ? 8 : D == 64 && heads <= 8 ? 16 : 12;
}

/* Whether a thread per head weighs the runs (softmax_stream_end.cuh). Few heads of 96 or 128 channels would be up to 1
 * % slower with one row per multiprocessor. For rows of differing lengths the compiler's order of the loop is then
 * worse by 5 %. */
template <int D, int heads> constexpr bool softmax_ends_by_heads = D == 64 || heads >= 8;

/* A warp's shared memory: that of the walk, then peaks and totals. */
template <int D, int heads> constexpr int softmax_shared_floats = stream_shared_floats<D, heads> + 2 * heads;

/* softmax_stream: handles the keys of one (row, kv head), or one split of them. Splits of a cluster are merged by its
 * first thread block, in their order. Other splits leave sums to softmax_stream_merge.
 * Grid:   (N rows * H_kv, splits), or, with clusters, (N rows * H_kv * splits). Block: softmax_stream_warps, or a
 * divisor of that number, each warp with a run of its own.
 * Shared: softmax_shared_floats per warp: the weights of two blocks of 16 keys, and later the warp's sums, peaks,
 * totals. In a cluster, what the splits send comes after them.
 * Align:  16 bytes for q, K, V and all their strides. Arch: sm_80 and above, with clusters sm_90.
 * Limit:  bytes: 2 * L * D * sizeof(KV) per row and kv head. */
template <class T, class KV, int D, int heads>
__global__ void __launch_bounds__(32 * softmax_stream_warps(D, heads), 1) softmax_stream(softmax_params p) {
  ASSAY_DYNAMIC_SHARED(float, shared);
  ASSAY_SHARED(int32_t, all_blocks, 1);
  constexpr int floats = softmax_shared_floats<D, heads>;
  const attention_params &a = p.a;
  const stream_place at = stream_place_of(a, p.cluster);
  if (p.cluster > 1) cluster_arrive();
  const bool early = !softmax_ends_by_heads<D, heads> || stream_is_first();
  if (early) stream_ask(a, at);
  dependents_launch();
  if (early) stream_ask_first<KV, D, true>(a, at);
  if (p.block_ns > 0.0f && threadIdx.x < 32) {
    const int32_t blocks = stream_all_blocks(a, at);
    if (threadIdx.x == 0) all_blocks[0] = blocks;
  }
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  stream_run run = {};
  int64_t block = 0, next = 0; /* physical blocks of the run's first two blocks */
  const auto look = [&] {
    const stream_entries entries = stream_entries_of<true>(a, at);
    run = stream_run_of<true>(keys_of_row(a, at.row), at);
    const bool known = entries.begin >= 0;
    block = known ? entries.block : stream_block_of(a.cache, run, run.begin, run.begin);
    next = known ? entries.next : stream_block_of(a.cache, run, run.begin + run.step, run.begin);
  };
  if (a.settled) look();
  dependency_wait();
  uint4 q[stream_query_loads<KV, D, heads>];
  stream_load_query<T, KV, D, heads>(a, at.row, at.kv_head, q);
  if (!a.settled) look();
  stream_fragment<KV, D, heads> k = {};
  stream_first_keys<KV, D, heads>(a.cache, run, block, k);
  stream_share<KV, D> v = stream_first_values<KV, D>(a.cache, run, block);
  softmax_weigher<KV, heads> weigher;
  weigher.begin(p, run);
  stream_sums<D, heads> sum = {};
  float *const own = shared + thread / 32 * floats;
  stream_pace pace;
  pace.begin(run, all_blocks, p.block_ns, p.round_ns);
  stream_walk_dense<T, KV, D, heads>(a, run, q, k, v, next, own, weigher, sum, pace, [] {});
  stream_put_sums<T, KV, D, heads>(sum, own, D);
  weigher.put(own + stream_shared_floats<D, heads>);
  __syncthreads(); /* the warps' sums are written */
  if constexpr (softmax_ends_by_heads<D, heads>)
    softmax_stream_end<T, KV, D, heads>(p, at, shared, floats);
  else
    softmax_stream_end_pairs<T, KV, D, heads, softmax_stream_warps(D, heads)>(p, at, shared, floats);
}

/* softmax_stream_merge: merges the splits of a (row, kv head). Each group adds its splits in their order, then the
 * groups are added in their order. One warp per head weights the splits by their peaks while their sums are being
 * loaded.
 * Grid:   (N rows * H_kv, G D / 128). Block: 128 threads per group, for elements of one to eight heads.
 * Shared: one weight per split and head, one sum per thread. Arch: any.
 * Limit:  bytes: 4 G (D + 2) per split. */
template <class T, class KV>
__global__ void __launch_bounds__(stream_merge_threads *stream_merge_groups) softmax_stream_merge(softmax_params p) {
  constexpr int32_t most = stream_multiprocessors, turns = (most + 31) / 32;
  constexpr int32_t most_heads = 8; /* a head has 16 elements or more */
  ASSAY_SHARED(float, weight, most_heads *most);
  ASSAY_SHARED(softmax_sum, joint, most_heads);
  ASSAY_SHARED(float, shared, stream_merge_threads *stream_merge_groups);
  take_turn();
  const attention_params &a = p.a;
  const int64_t segment = blockIdx.x;
  const int32_t thread = static_cast<int32_t>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int32_t groups = static_cast<int32_t>(blockDim.x) / stream_merge_threads;
  const int32_t count = a.G * a.D, begin = static_cast<int32_t>(blockIdx.y) * stream_merge_threads;
  const int32_t i = begin + thread % stream_merge_threads, first_head = begin / a.D;
  const int32_t heads = (min(begin + stream_merge_threads, count) - 1) / a.D + 1 - first_head;
  const float *const partial = p.partial + segment * p.splits * count + min(i, count - 1);
  int32_t b = thread / stream_merge_threads;
  float of[stream_batch];
  stream_load_splits(partial, count, b, groups, p.splits, of);

  if (warp < heads) {
    const float *const from = p.partial_lse + segment * p.splits * 2 * a.G + first_head + warp;
    float peak[turns], total[turns];
    softmax_sum all = {-INFINITY, 0.0f, 0.0f};
    ASSAY_UNROLL
    for (int32_t turn = 0; turn < turns; ++turn) {
      const int32_t split = 32 * turn + lane;
      const bool there = split < p.splits;
      peak[turn] = there ? from[static_cast<int64_t>(split) * 2 * a.G] : -INFINITY;
      total[turn] = there ? from[static_cast<int64_t>(split) * 2 * a.G + a.G] : 0.0f;
    }
    ASSAY_UNROLL
    for (int32_t turn = 0; turn < turns; ++turn)
      all.peak = fmaxf(all.peak, peak[turn]);
    all.peak = warp_max(all.peak);
    ASSAY_UNROLL
    for (int32_t turn = 0; turn < turns; ++turn) {
      const int32_t split = 32 * turn + lane;
      const float by = power_below(peak[turn], all.peak);
      all.total += by * total[turn];
      if (split < p.splits) weight[warp * most + split] = by;
    }
    all.total = warp_sum(all.total);
    if (lane == 0) joint[warp] = all;
  }
  __syncthreads(); /* the weights are written */

  const int32_t of_head = min(i, count - 1) / a.D - first_head;
  float own = 0.0f;
  for (;;) {
    ASSAY_UNROLL
    for (int32_t k = 0; k < stream_batch; ++k)
      if (b + k * groups < p.splits) own += weight[of_head * most + b + k * groups] * of[k];
    b += groups * stream_batch;
    if (b >= p.splits) break;
    stream_load_splits(partial, count, b, groups, p.splits, of);
  }
  softmax_sum all = joint[of_head];
  all.sum = stream_add_groups(own, shared);
  if (thread >= stream_merge_threads || i >= count) return;
  const int32_t kv_head = static_cast<int32_t>(segment % a.H_kv), head = kv_head * a.G + i / a.D;
  const float value = stream_value<KV>(normalised(with_sink(p, head, all)), a, kv_head);
  static_cast<T *>(a.out)[segment * count + i] = from_float<T>(value);
  if (p.lse != nullptr && i % a.D == 0) p.lse[segment * a.G + i / a.D] = lse_of(all);
}

} // namespace ASSAY_NS
#endif
