/* gemm_residual.cu: the last product of a sublayer, the residual addition, and what the next rms_norm needs.
 *
 *   res_mn <- round(sum_k a_mk b_nk + res_mn)      out_mn = round(res_mn g_n)
 *   squares_mj = sum of res_mn^2 over n = 8 j .. 8 j + 7
 *
 * skinny: at most 64 rows, by the kernels of gemm's variant of that name (gpu/lib/gemm_skinny.cuh). The four lanes that
 * have eight columns of a row add their squares by shuffles. dots: any shape, one warp per element.
 * docs/kernels/gemm_residual.md has the arithmetic. */
#include "gpu/lib/gemm_skinny.cuh"
#include "gpu/lib/warp.cuh"
#include "gpu/lib/warp_dots.h"

namespace ASSAY_NS {
namespace {

/* skinny_params: c is out. */
struct residual_params : skinny_params {
  void *res;
  const void *g;
  float *parts; /* [M, number of parts] */
  int64_t res_row;
  bool res_pairs; /* two neighbours of res may be loaded and stored at once */
};

struct residual_plan {
  residual_params p;
  assay_dtype type;
  bool quads; /* every quad of a and b is aligned to its own size */
};

/* Stores columns n, n + 1 of row m from their sums, and returns the sum of their squares. */
struct residual_columns {
  using params = residual_params;
  static constexpr bool paired = false, scaled = false, squares = true;
  /* Takes residuals and weights of the norm to L2 while the product is under way. */
  template <class T> static __device__ __forceinline__ void prepare(const residual_params &p, int64_t n0) {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < p.M) prefetch_l2(static_cast<const T *>(p.res) + thread * p.res_row + n0);
    if (thread == skinny_max_rows) prefetch_l2(static_cast<const T *>(p.g) + n0);
  }
  static __device__ __forceinline__ int64_t weights(const residual_params &, int64_t n) { return n; }
  template <class T>
  static __device__ __forceinline__ float store(const residual_params &p, int64_t m, int64_t n, float first,
                                                float second) {
    if (m >= p.M || n >= p.N) return 0.0f;
    T *const res = static_cast<T *>(p.res) + m * p.res_row + n, *const out = static_cast<T *>(p.c) + m * p.c_row + n;
    const T *const g = static_cast<const T *>(p.g) + n;
    const bool both = n + 1 < p.N;
    const int other = both ? 1 : 0;
    const T r[2] = {from_float<T>(first + to_float(res[0])), from_float<T>(second + to_float(res[other]))};
    const float stored[2] = {to_float(r[0]), to_float(r[1])};
    skinny_put(res, r[0], r[1], both, p.res_pairs);
    skinny_put(out, from_float<T>(stored[0] * to_float(g[0])), from_float<T>(stored[1] * to_float(g[other])), both,
               p.pairs);
    const float square = __fmul_rn(stored[0], stored[0]);
    return both ? __fadd_rn(square, __fmul_rn(stored[1], stored[1])) : square;
  }
  /* Stores the part of row m that begins with column n. */
  static __device__ __forceinline__ void put_part(const residual_params &p, int64_t m, int64_t n, float part) {
    const int64_t count = (p.N + deferred_part - 1) / deferred_part;
    if (m < p.M && n < p.N) p.parts[m * count + n / deferred_part] = part;
  }
};

/* residual_dots: one warp per element of the result, one part per block.
 * Grid:   (M, ceil(N / 8)): blocks of the same weights follow each other. Block: 8 warps.
 * Shared: 32 bytes: the squares of the part.
 * Align:  a and b in quads of 4 elements if bases and rows allow it, else by element.
 * Arch:   any.
 * Limit:  bytes: N K sizeof(T) for one row; further rows take the weights from the cache again. */
template <class T> __global__ void __launch_bounds__(32 * deferred_part) residual_dots(residual_params p, bool quads) {
  ASSAY_SHARED(float, square, deferred_part);
  const int32_t thread = static_cast<int32_t>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int64_t m = blockIdx.x, part = blockIdx.y, n = part * deferred_part + warp;
  float sum = 0.0f;
  if (n < p.N) {
    const T *const a = static_cast<const T *>(p.x) + m * p.x_row, *const b = static_cast<const T *>(p.w) + n * p.K;
    for (int32_t k0 = 0; k0 < p.K; k0 += warp_dots_step) {
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
  }
  sum = warp_sum(sum);
  if (lane == 0) {
    square[warp] = 0.0f;
    if (n < p.N) {
      T *const res = static_cast<T *>(p.res) + m * p.res_row + n;
      const T r = from_float<T>(sum + to_float(*res));
      const float stored = to_float(r);
      *res = r;
      static_cast<T *>(p.c)[m * p.c_row + n] = from_float<T>(stored * to_float(static_cast<const T *>(p.g)[n]));
      square[warp] = __fmul_rn(stored, stored);
    }
  }
  __syncthreads(); /* the squares are written */
  if (thread != 0) return;
  float pair[4];
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    pair[i] = __fadd_rn(square[2 * i], square[2 * i + 1]);
  p.parts[m * gridDim.y + part] = __fadd_rn(__fadd_rn(pair[0], pair[1]), __fadd_rn(pair[2], pair[3]));
}

assay_status read_call(const assay_call *call, residual_plan *plan, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  *plan = residual_plan();
  plan->type = c.type("a");
  ASSAY_TRY(expect_type("a", plan->type, error));
  residual_params *const p = &plan->p;
  p->M = c.dim("M");
  p->N = c.dim("N");
  p->K = c.dim32("K");
  p->x = c.data<const void>("a");
  p->w = c.data<const void>("b");
  p->c = c.data<void>("out");
  p->res = c.data<void>("res");
  p->g = c.data<const void>("g");
  p->parts = c.data<float>("squares");
  p->x_row = c.row("a");
  p->x_rows = p->M;
  p->c_row = c.row("out");
  p->res_row = c.row("res");
  p->pairs = skinny_pairs(p->c, p->c_row, plan->type);
  p->res_pairs = skinny_pairs(p->res, p->res_row, plan->type);
  const int64_t size = assay_dtype_size(plan->type);
  plan->quads = rowwise_quads(p->x, p->x_row, size) && rowwise_quads(p->w, p->K, size);
  return ASSAY_OK;
}

assay_status launch_dots(const assay_call *call, assay_env *env, assay_error *error) {
  residual_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  const residual_params &p = plan.p;
  (void)snprintf(env->path, sizeof env->path, "dots quads=%d", plan.quads ? 1 : 0);
  if (p.M == 0 || p.N == 0) return ASSAY_OK;
  const launch_extent grid(p.M, (p.N + deferred_part - 1) / deferred_part);
  return with_type(plan.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return ASSAY_LAUNCH(error, (residual_dots<T>), grid, 32 * deferred_part, 0, env->stream, p, plan.quads);
  });
}

/* ---- few rows ---------------------------------------------------------------------------------------- */

assay_status read_skinny(const assay_call *call, residual_plan *plan, assay_error *error) {
  ASSAY_TRY(read_call(call, plan, error));
  return skinny_expect(plan->p, plan->type, error);
}

assay_status launch_skinny(const assay_call *call, assay_env *env, assay_error *error) {
  residual_plan plan;
  ASSAY_TRY(read_skinny(call, &plan, error));
  plan.p.early = is_settled(call, *env, "b");
  return skinny_start<residual_columns>(plan.p, plan.type, env, error);
}

/* The sums are those of res: what it held is added, and the result is rounded once. */
assay_status dots_sums(const assay_call *, const assay_env *, assay_sums *sums, assay_error *) {
  warp_dots_sums(sums);
  sums->after[0] = ASSAY_AFTER_OLD_ADD;
  return ASSAY_OK;
}

assay_status few_sums(const assay_call *call, const assay_env *env, assay_sums *sums, assay_error *error) {
  residual_plan plan;
  ASSAY_TRY(read_skinny(call, &plan, error));
  skinny_sums(skinny_streams(plan.p, env->multiprocessors), plan.p, env->multiprocessors, sums);
  sums->after[0] = ASSAY_AFTER_OLD_ADD;
  sums->after[1] = sums->after[2] = ASSAY_AFTER_NONE;
  return ASSAY_OK;
}

constexpr assay_contract dots_contract = rowwise_contract(0.0, 32);

} // namespace
} // namespace ASSAY_NS

#define SKINNY                                                                                                         \
  PLAIN_VARIANT("gemm_residual", "skinny", "few rows: weights from memory into tensor cores", SKINNY_TYPE_CLAIMS,      \
                skinny_contract, residual_plan, read_skinny, launch_skinny, ::ASSAY_NS::few_sums)
#define DOTS                                                                                                           \
  PLAIN_VARIANT("gemm_residual", "dots", "any shape: one warp an element", PLAIN_TYPE_CLAIMS, dots_contract,           \
                residual_plan, read_call, launch_dots, ::ASSAY_NS::dots_sums)

ASSAY_VARIANTS(gemm_residual, SKINNY, DOTS)
