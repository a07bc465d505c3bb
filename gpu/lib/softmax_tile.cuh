/* softmax_tile.cuh: the arithmetic of the online softmax of a prompt's row, shared by all schedules that give a row the
 * same bits (softmax_attention_wgmma.cu, softmax_rows.cuh). */
#ifndef ASSAY_GPU_LIB_SOFTMAX_TILE_CUH
#define ASSAY_GPU_LIB_SOFTMAX_TILE_CUH

#include "gpu/lib/softmax_score.cuh"

namespace ASSAY_NS {

constexpr float softmax_largest_scaled = 1024.0f; /* in base 2, rounded to within 2^-15 */
constexpr float softmax_log2_e = 1.44269504088896341f;

/* A peak of unscaled scores, and the weights under it: exp2(factor * score - factor * peak). The rounding of a scaled
 * peak is the same for all weights of the row, and negligible beside 1. With larger peaks, differences are scaled: the
 * largest weight is 1, however large the scores are. */
struct softmax_peak {
  float factor, less, from;
  __device__ __forceinline__ softmax_peak(float peak, float factor_) : factor(factor_) {
    const float top = peak == -INFINITY ? 0.0f : peak;
    less = !(fabsf(top * factor) <= softmax_largest_scaled) ? top : 0.0f;
    from = __fmul_rn(top - less, factor);
  }
  __device__ __forceinline__ float weight(float score) const { return exp2_approx(fmaf(score - less, factor, -from)); }
  /* Returns the factor by which sums under the peak `before` shrink. It is 1 where the peak stays. */
  __device__ __forceinline__ float shrink(float before) const {
    return exp2_approx(__fadd_rn(__fmul_rn(before - less, factor), -from));
  }
};

/* The end of a row: the factor of its sums, and the logarithm of the sum of weights. unit: of a score in base e. */
struct softmax_end {
  float factor, lse;
  __device__ __forceinline__ softmax_end(const softmax_params &p, int32_t head, float peak, float sum, float unit) {
    const bool seen = sum > 0.0f;
    const float largest = __fmul_rn(peak, unit);
    const sunk_sums sunk = beside_sink(p, head, largest, sum);
    factor = seen ? __fdiv_rn(sunk.shrink, sunk.total) : 0.0f;
    lse = seen ? __fadd_rn(largest, logf(sum)) : -INFINITY;
  }
};

} // namespace ASSAY_NS
#endif
