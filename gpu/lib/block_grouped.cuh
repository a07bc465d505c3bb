/* block_grouped.cuh: products of e4m3 matrices with scales, in which each row has the weights of its group. It has the
 * calls of fp8_grouped_gemm and fp8_grouped_gemm_masked, and their plain kernel. The order of each sum is that of
 * fp8_block_gemm's tiles (gpu/fp8_block_gemm.cu). */
#ifndef ASSAY_GPU_LIB_BLOCK_GROUPED_CUH
#define ASSAY_GPU_LIB_BLOCK_GROUPED_CUH

#include "gpu/lib/block_gemm.cuh"
#include "gpu/lib/grouped_dots.cuh"

namespace ASSAY_NS {

/* Row r is row r % R of slab r / R. `rows` says which rows are of which group. `g` is the product of one slab with one
 * group. Slabs of a, sfa and c lie apart, and so do groups of b, sfb and the bias. */
struct block_grouped_params {
  block_gemm_params g;
  grouped_params rows;
  int64_t a_slab, sfa_slab, c_slab, b_group, sfb_group;
  bool quads; /* every four codes of a and b are aligned to four bytes */
};

constexpr int block_dots_threads = 128;

/* block_grouped_dots: one thread per element of the result. A sum over 128 of K leaves by one FMA.
 * Grid:   rows * ceil(N / 128). Block: 128 threads, of neighbouring channels.
 * Shared: none.
 * Align:  a and b in quads of 4 codes if bases and rows allow it, else by element.
 * Arch:   any.
 * Limit:  bytes: K codes of weights per element; rows of one group find them in the cache. */
template <class Out>
static __global__ void __launch_bounds__(block_dots_threads) block_grouped_dots(block_grouped_params p) {
  const block_gemm_params &g = p.g;
  const int64_t pieces = (g.N + block_dots_threads - 1) / block_dots_threads;
  const int64_t row = static_cast<int64_t>(blockIdx.x) / pieces;
  const int64_t n = static_cast<int64_t>(blockIdx.x) % pieces * block_dots_threads + static_cast<int32_t>(threadIdx.x);
  if (n >= g.N) return;
  const int64_t group = grouped_group(p.rows, row), slab = row / p.rows.R, m = row % p.rows.R;
  Out *const to = static_cast<Out *>(g.c) + slab * p.c_slab + m * g.c_row + n;
  if (group < 0) {
    if (p.rows.zero) *to = from_float<Out>(0.0f);
    return;
  }
  const e4m3 *const a = g.a + slab * p.a_slab + m * g.a_row, *const b = g.b + group * p.b_group + n * g.b_row;
  const float *const sfa = g.sfa + slab * p.sfa_slab + m * g.sfa_row;
  const float *const sfb = g.sfb + group * p.sfb_group + n / block_piece * g.sfb_row;
  float total = 0.0f, sum = 0.0f;
  for (int64_t k = 0; k < g.K; k += 4) {
    const int32_t left = static_cast<int32_t>(min(g.K - k, int64_t{4}));
    float x[4], w[4];
    load_channels(a + k, left, p.quads, x);
    load_channels(b + k, left, p.quads, w);
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      sum = fmaf(x[i], w[i], sum);
    if ((k + 4) % block_piece != 0 && k + 4 < g.K) continue;
    const int64_t piece = k / block_piece;
    total = fmaf(sum, __fmul_rn(sfa[piece * g.sfa_piece], sfb[piece * g.sfb_piece]), total);
    sum = 0.0f;
  }
  if (g.bias != nullptr) total = __fadd_rn(total, to_float(static_cast<const Out *>(g.bias)[group * g.N + n]));
  *to = from_float<Out>(total);
}

/* Reads what both operators have. The rows of a slab of a and c are `dense`, or the slab is the whole tensor. */
inline assay_status block_grouped_read(const plain_call &c, bool dense, block_grouped_params *p, assay_error *error) {
  *p = block_grouped_params();
  block_gemm_params *const g = &p->g;
  const bool turned = c.has("sfa_t");
  if (c.has("sfa") == turned && c.has("c"))
    return assay_fail(error, ASSAY_ERR_INPUT, "sfa: found %d of sfa, sfa_t, allowed exactly one", turned ? 2 : 0);
  g->a = c.data<const e4m3>("a");
  g->b = c.data<const e4m3>("b");
  g->sfa = c.data<const float>(turned ? "sfa_t" : "sfa");
  g->sfb = c.data<const float>("sfb");
  g->bias = c.data<const void>("bias");
  g->c = c.data<void>("c");
  g->out = c.type("c");
  g->M = dense ? c.dim("R") : c.dim("M");
  g->N = c.dim("N");
  g->K = c.dim("K");
  const int64_t pieces = (g->K + block_piece - 1) / block_piece, blocks = (g->N + block_piece - 1) / block_piece;
  const int64_t scales = c.row(turned ? "sfa_t" : "sfa"), apart = dense ? (turned ? g->M : pieces) : scales;
  g->a_row = dense ? g->K : c.row("a");
  g->b_row = g->K;
  g->c_row = dense ? g->N : c.row("c");
  g->sfa_row = turned ? 1 : apart;
  g->sfa_piece = turned ? apart : 1;
  g->sfb_row = pieces;
  g->sfb_piece = 1;
  p->a_slab = dense ? c.row("a") : 0;
  p->c_slab = dense ? c.row("c") : 0;
  p->sfa_slab = dense ? scales : 0;
  p->b_group = g->N * g->K;
  p->sfb_group = blocks * pieces;
  p->quads = rowwise_quads(g->a, g->a_row | p->a_slab, 1) && rowwise_quads(g->b, g->K, 1);
  p->rows.G = c.dim("E");
  p->rows.N = g->N;
  p->rows.K = g->K;
  return expect_type("c", g->out, error);
}

inline assay_status block_grouped_read_rows(const assay_call *call, block_grouped_params *p, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  ASSAY_TRY(block_grouped_read(c, false, p, error));
  p->rows.group = c.data<const int32_t>("group");
  p->rows.rows = p->g.M;
  p->rows.R = p->g.M > 0 ? p->g.M : 1; /* one slab */
  p->rows.zero = !c.flag("pad");
  return ASSAY_OK;
}

inline assay_status block_grouped_read_slabs(const assay_call *call, block_grouped_params *p, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  ASSAY_TRY(block_grouped_read(c, true, p, error));
  p->rows.live = c.data<const int32_t>("rows");
  p->rows.R = p->g.M > 0 ? p->g.M : 1;
  p->rows.rows = p->rows.G * p->g.M;
  return ASSAY_OK;
}

/* Declines a grid that is too large for one launch. */
inline assay_status block_dots_expect_grid(const block_grouped_params &p, assay_error *error) {
  const int64_t pieces = (p.g.N + block_dots_threads - 1) / block_dots_threads;
  if (p.rows.rows <= launch_max_grid_x / (pieces > 0 ? pieces : 1)) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                    "rows: found %" PRId64 " with %" PRId64 " channels, allowed at most %" PRId64, p.rows.rows, p.g.N,
                    launch_max_grid_x / pieces);
}

inline assay_status block_dots_launch(const block_grouped_params &p, assay_env *env, assay_error *error) {
  (void)snprintf(env->path, sizeof env->path, "dots quads=%d", p.quads ? 1 : 0);
  if (p.rows.rows == 0 || p.g.N == 0) return ASSAY_OK;
  const int64_t blocks = p.rows.rows * ((p.g.N + block_dots_threads - 1) / block_dots_threads);
  return with_type(p.g.out, [&](auto tag) {
    return ASSAY_LAUNCH(error, block_grouped_dots<typename decltype(tag)::type>, blocks, block_dots_threads, 0,
                        env->stream, p);
  });
}

inline assay_status block_dots_sums(const assay_call *, const assay_env *, assay_sums *sums, assay_error *) {
  sums->unit = ASSAY_SUM_FMA;
  block_gemm_scales(sums);
  return ASSAY_OK;
}

constexpr assay_contract block_dots_contract = rowwise_contract(0.0, 1);

} // namespace ASSAY_NS
#endif
