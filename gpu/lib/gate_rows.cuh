/* gate_rows.cuh: the gates of single rows, as gate_attention_wgmma.cu has them for prompts. Blocks exchange the last
 * two scores of each tile, which the filter of the next tile reads. */
#ifndef ASSAY_GPU_LIB_GATE_ROWS_CUH
#define ASSAY_GPU_LIB_GATE_ROWS_CUH

#include "gpu/lib/gate_call.h"
#include "gpu/lib/prefill_rows.cuh"

namespace ASSAY_NS {

/* lo = 0, hi = 1, relu_pre, no window, at most three taps. */
struct gate_rule {
  using params = gate_params;
  static constexpr int32_t sent = 2;
  static constexpr bool shrinks = false, sums = false;

  float tap[3]; /* times the scale */

  /* Returns the last two scores of the runs before `run`, by head. */
  template <class Block> static __device__ __forceinline__ float *before_of(const Block &b, int32_t run) {
    return b.template place<float>(b.at.rest) + (run & 1) * 2 * b.G;
  }

  template <class Block> __device__ __forceinline__ void start(const Block &b) {
    ASSAY_UNROLL
    for (int j = 0; j < 3; ++j)
      tap[j] = j < b.p.s.F ? b.p.s.taps[j] * b.a.scale : 0.0f;
    if (b.thread < 2 * b.G) before_of(b, 0)[b.thread] = 0.0f;
  }

  /* Sends the last two scores of a tile. Those of keys that are not there are read by no tile. */
  template <class Block>
  __device__ __forceinline__ void tell(const Block &b, int32_t run, int32_t own, int32_t of) const {
    const float *const S = b.score(of, own * single_tile + single_tile - 16) + 14;
    float *const to = b.template place<float>(b.at.tops) + 2 * (b.tile_of(own) * b.G + of);
    const bool whole = b.last_of(run, own) >= single_tile - 1;
    b.send(to, whole ? fmaxf(S[0], 0.0f) : 0.0f);
    b.send(to + 1, whole ? fmaxf(S[1], 0.0f) : 0.0f);
  }

  /* Keeps the last two scores of this run for the next. */
  template <class Block> __device__ __forceinline__ void settle(const Block &b, int32_t run) const {
    const int32_t last = 2 * (b.tiles_in(run) - 1) * b.G;
    if (b.thread < 2 * b.G) before_of(b, run + 1)[b.thread] = b.template place<float>(b.at.tops)[last + b.thread];
  }

  template <class Block>
  __device__ __forceinline__ void weigh(const Block &b, int32_t run, const single_four &f, float (&w)[4]) const {
    float r2 = 0.0f, r1 = 0.0f; /* the two scores to the left */
    if (f.first == 0) {
      const float *const left = f.tile > 0 ? b.template place<float>(b.at.tops) + 2 * ((f.tile - 1) * b.G + f.of)
                                           : before_of(b, run) + 2 * f.of;
      r2 = left[0];
      r1 = left[1];
    } else if (f.stop >= 0) {
      const int32_t token = f.own * single_tile + f.first;
      r2 = fmaxf(*b.score(f.of, token - 2), 0.0f);
      r1 = fmaxf(*b.score(f.of, token - 1), 0.0f);
    }
    ASSAY_UNROLL
    for (int e = 0; e < 4; ++e) {
      const float r = fmaxf(f.score[e], 0.0f), rest = fmaf(tap[1], r1, tap[2] * r2);
      const float weight = fma_saturate(tap[0], r, rest);
      r2 = r1;
      r1 = r;
      w[e] = e > f.stop ? 0.0f : weight;
    }
  }

  template <class Block> __device__ __forceinline__ void collect(const Block &, int32_t) const {}

  template <class Block> __device__ __forceinline__ void finish(const Block &b, int64_t, float *factors) const {
    if (b.thread < b.G) factors[b.thread] = b.p.s.gamma[b.head + b.thread];
  }
};

} // namespace ASSAY_NS
#endif
