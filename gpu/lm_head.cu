/* lm_head.cu: logits of selected rows.
 *
 *   logits_rv = sum_c x[row_index_r, c] w_vc
 *
 * A row_index outside [0, T) gives a row of zeros: nothing outside x is read. One variant: the tiles of gemm over the
 * selected rows (gpu/lib/gemm.cuh). docs/kernels/lm_head.md has the arithmetic. */
#include "gpu/lib/gemm.cuh"

namespace ASSAY_NS {
namespace {

struct lm_head_plan {
  gemm_params p;
  assay_dtype type, out;
};

assay_status read_call(const assay_call *call, lm_head_plan *plan, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  *plan = lm_head_plan();
  plan->type = c.type("x");
  plan->out = c.type("logits");
  ASSAY_TRY(expect_type("x", plan->type, error));
  gemm_params *const p = &plan->p;
  p->M = c.dim("R");
  p->N = c.dim("V");
  p->K = c.dim("C");
  p->a = c.data<const void>("x");
  p->b = c.data<const void>("w");
  p->select = c.data<const int32_t>("row_index");
  p->c = c.data<void>("logits");
  p->a_row = c.row("x");
  p->a_rows = c.dim("T");
  p->c_row = c.row("logits");
  p->alpha = 1.0f;
  const int64_t size = assay_dtype_size(plan->type);
  p->quads = rowwise_quads(p->a, p->a_row, size) && rowwise_quads(p->b, p->K, size);
  return ASSAY_OK;
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  lm_head_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  return gemm_launch(plan.p, plan.type, plan.out, env, error);
}

constexpr assay_contract contract = rowwise_contract(0.0, 1);

} // namespace
} // namespace ASSAY_NS

#define TILES                                                                                                          \
  PLAIN_VARIANT("lm_head", "tiles", "any shape: tiles of 32 rows by 64 token ids", PLAIN_TYPE_CLAIMS, contract,        \
                lm_head_plan, read_call, launch, ::ASSAY_NS::gemm_tiles_sums)

ASSAY_VARIANTS(lm_head, TILES)
