/* gemm_glu.cu: a product with gates and ups of a gated MLP, and its activation.
 *
 *   g = sum_k a_mk b_ik        u = sum_k a_mk b_(I+i)k        y_mi = round(act(g) * u)
 *
 * act(g) is g * sigmoid(g), or max(g, 0). g and u stay in f32. With squares, the rms_norm of a row is deferred, and
 * both sums are multiplied by its factor. skinny: at most 64 rows, by the kernels of gemm's variant of that name
 * (gpu/lib/gemm_skinny.cuh). dots: any shape, one warp per channel. docs/kernels/gemm_glu.md has the arithmetic. */
#include "gpu/lib/gemm_skinny.cuh"
#include "gpu/lib/warp.cuh"
#include "gpu/lib/warp_dots.h"

namespace ASSAY_NS {
namespace {

struct glu_plan {
  skinny_scaled_params p; /* N: 2 I */
  assay_dtype type;
  bool quads; /* every quad of a and b is aligned to its own size */
};

/* The quotient has 2 ulp. From g = -87.3 downwards it is 0: sigmoid is subnormal there. */
struct glu_activation {
  static __device__ __forceinline__ float of(bool rectified, float g, float u) {
    return rectified ? fmaxf(g, 0.0f) * u : __fdividef(g, 1.0f + expf(-g)) * u;
  }
};

constexpr int warps_a_block = 4;

/* glu_dots: one warp per element of the result, with two sums.
 * Grid:   (M, ceil(I / 4)): blocks of the same weights follow each other. Block: 4 warps.
 * Shared: none.
 * Align:  a and b in quads of 4 elements if bases and rows allow it, else by element.
 * Arch:   any.
 * Limit:  bytes: 2 I K sizeof(T) for one row; further rows take the weights from the cache again. */
template <class T> __global__ void __launch_bounds__(32 * warps_a_block) glu_dots(skinny_scaled_params p, bool quads) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int64_t i = static_cast<int64_t>(blockIdx.y) * warps_a_block + static_cast<int32_t>(threadIdx.x) / 32;
  const int64_t m = blockIdx.x, I = p.N / 2;
  if (i >= I) return;
  const T *const a = static_cast<const T *>(p.x) + m * p.x_row;
  const T *const gates = static_cast<const T *>(p.w) + i * p.K, *const ups = gates + I * p.K;
  float gate = 0.0f, up = 0.0f;
  for (int32_t k0 = 0; k0 < p.K; k0 += warp_dots_step) {
    const int32_t k = k0 + 4 * lane, left = p.K - k;
    float x[4] = {0.0f, 0.0f, 0.0f, 0.0f}, g[4] = {0.0f, 0.0f, 0.0f, 0.0f}, u[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (left > 0) {
      load_channels(a + k, left < 4 ? left : 4, quads, x);
      load_channels(gates + k, left < 4 ? left : 4, quads, g);
      load_channels(ups + k, left < 4 ? left : 4, quads, u);
    }
    ASSAY_UNROLL
    for (int j = 0; j < 4; ++j) {
      gate = fmaf(x[j], g[j], gate);
      up = fmaf(x[j], u[j], up);
    }
  }
  gate = warp_sum(gate);
  up = warp_sum(up);
  if (p.squares != NULL) {
    const int64_t parts = (p.K + deferred_part - 1) / deferred_part;
    const float factor = deferred_factor(p.squares + m * parts, p.K, p.eps);
    gate = __fmul_rn(factor, gate);
    up = __fmul_rn(factor, up);
  }
  if (lane == 0) static_cast<T *>(p.c)[m * p.c_row + i] = from_float<T>(glu_activation::of(p.rectified, gate, up));
}

assay_status read_call(const assay_call *call, glu_plan *plan, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  *plan = glu_plan();
  plan->type = c.type("a");
  ASSAY_TRY(expect_type("a", plan->type, error));
  skinny_scaled_params *const p = &plan->p;
  p->M = c.dim("M");
  p->N = 2 * c.dim("I");
  p->K = c.dim32("K");
  p->x = c.data<const void>("a");
  p->w = c.data<const void>("b");
  p->c = c.data<void>("y");
  p->x_row = c.row("a");
  p->x_rows = p->M;
  p->c_row = c.row("y");
  p->rectified = c.integer("act") == 1;
  p->squares = c.data<const float>("squares");
  p->eps = c.real("eps");
  p->pairs = skinny_pairs(p->c, p->c_row, plan->type);
  const int64_t size = assay_dtype_size(plan->type);
  plan->quads = rowwise_quads(p->x, p->x_row, size) && rowwise_quads(p->w, p->K, size);
  return ASSAY_OK;
}

assay_status launch_dots(const assay_call *call, assay_env *env, assay_error *error) {
  glu_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  const skinny_scaled_params &p = plan.p;
  (void)snprintf(env->path, sizeof env->path, "dots quads=%d", plan.quads ? 1 : 0);
  if (p.M == 0 || p.N == 0) return ASSAY_OK;
  const launch_extent grid(p.M, (p.N / 2 + warps_a_block - 1) / warps_a_block);
  return with_type(plan.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return ASSAY_LAUNCH(error, (glu_dots<T>), grid, 32 * warps_a_block, 0, env->stream, p, plan.quads);
  });
}

/* ---- few rows ---------------------------------------------------------------------------------------- */

using gated = skinny_gated<glu_activation>;
using gated_of_norm = skinny_scaled<gated>;

assay_status read_skinny(const assay_call *call, glu_plan *plan, assay_error *error) {
  ASSAY_TRY(read_call(call, plan, error));
  return skinny_expect(plan->p, plan->type, error);
}

assay_status launch_skinny(const assay_call *call, assay_env *env, assay_error *error) {
  glu_plan plan;
  ASSAY_TRY(read_skinny(call, &plan, error));
  plan.p.early = is_settled(call, *env, "b");
  return plan.p.squares != NULL ? skinny_start<gated_of_norm>(plan.p, plan.type, env, error)
                                : skinny_start<gated>(plan.p, plan.type, env, error);
}

/* Declares what follows the two sums of a channel. Only reglu has known bits: swiglu's expf and quotient are not
 * rounded correctly. */
assay_status after_sums(const skinny_scaled_params &p, assay_sums *sums, assay_error *error) {
  if (!p.rectified)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "act: found swiglu, allowed with declared sums: reglu");
  int at = 0;
  if (p.squares != NULL) {
    sums->after[at++] = ASSAY_AFTER_FACTOR;
    sums->factor_lanes = deferred_lanes;
  }
  sums->after[at++] = ASSAY_AFTER_RECTIFIED;
  while (at < 3)
    sums->after[at++] = ASSAY_AFTER_NONE;
  return ASSAY_OK;
}

