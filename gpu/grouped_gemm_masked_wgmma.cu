/* grouped_gemm_masked_wgmma.cu: grouped_gemm_masked on Hopper's tensor cores.
 *
 *   r < rows_g:  c_grn <- sum_k a_grk b_gnk + bias_gn     bias may be absent; other rows keep their bits
 *
 * One launch lists the tiles of live rows. The next one multiplies them (gpu/lib/grouped_wgmma.cuh). */
#include "gpu/lib/grouped_wgmma.cuh"

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
  return grouped_wgmma_expect(*plan, p->a_slab, error);
}

assay_status workspace(const assay_call *call, int64_t *bytes, assay_error *error) {
  grouped_plan plan;
  *bytes = 0;
  ASSAY_TRY(read_call(call, &plan, error));
  *bytes = grouped_list_bytes(plan.p, grouped_few::most);
  return ASSAY_OK;
}

/* Groups that have room for more than a narrow tile get wide ones. */
assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  grouped_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  return grouped_wgmma_launch(plan, plan.p.K, plan.p.N, plan.p.R <= grouped_few::most, env, error);
}

} // namespace
} // namespace ASSAY_NS

#define WGMMA                                                                                                          \
  {                                                                                                                    \
    sizeof(assay_variant), "grouped_gemm_masked", "wgmma" ASSAY_VARIANT_SUFFIX,                                        \
        "live rows of one group at a time, from the copy engine into tensor cores", ASSAY_DEVICE_NAME, "sm_90a",       \
        GROUPED_WGMMA_CLAIMS, ::ASSAY_NS::grouped_wgmma_contract,                                                      \
        ::ASSAY_NS::plain_supports<::ASSAY_NS::grouped_plan, ::ASSAY_NS::read_call>, ::ASSAY_NS::workspace,            \
        ::ASSAY_NS::launch, ::ASSAY_NS::grouped_wgmma_sums                                                             \
  }

ASSAY_VARIANTS(grouped_gemm_masked_wgmma, WGMMA)
