/* layers_attend.cuh: the stage of layers.cuh that has one row and one kv head, or a span of its keys. Runs of warps are
 * merged, the new token's too, and pieces of other blocks are joined. */
#ifndef ASSAY_GPU_LIB_LAYERS_ATTEND_CUH
#define ASSAY_GPU_LIB_LAYERS_ATTEND_CUH

#include "gpu/lib/layers_gate.cuh"

namespace ASSAY_NS {

/* A part of a head's result: the peak, the total of the weights, and sums of two channels. */
struct layers_part {
  float peak, total, first, second;
};

template <class S> __device__ __forceinline__ layers_part layers_join(const layers_part &a, const layers_part &b) {
  if constexpr (S::gate) return {0.0f, 0.0f, a.first + b.first, a.second + b.second};
  const float peak = fmaxf(a.peak, b.peak), of_a = layers_power(a.peak, peak), of_b = layers_power(b.peak, peak);
  return {peak, of_a * a.total + of_b * b.total, of_a * a.first + of_b * b.first, of_a * a.second + of_b * b.second};
}

/* Adds the runs of all warps, and the new token's where the unit ends here, for two channels of a head. */
template <class S, class M>
__device__ __forceinline__ layers_part layers_added(const M &m, int head, int channel, bool ends) {
  const layers_run<S> *const run = reinterpret_cast<const layers_run<S> *>(m.sum);
  float first, second;
  unpack_pair<bf16>(ends ? m.head[S::group + 1][channel / 2] : 0u, first, second);
  const float own = ends ? m.score[head] : 0.0f;
  first *= own;
  second *= own;
  ASSAY_UNROLL
  for (int w = 0; w < S::warps; ++w) {
    first += run[w].sum[head][0][channel] + run[w].sum[head][1][channel];
    second += run[w].sum[head][0][channel + 1] + run[w].sum[head][1][channel + 1];
  }
  return {0.0f, 0.0f, first, second};
}

/* Merges the runs of all warps, and the new token's where the unit ends here, for two channels of a head. */
template <class S, class M>
__device__ __forceinline__ layers_part layers_merged(const M &m, int head, int channel, bool ends) {
  if constexpr (S::gate) return layers_added<S>(m, head, channel, ends);
  const layers_run<S> *const run = reinterpret_cast<const layers_run<S> *>(m.sum);
  const float own = ends ? m.score[head] : -INFINITY;
  float peak = own, first, second;
  ASSAY_UNROLL
  for (int w = 0; w < S::warps; ++w)
    peak = fmaxf(peak, run[w].peak[head]);
  float total = layers_power(own, peak);
  unpack_pair<bf16>(ends ? m.head[S::group + 1][channel / 2] : 0u, first, second);
  first *= total;
  second *= total;
  ASSAY_UNROLL
  for (int w = 0; w < S::warps; ++w) {
    const float by = layers_power(run[w].peak[head], peak);
    total += by * run[w].total[head];
    first += by * (run[w].sum[head][0][channel] + run[w].sum[head][1][channel]);
    second += by * (run[w].sum[head][0][channel + 1] + run[w].sum[head][1][channel + 1]);
  }
  return {peak, total, first, second};
}

/* Returns where the words of a piece are: of a head the peak and the total, then pairs of sums. number: the block's, or
 * in the fixed form layers_number. */
template <class S> __device__ __forceinline__ uint2 *layers_piece(uint4 *units, int number, int head) {
  return reinterpret_cast<uint2 *>(units + S::at_pieces + number * S::piece_units) + head * (S::channels + 2) / 2;
}

/* Returns the number of the words of a piece, in the fixed form: of piece 1 and later ones of a unit. */
template <class S> __device__ __forceinline__ int layers_number(int row, int kv_head, int piece) {
  return (row * S::kv_heads + kv_head) * (layers_most_pieces - 1) + piece - 1;
}

/* Asks for `count` pieces from number `block` on, and joins them to `part` in their order. Questions for some of them
 * are under way at once. */
template <class S>
__device__ __forceinline__ void layers_join_pieces(layers_part &part, uint4 *units, int block, int count, int head,
                                                   int channel) {
  constexpr int at_once = 4;
  ASSAY_ROLLED
  for (int k = 0; k < count; k += at_once) {
    uint2 most[at_once], sums[at_once];
    uint32_t asked = 0;
    for (;;) {
      bool empty = false;
      ASSAY_UNROLL
      for (int i = 0; i < at_once; ++i) {
        const uint2 *const from = layers_piece<S>(units, min(block + k + i, block + count - 1), head);
        most[i] = load_words_8(from);
        sums[i] = load_words_8(from + 1 + channel / 2);
      }
      ASSAY_UNROLL
      for (int i = 0; i < at_once; ++i)
        empty = empty || has_empty(most[i]) || has_empty(sums[i]);
      if (!empty) break;
      ask_again(&asked);
    }
    ASSAY_UNROLL
    for (int i = 0; i < at_once; ++i)
      if (k + i < count)
        part =
            layers_join<S>(part, {float_of(most[i].x), float_of(most[i].y), float_of(sums[i].x), float_of(sums[i].y)});
  }
}

/* Computes the score of the new key for one head. */
template <class S, class M>
__device__ __forceinline__ void layers_new_score(const layers_params &p, M &m, int head, int lane) {
  float sum = 0.0f;
  for (int i = lane; i < S::channels / 2; i += 32) {
    float q[2], k[2];
    unpack_pair<bf16>(m.head[head][i], q[0], q[1]);
    unpack_pair<bf16>(m.head[S::group][i], k[0], k[1]);
    sum += q[0] * k[0] + q[1] * k[1];
  }
  sum = groups_sum<32>(sum);
  if (lane == 0) m.score[head] = sum * p.scale;
}

/* Computes the stage for one span. again: the block has had another span in this layer. Else the workers have read the
 * sums of qkv when they meet. stage: counts the uses of the sums. sum: in the fixed form, of the unit's earlier pieces
 * in this block. */
template <class S, class M>
__device__ __forceinline__ void layers_attend(const layers_params &p, M &m, uint4 *units, const layers_span &of,
                                              bool again, int64_t layer, layers_place<S> &place, int warp, int lane,
                                              uint32_t &stage, layers_part &sum) {
  constexpr int pairs = S::channels / 2;
  const int heads = of.ends ? S::group + 2 : S::group, first_head = of.kv_head * S::group;
  if (again) layers_wait(&m.freed, (stage & 1u) ^ 1u); /* the last span's heads and runs are read */
  LAYERS_MARK(stage, 0);
  for (int number = warp; number < heads; number += S::warps)
    layers_head<S>(p, m, units, of, layer, number, lane);
  layers_meet<S>(); /* the row's heads are written */
  LAYERS_MARK(stage, 1);
  for (int h = S::warps - 1 - warp; h < S::group && of.ends; h += S::warps)
    layers_new_score<S>(p, m, h, lane);
  layers_softmax<S> all = {};
  ASSAY_UNROLL
  for (int h = 0; h < S::group; ++h)
    all.peak[h] = -INFINITY;
  if constexpr (S::gate)
    layers_gate_walk<S>(p, m, all, place, of, layer, warp, lane);
  else
    layers_walk<S>(p, m, all, place, of.last - of.first, warp, lane);
  LAYERS_MARK(stage, 2);
  layers_put_run<S>(m, all, warp, lane);
  layers_meet<S>(); /* the runs are written */
  LAYERS_MARK(stage, 3);
  ++stage;
  if (of.ends) layers_append<S>(p, m, of, layer, warp * 32 + lane);
  for (int i = warp * 32 + lane; i < S::group * pairs; i += S::workers) {
    const int head = i / pairs, channel = i % pairs * 2, block = static_cast<int>(blockIdx.x);
    layers_part part = layers_merged<S>(m, head, channel, of.ends);
    if constexpr (S::fixed) {
      if (of.owns && of.piece > 0) part = layers_join<S>(sum, part);
      sum = part;
      if (of.owns && of.others < 0) continue; /* this block has the next piece */
    }
    if (of.owns) {
      const int next = S::fixed ? layers_number<S>(of.row, of.kv_head, of.piece + 1) : block + 1;
      layers_join_pieces<S>(part, units, next, of.others, head, channel);
      const float by = S::gate ? layers_gates<S>(p, layer)[4 + first_head + head] : reciprocal_approx(part.total);
      store_word(layers_pair<S::attended>(units + S::at_attended, of.row, (first_head + head) * S::channels + channel),
                 pack_pair<bf16>(part.first * by, part.second * by));
    } else {
      const int number = S::fixed ? layers_number<S>(of.row, of.kv_head, of.piece) : block;
      uint2 *const to = layers_piece<S>(units, number, head);
      if (channel == 0) store_words_8(to, make_uint2(word_of(part.peak), word_of(part.total)));
      store_words_8(to + 1 + channel / 2, make_uint2(word_of(part.first), word_of(part.second)));
    }
  }
  layers_free_sums(m, lane, stage);
}

/* Writes the results of rows without a request. They have none, but all words are asked for. */
template <class S, int tiles, class M>
__device__ __forceinline__ void layers_attend_none(const M &m, uint4 *units, int thread) {
  constexpr int pairs = S::channels / 2;
  for (int u = static_cast<int>(blockIdx.x); u < 16 * tiles * S::kv_heads; u += S::blocks) {
    const int row = u / S::kv_heads, first_channel = u % S::kv_heads * S::group * S::channels;
    if (m.plan.earlier[row] >= 0) continue;
    for (int i = thread; i < S::group * pairs; i += S::workers)
      store_word(layers_pair<S::attended>(units + S::at_attended, row, first_channel + 2 * i), 0u);
  }
}

} // namespace ASSAY_NS
#endif
