/* fp8_grouped_gemm_masked_wgmma.cu: fp8_grouped_gemm_masked on Hopper's tensor cores.
 *
 *   r < rows_g:  c_grn <- sum_κ sfa_grκ · sfb_{g n/128 κ} · (sum_{i in κ} a_gri · b_gni) + bias_gn
 *
 * κ are pieces of 128 of K. Other rows keep their bits. One launch lists the tiles of live rows. The next one
 * multiplies them (gpu/lib/block_grouped_wgmma.cuh). */
#include "gpu/lib/block_grouped_wgmma.cuh"

namespace ASSAY_NS {
namespace {

assay_status read_call(const assay_call *call, block_grouped_params *p, assay_error *error) {
  ASSAY_TRY(block_grouped_read_slabs(call, p, error));
  return block_grouped_wgmma_expect(*p, error);
}

assay_status workspace(const assay_call *call, int64_t *bytes, assay_error *error) {
  block_grouped_params p;
  *bytes = 0;
  ASSAY_TRY(read_call(call, &p, error));
  *bytes = grouped_list_bytes(p.rows, block_few::rows);
  return ASSAY_OK;
}

/* Groups that have room for more than a tile of 64 rows get tiles of 128. */
assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  block_grouped_params p;
  ASSAY_TRY(read_call(call, &p, error));
  return block_grouped_wgmma_launch(p, p.rows.R <= block_few::rows, env, error);
}

} // namespace
} // namespace ASSAY_NS

#define WGMMA                                                                                                          \
  {                                                                                                                    \
    sizeof(assay_variant), "fp8_grouped_gemm_masked", "wgmma" ASSAY_VARIANT_SUFFIX,                                    \
        "live rows of one group at a time, from the copy engine into tensor cores", ASSAY_DEVICE_NAME, "sm_90a",       \
        PLAIN_TYPE_CLAIMS, ::ASSAY_NS::block_wgmma_contract,                                                           \
        ::ASSAY_NS::plain_supports<::ASSAY_NS::block_grouped_params, ::ASSAY_NS::read_call>, ::ASSAY_NS::workspace,    \
        ::ASSAY_NS::launch, ::ASSAY_NS::block_wgmma_sums                                                               \
  }

ASSAY_VARIANTS(fp8_grouped_gemm_masked_wgmma, WGMMA)
