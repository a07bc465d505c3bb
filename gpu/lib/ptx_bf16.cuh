/* ptx_bf16.cuh: arithmetic on pairs of bf16 in one register, with a second body for simt. */
#ifndef ASSAY_GPU_PTX_BF16_CUH
#define ASSAY_GPU_PTX_BF16_CUH

#include "gpu/lib/types.cuh"

namespace ASSAY_NS {

/* Returns the products of both halves, rounded to nearest even. Subnormal numbers are kept. */
__device__ __forceinline__ uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
#ifdef ASSAY_SIMT
  const auto half = [&](int shift) {
    const bf16 x{static_cast<uint16_t>(a >> shift)}, y{static_cast<uint16_t>(b >> shift)};
    return static_cast<uint32_t>(from_float<bf16>(to_float(x) * to_float(y)).bits) << shift;
  };
  return half(0) | half(16);
#else
  uint32_t product;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
  return product;
#endif
}

} /* namespace ASSAY_NS */
#endif
