/* softmax_attention_stream_fp8.cu: the streamed decode of softmax_attention_stream.cu over fp8 caches.
 *
 * One variant, `stream_fp8`: bf16 queries, K and V in e4m3 or e5m2. Codes are loaded 16 bytes at a time and decoded to
 * bf16 in registers, where the mma takes them; k_scale is part of a score's factor, v_scale one of the sum. All else is
 * in gpu/lib/softmax_stream.cuh. */
#include "gpu/lib/softmax_stream.cuh"

namespace ASSAY_NS {
namespace {

assay_status plan_fp8(const assay_call *call, softmax_plan *plan, assay_error *error) {
  ASSAY_TRY(softmax_read(call, plan, error));
  ASSAY_TRY(expect_stream_fp8(plan->types, error));
  ASSAY_TRY(expect_stream(call, plan->p.a, error));
  return softmax_stream_plan(plan, error);
}

assay_status launch_fp8(const assay_call *call, assay_env *env, assay_error *error) {
  softmax_plan plan;
  ASSAY_TRY(plan_fp8(call, &plan, error));
  ASSAY_TRY(expect_workspace(env, plan.workspace, error));
  softmax_params &p = plan.p;
  softmax_stream_path(p, env);
  if (p.a.N == 0) return ASSAY_OK;
  softmax_stream_place(&p, env->workspace);
  return softmax_stream_launch<stream_fp8>(p, plan.types, env, error);
}

/* As stream: codes are decoded exactly, and their factors meet scores and sums in f32. */
constexpr assay_contract fp8_contract = {ASSAY_NONE,
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
                                         true,
                                         1,
                                         ASSAY_NONE,
                                         false,
                                         tensor_core_terms};

} // namespace
} // namespace ASSAY_NS

#define STREAM_FP8                                                                                                     \
  {                                                                                                                    \
    sizeof(assay_variant), "softmax_attention", "stream_fp8" ASSAY_VARIANT_SUFFIX,                                     \
        "the streamed decode over fp8 caches: codes decoded on their way into tensor cores", ASSAY_DEVICE_NAME, "any", \
        STREAM_FP8_CLAIMS, ::ASSAY_NS::fp8_contract,                                                                   \
        ::ASSAY_NS::supports_by<::ASSAY_NS::softmax_params, ::ASSAY_NS::plan_fp8>,                                     \
        ::ASSAY_NS::workspace_by<::ASSAY_NS::softmax_params, ::ASSAY_NS::plan_fp8>, ::ASSAY_NS::launch_fp8             \
  }

ASSAY_VARIANTS(softmax_attention_stream_fp8, STREAM_FP8)
