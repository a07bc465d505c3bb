/* softmax_attention_key_lanes.cu: decode, and few ragged rows, on CUDA cores; it takes every type, layout, head size
 * and group. softmax_attention.cu has the definition, gpu/lib/key_lanes.cuh the schedule.
 *
 * The softmax is online from tile to tile: the weights of a tile are relative to the largest score so far. A key that
 * every head of the pass masks is not read. Every score, weight and sum is f32. */
#include "gpu/lib/key_lanes.cuh"
#include "gpu/lib/softmax_call.h"
#include "gpu/lib/softmax_trees.cuh"

namespace ASSAY_NS {
namespace {

constexpr int32_t most_warps = key_lanes_threads / 32;

template <int heads> struct softmax_lanes {
  using params = softmax_params;
  struct common {
    int top[heads]; /* rank of the largest score */
    float total[most_warps][heads];
  };

  int32_t own;        /* the head whose scores the lane finishes */
  row_tree tree = {}; /* the row's, if there are trees or a mask */
  float slope;        /* its own */
  uint32_t phase[heads], own_phase;
  float largest;     /* the largest of the lane's scores */
  float peak[heads]; /* the same in every thread */
  float factor[heads], total[heads];

  __device__ __forceinline__ void begin(const softmax_params &p, int32_t head, int32_t here, int32_t own_head,
                                        common &c) {
    const int32_t there = head + min(own_head, here - 1);
    own = own_head;
    if (has_trees(p)) tree = tree_of_row(p, keys_of_row(p.a, blockIdx.x), blockIdx.x);
    slope = p.slopes != nullptr ? p.slopes[there] : 0.0f;
    own_phase = sparse_phase(p, there);
    largest = -INFINITY;
    ASSAY_UNROLL
    for (int h = 0; h < heads; ++h) {
      phase[h] = h < here ? sparse_phase(p, head + h) : 0;
      peak[h] = -INFINITY;
      factor[h] = total[h] = 0.0f;
    }
    if (threadIdx.x < heads) c.top[threadIdx.x] = rank_of(-INFINITY);
  }
  static __device__ __forceinline__ int32_t overlap(const softmax_params &) { return 0; }
  __device__ __forceinline__ bool sees(const softmax_params &p, int32_t here, int32_t t, int32_t last) const {
    if (has_trees(p)) return place_of(p, tree, t) >= 0;
    if (p.sparse_block == 0) return true;
    bool any = false;
    ASSAY_UNROLL
    for (int h = 0; h < heads; ++h)
      any |= h < here && kept(p, phase[h], t, last);
    return any;
  }
  __device__ __forceinline__ float score(const softmax_params &p, float dot, bool seen, int32_t t, int32_t last) {
    if (!seen || !kept(p, own_phase, t, last)) return -INFINITY;
    const bool trees = has_trees(p);
    const float score = score_of(p, dot, slope, trees ? place_of(p, tree, t) : t, trees ? tree.last : last);
    largest = fmaxf(largest, score);
    return score;
  }
  __device__ __forceinline__ void publish(common &c) const {
    if (largest > -INFINITY) atomicMax(&c.top[own], rank_of(largest));
  }
  __device__ __forceinline__ void weighing(const softmax_params &, int32_t, int32_t, const common &c) {
    ASSAY_UNROLL
    for (int h = 0; h < heads; ++h) {
      const float top = value_of_rank(c.top[h]);
      factor[h] = exp_below(peak[h], top);
      total[h] *= factor[h];
      peak[h] = top;
    }
  }
  __device__ __forceinline__ float weigh(const softmax_params &, int h, const float *score) {
    const float weight = exp_below(*score, peak[h]);
    total[h] += weight;
    return weight;
  }
  __device__ __forceinline__ float shrink(int h) const { return factor[h]; }
  __device__ __forceinline__ void close(common &c) {
    const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32, warps = static_cast<int32_t>(blockDim.x) / 32;
    ASSAY_UNROLL
    for (int h = 0; h < heads; ++h) {
      const float sum = warp_sum(total[h]);
      if (lane_id() == 0) c.total[warp][h] = sum;
    }
    __syncthreads(); /* the warps' totals are written */
    ASSAY_UNROLL
    for (int h = 0; h < heads; ++h) {
      total[h] = 0.0f;
      for (int32_t w = 0; w < warps; ++w)
        total[h] += c.total[w][h];
    }
  }
  /* Splits leave the sink to their merge. */
  __device__ __forceinline__ float result(const softmax_params &p, const key_lanes_shape &s, int h, int32_t head,
                                          float sum) const {
    if (s.splits > 1) return normalised(sum, total[h]);
    const sunk_sums sunk = beside_sink(p, head, peak[h], total[h]);
    return normalised(sum * sunk.shrink, sunk.total);
  }
  __device__ __forceinline__ void finish(const softmax_params &p, const key_lanes_shape &s, int h, int64_t at,
                                         int32_t split) const {
    const float lse = lse_of(peak[h], total[h]);
    if (s.splits > 1)
      p.partial_lse[at * s.splits + split] = lse;
    else if (p.lse != nullptr)
      p.lse[at] = lse;
  }
};

/* softmax_lanes_merge: out = sum_b exp(lse_b - lse) o_b over the splits that hold visible keys, in their order. A split
 * with lse -inf has weight 0; if all have, the output is 0 and lse -inf.
 * Grid: (N rows, H heads). Block: 32 to 256 threads, one channel each. Shared: none. Arch: any.
 * Limit: bytes: 4 (D_v + 1) per split. */
__global__ void __launch_bounds__(attention_max_D) softmax_lanes_merge(softmax_params p, key_lanes_shape s) {
  const int32_t d = static_cast<int32_t>(threadIdx.x), keys_of_split = s.tiles * key_lanes_tile;
  const int64_t row = blockIdx.x, at = row * p.a.H + blockIdx.y;
  if (d >= p.a.D_v) return;
  const row_keys keys = keys_seen(p, row);
  const float *const lse = p.partial_lse + at * s.splits;
  const float *const partial = p.partial + at * s.splits * p.a.D_v + d;
  const int32_t first = keys.first / keys_of_split;
  const int32_t end = keys.last < keys.first ? first : keys.last / keys_of_split + 1;
  float peak = -INFINITY, total = 0.0f, sum = 0.0f;
  for (int32_t b = first; b < end; ++b)
    peak = fmaxf(peak, lse[b]);
  for (int32_t b = first; b < end; ++b) {
    const float w = exp_below(lse[b], peak);
    total += w;
    sum += w * partial[static_cast<int64_t>(b) * p.a.D_v];
  }
  const sunk_sums sunk = beside_sink(p, static_cast<int32_t>(blockIdx.y), peak, total);
  store_as(s.q, p.a.out, at * p.a.D_v + d, normalised(sum * sunk.shrink, sunk.total));
  if (p.lse != nullptr && d == 0) p.lse[at] = lse_of(peak, total);
}

/* ---- launchers -------------------------------------------------------------------------------------- */

/* Workspace: partial[N, H, splits, D_v], partial_lse[N, H, splits] of f32, if there are several splits. */
struct lanes {
  using plan = softmax_plan;
  static assay_status read(const assay_call *call, plan *made, assay_error *error) {
    ASSAY_TRY(softmax_read(call, made, error));
    const attention_params &a = made->p.a;
    return key_lanes_plan(a, key_lanes_shape_of(a, made->types), a.D_v + 1, &made->workspace, error);
  }
  static void path(const plan &made, assay_env *env) {
    key_lanes_path(made.p.a, key_lanes_shape_of(made.p.a, made.types), env);
  }
  static assay_status start(plan &made, assay_env *env, assay_error *error) {
    softmax_params &p = made.p;
    const key_lanes_shape s = key_lanes_shape_of(p.a, made.types);
    p.partial = static_cast<float *>(env->workspace);
    if (s.splits > 1) p.partial_lse = p.partial + p.a.N * p.a.H * s.splits * p.a.D_v;
    ASSAY_TRY(launch_key_lanes<softmax_lanes>(p, made.types, s, env, error));
    if (s.splits == 1) return ASSAY_OK;
    return ASSAY_LAUNCH(error, softmax_lanes_merge, launch_extent(p.a.N, p.a.H), key_lanes_merge_threads(p.a), 0,
                        env->stream, p, s);
  }
};

constexpr assay_contract lanes_contract = key_lanes_contract(2.0); /* expf and tanhf: 2 ulp */

} // namespace
} // namespace ASSAY_NS

#define KEY_LANES                                                                                                      \
  SCHEDULE_VARIANT("softmax_attention", "key_lanes",                                                                   \
                   "decode of whatever streams decline, and few ragged rows: a group's heads share K and V",           \
                   "decode,prefill,chunked,mixed", lanes_contract, lanes)
ASSAY_VARIANTS(softmax_attention_key_lanes, KEY_LANES)
