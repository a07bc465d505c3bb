/* fp8_block_gemm_wgmma.cu: a product of e4m3 matrices with scales of 1 x 128 and 128 x 128, on Hopper's tensor cores.
 *
 *   c_mn = sum_κ sfa_mκ · sfb_{n/128, κ} · (sum_{i in κ} a_mi · b_ni) + bias_n        κ: pieces of 128 of K
 *
 * The kernel is in gpu/lib/block_wgmma.cuh. docs/kernels/fp8_block_gemm.md has the schedule. */
#include "gpu/lib/block_wgmma.cuh"

namespace ASSAY_NS {
namespace {

constexpr int32_t rows_together = 8;

/* The call, and how its tiles are numbered: 8 rows of tiles go side by side, so that they share columns of b in L2. */
struct block_work {
  block_gemm_params g;
  int32_t row_tiles, column_tiles, pieces;
  bool vectors; /* 16 bytes of c may be stored at once */

  __device__ __forceinline__ int64_t items() const { return static_cast<int64_t>(row_tiles) * column_tiles; }
  __device__ __forceinline__ int64_t sfa_at(int32_t) const { return 0; }
  __device__ __forceinline__ int64_t sfb_at(int32_t) const { return 0; }
  __device__ __forceinline__ int64_t c_at(int32_t) const { return 0; }

  template <class tile> __device__ __forceinline__ bool find(int64_t number, block_place *to) const {
    const int32_t at = static_cast<int32_t>(number), band = at / (rows_together * column_tiles);
    const int32_t first = band * rows_together, rows = min(rows_together, row_tiles - first);
    const int32_t in = at - first * column_tiles;
    to->row = (first + in % rows) * tile::rows;
    to->rows = static_cast<int32_t>(min(g.M - to->row, int64_t{tile::rows}));
    to->slab = 0;
    to->column = in / rows * tile::columns;
    to->group = 0;
    return true;
  }
  template <class tile, class Out> __device__ __forceinline__ void clear(const block_place &) const {}
};

assay_status read_call(const assay_call *call, block_gemm_params *p, assay_error *error) {
  ASSAY_TRY(block_gemm_read(call, p, error));
  ASSAY_TRY(block_expect_rows("a", p->a, p->a_row, error));
  ASSAY_TRY(block_expect_rows("b", p->b, p->b_row, error));
  if (p->M + 128 > INT32_MAX || p->N + 256 > INT32_MAX || (p->M / 64 + 1) * (p->N / 32 + 1) > INT32_MAX)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                      "M: found %" PRId64 " with N %" PRId64 ", taken here: fewer tiles than 2^31", p->M, p->N);
  return ASSAY_OK;
}

template <class tile> assay_status launch_tile(const block_gemm_params &g, assay_env *env, assay_error *error) {
  block_work work = {};
  work.g = g;
  work.row_tiles = static_cast<int32_t>((g.M + tile::rows - 1) / tile::rows);
  work.column_tiles = static_cast<int32_t>((g.N + tile::columns - 1) / tile::columns);
  work.pieces = static_cast<int32_t>((g.K + block_piece - 1) / block_piece);
  work.vectors = block_vectors(g, 0);
  const int64_t tiles = static_cast<int64_t>(work.row_tiles) * work.column_tiles;
  tensor_map map_a, map_b, map_c;
  ASSAY_TRY(block_map(&map_a, g.a, 1, g.M, g.K, 0, g.a_row, tile::box, error));
  ASSAY_TRY(block_map(&map_b, g.b, 1, g.N, g.K, 0, g.b_row, tile::columns, error));
  ASSAY_TRY(block_map_c(&map_c, g, 1, g.M, 0, work.vectors, error));
  (void)snprintf(env->path, sizeof env->path, "wgmma tile=%dx%d vectors=%d", tile::rows, tile::columns,
                 work.vectors ? 1 : 0);
  const int64_t blocks = tiles < env->multiprocessors ? tiles : env->multiprocessors;
  return with_type(g.out, [&](auto tag) {
    return ASSAY_LAUNCH_WITH(error, (block_gemm_wgmma<tile, typename decltype(tag)::type, block_work>), blocks,
                             block_threads, tile::bytes, in_turn(), env->stream, map_a, map_b, map_c, work);
  });
}

/* Returns how often the multiprocessors turn to new tiles of rows x columns. */
int64_t turns(const block_gemm_params &g, int64_t rows, int64_t columns, int64_t multiprocessors) {
  const int64_t tiles = (g.M + rows - 1) / rows * ((g.N + columns - 1) / columns);
  return (tiles + multiprocessors - 1) / multiprocessors;
}

/* Returns what tiles of 128 rows cost: columns that multiprocessors take one after the other. On an H200 a
 * tile of 128 columns takes 5 % longer than half a tile of 256. The rows of a therefore count as 13 columns. */
int64_t turns_cost(const block_gemm_params &g, int64_t columns, int64_t multiprocessors) {
  return turns(g, 128, columns, multiprocessors) * (columns + 13);
}

/* Many rows have the tiles that cost least. Few rows have narrow tiles: as many blocks as possible then read b at once.
 * A tile also reads 64 rows of a. */
assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  block_gemm_params p;
  ASSAY_TRY(read_call(call, &p, error));
  (void)snprintf(env->path, sizeof env->path, "wgmma");
  if (p.M == 0) return ASSAY_OK;
  const int64_t processors = env->multiprocessors;
  if (p.M > 64) {
    const int64_t by_256 = turns_cost(p, 256, processors), by_192 = turns_cost(p, 192, processors);
    const int64_t by_128 = turns_cost(p, 128, processors);
    if (by_256 <= by_192 && by_256 <= by_128) return launch_tile<block_tile<128, 256, 128, 4>>(p, env, error);
    if (by_192 <= by_128) return launch_tile<block_tile<128, 192, 128, 4>>(p, env, error);
    return launch_tile<block_tile<128, 128, 128, 6>>(p, env, error);
  }
  if (turns(p, 64, 64, processors) * (64 + 64) <= turns(p, 64, 32, processors) * (64 + 32))
    return launch_tile<block_tile<64, 64, 64, 12>>(p, env, error);
  return launch_tile<block_tile<64, 32, 64, 16>>(p, env, error);
}

} // namespace
} // namespace ASSAY_NS

#define WGMMA                                                                                                          \
  {                                                                                                                    \
    sizeof(assay_variant), "fp8_block_gemm", "wgmma" ASSAY_VARIANT_SUFFIX,                                             \
        "pieces from the copy engine into tensor cores", ASSAY_DEVICE_NAME, "sm_90a", PLAIN_TYPE_CLAIMS,               \
        ::ASSAY_NS::block_wgmma_contract,                                                                              \
        ::ASSAY_NS::plain_supports<::ASSAY_NS::block_gemm_params, ::ASSAY_NS::read_call>,                              \
        ::ASSAY_NS::plain_no_workspace<::ASSAY_NS::block_gemm_params, ::ASSAY_NS::read_call>, ::ASSAY_NS::launch,      \
        ::ASSAY_NS::block_wgmma_sums                                                                                   \
  }

ASSAY_VARIANTS(fp8_block_gemm_wgmma, WGMMA)
