/* rowwise.cuh: kernels that make each element of a row from a few others: four neighbouring channels a thread, in one
 * load or store where base, row stride and width allow it, else element by element. */
#ifndef ASSAY_GPU_LIB_ROWWISE_CUH
#define ASSAY_GPU_LIB_ROWWISE_CUH

#include "gpu/lib/launch.h"
#include "gpu/lib/types.cuh"
#include "gpu/lib/vec.cuh"

namespace ASSAY_NS {

/* Rows in pieces of 4 * threads channels: block = row * pieces + piece. */
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

/* Is every quad of a tensor of such rows aligned to its own size? NULL: nothing is there to be loaded. */
inline bool rowwise_quads(const void *data, int64_t row, int64_t element_bytes) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(4 * element_bytes) == 0 && row % 4 == 0;
}

/* The row of this block and the first channel of this thread. */
__device__ __forceinline__ int64_t rowwise_row(int32_t pieces) {
  return static_cast<int64_t>(blockIdx.x) / pieces;
}
__device__ __forceinline__ int32_t rowwise_channel(int32_t pieces) {
  const int32_t piece = static_cast<int32_t>(static_cast<int64_t>(blockIdx.x) % pieces);
  return 4 * (piece * static_cast<int32_t>(blockDim.x) + static_cast<int32_t>(threadIdx.x));
}

/* On the CPU a quad beside its own size would be moved all the same; on a GPU it is a fault. */
template <class T> __device__ __forceinline__ void expect_quad(const T *address, bool quads) {
#ifdef ASSAY_SIMT
  if (quads && reinterpret_cast<uintptr_t>(address) % (4 * sizeof(T)) != 0)
    assay_simt->fault("a quad's address is not a multiple of its size", __FILE__, __LINE__);
#else
  (void)address;
  (void)quads;
#endif
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

/* quads: `to` is a multiple of 4 elements; else four scalar stores. */
template <class T> __device__ __forceinline__ void store_quad(T *to, const quad<T> &from, bool quads) {
  expect_quad(to, quads);
#ifdef ASSAY_SIMT
  memcpy(to, from.element, sizeof from.element);
#else
  if (quads && sizeof(T) == 4) {
    uint4 word;
    memcpy(&word, &from, sizeof(T) == 4 ? sizeof word : 0);
    *reinterpret_cast<uint4 *>(to) = word;
  } else if (quads && sizeof(T) == 2) {
    uint2 word;
    memcpy(&word, &from, sizeof(T) == 2 ? sizeof word : 0);
    *reinterpret_cast<uint2 *>(to) = word;
  } else {
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      to[i] = from.element[i];
  }
#endif
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

/* f32 throughout; sums on `lanes` running sums; no atomics: the same bits from run to run, and whatever the order of
 * rows. */
constexpr assay_contract rowwise_contract(double function_ulp, int32_t lanes) {
  return {ASSAY_NONE, ASSAY_NONE,         ASSAY_NONE, ASSAY_NONE, ASSAY_NONE, function_ulp, 1,          1,    0,
          0.0,        ASSAY_V_MULTIPLIED, true,       true,       true,       lanes,        ASSAY_NONE, true, 0};
}

} // namespace ASSAY_NS
#endif
