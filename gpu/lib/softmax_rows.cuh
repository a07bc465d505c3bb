/* softmax_rows.cuh: the softmax of single rows, as softmax_attention_wgmma.cu has it for prompts. Blocks exchange the
 * tiles' maxima. Weights of a tile are rounded under the peak up to this tile. */
#ifndef ASSAY_GPU_LIB_SOFTMAX_ROWS_CUH
#define ASSAY_GPU_LIB_SOFTMAX_ROWS_CUH

#include "gpu/lib/prefill_rows.cuh"
#include "gpu/lib/softmax_tile.cuh"

namespace ASSAY_NS {

struct softmax_rule {
  using params = softmax_params;
  static constexpr int32_t sent = 1;
  static constexpr bool shrinks = true;

  float factor, total; /* total: the sum of weights of lane `thread` mod 4, for head `thread` / 4 */

  /* Returns the peaks of the runs before, by head. */
  template <class Block> static __device__ __forceinline__ float *before_of(const Block &b) {
    return b.template place<float>(b.at.rest);
  }

  template <class Block> __device__ __forceinline__ void start(const Block &b) {
    factor = b.a.scale * softmax_log2_e;
    total = 0.0f;
    if (b.thread < b.G) before_of(b)[b.thread] = -INFINITY;
  }

  /* Sends the maximum of a tile. */
  template <class Block> __device__ __forceinline__ void tell(const Block &b, const single_weigher &w) const {
    float most = -INFINITY;
    ASSAY_ROLLED
    for (int32_t half = 0; half < 2; ++half) {
      const float *const S = b.sixteen_of(w, half);
      ASSAY_UNROLL
      for (int i = 0; i < 16; ++i)
        most = fmaxf(most, 64 * half + i > w.stop ? -INFINITY : S[i]);
    }
    most = group_max<4>(most);
    if (w.j == 0) b.send(b.template place<float>(b.at.tops) + w.tile * b.G + w.of, most);
  }

  /* Computes the peaks up to each tile, and how the sums shrink at it. */
  template <class Block> __device__ __forceinline__ void settle(const Block &b, int32_t run) const {
    const float *const tops = b.template place<float>(b.at.tops);
    for (int32_t number = b.thread; number < b.tiles_in(run) * b.G; number += single_threads) {
      const int32_t tile = number / b.G, of = number % b.G;
      float before = before_of(b)[of];
      for (int32_t i = 0; i < tile; ++i)
        before = fmaxf(before, tops[i * b.G + of]);
      const float peak = fmaxf(before, tops[number]);
      const softmax_peak top(peak, factor);
      b.template place<float>(b.at.peaks)[number] = peak;
      b.template place<float>(b.at.shrinks)[number] = top.shrink(before);
    }
  }

  /* The weights of a lane: 32 of a tile, and their sum. */
  struct lane {
    softmax_peak top;
    float sum;
    template <class Block>
    __device__ __forceinline__ lane(const softmax_rule &rule, const Block &b, const single_weigher &w, int32_t)
        : top(b.template place<float>(b.at.peaks)[w.tile * b.G + w.of], rule.factor), sum(0.0f) {}
    template <class Block> __device__ __forceinline__ void begin(const Block &, const single_weigher &, int32_t) {}
    __device__ __forceinline__ float weight(float score, bool masked) {
      const float weight = top.weight(masked ? -INFINITY : score);
      sum += weight;
      return weight;
    }
    template <class Block> __device__ __forceinline__ void end(const Block &b, const single_weigher &w) const {
      b.send(b.template place<float>(b.at.sums) + (w.tile * b.G + w.of) * 4 + w.j, sum);
    }
  };

  /* Adds a run's sums of weights to the lane's total. */
  template <class Block> __device__ __forceinline__ void collect(const Block &b, int32_t run) {
    if (b.thread >= 4 * b.G) return;
    const int32_t of = b.thread / 4, tiles = b.tiles_in(run);
    const float *const shrinks = b.template place<float>(b.at.shrinks) + of;
    const float *const sums = b.template place<float>(b.at.sums) + b.thread;
    for (int32_t tile = 0; tile < tiles; ++tile)
      total = fmaf(total, shrinks[tile * b.G], sums[tile * 4 * b.G]);
    if (b.thread % 4 == 0) before_of(b)[of] = b.template place<float>(b.at.peaks)[(tiles - 1) * b.G + of];
  }

  template <class Block> __device__ __forceinline__ void finish(const Block &b, int64_t row, float *factors) const {
    if (b.thread >= 4 * b.G) return;
    const int32_t of = b.thread / 4;
    const softmax_end end(b.p.s, b.head + of, before_of(b)[of], group_sum<4>(total), b.a.scale);
    if (b.thread % 4 != 0) return;
    factors[of] = end.factor;
    if (b.rank == 0 && b.p.s.lse != nullptr) b.p.s.lse[row * b.a.H + b.head + of] = end.lse;
  }
};

} // namespace ASSAY_NS
#endif
