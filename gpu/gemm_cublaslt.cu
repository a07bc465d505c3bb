/* gemm_cublaslt.cu: a matrix product with weights [out, in], by cuBLASLt.
 *
 *   c_mn <- alpha * sum_k a_mk b_nk + beta * c_mn + bias_n        beta 0: c is not read; bias may be absent
 *
 * The kernel is the library's: its algorithm for the shape, with sums in f32 in an order that the library does not
 * promise. The variant declares sums for versions that a GPU has confirmed (docs/last-bit.md). Splits of k are added in
 * f32 (gpu/lib/cublaslt.h). simt does not have this variant. docs/kernels/gemm.md has the arithmetic. */
#include "gpu/lib/library.h"

#ifndef ASSAY_HAVE_CUBLASLT
ASSAY_NO_VARIANTS(gemm_cublaslt)
#else

namespace ASSAY_NS {
namespace {

struct blas_plan {
  assay_cuda_host::blas_product product;
  assay_cuda_host::blas_operands operands;
  assay_cuda_host::blas_found found;
};

assay_status read_call(const assay_call *call, blas_plan *plan, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  *plan = blas_plan();
  plan->product = {c.dim("M"), c.dim("N"), c.dim("K"), 0, c.type("a"), c.type("c"), c.has("bias"), c.real("beta") != 0};
  plan->product.x_row = plan->product.M > 1 ? c.row("a") : plan->product.K;
  plan->operands = {c.data<const void>("a"), c.data<const void>("b"), c.data<const void>("bias"),
                    c.data<void>("c"),       c.real("alpha"),         c.real("beta")};
  return library_expect(plan->product, plan->operands, error);
}

assay_status read_plan(const assay_call *call, blas_plan *plan, assay_error *error) {
  ASSAY_TRY(read_call(call, plan, error));
  if (plan->product.M == 0 || plan->product.N == 0) return ASSAY_OK;
  return assay_cuda_host::blas_find(plan->product, &plan->found, error);
}

assay_status supports(const assay_call *call, assay_error *error) {
  blas_plan plan;
  return read_plan(call, &plan, error);
}

assay_status workspace(const assay_call *call, int64_t *bytes, assay_error *error) {
  blas_plan plan;
  *bytes = 0;
  ASSAY_TRY(read_plan(call, &plan, error));
  *bytes = plan.found.workspace_bytes;
  return ASSAY_OK;
}

assay_status start(const blas_plan &plan, assay_env *env, assay_error *error) {
  (void)snprintf(env->path, sizeof env->path, "%s", plan.found.path);
  if (plan.product.M == 0 || plan.product.N == 0) return ASSAY_OK;
  ASSAY_TRY(expect_workspace(env, plan.found.workspace_bytes, error));
  return assay_cuda_host::blas_launch(plan.found, plan.operands, env->workspace, env->stream, error);
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  blas_plan plan;
  ASSAY_TRY(read_plan(call, &plan, error));
  return start(plan, env, error);
}

/* Gives the sums of the algorithm that was found. With alpha 0 the library computes none: its zeros are positive. With
 * f32 results and a negative alpha, some calls give +0 for a sum of zero. Which calls do so is not known. */
assay_status known_sums(const blas_plan &plan, assay_sums *sums, assay_error *error) {
  if (plan.operands.alpha == 0.0f)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "alpha: found 0, sums are known for others");
  if (plan.operands.alpha < 0.0f && plan.product.out == ASSAY_F32)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "alpha: found %.9g, sums in f32 are known for positive ones",
                      static_cast<double>(plan.operands.alpha));
  return assay_cuda_host::blas_sums(plan.found, sums, error);
}

assay_status declare_sums(const assay_call *call, const assay_env *, assay_sums *sums, assay_error *error) {
  blas_plan plan;
  ASSAY_TRY(read_plan(call, &plan, error));
  if (plan.product.M == 0 || plan.product.N == 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "the result is empty");
  /* With f32 results some calls add beta · c as a product of its own, others by one FMA. Which do is not known. */
  if (plan.product.reads)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "beta: found %.9g, sums are known for 0",
                      static_cast<double>(plan.operands.beta));
  return known_sums(plan, sums, error);
}

/* ---- whole sums: rows that do not depend on their number ----------------------------------------------- */

/* wgmma gives the same bits, and is faster in the steps of decoding: it begins under the launch before it. */
constexpr int64_t whole_min_rows = 129;

/* Reads a call for an algorithm that does not cut K. Its sums must be known: one chain in the order of k, as wgmma's
 * are. The bits of a row then depend neither on the algorithm nor on the number of rows. */
assay_status read_whole(const assay_call *call, blas_plan *plan, assay_error *error) {
  assay_sums sums = {};
  ASSAY_TRY(read_call(call, plan, error));
  const assay_cuda_host::blas_product &product = plan->product;
  if (product.M < whole_min_rows)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "M: found %lld, allowed %lld and above",
                      static_cast<long long>(product.M), static_cast<long long>(whole_min_rows));
  if (product.reads)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "beta: found %.9g, allowed 0",
                      static_cast<double>(plan->operands.beta));
  plan->product.whole = true;
  if (product.N == 0) return ASSAY_OK;
  ASSAY_TRY(assay_cuda_host::blas_find(product, &plan->found, error));
  return assay_cuda_host::blas_sums(plan->found, &sums, error);
}

assay_status whole_supports(const assay_call *call, assay_error *error) {
  blas_plan plan;
  return read_whole(call, &plan, error);
}

assay_status whole_workspace(const assay_call *call, int64_t *bytes, assay_error *error) {
  blas_plan plan;
  *bytes = 0;
  ASSAY_TRY(read_whole(call, &plan, error));
  *bytes = plan.found.workspace_bytes;
  return ASSAY_OK;
}

assay_status whole_launch(const assay_call *call, assay_env *env, assay_error *error) {
  blas_plan plan;
  ASSAY_TRY(read_whole(call, &plan, error));
  return start(plan, env, error);
}

assay_status whole_sums(const assay_call *call, const assay_env *, assay_sums *sums, assay_error *error) {
  blas_plan plan;
  ASSAY_TRY(read_whole(call, &plan, error));
  if (plan.product.N == 0) return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "the result is empty");
  return known_sums(plan, sums, error);
}

constexpr assay_contract whole_contract() {
  assay_contract c = library_contract();
  c.alone = true;
  return c;
}

} // namespace
} // namespace ASSAY_NS

#define CUBLASLT                                                                                                       \
  {                                                                                                                    \
    sizeof(assay_variant), "gemm", "cublaslt" ASSAY_VARIANT_SUFFIX, "many rows: the vendor's library",                 \
        ASSAY_DEVICE_NAME, "any", "f32,f16,bf16", ::ASSAY_NS::library_contract(), ::ASSAY_NS::supports,                \
        ::ASSAY_NS::workspace, ::ASSAY_NS::launch, ::ASSAY_NS::declare_sums                                            \
  }

#define WHOLE                                                                                                          \
  {                                                                                                                    \
    sizeof(assay_variant), "gemm", "cublaslt_whole" ASSAY_VARIANT_SUFFIX,                                              \
        "many rows, and the same bits for each: the library where its sums are known", ASSAY_DEVICE_NAME, "any",       \
        "f16,bf16", ::ASSAY_NS::whole_contract(), ::ASSAY_NS::whole_supports, ::ASSAY_NS::whole_workspace,             \
        ::ASSAY_NS::whole_launch, ::ASSAY_NS::whole_sums                                                               \
  }

ASSAY_VARIANTS(gemm_cublaslt, CUBLASLT, WHOLE)
#endif
