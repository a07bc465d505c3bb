/* variant.cuh: the launcher skeleton that all variants of the attention operators share.
 *
 * A strategy is a type with static members only. The templates below make its row of the variant table from them:
 *
 *   plan                        the type that holds what is read from a call
 *   read(call, plan *, error)   fills the plan, or refuses a call that it does not take: ASSAY_ERR_UNSUPPORTED
 *   path(plan, env)             writes the strategy and its sizes to env->path
 *   start(plan, env, error)     puts the kernels into env->stream; it is not called for a call without rows
 *
 * A plan has `p.a` (attention_params) and `workspace`, the bytes that the launches need. */
#ifndef ASSAY_GPU_LIB_VARIANT_CUH
#define ASSAY_GPU_LIB_VARIANT_CUH

#include "gpu/lib/attention.h"
#include "gpu/lib/launch.h"
#include "gpu/lib/read.h"

namespace ASSAY_NS {

/* A plan of an operator whose kernels take `params`, which have `attention_params a`. */
template <class params> struct attention_plan {
  params p;
  attention_types types;
  int64_t workspace; /* bytes */
};

template <class Strategy> assay_status supports_by(const assay_call *call, assay_error *error) {
  typename Strategy::plan plan;
  return Strategy::read(call, &plan, error);
}

/* Sets *bytes to 0 if the call is refused. */
template <class Strategy> assay_status workspace_by(const assay_call *call, int64_t *bytes, assay_error *error) {
  typename Strategy::plan plan;
  *bytes = 0;
  ASSAY_TRY(Strategy::read(call, &plan, error));
  *bytes = plan.workspace;
  return ASSAY_OK;
}

/* Refuses a workspace smaller than the plan's. A call without rows launches nothing, but its path is written. */
template <class Strategy> assay_status launch_by(const assay_call *call, assay_env *env, assay_error *error) {
  typename Strategy::plan plan;
  ASSAY_TRY(Strategy::read(call, &plan, error));
  ASSAY_TRY(expect_workspace(env, plan.workspace, error));
  const char *const table =
      named_tensor(call, "cu_k") != NULL && assay_find_arg(call, "cu_k") != NULL ? "cu_k" : "block_table";
  plan.p.a.settled = is_settled(call, *env, "kv_len") && is_settled(call, *env, table);
  Strategy::path(plan, env);
  return plan.p.a.N > 0 ? Strategy::start(plan, env, error) : ASSAY_OK;
}

/* A row of the variant table. `why` says when the variant is the right one. `claims` are its dtype | kv_dtype | layout
 * | mode. The last argument is the strategy. */
#define ATTENTION_VARIANT(op, name, why, arch, claims, contract, ...)                                                  \
  {                                                                                                                    \
    sizeof(assay_variant), op, name ASSAY_VARIANT_SUFFIX, why, ASSAY_DEVICE_NAME, arch, claims, ::ASSAY_NS::contract,  \
        ::ASSAY_NS::supports_by<::ASSAY_NS::__VA_ARGS__>, ::ASSAY_NS::workspace_by<::ASSAY_NS::__VA_ARGS__>,           \
        ::ASSAY_NS::launch_by<::ASSAY_NS::__VA_ARGS__>                                                                 \
  }

} // namespace ASSAY_NS
#endif
