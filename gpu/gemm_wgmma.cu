/* gemm_wgmma.cu: a matrix product with weights [out, in], whose rows do not depend on their number.
 *
 *   c_mn <- alpha * sum_k a_mk b_nk + beta * c_mn + bias_n        beta 0: c is not read; bias may be absent
 *
 * One variant: tiles on Hopper's tensor cores, each element one chain in the order of k (gpu/lib/gemm_wgmma.cuh). At
 * most 64 rows have a kernel of their own, with the same bits (gpu/lib/gemm_chain.cuh).
 * docs/kernels/gemm.md has the arithmetic. */
#include "gpu/lib/gemm_chain.cuh"

namespace ASSAY_NS {
namespace {

struct wide_plan {
  wide_params p;
  assay_dtype type;
};

assay_status read_call(const assay_call *call, wide_plan *plan, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  *plan = wide_plan();
  plan->type = c.type("a");
  wide_params *const p = &plan->p;
  p->M = c.dim("M");
  p->N = c.dim("N");
  p->K = c.dim("K");
  p->x = c.data<const void>("a");
  p->w = c.data<const void>("b");
  p->bias = c.data<const void>("bias");
  p->c = c.data<void>("c");
  p->x_row = c.row("a");
  p->c_row = c.row("c");
  p->alpha = c.real("alpha");
  p->beta = c.real("beta");
  p->wide = c.type("c") != plan->type;
  p->quads = wide_quads(p->c, p->c_row, c.type("c"));
  return wide_expect(*p, plan->type, error);
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  wide_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  plan.p.early = is_settled(call, *env, "b");
  (void)snprintf(env->path, sizeof env->path, "wgmma");
  if (plan.p.M == 0 || plan.p.N == 0) return ASSAY_OK;
  return chain_launch(plan.p, plan.type, env, error);
}

} // namespace
} // namespace ASSAY_NS

#define WGMMA                                                                                                          \
  {                                                                                                                    \
    sizeof(assay_variant), "gemm", "wgmma" ASSAY_VARIANT_SUFFIX, "any rows, and the same bits for each: tensor cores", \
        ASSAY_DEVICE_NAME, "sm_90a", WIDE_TYPE_CLAIMS, ::ASSAY_NS::wide_contract,                                      \
        ::ASSAY_NS::plain_supports<::ASSAY_NS::wide_plan, ::ASSAY_NS::read_call>,                                      \
        ::ASSAY_NS::plain_no_workspace<::ASSAY_NS::wide_plan, ::ASSAY_NS::read_call>, ::ASSAY_NS::launch,              \
        ::ASSAY_NS::wide_sums                                                                                          \
  }

ASSAY_VARIANTS(gemm_wgmma, WGMMA)
