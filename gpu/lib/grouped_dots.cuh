/* grouped_dots.cuh: products in which each row has the weights of its group, one warp per element, for grouped_gemm and
 * grouped_gemm_masked. The order of each sum is that of gemm's dots (gpu/gemm.cu). */
#ifndef ASSAY_GPU_LIB_GROUPED_DOTS_CUH
#define ASSAY_GPU_LIB_GROUPED_DOTS_CUH

#include "gpu/lib/plain.h"
#include "gpu/lib/rowwise.cuh"
#include "gpu/lib/warp.cuh"

namespace ASSAY_NS {

/* c_rn <- sum_k a_rk b_gnk + bias_gn for the live rows r of group g. Row r is row r % R of slab r / R. The slabs of a
 * and of c lie apart, and the rows of a slab are dense. */
struct grouped_params {
  const void *a, *b, *bias; /* bias NULL: none */
  const int32_t *group;     /* [rows]: of each row, -1 for none; NULL: slab g is of group g, and live says how much */
  const int32_t *live;      /* [E] live rows of each slab */
  void *c;
  int64_t rows, R, G, N, K, a_slab, c_slab;
  bool zero, quads; /* dead rows become 0; every quad of a and b is aligned to its own size */
};

constexpr int grouped_warps = 4, grouped_step = 128;

/* Returns the group of a row, or -1 for a dead row. A number that is no group counts as -1. */
__device__ __forceinline__ int64_t grouped_group(const grouped_params &p, int64_t row) {
  if (p.group == NULL) return row % p.R < p.live[row / p.R] ? row / p.R : -1;
  const int64_t group = p.group[row];
  return group >= 0 && group < p.G ? group : -1;
}

/* grouped_dots: one warp per element of the result.
 * Grid:   rows * ceil(N / 4). Block: 4 warps.
 * Shared: none.
 * Align:  a and b in quads of 4 elements if bases and rows allow it, else by element.
 * Arch:   any.
 * Limit:  bytes: K sizeof(T) of weights per element; rows of one group find them in the cache. */
template <class T, class Out>
static __global__ void __launch_bounds__(32 * grouped_warps) grouped_dots(grouped_params p) {
  const int64_t pieces = (p.N + grouped_warps - 1) / grouped_warps;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int64_t row = static_cast<int64_t>(blockIdx.x) / pieces;
  const int64_t n = static_cast<int64_t>(blockIdx.x) % pieces * grouped_warps + static_cast<int32_t>(threadIdx.x) / 32;
  if (n >= p.N) return;
  const int64_t group = grouped_group(p, row), slab = row / p.R, inner = row % p.R;
  Out *const to = static_cast<Out *>(p.c) + slab * p.c_slab + inner * p.N + n;
  if (group < 0) {
    if (p.zero && lane == 0) *to = from_float<Out>(0.0f);
    return;
  }
  const T *const a = static_cast<const T *>(p.a) + slab * p.a_slab + inner * p.K;
  const T *const b = static_cast<const T *>(p.b) + (group * p.N + n) * p.K;
  float sum = 0.0f;
  /* All lanes add the same number of products: past K they are 0 * 0. */
  for (int64_t k0 = 0; k0 < p.K; k0 += grouped_step) {
    const int64_t k = k0 + 4 * lane, left = p.K - k;
    float x[4] = {0.0f, 0.0f, 0.0f, 0.0f}, w[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (left > 0) {
      load_channels(a + k, static_cast<int32_t>(left < 4 ? left : 4), p.quads, x);
      load_channels(b + k, static_cast<int32_t>(left < 4 ? left : 4), p.quads, w);
    }
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      sum = fmaf(x[i], w[i], sum);
  }
  sum = warp_sum(sum);
  if (lane != 0) return;
  if (p.bias != NULL) sum = __fadd_rn(sum, to_float(static_cast<const T *>(p.bias)[group * p.N + n]));
  *to = from_float<Out>(sum);
}

struct grouped_plan {
  grouped_params p;
  assay_dtype type, out;
};

/* Reads what both operators have. */
inline assay_status grouped_read(const plain_call &c, grouped_plan *plan, assay_error *error) {
  *plan = grouped_plan();
  plan->type = c.type("a");
  plan->out = c.type("c");
  ASSAY_TRY(expect_type("a", plan->type, error));
  grouped_params *const p = &plan->p;
  p->a = c.data<const void>("a");
  p->b = c.data<const void>("b");
  p->bias = c.data<const void>("bias");
  p->c = c.data<void>("c");
  p->G = c.dim("E");
  p->N = c.dim("N");
  p->K = c.dim("K");
  p->a_slab = c.row("a");
  p->c_slab = c.row("c");
  const int64_t size = assay_dtype_size(plan->type);
  p->quads = rowwise_quads(p->a, p->a_slab, size) && rowwise_quads(p->b, p->K, size);
  return ASSAY_OK;
}

/* Declines a grid that is too large for one launch. */
inline assay_status grouped_expect_grid(const grouped_params &p, assay_error *error) {
  const int64_t pieces = (p.N + grouped_warps - 1) / grouped_warps;
  if (p.rows <= launch_max_grid_x / (pieces > 0 ? pieces : 1)) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "rows: found %lld with %lld channels, allowed at most %lld",
                    static_cast<long long>(p.rows), static_cast<long long>(p.N),
                    static_cast<long long>(launch_max_grid_x / pieces));
}

inline assay_status grouped_launch(const grouped_plan &plan, assay_env *env, assay_error *error) {
  const grouped_params &p = plan.p;
  (void)snprintf(env->path, sizeof env->path, "dots quads=%d", p.quads ? 1 : 0);
  if (p.rows == 0 || p.N == 0) return ASSAY_OK;
  const int64_t blocks = p.rows * ((p.N + grouped_warps - 1) / grouped_warps);
  return with_type(plan.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (plan.out == plan.type)
      return ASSAY_LAUNCH(error, (grouped_dots<T, T>), blocks, 32 * grouped_warps, 0, env->stream, p);
    return ASSAY_LAUNCH(error, (grouped_dots<T, float>), blocks, 32 * grouped_warps, 0, env->stream, p);
  });
}

/* Returns the place in K of the product that is summed as number i. A lane has four neighbours of every 128. warp_sum
 * adds lanes 16 apart first, then 8 apart and so on; part r is the lane with the bits of r in reverse. */
inline int64_t grouped_order(int64_t i, int64_t K) {
  const int64_t each = K / 32, part = i / each, at = i % each;
  int64_t lane = 0;
  for (int bit = 0; bit < 5; ++bit)
    lane |= (part >> bit & 1) << (4 - bit);
  return at / 4 * grouped_step + 4 * lane + at % 4;
}

inline assay_status grouped_sums(const assay_call *, const assay_env *, assay_sums *sums, assay_error *) {
  sums->unit = ASSAY_SUM_FMA;
  sums->parts = 32;
  sums->join = ASSAY_JOIN_PAIRWISE;
  sums->pad = grouped_step;
  sums->order = grouped_order;
  sums->after[0] = ASSAY_AFTER_BIAS;
  return ASSAY_OK;
}

constexpr assay_contract grouped_contract = rowwise_contract(0.0, 32);

} // namespace ASSAY_NS
#endif
