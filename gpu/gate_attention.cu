/* gate_attention.cu: attention through a clipped filter instead of a softmax, over the paged cache.
 *
 *   s_t = scale * (q . k_t),  r_t = max(s_t, 0) or s_t,  z_t = sum_{j < F} w_j r_{t-j},
 *   p_t = gamma_h * min(max(z_t, lo), hi),  out = sum_t p_t v_t        over the keys first <= t <= last of the row
 *
 * with r = 0 left of `first`. Three variants: one block a query row and head (decode_rows), the same over rows that a
 * small kernel expands from a ragged batch (prefill_as_decode), and the key axis split over blocks (split_keys). Sums
 * run in key order inside a split and in split order after it: the same call gives the same bits. V of a key with
 * p = 0 is never read. docs/kernels/gate_attention.md has the arithmetic. */
#include "gpu/lib/attention.h"
#include "gpu/lib/launch.h"
#include "gpu/lib/paged.cuh"
#include "gpu/lib/types.cuh"

namespace ASSAY_NS {
namespace {

constexpr int max_taps = 8;
constexpr int halo = max_taps - 1; /* scores kept left of a tile; only F - 1 of them are used */
constexpr int max_D = 256;
constexpr int max_tile = 128; /* keys of a tile, and threads, of decode_rows */
constexpr int keys_per_split = 256;
constexpr int lanes_per_key = 8;

struct gate_params {
  attention_params a;
  const float *taps, *gamma;
  const int32_t *row_request, *row_last; /* prefill_as_decode: request and last key of each row; else NULL */
  float *partial;                        /* split_keys: [N, H, splits, D] */
  float lo, hi;
  int32_t F, splits;
  bool relu_pre;
};

/* ---- one row, one key ------------------------------------------------------------------------------- */

/* The keys a row sees: first <= t <= last; none where last < first. */
struct row_keys {
  int32_t request, first, last;
};

__device__ __forceinline__ row_keys keys_of_row(const gate_params &p, int64_t row) {
  row_keys keys = {static_cast<int32_t>(row), 0, -1};
  if (p.row_request != nullptr) {
    keys.request = p.row_request[row];
    keys.last = p.row_last[row];
  } else if (p.a.cu_q == nullptr) {
    keys.last = p.a.length[row] - 1;
  } else {
    keys.request = request_of_row(p.a.cu_q, p.a.B, row);
    if (keys.request >= p.a.B) return keys; /* behind every request: sees nothing */
    const int32_t first_row = p.a.cu_q[keys.request];
    const int32_t new_tokens = p.a.cu_q[keys.request + 1] - first_row;
    const int32_t cached = p.a.length[keys.request] - new_tokens;
    keys.last = cached + (static_cast<int32_t>(row) - first_row);
  }
  if (p.a.window > 0) keys.first = max(keys.last - p.a.window + 1, 0);
  return keys;
}

__device__ __forceinline__ int32_t kv_head_of(const gate_params &p, int32_t head) {
  return head / p.a.G;
}

/* Dequantisation factors; 1 where the cache has none. */
__device__ __forceinline__ float k_scale_of(const paged_cache &cache, int32_t kv_head) {
  return cache.k_scale != nullptr ? cache.k_scale[kv_head * cache.scale_step] : 1.0f;
}

__device__ __forceinline__ float v_scale_of(const paged_cache &cache, int32_t kv_head) {
  return cache.v_scale != nullptr ? cache.v_scale[kv_head * cache.scale_step] : 1.0f;
}

/* Physical block of the request's key t. */
__device__ __forceinline__ int64_t block_of(const paged_cache &cache, int32_t request, int32_t t) {
  const int32_t *row = cache.table + request * cache.table_row;
  return row[t >> cache.block_shift];
}

__device__ __forceinline__ int32_t slot_of(const paged_cache &cache, int32_t t) {
  return t & ((1 << cache.block_shift) - 1);
}

__device__ __forceinline__ int64_t key_offset(const paged_cache &cache, int64_t block, int32_t slot, int32_t kv_head) {
  return block * cache.k_block + kv_head * cache.k_head + slot * cache.k_token;
}

__device__ __forceinline__ int64_t value_offset(const paged_cache &cache, int64_t block, int32_t slot,
                                                int32_t kv_head) {
  return block * cache.v_block + kv_head * cache.v_head + slot * cache.v_token;
}

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

/* sum + sum over begin <= t < end of weight[t - begin] * V[t][d], in key order. One table look-up a block. */
template <class KV>
__device__ __forceinline__ float add_values(const gate_params &p, int32_t request, int32_t kv_head, int32_t d,
                                            int32_t begin, int32_t end, const float *weight, float v_scale, float sum) {
  const paged_cache &cache = p.a.cache;
  for (int32_t t = begin; t < end;) {
    const int32_t slot = slot_of(cache, t);
    const int32_t stop = min(end, t - slot + (1 << cache.block_shift));
    int64_t value = value_offset(cache, block_of(cache, request, t), slot, kv_head) + d * cache.v_channel;
    for (; t < stop; ++t, value += cache.v_token) {
      const float w = weight[t - begin];
      if (w == 0.0f) continue; /* a dead key: its V may be anything */
      sum += w * dequantise(*element_at<KV>(cache.v, value), v_scale);
    }
  }
  return sum;
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
  ASSAY_SHARED(float, q, max_D);
  ASSAY_SHARED(float, sum, max_D);
  ASSAY_SHARED(float, scores, 2 * (halo + max_tile));
  ASSAY_SHARED(float, weight, max_tile);
  const int32_t thread = static_cast<int32_t>(threadIdx.x), tile = static_cast<int32_t>(blockDim.x);
  const int64_t row = blockIdx.x;
  const int32_t head = static_cast<int32_t>(blockIdx.y);
  const int32_t kv_head = kv_head_of(p, head);
  const paged_cache &cache = p.a.cache;
  const row_keys keys = keys_of_row(p, row);
  const float k_scale = k_scale_of(cache, kv_head), v_scale = v_scale_of(cache, kv_head);
  const float gamma = p.gamma[head];
  float tap[max_taps];
  load_taps(p, tap);

  const int64_t query = row * p.a.q_row + static_cast<int64_t>(head) * p.a.D;
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
      const int64_t key = key_offset(cache, block_of(cache, keys.request, t), slot_of(cache, t), kv_head);
      float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      for (int32_t d = 0; d < p.a.D; d += 4)
        dot_quad<KV>(cache, key, d, q + d, k_scale, part);
      now[halo + thread] = rectify(p, (part[0] + part[1]) + (part[2] + part[3]));
    }
    __syncthreads(); /* scores of the tile are there; the last tile's weights are used up */

