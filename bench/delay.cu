/* delay.cu: a plug-in for the tests of the bench. It is a right reglu in which one thread waits about DELAY nanoseconds
 * on simt and DELAY cycles on cuda. Compiled with two delays it is one kernel before and after a regression.
 *
 *   nvcc -std=c++20 -gencode=arch=compute_90a,code=sm_90a -O3 -shared -Xcompiler -fPIC -DDELAY=0 \
 *     '-DASSAY_AS_PLUGIN="delay"' -I. -Iinclude -Igpu -o delay.so bench/delay.cu */
#include "gpu/lib/gated.cuh"
#ifdef ASSAY_SIMT
#include <time.h>
#endif

namespace ASSAY_NS {
namespace {

#ifdef ASSAY_SIMT
inline long long ticks() {
  timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<long long>(t.tv_sec) * 1000000000 + t.tv_nsec;
}
#else
__device__ __forceinline__ long long ticks() {
  return clock64();
}
#endif

/* A thread has four channels. */
struct waits {
  static __device__ __forceinline__ float of(float g, float u) {
    if (DELAY > 0 && blockIdx.x == 0 && threadIdx.x == 0) {
      const long long start = ticks();
      while (ticks() - start < DELAY / 4) {
      }
    }
    return fmaxf(g, 0.0f) * u;
  }
};

constexpr assay_contract contract = rowwise_contract(0.0, 1);

} // namespace
} // namespace ASSAY_NS

#define DELAYED                                                                                                        \
  PLAIN_VARIANT("reglu", "delay", "takes a known time", PLAIN_TYPE_CLAIMS, contract, gated_params, gated_read,         \
                gated_launch<::ASSAY_NS::waits>)

ASSAY_VARIANTS(reglu, DELAYED)
