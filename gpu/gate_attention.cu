/* gate_attention.cu: attention through a clipped filter instead of a softmax, over the paged cache.
 *
 *   s_t = scale * (q . k_t),  r_t = max(s_t, 0) or s_t,  z_t = sum_{j < F} w_j r_{t-j},
 *   p_t = gamma_h * min(max(z_t, lo), hi),  out = sum_t p_t v_t        over the keys first <= t <= last of the row
 *
 * with r = 0 left of `first`. Three variants: one block a query row and head (decode_rows), the same over rows that a
 * small kernel expands from a ragged batch (prefill_as_decode), and the key axis split over blocks (split_keys). Sums
 * run in key order inside a split and in split order after it: the same call gives the same bits. V of a key with
 * p = 0 is never read. docs/kernels/gate_attention.md has the arithmetic. */
#include "gpu/lib/gate_call.h"
#include "gpu/lib/launch.h"
#include "gpu/lib/schedules.cuh"

namespace ASSAY_NS {
namespace {

constexpr int halo = max_taps - 1; /* scores kept left of a tile; only F - 1 of them are used */

/* ---- one key ---------------------------------------------------------------------------------------- */

/* r from q . k. */
__device__ __forceinline__ float rectify(const gate_params &p, float dot) {
  const float score = dot * p.a.scale;
  return p.relu_pre ? fmaxf(score, 0.0f) : score;
}

/* p from the scores r[0], r[-1], ... of a key and those left of it. */
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
 * Grid:   (N rows, H heads). Block: 32, 64, 96 or 128 threads: one a key for q . k and the gate, then each takes the
 *         channels threadIdx.x, + blockDim.x, ... for the sum over V.
 * Shared: 3.6 KB: q, two tiles of scores with their halo (the next tile's halo is written while this one is read),
 *         weights, sums.
 * Align:  K in quads of 4 elements if cache.quads, else by element; all else by element.
 * Arch:   any.
 * Limit:  bytes: 2 * L * D * sizeof(KV) a row and kv head; K is read by one thread a key, so its loads do not
 *         coalesce in nhd and hnd: a simple kernel, not a fast one. 8 blocks a multiprocessor leave 64 registers;
 *         left to itself ptxas chooses 32, and spills. */
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
  __syncthreads(); /* q is there */

  float *now = scores, *next = scores + halo + max_tile;
  for (int32_t base = keys.first; base <= keys.last; base += tile) {
    const int32_t t = base + thread;
    if (t <= keys.last) {
      const int64_t key = key_offset(cache, keys.request, kv_head, t);
      now[halo + thread] = rectify(p, dot_key<KV>(cache, key, p.a.D, q, k_scale));
    }
    __syncthreads(); /* scores of the tile are there; the last tile's weights are used up */

    if (t <= keys.last) weight[thread] = gate(p, tap, gamma, now + halo + thread);
    /* The next tile's left edge. */
    if (thread < halo && keys.last - base >= tile) next[thread] = now[tile + thread];
    __syncthreads(); /* weights are there */

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

/* gate_split: one query row and head, the keys [split * 256, split * 256 + 256).
 * Grid:   (N rows, splits of the table's capacity, H heads). A split without visible keys returns at once and the
 *         sum over splits does not look at it. Block: D threads: 8 lanes a key for q . k, then one thread a channel.
 * Shared: 2.1 KB: scores with the halo, weights.
 * Align:  as gate_rows. Arch: any.
 * Limit:  bytes: 2 * 256 * D * sizeof(KV) + 4 D of partial sum. */
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
  __syncthreads(); /* scores of the split are there */

  float tap[max_taps];
  load_taps(p, tap);
  const float gamma = p.gamma[head];
  for (int32_t t = begin + thread; t < end; t += D)
    weight[t - begin] = gate(p, tap, gamma, scores + (t - begin + halo));
  __syncthreads(); /* weights of the split are there */

  const float sum = add_values<KV>(cache, keys.request, kv_head, thread, begin, end, weight, v_scale, 0.0f);
  p.partial[((row * p.a.H + head) * p.splits + split) * D + thread] = sum;
}

/* gate_sum: adds the partial sums of a row and head, in split order, over the splits that hold visible keys.
 * Grid: (N rows, H heads). Block: D threads, one a channel. Shared: none. Arch: any.
 * Limit: bytes: 4 D a split. */
template <class Q> __global__ void __launch_bounds__(max_tile) gate_sum(gate_params p) {
  const int32_t d = static_cast<int32_t>(threadIdx.x);
  const int64_t row = blockIdx.x, at = row * p.a.H + blockIdx.y;
  const row_keys keys = keys_of_row(p.a, row);
  float sum = 0.0f;
  for (int32_t t = keys.first; t <= keys.last; t += keys_per_split - t % keys_per_split)
    sum += p.partial[(at * p.splits + t / keys_per_split) * p.a.D + d];
  static_cast<Q *>(p.a.out)[at * p.a.D + d] = from_float<Q>(sum);
}

/* ---- launchers -------------------------------------------------------------------------------------- */

assay_status launch_rows(const gate_plan &plan, assay_env *env, assay_error *error) {
  const gate_params &p = plan.p;
  return with_types(plan.types.q, plan.types.kv, [&](auto q, auto kv) {
    using Q = typename decltype(q)::type;
    using KV = typename decltype(kv)::type;
    return ASSAY_LAUNCH(error, (gate_rows<Q, KV>), launch_extent(p.a.N, p.a.H), attention_tile(p.a, max_tile), 0,
                        env->stream, p);
  });
}

/* decode_rows */

assay_status plan_decode(const assay_call *call, gate_plan *plan, assay_error *error) {
  ASSAY_TRY(gate_read(call, plan, error));
  return expect_decode(plan->p.a, error);
}

assay_status launch_decode(const assay_call *call, assay_env *env, assay_error *error) {
  gate_plan plan;
  ASSAY_TRY(plan_decode(call, &plan, error));
  const attention_params &a = plan.p.a;
  (void)snprintf(env->path, sizeof env->path, "decode_rows tile=%d D=%d%s", attention_tile(a, max_tile), a.D,
                 form_of(a));
  return a.N > 0 ? launch_rows(plan, env, error) : ASSAY_OK;
}

/* prefill_as_decode */

assay_status plan_prefill(const assay_call *call, gate_plan *plan, assay_error *error) {
  ASSAY_TRY(gate_read(call, plan, error));
  return expect_ragged(plan->p.a, &plan->workspace, error);
}

assay_status launch_prefill(const assay_call *call, assay_env *env, assay_error *error) {
  gate_plan plan;
  ASSAY_TRY(plan_prefill(call, &plan, error));
  ASSAY_TRY(expect_workspace(env, plan.workspace, error));
  const attention_params &a = plan.p.a;
  (void)snprintf(env->path, sizeof env->path, "prefill_as_decode tile=%d D=%d%s", attention_tile(a, max_tile), a.D,
                 form_of(a));
  if (a.N == 0) return ASSAY_OK;
  ASSAY_TRY(launch_expand_rows(&plan.p.a, env, error));
  return launch_rows(plan, env, error);
}

/* split_keys: workspace partial[N, H, splits, D] of f32. */

assay_status plan_split(const assay_call *call, gate_plan *plan, assay_error *error) {
  ASSAY_TRY(gate_read(call, plan, error));
  return expect_split(plan->p.a, plan->p.a.D, &plan->p.splits, &plan->workspace, error);
}

assay_status launch_split(const assay_call *call, assay_env *env, assay_error *error) {
  gate_plan plan;
  ASSAY_TRY(plan_split(call, &plan, error));
  ASSAY_TRY(expect_workspace(env, plan.workspace, error));
  gate_params &p = plan.p;
  (void)snprintf(env->path, sizeof env->path, "split_keys keys=%d splits=%d D=%d%s", keys_per_split, p.splits, p.a.D,
                 form_of(p.a));
  if (p.a.N == 0) return ASSAY_OK;
  p.partial = static_cast<float *>(env->workspace);
  return with_types(plan.types.q, plan.types.kv, [&](auto q, auto kv) {
    using Q = typename decltype(q)::type;
    using KV = typename decltype(kv)::type;
    const launch_extent grid(p.a.N, p.splits, p.a.H);
    ASSAY_TRY(p.a.D == 64 ? ASSAY_LAUNCH(error, (gate_split<Q, KV, 64>), grid, 64, 0, env->stream, p)
                          : ASSAY_LAUNCH(error, (gate_split<Q, KV, 128>), grid, 128, 0, env->stream, p));
    return ASSAY_LAUNCH(error, (gate_sum<Q>), launch_extent(p.a.N, p.a.H), p.a.D, 0, env->stream, p);
  });
}

/* K and V are rounded to f32 after dequantisation; scores, p and partial sums stay in f32; no exp. A q . k is spread
 * over four sums a thread, of one thread or of eight. */
constexpr assay_contract contract(int32_t qk_lanes, int32_t split) {
  return {ASSAY_F32, ASSAY_F32,       ASSAY_NONE, ASSAY_NONE, ASSAY_NONE, 0.0, qk_lanes,   1,    split,
          0.0,       ASSAY_V_SKIPPED, true,       true,       true,       1,   ASSAY_NONE, true, 0};
}
constexpr assay_contract rows_contract = contract(4, 0);
constexpr assay_contract split_contract = contract(4 * lanes_per_key, keys_per_split);

} // namespace
} // namespace ASSAY_NS

#define SPLIT_KEYS                                                                                                     \
  ATTENTION_VARIANT("gate_attention", "split_keys", "fills the device at small batch: 256 keys a block",               \
                    "decode,prefill,chunked,mixed", split_contract, gate_params, plan_split, launch_split)
#define DECODE_ROWS                                                                                                    \
  ATTENTION_VARIANT("gate_attention", "decode_rows", "the plainest: one block a row and head, any D", "decode",        \
                    rows_contract, gate_params, plan_decode, launch_decode)
#define PREFILL_AS_DECODE                                                                                              \
  ATTENTION_VARIANT("gate_attention", "prefill_as_decode",                                                             \
                    "ragged batches: every row expanded into a request of one row", "prefill,chunked,mixed",           \
                    rows_contract, gate_params, plan_prefill, launch_prefill)

ASSAY_VARIANTS(gate_attention, SPLIT_KEYS, DECODE_ROWS, PREFILL_AS_DECODE)