    if (t <= keys.last) weight[thread] = gate(p, tap, gamma, now + halo + thread);
    /* The next tile's left edge. */
    if (thread < halo && keys.last - base >= tile) next[thread] = now[tile + thread];
    __syncthreads(); /* weights are there */

    const int32_t end = min(base + tile, keys.last + 1);
    for (int32_t d = thread; d < p.a.D; d += tile)
      sum[d] = add_values<KV>(p, keys.request, kv_head, d, base, end, weight, v_scale, sum[d]);
    float *const swap = now;
    now = next;
    next = swap;
  }

  const int64_t out = (row * p.a.H + head) * p.a.D;
  for (int32_t d = thread; d < p.a.D; d += tile)
    static_cast<Q *>(p.a.out)[out + d] = from_float<Q>(sum[d]);
}

/* ---- prefill_as_decode ------------------------------------------------------------------------------ */

/* gate_expand: request and last key of every query row, for gate_rows.
 * Grid: (ceil(N / 128)). Block: 128. Shared: none. Arch: any. Limit: 8 bytes written a row. */
__global__ void __launch_bounds__(max_tile) gate_expand(gate_params p, int32_t *row_request, int32_t *row_last) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * max_tile + threadIdx.x;
  if (row >= p.a.N) return;
  const row_keys keys = keys_of_row(p, row);
  row_request[row] = keys.request;
  row_last[row] = keys.last;
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
  constexpr int groups = D / lanes_per_key, quads = D / (4 * lanes_per_key);
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int64_t row = blockIdx.x;
  const int32_t split = static_cast<int32_t>(blockIdx.y);
  const int32_t head = static_cast<int32_t>(blockIdx.z);
  const int32_t kv_head = kv_head_of(p, head);
  const paged_cache &cache = p.a.cache;
  const row_keys keys = keys_of_row(p, row);
  const int32_t begin = max(split * keys_per_split, keys.first);
  const int32_t end = min((split + 1) * keys_per_split, keys.last + 1);
  if (begin >= end) return;
  const int32_t overlap = p.F - 1;
  const int32_t score_begin = max(begin - overlap, keys.first);
  const float k_scale = k_scale_of(cache, kv_head), v_scale = v_scale_of(cache, kv_head);

  /* Lane l of a group holds the quads l, l + 8, ... of the query. The groups of a warp may make different numbers of
   * turns, so the mask of the shuffles names this group's lanes alone. */
  const int32_t lane = thread % lanes_per_key, group = thread / lanes_per_key;
  const unsigned group_lanes = 0xFFu << (group % 4 * lanes_per_key);
  const int64_t query = row * p.a.q_row + static_cast<int64_t>(head) * D;
  float q[4 * quads];
  ASSAY_UNROLL
  for (int i = 0; i < 4 * quads; ++i)
    q[i] = to_float(*element_at<Q>(p.a.q, query + (i / 4 * lanes_per_key + lane) * 4 + i % 4));
  for (int32_t t = score_begin + group; t < end; t += groups) {
    const int64_t key = key_offset(cache, block_of(cache, keys.request, t), slot_of(cache, t), kv_head);
    float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    ASSAY_UNROLL
    for (int i = 0; i < quads; ++i)
      dot_quad<KV>(cache, key, (i * lanes_per_key + lane) * 4, q + 4 * i, k_scale, part);
    float dot = (part[0] + part[1]) + (part[2] + part[3]);
    ASSAY_UNROLL
    for (int step = lanes_per_key / 2; step > 0; step /= 2)
      dot += __shfl_xor_sync(group_lanes, dot, step);
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

  const float sum = add_values<KV>(p, keys.request, kv_head, thread, begin, end, weight, v_scale, 0.0f);
  p.partial[((row * p.a.H + head) * p.splits + split) * D + thread] = sum;
}

