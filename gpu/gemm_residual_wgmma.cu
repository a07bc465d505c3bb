/* gemm_residual_wgmma.cu: a product of any number of rows, its residual, and a norm without its division.
 *
 *   res_mn <- round(sum_k a_mk b_nk + res_mn)      out_mn = round(res_mn g_n)
 *   squares_mj = sum of res_mn^2 over n = 8 j .. 8 j + 7
 *
 * One variant: the tiles of gemm's variant wgmma, whose sums end in fours (gpu/lib/gemm_fours.cuh).
 * docs/kernels/gemm_residual.md has the arithmetic. */
#include "gpu/lib/gemm_fours.cuh"

namespace ASSAY_NS {
namespace {

/* fours_params: c is out. */
struct residual_wide : fours_params {
  const void *g;
  float *parts; /* [M, number of parts] */
};

struct residual_end {
  using params = residual_wide;
  template <class T> struct weights {
    float g[4];
    __device__ __forceinline__ void load(const residual_wide &p, const fours_place &at) {
      fours_of<T>::load(static_cast<const T *>(p.g) + at.column, at.left, p.fours).read(g);
    }
  };
  /* Stores a row's four of res and out. Two lanes have the squares of a part; the first of them stores it. */
  template <class T>
  static __device__ __forceinline__ void finish(const residual_wide &p, const fours_place &at, int32_t lane,
                                                const weights<T> &w, float (&four)[4], const float (&old)[4]) {
    const fours_of<T> res =
        fours_of<T>::rounded(four[0] + old[0], four[1] + old[1], four[2] + old[2], four[3] + old[3]);
    res.read(four);
    const fours_of<T> out =
        fours_of<T>::rounded(four[0] * w.g[0], four[1] * w.g[1], four[2] * w.g[2], four[3] * w.g[3]);
    res.store(static_cast<T *>(p.res) + at.row * p.res_row + at.column, at.room, p.fours);
    out.store(static_cast<T *>(p.c) + at.row * p.c_row + at.column, at.room, p.fours);
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      four[i] = i < at.left ? __fmul_rn(four[i], four[i]) : 0.0f; /* a row with NaN has NaN past the last column */
    float part = __fadd_rn(__fadd_rn(four[0], four[1]), __fadd_rn(four[2], four[3]));
    part = __fadd_rn(part, __shfl_xor_sync(0xffffffffu, part, 2));
    const int64_t parts = (p.N + deferred_part - 1) / deferred_part;
    if (at.room > 0 && lane % 4 < 2) p.parts[at.row * parts + at.column / deferred_part] = part;
  }
};

struct residual_plan {
  residual_wide p;
  assay_dtype type;
};

assay_status read_call(const assay_call *call, residual_plan *plan, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  *plan = residual_plan();
  plan->type = c.type("a");
  residual_wide *const p = &plan->p;
  wide_read(c, "out", p);
  p->res = c.data<void>("res");
  p->g = c.data<const void>("g");
  p->parts = c.data<float>("squares");
  p->res_row = c.row("res");
  p->fours = wide_quads(p->c, p->c_row, plan->type) && wide_quads(p->res, p->res_row, plan->type) &&
             wide_quads(p->g, 0, plan->type);
  p->quads = p->fours;
  return wide_expect(*p, plan->type, error);
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  residual_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  plan.p.early = is_settled(call, *env, "b");
  (void)snprintf(env->path, sizeof env->path, "wgmma");
  if (plan.p.M == 0 || plan.p.N == 0) return ASSAY_OK;
  return wide_with_type(
      plan.type, [&](auto tag) { return fours_start<typename decltype(tag)::type, residual_end>(plan.p, env, error); });
}

/* The sums are those of res: what it held is added, and the result is rounded once. */
assay_status declare_sums(const assay_call *call, const assay_env *env, assay_sums *sums, assay_error *error) {
  ASSAY_TRY(wide_sums(call, env, sums, error));
  sums->after[0] = ASSAY_AFTER_OLD_ADD;
  sums->after[1] = sums->after[2] = ASSAY_AFTER_NONE;
  return ASSAY_OK;
}

} // namespace
} // namespace ASSAY_NS

#define WGMMA                                                                                                          \
  PLAIN_VARIANT("gemm_residual", "wgmma", "any rows, on tensor cores", WIDE_TYPE_CLAIMS, wide_contract, residual_plan, \
                read_call, launch, ::ASSAY_NS::declare_sums)

ASSAY_VARIANTS(gemm_residual_wgmma, WGMMA)
