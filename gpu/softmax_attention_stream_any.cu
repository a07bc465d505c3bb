/* softmax_attention_stream_any.cu: the streamed decode of softmax_attention_stream.cu for heads of any size.
 *
 * One variant, `stream_any`. The channels of a head are any multiple of 16 up to 256, and a group has up to 16 heads.
 * K and V pass through a ring in shared memory (gpu/lib/stream_ring.cuh, gpu/lib/softmax_stream_ring.cuh). `stream`
 * comes first where it takes a call. */
#include "gpu/lib/softmax_stream_any.cuh"

namespace ASSAY_NS {
namespace {

/* ex2 and tanhf: 2 ulp. In f16 the third part of a weight ends at 2^-24 / stream_unit. */
constexpr assay_contract with_step(assay_contract c) {
  c.p_step = 0x1p-31;
  return c;
}
constexpr assay_contract stream_any_contract = with_step(streamed_contract(2.0));

} // namespace
} // namespace ASSAY_NS

#define STREAM_ANY                                                                                                     \
  ATTENTION_VARIANT("softmax_attention", "stream_any",                                                                 \
                    "the streamed decode for heads of any size: K and V pass through a ring in shared memory", "any",  \
                    STREAM_CLAIMS, stream_any_contract, softmax_streamed_any<::ASSAY_NS::stream_same>)

ASSAY_VARIANTS(softmax_attention_stream_any, STREAM_ANY)
