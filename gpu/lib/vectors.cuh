/* vectors.cuh: 16 bytes of neighbouring channels in one load or store. It is for kernels whose thread owns one vector
 * of channels in one row or in several. Rows whose bases, distances or widths are not whole vectors are left to
 * variants that move quads or elements.
 *
 *   ASSAY_TRY(expect_vectors(call, "C", p->C, p->type, error));     launcher: declines what is not whole vectors
 *   const vector_grid grid = split_vectors(N, C, type, 4);           threads, pieces of a row, rows per thread */
#ifndef ASSAY_GPU_LIB_VECTORS_CUH
#define ASSAY_GPU_LIB_VECTORS_CUH

#include <type_traits>

#include "gpu/lib/plain.h"
#include "gpu/lib/ptx_async.cuh"
#include "gpu/lib/types.cuh"

#ifndef ASSAY_SIMT
#include <cuda_bf16.h>
#endif

namespace ASSAY_NS {

/* Elements per vector. */
template <class T> constexpr int vector_width = static_cast<int>(16 / sizeof(T));

/* ---- moving ------------------------------------------------------------------------------------------ */

/* Faults if the address is not a multiple of 16. On the CPU any address would do; on a GPU it is a fault. */
__device__ __forceinline__ void expect_vector(const void *address) {
#ifdef ASSAY_SIMT
  if (reinterpret_cast<uintptr_t>(address) % 16 != 0)
    assay_simt->fault("a vector's address is not a multiple of 16", __FILE__, __LINE__);
#else
  (void)address;
#endif
}

template <class T> __device__ __forceinline__ uint4 load_vector(const T *from) {
  expect_vector(from);
#ifdef ASSAY_SIMT
  uint4 vector;
  memcpy(&vector, from, sizeof vector);
  return vector;
#else
  return *reinterpret_cast<const uint4 *>(from);
#endif
}

template <class T> __device__ __forceinline__ void store_vector(T *to, const uint4 &vector) {
  expect_vector(to);
#ifdef ASSAY_SIMT
  memcpy(to, &vector, sizeof vector);
#else
  *reinterpret_cast<uint4 *>(to) = vector;
#endif
}

/* ---- converting -------------------------------------------------------------------------------------- */

/* Returns two elements rounded and packed, the first in the low half. */
template <class T> __device__ __forceinline__ uint32_t round_pair(float low, float high) {
#ifndef ASSAY_SIMT
  if constexpr (std::is_same<T, bf16>::value) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t word;
    memcpy(&word, &pair, sizeof word);
    return word;
  }
#endif
  return static_cast<uint32_t>(from_float<T>(low).bits) | static_cast<uint32_t>(from_float<T>(high).bits) << 16;
}

template <class T> __device__ __forceinline__ void split_word(uint32_t word, float *to) {
  if constexpr (sizeof(T) == 4) {
    to[0] = float_of(word);
  } else {
    to[0] = to_float(T{static_cast<uint16_t>(word)});
    to[1] = to_float(T{static_cast<uint16_t>(word >> 16)});
  }
}

template <class T> __device__ __forceinline__ void split_vector(const uint4 &vector, float (&to)[vector_width<T>]) {
  constexpr int step = vector_width<T> / 4;
  split_word<T>(vector.x, to);
  split_word<T>(vector.y, to + step);
  split_word<T>(vector.z, to + 2 * step);
  split_word<T>(vector.w, to + 3 * step);
}

/* Returns a vector of elements rounded to the type. */
template <class T> __device__ __forceinline__ uint4 round_vector(const float (&from)[vector_width<T>]) {
  if constexpr (sizeof(T) == 4)
    return make_uint4(bits_of(from[0]), bits_of(from[1]), bits_of(from[2]), bits_of(from[3]));
  else
    return make_uint4(round_pair<T>(from[0], from[1]), round_pair<T>(from[2], from[3]), round_pair<T>(from[4], from[5]),
                      round_pair<T>(from[6], from[7]));
}

/* Stores `count` elements rounded to the type: 4, 8, 16 or 32 bytes. The address must be a multiple of that size, or of
 * 16. */
