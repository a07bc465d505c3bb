/* seam.cuh: what follows a product at the seam of a peri-norm layer, for gemm_post_pre_uclip.
 *
 *   res_mn <- round(uclip(s; post) + res_mn)        out_mn = round(uclip(res_mn; pre))
 *
 * uclip(x) = gamma clip(alpha x, -1, 1) + beta. Every step looks at one element. */
#ifndef ASSAY_GPU_LIB_SEAM_CUH
#define ASSAY_GPU_LIB_SEAM_CUH

#include "gpu/lib/gemm_skinny.cuh"
#include "gpu/lib/norm.cuh"

namespace ASSAY_NS {

/* The residual and both norms. The result is where a product stores its own. */
struct seam {
  void *res;
  int64_t res_row;
  uclip_weights post, pre;
  bool res_pairs; /* two neighbours of res may be loaded and stored at once */
};

template <class T> __device__ __forceinline__ float weight_of(const channel_weight &w, int64_t n, float otherwise) {
  return w.data != NULL ? to_float(static_cast<const T *>(w.data)[w.one ? 0 : n]) : otherwise;
}

template <class T> __device__ __forceinline__ float uclip(const uclip_weights &w, int64_t n, float x) {
  const float alpha = weight_of<T>(w.alpha, n, 1.0f), gamma = weight_of<T>(w.gamma, n, 1.0f);
  return gamma * fminf(fmaxf(alpha * x, -1.0f), 1.0f) + weight_of<T>(w.beta, n, 0.0f);
}

inline assay_status read_seam(const plain_call &c, assay_dtype type, seam *s, assay_error *error) {
  s->res = c.data<void>("res");
  s->res_row = c.row("res");
  s->res_pairs = skinny_pairs(s->res, s->res_row, type);
  ASSAY_TRY(read_uclip(c, "post_", c.dim32("N"), &s->post, error));
  return read_uclip(c, "pre_", c.dim32("N"), &s->pre, error);
}

} // namespace ASSAY_NS
#endif
