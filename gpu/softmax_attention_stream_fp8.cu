/* softmax_attention_stream_fp8.cu: the streamed decode of softmax_attention_stream.cu over fp8 caches.
 *
 * One variant, `stream_fp8`: bf16 queries, K and V in e4m3 or e5m2. Codes are loaded 16 bytes at a time and decoded to
 * bf16 in registers, from which the mma takes them. k_scale is part of a score's factor, v_scale a factor of the sum.
 * Everything else is in gpu/lib/softmax_stream.cuh. */
#include "gpu/lib/softmax_stream_start.cuh"

namespace ASSAY_NS {
namespace {

constexpr assay_contract fp8_contract = streamed_contract(2.0); /* ex2 and tanhf: 2 ulp */

} // namespace
} // namespace ASSAY_NS

#define STREAM_FP8                                                                                                     \
  ATTENTION_VARIANT("softmax_attention", "stream_fp8",                                                                 \
                    "the streamed decode over fp8 caches: codes decoded on their way into tensor cores", "any",        \
                    STREAM_FP8_CLAIMS, fp8_contract, softmax_streamed<::ASSAY_NS::stream_fp8>)

ASSAY_VARIANTS(softmax_attention_stream_fp8, STREAM_FP8)
