/* layers_attention.cuh: parts of the stage of layers.cuh that has one row and one kv head (layers_attend.cuh). They are
 * norms, rotation and append of its heads, and softmax attention over a span of the row's keys.
 *
 * The keys of earlier tokens come from the ring, in chunks: slots of keys, then slots of values. A warp takes 16 keys
 * of a chunk and has an online softmax of its own. Keys are the rows of an mma, and the heads of the group its columns.
 * The weights of two heads are columns 0 and 1 of the second mma, rounded to bf16. The rest of each weight is in
 * columns 2 and 3. The new token's key and value are in shared memory, and are one more run. */
#ifndef ASSAY_GPU_LIB_LAYERS_ATTENTION_CUH
#define ASSAY_GPU_LIB_LAYERS_ATTENTION_CUH

#include "gpu/lib/layers.cuh"

namespace ASSAY_NS {

/* Returns 2^(x - peak); 0 for x = -inf, even if peak is -inf too. */
__device__ __forceinline__ float layers_power(float x, float peak) {
  return x == -INFINITY ? 0.0f : exp2_approx(x - peak);
}

/* Returns the largest value of the warp, by one instruction: as integers that have the order of the numbers. A NaN may
 * be the largest. */
__device__ __forceinline__ float layers_highest(float x) {
  const int32_t bits = static_cast<int32_t>(bits_of(x)), order = bits ^ (bits >> 31 & 0x7FFFFFFF);
  const int32_t most = __reduce_max_sync(layers_all, order);
  return float_of(static_cast<uint32_t>(most ^ (most >> 31 & 0x7FFFFFFF)));
}

/* Returns where a chunk of 16 bytes of a key lies in its sixteen keys, which are two boxes. row: the key's. */
template <class S> __device__ __forceinline__ int layers_key_at(int row, int span, int chunk) {
  const int at = row % 8 * S::span_bytes + chunk * 16;
  return (row / 8 * S::spans + span) * (8 * S::span_bytes) + (at ^ (at >> 3 & (S::span_bytes - 16)));
}

/* Prepares one head of the row: number 0 and 1 of q, then k, then v. */
template <class S, class M>
__device__ __forceinline__ void layers_head(const layers_params &p, M &m, uint4 *units, const layers_span &of,
                                            int64_t layer, int number, int lane) {
  constexpr int D = S::channels, used = D / 4;
  const int head = number < S::group    ? of.kv_head * S::group + number
                   : number == S::group ? S::heads + of.kv_head
                                        : S::heads + S::kv_heads + of.kv_head;
  const bool on = lane<used, is_value = number> S::group;
  const int channel = (on ? lane : 0) * 4, angle = channel % (D / 2);
  /* These loads do not wait for the words. */
  const bf16 *const norm = p.norms + layer * S::norms + S::at_heads;
  const uint2 g = *reinterpret_cast<const uint2 *>(norm + (number < S::group ? 0 : D) + channel);
  const float gamma = S::gate ? to_float(norm[2 * D + (number < S::group ? 0 : 1)]) : 1.0f;
  const int64_t turn = static_cast<int64_t>(p.positions[of.row]) * (D / 2) + angle;
  const float4 c = *reinterpret_cast<const float4 *>(p.cosine + turn);
  const float4 s = *reinterpret_cast<const float4 *>(p.sine + turn);

  const uint2 *const from =
      reinterpret_cast<const uint2 *>(units + S::at_qkv) + (of.row * S::qkv + head * D + channel) / 4;
  uint32_t asked = 0;
  uint2 word = load_words_8(from);
  while (has_empty(word)) {
    ask_again(&asked);
    word = load_words_8(from);
  }
  __syncwarp();
  if (!is_value) {
    float x[4], weight[4];
    unpack_pair<bf16>(word.x, x[0], x[1]);
    unpack_pair<bf16>(word.y, x[2], x[3]);
    unpack_pair<bf16>(g.x, weight[0], weight[1]);
    unpack_pair<bf16>(g.y, weight[2], weight[3]);
    if constexpr (S::gate) {
      ASSAY_UNROLL
      for (int i = 0; i < 4; ++i)
        x[i] = gamma * layers_clip(x[i] * weight[i]);
    } else {
      const float squares = (x[0] * x[0] + x[1] * x[1]) + (x[2] * x[2] + x[3] * x[3]);
      const float factor = rsqrt_approx(groups_sum<32>(on ? squares : 0.0f) / static_cast<float>(D) + p.eps);
      ASSAY_UNROLL
      for (int i = 0; i < 4; ++i)
        x[i] = x[i] * factor * weight[i];
    }
    const float cosines[4] = {c.x, c.y, c.z, c.w}, sines[4] = {s.x, s.y, s.z, s.w};
    float turned[4];
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float y = to_float(from_float<bf16>(x[i]));
      const float other = __shfl_xor_sync(layers_all, y, used / 2);
      turned[i] = channel < D / 2 ? y * cosines[i] - other * sines[i] : y * cosines[i] + other * sines[i];
    }
    word = make_uint2(pack_pair<bf16>(turned[0], turned[1]), pack_pair<bf16>(turned[2], turned[3]));
  }
  if (on) *reinterpret_cast<uint2 *>(&m.head[number][channel / 2]) = word;
}

