/* ptx_pairs.cuh: wrappers of instructions that take two 16-bit numbers of a word at once, each with a second body for
 * simt. */
#ifndef ASSAY_GPU_PTX_PAIRS_CUH
#define ASSAY_GPU_PTX_PAIRS_CUH

#include "gpu/lib/ptx_edge.cuh"
#include "gpu/lib/types.cuh"

namespace ASSAY_NS {

/* Returns the greater numbers of two pairs of T. Neither is NaN. */
template <class T> __device__ __forceinline__ uint32_t pair_max(uint32_t a, uint32_t b) {
#if defined(ASSAY_SIMT) || __CUDA_ARCH__ < 900
  const auto greater = [](uint32_t x, uint32_t y) {
    return to_float(T{static_cast<uint16_t>(x)}) > to_float(T{static_cast<uint16_t>(y)}) ? x & 0xffffu : y & 0xffffu;
  };
  return greater(a, b) | greater(a >> 16, b >> 16) << 16;
#else
  uint32_t greater;
  if constexpr (std::is_same_v<T, bf16>)
    asm("max.bf16x2 %0, %1, %2;" : "=r"(greater) : "r"(a), "r"(b));
  else
    asm("max.f16x2 %0, %1, %2;" : "=r"(greater) : "r"(a), "r"(b));
  return greater;
#endif
}

/* Returns the lesser numbers of two pairs of T. Neither is NaN. */
template <class T> __device__ __forceinline__ uint32_t pair_min(uint32_t a, uint32_t b) {
#if defined(ASSAY_SIMT) || __CUDA_ARCH__ < 900
  const auto lesser = [](uint32_t x, uint32_t y) {
    return to_float(T{static_cast<uint16_t>(x)}) < to_float(T{static_cast<uint16_t>(y)}) ? x & 0xffffu : y & 0xffffu;
  };
  return lesser(a, b) | lesser(a >> 16, b >> 16) << 16;
#else
  uint32_t lesser;
  if constexpr (std::is_same_v<T, bf16>)
    asm("min.bf16x2 %0, %1, %2;" : "=r"(lesser) : "r"(a), "r"(b));
  else
    asm("min.f16x2 %0, %1, %2;" : "=r"(lesser) : "r"(a), "r"(b));
  return lesser;
#endif
}

/* Returns two numbers as f16, rounded to 0. Finite ones beyond 65504 become 65504, and infinities stay. */
__device__ __forceinline__ uint32_t f16_pair_below(float low, float high) {
#ifdef ASSAY_SIMT
  const auto rounded = [](float x) -> uint32_t {
    if (fabsf(x) > 65504.0f) return fabsf(x) == INFINITY ? (x < 0 ? 0xfc00u : 0x7c00u) : x < 0 ? 0xfbffu : 0x7bffu;
    const uint32_t bits = from_float<f16>(x).bits;
    return fabsf(to_float(f16{static_cast<uint16_t>(bits)})) > fabsf(x) ? bits - 1 : bits;
  };
  return rounded(low) | rounded(high) << 16;
#else
  uint32_t r;
  asm("cvt.rz.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
#endif
}

#ifdef ASSAY_SIMT
/* Returns a * b + c of f16 bits, rounded once, to f32. */
inline float simt_f16_fma(uint32_t a, uint32_t b, uint32_t c) {
  const auto value = [](uint32_t bits) { return static_cast<double>(to_float(f16{static_cast<uint16_t>(bits)})); };
  return static_cast<float>(value(a) * value(b) + value(c));
}
#endif

/* Returns a * b + c of pairs of f16. */
__device__ __forceinline__ uint32_t f16_pair_fma(uint32_t a, uint32_t b, uint32_t c) {
#ifdef ASSAY_SIMT
  const float low = simt_f16_fma(a, b, c), high = simt_f16_fma(a >> 16, b >> 16, c >> 16);
  return static_cast<uint32_t>(from_float<f16>(low).bits) | static_cast<uint32_t>(from_float<f16>(high).bits) << 16;
#else
  uint32_t d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
#endif
}

/* Returns the same, clamped to [0, 1]. NaN becomes 0. */
__device__ __forceinline__ uint32_t f16_pair_fma_saturate(uint32_t a, uint32_t b, uint32_t c) {
#ifdef ASSAY_SIMT
  const auto clamped = [](float x) { return !(x > 0.0f) ? 0.0f : x < 1.0f ? x : 1.0f; };
  const float low = clamped(simt_f16_fma(a, b, c)), high = clamped(simt_f16_fma(a >> 16, b >> 16, c >> 16));
  return static_cast<uint32_t>(from_float<f16>(low).bits) | static_cast<uint32_t>(from_float<f16>(high).bits) << 16;
#else
  uint32_t d;
  asm("fma.rn.sat.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
#endif
}

/* Returns a pair of f16 times `factor`, also a pair. */
__device__ __forceinline__ uint32_t f16_pair_times(uint32_t a, uint32_t factor) {
#ifdef ASSAY_SIMT
  return f16_pair_fma(a, factor, 0x80008000u);
#else
  uint32_t d;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(factor));
  return d;
#endif
}

/* Returns the sum of a pair's two f16, in both halves. */
__device__ __forceinline__ uint32_t f16_pair_sum(uint32_t a) {
#ifdef ASSAY_SIMT
  const uint32_t sum = from_float<f16>(simt_f16_fma(a, 0x3c00u, a >> 16)).bits;
  return sum << 16 | sum;
#else
  uint32_t d;
  asm("{\n.reg .b16 l, h;\n.reg .b32 x, y;\nmov.b32 {l, h}, %1;\nmov.b32 x, {l, l};\nmov.b32 y, {h, h};\n"
      "add.rn.f16x2 %0, x, y;\n}"
      : "=r"(d)
      : "r"(a));
  return d;
#endif
}

/* Returns a number's lower `bits` bits. With 32 and more it returns the number. */
__device__ __forceinline__ uint32_t lower_bits(uint32_t value, uint32_t bits) {
#ifdef ASSAY_SIMT
  return bits < 32 ? value & ((1u << bits) - 1) : value;
#else
  uint32_t d;
  asm("szext.clamp.u32 %0, %1, %2;" : "=r"(d) : "r"(value), "r"(bits));
  return d;
#endif
}

/* Returns the number of the highest bit that is set, or 0xffffffff if none is. */
__device__ __forceinline__ uint32_t highest_bit(uint32_t value) {
#ifdef ASSAY_SIMT
  return 31 - static_cast<uint32_t>(__clz(static_cast<int>(value)));
#else
  uint32_t d;
  asm("bfind.u32 %0, %1;" : "=r"(d) : "r"(value));
  return d;
#endif
}

} // namespace ASSAY_NS
#endif
