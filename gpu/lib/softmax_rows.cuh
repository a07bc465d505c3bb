/* softmax_rows.cuh: the softmax of single rows, as softmax_attention_wgmma.cu has it for prompts. Weights of a tile are
 * rounded under the peak up to this tile. */
#ifndef ASSAY_GPU_LIB_SOFTMAX_ROWS_CUH
#define ASSAY_GPU_LIB_SOFTMAX_ROWS_CUH

#include "gpu/lib/prefill_single.cuh"
#include "gpu/lib/softmax_tile.cuh"

namespace ASSAY_NS {

struct softmax_rule {
  using params = softmax_params;
  static constexpr bool shrinks = true, has_peak = true;

  float factor, peak; /* peak: of the tiles so far */

  template <class Block>
  __device__ __forceinline__ explicit softmax_rule(const Block &b)
      : factor(b.a.scale * softmax_log2_e), peak(-INFINITY) {}

  /* Hides keys after the row. */
  static __device__ __forceinline__ void hide(float (&w)[32], int32_t stop) {
    ASSAY_UNROLL
    for (int i = 0; i < 32; ++i)
      if (single_token(i) > stop) w[i] = -INFINITY;
  }

  /* Turns a lane's 32 scores of a tile into weights. */
  __device__ __forceinline__ single_note weigh(float (&w)[32], int32_t stop) {
    float tops[4] = {peak, -INFINITY, -INFINITY, -INFINITY}; /* a maximum has no order */
    hide(w, stop);
    ASSAY_UNROLL
    for (int i = 0; i < 32; ++i)
      tops[i % 4] = fmaxf(tops[i % 4], w[i]);
    return weigh_below(w, groups_max<4>(fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3]))));
  }

  /* The same, where the peaks of the tile's four runs are known. */
  __device__ __forceinline__ single_note weigh(float (&w)[32], int32_t stop, const float *tops) {
    const float before = peak;
    pass(nullptr, tops);
    const float most = peak;
    peak = before;
    hide(w, stop);
    return weigh_below(w, most);
  }

  /* Takes notice of a tile whose weights are made elsewhere. */
  __device__ __forceinline__ void pass(const float *, const float *tops) {
    const float4 four = *reinterpret_cast<const float4 *>(tops);
    peak = fmaxf(peak, fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w)));
  }

  __device__ __forceinline__ single_note weigh_below(float (&w)[32], float most) {
    const softmax_peak top(most, factor);
    single_note note = {0.0f, top.shrink(peak), most, 0.0f};
    peak = most;
    ASSAY_UNROLL
    for (int i = 0; i < 32; ++i) {
      w[i] = top.weight(w[i]);
      note.sum += w[i];
    }
    return note;
  }

  /* The sum of a lane's weights over all tiles. */
  struct sum {
    float total = 0.0f, peak = -INFINITY;
    __device__ __forceinline__ void add(const single_note &note) {
      total = fmaf(total, note.shrink, note.sum);
      peak = note.peak;
    }
    /* Returns the factor of the sums of head `of`, and stores its lse if `tells`. */
    template <class Block>
    __device__ __forceinline__ float factor(const Block &b, int64_t row, int32_t of, bool tells) const {
      const softmax_end end(b.p.s, b.head + of, peak, groups_sum<4>(total), b.a.scale);
      if (tells && b.p.s.lse != nullptr) b.p.s.lse[row * b.a.H + b.head + of] = end.lse;
      return end.factor;
    }
  };
};

} // namespace ASSAY_NS
#endif
