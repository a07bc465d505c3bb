/* ptx_wgmma.cuh: wrappers of the tensor cores of a warpgroup, each with a second body for simt.
 *
 * wgmma_m64k16: A 64 x 16, B 16 x N, D 64 x N. Warp w of the warpgroup has rows 16 w and up. With r = 16 w + l / 4 and
 * c = 2 (l mod 4), lane l holds:
 *
 *   d[4 j], d[4 j + 1]      at (r, 8 j + c ..)
 *   d[4 j + 2], d[4 j + 3]  at (r + 8, 8 j + c ..)
 *
 * A in registers is as in ptx_mma.cuh, with row r. wgmma_m64k32 is the same of 8-bit factors: 32 of k, 32 bytes too.
 *
 * Descriptors name operands in shared memory. All their distances are in bytes, in multiples of 16. Adding to a
 * descriptor moves its address, 1 for 16 bytes. The swizzle is as in tensor_map.h.
 *
 *   K-major   rows of k, the usual Q · K^T. Row i begins (i mod 8) · pitch + (i / 8) · stride after the address, and k
 *             runs along it. pitch is the swizzle's width, or 16 bytes without swizzle; the second half of k then lies
 *             `leading` after the first. To advance by 16 in k within the swizzle's width, add 32 bytes.
 *   MN-major  trans_b, the usual P · V, with V as rows of n. Row k begins (k mod 8) · pitch + (k / 8) · stride after
 *             the address. n runs along it for the swizzle's width, and then continues `leading` further. Without
 *             swizzle, a row of 16 bytes has 8 n; n / 8 counts in strides, k / 8 in leadings.
 *
 * The order of calls is wgmma_fence, products, wgmma_commit, wgmma_wait. wgmma_fence covers registers that were touched
 * since the last products. Shared memory written by threads needs fence_proxy_async and a barrier before. Until the
 * wait, d must not be read or written, and neither the shared memory nor the registers of A may be written. Call
 * wgmma_order(d) after the wait. */
#ifndef ASSAY_GPU_PTX_WGMMA_CUH
#define ASSAY_GPU_PTX_WGMMA_CUH

#include <type_traits>

#include "gpu/lib/ptx.cuh"
#include "gpu/lib/tensor_map.h"
#include "gpu/lib/types.cuh"

namespace ASSAY_NS {

__device__ __forceinline__ void wgmma_fence() {
#ifdef ASSAY_SIMT
  assay_simt->hopper->wgmma_fence();
#else
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void wgmma_commit() {
#ifdef ASSAY_SIMT
  assay_simt->hopper->wgmma_commit();
#else
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

/* Waits until at most `pending` groups, the youngest, are incomplete. */
template <int pending> __device__ __forceinline__ void wgmma_wait(ASSAY_AT_ALONE) {
#ifdef ASSAY_SIMT
  assay_simt->hopper->wgmma_wait(pending, file, line);
#else
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
#endif
}

/* Keeps the compiler from moving uses of registers across a fence or a wait. Call it after wgmma_wait for what the wait
 * completed, and before wgmma_fence for operands in registers. */
template <class T, int count> __device__ __forceinline__ void wgmma_order(T (&registers)[count]) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, uint32_t>, "f32 or 32 bits");
#ifdef ASSAY_SIMT
  (void)registers;
#else
  ASSAY_UNROLL
  for (int i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<T, float>)
      asm volatile("" : "+f"(registers[i])::"memory");
    else
      asm volatile("" : "+r"(registers[i])::"memory");
  }
#endif
}

/* Returns a descriptor. Its fields are address / 16 in bits 0..13, leading / 16 in 16..29, stride / 16 in 32..45,
 * swizzle in 62..63. */
__device__ __forceinline__ uint64_t wgmma_descriptor(const void *shared, uint32_t stride_bytes, uint32_t leading_bytes,
                                                     tensor_swizzle swizzle ASSAY_AT) {
  const uint64_t kind = swizzle == swizzle_none ? 0u : swizzle == swizzle_128 ? 1u : swizzle == swizzle_64 ? 2u : 3u;
#ifdef ASSAY_SIMT
  const uint64_t address = assay_simt->hopper->wgmma_address(shared, file, line);
#else
  const uint64_t address = shared_address(shared);
#endif
  return (address & 0x3FFFFu) >> 4 | static_cast<uint64_t>((leading_bytes & 0x3FFFFu) >> 4) << 16 |
         static_cast<uint64_t>((stride_bytes & 0x3FFFFu) >> 4) << 32 | kind << 62;
}

