/* layers_gate.cuh: gate_attention in the kernel that has all layers of a decode step (layers.cuh). Scores are
 * rectified, filtered by up to three taps along the keys and clipped. They are the weights of a sum, which nothing
 * normalises.
 *
 *   z_t = w0 r_t + w1 r_t-1 + w2 r_t-2, with r = max(score, 0) and r = 0 before the first key
 *   p_t = min(max(z_t, low), high)
 *
 * A warp has 16 keys of a chunk, and its first two need scores of the warp before it. The rectified scores of a chunk
 * are therefore in shared memory, after those of the two keys before it. The workers meet once per chunk. A chunk's
 * scores have two places, used in turn. A place is written again only when the workers have met twice. */
#ifndef ASSAY_GPU_LIB_LAYERS_GATE_CUH
#define ASSAY_GPU_LIB_LAYERS_GATE_CUH

#include "gpu/lib/layers_attention.cuh"

namespace ASSAY_NS {

/* Returns the gate's numbers in a layer: the taps in 4 places, then gamma of each head. */
template <class S> __device__ __forceinline__ const float *layers_gates(const layers_params &p, int64_t layer) {
  return reinterpret_cast<const float *>(p.norms + layer * S::norms + S::at_gate);
}

/* Returns the weight of a key: the clipped sum of its own rectified score and those of the two keys before. */
__device__ __forceinline__ float layers_gate_weight(const layers_params &p, const float4 &taps, float own, float before,
                                                    float first) {
  const float z = taps.x * own + (taps.y * before + taps.z * first);
  return fminf(fmaxf(z, p.low), p.high);
}

/* Rectifies the scores of a span's two keys before it: the last of a box of their own. */
template <class S, class M>
__device__ __forceinline__ void layers_gate_begin(const layers_params &p, M &m, layers_place<S> &place,
                                                  const layers_span &of, const uint32_t (&q)[S::channels / 16][2],
                                                  int warp, int lane) {
  const bool back = layers_looks_back<S>(of);
  float score[2][4] = {};
  if (back) layers_await<S>(m, place, 1, lane);
  if (warp == 0 && back) layers_scores<S>(score, m.ring[place.at], q, lane);
  if (warp == 0 && lane % 4 == 0 && lane / 4 >= S::box_keys - 2) ASSAY_UNROLL
  for (int h = 0; h < S::group; ++h)
    m.rect[0][h][lane / 4 - (S::box_keys - 2)] = back ? fmaxf((score[0][h] + score[1][h]) * p.scale, 0.0f) : 0.0f;
  if (back) layers_give_back<S>(m, place, 1, lane);
}

/* Walks over the keys of a span, as the ring has them. Where the unit ends, m.score of each head becomes the new key's
 * weight. */
template <class S, class M>
__device__ __forceinline__ void layers_gate_walk(const layers_params &p, M &m, layers_softmax<S> &all,
                                                 layers_place<S> &place, const layers_span &of, int64_t layer, int warp,
                                                 int lane) {
  const float4 taps = *reinterpret_cast<const float4 *>(layers_gates<S>(p, layer));
  const int tile = warp * 16, key = tile + lane / 4, count = of.last - of.first;
  const bool owns = lane % 4 == 0;
  uint32_t q[S::channels / 16][2];
  layers_load_heads<S>(m, q, lane);
  layers_gate_begin<S>(p, m, place, of, q, warp, lane);
  int now = 0;
  ASSAY_ROLLED
  for (int first = 0; first < count; first += S::chunk_keys) {
    const int left = count - first, slots = left > S::slot_keys ? 2 : 1;
    const int slot = tile / S::slot_keys, offset = tile % S::slot_keys * S::key_bytes;
    const bool on = tile < left;
    float score[2][4] = {}, rect[S::group][2], weights[S::group][2];
    uint32_t b[2];
    layers_await<S>(m, place, 2 * slots, lane);
    if (on) layers_scores<S>(score, m.ring[place.ahead(slot).at] + offset, q, lane);
    ASSAY_UNROLL
    for (int h = 0; h < S::group; ++h)
      ASSAY_UNROLL
    for (int i = 0; i < 2; ++i) {
      const bool there = owns && key + 8 * i < left;
      rect[h][i] = there ? fmaxf((score[0][2 * i + h] + score[1][2 * i + h]) * p.scale, 0.0f) : 0.0f;
      if (there) m.rect[now][h][2 + key + 8 * i] = rect[h][i];
    }
    layers_meet<S>(); /* the chunk's scores are written, and those of the chunk before are read */
    if (left > S::chunk_keys && warp == S::warps - 1 && lane < 2 * S::group)
      m.rect[1 - now][lane / 2][lane % 2] = m.rect[now][lane / 2][S::chunk_keys + lane % 2];
    ASSAY_UNROLL
    for (int h = 0; h < S::group; ++h)
      ASSAY_UNROLL
    for (int i = 0; i < 2; ++i) {
      const bool there = owns && key + 8 * i < left;
      const float *const before = m.rect[now][h] + key + 8 * i; /* two keys before, and one */
      weights[h][i] = there ? layers_gate_weight(p, taps, rect[h][i], before[1], before[0]) : 0.0f;
    }
    if (on) {
      layers_put_weights<S>(m, weights, warp, lane, b);
      layers_take_values<S>(all, m.ring[place.ahead(slots + slot).at] + offset, b, left - tile, lane);
    }
    layers_give_back<S>(m, place, 2 * slots, lane);
    now = 1 - now;
  }
  if (!of.ends) return;
  /* The last chunk's scores, or the two before the span if it has no keys. */
  layers_meet<S>();
  const int last = count == 0 ? 0 : (count - 1) % S::chunk_keys + 1, place_of = count == 0 ? 0 : 1 - now;
  for (int h = S::warps - 1 - warp; h < S::group; h += S::warps) {
    const float *const before = m.rect[place_of][h] + last;
    if (lane == 0) m.score[h] = layers_gate_weight(p, taps, fmaxf(m.score[h], 0.0f), before[1], before[0]);
  }
}

} // namespace ASSAY_NS
#endif