/* gate_sum: adds the partial sums of a row and head, in split order, over the splits that hold visible keys.
 * Grid: (N rows, H heads). Block: D threads, one a channel. Shared: none. Arch: any.
 * Limit: bytes: 4 D a split. */
template <class Q> __global__ void __launch_bounds__(max_tile) gate_sum(gate_params p) {
  const int32_t d = static_cast<int32_t>(threadIdx.x);
  const int64_t row = blockIdx.x, at = row * p.a.H + blockIdx.y;
  const row_keys keys = keys_of_row(p, row);
  float sum = 0.0f;
  for (int32_t t = keys.first; t <= keys.last; t += keys_per_split - t % keys_per_split)
    sum += p.partial[(at * p.splits + t / keys_per_split) * p.a.D + d];
  static_cast<Q *>(p.a.out)[at * p.a.D + d] = from_float<Q>(sum);
}

/* ---- launchers -------------------------------------------------------------------------------------- */

assay_status read_call(const assay_call *call, gate_params *p, attention_types *types, assay_error *error) {
  const void *taps, *gamma;
  double lo, hi;
  int64_t relu_pre;
  *p = gate_params();
  ASSAY_TRY(attention_read(call, &p->a, types, error));
  if (!has_types(types->q, types->kv))
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "k_cache: found dtype %s with q %s, which this build leaves out",
                      assay_dtype_name(types->kv), assay_dtype_name(types->q));
  const assay_tensor *const tensor = named_tensor(call, "taps");
  const int64_t F = tensor != NULL && tensor->data != NULL ? tensor->shape[0] : 1; /* absent: refused below */
  ASSAY_TRY(expect_range("F", F, 1, max_taps, 1, error));
  ASSAY_TRY(attention_vector(call, "taps", ASSAY_F32, F, false, &taps, error));
  ASSAY_TRY(attention_vector(call, "gamma", ASSAY_F32, p->a.H, false, &gamma, error));
  ASSAY_TRY(attention_real(call, "lo", 0.0, 3e38, &lo, error));
  ASSAY_TRY(attention_real(call, "hi", lo, 3e38, &hi, error));
  ASSAY_TRY(attention_integer(call, "relu_pre", 0, 1, &relu_pre, error));
  p->taps = static_cast<const float *>(taps);
  p->gamma = static_cast<const float *>(gamma);
  p->F = static_cast<int32_t>(F);
  p->lo = static_cast<float>(lo);
  p->hi = static_cast<float>(hi);
  p->relu_pre = relu_pre != 0;
  return ASSAY_OK;
}

