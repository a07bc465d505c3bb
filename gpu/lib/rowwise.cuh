/* rowwise.cuh: kernels that compute each element of a row from a few others. A thread has four neighbouring channels,
 * in one load or store if base, row stride and width allow it, else element by element. */
#ifndef ASSAY_GPU_LIB_ROWWISE_CUH
#define ASSAY_GPU_LIB_ROWWISE_CUH

#include "gpu/lib/launch.h"
#include "gpu/lib/types.cuh"
#include "gpu/lib/vec.cuh"

namespace ASSAY_NS {

/* A grid for rows in pieces of 4 * threads channels: block = row * pieces + piece. */
struct rowwise_grid {
  int64_t blocks;
  int32_t threads, pieces;
};

constexpr int rowwise_max_threads = 256;

inline rowwise_grid rowwise_split(int64_t rows, int64_t channels) {
  const int64_t quads = (channels + 3) / 4, warps = (quads + 31) / 32;
  rowwise_grid grid;
  grid.threads = static_cast<int32_t>(warps * 32 < rowwise_max_threads ? warps * 32 : rowwise_max_threads);
  grid.pieces = static_cast<int32_t>((quads + grid.threads - 1) / grid.threads);
  grid.blocks = rows * grid.pieces;
  return grid;
}

/* Returns whether every quad of a tensor of such rows is aligned to its own size. With data NULL there is nothing to
 * load. */
inline bool rowwise_quads(const void *data, int64_t row, int64_t element_bytes) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(4 * element_bytes) == 0 && row % 4 == 0;
}

/* Return the row of this block and the first channel of this thread. */
__device__ __forceinline__ int64_t rowwise_row(int32_t pieces) {
  return static_cast<int64_t>(blockIdx.x) / pieces;
}
__device__ __forceinline__ int32_t rowwise_channel(int32_t pieces) {
  const int32_t piece = static_cast<int32_t>(static_cast<int64_t>(blockIdx.x) % pieces);
  return 4 * (piece * static_cast<int32_t>(blockDim.x) + static_cast<int32_t>(threadIdx.x));
}

/* Up to four channels, `left` of which exist; the others are 0. */
template <class T>
__device__ __forceinline__ void load_channels(const T *from, int32_t left, bool quads, float (&to)[4]) {
  if (left >= 4) {
    expect_quad(from, quads);
    const quad<T> loaded = load_quad(from, quads);
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      to[i] = to_float(loaded.element[i]);
  } else {
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      to[i] = i < left ? to_float(from[i]) : 0.0f;
  }
}

template <class T>
__device__ __forceinline__ void store_channels(T *to, int32_t left, bool quads, const float (&from)[4]) {
  quad<T> rounded;
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    rounded.element[i] = from_float<T>(from[i]);
  if (left >= 4) {
    store_quad(to, rounded, quads);
  } else {
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      if (i < left) to[i] = rounded.element[i];
  }
}

/* Returns the contract: f32 throughout, sums on `lanes` running sums, no atomics. The bits are the same from run to run
 * and for every order of rows. */
constexpr assay_contract rowwise_contract(double function_ulp, int32_t lanes) {
  return {.exp_ulp = function_ulp,
          .qk_lanes = 1,
          .pv_lanes = 1,
          .zero_p_v = ASSAY_V_MULTIPLIED,
          .run_to_run = true,
          .renumbering = true,
          .permutation = true,
          .lanes = lanes,
          .alone = true};
}

} // namespace ASSAY_NS
#endif
