/* gemm_glu_chain.cu: a product with gates and ups of a gated MLP, and its activation, with the bits of the operators
 * apart.
 *
 *   g = round(sum_k a_mk b_ik)        u = round(sum_k a_mk b_(I+i)k)        y_mi = round(act(g) * u)
 *
 * One variant, of at most 128 rows. Each sum is one chain of steps of 16 in the order of k, as gemm/wgmma has it. It is
 * rounded as that variant stores it, and the activation is that of swiglu/vectors or reglu/vectors. A batch-invariant
 * step may therefore have few rows here and many rows there. Tiles are those of gpu/lib/gemm_parts.cuh.
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

/* Rounds gates and ups to the storage type, then does as parts_gated. */
struct rounded : parts_unscaled {
  template <class T, int quads>
  static __device__ __forceinline__ void store(const wide_params &p, int64_t m, int64_t n, const float (&sum)[quads][4],
                                               int at) {
    float stored[quads][4] = {};
    ASSAY_UNROLL
    for (int quad = 0; quad < quads; ++quad)
      ASSAY_UNROLL
    for (int i = 0; i < 2; ++i)
      stored[quad][i] = to_float(from_float<T>(sum[quad][at + i]));
    parts_gated<activation>::store<T, quads>(p, m, n, stored, 0);
  }
};

/* k is one part: no sum is cut, whatever the rows. An H200 has a block for each 24 channels up to most_channels. */
using half_tile = parts_tile<64, 48, 1, 14, true>;
using whole_tile = parts_tile<128, 48, 1, 10, true>;
constexpr int64_t half_rows = 64, most_channels = 24 * 132, vector = 8;

assay_status read_call(const assay_call *call, glu_plan *plan, assay_error *error) {
  ASSAY_TRY(glu_read(call, plan, error));
  const wide_params &p = plan->p;
  if (plan->p.squares != NULL) return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "squares: found a tensor, allowed none");
  if (plan->type != ASSAY_BF16)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "dtype: found %s, allowed bf16", assay_dtype_name(plan->type));
  if (p.N / 2 > most_channels || p.N / 2 % vector != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                      "I: found %" PRId64 ", allowed multiples of %" PRId64 " up to %" PRId64, p.N / 2, vector,
                      most_channels);
  if (p.c_row % vector != 0 || reinterpret_cast<uintptr_t>(p.c) % (2 * vector) != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                      "y: found rows %" PRId64 " apart, allowed multiples of %" PRId64 ", and addresses of 16 bytes",
                      p.c_row, vector);
  return parts_expect(p, ASSAY_BF16, error);
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  glu_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  wide_params &p = plan.p;
  p.early = p.K >= chain_early_terms && is_settled(call, *env, "b");
  (void)snprintf(env->path, sizeof env->path, "chain");
  if (p.N == 0) return ASSAY_OK;
  if (p.M <= half_rows) return parts_start<bf16, half_tile, rounded>(p, env, error);
  return parts_start<bf16, whole_tile, rounded>(p, env, error);
}

assay_status declare_sums(const assay_call *call, const assay_env *, assay_sums *sums, assay_error *error) {
  glu_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  ASSAY_TRY(glu_expect_reglu(plan, error));
  parts_sums(1, sums); /* as few rows have them, and not what the tile says */
  sums->after[0] = ASSAY_AFTER_ROUND;
  sums->after[1] = ASSAY_AFTER_RECTIFIED;
  return ASSAY_OK;
}

/* Returns the contract: gates and ups are rounded to bf16. */
constexpr assay_contract contract_of(assay_contract c) {
  c.partial = ASSAY_BF16;
  return c;
}
constexpr assay_contract contract = contract_of(glu_contract(wide_contract));

} // namespace
} // namespace ASSAY_NS

#define CHAIN                                                                                                          \
  GLU_VARIANT("chain", "up to 128 rows, with the bits of gemm/wgmma and the activation apart", "bf16|swiglu,reglu")

ASSAY_VARIANTS(gemm_glu_chain, CHAIN)
