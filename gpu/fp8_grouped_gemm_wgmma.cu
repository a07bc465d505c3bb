/* fp8_grouped_gemm_wgmma.cu: fp8_grouped_gemm on Hopper's tensor cores.
 *
 *   group_m = g >= 0:  c_mn <- sum_κ sfa_mκ · sfb_{g n/128 κ} · (sum_{i in κ} a_mi · b_gni) + bias_gn
 *   group_m = -1:      0, or the bits that the row had                                    κ: pieces of 128 of K
 *
 * One launch lists tiles: rows that are neighbours and of one group. The next one multiplies them
 * (gpu/lib/block_grouped_wgmma.cuh). Rows may come in any order; fast are those that are sorted by group. A group
 * outside [-1, E) counts as -1. */
#include "gpu/lib/block_grouped_wgmma.cuh"

namespace ASSAY_NS {
namespace {

assay_status read_call(const assay_call *call, block_grouped_params *p, assay_error *error) {
  ASSAY_TRY(block_grouped_read_rows(call, p, error));
  return block_grouped_wgmma_expect(*p, error);
}

assay_status workspace(const assay_call *call, int64_t *bytes, assay_error *error) {
  block_grouped_params p;
  *bytes = 0;
  ASSAY_TRY(read_call(call, &p, error));
  *bytes = grouped_list_bytes(p.rows, block_few::rows);
  return ASSAY_OK;
}

/* Groups with more rows than this, on average, have tiles of up to 128 rows. */
constexpr int64_t few_rows = 64;

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  block_grouped_params p;
  ASSAY_TRY(read_call(call, &p, error));
  return block_grouped_wgmma_launch(p, p.rows.rows <= few_rows * p.rows.G, env, error);
}

} // namespace
} // namespace ASSAY_NS

#define WGMMA                                                                                                          \
  {                                                                                                                    \
    sizeof(assay_variant), "fp8_grouped_gemm", "wgmma" ASSAY_VARIANT_SUFFIX,                                           \
        "rows of one group at a time, from the copy engine into tensor cores", ASSAY_DEVICE_NAME, "sm_90a",            \
        PLAIN_TYPE_CLAIMS, ::ASSAY_NS::block_wgmma_contract,                                                           \
        ::ASSAY_NS::plain_supports<::ASSAY_NS::block_grouped_params, ::ASSAY_NS::read_call>, ::ASSAY_NS::workspace,    \
        ::ASSAY_NS::launch, ::ASSAY_NS::block_wgmma_sums                                                               \
  }

ASSAY_VARIANTS(fp8_grouped_gemm_wgmma, WGMMA)
