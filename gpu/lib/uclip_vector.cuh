/* uclip_vector.cuh: uclip_norm of a vector of channels. */
#ifndef ASSAY_GPU_LIB_UCLIP_VECTOR_CUH
#define ASSAY_GPU_LIB_UCLIP_VECTOR_CUH

#include "gpu/lib/norm.cuh"
#include "gpu/lib/vectors.cuh"

namespace ASSAY_NS {

/* The weights of channels c, c + 1, ... The constructor loads them, so that they are loaded at the same time as the
 * row. */
template <class T> struct uclip_vector {
  float alpha[vector_width<T>], gamma[vector_width<T>], beta[vector_width<T>];

  __device__ __forceinline__ uclip_vector(const uclip_weights &w, int64_t c) {
    vector_weights<T>(w.alpha.data, w.alpha.one, c, 1.0f, alpha);
    vector_weights<T>(w.gamma.data, w.gamma.one, c, 1.0f, gamma);
    vector_weights<T>(w.beta.data, w.beta.one, c, 0.0f, beta);
  }

  /* Computes v <- gamma clip(alpha v, -1, 1) + beta. */
  __device__ __forceinline__ void apply(float (&v)[vector_width<T>]) const {
    ASSAY_UNROLL
    for (int i = 0; i < vector_width<T>; ++i)
      v[i] = gamma[i] * fminf(fmaxf(alpha[i] * v[i], -1.0f), 1.0f) + beta[i];
  }
};

} // namespace ASSAY_NS
#endif
