/* grouped_gemm_masked.cu: a matrix product for each group, of as many rows as the device says.
 *
 *   r < rows_g:  c_grn <- sum_k a_grk b_gnk + bias_gn     bias may be absent; other rows keep their bits
 *
 * One variant: one warp per dot product (gpu/lib/grouped_dots.cuh). docs/kernels/grouped_gemm_masked.md has the
 * arithmetic. */
#include "gpu/lib/grouped_dots.cuh"

namespace ASSAY_NS {
namespace {

assay_status read_call(const assay_call *call, grouped_plan *plan, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  ASSAY_TRY(grouped_read(c, plan, error));
  grouped_params *const p = &plan->p;
  p->live = c.data<const int32_t>("rows");
  p->R = c.dim("R");
  p->rows = p->G * p->R;
  return grouped_expect_grid(*p, error);
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  grouped_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  return grouped_launch(plan, env, error);
}

} // namespace
} // namespace ASSAY_NS

#define DOTS                                                                                                           \
  PLAIN_VARIANT("grouped_gemm_masked", "dots", "any shape: one warp a dot product", PLAIN_TYPE_CLAIMS,                 \
                grouped_contract, grouped_plan, read_call, launch, ::ASSAY_NS::grouped_sums)

ASSAY_VARIANTS(grouped_gemm_masked, DOTS)
