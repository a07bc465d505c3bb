/* append_vectors.cuh: writes new tokens to their slots one vector of channels at a time. It stores either 16 bytes as
 * they came, or the codes of the same number of channels. It also checks whether a call's rows and cache allow this. */
#ifndef ASSAY_GPU_LIB_APPEND_VECTORS_CUH
#define ASSAY_GPU_LIB_APPEND_VECTORS_CUH

#include "gpu/lib/append.cuh"
#include "gpu/lib/vectors.cuh"

namespace ASSAY_NS {

/* Stores two codes, nearest to a and b. The GPU converts a pair at once; its result for NaN is not relied on. */
template <class KV> __device__ __forceinline__ void store_pair_of_codes(float a, float b, KV *to) {
#ifndef ASSAY_SIMT
  if constexpr (is_fp8<KV>::value) {
    constexpr __nv_fp8_interpretation_t kind = std::is_same<KV, e4m3>::value ? __NV_E4M3 : __NV_E5M2;
    const __nv_fp8x2_storage_t both = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, kind);
    to[0].bits = a != a ? uint8_t{0x7F} : static_cast<uint8_t>(both & 0xFF);
    to[1].bits = b != b ? uint8_t{0x7F} : static_cast<uint8_t>(both >> 8);
    return;
  }
#endif
  to[0] = from_float<KV>(a);
  to[1] = from_float<KV>(b);
}

/* A vector of new channels in the form in which the cache holds them. */
template <class T, class KV> struct alignas(vector_width<T> * sizeof(KV)) stored_vector {
  KV element[vector_width<T>];
};

template <class T, class KV> __device__ __forceinline__ void store_channels(KV *to, const uint4 &vector, float scale) {
  if constexpr (std::is_same<T, KV>::value) {
    store_vector(to, vector);
  } else {
    constexpr int width = vector_width<T>;
    float v[width];
    stored_vector<T, KV> codes;
    split_vector<T>(vector, v);
    ASSAY_UNROLL
    for (int e = 0; e < width; e += 2)
      store_pair_of_codes<KV>(v[e] / scale, v[e + 1] / scale, codes.element + e);
#ifdef ASSAY_SIMT
    if (reinterpret_cast<uintptr_t>(to) % sizeof codes != 0)
      assay_simt->fault("codes of a vector beside a multiple of their size", __FILE__, __LINE__);
    memcpy(to, codes.element, sizeof codes);
#else
    if constexpr (width == 8) {
      uint2 word;
      memcpy(&word, &codes, sizeof(KV) == 1 ? sizeof word : 0);
      *reinterpret_cast<uint2 *>(to) = word;
    } else {
      uint32_t word;
      memcpy(&word, &codes, sizeof(KV) == 1 ? sizeof word : 0);
      *reinterpret_cast<uint32_t *>(to) = word;
    }
#endif
  }
}

/* ---- launchers --------------------------------------------------------------------------------------- */

inline bool rows_in_vectors(const new_rows &rows, assay_dtype type) {
  return reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && rows.apart % (16 / assay_dtype_size(type)) == 0;
}

/* Returns whether blocks, heads and tokens of K are whole vectors of the new type apart, counted in elements. The
 * channels of one vector are neighbours in every layout. */
inline bool k_in_vectors(const paged_cache &c, assay_dtype type, assay_dtype kv) {
  const int64_t width = 16 / assay_dtype_size(type), chunk = c.v_channel != 1 ? c.k_chunk : 0;
  const uintptr_t bytes = static_cast<uintptr_t>(width * assay_dtype_size(kv));
  return reinterpret_cast<uintptr_t>(c.k) % bytes == 0 && c.k_block % width == 0 && c.k_head % width == 0 &&
         c.k_token % width == 0 && chunk % width == 0;
}

/* Returns the same for V, whose channels must be neighbours. */
inline bool v_in_vectors(const paged_cache &c, assay_dtype type, assay_dtype kv) {
  const int64_t width = 16 / assay_dtype_size(type);
  const uintptr_t bytes = static_cast<uintptr_t>(width * assay_dtype_size(kv));
  return c.v_channel == 1 && reinterpret_cast<uintptr_t>(c.v) % bytes == 0 && c.v_block % width == 0 &&
         c.v_head % width == 0 && c.v_token % width == 0;
}

} // namespace ASSAY_NS
#endif
