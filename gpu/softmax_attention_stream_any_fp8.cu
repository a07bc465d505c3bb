/* softmax_attention_stream_any_fp8.cu: the streamed decode of softmax_attention_stream_fp8.cu over fp8 caches, for
 * heads of any size.
 *
 * One variant, `stream_any_fp8`. The channels of a head are any multiple of 16 up to 256, and a group has up to 16
 * heads. K and V pass through a ring of registers (gpu/lib/stream_any.cuh, gpu/lib/softmax_stream_any.cuh).
 * `stream_fp8` comes first where it takes a call. */
#include "gpu/lib/softmax_stream_any.cuh"

namespace ASSAY_NS {
namespace {

/* ex2 and tanhf: 2 ulp. */
constexpr assay_contract stream_any_fp8_contract = streamed_contract(2.0);

} // namespace
} // namespace ASSAY_NS

#define STREAM_ANY_FP8                                                                                                 \
  ATTENTION_VARIANT(                                                                                                   \
      "softmax_attention", "stream_any_fp8",                                                                           \
      "the streamed decode for heads of any size over fp8 caches: codes pass through a ring of registers", "any",      \
      STREAM_FP8_CLAIMS, stream_any_fp8_contract, softmax_streamed_any<::ASSAY_NS::stream_fp8>)

ASSAY_VARIANTS(softmax_attention_stream_any_fp8, STREAM_ANY_FP8)
