/* vec.cuh: four neighbouring elements in one load or store: 16 bytes of f32, 8 of f16 and bf16, 4 of fp8. */
#ifndef ASSAY_GPU_LIB_VEC_CUH
#define ASSAY_GPU_LIB_VEC_CUH

#include "gpu/lib/launch.h"
#include "gpu/lib/types.cuh"

namespace ASSAY_NS {

template <class T> struct alignas(4 * sizeof(T)) quad { T element[4]; };

/* Returns the address of element `offset` of a tensor. The base may be biased, so that it lies outside every allocation
 * and only the sum is an address. On the CPU the sum is formed in integers, where wrapping is defined. */
template <class T> __device__ __forceinline__ const T *element_at(const void *base, int64_t offset) {
#ifdef ASSAY_SIMT
  const uintptr_t bytes = static_cast<uintptr_t>(offset) * sizeof(T);
  return reinterpret_cast<const T *>(reinterpret_cast<uintptr_t>(base) + bytes);
#else
  return static_cast<const T *>(base) + offset;
#endif
}

/* Faults on the CPU too where a quad is to be moved at once and is not aligned to its size. A GPU faults by itself. */
template <class T> __device__ __forceinline__ void expect_quad(const T *address, bool quads) {
#ifdef ASSAY_SIMT
  if (quads && reinterpret_cast<uintptr_t>(address) % (4 * sizeof(T)) != 0)
    assay_simt->fault("a quad's address is not a multiple of its size", __FILE__, __LINE__);
#else
  (void)address;
  (void)quads;
#endif
}

/* aligned: `from` is a multiple of 4 elements (uniform over the launch); else four scalar loads. */
template <class T> __device__ __forceinline__ quad<T> load_quad(const T *from, bool aligned) {
  quad<T> to;
  expect_quad(from, aligned);
#ifdef ASSAY_SIMT
  memcpy(to.element, from, sizeof to.element);
#else
  if (aligned) {
    if constexpr (sizeof(T) == 4) {
      const uint4 word = *reinterpret_cast<const uint4 *>(from);
      memcpy(&to, &word, sizeof to);
    } else if constexpr (sizeof(T) == 2) {
      const uint2 word = *reinterpret_cast<const uint2 *>(from);
      memcpy(&to, &word, sizeof to);
    } else {
      const uint32_t word = *reinterpret_cast<const uint32_t *>(from);
      memcpy(&to, &word, sizeof to);
    }
  } else {
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      to.element[i] = from[i];
  }
#endif
  return to;
}

/* aligned: `to` is a multiple of 4 elements (uniform over the launch); else four scalar stores. */
template <class T> __device__ __forceinline__ void store_quad(T *to, const quad<T> &from, bool aligned) {
  expect_quad(to, aligned);
#ifdef ASSAY_SIMT
  memcpy(to, from.element, sizeof from.element);
#else
  if (aligned) {
    if constexpr (sizeof(T) == 4) {
      uint4 word;
      memcpy(&word, &from, sizeof word);
      *reinterpret_cast<uint4 *>(to) = word;
    } else if constexpr (sizeof(T) == 2) {
      uint2 word;
      memcpy(&word, &from, sizeof word);
      *reinterpret_cast<uint2 *>(to) = word;
    } else {
      uint32_t word;
      memcpy(&word, &from, sizeof word);
      *reinterpret_cast<uint32_t *>(to) = word;
    }
  } else {
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      to[i] = from.element[i];
  }
#endif
}

} // namespace ASSAY_NS
#endif