/* The widths of 16-bit products that have an instruction here. */
template <int N>
constexpr bool wgmma_takes =
    N == 16 || N == 32 || N == 48 || N == 64 || N == 80 || N == 96 || N == 112 || N == 128 || N == 192 || N == 256;

#ifdef ASSAY_SIMT

template <class T, int N> inline void simt_wgmma(const assay_simt_wgmma &product, const char *file, int32_t line) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>, "T is bf16 or f16");
  static_assert(wgmma_takes<N>, "N is 16, 32, 48, 64, 80, 96, 112, 128, 192 or 256");
  assay_simt->hopper->wgmma_issue(&product, file, line);
}

template <class T, int N, bool trans_b = false>
inline void wgmma_m64k16(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate ASSAY_AT) {
  simt_wgmma<T, N>(
      {d, nullptr, a, b, N, std::is_same_v<T, f16>, trans_b, accumulate, ASSAY_SIMT_SIXTEEN, ASSAY_SIMT_SIXTEEN}, file,
      line);
}

template <class T, int N, bool trans_b = false>
inline void wgmma_m64k16(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate ASSAY_AT) {
  simt_wgmma<T, N>({d, a, 0, b, N, std::is_same_v<T, f16>, trans_b, accumulate, ASSAY_SIMT_SIXTEEN, ASSAY_SIMT_SIXTEEN},
                   file, line);
}

template <class T, int N, bool trans_b = false, int count>
inline void wgmma_m64k16(float (&d)[N / 2], const uint32_t (&a)[count], int32_t first, uint64_t b,
                         bool accumulate ASSAY_AT) {
  simt_wgmma<T, N>(
      {d, a + first, 0, b, N, std::is_same_v<T, f16>, trans_b, accumulate, ASSAY_SIMT_SIXTEEN, ASSAY_SIMT_SIXTEEN},
      file, line);
}

template <class T> constexpr assay_simt_eight simt_eight = std::is_same_v<T, e4m3> ? ASSAY_SIMT_E4M3 : ASSAY_SIMT_E5M2;

template <class A, class B, int N>
inline void wgmma_m64k32(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate ASSAY_AT) {
  static_assert(is_fp8<A>::value && is_fp8<B>::value, "A and B are e4m3 or e5m2");
  static_assert(N == 16 || N == 32 || N == 64 || N == 96 || N == 128 || N == 256, "N is 16, 32, 64, 96, 128 or 256");
  const assay_simt_wgmma product = {d, nullptr, a, b, N, false, false, accumulate, simt_eight<A>, simt_eight<B>};
  assay_simt->hopper->wgmma_issue(&product, file, line);
}

#else

#define ASSAY_D8(i)                                                                                                    \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),          \
      "+f"(d[i + 7])
#define ASSAY_D16(i)  ASSAY_D8(i), ASSAY_D8(i + 8)
#define ASSAY_D24(i)  ASSAY_D16(i), ASSAY_D8(i + 16)
#define ASSAY_D32(i)  ASSAY_D16(i), ASSAY_D16(i + 16)
#define ASSAY_D40(i)  ASSAY_D32(i), ASSAY_D8(i + 32)
#define ASSAY_D48(i)  ASSAY_D32(i), ASSAY_D16(i + 32)
#define ASSAY_D56(i)  ASSAY_D48(i), ASSAY_D8(i + 48)
#define ASSAY_D64(i)  ASSAY_D32(i), ASSAY_D32(i + 32)
#define ASSAY_D96(i)  ASSAY_D64(i), ASSAY_D32(i + 64)
#define ASSAY_D128(i) ASSAY_D64(i), ASSAY_D64(i + 64)
#define ASSAY_NAMES8  "%0, %1, %2, %3, %4, %5, %6, %7"
#define ASSAY_NAMES16                                                                                                  \
  ASSAY_NAMES8 ", "                                                                                                    \
               "%8, %9, %10, %11, %12, %13, %14, %15"
#define ASSAY_NAMES24                                                                                                  \
  ASSAY_NAMES16 ", "                                                                                                   \
                "%16, %17, %18, %19, %20, %21, %22, %23"
#define ASSAY_NAMES32                                                                                                  \
  ASSAY_NAMES16 ", "                                                                                                   \
                "%16, %17, %18, %19, %20, %21, %22, %23, "                                                             \
                "%24, %25, %26, %27, %28, %29, %30, %31"
#define ASSAY_NAMES40                                                                                                  \
  ASSAY_NAMES32 ", "                                                                                                   \
                "%32, %33, %34, %35, %36, %37, %38, %39"
