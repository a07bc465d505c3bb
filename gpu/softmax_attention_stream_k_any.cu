/* softmax_attention_stream_k_any.cu: decode of softmax_attention in even shares, for heads of any size.
 *
 * One variant, `stream_k_any`, for heads of up to 112 channels: what `stream_k` does (softmax_attention_stream_k.cu),
 * with the walk of gpu/lib/stream_ring.cuh. */
#include "gpu/lib/softmax_stream_k.cuh"

namespace ASSAY_NS {
namespace {

struct stream_k_any {
  using plan = softmax_plan;
  static assay_status read(const assay_call *call, plan *made, assay_error *error) {
    ASSAY_TRY(softmax_read(call, made, error));
    ASSAY_TRY(softmax_expect_D_v(made->p, error));
    ASSAY_TRY(expect_stream_same(made->types, error));
    const attention_params &a = made->p.a;
    ASSAY_TRY(expect_stream_any(call, a, error));
    if (a.D > 112) /* shared memory does not hold the ring beside the sums of two pieces */
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "D: found %d, allowed multiples of 16 up to 112", a.D);
    ASSAY_TRY(expect_stream_k(a, error));
    ASSAY_TRY(softmax_expect_dense(made->p, error));
    made->workspace = stream_k_workspace(softmax_stream_k_words(a));
    return ASSAY_OK;
  }
  static void path(const plan &made, assay_env *env) { softmax_stream_k_path(made.p.a, env, "stream_k_any"); }
  static assay_status start(plan &made, assay_env *env, assay_error *error) {
    made.p.partial = static_cast<float *>(env->workspace);
    return softmax_stream_k_launch<stream_same, true>(made.p, made.types, env, error);
  }
};

/* As stream_k: no `permutation`. */
constexpr assay_contract stream_k_any_contract_of(assay_contract c) {
  c.permutation = false;
  c.p_step = 0x1p-31; /* as stream */
  return c;
}
constexpr assay_contract stream_k_any_contract = stream_k_any_contract_of(streamed_contract(2.0));

} // namespace
} // namespace ASSAY_NS

#define STREAM_K_ANY                                                                                                   \
  ATTENTION_VARIANT("softmax_attention", "stream_k_any",                                                               \
                    "decode of any lengths and heads of any size: even shares of all keys, by the walk of stream_any", \
                    "any", STREAM_CLAIMS, stream_k_any_contract, stream_k_any)

ASSAY_VARIANTS(softmax_attention_stream_k_any, STREAM_K_ANY)
