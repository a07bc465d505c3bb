/* paged.cuh: keys and values of the paged cache: block look-up, 64-bit offsets, dequantisation, q . k and the sum over
 * V. A request's key t lies in slot t mod block_size of a block. The block's number is entry t / block_size of the
 * request's row of the table. Contiguous keys are one block per request (paged_cache). */
#ifndef ASSAY_GPU_LIB_PAGED_CUH
#define ASSAY_GPU_LIB_PAGED_CUH

#include "gpu/lib/attention.h"
#include "gpu/lib/vec.cuh"
#include "gpu/lib/warp.cuh"

namespace ASSAY_NS {

/* ---- addresses -------------------------------------------------------------------------------------- */

__device__ __forceinline__ int64_t block_of(const paged_cache &cache, int32_t request, int32_t t) {
  const int32_t *row = cache.table + request * cache.table_row;
  return row[t >> cache.block_shift];
}

__device__ __forceinline__ int32_t slot_of(const paged_cache &cache, int32_t t) {
  return t & ((1 << cache.block_shift) - 1);
}

/* Return the offset of channel 0 of a token in K and in V. */
__device__ __forceinline__ int64_t k_offset(const paged_cache &cache, int64_t block, int32_t slot, int32_t kv_head) {
  return block * cache.k_block + kv_head * cache.k_head + slot * cache.k_token;
}

__device__ __forceinline__ int64_t v_offset(const paged_cache &cache, int64_t block, int32_t slot, int32_t kv_head) {
  return block * cache.v_block + kv_head * cache.v_head + slot * cache.v_token;
}

/* Returns the offset of K channel d (a multiple of 4) inside its token. */
__device__ __forceinline__ int64_t k_channel(const paged_cache &cache, int32_t d) {
  return (d >> cache.chunk_shift) * cache.k_chunk + (d & ((1 << cache.chunk_shift) - 1));
}

/* Returns the offset of channel 0 of the request's key t. */
__device__ __forceinline__ int64_t key_offset(const paged_cache &cache, int32_t request, int32_t kv_head, int32_t t) {
  return k_offset(cache, block_of(cache, request, t), slot_of(cache, t), kv_head);
}

/* Return the dequantisation factors, or 1 if the cache has none. */
__device__ __forceinline__ float k_scale_of(const paged_cache &cache, int32_t kv_head) {
  return cache.k_scale != nullptr ? cache.k_scale[kv_head * cache.scale_step] : 1.0f;
}

__device__ __forceinline__ float v_scale_of(const paged_cache &cache, int32_t kv_head) {
  return cache.v_scale != nullptr ? cache.v_scale[kv_head * cache.scale_step] : 1.0f;
}

/* ---- q . k ------------------------------------------------------------------------------------------ */

/* Adds four products of q and K channels d .. d+3 to four sums. */
template <class KV>
__device__ __forceinline__ void dot_quad(const paged_cache &cache, int64_t key, int32_t d, const float *q,
                                         float k_scale, float (&sum)[4]) {
  const quad<KV> k = load_quad(element_at<KV>(cache.k, key + k_channel(cache, d)), cache.quads);
  ASSAY_UNROLL
  for (int e = 0; e < 4; ++e)
    sum[e] += q[e] * dequantise(k.element[e], k_scale);
}

__device__ __forceinline__ float sum_of_quad(const float (&sum)[4]) {
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* Computes q . k in one thread. */
template <class KV>
__device__ __forceinline__ float dot_key(const paged_cache &cache, int64_t key, int32_t D, const float *q,
                                         float k_scale) {
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (int32_t d = 0; d < D; d += 4)
    dot_quad<KV>(cache, key, d, q + d, k_scale, sum);
  return sum_of_quad(sum);
}

/* Lanes that share the q . k of one key. Lane l holds the quads l, l + 8, ... of the query. */
constexpr int lanes_per_key = 8;

template <class Q, int count>
__device__ __forceinline__ void load_query_of_lane(const void *q, int64_t query, int32_t lane, float (&mine)[count]) {
  ASSAY_UNROLL
  for (int i = 0; i < count; ++i)
    mine[i] = to_float(*element_at<Q>(q, query + (i / 4 * lanes_per_key + lane) * 4 + i % 4));
}

/* Computes q . k in a group of lanes and returns it to each of them. Groups of a warp may make different numbers of
 * turns. */
template <class KV, int count>
__device__ __forceinline__ float dot_key_by_lanes(const paged_cache &cache, int64_t key, int32_t lane,
                                                  const float (&mine)[count], float k_scale) {
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  ASSAY_UNROLL
  for (int i = 0; i < count; i += 4)
    dot_quad<KV>(cache, key, i * lanes_per_key + 4 * lane, mine + i, k_scale, sum);
  return group_sum<lanes_per_key>(sum_of_quad(sum));
}

/* ---- the sum over V --------------------------------------------------------------------------------- */

/* Returns sum + the sum over begin <= t < end of weight[t - begin] * V[t][d], in key order. There is one table look-up
 * per block. */
template <class KV>
__device__ __forceinline__ float add_values(const paged_cache &cache, int32_t request, int32_t kv_head, int32_t d,
                                            int32_t begin, int32_t end, const float *weight, float v_scale, float sum) {
  for (int32_t t = begin; t < end;) {
    const int32_t slot = slot_of(cache, t);
    const int32_t stop = min(end, t - slot + (1 << cache.block_shift));
    int64_t value = v_offset(cache, block_of(cache, request, t), slot, kv_head) + d * cache.v_channel;
    for (; t < stop; ++t, value += cache.v_token) {
      const float w = weight[t - begin];
      if (w == 0.0f) continue; /* a key without weight: its V may be anything */
      sum += w * dequantise(*element_at<KV>(cache.v, value), v_scale);
    }
  }
  return sum;
}

} // namespace ASSAY_NS
#endif
