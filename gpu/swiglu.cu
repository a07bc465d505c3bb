/* swiglu.cu: gated activation.
 *
 *   y = g * sigmoid(g) * u        x [N, 2 I] holds the gates of a row, then its ups
 *
 * vectors: 16 bytes per load; channels: four neighbouring channels per thread, rows of any width (gpu/lib/gated.cuh).
 * Both have a second kernel for a limit, alpha, beta, gates and ups in turn, a weight per row, or a sigmoid alone
 * (gpu/lib/swiglu.cuh).
 * docs/kernels/swiglu.md has the arithmetic. */
#include "gpu/lib/gated.cuh"
#include "gpu/lib/swiglu.cuh"

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

/* The quotients of the second kernels. */
struct rounded_quotient {
  static __device__ __forceinline__ float of(float a, float b) { return a / b; }
};
struct fast_quotient {
  static __device__ __forceinline__ float of(float a, float b) { return __fdividef(a, b); }
};

assay_status launch_channels(const assay_call *call, assay_env *env, assay_error *error) {
  swiglu_params p;
  ASSAY_TRY(swiglu_read(call, &p, error));
  if (!p.form) return gated_launch<sigmoid_weighted>(call, env, error);
  return swiglu_launch<rounded_quotient>(call, env, error);
}

assay_status launch_vectors(const assay_call *call, assay_env *env, assay_error *error) {
  swiglu_params p;
  ASSAY_TRY(swiglu_read_vectors(call, &p, error));
  if (!p.form) return gated_launch_vectors<sigmoid_weighted_fast>(call, env, error);
  return swiglu_launch_vectors<fast_quotient>(call, env, error);
}

/* expf and the division: 2 ulp. */
constexpr assay_contract contract = rowwise_contract(2.0, 1), fast_contract = rowwise_contract(4.0, 1);

} // namespace
} // namespace ASSAY_NS

#define CHANNELS                                                                                                       \
  PLAIN_VARIANT("swiglu", "channels", "four neighbouring channels a thread", PLAIN_TYPE_CLAIMS, contract,              \
                swiglu_params, swiglu_read, launch_channels)
#define VECTORS                                                                                                        \
  PLAIN_VARIANT("swiglu", "vectors", "16 bytes a load, a division of 2 ulp", PLAIN_TYPE_CLAIMS, fast_contract,         \
                swiglu_params, swiglu_read_vectors, launch_vectors)

ASSAY_VARIANTS(swiglu, VECTORS, CHANNELS)
