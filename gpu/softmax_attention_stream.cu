/* softmax_attention_stream.cu: decode of softmax_attention at the speed of memory (softmax_attention.cu has the
 * arithmetic).
 *
 * One variant, `stream`. Every warp walks alone over a run of keys of one (request, kv head), with an online softmax of
 * its own. The heads of the group are the columns of an mma (gpu/lib/stream.cuh, gpu/lib/softmax_stream.cuh).
 * docs/kernels/softmax_attention.md has the measurements. */
#include "gpu/lib/softmax_stream_start.cuh"

namespace ASSAY_NS {
namespace {

/* The streamed strategy, which leaves a call to stream_k if stream_k is faster. */
struct stream : softmax_streamed<stream_same> {
  static assay_status read(const assay_call *call, plan *made, assay_error *error) {
    ASSAY_TRY(softmax_streamed<stream_same>::read(call, made, error));
    const attention_params &a = made->p.a;
    return expect_filled(a, softmax_stream_most(a), assay_dtype_size(made->types.kv), error);
  }
};

/* ex2 and tanhf: 2 ulp. In f16 the third part of a weight ends at 2^-24 / stream_unit. */
constexpr assay_contract with_step(assay_contract c) {
  c.p_step = 0x1p-31;
  return c;
}
constexpr assay_contract stream_contract = with_step(streamed_contract(2.0));

} // namespace
} // namespace ASSAY_NS

#define STREAM                                                                                                         \
  ATTENTION_VARIANT("softmax_attention", "stream",                                                                     \
                    "decode at the speed of memory: a warp a run of keys, K straight into tensor cores", "any",        \
                    STREAM_CLAIMS, stream_contract, stream)

ASSAY_VARIANTS(softmax_attention_stream, STREAM)
