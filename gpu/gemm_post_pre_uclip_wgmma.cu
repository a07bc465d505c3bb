/* gemm_post_pre_uclip_wgmma.cu: a product of any number of rows, and the seam of a peri-norm layer after it.
 *
 *   s = sum_k a_mk b_nk        res_mn <- round(uclip(s; post) + res_mn)        out_mn = round(uclip(res_mn; pre))
 *
 * One variant: the tiles of gemm's variant wgmma (gpu/lib/gemm_wgmma.cuh and gemm_chain.cuh). The thread with the sum
 * does the rest. docs/kernels/gemm_post_pre_uclip.md has the arithmetic. */
#include "gpu/lib/gemm_chain.cuh"
#include "gpu/lib/seam.cuh"

namespace ASSAY_NS {
namespace {

/* wide_params: c is out, and quads says that two neighbours of out may be stored at once. */
struct seam_wide : wide_params, seam {};

/* The use of sums: all residuals of a thread are loaded before the first one is stored, so that their loads overlap. */
struct seam_sums : wide_plain_sums {
  using params = seam_wide;

  template <class T, int own>
  __device__ __forceinline__ void take(const seam_wide &p, int64_t m, int64_t n, int32_t lane,
                                       const float (&sum)[own / 2]) {
    float old[own / 2];
    n += 2 * (lane % 4);
    ASSAY_UNROLL
    for (int j = 0; j < own / 8; ++j)
      ASSAY_UNROLL
    for (int half = 0; half < 2; ++half)
      load<T>(p, m + 8 * half, n + 8 * j, old + 4 * j + 2 * half);
    ASSAY_UNROLL
    for (int j = 0; j < own / 8; ++j)
      ASSAY_UNROLL
    for (int half = 0; half < 2; ++half)
      store<T>(p, m + 8 * half, n + 8 * j, sum + 4 * j + 2 * half, old + 4 * j + 2 * half);
  }
  __device__ __forceinline__ void end(const seam_wide &, int64_t, int32_t) {}

private:
  template <class T> __device__ __forceinline__ void load(const seam_wide &p, int64_t m, int64_t n, float *old) {
    old[0] = old[1] = 0.0f;
    if (m >= p.M || n >= p.N) return;
    const T *const res = static_cast<const T *>(p.res) + m * p.res_row + n;
    const bool both = n + 1 < p.N;
    if (both && p.res_pairs) {
      struct alignas(2 * sizeof(T)) pair_of {
        T element[2];
      } const two = *reinterpret_cast<const pair_of *>(res);
      old[0] = to_float(two.element[0]);
      old[1] = to_float(two.element[1]);
      return;
    }
    old[0] = to_float(res[0]);
    if (both) old[1] = to_float(res[1]);
  }
  template <class T>
  __device__ __forceinline__ void store(const seam_wide &p, int64_t m, int64_t n, const float *sum, const float *old) {
    if (m >= p.M || n >= p.N) return;
    T *const res = static_cast<T *>(p.res) + m * p.res_row + n, *const out = static_cast<T *>(p.c) + m * p.c_row + n;
    const bool both = n + 1 < p.N;
    const int64_t other = both ? n + 1 : n;
    const T r[2] = {from_float<T>(uclip<T>(p.post, n, sum[0]) + old[0]),
                    from_float<T>(uclip<T>(p.post, other, sum[1]) + old[1])};
    skinny_put(res, r[0], r[1], both, p.res_pairs);
    skinny_put(out, from_float<T>(uclip<T>(p.pre, n, to_float(r[0]))),
               from_float<T>(uclip<T>(p.pre, other, to_float(r[1]))), both, p.quads);
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
  p->M = c.dim("M");
  p->N = c.dim("N");
  p->K = c.dim("K");
  p->x = c.data<const void>("a");
  p->w = c.data<const void>("b");
  p->c = c.data<void>("out");
  p->x_row = c.row("a");
  p->c_row = c.row("out");
  p->alpha = 1.0f;
  p->quads = skinny_pairs(p->c, p->c_row, plan->type);
  ASSAY_TRY(wide_expect(*p, plan->type, error));
  return read_seam(c, plan->type, p, error);
}

/* Launches chains of 64 rows, where there are at most 64 or nearly 128, and else tiles. The order of sums is the same.
 */
assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  seam_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  seam_wide &p = plan.p;
  const int64_t mp = env->multiprocessors;
  p.early = is_settled(call, *env, "b");
  (void)snprintf(env->path, sizeof env->path, "wgmma");
  if (p.M == 0 || p.N == 0) return ASSAY_OK;
  return wide_with_type(plan.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (p.M <= chain_max_rows || chain_pairs(p, mp)) return chain_columns<T, 64, seam_sums>(p, env, error);
    if (4 * wide_tiles(p, 128, 128) >= 3 * mp)
      return wide_start<T, wide_tile<128, 128, 2, 6>, seam_sums>(p, env, error);
    if (5 * wide_tiles(p, 64, 64) < 2 * mp) return wide_start<T, wide_tile<64, 16, 1, 20>, seam_sums>(p, env, error);
    return wide_start<T, wide_tile<64, 64, 2, 12>, seam_sums>(p, env, error);
  });
}

} // namespace
} // namespace ASSAY_NS

#define WGMMA                                                                                                          \
  PLAIN_VARIANT("gemm_post_pre_uclip", "wgmma", "any rows, on tensor cores", WIDE_TYPE_CLAIMS, wide_contract,          \
                seam_plan, read_call, launch)

ASSAY_VARIANTS(gemm_post_pre_uclip_wgmma, WGMMA)