#define ASSAY_NAMES48                                                                                                  \
  ASSAY_NAMES32 ", "                                                                                                   \
                "%32, %33, %34, %35, %36, %37, %38, %39, "                                                             \
                "%40, %41, %42, %43, %44, %45, %46, %47"
#define ASSAY_NAMES56                                                                                                  \
  ASSAY_NAMES48 ", "                                                                                                   \
                "%48, %49, %50, %51, %52, %53, %54, %55"
#define ASSAY_NAMES64                                                                                                  \
  ASSAY_NAMES32 ", "                                                                                                   \
                "%32, %33, %34, %35, %36, %37, %38, %39, "                                                             \
                "%40, %41, %42, %43, %44, %45, %46, %47, "                                                             \
                "%48, %49, %50, %51, %52, %53, %54, %55, "                                                             \
                "%56, %57, %58, %59, %60, %61, %62, %63"
#define ASSAY_NAMES96                                                                                                  \
  ASSAY_NAMES64 ", "                                                                                                   \
                "%64, %65, %66, %67, %68, %69, %70, %71, "                                                             \
                "%72, %73, %74, %75, %76, %77, %78, %79, "                                                             \
                "%80, %81, %82, %83, %84, %85, %86, %87, "                                                             \
                "%88, %89, %90, %91, %92, %93, %94, %95"
#define ASSAY_NAMES128                                                                                                 \
  ASSAY_NAMES96 ", "                                                                                                   \
                "%96, %97, %98, %99, %100, %101, %102, %103, "                                                         \
                "%104, %105, %106, %107, %108, %109, %110, %111, "                                                     \
                "%112, %113, %114, %115, %116, %117, %118, %119, "                                                     \
                "%120, %121, %122, %123, %124, %125, %126, %127"

/* The instruction for a type and an N, with A in shared memory or in registers. The numbers are those of the operands
 * after D. */
#define ASSAY_WGMMA_SHARED(n, type, count, a_, b_, flag_, trans_)                                                      \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" flag_ ", 0;\nwgmma.mma_async.sync.aligned.m64n" n "k16.f32." type  \
               "." type " {" ASSAY_NAMES##count "}, %" a_ ", %" b_ ", p, 1, 1, 0, %" trans_ ";\n}"                     \
               : ASSAY_D##count(0)                                                                                     \
               : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(trans_b ? 1 : 0))
#define ASSAY_WGMMA_REGISTERS(n, type, count, a0_, a1_, a2_, a3_, b_, flag_, trans_)                                   \
  asm volatile(                                                                                                        \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %" flag_ ", 0;\nwgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type  \
      " {" ASSAY_NAMES##count "}, {%" a0_ ", %" a1_ ", %" a2_ ", %" a3_ "}, %" b_ ", p, 1, 1, %" trans_ ";\n}"         \
      : ASSAY_D##count(0)                                                                                              \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)), "n"(trans_b ? 1 : 0))

/* Computes d = a · b, or d += a · b. A in registers must stay in place until the wait, so it may not be a copy that
 * goes out of scope. For a longer array, name the first of the four. */
template <class T, int N, bool trans_b = false>
__device__ __forceinline__ void wgmma_m64k16(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>, "T is bf16 or f16");
  static_assert(wgmma_takes<N>, "N is 16, 32, 48, 64, 80, 96, 112, 128, 192 or 256");
  constexpr bool half = std::is_same_v<T, f16>;
  if constexpr (N == 48 && half)
    ASSAY_WGMMA_SHARED("48", "f16", 24, "24", "25", "26", "27");
  else if constexpr (N == 48)
    ASSAY_WGMMA_SHARED("48", "bf16", 24, "24", "25", "26", "27");
  else if constexpr (N == 16 && half)
    ASSAY_WGMMA_SHARED("16", "f16", 8, "8", "9", "10", "11");
  else if constexpr (N == 16)
    ASSAY_WGMMA_SHARED("16", "bf16", 8, "8", "9", "10", "11");
  else if constexpr (N == 32 && half)
    ASSAY_WGMMA_SHARED("32", "f16", 16, "16", "17", "18", "19");
  else if constexpr (N == 32)
    ASSAY_WGMMA_SHARED("32", "bf16", 16, "16", "17", "18", "19");
  else if constexpr (N == 64 && half)
    ASSAY_WGMMA_SHARED("64", "f16", 32, "32", "33", "34", "35");
  else if constexpr (N == 64)
    ASSAY_WGMMA_SHARED("64", "bf16", 32, "32", "33", "34", "35");
  else if constexpr (N == 80 && half)
    ASSAY_WGMMA_SHARED("80", "f16", 40, "40", "41", "42", "43");
  else if constexpr (N == 80)
    ASSAY_WGMMA_SHARED("80", "bf16", 40, "40", "41", "42", "43");
  else if constexpr (N == 96 && half)
    ASSAY_WGMMA_SHARED("96", "f16", 48, "48", "49", "50", "51");
  else if constexpr (N == 96)
    ASSAY_WGMMA_SHARED("96", "bf16", 48, "48", "49", "50", "51");
  else if constexpr (N == 112 && half)
    ASSAY_WGMMA_SHARED("112", "f16", 56, "56", "57", "58", "59");
  else if constexpr (N == 112)
    ASSAY_WGMMA_SHARED("112", "bf16", 56, "56", "57", "58", "59");
  else if constexpr (N == 128 && half)
    ASSAY_WGMMA_SHARED("128", "f16", 64, "64", "65", "66", "67");
  else if constexpr (N == 128)
    ASSAY_WGMMA_SHARED("128", "bf16", 64, "64", "65", "66", "67");
  else if constexpr (N == 192 && half)
    ASSAY_WGMMA_SHARED("192", "f16", 96, "96", "97", "98", "99");
  else if constexpr (N == 192)
    ASSAY_WGMMA_SHARED("192", "bf16", 96, "96", "97", "98", "99");
  else if constexpr (N == 256 && half)
    ASSAY_WGMMA_SHARED("256", "f16", 128, "128", "129", "130", "131");
  else if constexpr (N == 256)
    ASSAY_WGMMA_SHARED("256", "bf16", 128, "128", "129", "130", "131");
}

