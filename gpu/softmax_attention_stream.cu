/* softmax_attention_stream.cu: decode of softmax_attention at the speed of memory (softmax_attention.cu has the
 * arithmetic).
 *
 * One variant, `stream`: every warp walks alone over a run of keys of one (request, kv head), with the group's heads in
 * the columns of an mma and an online softmax of its own (gpu/lib/stream.cuh, gpu/lib/softmax_stream.cuh).
 * docs/kernels/softmax_attention.md has what was measured. */
#include "gpu/lib/softmax_stream.cuh"

namespace ASSAY_NS {
namespace {

/* ---- launcher ---------------------------------------------------------------------------------------- */

assay_status plan_stream(const assay_call *call, softmax_plan *plan, assay_error *error) {
  ASSAY_TRY(softmax_read(call, plan, error));
  ASSAY_TRY(expect_stream_same(plan->types, error));
  ASSAY_TRY(expect_stream(call, plan->p.a, error));
  ASSAY_TRY(softmax_stream_plan(plan, error));
  const attention_params &a = plan->p.a;
  return expect_filled(a, softmax_stream_warps(a.D, stream_heads(a.G)), assay_dtype_size(plan->types.kv), error);
}

assay_status launch_stream(const assay_call *call, assay_env *env, assay_error *error) {
  softmax_plan plan;
  ASSAY_TRY(plan_stream(call, &plan, error));
  ASSAY_TRY(expect_workspace(env, plan.workspace, error));
  softmax_params &p = plan.p;
  softmax_stream_path(p, env);
  if (p.a.N == 0) return ASSAY_OK;
  softmax_stream_place(&p, env->workspace);
  return softmax_stream_launch<stream_same>(p, plan.types, env, error);
}

/* Scores, weights and sums stay in f32. ex2 and tanhf: 2 ulp. q . k is two chains of mma, of 16 products a step; sum p
 * v is spread over at least two lanes of a warp. zero_p_v: of keys that a row does not see; V of the others is always
 * multiplied, however small p is. */
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
                                            ASSAY_NONE,
                                            false,
                                            tensor_core_terms};

} // namespace
} // namespace ASSAY_NS

#define STREAM                                                                                                         \
  {                                                                                                                    \
    sizeof(assay_variant), "softmax_attention", "stream" ASSAY_VARIANT_SUFFIX,                                         \
        "decode at the speed of memory: a warp a run of keys, K straight into tensor cores", ASSAY_DEVICE_NAME, "any", \
        STREAM_CLAIMS, ::ASSAY_NS::stream_contract,                                                                    \
        ::ASSAY_NS::supports_by<::ASSAY_NS::softmax_params, ::ASSAY_NS::plan_stream>,                                  \
        ::ASSAY_NS::workspace_by<::ASSAY_NS::softmax_params, ::ASSAY_NS::plan_stream>, ::ASSAY_NS::launch_stream       \
  }

ASSAY_VARIANTS(softmax_attention_stream, STREAM)
