/* softmax_attention_stream_k.cu: decode of softmax_attention in even shares, for batches of any lengths
 * (softmax_attention.cu has the arithmetic).
 *
 * One variant, `stream_k`: the walk and the online softmax of `stream` (gpu/lib/softmax_stream.cuh), over the pieces of
 * an even share of all keys (gpu/lib/softmax_stream_k.cuh, gpu/lib/stream_k.cuh). docs/kernels/softmax_attention.md has
 * the measurements. */
#include "gpu/lib/softmax_stream_k.cuh"

namespace ASSAY_NS {
namespace {

/* Where shares begin depends on all lengths of the batch, and a few roundings depend on that: no `permutation`. */
constexpr assay_contract stream_k_contract_of(assay_contract c) {
  c.permutation = false;
  c.p_step = 0x1p-31; /* as stream */
  return c;
}
constexpr assay_contract stream_k_contract = stream_k_contract_of(streamed_contract(2.0));

} // namespace
} // namespace ASSAY_NS

#define STREAM_K                                                                                                       \
  ATTENTION_VARIANT("softmax_attention", "stream_k",                                                                   \
                    "decode of any lengths: even shares of all keys, one a thread block, by the walk of stream",       \
                    "any", STREAM_CLAIMS, stream_k_contract, softmax_streamed_k<::ASSAY_NS::stream_same>)

ASSAY_VARIANTS(softmax_attention_stream_k, STREAM_K)