/* Writes the new token's key and value to the caches, by the workers. The last box of the row's keys may have the
 * token's place, and has been copied by then. */
template <class S, class M>
__device__ __forceinline__ void layers_append(const layers_params &p, const M &m, const layers_span &of, int64_t layer,
                                              int thread) {
  constexpr int pairs = S::channels / 2;
  const int64_t slot = p.slots[of.row];
  for (int i = S::workers - 1 - thread; i < 2 * pairs && slot >= 0; i += S::workers) {
    bf16 *const pool = (i < pairs ? p.k_pool : p.v_pool) + layer * p.pool_layer;
    reinterpret_cast<uint32_t *>(pool + (slot * S::kv_heads + of.kv_head) * S::channels)[i % pairs] =
        m.head[S::group + i / pairs][i % pairs];
  }
}

/* A warp's online softmax. Lanes hold sums of channels lane / 4 and + 8 of each sixteen, for columns 2 (lane % 4) and
 * + 1. */
template <class S> struct layers_softmax {
  float peak[S::group], total[S::group]; /* total: this lane's part */
  float sum[S::channels / 16][4];
};

/* Multiplies 16 keys in shared memory by the heads, which are columns of an mma. Lanes of column 0 then have both
 * heads' scores of keys lane / 4 and + 8, in two sums. */
template <class S>
__device__ __forceinline__ void layers_scores(float (&score)[2][4], const unsigned char *keys,
                                              const uint32_t (&q)[S::channels / 16][2], int lane) {
  constexpr int per_span = S::span_bytes / 32; /* steps */
  ASSAY_UNROLL
  for (int s = 0; s < S::channels / 16; ++s) {
    uint32_t k[4];
    ldmatrix_x4(k, keys + layers_key_at<S>(lane % 16, s / per_span, s % per_span * 2 + lane / 16));
    mma_m16n8k16<bf16>(score[s % 2], k, q[s]);
  }
}

/* Rounds both heads' weights of 16 keys, and gives them to the warp as the columns of an mma. weights: of keys lane / 4
 * and + 8, in lanes of column 0. */
template <class S, class M>
__device__ __forceinline__ void layers_put_weights(M &m, const float (&weights)[S::group][2], int warp, int lane,
                                                   uint32_t (&b)[2]) {
  uint16_t *const to = m.weight[warp][0] + lane / 4;
  ASSAY_UNROLL
  for (int h = 0; h < S::group; ++h) {
    float rounded[2];
    const uint32_t high = pack_pair<bf16>(weights[h][0], weights[h][1]);
    unpack_pair<bf16>(high, rounded[0], rounded[1]);
    const uint32_t rest = pack_pair<bf16>(weights[h][0] - rounded[0], weights[h][1] - rounded[1]);
    if (lane % 4 != 0) continue;
    to[h * 16] = static_cast<uint16_t>(high);
    to[h * 16 + 8] = static_cast<uint16_t>(high >> 16);
    to[(S::group + h) * 16] = static_cast<uint16_t>(rest);
    to[(S::group + h) * 16 + 8] = static_cast<uint16_t>(rest >> 16);
  }
  __syncwarp();
  b[0] = b[1] = 0u;
  if (lane < 16) {
    memcpy(&b[0], &m.weight[warp][lane / 4][lane % 4 * 2], sizeof b[0]);
    memcpy(&b[1], &m.weight[warp][lane / 4][lane % 4 * 2 + 8], sizeof b[1]);
  }
  __syncwarp(); /* the weights are read before the next keys' are written */
}

/* Takes 16 keys in shared memory, of which the first `count` count. q: the heads as columns of an mma. b: becomes the
 * weights of these keys as the columns of another one. */
template <class S, class M>
__device__ __forceinline__ void layers_take_keys(M &m, layers_softmax<S> &all, const unsigned char *keys,
                                                 const uint32_t (&q)[S::channels / 16][2], float scale, int count,
                                                 int warp, int lane, uint32_t (&b)[2]) {
  float score[2][4] = {}, weights[S::group][2];
  layers_scores<S>(score, keys, q, lane);
  const bool owns = lane % 4 == 0, first_there = owns && lane / 4 < count, second_there = owns && lane / 4 + 8 < count;
  ASSAY_UNROLL
  for (int h = 0; h < S::group; ++h) {
    const float first = first_there ? (score[0][h] + score[1][h]) * scale : -INFINITY;
    const float second = second_there ? (score[0][2 + h] + score[1][2 + h]) * scale : -INFINITY;
    const float peak = fmaxf(all.peak[h], layers_highest(fmaxf(first, second)));
    const float shrink = layers_power(all.peak[h], peak);
    weights[h][0] = layers_power(first, peak);
    weights[h][1] = layers_power(second, peak);
    all.peak[h] = peak;
    all.total[h] = all.total[h] * shrink + (weights[h][0] + weights[h][1]);
    ASSAY_UNROLL
    for (int s = 0; s < S::channels / 16; ++s) {
      all.sum[s][h] *= shrink;
      all.sum[s][2 + h] *= shrink;
    }
  }
  layers_put_weights<S>(m, weights, warp, lane, b);
}

