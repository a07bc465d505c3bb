/* gate_attention_stream_k.cu: decode of gate_attention in even shares, for batches of any lengths (gate_attention.cu
 * has the arithmetic).
 *
 * One variant, `stream_k`: the walk and the filter of `stream` (gpu/lib/gate_stream.cuh), over the pieces of an even
 * share of all keys (gpu/lib/gate_stream_k.cuh, gpu/lib/stream_k.cuh). docs/kernels/gate_attention.md has the
 * measurements. */
#include "gpu/lib/gate_stream_k.cuh"

namespace ASSAY_NS {
namespace {

/* No exp. In f16 the third part of a weight ends at 2^-24 / stream_unit. Where shares begin depends on all lengths of
 * the batch, and a few roundings depend on that: no `permutation`. */
constexpr assay_contract stream_k_contract_of(assay_contract c) {
  c.p_step = 0x1p-31;
  c.permutation = false;
  return c;
}
constexpr assay_contract stream_k_contract = stream_k_contract_of(streamed_contract(0.0));

} // namespace
} // namespace ASSAY_NS

#define STREAM_K                                                                                                       \
  ATTENTION_VARIANT("gate_attention", "stream_k",                                                                      \
                    "decode of any lengths: even shares of all keys, one a thread block, by the walk of stream",       \
                    "any", STREAM_CLAIMS, stream_k_contract, gate_streamed_k<::ASSAY_NS::stream_same>)

ASSAY_VARIANTS(gate_attention_stream_k, STREAM_K)
