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
  static constexpr bool shrinks = false;

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

  template <class Block> __device__ __forceinline__ void tell(const Block &b, const single_weigher &w) const {
    if (w.j != 3) return;
    const float *const S = b.sixteen_of(w, 1);
    float *const to = b.template place<float>(b.at.tops) + 2 * (w.tile * b.G + w.of);
    b.send(to, fmaxf(S[14], 0.0f));
    b.send(to + 1, fmaxf(S[15], 0.0f));
  }

  /* Keeps the last two scores of this run for the next. */
  template <class Block> __device__ __forceinline__ void settle(const Block &b, int32_t run) const {
    const int32_t last = 2 * (b.tiles_in(run) - 1) * b.G;
    if (b.thread < 2 * b.G) before_of(b, run + 1)[b.thread] = b.template place<float>(b.at.tops)[last + b.thread];
  }

  struct lane {
    const float (&tap)[3];
    int32_t run;
    float r2, r1; /* the two scores to the left */
    template <class Block>
    __device__ __forceinline__ lane(const gate_rule &rule, const Block &, const single_weigher &, int32_t run_)
        : tap(rule.tap), run(run_), r2(0.0f), r1(0.0f) {}
    template <class Block>
    __device__ __forceinline__ void begin(const Block &b, const single_weigher &w, int32_t half) {
      if (half == 0 && w.j == 0) {
        const float *const left = w.tile > 0 ? b.template place<float>(b.at.tops) + 2 * ((w.tile - 1) * b.G + w.of)
                                             : before_of(b, run) + 2 * w.of;
        r2 = left[0];
        r1 = left[1];
      } else {
        const int32_t token = w.own * single_tile + 64 * half + 16 * w.j;
        r2 = fmaxf(*b.score(w.of, token - 2), 0.0f);
        r1 = fmaxf(*b.score(w.of, token - 1), 0.0f);
      }
    }
    __device__ __forceinline__ float weight(float score, bool masked) {
      const float r = fmaxf(score, 0.0f), rest = fmaf(tap[1], r1, tap[2] * r2);
      const float weight = fma_saturate(tap[0], r, rest);
      r2 = r1;
      r1 = r;
      return masked ? 0.0f : weight;
    }
    template <class Block> __device__ __forceinline__ void end(const Block &, const single_weigher &) const {}
  };

  template <class Block> __device__ __forceinline__ void collect(const Block &, int32_t) const {}

  template <class Block> __device__ __forceinline__ void finish(const Block &b, int64_t, float *factors) const {
    if (b.thread < b.G) factors[b.thread] = b.p.s.gamma[b.head + b.thread];
  }
};

} // namespace ASSAY_NS
#endif
