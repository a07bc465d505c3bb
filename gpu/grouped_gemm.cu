/* grouped_gemm.cu: a matrix product in which every row names the group whose weights it meets.
 *
 *   group_m = g >= 0:  c_mn <- sum_k a_mk b_gnk + bias_gn     bias may be absent
 *   group_m = -1:      0, or the bits that the row had
 *
 * One variant: one warp per dot product (gpu/lib/grouped_dots.cuh). A group outside [-1, E) counts as -1.
 * docs/kernels/grouped_gemm.md has the arithmetic. */
#include "gpu/lib/grouped_dots.cuh"

namespace ASSAY_NS {
namespace {

assay_status read_call(const assay_call *call, grouped_plan *plan, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  ASSAY_TRY(grouped_read(c, plan, error));
  grouped_params *const p = &plan->p;
  p->group = c.data<const int32_t>("group");
  p->rows = c.dim("M");
  p->R = 1;
  p->zero = !c.flag("pad");
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
  PLAIN_VARIANT("grouped_gemm", "dots", "any shape: one warp a dot product", PLAIN_TYPE_CLAIMS, grouped_contract,      \
                grouped_plan, read_call, launch, ::ASSAY_NS::grouped_sums)

ASSAY_VARIANTS(grouped_gemm, DOTS)
