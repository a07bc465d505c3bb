/* grouped_gemm_wgmma.cu: grouped_gemm on Hopper's tensor cores.
 *
 *   group_m = g >= 0:  c_mn <- sum_k a_mk b_gnk + bias_gn     bias may be absent
 *   group_m = -1:      0, or the bits that the row had
 *
 * One launch lists tiles: rows that are neighbours and of one group. The next one multiplies them
 * (gpu/lib/grouped_wgmma.cuh). Rows may come in any order; fast are those that are sorted by group. A group outside
 * [-1, E) counts as -1. */
#include "gpu/lib/grouped_wgmma.cuh"

namespace ASSAY_NS {
namespace {

/* Groups with more rows than this, on average, have tiles of up to 256 rows. */
constexpr int64_t few_rows = 40;

struct wgmma_plan {
  grouped_plan plan;
  int64_t a_row, c_row;
};

assay_status read_call(const assay_call *call, wgmma_plan *made, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  ASSAY_TRY(grouped_read(c, &made->plan, error));
  grouped_params *const p = &made->plan.p;
  p->group = c.data<const int32_t>("group");
  p->rows = c.dim("M");
  p->R = p->rows > 0 ? p->rows : 1; /* one slab */
  p->zero = !c.flag("pad");
  made->a_row = p->a_slab;
  made->c_row = p->c_slab;
  p->a_slab = p->c_slab = 0;
  return grouped_wgmma_expect(made->plan, made->a_row, error);
}

assay_status workspace(const assay_call *call, int64_t *bytes, assay_error *error) {
  wgmma_plan made;
  *bytes = 0;
  ASSAY_TRY(read_call(call, &made, error));
  *bytes = grouped_list_bytes(made.plan.p, grouped_few::most);
  return ASSAY_OK;
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  wgmma_plan made;
  ASSAY_TRY(read_call(call, &made, error));
  const grouped_params &p = made.plan.p;
  return grouped_wgmma_launch(made.plan, made.a_row, made.c_row, p.rows <= few_rows * p.G, env, error);
}

} // namespace
} // namespace ASSAY_NS

#define WGMMA                                                                                                          \
  {                                                                                                                    \
    sizeof(assay_variant), "grouped_gemm", "wgmma" ASSAY_VARIANT_SUFFIX,                                               \
        "rows of one group at a time, from the copy engine into tensor cores", ASSAY_DEVICE_NAME, "sm_90a",            \
        GROUPED_WGMMA_CLAIMS, ::ASSAY_NS::grouped_wgmma_contract,                                                      \
        ::ASSAY_NS::plain_supports<::ASSAY_NS::wgmma_plan, ::ASSAY_NS::read_call>, ::ASSAY_NS::workspace,              \
        ::ASSAY_NS::launch, ::ASSAY_NS::grouped_wgmma_sums                                                             \
  }

ASSAY_VARIANTS(grouped_gemm_wgmma, WGMMA)
