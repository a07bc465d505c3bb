/* gemm_glu_parts.cu: a product with gates and ups of a gated MLP, and its activation, of at most 128 rows.
 *
 *   g = sum_k a_mk b_ik        u = sum_k a_mk b_(I+i)k        y_mi = round(act(g) * u)
 *
 * One variant: tiles of all rows on Hopper's tensor cores, a block for each 24 channels (gpu/lib/gemm_parts.cuh).
 * docs/kernels/gemm_glu.md has the arithmetic. */
#include "gpu/lib/gemm_parts.cuh"

namespace ASSAY_NS {
namespace {

struct glu_plan {
  wide_params p; /* N: 2 I */
  assay_dtype type;
};

/* The quotient has 2 ulp. From g = -87.3 downwards it is 0: sigmoid is subnormal there. */
struct activation {
  static __device__ __forceinline__ float of(bool rectified, float g, float u) {
    return rectified ? fmaxf(g, 0.0f) * u : __fdividef(g, 1.0f + expf(-g)) * u;
  }
};

/* k is one part here: an H200 has a block for each 24 channels up to most_channels, and clusters were slower
 * (docs/log/2026-11-28-h200-shared-terms.md). */
using half_tile = parts_tile<64, 48, 1, 14, true>;
using whole_tile = parts_tile<128, 48, 1, 10, true>;
constexpr int64_t half_rows = 64, most_channels = 24 * 132;

assay_status read_call(const assay_call *call, glu_plan *plan, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  *plan = glu_plan();
  plan->type = c.type("a");
  wide_params *const p = &plan->p;
  p->M = c.dim("M");
  p->N = 2 * c.dim("I");
  p->K = c.dim("K");
  p->x = c.data<const void>("a");
  p->w = c.data<const void>("b");
  p->c = c.data<void>("y");
  p->x_row = c.row("a");
  p->c_row = c.row("y");
  p->rectified = c.integer("act") == 1;
  p->quads = wide_quads(p->c, p->c_row, plan->type);
  if (c.data<const float>("squares") != NULL)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "squares: found a tensor, allowed none");
  if (p->N / 2 > most_channels)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "I: found %" PRId64 ", allowed up to %" PRId64, p->N / 2,
                      most_channels);
  return parts_expect(*p, plan->type, error);
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  glu_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  plan.p.early = is_settled(call, *env, "b");
  (void)snprintf(env->path, sizeof env->path, "parts");
  if (plan.p.N == 0) return ASSAY_OK;
  return wide_with_type(plan.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (plan.p.M <= half_rows) return parts_start<T, half_tile, parts_gated<activation>>(plan.p, env, error);
    return parts_start<T, whole_tile, parts_gated<activation>>(plan.p, env, error);
  });
}

/* Only reglu has known bits: swiglu's expf and quotient are not rounded correctly. */
assay_status declare_sums(const assay_call *call, const assay_env *, assay_sums *sums, assay_error *error) {
  glu_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  if (!plan.p.rectified)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "act: found swiglu, allowed with declared sums: reglu");
  parts_sums(whole_tile::parts, sums);
  sums->after[0] = ASSAY_AFTER_RECTIFIED;
  return ASSAY_OK;
}

/* Returns a contract with the activation's bound: expf and the division have 4 ulp. */
constexpr assay_contract with_activation(assay_contract c) {
  c.exp_ulp = 4.0;
  return c;
}
constexpr assay_contract contract = with_activation(parts_contract);

} // namespace
} // namespace ASSAY_NS

#define PARTS                                                                                                          \
  {                                                                                                                    \
    sizeof(assay_variant), "gemm_glu", "parts" ASSAY_VARIANT_SUFFIX, "up to 128 rows: a tile of all rows a block",     \
        ASSAY_DEVICE_NAME, "sm_90a", PARTS_CLAIMS, ::ASSAY_NS::contract,                                               \
        ::ASSAY_NS::plain_supports<::ASSAY_NS::glu_plan, ::ASSAY_NS::read_call>,                                       \
        ::ASSAY_NS::plain_no_workspace<::ASSAY_NS::glu_plan, ::ASSAY_NS::read_call>, ::ASSAY_NS::launch,               \
        ::ASSAY_NS::declare_sums                                                                                       \
  }
#define PARTS_CLAIMS WIDE_TYPE_CLAIMS "|swiglu,reglu"

ASSAY_VARIANTS(gemm_glu_parts, PARTS)
