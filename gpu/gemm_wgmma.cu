/* gemm_wgmma.cu: a matrix product with weights [out, in], whose rows do not depend on their number.
 *
 *   c_mn <- alpha * sum_k a_mk b_nk + beta * c_mn + bias_n        beta 0: c is not read; bias may be absent
 *
 * One variant: tiles on Hopper's tensor cores, each element one chain in the order of k (gpu/lib/gemm_wgmma.cuh). At
 * most 64 rows have a kernel of their own, with the same bits (gpu/lib/gemm_chain.cuh).
 * docs/kernels/gemm.md has the arithmetic. */
#include "gpu/lib/gemm_chain.cuh"
#include "gpu/lib/gemm_read.cuh"

namespace ASSAY_NS {
namespace {

assay_status read_call(const assay_call *call, gemm_plan *plan, assay_error *error) {
  ASSAY_TRY(gemm_read(call, plan, error));
  return wide_expect(plan->p, plan->type, error);
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  gemm_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  plan.p.early = is_settled(call, *env, "b");
  (void)snprintf(env->path, sizeof env->path, "wgmma");
  if (plan.p.M == 0 || plan.p.N == 0) return ASSAY_OK;
  return chain_launch(plan.p, plan.type, env, error);
}

} // namespace
} // namespace ASSAY_NS

#define WGMMA                                                                                                          \
  GEMM_VARIANT("wgmma", "any rows, and the same bits for each: tensor cores", wide_contract, read_call, launch,        \
               wide_sums)

ASSAY_VARIANTS(gemm_wgmma, WGMMA)
