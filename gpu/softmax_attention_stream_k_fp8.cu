/* softmax_attention_stream_k_fp8.cu: decode of softmax_attention in even shares over fp8 caches.
 *
 * One variant, `stream_k_fp8`: what `stream_k` does (softmax_attention_stream_k.cu), over the codes that `stream_fp8`
 * reads (softmax_attention_stream_fp8.cu). */
#include "gpu/lib/softmax_stream_k.cuh"

namespace ASSAY_NS {
namespace {

/* As stream_k: no `permutation`. */
constexpr assay_contract stream_k_fp8_contract_of(assay_contract c) {
  c.permutation = false;
  return c;
}
constexpr assay_contract stream_k_fp8_contract = stream_k_fp8_contract_of(streamed_contract(2.0));

} // namespace
} // namespace ASSAY_NS

#define STREAM_K_FP8                                                                                                   \
  ATTENTION_VARIANT("softmax_attention", "stream_k_fp8",                                                               \
                    "decode of any lengths over fp8 caches: even shares of all keys, by the walk of stream_fp8",       \
                    "any", STREAM_FP8_CLAIMS, stream_k_fp8_contract, softmax_streamed_k<::ASSAY_NS::stream_fp8>)

ASSAY_VARIANTS(softmax_attention_stream_k_fp8, STREAM_K_FP8)
