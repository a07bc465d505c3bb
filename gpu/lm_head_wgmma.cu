/* lm_head_wgmma.cu: logits of selected rows, which do not depend on the number of rows.
 *
 *   logits_rv = sum_c x[row_index_r, c] w_vc
 *
 * A small kernel gathers the selected rows in the workspace; a row_index outside [0, T) gives a row of zeros. The
 * product is that of gemm's variant wgmma (gpu/lib/gemm_chain.cuh). docs/kernels/lm_head.md has the arithmetic. */
#include "gpu/lib/gather_rows.cuh"
#include "gpu/lib/gemm_chain.cuh"
#include "gpu/lib/lm_head.h"

namespace ASSAY_NS {
namespace {

struct wide_plan {
  wide_params p;
  gather_params gather;
  assay_dtype type;
  int64_t bytes; /* bytes of the gathered rows */
};

assay_status read_plan(const assay_call *call, wide_plan *plan, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  ASSAY_TRY(expect_uncapped(c, error));
  *plan = wide_plan();
  plan->type = c.type("x");
  wide_params *const p = &plan->p;
  p->M = c.dim("R");
  p->N = c.dim("V");
  p->K = c.dim("C");
  p->x = c.data<const void>("x");
  p->w = c.data<const void>("w");
  p->c = c.data<void>("logits");
  p->x_row = c.row("x");
  p->c_row = c.row("logits");
  p->alpha = 1.0f;
  p->wide = c.type("logits") != plan->type;
  p->quads = wide_quads(p->c, p->c_row, c.type("logits"));
  ASSAY_TRY(wide_expect(*p, plan->type, error));
  plan->gather = {c.data<const uint4>("x"),
                  c.data<const int32_t>("row_index"),
                  nullptr,
                  p->x_row / 8,
                  c.dim("T"),
                  p->K / 8,
                  nullptr};
  plan->bytes = p->M * p->K * 2;
  p->x_row = p->K;
  return ASSAY_OK;
}

assay_status supports(const assay_call *call, assay_error *error) {
  wide_plan plan;
  return read_plan(call, &plan, error);
}

assay_status workspace(const assay_call *call, int64_t *bytes, assay_error *error) {
  wide_plan plan;
  *bytes = 0;
  ASSAY_TRY(read_plan(call, &plan, error));
  *bytes = plan.bytes;
  return ASSAY_OK;
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  wide_plan plan;
  ASSAY_TRY(read_plan(call, &plan, error));
  (void)snprintf(env->path, sizeof env->path, "wgmma");
  if (plan.p.M == 0 || plan.p.N == 0) return ASSAY_OK;
  ASSAY_TRY(expect_workspace(env, plan.bytes, error));
  plan.gather.rows = static_cast<uint4 *>(env->workspace);
  plan.p.x = env->workspace;
  launch_options first = in_turn();
  first.followed = true;
  ASSAY_TRY(ASSAY_LAUNCH_WITH(error, gather_rows, plan.p.M, gather_threads, 0, first, env->stream, plan.gather));
  plan.p.early = is_settled(call, *env, "w");
  return chain_launch(plan.p, plan.type, env, error);
}

} // namespace
} // namespace ASSAY_NS

#define WGMMA                                                                                                          \
  {                                                                                                                    \
    sizeof(assay_variant), "lm_head", "wgmma" ASSAY_VARIANT_SUFFIX,                                                    \
        "any rows, and the same bits for each: tensor cores", ASSAY_DEVICE_NAME, "sm_90a", WIDE_TYPE_CLAIMS,           \
        ::ASSAY_NS::wide_contract, ::ASSAY_NS::supports, ::ASSAY_NS::workspace, ::ASSAY_NS::launch,                    \
        ::ASSAY_NS::wide_sums                                                                                          \
  }

ASSAY_VARIANTS(lm_head_wgmma, WGMMA)
