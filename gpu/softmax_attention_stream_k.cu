/* softmax_attention_stream_k.cu: decode of softmax_attention in even shares, for batches of any lengths
 * (softmax_attention.cu has the arithmetic).
 *
 * One variant, `stream_k`: the walk and the online softmax of `stream` (gpu/lib/softmax_stream.cuh), over the pieces of
 * an even share of all keys (gpu/lib/softmax_stream_k.cuh, gpu/lib/stream_k.cuh). docs/kernels/softmax_attention.md has
 * what was measured. */
#include "gpu/lib/softmax_stream_k.cuh"

namespace ASSAY_NS {
namespace {

/* ---- launcher ---------------------------------------------------------------------------------------- */

assay_status plan_stream_k(const assay_call *call, softmax_plan *plan, assay_error *error) {
  ASSAY_TRY(softmax_read(call, plan, error));
  ASSAY_TRY(expect_stream_same(plan->types, error));
  ASSAY_TRY(expect_stream(call, plan->p.a, error));
  ASSAY_TRY(expect_stream_k(plan->p.a, error));
  if (plan->p.sparse_block != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "sparse_block: found %d, allowed 0", plan->p.sparse_block);
  plan->workspace = stream_k_workspace(softmax_stream_k_words(plan->p.a));
  return ASSAY_OK;
}

assay_status launch_stream_k(const assay_call *call, assay_env *env, assay_error *error) {
  softmax_plan plan;
  ASSAY_TRY(plan_stream_k(call, &plan, error));
  ASSAY_TRY(expect_workspace(env, plan.workspace, error));
  const softmax_params &p = plan.p;
  const int64_t shares = stream_k_shares(env);
  (void)snprintf(env->path, sizeof env->path, "stream_k shares=%d D=%d G=%d%s", static_cast<int>(shares), p.a.D, p.a.G,
                 form_of(p.a));
  if (p.a.N == 0) return ASSAY_OK;
  return softmax_stream_k_launch<stream_same>(p, plan.types, shares, env->workspace, env, error);
}

/* As of `stream`; where shares begin depends on all lengths of the batch, and so do a few roundings. */
constexpr assay_contract stream_k_contract = {ASSAY_NONE,
                                              ASSAY_NONE,
                                              ASSAY_NONE,
                                              ASSAY_NONE,
                                              ASSAY_NONE,
                                              2.0,
                                              2,
                                              2,
                                              0,
                                              0.0,
                                              ASSAY_V_SKIPPED_FOR_GROUP,
                                              true,
                                              true,
                                              false,
                                              1,
                                              ASSAY_NONE,
                                              false,
                                              tensor_core_terms};

} // namespace
} // namespace ASSAY_NS

#define STREAM_K                                                                                                       \
  {                                                                                                                    \
    sizeof(assay_variant), "softmax_attention", "stream_k" ASSAY_VARIANT_SUFFIX,                                       \
        "decode of any lengths: even shares of all keys, one a thread block, by the walk of stream",                   \
        ASSAY_DEVICE_NAME, "any", STREAM_CLAIMS, ::ASSAY_NS::stream_k_contract,                                        \
        ::ASSAY_NS::supports_by<::ASSAY_NS::softmax_params, ::ASSAY_NS::plan_stream_k>,                                \
        ::ASSAY_NS::workspace_by<::ASSAY_NS::softmax_params, ::ASSAY_NS::plan_stream_k>, ::ASSAY_NS::launch_stream_k   \
  }

ASSAY_VARIANTS(softmax_attention_stream_k, STREAM_K)
