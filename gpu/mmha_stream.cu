/* mmha_stream.cu: mmha by the streamed decode, for bf16 and caches of bf16 and fp8.
 *
 * One variant, `stream`. A small kernel makes q, k and v of the step, keeps q in bf16, and writes k and v to their
 * slot. A walk of gpu/lib/stream_walk.cuh, gate or softmax, then attends over the cache with that token
 * (gpu/lib/step_stream.cuh). docs/kernels/mmha.md has the arithmetic. */
#include "gpu/lib/mmha_call.cuh"
#include "gpu/lib/step_stream.cuh"

namespace ASSAY_NS {
namespace {

/* The contract of the attention's own streams, with ex2 within 2 ulp. q is rounded to bf16 between the launches. */
constexpr assay_contract stream_contract_of(assay_contract c) {
  c.rotated = ASSAY_BF16;
  c.p_step = 0x1p-133; /* the third part of a gate's weight ends at the least bf16 */
  return c;
}
constexpr assay_contract stream_contract = stream_contract_of(streamed_contract(2.0));

} // namespace
} // namespace ASSAY_NS

#define STREAM                                                                                                         \
  ATTENTION_VARIANT("mmha", "stream",                                                                                  \
                    "the streamed decode: bias, rotation and the token first, then a warp a run of keys", "any",       \
                    STEP_STREAM_CLAIMS, stream_contract, step_stream<::ASSAY_NS::mmha_step>)

ASSAY_VARIANTS(mmha_stream, STREAM)
