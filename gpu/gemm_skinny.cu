/* gemm_skinny.cu: a matrix product with weights [out, in], of at most 64 rows.
 *
 *   c_mn <- alpha * sum_k a_mk b_nk + beta * c_mn + bias_n        beta 0: c is not read; bias may be absent
 *
 * One variant with two kernels (gpu/lib/gemm_skinny.cuh). Up to 48 channels per multiprocessor, the warps of a block
 * share k. Beyond that, each warp streams the weights of 16 channels past a copy of a in shared memory. Sums run in f32
 * and in a fixed order, so that the same call gives the same bits. docs/kernels/gemm.md has the arithmetic. */
#include "gpu/lib/gemm_skinny.cuh"
#include "gpu/lib/library.h"

namespace ASSAY_NS {
namespace {

struct skinny_plan {
  skinny_params p;
  assay_dtype type;
};

/* Leaves a call to `parts` or to the vendor's library where they were measured to be faster, on an H200 and with cold
 * weights. With more rows, fewer channels may be split over blocks, and a stream needs several tiles per warp. */
#ifndef ASSAY_HAVE_CUBLASLT
assay_status expect_fast(const skinny_params &, assay_error *) {
  return ASSAY_OK;
}
#else
constexpr int64_t stream_min_channels = 65536, parts_min_rows = 33, parts_most_terms = 4096;

assay_status expect_fast(const skinny_params &p, assay_error *error) {
  if (p.M >= parts_min_rows && p.K <= parts_most_terms && library_there())
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "M: found %lld, allowed with up to %lld terms at most %lld",
                      static_cast<long long>(p.M), static_cast<long long>(parts_most_terms),
                      static_cast<long long>(parts_min_rows - 1));
  const int64_t split_max = p.M <= 16 ? 4224 : p.M <= 32 ? 3168 : 1056;
  if (p.N <= split_max || (p.N >= stream_min_channels && p.M <= 32) || !library_there()) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "channels: found %lld, allowed with %lld rows at most %lld",
                    static_cast<long long>(p.N), static_cast<long long>(p.M), static_cast<long long>(split_max));
}
#endif

assay_status read_call(const assay_call *call, skinny_plan *plan, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  *plan = skinny_plan();
  plan->type = c.type("a");
  skinny_params *const p = &plan->p;
  p->M = c.dim("M");
  p->N = c.dim("N");
  p->K = c.dim32("K");
  p->x = c.data<const void>("a");
  p->w = c.data<const void>("b");
  p->bias = c.data<const void>("bias");
  p->c = c.data<void>("c");
  p->x_row = c.row("a");
  p->x_rows = p->M;
  p->c_row = c.row("c");
  p->alpha = c.real("alpha");
  p->beta = c.real("beta");
  p->wide = c.type("c") != plan->type;
  p->pairs = skinny_pairs(p->c, p->c_row, c.type("c"));
  ASSAY_TRY(skinny_expect(*p, plan->type, error));
  return expect_fast(*p, error);
}

assay_status declare_sums(const assay_call *call, const assay_env *env, assay_sums *sums, assay_error *error) {
  skinny_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  skinny_sums(skinny_streams(plan.p, env->multiprocessors), plan.p, env->multiprocessors, sums);
  return ASSAY_OK;
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  skinny_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  plan.p.early = is_settled(call, *env, "b");
  return skinny_start(plan.p, plan.type, env, error);
}

} // namespace
} // namespace ASSAY_NS

#define SKINNY                                                                                                         \
  PLAIN_VARIANT("gemm", "skinny", "few rows: weights from memory into tensor cores", SKINNY_TYPE_CLAIMS,               \
                skinny_contract, skinny_plan, read_call, launch, ::ASSAY_NS::declare_sums)

ASSAY_VARIANTS(gemm_skinny, SKINNY)
