/* mxfp4_gemm.cu: a product of bf16 rows with weights of four bits, 32 of which share a scale.
 *
 *   c_mn = sum_k a_mk · e2m1(code_nk) · 2^(s_{n, k/32} - 127) + bias_n
 *
 * mma: weights from memory into fragments of tensor cores, for any number of rows; made for few.
 * tiles: 32 rows and 64 columns on the ordinary f32 units. docs/kernels/mxfp4_gemm.md has the arithmetic. */
#include "gpu/lib/mxfp4.cuh"
#include "gpu/lib/ptx.cuh"
#include "gpu/lib/ptx_async.cuh"
#include "gpu/lib/ptx_mma.cuh"

namespace ASSAY_NS {
namespace {

/* ---- tiles ------------------------------------------------------------------------------------------- */

constexpr int mx_rows = 32, mx_columns = 64, mx_threads = 128, mx_skew = 4;

/* mx_tiles: computes a tile of 32 rows and 64 columns of the result, one FMA a product in the order of k.
 * Grid:   (ceil(N / 64), ceil(M / 32)). Block: 128 threads, 4 rows by 4 columns each.
 * Shared: 13 KB: a block of 32 k of 32 rows of a and of 64 rows of weights, as f32.
 * Align:  by element, and by word of weights.
 * Arch:   any.
 * Limit:  flops: 2 M N K on the f32 units. */
template <class Out> __global__ void __launch_bounds__(mx_threads) mx_tiles(mx_params p) {
  ASSAY_SHARED(float, a_tile, mx_block *(mx_rows + mx_skew));
  ASSAY_SHARED(float, w_tile, mx_block *(mx_columns + mx_skew));
  const int thread = static_cast<int>(threadIdx.x), staged = thread / 4, part = thread % 4;
  const int row = thread / 16 * 4, column = thread % 16 * 4;
  const int64_t m0 = static_cast<int64_t>(blockIdx.y) * mx_rows, n0 = static_cast<int64_t>(blockIdx.x) * mx_columns;
  float sum[4][4] = {};
  for (int64_t k0 = 0; k0 < p.K; k0 += mx_block) {
    const int64_t m = m0 + staged;
    ASSAY_UNROLL
    for (int i = 0; i < 8; ++i)
      a_tile[(8 * part + i) * (mx_rows + mx_skew) + staged] =
          m < p.M ? to_float(p.a[m * p.a_row + k0 + 8 * part + i]) : 0.0f;
    ASSAY_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int64_t n = min(n0 + staged + 32 * half, p.N - 1), block = k0 / mx_block;
      const uint32_t word = p.codes[n * p.codes_row + 4 * block + part];
      const float scale = mx_scale(p.scales[n * p.scales_row + block / 4] >> (block % 4 * 8) & 255u);
      ASSAY_UNROLL
      for (int i = 0; i < 8; ++i)
        w_tile[(8 * part + i) * (mx_columns + mx_skew) + staged + 32 * half] = mx_weight(word >> (4 * i) & 15u, scale);
    }
    __syncthreads(); /* the tiles are filled */
    ASSAY_UNROLL
    for (int k = 0; k < mx_block; ++k) {
      const float *const x = a_tile + k * (mx_rows + mx_skew) + row;
      const float *const w = w_tile + k * (mx_columns + mx_skew) + column;
      ASSAY_UNROLL
      for (int i = 0; i < 4; ++i)
        ASSAY_UNROLL
      for (int j = 0; j < 4; ++j)
        sum[i][j] = fmaf(x[i], w[j], sum[i][j]);
    }
    __syncthreads(); /* the tiles have been read */
  }
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    ASSAY_UNROLL
  for (int j = 0; j < 4; ++j)
    mx_store<Out>(p, m0 + row + i, n0 + column + j, sum[i][j]);
}

assay_status launch_tiles(const assay_call *call, assay_env *env, assay_error *error) {
  mx_params p;
  ASSAY_TRY(mx_read(call, &p, error));
  (void)snprintf(env->path, sizeof env->path, "tiles");
  if (p.M == 0) return ASSAY_OK;
  const launch_extent grid((p.N + mx_columns - 1) / mx_columns, (p.M + mx_rows - 1) / mx_rows);
  return with_type(p.out, [&](auto tag) {
    return ASSAY_LAUNCH(error, mx_tiles<typename decltype(tag)::type>, grid, mx_threads, 0, env->stream, p);
  });
}

assay_status tiles_sums(const assay_call *, const assay_env *, assay_sums *sums, assay_error *) {
  sums->unit = ASSAY_SUM_FMA;
  sums->after[0] = ASSAY_AFTER_BIAS;
  return ASSAY_OK;
}

constexpr assay_contract tiles_contract = {.qk_lanes = 1,
                                           .pv_lanes = 1,
                                           .run_to_run = true,
                                           .renumbering = true,
                                           .permutation = true,
                                           .lanes = 1,
                                           .alone = true};

/* ---- mma --------------------------------------------------------------------------------------------- */

constexpr int mx_warps = 8, mx_ahead = 2, mx_chunk = 128; /* chunk: 32 k for each of four lanes */

template <int eights> constexpr int mx_row_tiles = (eights + 1) / 2; /* tiles of 16 rows */

/* Eight weights of a lane as bf16: the factors of two mma steps. */
struct mx_eight {
  uint32_t low[2], high[2];
};

/* Multiplies eight k of a lane: 8 rows of weights times rows r and r + 8 of a tile. */
__device__ __forceinline__ void mx_multiply(float (&sum)[4], const uint4 &upper, const uint4 &lower,
                                            const mx_eight &w) {
  const uint32_t first[4] = {upper.x, lower.x, upper.y, lower.y}, second[4] = {upper.z, lower.z, upper.w, lower.w};
  mma_m16n8k16<bf16>(sum, first, w.low);
  mma_m16n8k16<bf16>(sum, second, w.high);
}

/* mx_mma: computes 8 groups columns of 8 eights rows. The order of k inside an mma is free. A lane's 16 bytes of
 * codes are therefore one block of 32 k with one scale: eight mma steps.
 * Grid:   (ceil(N / (8 groups)), ceil(M / (8 eights))). Block: 8 warps; chunks of 128 k go round the warps.
 * Shared: the sums of the warps, added in the order of warps.
 * Align:  rows of a and of codes at multiples of 16 bytes; scales by word, c by element.
 * Arch:   sm_90.
 * Limit:  bytes: 17/32 N K up to 8 eights rows. Two chunks of weights are in flight. a comes from L1 and L2. */
template <class Out, int eights, int groups> __global__ void __launch_bounds__(32 * mx_warps, 1) mx_mma(mx_params p) {
  constexpr int row_tiles = mx_row_tiles<eights>, floats = groups * row_tiles * 128;
  ASSAY_DYNAMIC_SHARED(float, parts);
  take_turn();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int64_t n0 = static_cast<int64_t>(blockIdx.x) * (8 * groups),
                m0 = static_cast<int64_t>(blockIdx.y) * 8 * eights;
  const int blocks = static_cast<int>(p.K / mx_block), chunks = (blocks + 3) / 4;
  const uint4 none = {0, 0, 0, 0};

  const uint32_t *codes[groups], *scales[groups];
  ASSAY_UNROLL
  for (int j = 0; j < groups; ++j) {
    const int64_t n = min(n0 + 8 * j + lane / 4, p.N - 1);
    codes[j] = p.codes + n * p.codes_row;
    scales[j] = p.scales + n * p.scales_row;
  }
  uint4 w[mx_ahead][groups];
  uint32_t s[mx_ahead][groups];
  const auto load = [&](int at, int chunk) {
    const int block = 4 * chunk + lane % 4;
    ASSAY_UNROLL
    for (int j = 0; j < groups; ++j) {
      w[at][j] = block < blocks ? load_once(reinterpret_cast<const uint4 *>(codes[j]) + block) : none;
      s[at][j] = block < blocks ? scales[j][chunk] >> (lane % 4 * 8) & 255u : 0u;
    }
  };
  /* Loads eight k of row 8 e + lane / 4. Rows and blocks that the call does not have are zeros. */
  const auto load_a = [&](int e, int block, int piece) {
    const int64_t m = m0 + 8 * e + lane / 4;
    if (m >= p.M || block >= blocks) return none;
    return *reinterpret_cast<const uint4 *>(p.a + m * p.a_row + static_cast<int64_t>(block) * mx_block + 8 * piece);
  };
  ASSAY_UNROLL
  for (int i = 0; i < mx_ahead; ++i)
    load(i, warp + i * mx_warps);

  float sum[groups][row_tiles][4] = {};
  for (int chunk = warp; chunk < chunks; chunk += mx_ahead * mx_warps) {
    ASSAY_UNROLL
    for (int i = 0; i < mx_ahead; ++i) {
      const int now = chunk + i * mx_warps, block = 4 * now + lane % 4;
      if (now >= chunks) break; /* alike in all lanes */
      mx_factors factors[groups];
      ASSAY_UNROLL
      for (int j = 0; j < groups; ++j)
        factors[j] = mx_factors_of(s[i][j]);
      const auto multiply = [&](int piece) {
        mx_eight eight[groups];
        ASSAY_UNROLL
        for (int j = 0; j < groups; ++j) {
          const uint32_t word = piece == 0 ? w[i][j].x : piece == 1 ? w[i][j].y : piece == 2 ? w[i][j].z : w[i][j].w;
          eight[j] = {{mx_pair<0>(word, factors[j]), mx_pair<1>(word, factors[j])},
                      {mx_pair<2>(word, factors[j]), mx_pair<3>(word, factors[j])}};
        }
        ASSAY_UNROLL
        for (int tile = 0; tile < row_tiles; ++tile) {
          const uint4 upper = load_a(2 * tile, block, piece);
          const uint4 lower = 2 * tile + 1 < eights ? load_a(2 * tile + 1, block, piece) : none;
          ASSAY_UNROLL
          for (int j = 0; j < groups; ++j)
            mx_multiply(sum[j][tile], upper, lower, eight[j]);
        }
      };
      if constexpr (eights > 4) { /* few loads of a are in flight, since they need registers */
        ASSAY_ROLLED
        for (int piece = 0; piece < 4; ++piece)
          multiply(piece);
      } else {
        ASSAY_UNROLL
        for (int piece = 0; piece < 4; ++piece)
          multiply(piece);
      }
      load(i, now + mx_ahead * mx_warps);
    }
  }

  ASSAY_UNROLL
  for (int j = 0; j < groups; ++j)
    ASSAY_UNROLL
  for (int i = 0; i < row_tiles; ++i)
    ASSAY_UNROLL
  for (int q = 0; q < 4; ++q)
    parts[warp * floats + ((j * row_tiles + i) * 32 + lane) * 4 + q] = sum[j][i][q];
  __syncthreads(); /* all warps' sums are written */
  for (int at = thread; at < floats; at += 32 * mx_warps) {
    float total = 0.0f;
    ASSAY_UNROLL
    for (int i = 0; i < mx_warps; ++i)
      total = __fadd_rn(total, parts[i * floats + at]);
    const int tile = at / 128, owner = at / 4 % 32, q = at % 4;
    mx_store<Out>(p, m0 + tile % row_tiles * 16 + q / 2 * 8 + owner / 4,
                  n0 + tile / row_tiles * 8 + owner % 4 * 2 + q % 2, total);
  }
}

assay_status expect_multiple(const char *name, const void *data, int64_t row, int64_t elements, assay_error *error) {
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "%s: found an address %d past a multiple of 16, allowed multiples",
                      name, static_cast<int>(reinterpret_cast<uintptr_t>(data) % 16));
  if (row % elements != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "%s: found row stride %lld, allowed multiples of %lld", name,
                      static_cast<long long>(row), static_cast<long long>(elements));
  return ASSAY_OK;
}