template <class T, int count> __device__ __forceinline__ void store_rounded(T *to, const float (&from)[count]) {
  if constexpr (count > vector_width<T>) {
    static_assert(count == 2 * vector_width<T>, "two vectors at most");
    float half[count / 2];
    ASSAY_UNROLL
    for (int part = 0; part < 2; ++part) {
      ASSAY_UNROLL
      for (int i = 0; i < count / 2; ++i)
        half[i] = from[part * (count / 2) + i];
      store_vector(to + part * (count / 2), round_vector<T>(half));
    }
  } else if constexpr (count == vector_width<T>) {
    store_vector(to, round_vector<T>(from));
  } else {
    static_assert(sizeof(T) == 2 && count == 4, "half a vector of a 16-bit type");
    const uint2 word = make_uint2(round_pair<T>(from[0], from[1]), round_pair<T>(from[2], from[3]));
#ifdef ASSAY_SIMT
    if (reinterpret_cast<uintptr_t>(to) % 8 != 0)
      assay_simt->fault("half a vector's address is not a multiple of 8", __FILE__, __LINE__);
    memcpy(to, &word, sizeof word);
#else
    *reinterpret_cast<uint2 *>(to) = word;
#endif
  }
}

/* Loads the weights of channels c, c + 1, ...: from a vector, from one number for all channels, or, with neither,
 * `otherwise`. */
template <class T>
__device__ __forceinline__ void vector_weights(const void *data, bool one, int64_t c, float otherwise,
                                               float (&to)[vector_width<T>]) {
  const T *const weights = static_cast<const T *>(data);
  if (weights != nullptr && !one) {
    split_vector<T>(load_vector(weights + c), to);
    return;
  }
  const float all = weights != nullptr ? to_float(weights[0]) : otherwise;
  ASSAY_UNROLL
  for (int i = 0; i < vector_width<T>; ++i)
    to[i] = all;
}

/* ---- launchers --------------------------------------------------------------------------------------- */

/* Returns whether base and rows of every tensor of numbers are whole vectors. Scalars are not checked. */
inline bool in_vectors(const assay_call *call) {
  for (int32_t i = 0; i < call->op->arg_count; ++i) {
    const assay_tensor &t = call->arg[i];
    if (t.data == NULL || (t.dtype != ASSAY_F32 && t.dtype != ASSAY_F16 && t.dtype != ASSAY_BF16)) continue;
    if (t.rank == 1 && t.shape[0] == 1) continue;
    if (reinterpret_cast<uintptr_t>(t.data) % 16 != 0) return false;
    if (t.rank > 1 && t.shape[0] > 1 && t.stride[0] * assay_dtype_size(t.dtype) % 16 != 0) return false;
  }
  return true;
}

/* Declines rows of `channels` elements of `type` that are not whole vectors, or are not aligned to them. */
inline assay_status expect_vectors(const assay_call *call, const char *name, int64_t channels, assay_dtype type,
                                   assay_error *error) {
  const int64_t width = 16 / assay_dtype_size(type);
  if (channels % width != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "%s: found %" PRId64 ", taken here: multiples of %" PRId64, name,
                      channels, width);
  if (in_vectors(call)) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                    "call: found a base or a distance of rows that is no multiple of 16 bytes, taken here: multiples");
}

/* Returns whether a thread may have several rows: if that leaves threads for every multiprocessor, or if rows are
 * short. */
inline bool several_rows(int64_t rows, int32_t vectors) {
  return rows * vectors >= 1 << 20 || vectors <= 16;
}

/* A grid of (groups of rows, pieces of a row). A thread has one vector of a row, or the same vector of `most_rows`
 * rows. */
struct vector_grid {
  int64_t groups;
  int32_t pieces, threads, rows;
};

inline vector_grid split_vectors(int64_t rows, int32_t channels, assay_dtype type, int32_t most_rows) {
  const int32_t vectors = channels / static_cast<int32_t>(16 / assay_dtype_size(type));
  vector_grid grid;
  grid.pieces = (vectors + 255) / 256;
  grid.threads = ((vectors + grid.pieces - 1) / grid.pieces + 31) / 32 * 32;
  grid.rows = several_rows(rows, vectors) ? most_rows : 1;
  grid.groups = (rows + grid.rows - 1) / grid.rows;
  return grid;
}

/* A number of rows as a type. with_rows() calls use(rows_tag<rows>) for one row per thread, or for `most`. */
template <int rows> struct rows_tag { static constexpr int value = rows; };

template <int most, class Use> assay_status with_rows(int32_t rows, Use use) {
  return rows == most ? use(rows_tag<most>()) : use(rows_tag<1>());
}

/* Returns the number of this thread's vector in its rows. */
__device__ __forceinline__ int32_t vector_of_thread() {
  return static_cast<int32_t>(blockIdx.y * blockDim.x + threadIdx.x);
}

} // namespace ASSAY_NS
#endif
