/* library.h: variants that a library computes, for operators that are products with weights [out, in]. */
#ifndef ASSAY_GPU_LIB_LIBRARY_H
#define ASSAY_GPU_LIB_LIBRARY_H

#include "gpu/lib/plain.h"
#include "gpu/lib/rowwise.cuh"

/* The library's header comes with the toolkit, but may be left out of it. */
#if !defined(ASSAY_SIMT) && defined(__has_include)
#if __has_include(<cublasLt.h>)
#define ASSAY_HAVE_CUBLASLT
#endif
#endif

#ifndef ASSAY_HAVE_CUBLASLT

/* Defines the table of a file that has no variants in this compilation. */
#define ASSAY_NO_VARIANTS(stem)                                                                                        \
  extern "C" const assay_variant *ASSAY_PASTE(ASSAY_VARIANTS_SYMBOL, stem)(int32_t * count) {                          \
    *count = 0;                                                                                                        \
    return NULL;                                                                                                       \
  }

#else
#include "gpu/lib/cublaslt.h"

namespace ASSAY_NS {

inline bool library_aligned(const void *data) {
  return reinterpret_cast<uintptr_t>(data) % assay_cuda_host::blas_alignment == 0;
}

/* Refuses calls that the library does not compute, or not correctly. These are misaligned rows, a bias of another type
 * than the result, and cases that gave wrong results. */
inline assay_status library_expect(const assay_cuda_host::blas_product &p, const assay_cuda_host::blas_operands &o,
                                   assay_error *error) {
  const int64_t quantum = assay_cuda_host::blas_alignment / assay_dtype_size(p.type);
  if (p.K % quantum != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "terms of a sum: found %lld, allowed multiples of %lld",
                      static_cast<long long>(p.K), static_cast<long long>(quantum));
  if (p.x_row % quantum != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "elements between rows: found %lld, allowed multiples of %lld",
                      static_cast<long long>(p.x_row), static_cast<long long>(quantum));
  /* Observed on an H100 and an H200: rows of 16 bits between 2^31 and 2^32 bytes apart cause a fault. */
  if (p.x_row > INT32_MAX / assay_dtype_size(p.type))
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "elements between rows: found %lld, allowed up to %lld",
                      static_cast<long long>(p.x_row), static_cast<long long>(INT32_MAX / assay_dtype_size(p.type)));
  if (!library_aligned(o.x) || !library_aligned(o.w) || !library_aligned(o.d) || !library_aligned(o.bias))
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "addresses: allowed multiples of %u",
                      assay_cuda_host::blas_alignment);
  if (p.biased && p.out != p.type)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "bias: found %s for a result of %s, allowed the same type",
                      assay_dtype_name(p.type), assay_dtype_name(p.out));
  /* Observed: if rows of the result are not aligned, the product is rounded before the bias is added. */
  if (p.biased && p.N % quantum != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "columns with a bias: found %lld, allowed multiples of %lld",
                      static_cast<long long>(p.N), static_cast<long long>(quantum));
  /* Observed on an H200: the product is rounded to 16 bits before it is added to c. */
  if (p.reads && o.beta == 1.0f && assay_dtype_size(p.out) == 2)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                      "beta: found 1 for a result of %s, allowed others, or a result of f32", assay_dtype_name(p.out));
  /* Observed on an H200: the bias of one row is left out. */
  if (p.biased && o.alpha == 0.0f)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "alpha: found 0 with a bias, allowed others");
  return ASSAY_OK;
}

/* Returns whether the library can be used at all. */
inline bool library_there() {
  assay_error why = {""};
  assay_cuda_host::blas_shared *const state = assay_cuda_host::blas_state();
  const std::lock_guard<std::mutex> held(state->lock);
  return assay_cuda_host::blas_need(state, &why) == ASSAY_OK;
}

/* Returns the contract. Sums are in f32 in an unknown order, for which one running sum is the minimum. The library
 * promises the same bits for the same call on the same device. It does not promise that the place of a row, or the
 * other rows, have no influence. */
constexpr assay_contract library_contract() {
  assay_contract c = rowwise_contract(0.0, 1);
  c.permutation = c.alone = false;
  c.cut = tensor_core_terms; /* for 16-bit operands; others are multiplied elsewhere */
  return c;
}

} // namespace ASSAY_NS
#endif
#endif
