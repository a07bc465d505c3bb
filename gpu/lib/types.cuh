/* types.cuh: storage types as bits, with conversions to and from f32. Conversion to f32 is exact. Conversion from f32
 * rounds to nearest even; f16 overflows to Inf, and fp8 saturates to the largest finite value, with 0x7F as its NaN.
 * Subnormals are kept. The bodies for the CPU are inline integer code, because a kernel under simt spends most of its
 * time here.
 *
 *   type  sign exponent mantissa bias  largest  smallest normal
 *   f16      1        5       10   15    65504             2^-14
 *   bf16     1        8        7  127   3.39e38           2^-126
 *   e4m3     1        4        3    7      448              2^-6   no infinity
 *   e5m2     1        5        2   15    57344             2^-14   infinity is kept on reading */
#ifndef ASSAY_GPU_LIB_TYPES_CUH
#define ASSAY_GPU_LIB_TYPES_CUH

#include <stdint.h>
#include <string.h>

#include "assay/tensor.h"
#include "gpu/lib/launch.h"

#ifndef ASSAY_SIMT
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#endif

namespace ASSAY_NS {

struct f16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};
struct e4m3 {
  uint8_t bits;
};
struct e5m2 {
  uint8_t bits;
};

__device__ __forceinline__ uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

__device__ __forceinline__ float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* ---- to f32: exact ---------------------------------------------------------------------------------- */

__device__ __forceinline__ float to_float(float value) {
  return value;
}

__device__ __forceinline__ float to_float(bf16 value) {
  return float_of(static_cast<uint32_t>(value.bits) << 16);
}

#ifdef ASSAY_SIMT

/* The exponent and mantissa, shifted to f32's places, read as 2^(15 - 127) of the value. The product is exact,
 * including subnormals. Infinity and NaN come out at 2^16 and above and get f32's exponent. */
__device__ __forceinline__ float to_float(f16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const float magnitude = float_of(static_cast<uint32_t>(value.bits & 0x7FFFu) << 13) * 0x1p112f;
  uint32_t bits = bits_of(magnitude);
  if (magnitude >= 0x1p16f) bits |= 0x7F800000u;
  return float_of(bits | sign);
}

__device__ __forceinline__ float to_float(e4m3 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x80u) << 24;
  const uint32_t code = value.bits & 0x7Fu;
  uint32_t bits = bits_of(float_of(code << 20) * 0x1p120f);
  if (code == 0x7Fu) bits = 0x7FC00000u;
  return float_of(bits | sign);
}

/* An e5m2 is the upper byte of an f16. */
__device__ __forceinline__ float to_float(e5m2 value) {
  return to_float(f16{static_cast<uint16_t>(value.bits << 8)});
}

#else

__device__ __forceinline__ float to_float(f16 value) {
  return __half2float(__ushort_as_half(value.bits));
}

__device__ __forceinline__ float to_float(e4m3 value) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(value.bits, __NV_E4M3)));
}

__device__ __forceinline__ float to_float(e5m2 value) {
  return __half2float(__ushort_as_half(static_cast<uint16_t>(value.bits << 8)));
}

#endif

/* ---- from f32: to nearest even ---------------------------------------------------------------------- */

/* Returns |value| rounded to a format of `mantissa` bits and bias `bias`, as its bits without the sign. The caller
 * handles NaN and values above the largest finite one. Normal values are rounded at the cut by adding half a unit less
 * one plus the bit that stays. A carry into the exponent is correct. Below the smallest normal 2^(1 - bias) the units
 * are 2^(1 - bias - mantissa). Adding 1.5 * 2^23 such units makes f32 round at that unit. */
template <int mantissa, int bias> __device__ __forceinline__ uint32_t round_magnitude(float value) {
  constexpr int cut = 23 - mantissa;
  const uint32_t bits = bits_of(value) & 0x7FFFFFFFu;
  if (bits < static_cast<uint32_t>(128 - bias) << 23) {
    const float magic = float_of(static_cast<uint32_t>(127 + 23 + 1 - bias - mantissa) << 23 | 0x400000u);
    return bits_of(float_of(bits) + magic) - bits_of(magic);
  }
  const uint32_t rounded = bits + ((1u << (cut - 1)) - 1u) + (bits >> cut & 1u);
  return (rounded >> cut) - (static_cast<uint32_t>(127 - bias) << mantissa);
}

template <class T> __device__ __forceinline__ T from_float(float value);

template <> __device__ __forceinline__ float from_float<float>(float value) {
  return value;
}

template <> __device__ __forceinline__ bf16 from_float<bf16>(float value) {
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return bf16{0x7FFF};
  return bf16{static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16)};
}

template <> __device__ __forceinline__ f16 from_float<f16>(float value) {
#ifdef ASSAY_SIMT
  const uint32_t bits = bits_of(value), magnitude = bits & 0x7FFFFFFFu;
  const uint32_t sign = bits >> 16 & 0x8000u;
  if (magnitude > 0x7F800000u) return f16{0x7FFF};
  if (magnitude >= 0x477FF000u) return f16{static_cast<uint16_t>(sign | 0x7C00u)}; /* 65520: halfway to 2^16 */
  return f16{static_cast<uint16_t>(sign | round_magnitude<10, 15>(value))};
#else
  return f16{__half_as_ushort(__float2half_rn(value))};
#endif
}

