/* rms_gemm_wgmma.cu: a product of any number of rows whose rms_norm is deferred.
 *
 *   f_m = 1 / sqrt(sum_j squares_mj / K + eps)      c_mn = round(f_m sum_k a_mk b_nk + bias_n)
 *
 * One variant: the tiles of gemm's variant wgmma (gpu/lib/gemm_wgmma.cuh and gemm_chain.cuh). Warps that load nothing
 * compute the factors of a tile's rows beside its products. docs/kernels/rms_gemm.md has the arithmetic. */
#include "gpu/lib/gemm_chain.cuh"

namespace ASSAY_NS {
namespace {

/* The use of sums: those of a row are multiplied by its factor, and stored as those of a product are. */
struct scaled_wide : wide_scaled_sums {
  template <class T, int own>
  __device__ __forceinline__ void take(const params &p, int64_t m, int64_t n, int32_t lane,
                                       const float (&sum)[own / 2]) {
    float scaled_sum[own / 2];
    products(sum, scaled_sum);
    wide_store_all<T, T, own>(p, m, n, lane, scaled_sum);
  }
};

/* The same for chains. */
struct scaled_chain : wide_scaled_sums {
  template <class T, int columns>
  __device__ __forceinline__ void take(const params &p, int64_t m, int64_t n, int32_t lane,
                                       const float (&sum)[columns / 2]) {
    float scaled_sum[columns / 2];
    products(sum, scaled_sum);
    chain_store_all<T, columns>(p, m, n, lane, scaled_sum);
  }
};

struct rms_gemm_plan {
  wide_scaled_params p;
  assay_dtype type;
};

assay_status read_call(const assay_call *call, rms_gemm_plan *plan, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  *plan = rms_gemm_plan();
  plan->type = c.type("a");
  wide_scaled_params *const p = &plan->p;
  wide_read(c, "c", p);
  p->bias = c.data<const void>("bias");
  p->squares = c.data<const float>("squares");
  p->eps = c.real("eps");
  p->quads_of_squares = deferred_quads(p->squares, p->K);
  p->alpha = 1.0f;
  p->quads = wide_quads(p->c, p->c_row, plan->type);
  return wide_expect(*p, plan->type, error);
}

/* Launches chains of 64 rows, where there are at most 64 or nearly 128, and else tiles. The order of sums is the same.
 */
assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  rms_gemm_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  wide_scaled_params &p = plan.p;
  p.early = is_settled(call, *env, "b");
  (void)snprintf(env->path, sizeof env->path, "wgmma");
  if (p.M == 0 || p.N == 0) return ASSAY_OK;
  return wide_with_type(plan.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (p.M <= chain_max_rows || chain_pairs(p, env->multiprocessors))
      return chain_columns<T, 64, scaled_chain>(p, env, error);
    if (wide_tiles(p, 128, 128) > env->multiprocessors)
      return wide_start<T, wide_tile<128, 128, 2, 6>, scaled_wide>(p, env, error);
    return wide_start<T, wide_tile<128, 64, 2, 8>, scaled_wide>(p, env, error);
  });
}

/* Declares what follows a sum: the factor of the row, then the bias. */
assay_status declare_sums(const assay_call *call, const assay_env *env, assay_sums *sums, assay_error *error) {
  ASSAY_TRY(wide_sums(call, env, sums, error));
  sums->after[0] = ASSAY_AFTER_FACTOR;
  sums->after[1] = ASSAY_AFTER_BIAS;
  sums->after[2] = ASSAY_AFTER_NONE;
  sums->factor_lanes = deferred_lanes;
  return ASSAY_OK;
}

} // namespace
} // namespace ASSAY_NS

#define WGMMA                                                                                                          \
  PLAIN_VARIANT("rms_gemm", "wgmma", "any rows, on tensor cores", WIDE_TYPE_CLAIMS, wide_contract, rms_gemm_plan,      \
                read_call, launch, ::ASSAY_NS::declare_sums)

ASSAY_VARIANTS(rms_gemm_wgmma, WGMMA)
