/* step.cuh: one decode step of attention that writes its own key and value to the cache. It serves both kinds of
 * attention and every way to compute q, k and v of the step. The block of a row and head sees the step's token in its
 * stored form without reading it back. The block of a group's first head writes it. Thus no block waits for another.
 *
 * A source computes the step's rows: source.q(row, head, d), source.k(row, kv_head, d) and source.v(row, kv_head, d)
 * return a channel. q is f32; k and v have the type of the row. */
#ifndef ASSAY_GPU_LIB_STEP_CUH
#define ASSAY_GPU_LIB_STEP_CUH

#include "gpu/lib/append.cuh"
#include "gpu/lib/launch.h"
#include "gpu/lib/schedules.cuh"

namespace ASSAY_NS {

constexpr int step_max_taps = 8;
constexpr int step_halo = step_max_taps - 1; /* scores kept to the left of a tile */

struct step_params {
  attention_params a;
  const int64_t *slots;
  int64_t pool_slots;
  const float *taps, *gamma; /* gate */
  float lo, hi;
  int32_t F;
  bool relu_pre, softmax;
};

/* The step's token as the cache holds it, for reading: f32[D] each. */
struct step_token {
  float *k, *v;
};

/* Computes q and the stored token of a row and head in shared memory. It writes the token to the cache if this block's
 * head is the first of its group. Every thread takes the channels thread, + threads, ... */
template <class KV, class Source>
__device__ __forceinline__ void make_step(const step_params &p, const Source &source, int64_t row, int32_t head,
                                          float *q, const step_token &token) {
  const paged_cache &cache = p.a.cache;
  const int32_t kv_head = kv_head_of(p.a, head);
  const float k_scale = k_scale_of(cache, kv_head), v_scale = v_scale_of(cache, kv_head);
  const slot_place at = place_of_slot(cache, p.slots[row], p.pool_slots);
  const bool writes = head % p.a.G == 0 && at.block >= 0;
  for (int32_t d = static_cast<int32_t>(threadIdx.x); d < p.a.D; d += static_cast<int32_t>(blockDim.x)) {
    q[d] = source.q(row, head, d);
    const KV k = stored<KV>(source.k(row, kv_head, d), k_scale);
    const KV v = stored<KV>(source.v(row, kv_head, d), v_scale);
    token.k[d] = dequantise(k, k_scale);
    token.v[d] = dequantise(v, v_scale);
    if (writes) {
      const int64_t quad = k_channel(cache, d & ~3) + (d & 3);
      *element_to<KV>(cache.k, k_offset(cache, at.block, at.offset, kv_head) + quad) = k;
      *element_to<KV>(cache.v, v_offset(cache, at.block, at.offset, kv_head) + d * cache.v_channel) = v;
    }
  }
}

/* Returns q . k of the step's token, in the order of dot_key. */
__device__ __forceinline__ float dot_step(const float *q, const float *k, int32_t D) {
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (int32_t d = 0; d < D; d += 4) {
    ASSAY_UNROLL
    for (int e = 0; e < 4; ++e)
      sum[e] += q[d + e] * k[d + e];
  }
  return sum_of_quad(sum);
}

/* Returns q . k of key t <= last. */
template <class KV>
__device__ __forceinline__ float dot_of(const step_params &p, const row_keys &keys, int32_t kv_head, int32_t t,
                                        const float *q, const step_token &token, float k_scale) {
  if (t == keys.last) return dot_step(q, token.k, p.a.D);
  return dot_key<KV>(p.a.cache, key_offset(p.a.cache, keys.request, kv_head, t), p.a.D, q, k_scale);
}

/* Does what add_values does, over base <= t < end, with the step's token included. */
template <class KV>
__device__ __forceinline__ float add_values_of(const step_params &p, const row_keys &keys, int32_t kv_head, int32_t d,
                                               int32_t base, int32_t end, const float *weight, const step_token &token,
                                               float v_scale, float sum) {
  const bool own = end == keys.last + 1;
  sum = add_values<KV>(p.a.cache, keys.request, kv_head, d, base, own ? end - 1 : end, weight, v_scale, sum);
  if (own && weight[keys.last - base] != 0.0f) sum += weight[keys.last - base] * token.v[d];
  return sum;
}

/* gate_step: handles one row and head, with the keys in tiles of blockDim.x. The gate's definition is in
 * gate_attention.cu.
 * Grid:   (N rows, H heads). Block: 32, 64, 96 or 128 threads: one per key for q . k and the gate; then each takes the
 * channels threadIdx.x, + blockDim.x, ... for the sum over V.
 * Shared: 5.6 KB: q, the step's token, two tiles of scores with their halo, weights, sums.
 * Align:  K in quads of 4 elements if cache.quads, else by element; all else by element.
 * Arch:   any.
 * Limit:  bytes: 2 * L * D * sizeof(KV) per row and kv head. */
template <class Q, class KV, class Source>
__global__ void __launch_bounds__(max_tile, 8) gate_step(step_params p, Source source) {
  ASSAY_SHARED(float, q, attention_max_D);
  ASSAY_SHARED(float, sum, attention_max_D);
  ASSAY_SHARED(float, k_step, attention_max_D);
  ASSAY_SHARED(float, v_step, attention_max_D);
  ASSAY_SHARED(float, scores, 2 * (step_halo + max_tile));
  ASSAY_SHARED(float, weight, max_tile);
  const int32_t thread = static_cast<int32_t>(threadIdx.x), tile = static_cast<int32_t>(blockDim.x);
  const int64_t row = blockIdx.x;
  const int32_t head = static_cast<int32_t>(blockIdx.y), kv_head = kv_head_of(p.a, head);
  const row_keys keys = keys_of_row(p.a, row);
  const float k_scale = k_scale_of(p.a.cache, kv_head), v_scale = v_scale_of(p.a.cache, kv_head);
  const step_token token = {k_step, v_step};
  const float gamma = p.gamma[head];
  if (keys.last >= 0) make_step<KV>(p, source, row, head, q, token);
  for (int32_t d = thread; d < p.a.D; d += tile)
    sum[d] = 0.0f; /* read and written only by this thread */
  if (thread < step_halo) scores[thread] = 0.0f;
  __syncthreads(); /* q and the step's token are written */

  float *now = scores, *next = scores + step_halo + max_tile;
  for (int32_t base = keys.first; base <= keys.last; base += tile) {
    const int32_t t = base + thread;
    if (t <= keys.last) {
      const float score = dot_of<KV>(p, keys, kv_head, t, q, token, k_scale) * p.a.scale;
      now[step_halo + thread] = p.relu_pre ? fmaxf(score, 0.0f) : score;
    }
    __syncthreads(); /* the tile's scores are written; the previous tile's weights have been read */

    if (t <= keys.last) {
      float z = 0.0f;
      for (int j = 0; j < p.F; ++j)
        z += p.taps[j] * now[step_halo + thread - j];
      weight[thread] = gamma * fminf(fmaxf(z, p.lo), p.hi);
    }
    /* The next tile's left edge. */
    if (thread < step_halo && keys.last - base >= tile) next[thread] = now[tile + thread];
    __syncthreads(); /* the weights are written */

    const int32_t end = min(base + tile, keys.last + 1);
    for (int32_t d = thread; d < p.a.D; d += tile)
      sum[d] = add_values_of<KV>(p, keys, kv_head, d, base, end, weight, token, v_scale, sum[d]);
    float *const swap = now;
    now = next;
    next = swap;
  }
  const int64_t out = (row * p.a.H + head) * p.a.D;
  for (int32_t d = thread; d < p.a.D; d += tile)
    static_cast<Q *>(p.a.out)[out + d] = from_float<Q>(sum[d]);
}

/* Returns exp(x - peak) for x <= peak; 0 for x = -inf, even if peak is -inf too. expf is accurate to 2 ulp. */
__device__ __forceinline__ float step_exp(float x, float peak) {
  return x == -INFINITY ? 0.0f : expf(x - peak);
}

/* softmax_step: does the same with an online softmax from tile to tile. Every thread takes the maximum over all scores
 * of the tile. Grid, Block, Align, Arch: as gate_step. Shared: 5.1 KB.
 * Limit:  bytes: 2 * L * D * sizeof(KV) per row and kv head. */
template <class Q, class KV, class Source>
__global__ void __launch_bounds__(max_tile, 8) softmax_step(step_params p, Source source) {
  ASSAY_SHARED(float, q, attention_max_D);
  ASSAY_SHARED(float, sum, attention_max_D);
  ASSAY_SHARED(float, k_step, attention_max_D);
  ASSAY_SHARED(float, v_step, attention_max_D);
  ASSAY_SHARED(float, scores, max_tile);
  ASSAY_SHARED(float, weight, max_tile);
  const int32_t thread = static_cast<int32_t>(threadIdx.x), tile = static_cast<int32_t>(blockDim.x);
  const int64_t row = blockIdx.x;
  const int32_t head = static_cast<int32_t>(blockIdx.y), kv_head = kv_head_of(p.a, head);
  const row_keys keys = keys_of_row(p.a, row);
  const float k_scale = k_scale_of(p.a.cache, kv_head), v_scale = v_scale_of(p.a.cache, kv_head);
  const step_token token = {k_step, v_step};
  if (keys.last >= 0) make_step<KV>(p, source, row, head, q, token);
  for (int32_t d = thread; d < p.a.D; d += tile)
    sum[d] = 0.0f; /* read and written only by this thread */
  __syncthreads(); /* q and the step's token are written */

  float peak = -INFINITY, total = 0.0f; /* the same in every thread */
  for (int32_t base = keys.first; base <= keys.last; base += tile) {
    const int32_t t = base + thread, count = min(tile, keys.last + 1 - base);
    if (t <= keys.last) scores[thread] = dot_of<KV>(p, keys, kv_head, t, q, token, k_scale) * p.a.scale;
    __syncthreads(); /* the tile's scores are written; the previous tile's weights have been read */

    float new_peak = peak;
    for (int32_t i = 0; i < count; ++i)
      new_peak = fmaxf(new_peak, scores[i]);
    const float shrink = step_exp(peak, new_peak);
    if (thread < count) weight[thread] = step_exp(scores[thread], new_peak);
    __syncthreads(); /* the weights are written; the scores have been read */

    total *= shrink;
    for (int32_t i = 0; i < count; ++i)
      total += weight[i];
    for (int32_t d = thread; d < p.a.D; d += tile)
      sum[d] = add_values_of<KV>(p, keys, kv_head, d, base, base + count, weight, token, v_scale, sum[d] * shrink);
    peak = new_peak;
  }
  const int64_t out = (row * p.a.H + head) * p.a.D;
  for (int32_t d = thread; d < p.a.D; d += tile)
    static_cast<Q *>(p.a.out)[out + d] = from_float<Q>(total == 0.0f ? 0.0f : sum[d] / total);
}

/* ---- launchers --------------------------------------------------------------------------------------- */

/* Reads what both kinds and all sources have in addition to attention's own parameters: slots, kind, and the gate's
 * parameters. */
inline assay_status read_step(const assay_call *call, const attention_types &types, step_params *p,
                              assay_error *error) {
  const void *taps, *gamma;
  double lo, hi;
  int64_t relu_pre, kind;
  ASSAY_TRY(expect_types(types.q, types.kv, error));
  ASSAY_TRY(read_slots(call, p->a.N, p->a.cache, &p->slots, &p->pool_slots, error));
  ASSAY_TRY(attention_integer(call, "kind", 0, 1, &kind, error));
  p->softmax = kind == 1;
  if (p->softmax) return ASSAY_OK;
  const assay_tensor *const tensor = named_tensor(call, "taps");
  const int64_t F = tensor != NULL && tensor->data != NULL ? tensor->shape[0] : 1; /* absent: refused below */
  ASSAY_TRY(expect_range("F", F, 1, step_max_taps, 1, error));
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

/* The strategy row_and_head (gpu/lib/variant.cuh) of a step operator: append_step or mmha_step. */
template <class Step> struct row_and_head {
  using plan = typename Step::plan;
  static assay_status read(const assay_call *call, plan *made, assay_error *error) {
    return Step::read(call, made, error);
  }
  static void path(const plan &made, assay_env *env) {
    const step_params &p = made.p;
    (void)snprintf(env->path, sizeof env->path, "row_and_head %s tile=%d D=%d", p.softmax ? "softmax" : "gate",
                   attention_tile(p.a, max_tile), p.a.D);
  }
  static assay_status start(plan &made, assay_env *env, assay_error *error) {
    const step_params &p = made.p;
    const launch_extent grid(p.a.N, p.a.H);
    const int32_t threads = attention_tile(p.a, max_tile);
    return with_types(made.types.q, made.types.kv, [&](auto q, auto kv) {
      using Q = typename decltype(q)::type;
      using KV = typename decltype(kv)::type;
      using Source = typename Step::template source<Q>;
      const Source source = {made.rows};
      if (p.softmax)
        return ASSAY_LAUNCH(error, (softmax_step<Q, KV, Source>), grid, threads, 0, env->stream, p, source);
      return ASSAY_LAUNCH(error, (gate_step<Q, KV, Source>), grid, threads, 0, env->stream, p, source);
    });
  }
};

/* K and V are rounded to f32 after dequantisation. Scores, p and q stay in f32. expf errs by 2 ulp at most. A q . k is
 * spread over four sums, the sum over V is one. */
constexpr assay_contract step_contract = {.k = ASSAY_F32,
                                          .v = ASSAY_F32,
                                          .exp_ulp = 2.0,
                                          .qk_lanes = 4,
                                          .pv_lanes = 1,
                                          .zero_p_v = ASSAY_V_SKIPPED,
                                          .run_to_run = true,
                                          .renumbering = true,
                                          .permutation = true,
                                          .lanes = 1,
                                          .alone = true};

#define ROW_AND_HEAD_CLAIMS ASSAY_TYPE_CLAIMS "|nhd,hnd,x|decode"

} // namespace ASSAY_NS
#endif
