/* attention_append_stream_any.cu: attention_append by the streamed decode for heads of any size, for bf16 and caches of
 * bf16 and fp8.
 *
 * One variant, `stream_any`. It does what `stream` does (attention_append_stream.cu), with the walk of
 * gpu/lib/stream_any.cuh. */
#include "gpu/lib/append_call.cuh"
#include "gpu/lib/step_stream_any.cuh"

namespace ASSAY_NS {
namespace {

/* As the attention's own; ex2: 2 ulp. The third part of a gate's weight ends at the least bf16. */
constexpr assay_contract with_step(assay_contract c) {
  c.p_step = 0x1p-133;
  return c;
}
constexpr assay_contract stream_any_contract = with_step(streamed_contract(2.0));

} // namespace
} // namespace ASSAY_NS

#define STREAM_ANY                                                                                                     \
  ATTENTION_VARIANT("attention_append", "stream_any",                                                                  \
                    "the streamed decode for heads of any size: the token first, then a warp a run of keys", "any",    \
                    STEP_STREAM_CLAIMS, stream_any_contract,                                                           \
                    step_stream<::ASSAY_NS::append_step, ::ASSAY_NS::step_any_forms>)

ASSAY_VARIANTS(attention_append_stream_any, STREAM_ANY)
