/* gate_attention.cu: attention through a clipped filter instead of a softmax, over the paged cache.
 *
 *   s_t = scale * (q . k_t),  r_t = max(s_t, 0) or s_t,  z_t = sum_{j < F} w_j r_{t-j},
 *   p_t = gamma_h * min(max(z_t, lo), hi),  out = sum_t p_t v_t        over the keys first <= t <= last of the row
 *
 * with r = 0 left of `first`. Three variants:
 *
 *   decode_rows         one block per query row and head
 *   prefill_as_decode   the same over rows that a small kernel expands from a ragged batch
 *   split_keys          the key axis split over blocks
 *
 * Sums run in key order inside a split and in split order after it: the same call gives the same bits. V of a
 * key with p = 0 is never read. docs/kernels/gate_attention.md has the arithmetic. */
#include "gpu/lib/gate_call.h"
#include "gpu/lib/launch.h"
#include "gpu/lib/schedules.cuh"

namespace ASSAY_NS {
namespace {

constexpr int halo = max_taps - 1; /* scores kept left of a tile; only F - 1 of them are used */

/* ---- one key ---------------------------------------------------------------------------------------- */

/* Returns r from q . k. */
__device__ __forceinline__ float rectify(const gate_params &p, float dot) {
  const float score = dot * p.a.scale;
  return p.relu_pre ? fmaxf(score, 0.0f) : score;
}

/* Returns p from the scores r[0], r[-1], ... of a key and the keys left of it. */
__device__ __forceinline__ float gate(const gate_params &p, const float (&tap)[max_taps], float gamma, const float *r) {
  float z = 0.0f;
  ASSAY_UNROLL
  for (int j = 0; j < max_taps; ++j)
    if (j < p.F) z += tap[j] * r[-j];
  const float clipped = fminf(fmaxf(z, p.lo), p.hi);
  return gamma * clipped;
}

__device__ __forceinline__ void load_taps(const gate_params &p, float (&tap)[max_taps]) {
  ASSAY_UNROLL
  for (int j = 0; j < max_taps; ++j)
    tap[j] = j < p.F ? p.taps[j] : 0.0f;
}

/* ---- decode_rows ------------------------------------------------------------------------------------ */

/* gate_rows: one query row and head, the keys in tiles of blockDim.x.
 * Grid:   (N rows, H heads). Block: 32, 64, 96 or 128 threads: one per key for q . k and the gate, then each takes the
 *         channels threadIdx.x, + blockDim.x, ... for the sum over V.
 * Shared: 3.6 KB: q, two tiles of scores with their halo (the next tile's halo is written while this one is read),
 *         weights, sums.
 * Align:  K in quads of 4 elements if cache.quads, else by element; all else by element.
 * Arch:   any.
 * Limit:  bytes: 2 * L * D * sizeof(KV) per row and kv head; K is read by one thread per key, so its loads do
 *         not coalesce in nhd and hnd: a simple kernel, not a fast one. 8 blocks per multiprocessor leave 64
 *         registers; without that bound ptxas chooses 32, and spills. */
template <class Q, class KV> __global__ void __launch_bounds__(max_tile, 8) gate_rows(gate_params p) {
  ASSAY_SHARED(float, q, attention_max_D);
  ASSAY_SHARED(float, sum, attention_max_D);
  ASSAY_SHARED(float, scores, 2 * (halo + max_tile));
  ASSAY_SHARED(float, weight, max_tile);
  const int32_t thread = static_cast<int32_t>(threadIdx.x), tile = static_cast<int32_t>(blockDim.x);
  const int64_t row = blockIdx.x;
  const int32_t head = static_cast<int32_t>(blockIdx.y);
  const int32_t kv_head = kv_head_of(p.a, head);
  const paged_cache &cache = p.a.cache;
  const row_keys keys = keys_of_row(p.a, row);
  const float k_scale = k_scale_of(cache, kv_head), v_scale = v_scale_of(cache, kv_head);
  const float gamma = p.gamma[head];
  float tap[max_taps];
  load_taps(p, tap);

  const int64_t query = query_offset(p.a, row, head);
  for (int32_t d = thread; d < p.a.D; d += tile) {
    q[d] = to_float(*element_at<Q>(p.a.q, query + d));
    sum[d] = 0.0f; /* read and written by this thread alone */
  }
  if (thread < halo) scores[thread] = 0.0f;
  __syncthreads(); /* q is written */

  float *now = scores, *next = scores + halo + max_tile;
  for (int32_t base = keys.first; base <= keys.last; base += tile) {
    const int32_t t = base + thread;
    if (t <= keys.last) {
      const int64_t key = key_offset(cache, keys.request, kv_head, t);
      now[halo + thread] = rectify(p, dot_key<KV>(cache, key, p.a.D, q, k_scale));
    }
    __syncthreads(); /* the tile's scores are written; the last tile's weights are used up */

    if (t <= keys.last) weight[thread] = gate(p, tap, gamma, now + halo + thread);
    /* The next tile's left edge. */
    if (thread < halo && keys.last - base >= tile) next[thread] = now[tile + thread];
    __syncthreads(); /* the weights are written */

    const int32_t end = min(base + tile, keys.last + 1);
    for (int32_t d = thread; d < p.a.D; d += tile)
      sum[d] = add_values<KV>(cache, keys.request, kv_head, d, base, end, weight, v_scale, sum[d]);
    float *const swap = now;
    now = next;
    next = swap;
  }

  const int64_t out = (row * p.a.H + head) * p.a.D;
  for (int32_t d = thread; d < p.a.D; d += tile)
    static_cast<Q *>(p.a.out)[out + d] = from_float<Q>(sum[d]);
}

/* ---- split_keys ------------------------------------------------------------------------------------- */

/* gate_split: one query row and head, the keys [split * keys_per_split, (split + 1) * keys_per_split).
 * Grid:   (N rows, splits of the table's capacity, H heads). A split without visible keys returns at once, and the
 *         sum over splits does not read its place.
 *         Block: D threads: 8 lanes per key for q . k, then one thread per channel.
 * Shared: 2.1 KB: scores with the halo, weights.
 * Align:  as gate_rows. Arch: any.
 * Limit:  bytes: 2 * keys_per_split * D * sizeof(KV) + 4 D of partial sum. */
template <class Q, class KV, int D> __global__ void __launch_bounds__(D) gate_split(gate_params p) {
  ASSAY_SHARED(float, scores, halo + keys_per_split);
  ASSAY_SHARED(float, weight, keys_per_split);
  constexpr int groups = D / lanes_per_key;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int64_t row = blockIdx.x;
  const int32_t split = static_cast<int32_t>(blockIdx.y);
  const int32_t head = static_cast<int32_t>(blockIdx.z);
  const int32_t kv_head = kv_head_of(p.a, head);
  const paged_cache &cache = p.a.cache;
  const row_keys keys = keys_of_row(p.a, row);
  const int32_t begin = max(split * keys_per_split, keys.first);
  const int32_t end = min((split + 1) * keys_per_split, keys.last + 1);
  if (begin >= end) return;
  const int32_t overlap = p.F - 1;
  const int32_t score_begin = max(begin - overlap, keys.first);
  const float k_scale = k_scale_of(cache, kv_head), v_scale = v_scale_of(cache, kv_head);

  const int32_t lane = thread % lanes_per_key, group = thread / lanes_per_key;
  float q[D / lanes_per_key]; /* this lane's channels */
  load_query_of_lane<Q>(p.a.q, query_offset(p.a, row, head), lane, q);
  for (int32_t t = score_begin + group; t < end; t += groups) {
    const int64_t key = key_offset(cache, keys.request, kv_head, t);
    const float dot = dot_key_by_lanes<KV>(cache, key, lane, q, k_scale);
    if (lane == 0) scores[t - begin + halo] = rectify(p, dot);
  }
  /* r = 0 left of the first key. */
  if (thread < halo && begin - halo + thread < score_begin) scores[thread] = 0.0f;
  __syncthreads(); /* the split's scores are written */

  float tap[max_taps];
  load_taps(p, tap);
  const float gamma = p.gamma[head];
  for (int32_t t = begin + thread; t < end; t += D)
    weight[t - begin] = gate(p, tap, gamma, scores + (t - begin + halo));
  __syncthreads(); /* the split's weights are written */

  const float sum = add_values<KV>(cache, keys.request, kv_head, thread, begin, end, weight, v_scale, 0.0f);
  p.partial[((row * p.a.H + head) * p.splits + split) * D + thread] = sum;
}

/* gate_sum: adds the partial sums of a row and head, in split order, over the splits that hold visible keys.
 * Grid: (N rows, H heads). Block: D threads, one per channel. Shared: none. Arch: any.
 * Limit: bytes: 4 D per split. */
template <class Q> __global__ void __launch_bounds__(max_tile) gate_sum(gate_params p) {
  const int32_t d = static_cast<int32_t>(threadIdx.x);
  const int64_t row = blockIdx.x, at = row * p.a.H + blockIdx.y;
  const row_keys keys = keys_of_row(p.a, row);
  float sum = 0.0f;
  for (int32_t t = keys.first; t <= keys.last; t += keys_per_split - t % keys_per_split)
    sum += p.partial[(at * p.splits + t / keys_per_split) * p.a.D + d];
  static_cast<Q *>(p.a.out)[at * p.a.D + d] = from_float<Q>(sum);
}

/* ---- launches --------------------------------------------------------------------------------------- */

struct gate_kernels {
  using plan = gate_plan;
  static constexpr int32_t floats_beside = 0;
  static assay_status read(const assay_call *call, plan *made, assay_error *error) {
    return gate_read(call, made, error);
  }

