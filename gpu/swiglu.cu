/* swiglu.cu: gated activation.
 *
 *   y = g * sigmoid(g) * u        x [N, 2 I] holds the gates of a row, then its ups
 *
 * vectors: 16 bytes per load; channels: four neighbouring channels per thread, rows of any width (gpu/lib/gated.cuh).
 * docs/kernels/swiglu.md has the arithmetic. */
#include "gpu/lib/gated.cuh"

namespace ASSAY_NS {
namespace {

/* From g = -88.7 downwards exp(-g) is infinite and the result is 0. */
struct sigmoid_weighted {
  static __device__ __forceinline__ float of(float g, float u) { return g / (1.0f + expf(-g)) * u; }
};

/* The same with a division of 2 ulp, which gives 0 from g = -87.3 downwards: sigmoid is subnormal there. */
struct sigmoid_weighted_fast {
  static __device__ __forceinline__ float of(float g, float u) { return __fdividef(g, 1.0f + expf(-g)) * u; }
};

/* expf and the division: 2 ulp. */
constexpr assay_contract contract = rowwise_contract(2.0, 1), fast_contract = rowwise_contract(4.0, 1);

} // namespace
} // namespace ASSAY_NS

#define CHANNELS                                                                                                       \
  PLAIN_VARIANT("swiglu", "channels", "four neighbouring channels a thread", PLAIN_TYPE_CLAIMS, contract,              \
                gated_params, gated_read, gated_launch<::ASSAY_NS::sigmoid_weighted>)
#define VECTORS                                                                                                        \
  PLAIN_VARIANT("swiglu", "vectors", "16 bytes a load, a division of 2 ulp", PLAIN_TYPE_CLAIMS, fast_contract,         \
                gated_params, gated_read_vectors, gated_launch_vectors<::ASSAY_NS::sigmoid_weighted_fast>)

ASSAY_VARIANTS(swiglu, VECTORS, CHANNELS)
