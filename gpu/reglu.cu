/* reglu.cu: gated activation, rectified.
 *
 *   y = max(g, 0) * u        x [N, 2 I] holds the gates of a row, then its ups
 *
 * One variant: four neighbouring channels a thread (gpu/lib/gated.cuh). docs/kernels/reglu.md has the arithmetic. */
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

ASSAY_VARIANTS(reglu, CHANNELS)