assay_status read_call(const assay_call *call, mx_params *p, assay_error *error) {
  ASSAY_TRY(mx_read(call, p, error));
  ASSAY_TRY(expect_multiple("a", p->a, p->a_row, 8, error));
  return expect_multiple("codes", p->codes, p->codes_row, 4, error);
}

template <class Out, int eights, int groups>
assay_status launch_shape(const mx_params &p, assay_env *env, assay_error *error) {
  const launch_extent grid((p.N + 8 * groups - 1) / (8 * groups), (p.M + 8 * eights - 1) / (8 * eights));
  constexpr int bytes = mx_warps * groups * mx_row_tiles<eights> * 512;
  (void)snprintf(env->path, sizeof env->path, "mma rows=%d channels=%d", 8 * eights, 8 * groups);
  return ASSAY_LAUNCH_WITH(error, (mx_mma<Out, eights, groups>), grid, 32 * mx_warps, bytes, in_turn(), env->stream, p);
}

/* Gives every multiprocessor a block where channels are few. */
template <class Out, int eights> assay_status launch_rows(const mx_params &p, assay_env *env, assay_error *error) {
  const int64_t each = (p.N + 7) / 8 / env->multiprocessors;
  if (each < 2) return launch_shape<Out, eights, 1>(p, env, error);
  if (each < 4) return launch_shape<Out, eights, 2>(p, env, error);
  return launch_shape<Out, eights, 4>(p, env, error);
}

