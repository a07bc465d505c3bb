/* ptx_mma.cuh: wrappers of the tensor cores of one warp and of what feeds them, each with a second body for simt.
 *
 * m16n8k16: A 16 x 16 row-major, B 16 x 8, D 16 x 8. Lane l holds, with r = l / 4 and c = 2 (l mod 4):
 *
 *   a[0] (r, c..c+1)   a[1] (r+8, c..c+1)   a[2] (r, c+8..c+9)   a[3] (r+8, c+8..c+9)
 *   b[0] (c..c+1, r)   b[1] (c+8..c+9, r)
 *   d[0], d[1] (r, c..c+1)   d[2], d[3] (r+8, c..c+1)
 *
 * m16n8k32, of 8-bit factors: A 16 x 32, B 32 x 8, D as above. A register has four neighbours of k, from 4 (l mod 4)
 * on:
 *
 *   a[0] (r, 0 + ..)   a[1] (r+8, 0 + ..)   a[2] (r, 16 + ..)   a[3] (r+8, 16 + ..)   b[0] (0 + .., r)   b[1] (16 + ..,
 * r)
 *
 * The element with the smaller index is in the lower half of a register. */
#ifndef ASSAY_GPU_PTX_MMA_CUH
#define ASSAY_GPU_PTX_MMA_CUH

#include <type_traits>

#include "gpu/lib/ptx.cuh"
#include "gpu/lib/types.cuh"

namespace ASSAY_NS {

#ifdef ASSAY_SIMT
inline void simt_collective(assay_simt_op op, const void *operands, const char *file, int32_t line) {
  (void)assay_simt->warp(op, 0, 0xFFFFFFFFu, reinterpret_cast<uintptr_t>(operands), 0, file, line);
}
#endif

/* Computes d += a · b. T: bf16 or f16. Sums lose what tensor cores lose (gpu/simt/products.cpp). */
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2] ASSAY_AT) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>, "T is bf16 or f16");
#ifdef ASSAY_SIMT
  const assay_simt_mma operands = {d, a, b, std::is_same_v<T, f16>, ASSAY_SIMT_SIXTEEN, ASSAY_SIMT_SIXTEEN};
  simt_collective(ASSAY_SIMT_MMA, &operands, file, line);
#else
  if constexpr (std::is_same_v<T, bf16>)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

/* Computes d += a · b of 8-bit factors. A, B: e4m3 or e5m2. nvcc 13.0 makes two f16 instructions of it for sm_90a. */
template <class A, class B>
__device__ __forceinline__ void mma_m16n8k32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2] ASSAY_AT) {
  static_assert(is_fp8<A>::value && is_fp8<B>::value, "A and B are e4m3 or e5m2");
#ifdef ASSAY_SIMT
  const auto eight = [](auto type) {
    return std::is_same_v<typename decltype(type)::type, e4m3> ? ASSAY_SIMT_E4M3 : ASSAY_SIMT_E5M2;
  };
  const assay_simt_mma operands = {d, a, b, false, eight(type_tag<A>()), eight(type_tag<B>())};
  simt_collective(ASSAY_SIMT_MMA, &operands, file, line);
#else
#define ASSAY_MMA_EIGHT(type_a, type_b)                                                                                \
  asm volatile("mma.sync.aligned.m16n8k32.row.col.f32." type_a "." type_b                                              \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                  \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                        \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
  if constexpr (std::is_same_v<A, e4m3> && std::is_same_v<B, e4m3>)
    ASSAY_MMA_EIGHT("e4m3", "e4m3");
  else if constexpr (std::is_same_v<A, e4m3>)
    ASSAY_MMA_EIGHT("e4m3", "e5m2");
  else if constexpr (std::is_same_v<B, e4m3>)
    ASSAY_MMA_EIGHT("e5m2", "e4m3");
  else
    ASSAY_MMA_EIGHT("e5m2", "e5m2");
#undef ASSAY_MMA_EIGHT
#endif
}

/* Load 8 x 8 matrices of 16-bit elements from shared memory. Lane l gives the address of row l mod 8 of matrix l / 8, a
 * multiple of 16. It gets row l / 4, elements 2 (l mod 4) and the next, of every matrix, or, with _trans, of every
 * transposed matrix. With x2 the addresses of lanes 16 and up are not used. */
#ifdef ASSAY_SIMT
template <int count>
inline void simt_ldmatrix(uint32_t (&r)[count], const void *shared, bool transposed, const char *file, int32_t line) {
  assay_simt_matrix operands = {{0, 0, 0, 0}, r, count, transposed};
  if (lane_id() < 8 * count) {
    if (reinterpret_cast<uintptr_t>(shared) % 16 != 0)
      assay_simt->fault("ldmatrix: address is not a multiple of 16", file, line);
    memcpy(operands.row, shared, 16);
  }
  simt_collective(ASSAY_SIMT_LDMATRIX, &operands, file, line);
}
#endif

__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void *shared ASSAY_AT) {
#ifdef ASSAY_SIMT
  simt_ldmatrix(r, shared, false, file, line);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(shared)));
