/* softmax_attention_stream_any.cu: the streamed decode of softmax_attention_stream.cu for heads of any size.
 *
 * One variant, `stream_any`. The channels of a head are any multiple of 16 up to 256, and a group has up to 16 heads.
 * K and V pass through a ring of registers (gpu/lib/stream_any.cuh, gpu/lib/softmax_stream_any.cuh). `stream` comes
 * first where it takes a call. */
#include "gpu/lib/softmax_stream_any.cuh"

namespace ASSAY_NS {
namespace {

/* The streamed strategy, which leaves a call to stream_k_any if that is faster and takes it. */
struct stream_any_or_k : softmax_streamed_any<stream_same> {
  static assay_status read(const assay_call *call, plan *made, assay_error *error) {
    ASSAY_TRY(softmax_streamed_any<stream_same>::read(call, made, error));
    const attention_params &a = made->p.a;
    if (stream_any_size(a.D) != 112) return ASSAY_OK;
    return expect_filled(a, stream_any_warps, assay_dtype_size(made->types.kv), error, "stream_k_any");
  }
};

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
                    "the streamed decode for heads of any size: K and V pass through a ring of registers", "any",      \
                    STREAM_CLAIMS, stream_any_contract, stream_any_or_k)

ASSAY_VARIANTS(softmax_attention_stream_any, STREAM_ANY)
