/* prefill_single.cuh: what both kernels of single rows of a ragged prefill share (prefill_few.cuh, prefill_rows.cuh).
 *
 * A step of 16 keys within 64 holds tokens 16 j + 4 s + e, with j and e from 0 to 3, as in a prompt's tile. */
#ifndef ASSAY_GPU_LIB_PREFILL_SINGLE_CUH
#define ASSAY_GPU_LIB_PREFILL_SINGLE_CUH

#include "gpu/lib/paged.cuh"
#include "gpu/lib/ptx_cluster.cuh"
#include "gpu/lib/ptx_mma.cuh"
#include "gpu/lib/rows.cuh"

namespace ASSAY_NS {

constexpr int32_t single_tile = 128, single_half = 64; /* keys */
constexpr int32_t single_heads = 8;

/* Returns the token, counted from a lane's first, of its score number i of a tile. */
__host__ __device__ constexpr int32_t single_token(int32_t i) {
  return i / 16 * single_half + i % 16;
}

/* A lane's report on its weights of a tile: their sum, the factor by which earlier sums shrink, and the peak. */
struct alignas(16) single_note {
  float sum, shrink, peak, none;
};

/* A stage of a ring, and the parity of the phase that fills it. */
struct single_ring {
  int32_t stage;
  uint32_t parity;
  __device__ __forceinline__ void next(int32_t stages) {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
};

/* Returns the blocks side by side that share a kv head's group of heads. */
__host__ __device__ inline int32_t single_sets(const attention_params &a) {
  return (a.G + single_heads - 1) / single_heads;
}

/* Prefetches what a row needs first; it reads nothing. */
__device__ __forceinline__ void single_ask(const attention_params &a, int64_t row) {
  constexpr int32_t entries = 32;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  if (row >= a.B) return;
  if (thread == 0) prefetch_l2(a.cu_q + row);
  if (thread == 1) prefetch_l2(a.length + row);
  if (thread >= 2 && (thread - 2) * entries < a.capacity >> a.cache.block_shift)
    prefetch_l2(a.cache.table + row * a.cache.table_row + (thread - 2) * entries);
}

} // namespace ASSAY_NS
#endif
