/* gemm.cu: a matrix product with weights [out, in].
 *
 *   c_mn <- alpha * sum_k a_mk b_nk + beta * c_mn + bias_n        beta 0: c is not read; bias may be absent
 *
 * Two variants: tiles of 32 rows and 64 columns (gpu/lib/gemm.cuh), and one warp per dot product for few rows. Sums run
 * in f32 and in a fixed order: the same call gives the same bits. docs/kernels/gemm.md has the arithmetic. */
#include "gpu/lib/gemm.cuh"
#include "gpu/lib/warp.cuh"
#include "gpu/lib/warp_dots.h"

namespace ASSAY_NS {
namespace {

constexpr int warps_a_block = 4;

/* gemm_dots: one warp per element of the result.
 * Grid:   (ceil(N / 4), M). Block: 4 warps.
 * Shared: none.
 * Align:  a and b in quads of 4 elements if bases and rows allow it, else by element.
 * Arch:   any.
 * Limit:  bytes: N K sizeof(T) for one row; further rows take the weights from the cache again. */
template <class T, class Out> __global__ void __launch_bounds__(32 * warps_a_block) gemm_dots(gemm_params p) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int64_t m = blockIdx.y;
  const int64_t n = static_cast<int64_t>(blockIdx.x) * warps_a_block + static_cast<int32_t>(threadIdx.x) / 32;
  if (n >= p.N) return;
  const T *const a = static_cast<const T *>(p.a) + m * p.a_row, *const b = static_cast<const T *>(p.b) + n * p.K;
  float sum = 0.0f;
  /* All lanes add the same number of products: past K they are 0 * 0. */
  for (int64_t k0 = 0; k0 < p.K; k0 += warp_dots_step) {
    const int64_t k = k0 + 4 * lane, left = p.K - k;
    float x[4] = {0.0f, 0.0f, 0.0f, 0.0f}, w[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (left > 0) {
      load_channels(a + k, static_cast<int32_t>(left < 4 ? left : 4), p.quads, x);
      load_channels(b + k, static_cast<int32_t>(left < 4 ? left : 4), p.quads, w);
    }
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      sum = fmaf(x[i], w[i], sum);
  }
  sum = warp_sum(sum);
  if (lane != 0) return;
  Out *const to = static_cast<Out *>(p.c) + m * p.c_row + n;
  float value = __fmul_rn(p.alpha, sum);
  if (p.beta != 0.0f) value = fmaf(p.beta, to_float(*to), value);
  if (p.bias != NULL) value = __fadd_rn(value, to_float(static_cast<const T *>(p.bias)[n]));
  *to = from_float<Out>(value);
}

struct gemm_plan {
  gemm_params p;
  assay_dtype type, out;
};

assay_status read_call(const assay_call *call, gemm_plan *plan, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  *plan = gemm_plan();
  plan->type = c.type("a");
  plan->out = c.type("c");
  ASSAY_TRY(expect_type("a", plan->type, error));
  gemm_params *const p = &plan->p;
  p->M = c.dim("M");
  p->N = c.dim("N");
  p->K = c.dim("K");
  p->a = c.data<const void>("a");
  p->b = c.data<const void>("b");
  p->bias = c.data<const void>("bias");
  p->c = c.data<void>("c");
  p->a_row = c.row("a");
  p->a_rows = p->M;
  p->c_row = c.row("c");
  p->alpha = c.real("alpha");
  p->beta = c.real("beta");
  const int64_t size = assay_dtype_size(plan->type);
  p->quads = rowwise_quads(p->a, p->a_row, size) && rowwise_quads(p->b, p->K, size);
  return ASSAY_OK;
}

assay_status launch_tiles(const assay_call *call, assay_env *env, assay_error *error) {
  gemm_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  return gemm_launch(plan.p, plan.type, plan.out, env, error);
}

constexpr int64_t dots_max_rows = launch_max_grid_yz;

assay_status read_dots(const assay_call *call, gemm_plan *plan, assay_error *error) {
  ASSAY_TRY(read_call(call, plan, error));
  if (plan->p.M <= dots_max_rows) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "M: found %lld, allowed at most %lld",
                    static_cast<long long>(plan->p.M), static_cast<long long>(dots_max_rows));
}

assay_status launch_dots(const assay_call *call, assay_env *env, assay_error *error) {
  gemm_plan plan;
  ASSAY_TRY(read_dots(call, &plan, error));
  const gemm_params &p = plan.p;
  (void)snprintf(env->path, sizeof env->path, "dots quads=%d", p.quads ? 1 : 0);
  if (p.M == 0 || p.N == 0) return ASSAY_OK;
  const launch_extent grid((p.N + warps_a_block - 1) / warps_a_block, p.M);
  return with_type(plan.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (plan.out == plan.type)
      return ASSAY_LAUNCH(error, (gemm_dots<T, T>), grid, 32 * warps_a_block, 0, env->stream, p);
    return ASSAY_LAUNCH(error, (gemm_dots<T, float>), grid, 32 * warps_a_block, 0, env->stream, p);
  });
}

assay_status dots_sums(const assay_call *, const assay_env *, assay_sums *sums, assay_error *) {
  warp_dots_sums(sums);
  sums_after(sums);
  return ASSAY_OK;
}

constexpr assay_contract tiles_contract = rowwise_contract(0.0, 1);
constexpr assay_contract dots_contract = rowwise_contract(0.0, 32);

} // namespace
} // namespace ASSAY_NS

#define TILES                                                                                                          \
  PLAIN_VARIANT("gemm", "tiles", "any shape: tiles of 32 by 64", PLAIN_TYPE_CLAIMS, tiles_contract, gemm_plan,         \
                read_call, launch_tiles, ::ASSAY_NS::gemm_tiles_sums)
#define DOTS                                                                                                           \
  PLAIN_VARIANT("gemm", "dots", "few rows: one warp a dot product", PLAIN_TYPE_CLAIMS, dots_contract, gemm_plan,       \
                read_dots, launch_dots, ::ASSAY_NS::dots_sums)

ASSAY_VARIANTS(gemm, TILES, DOTS)
