/* lm_head_cublaslt.cu: logits of selected rows, by cuBLASLt.
 *
 *   logits_rv = sum_c x[row_index_r, c] w_vc
 *
 * A small kernel gathers the selected rows in the workspace; a row_index outside [0, T) gives a row of zeros. The
 * product is the library's (gpu/lib/cublaslt.h). simt does not have this variant. docs/kernels/lm_head.md has the
 * arithmetic. */
#include "gpu/lib/gather_rows.cuh"
#include "gpu/lib/library.h"
#include "gpu/lib/lm_head.h"

#ifndef ASSAY_HAVE_CUBLASLT
ASSAY_NO_VARIANTS(lm_head_cublaslt)
#else

namespace ASSAY_NS {
namespace {

constexpr int64_t gather_alignment = 256;

struct blas_plan {
  assay_cuda_host::blas_product product;
  assay_cuda_host::blas_operands operands;
  assay_cuda_host::blas_found found;
  gather_params gather;
  int64_t gathered_bytes;
};

assay_status read_plan(const assay_call *call, blas_plan *plan, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  ASSAY_TRY(expect_uncapped(c, error));
  *plan = blas_plan();
  const int64_t R = c.dim("R"), C = c.dim("C"), size = assay_dtype_size(c.type("x"));
  plan->product = {R, c.dim("V"), C, c.dim("T") > 1 ? c.row("x") : C, c.type("x"), c.type("logits"), false, false};
  plan->operands = {c.data<const void>("x"), c.data<const void>("w"), NULL, c.data<void>("logits"), 1.0f, 0.0f};
  ASSAY_TRY(library_expect(plan->product, plan->operands, error));
  plan->gather = {c.data<const uint4>("x"),
                  c.data<const int32_t>("row_index"),
                  NULL,
                  plan->product.x_row * size / 16,
                  c.dim("T"),
                  C * size / 16,
                  NULL};
  plan->product.x_row = C;
  plan->gathered_bytes = (R * C * size + gather_alignment - 1) / gather_alignment * gather_alignment;
  if (R == 0 || plan->product.N == 0) return ASSAY_OK;
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
  *bytes = plan.gathered_bytes + plan.found.workspace_bytes;
  return ASSAY_OK;
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  blas_plan plan;
  ASSAY_TRY(read_plan(call, &plan, error));
  (void)snprintf(env->path, sizeof env->path, "%s", plan.found.path);
  if (plan.product.M == 0 || plan.product.N == 0) return ASSAY_OK;
  ASSAY_TRY(expect_workspace(env, plan.gathered_bytes + plan.found.workspace_bytes, error));
  plan.gather.rows = static_cast<uint4 *>(env->workspace);
  ASSAY_TRY(ASSAY_LAUNCH(error, gather_rows, plan.product.M, gather_threads, 0, env->stream, plan.gather));
  plan.operands.x = env->workspace;
  return assay_cuda_host::blas_launch(plan.found, plan.operands,
                                      static_cast<unsigned char *>(env->workspace) + plan.gathered_bytes, env->stream,
                                      error);
}

assay_status declare_sums(const assay_call *call, const assay_env *, assay_sums *sums, assay_error *error) {
  blas_plan plan;
  ASSAY_TRY(read_plan(call, &plan, error));
  if (plan.product.M == 0 || plan.product.N == 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "the result is empty");
  return assay_cuda_host::blas_sums(plan.found, sums, error);
}

} // namespace
} // namespace ASSAY_NS

#define CUBLASLT                                                                                                       \
  {                                                                                                                    \
    sizeof(assay_variant), "lm_head", "cublaslt" ASSAY_VARIANT_SUFFIX, "many rows: the vendor's library",              \
        ASSAY_DEVICE_NAME, "any", "f32,f16,bf16", ::ASSAY_NS::library_contract(), ::ASSAY_NS::supports,                \
        ::ASSAY_NS::workspace, ::ASSAY_NS::launch, ::ASSAY_NS::declare_sums                                            \
  }

ASSAY_VARIANTS(lm_head_cublaslt, CUBLASLT)
#endif