assay_status launch_mma(const assay_call *call, assay_env *env, assay_error *error) {
  mx_params p;
  ASSAY_TRY(read_call(call, &p, error));
  (void)snprintf(env->path, sizeof env->path, "mma");
  if (p.M == 0) return ASSAY_OK;
  return with_type(p.out, [&](auto tag) {
    using Out = typename decltype(tag)::type;
    if (p.M <= 8) return launch_rows<Out, 1>(p, env, error);
    if (p.M <= 16) return launch_rows<Out, 2>(p, env, error);
    if (p.M <= 32) return launch_rows<Out, 4>(p, env, error);
    return launch_rows<Out, 8>(p, env, error);
  });
}

/* Returns the place in K of the product that is summed as number i. A warp has every eighth chunk of 128. Step s of a
 * chunk has four k of each of its four blocks of 32, from 4 s on. */
int64_t mma_order(int64_t i, int64_t K) {
  const int64_t each = K / mx_warps, warp = i / each, at = i % each, chunk = at / mx_chunk * mx_warps + warp;
  const int64_t step = at % mx_chunk / 16, in_step = at % 16;
  return chunk * mx_chunk + in_step / 4 * mx_block + 4 * step + in_step % 4;
}

assay_status mma_sums(const assay_call *, const assay_env *, assay_sums *sums, assay_error *) {
  sums->unit = ASSAY_SUM_MMA_16;
  sums->parts = mx_warps;
  sums->pad = mx_warps * mx_chunk;
  sums->order = mma_order;
  sums->after[0] = ASSAY_AFTER_BIAS;
  return ASSAY_OK;
}

constexpr assay_contract mma_contract = {.qk_lanes = 1,
                                         .pv_lanes = 1,
                                         .run_to_run = true,
                                         .renumbering = true,
                                         .permutation = true,
                                         .lanes = mx_warps,
                                         .alone = true,
                                         .cut = 16};

} // namespace
} // namespace ASSAY_NS

#define MMA                                                                                                            \
  PLAIN_VARIANT("mxfp4_gemm", "mma", "weights from memory into tensor cores, made for few rows", PLAIN_TYPE_CLAIMS,    \
                mma_contract, mx_params, read_call, launch_mma, ::ASSAY_NS::mma_sums)
#define TILES                                                                                                          \
  PLAIN_VARIANT("mxfp4_gemm", "tiles", "any strides: tiles of 32 by 64", PLAIN_TYPE_CLAIMS, tiles_contract, mx_params, \
                mx_read, launch_tiles, ::ASSAY_NS::tiles_sums)

ASSAY_VARIANTS(mxfp4_gemm, MMA, TILES)
