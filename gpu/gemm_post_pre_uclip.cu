/* gemm_post_pre_uclip.cu: a product, and the seam of a peri-norm layer after it.
 *
 *   s = sum_k a_mk b_nk        res_mn <- round(uclip(s; post) + res_mn)        out_mn = round(uclip(res_mn; pre))
 *
 * uclip(x) = gamma clip(alpha x, -1, 1) + beta looks at one element, so that the thread with the sum does all of it.
 * skinny: at most 64 rows, by the kernels of gemm's variant of that name (gpu/lib/gemm_skinny.cuh). dots: any shape,
 * one warp per element. A file beside this one has wgmma. docs/kernels/gemm_post_pre_uclip.md has the arithmetic. */
#include "gpu/lib/gemm_skinny.cuh"
#include "gpu/lib/norm.cuh"
#include "gpu/lib/warp.cuh"

namespace ASSAY_NS {
namespace {

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

/* skinny_params: c is out. */
struct seam_params : skinny_params, seam {};

struct seam_plan {
  seam_params p;
  assay_dtype type;
  bool quads; /* every quad of a and b is aligned to its own size */
};

/* Stores the seam of columns n, n + 1 of row m, from their sums. */
struct seam_columns {
  using params = seam_params;
  static constexpr bool paired = false, scaled = false, squares = false;
  /* Takes residuals and weights of norms to L2 while the product is under way. Each row has a thread, and so has each
   * of the six vectors. */
  template <class T> static __device__ __forceinline__ void prepare(const seam_params &p, int64_t n0) {
    const int thread = static_cast<int>(threadIdx.x), vector = thread - skinny_max_rows;
    if (thread < p.M) prefetch_l2(static_cast<const T *>(p.res) + thread * p.res_row + n0);
    if (vector < 0 || vector >= 6) return;
    const uclip_weights &norm = vector < 3 ? p.post : p.pre;
    const channel_weight &w = vector % 3 == 0 ? norm.alpha : vector % 3 == 1 ? norm.gamma : norm.beta;
    if (w.data != NULL) prefetch_l2(static_cast<const T *>(w.data) + (w.one ? 0 : n0));
  }
  static __device__ __forceinline__ int64_t weights(const seam_params &, int64_t n) { return n; }
  template <class T>
  static __device__ __forceinline__ void store(const seam_params &p, int64_t m, int64_t n, float first, float second) {
    if (m >= p.M || n >= p.N) return;
    T *const res = static_cast<T *>(p.res) + m * p.res_row + n, *const out = static_cast<T *>(p.c) + m * p.c_row + n;
    const bool both = n + 1 < p.N;
    const int64_t other = both ? n + 1 : n;
    const T r[2] = {from_float<T>(uclip<T>(p.post, n, first) + to_float(res[0])),
                    from_float<T>(uclip<T>(p.post, other, second) + to_float(res[other - n]))};
    skinny_put(res, r[0], r[1], both, p.res_pairs);
    skinny_put(out, from_float<T>(uclip<T>(p.pre, n, to_float(r[0]))),
               from_float<T>(uclip<T>(p.pre, other, to_float(r[1]))), both, p.pairs);
  }
};

constexpr int warps_a_block = 4, dots_step = 128;

/* seam_dots: one warp per element of the result.
 * Grid:   (M, ceil(N / 4)): blocks of the same weights follow each other. Block: 4 warps.
 * Shared: none.
 * Align:  a and b in quads of 4 elements if bases and rows allow it, else by element.
 * Arch:   any.
 * Limit:  bytes: N K sizeof(T) for one row; further rows take the weights from the cache again. */
template <class T> __global__ void __launch_bounds__(32 * warps_a_block) seam_dots(seam_params p, bool quads) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int64_t n = static_cast<int64_t>(blockIdx.y) * warps_a_block + static_cast<int32_t>(threadIdx.x) / 32;
  const int64_t m = blockIdx.x;
  if (n >= p.N) return;
  const T *const a = static_cast<const T *>(p.x) + m * p.x_row, *const b = static_cast<const T *>(p.w) + n * p.K;
  float sum = 0.0f;
  for (int32_t k0 = 0; k0 < p.K; k0 += dots_step) {
    const int32_t k = k0 + 4 * lane, left = p.K - k;
    float x[4] = {0.0f, 0.0f, 0.0f, 0.0f}, w[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (left > 0) {
      load_channels(a + k, left < 4 ? left : 4, quads, x);
      load_channels(b + k, left < 4 ? left : 4, quads, w);
    }
    ASSAY_UNROLL
    for (int j = 0; j < 4; ++j)
      sum = fmaf(x[j], w[j], sum);
  }
  sum = warp_sum(sum);
  if (lane != 0) return;
  T *const res = static_cast<T *>(p.res) + m * p.res_row + n;
  const T r = from_float<T>(uclip<T>(p.post, n, sum) + to_float(*res));
  *res = r;
  static_cast<T *>(p.c)[m * p.c_row + n] = from_float<T>(uclip<T>(p.pre, n, to_float(r)));
}

assay_status read_call(const assay_call *call, seam_plan *plan, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  *plan = seam_plan();
  plan->type = c.type("a");
  ASSAY_TRY(expect_type("a", plan->type, error));
  seam_params *const p = &plan->p;
  p->M = c.dim("M");
  p->N = c.dim("N");
  p->K = c.dim32("K");
  p->x = c.data<const void>("a");
  p->w = c.data<const void>("b");
  p->c = c.data<void>("out");
  p->x_row = c.row("a");
  p->x_rows = p->M;
  p->c_row = c.row("out");
  p->pairs = skinny_pairs(p->c, p->c_row, plan->type);
  const int64_t size = assay_dtype_size(plan->type);
  plan->quads = rowwise_quads(p->x, p->x_row, size) && rowwise_quads(p->w, p->K, size);
  return read_seam(c, plan->type, p, error);
}

assay_status launch_dots(const assay_call *call, assay_env *env, assay_error *error) {
  seam_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  const seam_params &p = plan.p;
  (void)snprintf(env->path, sizeof env->path, "dots quads=%d", plan.quads ? 1 : 0);
  if (p.M == 0 || p.N == 0) return ASSAY_OK;
  const launch_extent grid(p.M, (p.N + warps_a_block - 1) / warps_a_block);
  return with_type(plan.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return ASSAY_LAUNCH(error, (seam_dots<T>), grid, 32 * warps_a_block, 0, env->stream, p, plan.quads);
  });
}

/* ---- few rows ---------------------------------------------------------------------------------------- */

assay_status read_skinny(const assay_call *call, seam_plan *plan, assay_error *error) {
  ASSAY_TRY(read_call(call, plan, error));
  return skinny_expect(plan->p, plan->type, error);
}

assay_status launch_skinny(const assay_call *call, assay_env *env, assay_error *error) {
  seam_plan plan;
  ASSAY_TRY(read_skinny(call, &plan, error));
  plan.p.early = is_settled(call, *env, "b");
  return skinny_start<seam_columns>(plan.p, plan.type, env, error);
}

constexpr assay_contract dots_contract = rowwise_contract(0.0, 32);

} // namespace
} // namespace ASSAY_NS

#define SKINNY                                                                                                         \
  PLAIN_VARIANT("gemm_post_pre_uclip", "skinny", "few rows: weights from memory into tensor cores",                    \
                SKINNY_TYPE_CLAIMS, skinny_contract, seam_plan, read_skinny, launch_skinny)
#define DOTS                                                                                                           \
  PLAIN_VARIANT("gemm_post_pre_uclip", "dots", "any shape: one warp an element", PLAIN_TYPE_CLAIMS, dots_contract,     \
                seam_plan, read_call, launch_dots)

ASSAY_VARIANTS(gemm_post_pre_uclip, SKINNY, DOTS)
