/* fp8_block_gemm.cu: a product of e4m3 matrices with scales of 1 x 128 and 128 x 128.
 *
 *   c_mn = sum_κ sfa_mκ · sfb_{n/128, κ} · (sum_{i in κ} a_mi · b_ni) + bias_n        κ: pieces of 128 of K
 *
 * tiles: 32 rows and 64 columns on the ordinary f32 units. docs/kernels/fp8_block_gemm.md has the arithmetic. */
#include "gpu/lib/block_gemm.cuh"

namespace ASSAY_NS {
namespace {

constexpr int block_rows = 32, block_columns = 64, block_step = 32, block_threads = 128, block_skew = 4;

/* Copies four k of a row into a column of a tile [block_step, width + block_skew]. Past K, and with from NULL, they are
 * zeros. */
__device__ __forceinline__ void block_stage(float *tile, int width, int column, int first, const e4m3 *from,
                                            int64_t left) {
  ASSAY_UNROLL
  for (int i = 0; i < 8; ++i)
    tile[(first + i) * (width + block_skew) + column] = from != nullptr && i < left ? to_float(from[i]) : 0.0f;
}

/* block_gemm_tiles: computes a tile of 32 rows and 64 columns of the result. A sum over 128 of K leaves by one FMA.
 * Grid:   (ceil(N / 64), ceil(M / 32)). Block: 128 threads, 4 rows by 4 columns each.
 * Shared: 13 KB: 32 k of 32 rows of a and of 64 rows of b, as f32.
 * Align:  by element.
 * Arch:   any.
 * Limit:  flops: 2 M N K on the f32 units. */
template <class Out> __global__ void __launch_bounds__(block_threads) block_gemm_tiles(block_gemm_params p) {
  ASSAY_SHARED(float, a_tile, block_step *(block_rows + block_skew));
  ASSAY_SHARED(float, b_tile, block_step *(block_columns + block_skew));
  const int thread = static_cast<int>(threadIdx.x), staged = thread / 4, first = thread % 4 * 8;
  const int64_t m0 = static_cast<int64_t>(blockIdx.y) * block_rows,
                n0 = static_cast<int64_t>(blockIdx.x) * block_columns;
  const e4m3 *const a = m0 + staged < p.M ? p.a + (m0 + staged) * p.a_row : nullptr;
  const e4m3 *const b_low = n0 + staged < p.N ? p.b + (n0 + staged) * p.b_row : nullptr;
  const e4m3 *const b_high = n0 + staged + 32 < p.N ? p.b + (n0 + staged + 32) * p.b_row : nullptr;
  const int row = thread / 16 * 4, column = thread % 16 * 4;
  float total[4][4] = {}, sum[4][4] = {};
  for (int64_t k0 = 0; k0 < p.K; k0 += block_step) {
    const int64_t k = k0 + first, left = p.K - k;
    block_stage(a_tile, block_rows, staged, first, a != nullptr ? a + k : a, left);
    block_stage(b_tile, block_columns, staged, first, b_low != nullptr ? b_low + k : b_low, left);
    block_stage(b_tile, block_columns, staged + 32, first, b_high != nullptr ? b_high + k : b_high, left);
    __syncthreads(); /* the tiles are filled */
    ASSAY_UNROLL
    for (int step = 0; step < block_step; ++step) {
      const float *const x = a_tile + step * (block_rows + block_skew) + row;
      const float *const w = b_tile + step * (block_columns + block_skew) + column;
      ASSAY_UNROLL
      for (int i = 0; i < 4; ++i)
        ASSAY_UNROLL
      for (int j = 0; j < 4; ++j)
        sum[i][j] = fmaf(x[i], w[j], sum[i][j]);
    }
    __syncthreads(); /* the tiles have been read */
    const int64_t piece = k0 / block_piece;
    if ((k0 + block_step) % block_piece != 0 && k0 + block_step < p.K) continue;
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      ASSAY_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int64_t m = min(m0 + row + i, p.M - 1), n = min(n0 + column + j, p.N - 1);
      total[i][j] =
          fmaf(sum[i][j], __fmul_rn(block_sfa(p, m, piece), block_sfb(p, n / block_piece, piece)), total[i][j]);
      sum[i][j] = 0.0f;
    }
  }
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    ASSAY_UNROLL
  for (int j = 0; j < 4; ++j)
    if (m0 + row + i < p.M && n0 + column + j < p.N) block_store<Out>(p, m0 + row + i, n0 + column + j, total[i][j]);
}

assay_status launch_tiles(const assay_call *call, assay_env *env, assay_error *error) {
  block_gemm_params p;
  ASSAY_TRY(block_gemm_read(call, &p, error));
  (void)snprintf(env->path, sizeof env->path, "tiles");
  if (p.M == 0) return ASSAY_OK;
  const launch_extent grid((p.N + block_columns - 1) / block_columns, (p.M + block_rows - 1) / block_rows);
  return with_type(p.out, [&](auto tag) {
    return ASSAY_LAUNCH(error, block_gemm_tiles<typename decltype(tag)::type>, grid, block_threads, 0, env->stream, p);
  });
}

assay_status tiles_sums(const assay_call *, const assay_env *, assay_sums *sums, assay_error *) {
  sums->unit = ASSAY_SUM_FMA;
  block_gemm_scales(sums);
  return ASSAY_OK;
}

constexpr assay_contract tiles_contract = {.qk_lanes = 1,
                                           .pv_lanes = 1,
                                           .run_to_run = true,
                                           .renumbering = true,
                                           .permutation = true,
                                           .lanes = 1,
                                           .alone = true};

} // namespace
} // namespace ASSAY_NS

#define TILES                                                                                                          \
  PLAIN_VARIANT("fp8_block_gemm", "tiles", "any shape: tiles of 32 by 64", PLAIN_TYPE_CLAIMS, tiles_contract,          \
                block_gemm_params, block_gemm_read, launch_tiles, ::ASSAY_NS::tiles_sums)

ASSAY_VARIANTS(fp8_block_gemm, TILES)
