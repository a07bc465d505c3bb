/* attention_append_stream.cu: attention_append by the streamed decode, for bf16 and caches of bf16 and fp8.
 *
 * One variant, `stream`. A small kernel writes the step's token to its slot in its stored form. The walk of
 * gpu/lib/stream.cuh, gate or softmax, then attends over the cache with that token (gpu/lib/step_stream.cuh).
 * docs/kernels/attention_append.md has the arithmetic. */
#include "gpu/lib/append_call.cuh"
#include "gpu/lib/step_stream.cuh"

namespace ASSAY_NS {
namespace {

/* As the attention's own; ex2: 2 ulp. The third part of a gate's weight ends at the least bf16. */
constexpr assay_contract with_step(assay_contract c) {
  c.p_step = 0x1p-133;
  return c;
}
constexpr assay_contract stream_contract = with_step(streamed_contract(2.0));

} // namespace
} // namespace ASSAY_NS

#define STREAM                                                                                                         \
  ATTENTION_VARIANT("attention_append", "stream", "the streamed decode: the token first, then a warp a run of keys",   \
                    "any", STEP_STREAM_CLAIMS, stream_contract, step_stream<::ASSAY_NS::append_step>)

ASSAY_VARIANTS(attention_append_stream, STREAM)
