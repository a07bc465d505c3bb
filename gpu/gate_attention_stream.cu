/* gate_attention_stream.cu: decode of gate_attention at the speed of memory (gate_attention.cu has the arithmetic).
 *
 * One variant, `stream`. Every warp walks alone over a run of keys of one (request, kv head). The heads of the group
 * are the columns of an mma (gpu/lib/stream.cuh, gpu/lib/gate_stream.cuh). docs/kernels/gate_attention.md has the
 * measurements. */
#include "gpu/lib/gate_stream.cuh"

namespace ASSAY_NS {
namespace {

/* No exp. In f16 the third part of a weight ends at 2^-24 / stream_unit. */
constexpr assay_contract with_step(assay_contract c) {
  c.p_step = 0x1p-31;
  return c;
}
constexpr assay_contract stream_contract = with_step(streamed_contract(0.0));

} // namespace
} // namespace ASSAY_NS

#define STREAM                                                                                                         \
  ATTENTION_VARIANT("gate_attention", "stream",                                                                        \
                    "decode at the speed of memory: a warp a run of keys, K straight into tensor cores, live V only",  \
                    "any", STREAM_CLAIMS, stream_contract, gate_streamed<::ASSAY_NS::stream_same>)

ASSAY_VARIANTS(gate_attention_stream, STREAM)