assay_status dots_sums(const assay_call *call, const assay_env *, assay_sums *sums, assay_error *error) {
  glu_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  warp_dots_sums(sums);
  return after_sums(plan.p, sums, error);
}

assay_status few_sums(const assay_call *call, const assay_env *env, assay_sums *sums, assay_error *error) {
  glu_plan plan;
  ASSAY_TRY(read_skinny(call, &plan, error));
  skinny_sums<gated>(skinny_streams(plan.p, env->multiprocessors), plan.p, env->multiprocessors, sums);
  return after_sums(plan.p, sums, error);
}

/* Returns a contract with the activation's bound: expf and the division have 4 ulp. */
constexpr assay_contract with_activation(assay_contract c) {
  c.exp_ulp = 4.0;
  return c;
}

constexpr assay_contract dots_contract = rowwise_contract(4.0, 32);
constexpr assay_contract few_contract = with_activation(skinny_contract);

} // namespace
} // namespace ASSAY_NS

#define SKINNY                                                                                                         \
  PLAIN_VARIANT("gemm_glu", "skinny", "few rows: weights from memory into tensor cores", SKINNY_CLAIMS, few_contract,  \
                glu_plan, read_skinny, launch_skinny, ::ASSAY_NS::few_sums)
#define DOTS                                                                                                           \
  PLAIN_VARIANT("gemm_glu", "dots", "any shape: one warp a channel", DOTS_CLAIMS, dots_contract, glu_plan, read_call,  \
                launch_dots, ::ASSAY_NS::dots_sums)
#define SKINNY_CLAIMS SKINNY_TYPE_CLAIMS "|swiglu,reglu"
#define DOTS_CLAIMS   PLAIN_TYPE_CLAIMS "|swiglu,reglu"

ASSAY_VARIANTS(gemm_glu, SKINNY, DOTS)
