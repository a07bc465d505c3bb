/* gate_rows.cuh: the gates of single rows, as gate_attention_wgmma.cu has them for prompts. The two scores left of a
 * lane's sixteen come from the lane beside it, or from the sixty-four keys before. */
#ifndef ASSAY_GPU_LIB_GATE_ROWS_CUH
#define ASSAY_GPU_LIB_GATE_ROWS_CUH

#include "gpu/lib/gate_call.h"
#include "gpu/lib/prefill_single.cuh"

namespace ASSAY_NS {

/* lo = 0, hi = 1, relu_pre, no window, at most three taps. */
struct gate_rule {
  using params = gate_params;
  static constexpr bool shrinks = false, has_peak = false;

  float tap[3];       /* times the scale */
  float left2, left1; /* the lane's last two scores in the 64 keys before */

  template <class Block> __device__ __forceinline__ explicit gate_rule(const Block &b) : left2(0.0f), left1(0.0f) {
    ASSAY_UNROLL
    for (int j = 0; j < 3; ++j)
      tap[j] = j < b.p.s.F ? b.p.s.taps[j] * b.a.scale : 0.0f;
  }

  /* Turns a lane's 32 scores of a tile into weights. */
  __device__ __forceinline__ single_note weigh(float (&w)[32], int32_t stop) {
    const unsigned lane = lane_id(), neighbour = (lane & 28u) | ((lane + 3) & 3u);
    const bool wraps = (lane & 3u) == 3;
    ASSAY_UNROLL
    for (int half = 0; half < 2; ++half) {
      float *const s = w + 16 * half;
      ASSAY_UNROLL
      for (int i = 0; i < 16; ++i)
        s[i] = fmaxf(s[i], 0.0f);
      float r2 = __shfl_sync(0xffffffffu, wraps ? left2 : s[14], static_cast<int>(neighbour));
      float r1 = __shfl_sync(0xffffffffu, wraps ? left1 : s[15], static_cast<int>(neighbour));
      left2 = s[14];
      left1 = s[15];
      ASSAY_UNROLL
      for (int i = 0; i < 16; ++i) {
        const float r = s[i], rest = fmaf(tap[1], r1, tap[2] * r2);
        s[i] = single_token(16 * half + i) > stop ? 0.0f : fma_saturate(tap[0], r, rest);
        r2 = r1;
        r1 = r;
      }
    }
    return {0.0f, 1.0f, 0.0f, 0.0f};
  }

  __device__ __forceinline__ single_note weigh(float (&w)[32], int32_t stop, const float *) { return weigh(w, stop); }

  /* Takes notice of a tile whose weights are made elsewhere. last: the scores of its last 16 keys. */
  __device__ __forceinline__ void pass(const float *last, const float *) {
    left2 = fmaxf(last[14], 0.0f);
    left1 = fmaxf(last[15], 0.0f);
  }

  struct sum {
    __device__ __forceinline__ void add(const single_note &) {}
    template <class Block> __device__ __forceinline__ float factor(const Block &b, int64_t, int32_t of, bool) const {
      return b.p.s.gamma[b.head + of];
    }
  };
};

} // namespace ASSAY_NS
#endif