template <> __device__ __forceinline__ e4m3 from_float<e4m3>(float value) {
  const uint32_t bits = bits_of(value), magnitude = bits & 0x7FFFFFFFu;
  const uint32_t sign = bits >> 24 & 0x80u;
  if (magnitude > 0x7F800000u) return e4m3{0x7F};
  if (magnitude >= 0x43E00000u) return e4m3{static_cast<uint8_t>(sign | 0x7Eu)}; /* 448 */
  return e4m3{static_cast<uint8_t>(sign | round_magnitude<3, 7>(value))};
}

template <> __device__ __forceinline__ e5m2 from_float<e5m2>(float value) {
  const uint32_t bits = bits_of(value), magnitude = bits & 0x7FFFFFFFu;
  const uint32_t sign = bits >> 24 & 0x80u;
  if (magnitude > 0x7F800000u) return e5m2{0x7F};
  if (magnitude >= 0x47600000u) return e5m2{static_cast<uint8_t>(sign | 0x7Bu)}; /* 57344 */
  return e5m2{static_cast<uint8_t>(sign | round_magnitude<2, 15>(value))};
}

/* Returns two e4m3 codes, the first in the low byte. It is one instruction on cuda. */
__device__ __forceinline__ uint32_t e4m3_pair(float low, float high) {
#ifdef ASSAY_SIMT
  return static_cast<uint32_t>(from_float<e4m3>(low).bits) | static_cast<uint32_t>(from_float<e4m3>(high).bits) << 8;
#else
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
#endif
}

/* ---- types as values -------------------------------------------------------------------------------- */

template <class T> struct is_fp8 { static constexpr bool value = false; };
template <> struct is_fp8<e4m3> { static constexpr bool value = true; };
template <> struct is_fp8<e5m2> { static constexpr bool value = true; };

/* Returns a cached element as f32. fp8: code * scale, rounded to f32; other types have no scale. */
template <class T> __device__ __forceinline__ float dequantise(T element, float scale) {
  const float value = to_float(element);
  if constexpr (is_fp8<T>::value) return value * scale;
  return value;
}

template <class T> struct type_tag { using type = T; };

/* Calls use(type_tag<Q>, type_tag<KV>) for the pair of storage types. Returns ASSAY_ERR_INTERNAL for pairs that are not
 * listed, which the launcher has refused before. ASSAY_FEW_TYPES keeps three pairs, to compile faster. */
template <class Use> assay_status with_types(assay_dtype q, assay_dtype kv, Use use) {
  const auto pair = [](assay_dtype a, assay_dtype b) {
    return static_cast<int>(a) * ASSAY_DTYPE_COUNT + static_cast<int>(b);
  };
  const int found = pair(q, kv);
  if (found == pair(ASSAY_F32, ASSAY_F32)) return use(type_tag<float>(), type_tag<float>());
  if (found == pair(ASSAY_BF16, ASSAY_BF16)) return use(type_tag<bf16>(), type_tag<bf16>());
  if (found == pair(ASSAY_BF16, ASSAY_E4M3)) return use(type_tag<bf16>(), type_tag<e4m3>());
#ifndef ASSAY_FEW_TYPES
  if (found == pair(ASSAY_F32, ASSAY_E4M3)) return use(type_tag<float>(), type_tag<e4m3>());
  if (found == pair(ASSAY_F32, ASSAY_E5M2)) return use(type_tag<float>(), type_tag<e5m2>());
  if (found == pair(ASSAY_F16, ASSAY_F16)) return use(type_tag<f16>(), type_tag<f16>());
  if (found == pair(ASSAY_F16, ASSAY_E4M3)) return use(type_tag<f16>(), type_tag<e4m3>());
  if (found == pair(ASSAY_F16, ASSAY_E5M2)) return use(type_tag<f16>(), type_tag<e5m2>());
  if (found == pair(ASSAY_BF16, ASSAY_E5M2)) return use(type_tag<bf16>(), type_tag<e5m2>());
#endif
  return ASSAY_ERR_INTERNAL;
}

/* Refuses types that are not among the pairs above. */
inline assay_status expect_types(assay_dtype q, assay_dtype kv, assay_error *error) {
  if (with_types(q, kv, [](auto, auto) { return ASSAY_OK; }) == ASSAY_OK) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "k_cache: found dtype %s with q %s, which this build leaves out",
                    assay_dtype_name(kv), assay_dtype_name(q));
}

/* dtype | kv_dtype of a variant that takes the pairs above. Claims are products. ASSAY_FEW_TYPES has three pairs. bf16
 * with e4m3 is taken but not claimed, because f32 with e4m3 would be claimed with it. */
#ifdef ASSAY_FEW_TYPES
#define ASSAY_TYPE_CLAIMS "f32,bf16|same"
#else
#define ASSAY_TYPE_CLAIMS "f32,f16,bf16|same,e4m3,e5m2"
#endif

} // namespace ASSAY_NS
#endif