template <class T, int N, bool trans_b = false>
__device__ __forceinline__ void wgmma_m64k16(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>, "T is bf16 or f16");
  static_assert(wgmma_takes<N>, "N is 16, 32, 48, 64, 80, 96, 112, 128, 192 or 256");
  constexpr bool half = std::is_same_v<T, f16>;
  if constexpr (N == 48 && half)
    ASSAY_WGMMA_REGISTERS("48", "f16", 24, "24", "25", "26", "27", "28", "29", "30");
  else if constexpr (N == 48)
    ASSAY_WGMMA_REGISTERS("48", "bf16", 24, "24", "25", "26", "27", "28", "29", "30");
  else if constexpr (N == 16 && half)
    ASSAY_WGMMA_REGISTERS("16", "f16", 8, "8", "9", "10", "11", "12", "13", "14");
  else if constexpr (N == 16)
    ASSAY_WGMMA_REGISTERS("16", "bf16", 8, "8", "9", "10", "11", "12", "13", "14");
  else if constexpr (N == 32 && half)
    ASSAY_WGMMA_REGISTERS("32", "f16", 16, "16", "17", "18", "19", "20", "21", "22");
  else if constexpr (N == 32)
    ASSAY_WGMMA_REGISTERS("32", "bf16", 16, "16", "17", "18", "19", "20", "21", "22");
  else if constexpr (N == 64 && half)
    ASSAY_WGMMA_REGISTERS("64", "f16", 32, "32", "33", "34", "35", "36", "37", "38");
  else if constexpr (N == 64)
    ASSAY_WGMMA_REGISTERS("64", "bf16", 32, "32", "33", "34", "35", "36", "37", "38");
  else if constexpr (N == 80 && half)
    ASSAY_WGMMA_REGISTERS("80", "f16", 40, "40", "41", "42", "43", "44", "45", "46");
  else if constexpr (N == 80)
    ASSAY_WGMMA_REGISTERS("80", "bf16", 40, "40", "41", "42", "43", "44", "45", "46");
  else if constexpr (N == 96 && half)
    ASSAY_WGMMA_REGISTERS("96", "f16", 48, "48", "49", "50", "51", "52", "53", "54");
  else if constexpr (N == 96)
    ASSAY_WGMMA_REGISTERS("96", "bf16", 48, "48", "49", "50", "51", "52", "53", "54");
  else if constexpr (N == 112 && half)
    ASSAY_WGMMA_REGISTERS("112", "f16", 56, "56", "57", "58", "59", "60", "61", "62");
  else if constexpr (N == 112)
    ASSAY_WGMMA_REGISTERS("112", "bf16", 56, "56", "57", "58", "59", "60", "61", "62");
  else if constexpr (N == 128 && half)
    ASSAY_WGMMA_REGISTERS("128", "f16", 64, "64", "65", "66", "67", "68", "69", "70");
  else if constexpr (N == 128)
    ASSAY_WGMMA_REGISTERS("128", "bf16", 64, "64", "65", "66", "67", "68", "69", "70");
  else if constexpr (N == 192 && half)
    ASSAY_WGMMA_REGISTERS("192", "f16", 96, "96", "97", "98", "99", "100", "101", "102");
  else if constexpr (N == 192)
    ASSAY_WGMMA_REGISTERS("192", "bf16", 96, "96", "97", "98", "99", "100", "101", "102");
  else if constexpr (N == 256 && half)
    ASSAY_WGMMA_REGISTERS("256", "f16", 128, "128", "129", "130", "131", "132", "133", "134");
  else if constexpr (N == 256)
    ASSAY_WGMMA_REGISTERS("256", "bf16", 128, "128", "129", "130", "131", "132", "133", "134");
}

