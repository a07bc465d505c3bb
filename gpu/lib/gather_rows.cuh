/* gather_rows.cuh: selected rows, one after the other in the workspace, as lm_head and lm_head_argmax need them. */
#ifndef ASSAY_GPU_LIB_GATHER_ROWS_CUH
#define ASSAY_GPU_LIB_GATHER_ROWS_CUH

#include "gpu/lib/plain.h"
#include "gpu/lib/ptx_async.cuh"

namespace ASSAY_NS {

struct gather_params {
  const uint4 *x;
  const int32_t *select;
  uint4 *rows;                  /* [R, words] */
  int64_t x_row, x_rows, words; /* in units of 16 bytes */
  unsigned long long *keys;     /* [R], cleared; NULL: none */
};

constexpr int gather_threads = 128;

/* gather_rows: copies the selected rows of x, one block each. A row outside [0, x_rows) gives zeros.
 * Grid:   (R). Block: 128 threads.
 * Shared: none.
 * Align:  16 bytes.
 * Arch:   any.
 * Limit:  bytes: 2 R C sizeof(T). */
[[maybe_unused]] static __global__ void __launch_bounds__(gather_threads) gather_rows(gather_params p) {
  take_turn();
  const int64_t r = blockIdx.x, row = p.select[r];
  const bool there = row >= 0 && row < p.x_rows;
  const uint4 none = {0, 0, 0, 0};
  for (int64_t i = threadIdx.x; i < p.words; i += gather_threads)
    p.rows[r * p.words + i] = there ? p.x[row * p.x_row + i] : none;
  if (p.keys != nullptr && threadIdx.x == 0) p.keys[r] = 0;
}

} // namespace ASSAY_NS

#endif
