/* warp_dots.h: the sum contract of kernels with one warp per dot product (docs/last-bit.md). */
#ifndef ASSAY_GPU_LIB_WARP_DOTS_H
#define ASSAY_GPU_LIB_WARP_DOTS_H

#include "assay/sums.h"

namespace ASSAY_NS {

constexpr int warp_dots_step = 128; /* terms that a warp takes at a time, four per lane */

/* Returns the place in K of the product that is summed as number i. The parts are lanes. A lane has four neighbours of
 * every 128. warp_sum adds lanes 16 apart first, then 8 apart and so on. Part r is the lane with the bits of r in
 * reverse, so that these lanes are neighbouring parts. */
inline int64_t warp_dots_order(int64_t i, int64_t K) {
  const int64_t each = K / 32, part = i / each, at = i % each;
  int64_t lane = 0;
  for (int bit = 0; bit < 5; ++bit)
    lane |= (part >> bit & 1) << (4 - bit);
  return at / 4 * warp_dots_step + 4 * lane + at % 4;
}

/* Declares the sum of a warp. */
inline void warp_dots_sums(assay_sums *sums) {
  sums->unit = ASSAY_SUM_FMA;
  sums->parts = 32;
  sums->join = ASSAY_JOIN_PAIRWISE;
  sums->pad = warp_dots_step;
  sums->order = warp_dots_order;
}

} // namespace ASSAY_NS
#endif
