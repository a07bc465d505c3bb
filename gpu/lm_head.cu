/* lm_head.cu: logits of selected rows.
 *
 *   logits_rv = sum_c x[row_index_r, c] w_vc
 *
 * With softcap = c > 0 a second launch makes it c · tanh(logit / c), in place. The logits are f32 then.
 *
 * A row_index outside [0, T) gives a row of zeros: nothing outside x is read. One variant: the tiles of gemm over the
 * selected rows (gpu/lib/gemm.cuh). docs/kernels/lm_head.md has the arithmetic. */
#include "gpu/lib/gemm.cuh"

namespace ASSAY_NS {
namespace {

struct lm_head_plan {
  gemm_params p;
  assay_dtype type, out;
  float softcap; /* 0: off */
};

/* cap_logits: f32 logits below a cap, in place, one per thread.
 * Grid:   (R, pieces of 256 token ids). Block: 256 threads.
 * Shared: none.
 * Align:  by element.
 * Arch:   any.
 * Limit:  bytes: 8 per logit. */
__global__ void __launch_bounds__(256) cap_logits(float *logits, int64_t row, int64_t V, float cap) {
  const int64_t v = static_cast<int64_t>(blockIdx.y) * 256 + threadIdx.x;
  if (v >= V) return;
  float *const at = logits + blockIdx.x * row + v;
  *at = cap * tanhf(*at / cap);
}

assay_status read_call(const assay_call *call, lm_head_plan *plan, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  *plan = lm_head_plan();
  plan->type = c.type("x");
  plan->out = c.type("logits");
  plan->softcap = c.real("softcap");
  ASSAY_TRY(expect_type("x", plan->type, error));
  if (plan->softcap > 0.0f && plan->out != ASSAY_F32)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "softcap: found a cap of logits of %s, allowed logits of f32",
                      assay_dtype_name(plan->out));
  gemm_params *const p = &plan->p;
  p->M = c.dim("R");
  p->N = c.dim("V");
  p->K = c.dim("C");
  p->a = c.data<const void>("x");
  p->b = c.data<const void>("w");
  p->select = c.data<const int32_t>("row_index");
  p->c = c.data<void>("logits");
  p->a_row = c.row("x");
  p->a_rows = c.dim("T");
  p->c_row = c.row("logits");
  p->alpha = 1.0f;
  const int64_t size = assay_dtype_size(plan->type);
  p->quads = rowwise_quads(p->a, p->a_row, size) && rowwise_quads(p->b, p->K, size);
  return ASSAY_OK;
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  lm_head_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  ASSAY_TRY(gemm_launch(plan.p, plan.type, plan.out, env, error));
  if (!(plan.softcap > 0.0f) || plan.p.M == 0) return ASSAY_OK;
  return ASSAY_LAUNCH(error, cap_logits, launch_extent(plan.p.M, (plan.p.N + 255) / 256), 256, 0, env->stream,
                      static_cast<float *>(plan.p.c), plan.p.c_row > 0 ? plan.p.c_row : plan.p.N, plan.p.N,
                      plan.softcap);
}

constexpr assay_contract contract = rowwise_contract(2.0, 1); /* tanhf: 2 ulp */

} // namespace
} // namespace ASSAY_NS

#define TILES                                                                                                          \
  PLAIN_VARIANT("lm_head", "tiles", "any shape: tiles of 32 rows by 64 token ids", PLAIN_TYPE_CLAIMS, contract,        \
                lm_head_plan, read_call, launch, ::ASSAY_NS::gemm_tiles_sums)

ASSAY_VARIANTS(lm_head, TILES)
