/* reglu.cu: gated activation, rectified.
 *
 *   y = max(g, 0) * u        x [N, 2 I] holds the gates of a row, then its ups
 *
 * vectors: 16 bytes per load; channels: four neighbouring channels per thread, rows of any width (gpu/lib/gated.cuh).
 * docs/kernels/reglu.md has the arithmetic. */
#include "gpu/lib/gated.cuh"

namespace ASSAY_NS {
namespace {

struct rectified {
  static __device__ __forceinline__ float of(float g, float u) { return fmaxf(g, 0.0f) * u; }
};

constexpr assay_contract contract = rowwise_contract(0.0, 1);

} // namespace
} // namespace ASSAY_NS

#define CHANNELS                                                                                                       \
  PLAIN_VARIANT("reglu", "channels", "four neighbouring channels a thread", PLAIN_TYPE_CLAIMS, contract, gated_params, \
                gated_read, gated_launch<::ASSAY_NS::rectified>)
#define VECTORS                                                                                                        \
  PLAIN_VARIANT("reglu", "vectors", "16 bytes a load", PLAIN_TYPE_CLAIMS, contract, gated_params, gated_read_vectors,  \
                gated_launch_vectors<::ASSAY_NS::rectified>)

ASSAY_VARIANTS(reglu, VECTORS, CHANNELS)
