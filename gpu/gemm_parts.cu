/* gemm_parts.cu: a matrix product with weights [out, in], of at most 128 rows.
 *
 *   c_mn <- alpha * sum_k a_mk b_nk + beta * c_mn + bias_n        beta 0: c is not read; bias may be absent
 *
 * One variant: tiles of all rows on Hopper's tensor cores, with k shared by the blocks of a cluster
 * (gpu/lib/gemm_parts.cuh). docs/kernels/gemm.md has the arithmetic. */
#include "gpu/lib/gemm_parts.cuh"
#include "gpu/lib/gemm_read.cuh"
#include "gpu/lib/library.h"

namespace ASSAY_NS {
namespace {

/* Tiles by rows, terms and channels. A step's chain of products is fastest with these on an H200
 * (docs/log/2026-11-28-h200-shared-terms.md). All clusters of a launch find room at once up to most_channels(). */
constexpr int64_t half_rows = 64, few_terms = 1024;
using half_wide = parts_tile<64, 32, 2, 8>;
using half_narrow = parts_tile<64, 48, 4, 4>;
using half_long = parts_tile<64, 48, 4, 12>;
using whole_wide = parts_tile<128, 80, 4, 4>;
using whole_narrow = parts_tile<128, 64, 4, 4>;
using whole_long = parts_tile<128, 48, 4, 8>;

template <class Use> auto with_tile(const wide_params &p, Use use) {
  const bool narrow = p.N <= 1056;
  if (p.M <= half_rows) {
    if (p.K > few_terms) return use(half_long());
    return narrow ? use(half_narrow()) : use(half_wide());
  }
  if (p.K > few_terms) return use(whole_long());
  return narrow ? use(whole_narrow()) : use(whole_wide());
}

/* Leaves a call to the vendor's library where its clusters would need a second wave, and sums that are longer than the
 * measured ones. */
#ifndef ASSAY_HAVE_CUBLASLT
assay_status expect_fast(const wide_params &, assay_error *) {
  return ASSAY_OK;
}
#else
constexpr int64_t most_terms = 4096;

constexpr int64_t most_channels(const wide_params &p) {
  if (p.K > few_terms) return p.K > most_terms ? 0 : 1440;
  return p.M <= half_rows ? 2112 : 2400;
}

assay_status expect_fast(const wide_params &p, assay_error *error) {
  const int64_t most = most_channels(p);
  if (p.N <= most || !library_there()) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "channels: found %lld, allowed with %lld terms at most %lld",
                    static_cast<long long>(p.N), static_cast<long long>(p.K), static_cast<long long>(most));
}
#endif

assay_status read_call(const assay_call *call, gemm_plan *plan, assay_error *error) {
  ASSAY_TRY(gemm_read(call, plan, error));
  ASSAY_TRY(parts_expect(plan->p, plan->type, error));
  return expect_fast(plan->p, error);
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  gemm_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  plan.p.early = is_settled(call, *env, "b");
  (void)snprintf(env->path, sizeof env->path, "parts");
  if (plan.p.M == 0 || plan.p.N == 0) return ASSAY_OK;
  return wide_with_type(plan.type, [&](auto tag) {
    return with_tile(plan.p, [&](auto tile) {
      return parts_start<typename decltype(tag)::type, decltype(tile), parts_plain>(plan.p, env, error);
    });
  });
}

assay_status declare_sums(const assay_call *call, const assay_env *, assay_sums *sums, assay_error *error) {
  gemm_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  parts_sums(with_tile(plan.p, [](auto tile) { return decltype(tile)::parts; }), sums);
  sums->after[0] = ASSAY_AFTER_ALPHA;
  sums->after[1] = ASSAY_AFTER_OLD;
  sums->after[2] = ASSAY_AFTER_BIAS;
  return ASSAY_OK;
}

} // namespace
} // namespace ASSAY_NS

#define PARTS                                                                                                          \
  GEMM_VARIANT("parts", "up to 128 rows: a cluster's blocks share k", parts_contract, read_call, launch, declare_sums)

ASSAY_VARIANTS(gemm_parts, PARTS)
