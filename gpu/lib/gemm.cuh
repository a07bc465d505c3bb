/* gemm.cuh: products with weights [out, in] in tiles, on the ordinary f32 units, for gemm and lm_head. Every sum is one
 * running sum in the order of k, of FMAs. Its bits are declared (gemm_tiles_sums), so each rounding is written out: an
 * expression that the compiler may contract has no place here. */
#ifndef ASSAY_GPU_LIB_GEMM_CUH
#define ASSAY_GPU_LIB_GEMM_CUH

#include "gpu/lib/plain.h"
#include "gpu/lib/rowwise.cuh"

namespace ASSAY_NS {

/* c_mn <- alpha * sum_k a_mk b_nk + beta * c_mn + bias_n, over the rows m of a, or over the rows that `select`
 * names. */
struct gemm_params {
  const void *a, *b, *bias; /* bias NULL: none */
  const int32_t *select;    /* [M] rows of a; NULL: row m. A row outside [0, a_rows) counts as zeros */
  void *c;
  int64_t M, N, K, a_row, c_row, a_rows;
  float alpha, beta; /* beta 0: c is not read */
  bool quads;        /* every quad of a and b is aligned to its own size */
};

constexpr int gemm_rows = 32, gemm_columns = 64, gemm_step = 16, gemm_threads = 128;
/* Padding per k of a tile in shared memory. Quads stay aligned, and stores spread over the banks. */
constexpr int gemm_skew = 4;

/* Declares what follows every sum of gemm and lm_head: alpha, the old c by an FMA, the bias. */
inline void sums_after(assay_sums *sums) {
  sums->after[0] = ASSAY_AFTER_ALPHA;
  sums->after[1] = ASSAY_AFTER_OLD;
  sums->after[2] = ASSAY_AFTER_BIAS;
}

/* Declares the sums of gemm_tiles: FMAs in the order of k, with zeros up to whole steps. */
inline assay_status gemm_tiles_sums(const assay_call *, const assay_env *, assay_sums *sums, assay_error *) {
  sums->unit = ASSAY_SUM_FMA;
  sums->pad = gemm_step;
  sums_after(sums);
  return ASSAY_OK;
}

/* Returns the row of a from which row m of the result is computed, or -1 if there is none. */
__device__ __forceinline__ int64_t gemm_source(const gemm_params &p, int64_t m) {
  if (m >= p.M) return -1;
  if (p.select == NULL) return m;
  const int64_t row = p.select[m];
  return row >= 0 && row < p.a_rows ? row : -1;
}

/* Copies four k of one row into column `column` of a tile [gemm_step, width + gemm_skew]. If `from` is NULL, it stores
 * zeros. */
template <class T>
__device__ __forceinline__ void gemm_stage(float *tile, int width, int column, int first, const T *from, int64_t left,
                                           bool quads) {
  float value[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  if (from != NULL && left > 0) load_channels(from, static_cast<int32_t>(left < 4 ? left : 4), quads, value);
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    tile[(first + i) * (width + gemm_skew) + column] = value[i];
}

/* gemm_tiles: computes a tile of 32 rows and 64 columns of the result.
 * Grid:   (ceil(N / 64), ceil(M / 32)). Block: 128 threads, 4 rows by 4 columns each.
 * Shared: 6.4 KB: 16 k of 32 rows of a and of 64 rows of b, as f32.
 * Align:  a and b in quads of 4 elements if bases and rows allow it, else by element; c by element.
 * Arch:   any.
 * Limit:  flops: 2 M N K on the f32 units; below some tens of rows, bytes: N K sizeof(T). */
template <class T, class Out> static __global__ void __launch_bounds__(gemm_threads) gemm_tiles(gemm_params p) {
  ASSAY_SHARED(float, a_tile, gemm_step *(gemm_rows + gemm_skew));
  ASSAY_SHARED(float, b_tile, gemm_step *(gemm_columns + gemm_skew));
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t m0 = static_cast<int64_t>(blockIdx.y) * gemm_rows, n0 = static_cast<int64_t>(blockIdx.x) * gemm_columns;
  /* Staging: 4 threads per row, with 4 k each; one row of a and two rows of b. */
  const int staged = thread / 4, first = thread % 4 * 4;
  const int64_t source = gemm_source(p, m0 + staged);
  const T *const a = source >= 0 ? static_cast<const T *>(p.a) + source * p.a_row : NULL;
  const T *const b_low = n0 + staged < p.N ? static_cast<const T *>(p.b) + (n0 + staged) * p.K : NULL;
  const T *const b_high = n0 + staged + 32 < p.N ? static_cast<const T *>(p.b) + (n0 + staged + 32) * p.K : NULL;
  const int row = thread / 16 * 4, column = thread % 16 * 4;
  const bool live = m0 + row < p.M; /* with few rows, most warps have none */
  float sum[4][4] = {};

  for (int64_t k0 = 0; k0 < p.K; k0 += gemm_step) {
    const int64_t k = k0 + first, left = p.K - k;
    gemm_stage(a_tile, gemm_rows, staged, first, a != NULL ? a + k : a, left, p.quads);
    gemm_stage(b_tile, gemm_columns, staged, first, b_low != NULL ? b_low + k : b_low, left, p.quads);
    gemm_stage(b_tile, gemm_columns, staged + 32, first, b_high != NULL ? b_high + k : b_high, left, p.quads);
    __syncthreads(); /* the tiles are filled */
    ASSAY_UNROLL
    for (int step = 0; step < gemm_step && live; ++step) {
      const quad<float> x = load_quad(a_tile + step * (gemm_rows + gemm_skew) + row, true);
      const quad<float> w = load_quad(b_tile + step * (gemm_columns + gemm_skew) + column, true);
      ASSAY_UNROLL
      for (int i = 0; i < 4; ++i)
        ASSAY_UNROLL
      for (int j = 0; j < 4; ++j)
        sum[i][j] = fmaf(x.element[i], w.element[j], sum[i][j]);
    }
    __syncthreads(); /* the tiles have been read */
  }

  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i) {
    ASSAY_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int64_t m = m0 + row + i, n = n0 + column + j;
      if (m >= p.M || n >= p.N) continue;
      Out *const to = static_cast<Out *>(p.c) + m * p.c_row + n;
      float value = __fmul_rn(p.alpha, sum[i][j]);
      if (p.beta != 0.0f) value = fmaf(p.beta, to_float(*to), value);
      if (p.bias != NULL) value = __fadd_rn(value, to_float(static_cast<const T *>(p.bias)[n]));
      *to = from_float<Out>(value);
    }
  }
}

/* Launches the kernel. type: type of the inputs. out: f32 or the same type, for the result. */
inline assay_status gemm_launch(const gemm_params &p, assay_dtype type, assay_dtype out, assay_env *env,
                                assay_error *error) {
  (void)snprintf(env->path, sizeof env->path, "tiles quads=%d", p.quads ? 1 : 0);
  if (p.M == 0 || p.N == 0) return ASSAY_OK;
  const launch_extent grid((p.N + gemm_columns - 1) / gemm_columns, (p.M + gemm_rows - 1) / gemm_rows);
  return with_type(type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (out == type) return ASSAY_LAUNCH(error, (gemm_tiles<T, T>), grid, gemm_threads, 0, env->stream, p);
    return ASSAY_LAUNCH(error, (gemm_tiles<T, float>), grid, gemm_threads, 0, env->stream, p);
  });
}

} // namespace ASSAY_NS
#endif
