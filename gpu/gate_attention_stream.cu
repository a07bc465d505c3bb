/* gate_attention_stream.cu: decode of gate_attention at the speed of memory (gate_attention.cu has the arithmetic).
 *
 * One variant, `stream`: every warp walks alone over a run of keys of one (request, kv head), with the group's heads in
 * the columns of an mma (gpu/lib/stream.cuh, gpu/lib/gate_stream.cuh). docs/kernels/gate_attention.md has what was
 * measured. */
#include "gpu/lib/gate_stream.cuh"

namespace ASSAY_NS {
namespace {

/* ---- launcher ---------------------------------------------------------------------------------------- */

assay_status plan_stream(const assay_call *call, gate_plan *plan, assay_error *error) {
  ASSAY_TRY(gate_read(call, plan, error));
  ASSAY_TRY(expect_stream_same(plan->types, error));
  ASSAY_TRY(expect_stream(call, plan->p.a, error));
  /* Weights lie between lo and hi; cut into parts of f16 they are multiplied by 128. */
  const float most = fmaxf(fabsf(plan->p.lo), fabsf(plan->p.hi));
  if (plan->types.q == ASSAY_F16 && most > 511.0f)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "lo, hi: found %.9g, allowed with f16 up to 511",
                      static_cast<double>(most));
  gate_stream_plan(plan);
  return ASSAY_OK;
}

assay_status launch_stream(const assay_call *call, assay_env *env, assay_error *error) {
  gate_plan plan;
  ASSAY_TRY(plan_stream(call, &plan, error));
  ASSAY_TRY(expect_workspace(env, plan.workspace, error));
  gate_params &p = plan.p;
  gate_stream_path(p, env);
  if (p.a.N == 0) return ASSAY_OK;
  p.partial = static_cast<float *>(env->workspace);
  return gate_stream_launch<stream_same>(p, plan.types, env, error);
}

/* Scores, p and sums stay in f32; q . k is two chains of mma, of 16 products a step; sum p v is spread over at least
 * two lanes of a warp. */
constexpr assay_contract stream_contract = {ASSAY_NONE,
                                            ASSAY_NONE,
                                            ASSAY_NONE,
                                            ASSAY_NONE,
                                            ASSAY_NONE,
                                            0.0,
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

#define STREAM                                                                                                         \
  {                                                                                                                    \
    sizeof(assay_variant), "gate_attention", "stream" ASSAY_VARIANT_SUFFIX,                                            \
        "decode at the speed of memory: a warp a run of keys, K straight into tensor cores, live V only",              \
        ASSAY_DEVICE_NAME, "any", STREAM_CLAIMS, ::ASSAY_NS::stream_contract,                                          \
        ::ASSAY_NS::supports_by<::ASSAY_NS::gate_params, ::ASSAY_NS::plan_stream>,                                     \
        ::ASSAY_NS::workspace_by<::ASSAY_NS::gate_params, ::ASSAY_NS::plan_stream>, ::ASSAY_NS::launch_stream          \
  }

ASSAY_VARIANTS(gate_attention_stream, STREAM)
