/* step_stream_any.cuh: the decode step of step_stream.cuh for heads of any size (stream_any.cuh). */
#ifndef ASSAY_GPU_LIB_STEP_STREAM_ANY_CUH
#define ASSAY_GPU_LIB_STEP_STREAM_ANY_CUH

#include "gpu/lib/gate_stream_any.cuh"
#include "gpu/lib/softmax_stream_any.cuh"
#include "gpu/lib/step_stream.cuh"

namespace ASSAY_NS {

#ifdef ASSAY_STEP_STREAMS_ONCE
template <>
assay_status gate_stream_any_launch<stream_bf16>(const gate_params &, const attention_types &, assay_env *,
                                                 assay_error *);
template <>
assay_status softmax_stream_any_launch<stream_bf16>(const softmax_params &, const attention_types &, assay_env *,
                                                    assay_error *);
#endif

/* The streamed decodes of any size, as step_stream asks for them. */
struct step_any_forms {
  static assay_status expect(const assay_call *call, const step_params &p, const char *query, assay_error *error) {
    return expect_stream_any(call, p.a, error, query);
  }
  static assay_status plan(gate_plan *made, assay_error *error) {
    ASSAY_TRY(gate_expect_any(made->p, error));
    gate_stream_any_plan(made);
    return ASSAY_OK;
  }
  static assay_status plan(softmax_plan *made, assay_error *error) { return softmax_stream_any_plan(made, error); }
  static void path(const gate_params &p, assay_env *env) {
    stream_any_path(p.a, stream_shape_of(p.a, stream_any_warps).warps, p.splits, p.cluster, env, "stream_any gate");
  }
  static void path(const softmax_plan &made, assay_env *env) { softmax_any_path(made, env, "stream_any softmax"); }
  static assay_status launch(const gate_params &p, const attention_types &types, assay_env *env, assay_error *error) {
    return gate_stream_any_launch<stream_bf16>(p, types, env, error);
  }
  static assay_status launch(const softmax_params &p, const attention_types &types, assay_env *env,
                             assay_error *error) {
    return softmax_stream_any_launch<stream_bf16>(p, types, env, error);
  }
};

} // namespace ASSAY_NS
#endif
