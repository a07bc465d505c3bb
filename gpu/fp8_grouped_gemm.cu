/* fp8_grouped_gemm.cu: a product of e4m3 matrices with scales, in which every row names the group of its weights.
 *
 *   group_m = g >= 0:  c_mn <- sum_κ sfa_mκ · sfb_{g n/128 κ} · (sum_{i in κ} a_mi · b_gni) + bias_gn
 *   group_m = -1:      0, or the bits that the row had                                    κ: pieces of 128 of K
 *
 * One variant: one thread per dot product (gpu/lib/block_grouped.cuh). A group outside [-1, E) counts as -1.
 * docs/kernels/fp8_grouped_gemm.md has the arithmetic. */
#include "gpu/lib/block_grouped.cuh"

namespace ASSAY_NS {
namespace {

assay_status read_call(const assay_call *call, block_grouped_params *p, assay_error *error) {
  ASSAY_TRY(block_grouped_read_rows(call, p, error));
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
  PLAIN_VARIANT("fp8_grouped_gemm", "dots", "any shape: one thread a dot product", PLAIN_TYPE_CLAIMS,                  \
                block_dots_contract, block_grouped_params, read_call, launch, ::ASSAY_NS::block_dots_sums)

ASSAY_VARIANTS(fp8_grouped_gemm, DOTS)
