/* step_stream_k.cuh: the decode step of step_stream.cuh in even shares (stream_k.cuh), for batches of any lengths. */
#ifndef ASSAY_GPU_LIB_STEP_STREAM_K_CUH
#define ASSAY_GPU_LIB_STEP_STREAM_K_CUH

#include "gpu/lib/gate_stream_k.cuh"
#include "gpu/lib/softmax_stream_k.cuh"
#include "gpu/lib/step_stream.cuh"

namespace ASSAY_NS {

#ifdef ASSAY_STEP_STREAMS_ONCE
template <>
assay_status gate_stream_k_launch<stream_bf16>(const gate_params &, const attention_types &, assay_env *,
                                               assay_error *);
template <>
assay_status softmax_stream_k_launch<stream_bf16>(const softmax_params &, const attention_types &, assay_env *,
                                                  assay_error *);
#endif

/* The streamed decodes in even shares, as step_stream asks for them. */
struct step_k_forms {
  static assay_status expect(const assay_call *call, const step_params &p, const char *query, assay_error *error) {
    ASSAY_TRY(expect_stream(call, p.a, error, query));
    return expect_stream_k(p.a, error);
  }
  static assay_status plan(gate_plan *made, assay_error *error) {
    ASSAY_TRY(gate_expect_taps(made->p, error));
    made->workspace = stream_k_workspace(gate_stream_k_words(made->p.a));
    return ASSAY_OK;
  }
  static assay_status plan(softmax_plan *made, assay_error *error) {
    ASSAY_TRY(softmax_expect_dense(made->p, error));
    made->workspace = stream_k_workspace(softmax_stream_k_words(made->p.a));
    return ASSAY_OK;
  }
  static void path(const gate_params &p, assay_env *env) { gate_stream_k_path(p, env, "stream_k gate"); }
  static void path(const softmax_plan &made, assay_env *env) {
    softmax_stream_k_path(made.p.a, env, "stream_k softmax");
  }
  static assay_status launch(const gate_params &p, const attention_types &types, assay_env *env, assay_error *error) {
    return gate_stream_k_launch<stream_bf16>(p, types, env, error);
  }
  static assay_status launch(const softmax_params &p, const attention_types &types, assay_env *env,
                             assay_error *error) {
    return softmax_stream_k_launch<stream_bf16>(p, types, env, error);
  }
};

} // namespace ASSAY_NS
#endif
