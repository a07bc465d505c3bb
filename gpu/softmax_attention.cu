/* softmax_attention.cu: attention over the paged cache.
 *
 *   s_t = scale * (q . k_t)     s_t <- cap * tanh(s_t / cap)     s_t <- s_t + slope_h * (t - last)     the mask
 *   out = sum_t exp(s_t) v_t / (sum_t exp(s_t) + exp(sink_h))     lse = ln sum_t exp(s_t)
 *
 * over the keys of the row that the mask keeps. The sink is optional. Splits leave it out, and their merge adds it.
 *
 * A row that sees no key gives 0 and lse -inf. Three variants:
 *
 *   decode_rows         one block per query row and head, with an online softmax over tiles
 *   prefill_as_decode   the same over rows that a small kernel expands from a ragged batch
 *   split_keys          the key axis split over blocks and merged by lse
 *
 * Sums run in key order inside a split and in split order after it: the same call gives the same bits. K and V
 * of a masked key are never read, nor V where p = 0. docs/kernels/softmax_attention.md has the arithmetic. */
#include "gpu/lib/launch.h"
#include "gpu/lib/schedules.cuh"
#include "gpu/lib/softmax_call.h"
#include "gpu/lib/softmax_score.cuh"

namespace ASSAY_NS {
namespace {

/* ---- decode_rows ------------------------------------------------------------------------------------ */

/* softmax_rows: one query row and head, the keys in tiles of blockDim.x, an online softmax from tile to tile.
 * Grid:   (N rows, H heads). Block: 32, 64, 96 or 128 threads: one per key for the score and its weight, then each
 * takes the channels threadIdx.x, + blockDim.x, ... for the sum over V. Shared: 2.6 KB: q, sums, weights, the running
 * maximum. Align:  K in quads of 4 elements if cache.quads, else by element; all else by element. Arch:   any. Limit:
 * bytes: 2 * L * D * sizeof(KV) per row and kv head; K is read by one thread per key, so its loads do not coalesce in
 * nhd and hnd: a simple kernel, not a fast one. 8 blocks per multiprocessor leave 64 registers; without that bound
 * ptxas chooses 32, and spills. */
template <class Q, class KV> __global__ void __launch_bounds__(max_tile, 8) softmax_rows(softmax_params p) {
  ASSAY_SHARED(float, q, attention_max_D);
  ASSAY_SHARED(float, sum, attention_max_D);
  ASSAY_SHARED(float, weight, max_tile);
  ASSAY_SHARED(int, top, 1);
  const int32_t thread = static_cast<int32_t>(threadIdx.x), tile = static_cast<int32_t>(blockDim.x);
  const int64_t row = blockIdx.x;
  const int32_t head = static_cast<int32_t>(blockIdx.y);
  const int32_t kv_head = kv_head_of(p.a, head);
  const paged_cache &cache = p.a.cache;
  const row_keys keys = keys_seen(p, row);
  const float k_scale = k_scale_of(cache, kv_head), v_scale = v_scale_of(cache, kv_head);
  const float slope = p.slopes != nullptr ? p.slopes[head] : 0.0f;
  const uint32_t phase = sparse_phase(p, head);
  const row_tree tree = tree_of_row(p, keys, row);

  const int64_t query = query_offset(p.a, row, head);
  for (int32_t d = thread; d < p.a.D; d += tile)
    q[d] = to_float(*element_at<Q>(p.a.q, query + d));
  for (int32_t d = thread; d < p.a.D_v; d += tile)
    sum[d] = 0.0f; /* read and written by this thread alone */
  if (thread == 0) top[0] = rank_of(-INFINITY);
  __syncthreads(); /* q is written */

  float peak = -INFINITY, total = 0.0f; /* the same in every thread */
  for (int32_t base = keys.first; base <= keys.last; base += tile) {
    const int32_t t = base + thread;
    float score = -INFINITY;
    const int32_t place = t <= keys.last ? place_of(p, tree, t) : -1;
    if (place >= 0 && kept(p, phase, t, keys.last)) {
      const int64_t key = key_offset(cache, keys.request, kv_head, t);
      score = score_of(p, dot_key<KV>(cache, key, p.a.D, q, k_scale), slope, place, tree.last);
      atomicMax(top, rank_of(score)); /* the maximum is that of all keys so far */
    }
    __syncthreads(); /* the maximum is known; the last tile's weights are used up */

    const float new_peak = value_of_rank(top[0]);
    const float shrink = exp_below(peak, new_peak);
    weight[thread] = exp_below(score, new_peak);
    __syncthreads(); /* the weights are written */

    const int32_t end = min(base + tile, keys.last + 1);
    total *= shrink;
    for (int32_t i = 0; i < end - base; ++i)
      total += weight[i];
    for (int32_t d = thread; d < p.a.D_v; d += tile)
      sum[d] = add_values<KV>(cache, keys.request, kv_head, d, base, end, weight, v_scale, sum[d] * shrink);
    peak = new_peak;
  }

  const int64_t at = row * p.a.H + head;
  const sunk_sums sunk = beside_sink(p, head, peak, total);
  for (int32_t d = thread; d < p.a.D_v; d += tile)
    static_cast<Q *>(p.a.out)[at * p.a.D_v + d] = from_float<Q>(normalised(sum[d] * sunk.shrink, sunk.total));
  if (p.lse != nullptr && thread == 0) p.lse[at] = lse_of(peak, total);
}

/* ---- split_keys ------------------------------------------------------------------------------------- */

/* softmax_split: one query row and head, the keys [split * keys_per_split, (split + 1) * keys_per_split):
 * their own result and lse.
 * Grid:   (N rows, splits of the table's capacity, H heads). A split without visible keys returns at once, and the
 *         merge does not read its place. A split whose keys are all masked gives 0 and lse -inf.
 *         Block: D threads: 8 lanes per key for the score, then one thread per channel, D channels at a time.
 * Shared: 1.1 KB: scores, then weights in their place; the maximum of each group of lanes.
 * Align:  as softmax_rows. Arch: any.
 * Limit:  bytes: keys_per_split * (D + D_v) * sizeof(KV) + 4 (D_v + 1) of partial result. */
template <class Q, class KV, int D> __global__ void __launch_bounds__(D, 1024 / D) softmax_split(softmax_params p) {
  constexpr int groups = D / lanes_per_key;
  ASSAY_SHARED(float, weight, keys_per_split);
  ASSAY_SHARED(float, peaks, groups);
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int64_t row = blockIdx.x;
  const int32_t split = static_cast<int32_t>(blockIdx.y);
  const int32_t head = static_cast<int32_t>(blockIdx.z);
  const int32_t kv_head = kv_head_of(p.a, head);
  const paged_cache &cache = p.a.cache;
  const row_keys keys = keys_seen(p, row);
  const int32_t begin = max(split * keys_per_split, keys.first);
  const int32_t end = min((split + 1) * keys_per_split, keys.last + 1);
  if (begin >= end) return;
  const float k_scale = k_scale_of(cache, kv_head), v_scale = v_scale_of(cache, kv_head);
  const float slope = p.slopes != nullptr ? p.slopes[head] : 0.0f;
  const uint32_t phase = sparse_phase(p, head);
  const row_tree tree = tree_of_row(p, keys, row);

  const int32_t lane = thread % lanes_per_key, group = thread / lanes_per_key;
  float q[D / lanes_per_key]; /* this lane's channels */
  load_query_of_lane<Q>(p.a.q, query_offset(p.a, row, head), lane, q);
  float group_peak = -INFINITY;
  for (int32_t t = begin + group; t < end; t += groups) {
    float score = -INFINITY;
    const int32_t place = place_of(p, tree, t);
    if (place >= 0 && kept(p, phase, t, keys.last)) {
      const int64_t key = key_offset(cache, keys.request, kv_head, t);
      score = score_of(p, dot_key_by_lanes<KV>(cache, key, lane, q, k_scale), slope, place, tree.last);
    }
    if (lane == 0) weight[t - begin] = score;
    group_peak = fmaxf(group_peak, score);
  }
  if (lane == 0) peaks[group] = group_peak;
  __syncthreads(); /* the split's scores are written */

  float peak = peaks[0];
  ASSAY_UNROLL
  for (int i = 1; i < groups; ++i)
    peak = fmaxf(peak, peaks[i]);
  for (int32_t i = thread; i < end - begin; i += D)
    weight[i] = exp_below(weight[i], peak);
  __syncthreads(); /* the split's weights are written */

  float total = 0.0f; /* the same in every thread */
  for (int32_t i = 0; i < end - begin; ++i)
    total += weight[i];
  const int64_t at = (row * p.a.H + head) * p.splits + split;
  for (int32_t d = thread; d < p.a.D_v; d += D) {
    const float sum = add_values<KV>(cache, keys.request, kv_head, d, begin, end, weight, v_scale, 0.0f);
    p.partial[at * p.a.D_v + d] = normalised(sum, total);
  }
  if (thread == 0) p.partial_lse[at] = lse_of(peak, total);
}

/* softmax_merge: out = sum_b exp(lse_b - lse) o_b over the splits that hold visible keys, in their order. A split with
 * lse -inf has weight 0; if all have, the output is 0 and lse -inf.
 * Grid: (N rows, H heads, pieces of D channels). Block: D threads, one per channel. Shared: none. Arch: any.
 * Limit: bytes: 4 (D_v + 1) per split. */
template <class Q> __global__ void __launch_bounds__(max_tile) softmax_merge(softmax_params p) {
  const int32_t d = static_cast<int32_t>(blockIdx.z * blockDim.x + threadIdx.x);
  if (d >= p.a.D_v) return;
  const int64_t row = blockIdx.x, at = row * p.a.H + blockIdx.y;
  const row_keys keys = keys_seen(p, row);
  const float *const lse = p.partial_lse + at * p.splits;
  const float *const partial = p.partial + at * p.splits * p.a.D_v + d;
  const int32_t first = keys.first / keys_per_split;
  const int32_t end = keys.last < keys.first ? first : keys.last / keys_per_split + 1;
  float peak = -INFINITY, total = 0.0f, sum = 0.0f;
  for (int32_t b = first; b < end; ++b)
    peak = fmaxf(peak, lse[b]);
  for (int32_t b = first; b < end; ++b) {
    const float w = exp_below(lse[b], peak);
    total += w;
    sum += w * partial[static_cast<int64_t>(b) * p.a.D_v];
  }
  const sunk_sums sunk = beside_sink(p, static_cast<int32_t>(blockIdx.y), peak, total);
  static_cast<Q *>(p.a.out)[at * p.a.D_v + d] = from_float<Q>(normalised(sum * sunk.shrink, sunk.total));
  if (p.lse != nullptr && d == 0) p.lse[at] = lse_of(peak, total);
}

/* ---- launches --------------------------------------------------------------------------------------- */

struct softmax_kernels {
  using plan = softmax_plan;
  static constexpr int32_t floats_beside = 1;
  static assay_status read(const assay_call *call, plan *made, assay_error *error) {
    return softmax_read(call, made, error);
  }