template <class T, int N, bool trans_b = false, int count>
__device__ __forceinline__ void wgmma_m64k16(float (&d)[N / 2], const uint32_t (&a)[count], int32_t first, uint64_t b,
                                             bool accumulate) {
  const uint32_t four[4] = {a[first], a[first + 1], a[first + 2], a[first + 3]};
  wgmma_m64k16<T, N, trans_b>(d, four, b, accumulate);
}

/* The instruction for two 8-bit types and an N, with both operands in shared memory, K-major. */
#define ASSAY_WGMMA_EIGHT(n, type_a, type_b, count, a_, b_, flag_)                                                     \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" flag_ ", 0;\nwgmma.mma_async.sync.aligned.m64n" n                  \
               "k32.f32." type_a "." type_b " {" ASSAY_NAMES##count "}, %" a_ ", %" b_ ", p, 1, 1;\n}"                 \
               : ASSAY_D##count(0)                                                                                     \
               : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)))
#define ASSAY_WGMMA_EIGHTS(n, count, a_, b_, flag_)                                                                    \
  do {                                                                                                                 \
    if constexpr (std::is_same_v<A, e4m3> && std::is_same_v<B, e4m3>)                                                  \
      ASSAY_WGMMA_EIGHT(n, "e4m3", "e4m3", count, a_, b_, flag_);                                                      \
    else if constexpr (std::is_same_v<A, e4m3>)                                                                        \
      ASSAY_WGMMA_EIGHT(n, "e4m3", "e5m2", count, a_, b_, flag_);                                                      \
    else if constexpr (std::is_same_v<B, e4m3>)                                                                        \
      ASSAY_WGMMA_EIGHT(n, "e5m2", "e4m3", count, a_, b_, flag_);                                                      \
    else                                                                                                               \
      ASSAY_WGMMA_EIGHT(n, "e5m2", "e5m2", count, a_, b_, flag_);                                                      \
  } while (0)

/* Computes d = a · b, or d += a · b, of 8-bit factors: 32 of k. Both operands are K-major. */
template <class A, class B, int N>
__device__ __forceinline__ void wgmma_m64k32(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate) {
  static_assert(is_fp8<A>::value && is_fp8<B>::value, "A and B are e4m3 or e5m2");
  static_assert(N == 16 || N == 32 || N == 64 || N == 96 || N == 128 || N == 256, "N is 16, 32, 64, 96, 128 or 256");
  if constexpr (N == 16)
    ASSAY_WGMMA_EIGHTS("16", 8, "8", "9", "10");
  else if constexpr (N == 32)
    ASSAY_WGMMA_EIGHTS("32", 16, "16", "17", "18");
  else if constexpr (N == 64)
    ASSAY_WGMMA_EIGHTS("64", 32, "32", "33", "34");
  else if constexpr (N == 96)
    ASSAY_WGMMA_EIGHTS("96", 48, "48", "49", "50");
  else if constexpr (N == 128)
    ASSAY_WGMMA_EIGHTS("128", 64, "64", "65", "66");
  else
    ASSAY_WGMMA_EIGHTS("256", 128, "128", "129", "130");
}

#undef ASSAY_WGMMA_EIGHTS
#undef ASSAY_WGMMA_EIGHT
#undef ASSAY_WGMMA_SHARED
#undef ASSAY_WGMMA_REGISTERS
#undef ASSAY_D24
#undef ASSAY_NAMES24
#undef ASSAY_D8
#undef ASSAY_NAMES8
#undef ASSAY_D16
#undef ASSAY_NAMES16
#undef ASSAY_D32
#undef ASSAY_NAMES32
#undef ASSAY_D40
#undef ASSAY_D48
#undef ASSAY_D56
#undef ASSAY_D64
#undef ASSAY_D96
#undef ASSAY_NAMES40
#undef ASSAY_NAMES48
#undef ASSAY_NAMES56
#undef ASSAY_NAMES64
#undef ASSAY_NAMES96
#undef ASSAY_D128
#undef ASSAY_NAMES128

#endif

} /* namespace ASSAY_NS */

#endif
