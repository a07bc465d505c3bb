/* lm_head_argmax_wgmma.cu: the id of the largest logit of selected rows, from the tensor cores.
 *
 *   l_rv = sum_c x[row_index_r, c] w_vc        token_r = the lowest v of the largest l_rv
 *
 * A small kernel gathers the selected rows in the workspace and clears their keys. The products are those of gemm's
 * variant wgmma (gpu/lib/gemm_chain.cuh): their sums are compared where they are, and no logit is written. A row_index
 * outside [0, T) gives a row of zeros. docs/kernels/lm_head_argmax.md has the arithmetic. */
#include "gpu/lib/best_logit.cuh"
#include "gpu/lib/gather_rows.cuh"
#include "gpu/lib/gemm_chain.cuh"

namespace ASSAY_NS {
namespace {

/* The use of sums: a thread keeps the best of two rows, m and m + 8. The keys are where a product stores its result.
 * Where there are several tiles of rows, each tile gives its own. */
struct best_sums : wide_plain_sums {
  best_logit best[2];

  template <class T, int own>
  __device__ __forceinline__ void take(const wide_params &p, int64_t m, int64_t n, int32_t lane,
                                       const float (&sum)[own / 2]) {
    const int32_t first = static_cast<int32_t>(n) + 2 * (lane % 4);
    const bool whole = n + own <= p.N;
    ASSAY_UNROLL
    for (int j = 0; j < own / 8; ++j)
      ASSAY_UNROLL
    for (int half = 0; half < 2; ++half)
      ASSAY_UNROLL
    for (int e = 0; e < 2; ++e)
      if (whole || first + 8 * j + e < p.N) best[half].take(sum[4 * j + 2 * half + e], first + 8 * j + e);
    if (p.row_tiles > 1) give(p, m, lane);
  }
  __device__ __forceinline__ void end(const wide_params &p, int64_t m, int32_t lane) {
    if (p.row_tiles == 1) give(p, m, lane);
  }

private:
  /* Adds the best of four lanes, which share rows, to the keys. */
  __device__ __forceinline__ void give(const wide_params &p, int64_t m, int32_t lane) {
    ASSAY_UNROLL
    for (int half = 0; half < 2; ++half) {
      const wide key = group_max<4>(best[half].key());
      if (lane % 4 == 0 && m + 8 * half < p.M) atomicMax(static_cast<wide *>(p.c) + m + 8 * half, key);
      best[half] = best_logit();
    }
  }
};

struct argmax_plan {
  wide_params p;
  gather_params gather;
  best_params best;
  assay_dtype type;
  int64_t keys_bytes, bytes; /* keys alone, and the whole workspace */
};

assay_status read_plan(const assay_call *call, argmax_plan *plan, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  *plan = argmax_plan();
  plan->type = c.type("x");
  wide_params *const p = &plan->p;
  p->M = c.dim("R");
  p->N = c.dim("V");
  p->K = c.dim("C");
  p->x = c.data<const void>("x");
  p->w = c.data<const void>("w");
  p->x_row = c.row("x");
  p->alpha = 1.0f;
  ASSAY_TRY(wide_expect(*p, plan->type, error));
  plan->best = best_read(c);
  plan->gather = {c.data<const uint4>("x"),
                  c.data<const int32_t>("row_index"),
                  nullptr,
                  p->x_row / 8,
                  c.dim("T"),
                  p->K / 8,
                  nullptr};
  plan->keys_bytes = (p->M * static_cast<int64_t>(sizeof(wide)) + 255) / 256 * 256;
  plan->bytes = plan->keys_bytes + p->M * p->K * 2;
  p->x_row = p->K;
  return ASSAY_OK;
}

assay_status supports(const assay_call *call, assay_error *error) {
  argmax_plan plan;
  return read_plan(call, &plan, error);
}

assay_status workspace(const assay_call *call, int64_t *bytes, assay_error *error) {
  argmax_plan plan;
  *bytes = 0;
  ASSAY_TRY(read_plan(call, &plan, error));
  *bytes = plan.bytes;
  return ASSAY_OK;
}

/* Launches the products. Up to 64 rows stay in shared memory, where they find room beside the weights that stream past;
 * else tiles have 128 rows. The order of sums is the same. */
template <class T> assay_status launch_products(const wide_params &p, assay_env *env, assay_error *error) {
  using eight = chain_flow<8, 64, 10>;
  using some = chain_flow<32, 64, 8>;
  using many = chain_flow<64, 64, 5>;
  if (p.M <= 8 && chain_fits<eight>(p)) return chain_start_flow<T, eight, best_sums>(p, env, error);
  if (p.M <= 32 && chain_fits<some>(p)) return chain_start_flow<T, some, best_sums>(p, env, error);
  if (p.M <= 64 && chain_fits<many>(p)) return chain_start_flow<T, many, best_sums>(p, env, error);
  return wide_start<T, wide_tile<128, 192, 2, 5>, best_sums>(p, env, error);
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  argmax_plan plan;
  ASSAY_TRY(read_plan(call, &plan, error));
  plan.p.early = is_settled(call, *env, "w");
  (void)snprintf(env->path, sizeof env->path, "wgmma");
  if (plan.p.M == 0) return ASSAY_OK;
  ASSAY_TRY(expect_workspace(env, plan.bytes, error));
  plan.best.keys = plan.gather.keys = static_cast<wide *>(env->workspace);
  plan.gather.rows = reinterpret_cast<uint4 *>(static_cast<unsigned char *>(env->workspace) + plan.keys_bytes);
  plan.p.x = plan.gather.rows;
  plan.p.c = plan.best.keys;
  launch_options first = in_turn();
  first.followed = true;
  ASSAY_TRY(ASSAY_LAUNCH_WITH(error, gather_rows, plan.p.M, gather_threads, 0, first, env->stream, plan.gather));
  ASSAY_TRY(wide_with_type(
      plan.type, [&](auto tag) { return launch_products<typename decltype(tag)::type>(plan.p, env, error); }));
  return best_launch_end(plan.best, env, error);
}

} // namespace
} // namespace ASSAY_NS

#define WGMMA                                                                                                          \
  {                                                                                                                    \
    sizeof(assay_variant), "lm_head_argmax", "wgmma" ASSAY_VARIANT_SUFFIX, "no logits written: tensor cores compare",  \
        ASSAY_DEVICE_NAME, "sm_90a", WIDE_TYPE_CLAIMS, ::ASSAY_NS::wide_contract, ::ASSAY_NS::supports,                \
        ::ASSAY_NS::workspace, ::ASSAY_NS::launch                                                                      \
  }

ASSAY_VARIANTS(lm_head_argmax_wgmma, WGMMA)
