/* mmha_stream_any.cu: mmha by the streamed decode for heads of any size, for bf16 and caches of bf16 and fp8.
 *
 * One variant, `stream_any`. It does what `stream` does (mmha_stream.cu), with the walk of gpu/lib/stream_any.cuh. */
#include "gpu/lib/mmha_call.cuh"
#include "gpu/lib/step_stream_any.cuh"

namespace ASSAY_NS {
namespace {

/* The contract of the attention's own streams, with ex2 within 2 ulp. q is rounded to bf16 between the launches. */
constexpr assay_contract stream_any_contract_of(assay_contract c) {
  c.rotated = ASSAY_BF16;
  c.p_step = 0x1p-133; /* the third part of a gate's weight ends at the least bf16 */
  return c;
}
constexpr assay_contract stream_any_contract = stream_any_contract_of(streamed_contract(2.0));

} // namespace
} // namespace ASSAY_NS

#define STREAM_ANY                                                                                                     \
  ATTENTION_VARIANT(                                                                                                   \
      "mmha", "stream_any",                                                                                            \
      "the streamed decode for heads of any size: bias, rotation and the token first, then a warp a run of keys",      \
      "any", STEP_STREAM_CLAIMS, stream_any_contract, step_stream<::ASSAY_NS::mmha_step, ::ASSAY_NS::step_any_forms>)

ASSAY_VARIANTS(mmha_stream_any, STREAM_ANY)
