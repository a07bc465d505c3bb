/* gemm_glu_parts.cu: a product with gates and ups of a gated MLP, and its activation, of at most 128 rows.
 *
 *   g = f_m sum_k a_mk b_ik        u = f_m sum_k a_mk b_(I+i)k        y_mi = round(act(g) * u)
 *
 * f_m is 1, or the factor of a row whose rms_norm is deferred.
 * One variant: tiles of all rows on Hopper's tensor cores, a block for each 24 channels (gpu/lib/gemm_parts.cuh).
 * docs/kernels/gemm_glu.md has the arithmetic. */
#include "gpu/lib/gemm_parts.cuh"
#include "gpu/lib/glu_read.cuh"

namespace ASSAY_NS {
namespace {

struct activation {
  static __device__ __forceinline__ float of(bool rectified, float g, float u) {
    return glu_activated(rectified, g, u);
  }
};

/* k is one part here: an H200 has a block for each 24 channels up to most_channels, and clusters were slower
 * (docs/log/2026-11-28-h200-shared-terms.md). */
using half_tile = parts_tile<64, 48, 1, 14, true>;
using whole_tile = parts_tile<128, 48, 1, 10, true>;
constexpr int64_t half_rows = 64, most_channels = 24 * 132;

assay_status read_call(const assay_call *call, glu_plan *plan, assay_error *error) {
  ASSAY_TRY(glu_read(call, plan, error));
  if (plan->p.N / 2 > most_channels)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "I: found %" PRId64 ", allowed up to %" PRId64, plan->p.N / 2,
                      most_channels);
  return parts_expect(plan->p, plan->type, error);
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  glu_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  plan.p.early = is_settled(call, *env, "b");
  (void)snprintf(env->path, sizeof env->path, "parts");
  if (plan.p.N == 0) return ASSAY_OK;
  using usual = parts_gated<activation>;
  using of_norm = parts_scaled<usual>;
  return wide_with_type(plan.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool half = plan.p.M <= half_rows;
    if (plan.p.squares == NULL)
      return half ? parts_start<T, half_tile, usual>(plan.p, env, error)
                  : parts_start<T, whole_tile, usual>(plan.p, env, error);
    return half ? parts_start<T, half_tile, of_norm>(plan.p, env, error)
                : parts_start<T, whole_tile, of_norm>(plan.p, env, error);
  });
}

assay_status declare_sums(const assay_call *call, const assay_env *, assay_sums *sums, assay_error *error) {
  glu_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  ASSAY_TRY(glu_expect_reglu(plan, error));
  parts_sums(whole_tile::parts, sums);
  glu_after_sums(plan, sums);
  return ASSAY_OK;
}

constexpr assay_contract contract = glu_contract(parts_contract);

} // namespace
} // namespace ASSAY_NS

#define PARTS GLU_VARIANT("parts", "up to 128 rows: a tile of all rows a block", WIDE_TYPE_CLAIMS "|swiglu,reglu")

ASSAY_VARIANTS(gemm_glu_parts, PARTS)
