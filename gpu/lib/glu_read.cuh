/* glu_read.cuh: what the variants of `gemm_glu` on Hopper's wgmma share: the activation, and how they read a call. */
#ifndef ASSAY_GPU_LIB_GLU_READ_CUH
#define ASSAY_GPU_LIB_GLU_READ_CUH

#include "gpu/lib/gemm_wgmma.cuh"

namespace ASSAY_NS {

/* Returns act(g) * u. The quotient has 2 ulp. From g = -87.3 downwards it is 0: sigmoid is subnormal there. */
__device__ __forceinline__ float glu_activated(bool rectified, float g, float u) {
  return rectified ? fmaxf(g, 0.0f) * u : __fdividef(g, 1.0f + expf(-g)) * u;
}

struct glu_plan {
  wide_scaled_params p; /* N: 2 I; squares NULL: rows are as they are */
  assay_dtype type;
};

/* Reads a call of `gemm_glu`. Limits of a variant come after it. */
inline assay_status glu_read(const assay_call *call, glu_plan *plan, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  *plan = glu_plan();
  plan->type = c.type("a");
  wide_scaled_params *const p = &plan->p;
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
  p->squares = c.data<const float>("squares");
  p->eps = c.real("eps");
  p->quads_of_squares = deferred_quads(p->squares, p->K);
  return ASSAY_OK;
}

/* Refuses to declare sums of swiglu: its expf and its quotient are not rounded correctly, so that its bits are unknown.
 */
inline assay_status glu_expect_reglu(const glu_plan &plan, assay_error *error) {
  if (plan.p.rectified) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "act: found swiglu, allowed with declared sums: reglu");
}

/* Declares what follows the sums: the row's factor, if its norm is deferred, and the activation. */
inline void glu_after_sums(const glu_plan &plan, assay_sums *sums) {
  for (auto &after : sums->after)
    after = ASSAY_AFTER_NONE;
  const bool scaled = plan.p.squares != NULL;
  sums->after[0] = scaled ? ASSAY_AFTER_FACTOR : ASSAY_AFTER_RECTIFIED;
  if (!scaled) return;
  sums->after[1] = ASSAY_AFTER_RECTIFIED;
  sums->factor_lanes = deferred_lanes;
}

/* Returns the contract with the activation's bound: expf and the division have 4 ulp. */
constexpr assay_contract glu_contract(assay_contract c) {
  c.exp_ulp = 4.0;
  return c;
}

} // namespace ASSAY_NS

/* Makes a row of the variant table from functions and a contract of the file: read_call, launch, declare_sums. */
#define GLU_VARIANT(name, why, claims)                                                                                 \
  {                                                                                                                    \
    sizeof(assay_variant), "gemm_glu", name ASSAY_VARIANT_SUFFIX, why, ASSAY_DEVICE_NAME, "sm_90a", claims,            \
        ::ASSAY_NS::contract, ::ASSAY_NS::plain_supports<::ASSAY_NS::glu_plan, ::ASSAY_NS::read_call>,                 \
        ::ASSAY_NS::plain_no_workspace<::ASSAY_NS::glu_plan, ::ASSAY_NS::read_call>, ::ASSAY_NS::launch,               \
        ::ASSAY_NS::declare_sums                                                                                       \
  }

#endif
