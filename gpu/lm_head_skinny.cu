/* lm_head_skinny.cu: logits of at most 64 selected rows.
 *
 *   logits_rv = sum_c x[row_index_r, c] w_vc
 *
 * A row_index outside [0, T) gives a row of zeros: nothing outside x is read. One variant: each warp streams the
 * weights of 16 token ids past a copy of the selected rows in shared memory (gpu/lib/gemm_skinny.cuh).
 * docs/kernels/lm_head.md has the arithmetic. */
#include "gpu/lib/gemm_skinny.cuh"
#include "gpu/lib/lm_head.h"

namespace ASSAY_NS {
namespace {

struct skinny_plan {
  skinny_params p;
  assay_dtype type;
};

assay_status read_call(const assay_call *call, skinny_plan *plan, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  ASSAY_TRY(expect_uncapped(c, error));
  *plan = skinny_plan();
  plan->type = c.type("x");
  skinny_params *const p = &plan->p;
  p->M = c.dim("R");
  p->N = c.dim("V");
  p->K = c.dim32("C");
  p->x = c.data<const void>("x");
  p->w = c.data<const void>("w");
  p->select = c.data<const int32_t>("row_index");
  p->c = c.data<void>("logits");
  p->x_row = c.row("x");
  p->x_rows = c.dim("T");
  p->c_row = c.row("logits");
  p->alpha = 1.0f;
  p->wide = c.type("logits") != plan->type;
  p->pairs = skinny_pairs(p->c, p->c_row, c.type("logits"));
  ASSAY_TRY(skinny_expect(*p, plan->type, error));
  const int64_t staged = skinny_staged_bytes(p->M, p->K);
  if (staged <= skinny_max_staged) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "rows of x in shared memory: found %lld bytes, allowed at most %lld",
                    static_cast<long long>(staged), static_cast<long long>(skinny_max_staged));
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  skinny_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  plan.p.early = is_settled(call, *env, "w");
  (void)snprintf(env->path, sizeof env->path, "skinny");
  if (plan.p.M == 0 || plan.p.N == 0) return ASSAY_OK;
  return skinny_with_type(
      plan.type, [&](auto tag) { return skinny_launch_stream<typename decltype(tag)::type>(plan.p, env, error); });
}

assay_status declare_sums(const assay_call *, const assay_env *env, assay_sums *sums, assay_error *) {
  skinny_sums(true, skinny_params(), env->multiprocessors, sums);
  return ASSAY_OK;
}

} // namespace
} // namespace ASSAY_NS

#define SKINNY                                                                                                         \
  PLAIN_VARIANT("lm_head", "skinny", "few rows: weights from memory into tensor cores", SKINNY_TYPE_CLAIMS,            \
                skinny_contract, skinny_plan, read_call, launch, ::ASSAY_NS::declare_sums)

ASSAY_VARIANTS(lm_head_skinny, SKINNY)
