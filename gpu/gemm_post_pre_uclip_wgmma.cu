/* gemm_post_pre_uclip_wgmma.cu: a product of any number of rows, and the seam of a peri-norm layer after it.
 *
 *   s = sum_k a_mk b_nk        res_mn <- round(uclip(s; post) + res_mn)        out_mn = round(uclip(res_mn; pre))
 *
 * One variant: the tiles of gemm's variant wgmma, whose sums end in fours (gpu/lib/gemm_fours.cuh).
 * docs/kernels/gemm_post_pre_uclip.md has the arithmetic. */
#include "gpu/lib/gemm_fours.cuh"
#include "gpu/lib/norm.cuh"

namespace ASSAY_NS {
namespace {

/* fours_params: c is out. */
struct seam_wide : fours_params {
  uclip_weights post, pre;
};

/* The weights of a norm for four neighbouring channels. */
struct seam_norm {
  float alpha[4], gamma[4], beta[4];
  template <class T>
  __device__ __forceinline__ void load(const uclip_weights &w, const fours_place &at, const seam_wide &p) {
    const int32_t column = static_cast<int32_t>(at.column), channels = static_cast<int32_t>(p.N);
    load_weights<T>(w.alpha, column, channels, p.fours, 1.0f, alpha);
    load_weights<T>(w.gamma, column, channels, p.fours, 1.0f, gamma);
    load_weights<T>(w.beta, column, channels, p.fours, 0.0f, beta);
  }
  /* Computes gamma clip(alpha x, -1, 1) + beta for channel i of the four. */
  __device__ __forceinline__ float of(int i, float x) const {
    return gamma[i] * fminf(fmaxf(alpha[i] * x, -1.0f), 1.0f) + beta[i];
  }
};

struct seam_end {
  using params = seam_wide;
  template <class T> struct weights {
    seam_norm post, pre;
    __device__ __forceinline__ void load(const seam_wide &p, const fours_place &at) {
      post.template load<T>(p.post, at, p);
      pre.template load<T>(p.pre, at, p);
    }
  };
  /* Stores a row's four of res and out. */
  template <class T>
  static __device__ __forceinline__ void finish(const seam_wide &p, const fours_place &at, int32_t, const weights<T> &w,
                                                float (&four)[4], const float (&old)[4]) {
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      four[i] = w.post.of(i, four[i]) + old[i];
    const fours_of<T> res = fours_of<T>::rounded(four[0], four[1], four[2], four[3]);
    res.read(four);
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      four[i] = w.pre.of(i, four[i]);
    const fours_of<T> out = fours_of<T>::rounded(four[0], four[1], four[2], four[3]);
    res.store(static_cast<T *>(p.res) + at.row * p.res_row + at.column, at.room, p.fours);
    out.store(static_cast<T *>(p.c) + at.row * p.c_row + at.column, at.room, p.fours);
  }
};

struct seam_plan {
  seam_wide p;
  assay_dtype type;
};

assay_status read_call(const assay_call *call, seam_plan *plan, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  *plan = seam_plan();
  plan->type = c.type("a");
  seam_wide *const p = &plan->p;
  wide_read(c, "out", p);
  p->res = c.data<void>("res");
  p->res_row = c.row("res");
  p->fours = p->quads = plain_quads(c);
  ASSAY_TRY(wide_expect(*p, plan->type, error));
  ASSAY_TRY(read_uclip(c, "post_", c.dim32("N"), &p->post, error));
  return read_uclip(c, "pre_", c.dim32("N"), &p->pre, error);
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  seam_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  plan.p.early = is_settled(call, *env, "b");
  (void)snprintf(env->path, sizeof env->path, "wgmma");
  if (plan.p.M == 0 || plan.p.N == 0) return ASSAY_OK;
  return wide_with_type(
      plan.type, [&](auto tag) { return fours_start<typename decltype(tag)::type, seam_end>(plan.p, env, error); });
}

} // namespace
} // namespace ASSAY_NS

#define WGMMA                                                                                                          \
  PLAIN_VARIANT("gemm_post_pre_uclip", "wgmma", "any rows, on tensor cores", WIDE_TYPE_CLAIMS, wide_contract,          \
                seam_plan, read_call, launch)

ASSAY_VARIANTS(gemm_post_pre_uclip_wgmma, WGMMA)
