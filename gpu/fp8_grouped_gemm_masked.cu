/* fp8_grouped_gemm_masked.cu: a product of e4m3 matrices with scales for each group, of as many rows as the device
 * says.
 *
 *   r < rows_g:  c_grn <- sum_κ sfa_grκ · sfb_{g n/128 κ} · (sum_{i in κ} a_gri · b_gni) + bias_gn
 *
 * κ are pieces of 128 of K. Other rows keep their bits. One variant: one thread per dot product
 * (gpu/lib/block_grouped.cuh). docs/kernels/fp8_grouped_gemm_masked.md has the arithmetic. */
#include "gpu/lib/block_grouped.cuh"

namespace ASSAY_NS {
namespace {

assay_status read_call(const assay_call *call, block_grouped_params *p, assay_error *error) {
  ASSAY_TRY(block_grouped_read_slabs(call, p, error));
  return block_dots_expect_grid(*p, error);
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  block_grouped_params p;
  ASSAY_TRY(read_call(call, &p, error));
  return block_dots_launch(p, env, error);
}

} // namespace
} // namespace ASSAY_NS

#define DOTS                                                                                                           \
  PLAIN_VARIANT("fp8_grouped_gemm_masked", "dots", "any shape: one thread a dot product", PLAIN_TYPE_CLAIMS,           \
                block_dots_contract, block_grouped_params, read_call, launch, ::ASSAY_NS::block_dots_sums)

ASSAY_VARIANTS(fp8_grouped_gemm_masked, DOTS)
