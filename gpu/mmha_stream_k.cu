/* mmha_stream_k.cu: mmha by the streamed decode in even shares, for batches of any lengths, bf16 and caches of bf16 and
 * fp8.
 *
 * One variant, `stream_k`. It does what `stream` does (mmha_stream.cu), with the shares of gpu/lib/stream_k.cuh. */
#include "gpu/lib/mmha_call.cuh"
#include "gpu/lib/step_stream_k.cuh"

namespace ASSAY_NS {
namespace {

/* The contract of the attention's own streams, with ex2 within 2 ulp. q is rounded to bf16 between the launches. Where
 * shares begin depends on all lengths of the batch: no `permutation`. */
constexpr assay_contract stream_k_contract_of(assay_contract c) {
  c.rotated = ASSAY_BF16;
  c.p_step = 0x1p-133; /* the third part of a gate's weight ends at the least bf16 */
  c.permutation = false;
  return c;
}
constexpr assay_contract stream_k_contract = stream_k_contract_of(streamed_contract(2.0));

} // namespace
} // namespace ASSAY_NS

#define STREAM_K                                                                                                       \
  ATTENTION_VARIANT(                                                                                                   \
      "mmha", "stream_k", "the streamed decode of any lengths: bias, rotation and the token first, then even shares",  \
      "any", STEP_STREAM_CLAIMS, stream_k_contract, step_stream<::ASSAY_NS::mmha_step, ::ASSAY_NS::step_k_forms>)

ASSAY_VARIANTS(mmha_stream_k, STREAM_K)