assay_status launch_rows(const gate_params &p, const attention_types &types, assay_env *env, assay_error *error) {
  return with_types(types.q, types.kv, [&](auto q, auto kv) {
    using Q = typename decltype(q)::type;
    using KV = typename decltype(kv)::type;
    return ASSAY_LAUNCH(error, (gate_rows<Q, KV>), launch_extent(p.a.N, p.a.H), attention_tile(p.a, max_tile), 0,
                        env->stream, p);
  });
}

assay_status no_workspace(const assay_call *call, int64_t *bytes, assay_error *error) {
  gate_params p;
  attention_types types;
  *bytes = 0;
  return read_call(call, &p, &types, error);
}

/* decode_rows */

assay_status read_decode(const assay_call *call, gate_params *p, attention_types *types, assay_error *error) {
  ASSAY_TRY(read_call(call, p, types, error));
  if (p->a.cu_q != NULL)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "cu_q: found a tensor, allowed none: one row a request");
  return ASSAY_OK;
}

assay_status supports_decode(const assay_call *call, assay_error *error) {
  gate_params p;
  attention_types types;
  return read_decode(call, &p, &types, error);
}

assay_status launch_decode(const assay_call *call, assay_env *env, assay_error *error) {
  gate_params p;
  attention_types types;
  ASSAY_TRY(read_decode(call, &p, &types, error));
  (void)snprintf(env->path, sizeof env->path, "decode_rows tile=%d D=%d", attention_tile(p.a, max_tile), p.a.D);
  return p.a.N > 0 ? launch_rows(p, types, env, error) : ASSAY_OK;
}

/* prefill_as_decode: workspace row_request[N], row_last[N]. */

assay_status read_prefill(const assay_call *call, gate_params *p, attention_types *types, int64_t *bytes,
                          assay_error *error) {
  ASSAY_TRY(read_call(call, p, types, error));
  *bytes = p->a.N * 2 * static_cast<int64_t>(sizeof(int32_t));
  if (p->a.cu_q == NULL)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "cu_q: found no data, allowed a tensor: rows are expanded by it");
  return ASSAY_OK;
}

assay_status supports_prefill(const assay_call *call, assay_error *error) {
  gate_params p;
  attention_types types;
  int64_t bytes;
  return read_prefill(call, &p, &types, &bytes, error);
}

assay_status workspace_prefill(const assay_call *call, int64_t *bytes, assay_error *error) {
  gate_params p;
  attention_types types;
  *bytes = 0;
  return read_prefill(call, &p, &types, bytes, error);
}

assay_status launch_prefill(const assay_call *call, assay_env *env, assay_error *error) {
  gate_params p;
  attention_types types;
  int64_t bytes;
  ASSAY_TRY(read_prefill(call, &p, &types, &bytes, error));
  ASSAY_TRY(expect_workspace(env, bytes, error));
  (void)snprintf(env->path, sizeof env->path, "prefill_as_decode tile=%d D=%d", attention_tile(p.a, max_tile), p.a.D);
  if (p.a.N == 0) return ASSAY_OK;
  int32_t *const request = static_cast<int32_t *>(env->workspace), *const last = request + p.a.N;
  ASSAY_TRY(
      ASSAY_LAUNCH(error, gate_expand, (p.a.N + max_tile - 1) / max_tile, max_tile, 0, env->stream, p, request, last));
  p.row_request = request;
  p.row_last = last;
  return launch_rows(p, types, env, error);
}