/* Adds weights times values of the same 16 keys. With `some`, those beyond `count` may be anything, NaN too, and count
 * as 0. */
template <class S, bool some>
__device__ __forceinline__ void layers_add_values(layers_softmax<S> &all, const unsigned char *values,
                                                  const uint32_t (&b)[2], int count, int lane) {
  constexpr int per_span = S::span_bytes / 32;
  const auto kept = [&](int key) { return (key < count ? 0xFFFFu : 0u) | (key + 1 < count ? 0xFFFF0000u : 0u); };
  const uint32_t low = kept(lane % 4 * 2), high = kept(lane % 4 * 2 + 8); /* the lane's pairs of keys */
  ASSAY_UNROLL
  for (int s = 0; s < S::channels / 16; ++s) {
    uint32_t v[4];
    ldmatrix_x4_trans(v, values +
                             layers_key_at<S>(lane % 8 + lane / 16 * 8, s / per_span, s % per_span * 2 + lane / 8 % 2));
    if constexpr (some) {
      v[0] &= low;
      v[1] &= low;
      v[2] &= high;
      v[3] &= high;
    }
    mma_m16n8k16<bf16>(all.sum[s], v, b);
  }
}

template <class S>
__device__ __forceinline__ void layers_take_values(layers_softmax<S> &all, const unsigned char *values,
                                                   const uint32_t (&b)[2], int count, int lane) {
  if (count < 16)
    layers_add_values<S, true>(all, values, b, count, lane);
  else
    layers_add_values<S, false>(all, values, b, count, lane);
}

/* Loads the row's heads as columns of an mma. */
template <class S, class M>
__device__ __forceinline__ void layers_load_heads(const M &m, uint32_t (&q)[S::channels / 16][2], int lane) {
  ASSAY_UNROLL
  for (int s = 0; s < S::channels / 16; ++s)
    ASSAY_UNROLL
  for (int i = 0; i < 2; ++i)
    q[s][i] = lane < 8 ? m.head[lane / 4][8 * s + 4 * i + lane % 4] : 0u;
}

/* Walks over `count` keys of a span, as the ring has them. */
template <class S, class M>
__device__ __forceinline__ void layers_walk(const layers_params &p, M &m, layers_softmax<S> &all,
                                            layers_place<S> &place, int count, int warp, int lane) {
  uint32_t q[S::channels / 16][2];
  layers_load_heads<S>(m, q, lane);
  const int tile = warp * 16;
  ASSAY_ROLLED
  for (int first = 0; first < count; first += S::chunk_keys) {
    const int left = count - first, slots = left > S::slot_keys ? 2 : 1;
    const bool on = tile < left;
    const int slot = tile / S::slot_keys, offset = tile % S::slot_keys * S::key_bytes;
    uint32_t b[2];
    layers_await<S>(m, place, 2 * slots, lane);
    if (on) {
      const unsigned char *const values = m.ring[place.ahead(slots + slot).at] + offset;
      layers_take_keys<S>(m, all, m.ring[place.ahead(slot).at] + offset, q, p.scale, left - tile, warp, lane, b);
      layers_take_values<S>(all, values, b, left - tile, lane);
    }
    layers_give_back<S>(m, place, 2 * slots, lane);
  }
}

/* Stores the warp's run where products have their sums. */
template <class S, class M>
__device__ __forceinline__ void layers_put_run(M &m, const layers_softmax<S> &all, int warp, int lane) {
  layers_run<S> &to = reinterpret_cast<layers_run<S> *>(m.sum)[warp];
  ASSAY_UNROLL
  for (int h = 0; h < S::group; ++h) {
    float total = all.total[h]; /* lanes of column 0 have parts */
    ASSAY_UNROLL
    for (int apart = 4; apart < 32; apart *= 2)
      total += __shfl_xor_sync(layers_all, total, apart);
    if (lane == 0) to.peak[h] = all.peak[h];
    if (lane == 0) to.total[h] = total;
    ASSAY_UNROLL
    for (int s = 0; s < S::channels / 16; ++s) {
      if (lane % 4 > 1) continue;
      float *const sum = &to.sum[h][lane % 4][16 * s + lane / 4]; /* columns 2 and 3 have the rest of the weights */
      sum[0] = all.sum[s][h];
      sum[8] = all.sum[s][2 + h];
    }
  }
}

} // namespace ASSAY_NS
#endif
