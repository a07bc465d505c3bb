/* gate_attention_stream_k_fp8.cu: decode of gate_attention in even shares over fp8 caches.
 *
 * One variant, `stream_k_fp8`: what `stream_k` does (gate_attention_stream_k.cu), over the codes that `stream_fp8`
 * reads (gate_attention_stream_fp8.cu). */
#include "gpu/lib/gate_stream_k.cuh"

namespace ASSAY_NS {
namespace {

/* No exp. The third part of a weight ends at the least bf16. As stream_k: no `permutation`. */
constexpr assay_contract stream_k_fp8_contract_of(assay_contract c) {
  c.p_step = 0x1p-133;
  c.permutation = false;
  return c;
}
constexpr assay_contract stream_k_fp8_contract = stream_k_fp8_contract_of(streamed_contract(0.0));

} // namespace
} // namespace ASSAY_NS

#define STREAM_K_FP8                                                                                                   \
  ATTENTION_VARIANT("gate_attention", "stream_k_fp8",                                                                  \
                    "decode of any lengths over fp8 caches: even shares of all keys, by the walk of stream_fp8",       \
                    "any", STREAM_FP8_CLAIMS, stream_k_fp8_contract, gate_streamed_k<::ASSAY_NS::stream_fp8>)

ASSAY_VARIANTS(gate_attention_stream_k_fp8, STREAM_K_FP8)
