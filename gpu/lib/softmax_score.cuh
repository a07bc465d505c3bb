/* softmax_score.cuh: the way from one q . k to its weight in softmax_attention, in f32 and base e: soft cap, ALiBi, the
 * block-sparse mask, weights and their sum. */
#ifndef ASSAY_GPU_LIB_SOFTMAX_SCORE_CUH
#define ASSAY_GPU_LIB_SOFTMAX_SCORE_CUH

#include "gpu/lib/rows.cuh"
#include "gpu/lib/softmax_call.h"

namespace ASSAY_NS {

/* Returns a row's first key that its chunk leaves, of those from `first` on. */
__device__ __forceinline__ int32_t first_of_chunk(const softmax_params &p, int32_t first, int32_t last) {
  return p.chunk > 0 && last >= 0 ? max(first, last - last % p.chunk) : first;
}

/* A row's place in the tree of its request's new tokens, or its bits of a mask. Otherwise only `last` has a meaning. */
struct row_tree {
  int32_t cached, own, last; /* number of old keys, number of the row, position */
  const int32_t *parent;     /* that of the request's first row; NULL: rows in turn */
  const uint8_t *bits;       /* the request's bits; NULL: no mask */
  int64_t first_bit;         /* that of the row's key 0 */
  int32_t keys;              /* the request's number of keys; with a mask only */
};

/* Returns the place of a row under a mask: the request's bits are rows of as many as it has keys, without gaps. */
__device__ __forceinline__ row_tree masked_row(const softmax_params &p, const row_keys &keys, int64_t row) {
  const attention_params &a = p.a;
  if (keys.request >= a.B) return {0, 0, -1, nullptr, nullptr, 0, 0};
  const int64_t first = a.cu_q != nullptr ? a.cu_q[keys.request] : row;
  const int64_t end = a.cu_q != nullptr ? a.cu_q[keys.request + 1] : row + 1;
  const int32_t own = static_cast<int32_t>(row - first), length = a.length[keys.request];
  const int32_t cached = length - static_cast<int32_t>(end - first);
  return {cached, own, cached + own, nullptr, p.mask + p.mask_ptr[keys.request], static_cast<int64_t>(own) * length,
          length};
}

/* Returns whether a row's mask keeps key t. */
__device__ __forceinline__ bool bit_of(const row_tree &row, int32_t t) {
  const int64_t bit = row.first_bit + t;
  return (row.bits[bit >> 3] >> (bit & 7) & 1) != 0;
}

/* Returns the parent of row n, or a negative number. A wrong number that is not below n counts as none. */
__device__ __forceinline__ int32_t parent_of(const int32_t *parent, int32_t n) {
  const int32_t up = parent[n];
  return up < n ? up : -1;
}

__device__ __forceinline__ row_tree tree_of_row(const softmax_params &p, const row_keys &keys, int64_t row) {
  if (p.mask != nullptr) return masked_row(p, keys, row);
  if (p.parent == nullptr || keys.last < 0) return {0, 0, keys.last, nullptr, nullptr, 0, 0};
  const attention_params &a = p.a;
  const int64_t first = a.cu_q != nullptr ? a.cu_q[keys.request] : row;
  const int32_t own = static_cast<int32_t>(row - first);
  row_tree tree = {keys.last - own, own, keys.last - own, p.parent + first, nullptr, 0, 0};
  for (int32_t n = parent_of(tree.parent, own); n >= 0; n = parent_of(tree.parent, n))
    ++tree.last;
  return tree;
}

/* Returns the position of key t, of those of keys_seen, or -1 where the row does not see it. */
__device__ __forceinline__ int32_t place_of(const softmax_params &p, const row_tree &tree, int32_t t) {
  if (tree.bits != nullptr) {
    if (!bit_of(tree, t)) return -1;
  } else if (tree.parent == nullptr) {
    return t;
  }
  int32_t place = t;
  if (tree.parent != nullptr && t >= tree.cached) {
    int32_t n = tree.own;
    for (place = tree.last; n > t - tree.cached; --place)
      n = parent_of(tree.parent, n);
    if (n != t - tree.cached) return -1;
  }
  if (p.a.window > 0 && place <= tree.last - p.a.window) return -1;
  return p.chunk > 0 && place / p.chunk != tree.last / p.chunk ? -1 : place;
}

/* Returns the keys among which are those that a row sees: all of them, before the block-sparse mask and without trees.
 * In a tree window and chunk may hide a new token, too, which place_of tells. A mask may keep keys after the row's
 * own. */
__device__ __forceinline__ row_keys keys_seen(const softmax_params &p, int64_t row) {
  row_keys keys = keys_of_row(p.a, row);
  const row_tree tree = tree_of_row(p, keys, row);
  if (tree.bits != nullptr && tree.last >= 0) keys.last = tree.keys - 1;
  if (tree.parent != nullptr) keys.first = p.a.window > 0 ? max(tree.last - p.a.window + 1, 0) : 0;
  keys.first = first_of_chunk(p, keys.first, tree.last);
  if (tree.parent != nullptr) keys.first = min(keys.first, tree.cached);
  return keys;
}

/* Returns the score of a visible key from q . k. */
__device__ __forceinline__ float score_of(const softmax_params &p, float dot, float slope, int32_t t, int32_t last) {
  float score = dot * p.a.scale;
  if (p.softcap > 0.0f) score = p.softcap * tanhf(score / p.softcap);
  if (p.slopes != nullptr) score += slope * static_cast<float>(t - last);
  return score;
}

/* Returns the phase of this head's vertical stripes. A key block kb is kept if (kb + phase) mod stride = 0. */
__device__ __forceinline__ uint32_t sparse_phase(const softmax_params &p, int32_t head) {
  if (p.sparse_block == 0) return 0;
  const int64_t slide = p.sparse_slide;
  const int64_t by_head = (p.tp_rank * p.a.H + head) * slide + 1;
  const int64_t by_kv_head = (p.tp_rank * p.a.H_kv + kv_head_of(p.a, head)) * -slide + 1;
  return static_cast<uint32_t>((slide >= 0 ? by_head : by_kv_head) % p.sparse_stride);
}

/* Returns whether the block-sparse mask keeps key t for a row whose own position is `last`. */
__device__ __forceinline__ bool kept(const softmax_params &p, uint32_t phase, int32_t t, int32_t last) {
  if (p.sparse_block == 0) return true;
  const int32_t key_block = t / p.sparse_block, query_block = last / p.sparse_block;
  const bool local = key_block > query_block - p.sparse_local;
  const bool stripe = (static_cast<uint32_t>(key_block) + phase) % static_cast<uint32_t>(p.sparse_stride) == 0;
  return local || stripe;
}

/* Returns exp(x - peak) for x <= peak; 0 for x = -inf, even if peak is -inf too. expf is accurate to 2 ulp. */
__device__ __forceinline__ float exp_below(float x, float peak) {
  return x == -INFINITY ? 0.0f : expf(x - peak);
}

/* Returns a weighted sum divided by the sum of its weights, or 0 if there was no key. */
__device__ __forceinline__ float normalised(float sum, float total) {
  return total == 0.0f ? 0.0f : sum / total;
}

/* Returns the sink of a head, of a call that has sinks. */
__device__ __forceinline__ float sink_of(const softmax_params &p, int32_t head) {
  return p.sink_is_bf16 ? to_float(static_cast<const bf16 *>(p.sink)[head]) : static_cast<const float *>(p.sink)[head];
}

/* The sums of a row beside its sink: a weighted sum is multiplied by `shrink`, and divided by `total`. */
struct sunk_sums {
  float shrink, total;
};

/* Returns them for weights relative to `peak` that add up to `total`. Where the sink is larger than the peak, all
 * weights are made relative to the sink. Without a sink nothing changes. */
__device__ __forceinline__ sunk_sums beside_sink(const softmax_params &p, int32_t head, float peak, float total) {
  if (p.sink == nullptr) return {1.0f, total};
  const float sink = sink_of(p, head), top = fmaxf(peak, sink), shrink = exp_below(peak, top);
  return {shrink, total * shrink + exp_below(sink, top)};
}

__device__ __forceinline__ float lse_of(float peak, float total) {
  return total == 0.0f ? -INFINITY : peak + logf(total);
}

/* Return integers in the order of the floats, so that a maximum can be taken by atomicMax. The maximum then does not
 * depend on the order of the threads. */
__device__ __forceinline__ int rank_of(float value) {
  const int bits = static_cast<int>(bits_of(value));
  return bits >= 0 ? bits : bits ^ 0x7FFFFFFF;
}

__device__ __forceinline__ float value_of_rank(int rank) {
  return float_of(static_cast<uint32_t>(rank >= 0 ? rank : rank ^ 0x7FFFFFFF));
}

} // namespace ASSAY_NS
#endif