  template <class Q, class KV> static assay_status rows(const gate_params &p, assay_env *env, assay_error *error) {
    return ASSAY_LAUNCH(error, (gate_rows<Q, KV>), launch_extent(p.a.N, p.a.H), attention_tile(p.a, max_tile), 0,
                        env->stream, p);
  }

  /* Workspace: partial[N, H, splits, D] of f32. */
  template <class Q, class KV> static assay_status splits(gate_params p, assay_env *env, assay_error *error) {
    p.partial = static_cast<float *>(env->workspace);
    const launch_extent grid(p.a.N, p.splits, p.a.H);
    ASSAY_TRY(p.a.D == 64 ? ASSAY_LAUNCH(error, (gate_split<Q, KV, 64>), grid, 64, 0, env->stream, p)
                          : ASSAY_LAUNCH(error, (gate_split<Q, KV, 128>), grid, 128, 0, env->stream, p));
    return ASSAY_LAUNCH(error, (gate_sum<Q>), launch_extent(p.a.N, p.a.H), p.a.D, 0, env->stream, p);
  }
};

/* K and V are rounded to f32 after dequantisation; scores, p and partial sums stay in f32. There is no exp. A q . k is
 * spread over four sums per thread, of one thread or of eight. */
constexpr assay_contract contract(int32_t qk_lanes, int32_t split) {
  return {.k = ASSAY_F32,
          .v = ASSAY_F32,
          .exp_ulp = 0.0,
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
  SCHEDULE_VARIANT("gate_attention", "split_keys", "fills the device at small batch: 256 keys a block",                \
                   "decode,prefill,chunked,mixed", split_contract, split_keys<::ASSAY_NS::gate_kernels>)
#define DECODE_ROWS                                                                                                    \
  SCHEDULE_VARIANT("gate_attention", "decode_rows", "the plainest: one block a row and head, any D", "decode",         \
                   rows_contract, decode_rows<::ASSAY_NS::gate_kernels>)
#define PREFILL_AS_DECODE                                                                                              \
  SCHEDULE_VARIANT("gate_attention", "prefill_as_decode",                                                              \
                   "ragged batches: every row expanded into a request of one row", "prefill,chunked,mixed",            \
                   rows_contract, prefill_as_decode<::ASSAY_NS::gate_kernels>)

ASSAY_VARIANTS(gate_attention, SPLIT_KEYS, DECODE_ROWS, PREFILL_AS_DECODE)
