/* append.cuh: writes of new tokens to their slots of the paged cache. It has the form in which a number is stored,
 * addresses for writing, and the readers of slots and new rows. */
#ifndef ASSAY_GPU_LIB_APPEND_CUH
#define ASSAY_GPU_LIB_APPEND_CUH

#include <type_traits>

#include "gpu/lib/attention.h"
#include "gpu/lib/paged.cuh"
#include "gpu/lib/types.cuh"
#include "gpu/lib/vec.cuh"

namespace ASSAY_NS {

/* Returns the form in which the cache holds `value`: fp8 the code nearest to value / scale, else the number in the
 * cache's type. An element that has that type already is copied as it is. */
template <class KV, class T> __device__ __forceinline__ KV stored(T value, float scale) {
  if constexpr (std::is_same<KV, T>::value)
    return value;
  else if constexpr (is_fp8<KV>::value)
    return from_float<KV>(to_float(value) / scale);
  else
    return from_float<KV>(to_float(value));
}

/* The place of a slot number. block is -1 for rows that are not written: pad rows, and numbers outside the pool. */
struct slot_place {
  int64_t block;
  int32_t offset;
};

__device__ __forceinline__ slot_place place_of_slot(const paged_cache &cache, int64_t slot, int64_t pool_slots) {
  if (slot < 0 || slot >= pool_slots) return {-1, 0};
  return {slot >> cache.block_shift, static_cast<int32_t>(slot & ((1 << cache.block_shift) - 1))};
}

/* Returns the address of element_at, for writing. */
template <class T> __device__ __forceinline__ T *element_to(const void *base, int64_t offset) {
  return const_cast<T *>(element_at<T>(base, offset));
}

/* ---- launchers --------------------------------------------------------------------------------------- */

/* Rows of new tokens: channel 0 of (row, head) lies at row * apart + head * D. */
struct new_rows {
  const void *data;
  int64_t apart;
};

/* Reads a tensor [N, heads, D] of the type, dense except for the distance of its rows. */
inline assay_status read_new_rows(const assay_call *call, const char *name, assay_dtype dtype, int64_t N, int64_t heads,
                                  int64_t D, new_rows *rows, assay_error *error) {
  const assay_tensor *tensor;
  ASSAY_TRY(find_tensor(call, name, 3, false, &tensor, error));
  ASSAY_TRY(expect_dtype(tensor, name, dtype, error));
  ASSAY_TRY(expect_extent(tensor, name, 0, N, error));
  ASSAY_TRY(expect_extent(tensor, name, 1, heads, error));
  ASSAY_TRY(expect_extent(tensor, name, 2, D, error));
  ASSAY_TRY(expect_stride(tensor, name, 2, 1, error));
  ASSAY_TRY(expect_stride(tensor, name, 1, D, error));
  ASSAY_TRY(expect_row_stride(tensor, name, heads * D, error));
  rows->data = tensor->data;
  rows->apart = tensor->shape[0] > 1 ? tensor->stride[0] : 0;
  return ASSAY_OK;
}

/* Reads the slots, i64 [N], and counts those of the pool. */
inline assay_status read_slots(const assay_call *call, int64_t N, const paged_cache &cache, const int64_t **slots,
                               int64_t *pool_slots, assay_error *error) {
  const void *data;
  const assay_tensor *const k = named_tensor(call, "k_cache");
  ASSAY_TRY(attention_vector(call, "slots", ASSAY_I64, N, false, &data, error));
  *slots = static_cast<const int64_t *>(data);
  *pool_slots = k->shape[0] << cache.block_shift;
  return ASSAY_OK;
}

/* Says whether quads of the rows are aligned to their own size. D is a multiple of 8. */
inline bool rows_in_quads(const new_rows &rows, assay_dtype dtype) {
  return reinterpret_cast<uintptr_t>(rows.data) % static_cast<uintptr_t>(4 * assay_dtype_size(dtype)) == 0 &&
         rows.apart % 4 == 0;
}

/* Says the same of V's slots, whose channels must also be neighbours. */
inline bool v_in_quads(const paged_cache &cache, assay_dtype dtype) {
  return cache.v_channel == 1 &&
         reinterpret_cast<uintptr_t>(cache.v) % static_cast<uintptr_t>(4 * assay_dtype_size(dtype)) == 0 &&
         cache.v_block % 4 == 0 && cache.v_head % 4 == 0 && cache.v_token % 4 == 0;
}

} // namespace ASSAY_NS
#endif