#endif
}

__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void *shared ASSAY_AT) {
#ifdef ASSAY_SIMT
  simt_ldmatrix(r, shared, true, file, line);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(shared)));
#endif
}

__device__ __forceinline__ void ldmatrix_x2(uint32_t (&r)[2], const void *shared ASSAY_AT) {
#ifdef ASSAY_SIMT
  simt_ldmatrix(r, shared, false, file, line);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(shared)));
#endif
}

__device__ __forceinline__ void ldmatrix_x2_trans(uint32_t (&r)[2], const void *shared ASSAY_AT) {
#ifdef ASSAY_SIMT
  simt_ldmatrix(r, shared, true, file, line);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(shared)));
#endif
}

/* Stores four matrices to shared memory, with fragments as ldmatrix_x4 returns them and addresses as it takes them. */
__device__ __forceinline__ void stmatrix_x4(void *shared, const uint32_t (&r)[4] ASSAY_AT) {
#ifdef ASSAY_SIMT
  uint32_t given[4] = {r[0], r[1], r[2], r[3]};
  assay_simt_matrix operands = {{0, 0, 0, 0}, given, 4, false};
  if (reinterpret_cast<uintptr_t>(shared) % 16 != 0)
    assay_simt->fault("stmatrix: address is not a multiple of 16", file, line);
  simt_collective(ASSAY_SIMT_STMATRIX, &operands, file, line);
  memcpy(shared, operands.row, 16);
#else
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(shared)),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
#endif
}

/* The same, of transposed matrices: the address is of row l mod 8 of the matrix whose columns are the fragments' rows.
 */
__device__ __forceinline__ void stmatrix_x4_trans(void *shared, const uint32_t (&r)[4] ASSAY_AT) {
#ifdef ASSAY_SIMT
  uint32_t given[4] = {r[0], r[1], r[2], r[3]};
  assay_simt_matrix operands = {{0, 0, 0, 0}, given, 4, true};
  if (reinterpret_cast<uintptr_t>(shared) % 16 != 0)
    assay_simt->fault("stmatrix: address is not a multiple of 16", file, line);
  simt_collective(ASSAY_SIMT_STMATRIX, &operands, file, line);
  memcpy(shared, operands.row, 16);
#else
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(shared)),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
#endif
}

/* Returns two f32 rounded to nearest even, with low in the lower half. It is one instruction on cuda. */
template <class T> __device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>, "T is bf16 or f16");
#ifdef ASSAY_SIMT
  return static_cast<uint32_t>(from_float<T>(low).bits) | static_cast<uint32_t>(from_float<T>(high).bits) << 16;
#else
  uint32_t r;
  if constexpr (std::is_same_v<T, bf16>)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
#endif
}

template <class T> __device__ __forceinline__ void unpack_pair(uint32_t pair, float &low, float &high) {
  if constexpr (std::is_same_v<T, bf16>) {
    low = float_of(pair << 16);
    high = float_of(pair & 0xFFFF0000u);
  } else {
    low = to_float(T{static_cast<uint16_t>(pair)});
    high = to_float(T{static_cast<uint16_t>(pair >> 16)});
  }
}

/* Returns a word whose byte i is byte (selector >> 4 i & 7) of b:a, with a in the lower half. */
__device__ __forceinline__ uint32_t byte_permute(uint32_t a, uint32_t b, uint32_t selector) {
#ifdef ASSAY_SIMT
  const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
  uint32_t r = 0;
  for (uint32_t i = 0; i < 4; ++i)
    r |= static_cast<uint32_t>(both >> (selector >> (4 * i) & 7u) * 8 & 0xFFu) << (8 * i);
  return r;
#else
  return __byte_perm(a, b, selector);
#endif
}

/* Returns a · b + c, rounded once and clamped to [0, 1]; NaN gives 0. */
__device__ __forceinline__ float fma_saturate(float a, float b, float c) {
#ifdef ASSAY_SIMT
  const float x = fmaf(a, b, c);
  return !(x > 0.0f) ? 0.0f : x < 1.0f ? x : 1.0f;
#else
  float d;
  asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(d) : "f"(a), "f"(b), "f"(c));
  return d;
#endif
}

} /* namespace ASSAY_NS */

#endif
