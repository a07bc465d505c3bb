/* gate_attention_stream_any_fp8.cu: the streamed decode of gate_attention_stream_fp8.cu over fp8 caches, for heads of
 * any size.
 *
 * One variant, `stream_any_fp8`. The channels of a head are any multiple of 16 up to 256, and a group has up to 16
 * heads. K and V pass through a ring of registers (gpu/lib/stream_any.cuh, gpu/lib/gate_stream_any.cuh). `stream_fp8`
 * comes first where it takes a call. */
#include "gpu/lib/gate_stream_any.cuh"

namespace ASSAY_NS {
namespace {

/* No exp. The third part of a weight ends at the least bf16. */
constexpr assay_contract with_step(assay_contract c) {
  c.p_step = 0x1p-133;
  return c;
}
constexpr assay_contract stream_any_fp8_contract = with_step(streamed_contract(0.0));

} // namespace
} // namespace ASSAY_NS

#define STREAM_ANY_FP8                                                                                                 \
  ATTENTION_VARIANT(                                                                                                   \
      "gate_attention", "stream_any_fp8",                                                                              \
      "the streamed decode for heads of any size over fp8 caches: codes pass through a ring of registers", "any",      \
      STREAM_FP8_CLAIMS, stream_any_fp8_contract, gate_streamed_any<::ASSAY_NS::stream_fp8>)

ASSAY_VARIANTS(gate_attention_stream_any_fp8, STREAM_ANY_FP8)
