/* attention_append_stream_k.cu: attention_append by the streamed decode in even shares, for batches of any lengths,
 * bf16 and caches of bf16 and fp8.
 *
 * One variant, `stream_k`. It does what `stream` does (attention_append_stream.cu), with the shares of
 * gpu/lib/stream_k.cuh. */
#include "gpu/lib/append_call.cuh"
#include "gpu/lib/step_stream_k.cuh"

namespace ASSAY_NS {
namespace {

/* As the attention's own; ex2: 2 ulp. The third part of a gate's weight ends at the least bf16. Where shares begin
 * depends on all lengths of the batch: no `permutation`. */
constexpr assay_contract stream_k_contract_of(assay_contract c) {
  c.p_step = 0x1p-133;
  c.permutation = false;
  return c;
}
constexpr assay_contract stream_k_contract = stream_k_contract_of(streamed_contract(2.0));

} // namespace
} // namespace ASSAY_NS

#define STREAM_K                                                                                                       \
  ATTENTION_VARIANT("attention_append", "stream_k",                                                                    \
                    "the streamed decode of any lengths: the token first, then even shares of all keys", "any",        \
                    STEP_STREAM_CLAIMS, stream_k_contract,                                                             \
                    step_stream<::ASSAY_NS::append_step, ::ASSAY_NS::step_k_forms>)

ASSAY_VARIANTS(attention_append_stream_k, STREAM_K)
