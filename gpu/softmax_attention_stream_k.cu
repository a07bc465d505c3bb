/* softmax_attention_stream_k.cu: decode of softmax_attention in even shares, for batches of any lengths
 * (softmax_attention.cu has the arithmetic).
 *
 * One variant, `stream_k`: the walk and the online softmax of `stream` (gpu/lib/softmax_stream.cuh), over the pieces of
 * an even share of all keys (gpu/lib/softmax_stream_k.cuh, gpu/lib/stream_k.cuh). docs/kernels/softmax_attention.md has
 * the measurements. */
#include "gpu/lib/softmax_stream_k.cuh"

namespace ASSAY_NS {
namespace {

struct stream_k {
  using plan = softmax_plan;
  static assay_status read(const assay_call *call, plan *made, assay_error *error) {
    ASSAY_TRY(softmax_read(call, made, error));
    ASSAY_TRY(softmax_expect_D_v(made->p, error));
    ASSAY_TRY(expect_stream_same(made->types, error));
    ASSAY_TRY(expect_stream(call, made->p.a, error));
    ASSAY_TRY(expect_stream_k(made->p.a, error));
    ASSAY_TRY(softmax_expect_dense(made->p, error));
    made->workspace = stream_k_workspace(softmax_stream_k_words(made->p.a));
    return ASSAY_OK;
  }
  static void path(const plan &made, assay_env *env) {
    const attention_params &a = made.p.a;
    (void)snprintf(env->path, sizeof env->path, "stream_k shares=%d D=%d G=%d%s",
                   static_cast<int>(stream_k_shares(env)), a.D, a.G, cache_word(a));
  }
  static assay_status start(plan &made, assay_env *env, assay_error *error) {
    return softmax_stream_k_launch<stream_same, false>(made.p, made.types, stream_k_shares(env), env->workspace, env,
                                                       error);
  }
};

/* Where shares begin depends on all lengths of the batch, and a few roundings depend on that: no `permutation`. */
constexpr assay_contract stream_k_contract_of(assay_contract c) {
  c.permutation = false;
  return c;
}
constexpr assay_contract stream_k_contract = stream_k_contract_of(streamed_contract(2.0));

} // namespace
} // namespace ASSAY_NS

#define STREAM_K                                                                                                       \
  ATTENTION_VARIANT("softmax_attention", "stream_k",                                                                   \
                    "decode of any lengths: even shares of all keys, one a thread block, by the walk of stream",       \
                    "any", STREAM_CLAIMS, stream_k_contract, stream_k)

ASSAY_VARIANTS(softmax_attention_stream_k, STREAM_K)
