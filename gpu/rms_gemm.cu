/* rms_gemm.cu: a product of rows whose rms_norm is deferred.
 *
 *   f_m = 1 / sqrt(sum_j squares_mj / K + eps)      c_mn = round(f_m sum_k a_mk b_nk + bias_n)
 *
 * skinny: at most 64 rows, by the kernels of gemm's variant of that name (gpu/lib/gemm_skinny.cuh). A block adds the
 * parts of all rows while its weights are on their way. dots: any shape, one warp per element. docs/kernels/rms_gemm.md
 * has the arithmetic. */
#include "gpu/lib/gemm_skinny.cuh"
#include "gpu/lib/warp.cuh"
#include "gpu/lib/warp_dots.h"

namespace ASSAY_NS {
namespace {

struct rms_gemm_plan {
  skinny_scaled_params p;
  assay_dtype type;
  bool quads; /* every quad of a and b is aligned to its own size */
};

constexpr int warps_a_block = 4;

/* rms_gemm_dots: one warp per element of the result. Each eight lanes add the parts of the row.
 * Grid:   (M, ceil(N / 4), up to 65535): blocks of the same weights follow each other. Block: 4 warps.
 * Shared: none.
 * Align:  a and b in quads of 4 elements if bases and rows allow it, else by element.
 * Arch:   any.
 * Limit:  bytes: N K sizeof(T) for one row; further rows take the weights from the cache again. */
template <class T>
__global__ void __launch_bounds__(32 * warps_a_block) rms_gemm_dots(skinny_scaled_params p, bool quads) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int64_t m = blockIdx.x, parts = (p.K + deferred_part - 1) / deferred_part;
  const T *const a = static_cast<const T *>(p.x) + m * p.x_row;
  const float factor = deferred_factor(p.squares + m * parts, p.K, p.eps);
  /* The grid may have fewer blocks than there are columns. */
  for (int64_t n = static_cast<int64_t>(blockIdx.y) * warps_a_block + static_cast<int32_t>(threadIdx.x) / 32; n < p.N;
       n += static_cast<int64_t>(gridDim.y) * warps_a_block) {
    const T *const b = static_cast<const T *>(p.w) + n * p.K;
    float sum = 0.0f;
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
    sum = __fmul_rn(factor, warp_sum(sum));
    if (lane != 0) continue;
    if (p.bias != NULL) sum = __fadd_rn(sum, to_float(static_cast<const T *>(p.bias)[n]));
    static_cast<T *>(p.c)[m * p.c_row + n] = from_float<T>(sum);
  }
}

assay_status read_call(const assay_call *call, rms_gemm_plan *plan, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  *plan = rms_gemm_plan();
  plan->type = c.type("a");
  ASSAY_TRY(expect_type("a", plan->type, error));
  skinny_scaled_params *const p = &plan->p;
  p->M = c.dim("M");
  p->N = c.dim("N");
  p->K = c.dim32("K");
  p->x = c.data<const void>("a");
  p->w = c.data<const void>("b");
  p->bias = c.data<const void>("bias");
  p->c = c.data<void>("c");
  p->squares = c.data<const float>("squares");
  p->eps = c.real("eps");
  p->x_row = c.row("a");
  p->x_rows = p->M;
  p->c_row = c.row("c");
  p->alpha = 1.0f;
  p->pairs = skinny_pairs(p->c, p->c_row, plan->type);
  const int64_t size = assay_dtype_size(plan->type);
  plan->quads = rowwise_quads(p->x, p->x_row, size) && rowwise_quads(p->w, p->K, size);
  return ASSAY_OK;
}

assay_status launch_dots(const assay_call *call, assay_env *env, assay_error *error) {
  rms_gemm_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  const skinny_scaled_params &p = plan.p;
  (void)snprintf(env->path, sizeof env->path, "dots quads=%d", plan.quads ? 1 : 0);
  if (p.M == 0 || p.N == 0) return ASSAY_OK;
  const launch_extent grid(p.M, min((p.N + warps_a_block - 1) / warps_a_block, launch_max_grid_yz));
  return with_type(plan.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return ASSAY_LAUNCH(error, (rms_gemm_dots<T>), grid, 32 * warps_a_block, 0, env->stream, p, plan.quads);
  });
}

/* ---- few rows ---------------------------------------------------------------------------------------- */

using scaled = skinny_scaled<skinny_columns>;

assay_status read_skinny(const assay_call *call, rms_gemm_plan *plan, assay_error *error) {
  ASSAY_TRY(read_call(call, plan, error));
  return skinny_expect(plan->p, plan->type, error);
}

assay_status launch_skinny(const assay_call *call, assay_env *env, assay_error *error) {
  rms_gemm_plan plan;
  ASSAY_TRY(read_skinny(call, &plan, error));
  plan.p.early = is_settled(call, *env, "b");
  return skinny_start<scaled>(plan.p, plan.type, env, error);
}

/* Declares what follows a sum: the factor of the row, then the bias. */
void after_sums(assay_sums *sums) {
  sums->after[0] = ASSAY_AFTER_FACTOR;
  sums->after[1] = ASSAY_AFTER_BIAS;
  sums->after[2] = ASSAY_AFTER_NONE;
  sums->factor_lanes = deferred_lanes;
}

assay_status dots_sums(const assay_call *, const assay_env *, assay_sums *sums, assay_error *) {
  warp_dots_sums(sums);
  after_sums(sums);
  return ASSAY_OK;
}

assay_status few_sums(const assay_call *call, const assay_env *env, assay_sums *sums, assay_error *error) {
  rms_gemm_plan plan;
  ASSAY_TRY(read_skinny(call, &plan, error));
  skinny_sums(skinny_streams(plan.p, env->multiprocessors), plan.p, env->multiprocessors, sums);
  after_sums(sums);
  return ASSAY_OK;
}

constexpr assay_contract dots_contract = rowwise_contract(0.0, 32);

} // namespace
} // namespace ASSAY_NS

#define SKINNY                                                                                                         \
  PLAIN_VARIANT("rms_gemm", "skinny", "few rows: weights from memory into tensor cores", SKINNY_TYPE_CLAIMS,           \
                skinny_contract, rms_gemm_plan, read_skinny, launch_skinny, ::ASSAY_NS::few_sums)
#define DOTS                                                                                                           \
  PLAIN_VARIANT("rms_gemm", "dots", "any shape: one warp an element", PLAIN_TYPE_CLAIMS, dots_contract, rms_gemm_plan, \
                read_call, launch_dots, ::ASSAY_NS::dots_sums)

ASSAY_VARIANTS(rms_gemm, SKINNY, DOTS)
