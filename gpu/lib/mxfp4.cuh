/* mxfp4.cuh: what the kernels of mxfp4_gemm share: the call, its weights, and the last step of an element.
 *
 * A word of codes holds eight weights, and a word of scales those of 128 weights, the lowest bits first. The exponent
 * and the mantissa of e2m1 are the lowest exponent bits and the highest mantissa bit of bf16 and f32. Shifted there,
 * they are the weight times 2^-126, its subnormal number included. */
#ifndef ASSAY_GPU_LIB_MXFP4_CUH
#define ASSAY_GPU_LIB_MXFP4_CUH

#include "gpu/lib/plain.h"
#include "gpu/lib/ptx_bf16.cuh"

namespace ASSAY_NS {

constexpr int32_t mx_block = 32, mx_nan_scale = 255; /* weights that share a scale */

struct mx_params {
  const bf16 *a;
  const uint32_t *codes, *scales;
  const void *bias; /* NULL: none */
  void *c;
  int64_t M, N, K, a_row, codes_row, scales_row, c_row;
  assay_dtype out;
};

/* Returns 2^(scale - 127), or NaN. */
__device__ __forceinline__ float mx_scale(uint32_t scale) {
  if (scale == mx_nan_scale) return float_of(0x7FC00000u);
  return float_of(scale == 0 ? 0x00400000u : scale << 23);
}

/* Returns the weight of a code, exactly. */
__device__ __forceinline__ float mx_weight(uint32_t code, float scale) {
  const float size = float_of((code & 7u) << 22) * 0x1p126f * scale;
  return (code & 8u) != 0 ? -size : size;
}

/* The factors of two weights as bf16. Scales above 128 need the second one. */
struct mx_factors {
  uint32_t first, second; /* both halves alike */
  bool high;
};

__device__ __forceinline__ mx_factors mx_factors_of(uint32_t scale) {
  const uint32_t low = scale < 128u ? scale : 128u, above = scale - low;
  const uint32_t first = scale == mx_nan_scale ? 0x7FFFu : (low + 126u) << 7;
  return {first * 0x10001u, ((above + 127u) << 7) * 0x10001u, above != 0};
}

/* Returns weights 2 i and 2 i + 1 of a word as bf16, the first in the lower half. */
template <int i> __device__ __forceinline__ uint32_t mx_pair(uint32_t word, const mx_factors &factors) {
  const uint32_t x = word >> (8 * i), apart = (x & 0xFu) | (x << 12 & 0xF0000u);
  const uint32_t unit = (apart & 0x00070007u) << 6 | (apart & 0x00080008u) << 12;
  const uint32_t pair = multiply_bf16x2(unit, factors.first);
  return factors.high ? multiply_bf16x2(pair, factors.second) : pair;
}

/* Adds the bias, rounds and stores one element. */
template <class Out> __device__ __forceinline__ void mx_store(const mx_params &p, int64_t m, int64_t n, float value) {
  if (m >= p.M || n >= p.N) return;
  if (p.bias != nullptr) value = __fadd_rn(value, to_float(static_cast<const Out *>(p.bias)[n]));
  static_cast<Out *>(p.c)[m * p.c_row + n] = from_float<Out>(value);
}

inline assay_status mx_read(const assay_call *call, mx_params *p, assay_error *error) {
  plain_call c;
  *p = mx_params();
  ASSAY_TRY(plain_read(call, &c, error));
  p->M = c.dim("M");
  p->N = c.dim("N");
  p->K = c.dim("K");
  p->a = c.data<const bf16>("a");
  p->codes = c.data<const uint32_t>("codes");
  p->scales = c.data<const uint32_t>("scales");
  p->bias = c.data<const void>("bias");
  p->c = c.data<void>("c");
  p->a_row = c.row("a");
  p->codes_row = c.row("codes");
  p->scales_row = c.row("scales");
  p->c_row = c.row("c");
  p->out = c.type("c");
  return expect_type("c", p->out, error);
}

} // namespace ASSAY_NS
#endif
