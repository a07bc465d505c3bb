/* mmha_stream.cu: mmha by the streamed decode, for bf16 and caches of bf16 and fp8.
 *
 * One variant, `stream`: a small kernel makes q, k and v of the step, keeps q in bf16 and writes k and v to their slot,
 * and a walk of gpu/lib/stream_walk.cuh attends over the cache as it is then, gate or softmax
 * (gpu/lib/step_stream.cuh). docs/kernels/mmha.md. */
#include "gpu/lib/mmha_call.cuh"
#include "gpu/lib/step_stream.cuh"

namespace ASSAY_NS {
namespace {

assay_status plan_stream(const assay_call *call, mmha_plan *plan, int64_t *bytes, assay_error *error) {
  ASSAY_TRY(mmha_read(call, plan, error));
  return plan_step_stream(call, plan->p, plan->types, NULL, bytes, error);
}

assay_status supports(const assay_call *call, assay_error *error) {
  mmha_plan plan;
  int64_t bytes = 0;
  return plan_stream(call, &plan, &bytes, error);
}

assay_status workspace(const assay_call *call, int64_t *bytes, assay_error *error) {
  mmha_plan plan;
  *bytes = 0;
  return plan_stream(call, &plan, bytes, error);
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  mmha_plan plan;
  int64_t bytes = 0;
  ASSAY_TRY(plan_stream(call, &plan, &bytes, error));
  ASSAY_TRY(expect_workspace(env, bytes, error));
  return launch_step_stream<fused_source>(plan.p, plan.types, plan.rows, true, env, error);
}

/* As the attention's own streams: scores, p and sums stay in f32, codes are decoded exactly; ex2: 2 ulp; q . k is two
 * chains of mma, sum p v spread over at least two lanes of a warp. q is rounded to bf16 between the launches. */
constexpr assay_contract stream_contract = {ASSAY_NONE,
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
                                            ASSAY_BF16,
                                            false,
                                            tensor_core_terms};

} // namespace
} // namespace ASSAY_NS

#define STREAM                                                                                                         \
  {                                                                                                                    \
    sizeof(assay_variant), "mmha", "stream" ASSAY_VARIANT_SUFFIX,                                                      \
        "the streamed decode: bias, rotation and the token first, then a warp a run of keys", ASSAY_DEVICE_NAME,       \
        "any", STEP_STREAM_CLAIMS, ::ASSAY_NS::stream_contract, ::ASSAY_NS::supports, ::ASSAY_NS::workspace,           \
        ::ASSAY_NS::launch                                                                                             \
  }

ASSAY_VARIANTS(mmha_stream, STREAM)