  template <class Q, class KV> static assay_status rows(const softmax_params &p, assay_env *env, assay_error *error) {
    return ASSAY_LAUNCH(error, (softmax_rows<Q, KV>), launch_extent(p.a.N, p.a.H), attention_tile(p.a, max_tile), 0,
                        env->stream, p);
  }

  /* Workspace: partial[N, H, splits, D_v], partial_lse[N, H, splits] of f32. */
  template <class Q, class KV> static assay_status splits(softmax_params p, assay_env *env, assay_error *error) {
    p.partial = static_cast<float *>(env->workspace);
    p.partial_lse = p.partial + p.a.N * p.a.H * p.splits * p.a.D_v;
    const launch_extent grid(p.a.N, p.splits, p.a.H);
    ASSAY_TRY(p.a.D == 64 ? ASSAY_LAUNCH(error, (softmax_split<Q, KV, 64>), grid, 64, 0, env->stream, p)
                          : ASSAY_LAUNCH(error, (softmax_split<Q, KV, 128>), grid, 128, 0, env->stream, p));
    return ASSAY_LAUNCH(error, (softmax_merge<Q>), launch_extent(p.a.N, p.a.H, (p.a.D_v + p.a.D - 1) / p.a.D), p.a.D, 0,
                        env->stream, p);
  }
};

/* K and V are rounded to f32 after dequantisation; scores, p and partials stay in f32. expf and tanhf: 2 ulp. A q . k
 * is spread over four sums per thread, of one thread or of eight. */
constexpr assay_contract contract(int32_t qk_lanes, int32_t split) {
  return {.k = ASSAY_F32,
          .v = ASSAY_F32,
          .exp_ulp = 2.0,
          .qk_lanes = qk_lanes,
          .pv_lanes = 1,
          .keys_per_split = split,
          .zero_p_v = ASSAY_V_SKIPPED,
          .run_to_run = true,
          .renumbering = true,
          .permutation = true,
          .lanes = 1,
          .alone = true};
}
constexpr assay_contract rows_contract = contract(4, 0);
constexpr assay_contract split_contract = contract(4 * lanes_per_key, keys_per_split);

} // namespace
} // namespace ASSAY_NS

#define SPLIT_KEYS                                                                                                     \
  SCHEDULE_VARIANT("softmax_attention", "split_keys", "fills the device at small batch: 256 keys a block",             \
                   "decode,prefill,chunked,mixed", split_contract, split_keys<::ASSAY_NS::softmax_kernels>)
#define DECODE_ROWS                                                                                                    \
  SCHEDULE_VARIANT("softmax_attention", "decode_rows", "the plainest: one block a row and head, any D", "decode",      \
                   rows_contract, decode_rows<::ASSAY_NS::softmax_kernels>)
#define PREFILL_AS_DECODE                                                                                              \
  SCHEDULE_VARIANT("softmax_attention", "prefill_as_decode",                                                           \
                   "ragged batches: every row expanded into a request of one row", "prefill,chunked,mixed",            \
                   rows_contract, prefill_as_decode<::ASSAY_NS::softmax_kernels>)

ASSAY_VARIANTS(softmax_attention, SPLIT_KEYS, DECODE_ROWS, PREFILL_AS_DECODE)