/* split_keys: workspace partial[N, H, splits, D] of f32. */

assay_status read_split(const assay_call *call, gate_params *p, attention_types *types, int64_t *bytes,
                        assay_error *error) {
  ASSAY_TRY(read_call(call, p, types, error));
  if (p->a.D != 64 && p->a.D != 128)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "D: found %d, allowed 64, 128", p->a.D);
  return attention_splits(p->a, keys_per_split, p->a.D, &p->splits, bytes, error);
}

assay_status supports_split(const assay_call *call, assay_error *error) {
  gate_params p;
  attention_types types;
  int64_t bytes;
  return read_split(call, &p, &types, &bytes, error);
}

assay_status workspace_split(const assay_call *call, int64_t *bytes, assay_error *error) {
  gate_params p;
  attention_types types;
  *bytes = 0;
  return read_split(call, &p, &types, bytes, error);
}

assay_status launch_split(const assay_call *call, assay_env *env, assay_error *error) {
  gate_params p;
  attention_types types;
  int64_t bytes;
  ASSAY_TRY(read_split(call, &p, &types, &bytes, error));
  ASSAY_TRY(expect_workspace(env, bytes, error));
  (void)snprintf(env->path, sizeof env->path, "split_keys keys=%d splits=%d D=%d", keys_per_split, p.splits, p.a.D);
  if (p.a.N == 0) return ASSAY_OK;
  p.partial = static_cast<float *>(env->workspace);
  return with_types(types.q, types.kv, [&](auto q, auto kv) {
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
  return {ASSAY_F32, ASSAY_F32, ASSAY_NONE, ASSAY_NONE,      ASSAY_NONE, 0.0,  qk_lanes,
          1,         split,     0.0,        ASSAY_V_SKIPPED, true,       true, true};
}
constexpr assay_contract rows_contract = contract(4, 0);
constexpr assay_contract split_contract = contract(4 * lanes_per_key, keys_per_split);

#ifdef ASSAY_FEW_TYPES
#define GATE_TYPES "f32,bf16|same|nhd,hnd,x|"
#else
#define GATE_TYPES "f32,f16,bf16|same,e4m3,e5m2|nhd,hnd,x|"
#endif

} // namespace
} // namespace ASSAY_NS

#define GATE_VARIANT(name, why, modes, contract, supports, workspace, launch)                                          \
  {                                                                                                                    \
    sizeof(assay_variant), "gate_attention", name ASSAY_VARIANT_SUFFIX, why, ASSAY_DEVICE_NAME, "any",                 \
        GATE_TYPES modes, ::ASSAY_NS::contract, ::ASSAY_NS::supports, ::ASSAY_NS::workspace, ::ASSAY_NS::launch        \
  }
#define SPLIT_KEYS                                                                                                     \
  GATE_VARIANT("split_keys", "fills the device at small batch: 256 keys a block", "decode,prefill,chunked,mixed",      \
               split_contract, supports_split, workspace_split, launch_split)
#define DECODE_ROWS                                                                                                    \
  GATE_VARIANT("decode_rows", "the plainest: one block a row and head, any D", "decode", rows_contract,                \
               supports_decode, no_workspace, launch_decode)
#define PREFILL_AS_DECODE                                                                                              \
  GATE_VARIANT("prefill_as_decode", "ragged batches: every row expanded into a request of one row",                    \
               "prefill,chunked,mixed", rows_contract, supports_prefill, workspace_prefill, launch_prefill)

ASSAY_VARIANTS(gate_attention, SPLIT_KEYS, DECODE_ROWS, PREFILL_AS_DECODE)
