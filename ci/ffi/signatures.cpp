/* signatures.cpp: the functions that the files of conformance/binds/flashinfer-0.6 call, with their types and without
 * contents, for ci/ffi.sh. Their argument types are those that FlashInfer exports. Names that two of its modules, or
 * two of its versions, share have a prefix here. */
#define TVM_FFI_DLL_EXPORT_INCLUDE_METADATA 1
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/tvm_ffi.h>

using tvm::ffi::Array;
using tvm::ffi::Optional;
using tvm::ffi::Tensor;
using tvm::ffi::TensorView;
using View = TensorView;
using Maybe = Optional<Tensor>;

namespace {

void host_i32(const View &t, const char *name) {
  if (t.device().device_type != kDLCPU || t.dtype().code != kDLInt || t.dtype().bits != 32)
    TVM_FFI_THROW(ValueError) << name << ": no i32 in host memory";
}

void rmsnorm(View, View, View, double, bool) {}
void fused_add_rmsnorm(View, View, View, double, bool) {}
void silu_and_mul(View, View, bool) {}
void apply_rope_pos_ids_cos_sin_cache(View, View, View, View, View cos_sin, View, bool) {
  if (cos_sin.ndim() != 2 || !cos_sin.IsContiguous()) TVM_FFI_THROW(ValueError) << "cos_sin: no dense matrix";
}
void append_paged_kv_cache(View k, View, View batch, View positions, View k_cache, View, View, View indptr, View last,
                           int64_t) {
  if (indptr.size(0) != last.size(0) + 1 || batch.size(0) != k.size(0) || positions.size(0) != k.size(0) ||
      k_cache.ndim() != 4)
    TVM_FFI_THROW(ValueError) << "sizes";
}
void append_paged_mla_kv_cache(View c, View pe, View batch, View positions, View c_cache, View pe_cache, View,
                               View indptr, View last) {
  if (indptr.size(0) != last.size(0) + 1 || batch.size(0) != c.size(0) || positions.size(0) != c.size(0) ||
      c_cache.ndim() != 3 || c_cache.size(2) != c.size(1) || pe_cache.size(2) != pe.size(1))
    TVM_FFI_THROW(ValueError) << "sizes";
}
void merge_state(View a, View lse_a, View b, View lse_b, View out, View lse) {
  if (a.ndim() != 3 || lse_a.ndim() != 2 || b.ndim() != 3 || lse_b.ndim() != 2 || out.ndim() != 3 || lse.ndim() != 2 ||
      !a.IsContiguous() || !lse_a.IsContiguous())
    TVM_FFI_THROW(ValueError) << "sizes";
}

Array<int64_t> decode_plan(View, View, View, View indptr, int64_t requests, int64_t, int64_t, int64_t, bool, int64_t,
                           double, int64_t, int64_t, View, View) {
  host_i32(indptr, "indptr");
  return {requests};
}
void decode_run(View, View, Array<int64_t> planned, View q, View, View, View indptr, View, View last, View,
                Optional<TensorView>, int64_t, int64_t, bool, Maybe, double, double, double, double) {
  if (planned[0] != q.size(0) || indptr.size(0) != q.size(0) + 1 || last.size(0) != q.size(0))
    TVM_FFI_THROW(ValueError) << "sizes";
}

Array<int64_t> prefill_plan(View, View, View, View rows, View indptr, View lengths, int64_t total, int64_t requests,
                            int64_t, int64_t, int64_t, bool, int64_t, int64_t, bool, int64_t, int64_t, bool, int64_t) {
  host_i32(rows, "qo_indptr");
  host_i32(indptr, "kv_indptr");
  host_i32(lengths, "kv_len");
  if (static_cast<const int32_t *>(rows.data_ptr())[requests] != total) TVM_FFI_THROW(ValueError) << "rows";
  return {requests};
}
Array<int64_t> prefill16_plan(View a, View b, View c, View rows, View indptr, View lengths, int64_t total,
                              int64_t requests, int64_t d, int64_t e, int64_t f, bool g, int64_t h, int64_t i, bool j,
                              int64_t k, int64_t l, bool m, int64_t n, int64_t) {
  return prefill_plan(a, b, c, rows, indptr, lengths, total, requests, d, e, f, g, h, i, j, k, l, m, n);
}
void prefill0_paged_run(View, View, Array<int64_t>, View, View, View, View, View, View, View, View,
                        Optional<TensorView>, int64_t, int64_t, int64_t, bool, Maybe, Maybe, Maybe, Maybe, Maybe, Maybe,
                        double, double, double, double, int64_t) {}
void prefill_paged_run(View, View, Array<int64_t>, View, View, View, View, View, View, View, View, Optional<TensorView>,
                       int64_t, int64_t, int64_t, bool, Maybe, Maybe, Maybe, Maybe, Maybe, Maybe, Maybe, Maybe, double,
                       double, double, double, int64_t) {}

Array<int64_t> sm90_plan(View a, View b, View c, View rows, View indptr, View lengths, int64_t total, int64_t requests,
                         int64_t d, int64_t e, int64_t f, bool g, int64_t h, int64_t i, bool j, int64_t k) {
  return prefill_plan(a, b, c, rows, indptr, lengths, total, requests, d, e, f, g, h, i, j, k, -1, false, 0);
}
void sm90_paged_run(View, View, Array<int64_t>, View, View, View, View, View, View, View, View, Optional<TensorView>,
                    int64_t, int64_t, int64_t, bool, Maybe, Maybe, Maybe, Maybe, double, double, double, int64_t) {}

Array<int64_t> mla_plan(View, View, View, View rows, View indptr, View lengths, int64_t, int64_t wide, bool) {
  host_i32(rows, "qo_indptr");
  host_i32(indptr, "kv_indptr");
  host_i32(lengths, "kv_len");
  if (wide != 512 || indptr.size(0) != lengths.size(0) + 1) TVM_FFI_THROW(ValueError) << "sizes";
  return {lengths.size(0)};
}
void mla_run(View, View, Array<int64_t>, View q, View q_pe, View c, View pe, View, View out, Optional<TensorView>,
             int64_t, int64_t heads, int64_t page, double, bool) {
  if (q.size(1) != heads || c.size(1) != page || q.size(2) != 512 || q_pe.size(2) != 64 || c.size(2) != 512 ||
      pe.size(2) != 64 || out.size(2) != 512)
    TVM_FFI_THROW(ValueError) << "sizes";
}

} // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(append_paged_mla_kv_cache, append_paged_mla_kv_cache);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(mla_plan, mla_plan);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(mla_run, mla_run);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(rmsnorm, rmsnorm);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(fused_add_rmsnorm, fused_add_rmsnorm);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(silu_and_mul, silu_and_mul);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(apply_rope_pos_ids_cos_sin_cache, apply_rope_pos_ids_cos_sin_cache);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(append_paged_kv_cache, append_paged_kv_cache);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(merge_state, merge_state);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(decode_plan, decode_plan);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(decode_run, decode_run);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(prefill0_plan, prefill_plan);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(prefill10_plan, prefill_plan);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(prefill16_plan, prefill16_plan);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(prefill0_paged_run, prefill0_paged_run);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(prefill10_paged_run, prefill_paged_run);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(prefill16_paged_run, prefill_paged_run);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(sm90_plan, sm90_plan);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(sm90_paged_run, sm90_paged_run);
