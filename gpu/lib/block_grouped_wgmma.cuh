/* block_grouped_wgmma.cuh: products of e4m3 matrices with scales, in which each row has the weights of its group, on
 * Hopper's tensor cores. One launch lists tiles of rows (gpu/lib/grouped_tiles.cuh). The next one multiplies them
 * (gpu/lib/block_wgmma.cuh). */
#ifndef ASSAY_GPU_LIB_BLOCK_GROUPED_WGMMA_CUH
#define ASSAY_GPU_LIB_BLOCK_GROUPED_WGMMA_CUH

#include "gpu/lib/block_grouped.cuh"
#include "gpu/lib/block_wgmma.cuh"
#include "gpu/lib/grouped_tiles.cuh"

namespace ASSAY_NS {

/* Groups of few rows have tiles of up to 64 rows, which come in boxes of 16. Narrow tiles let more blocks read weights.
 */
using block_narrow = block_tile<64, 32, 16, 16>;
using block_few = block_tile<64, 128, 16, 8>;
using block_many = block_tile<128, 128, 128, 6>;

/* The call and its list. Tiles of columns of one tile of rows are neighbours, so that they share rows of a in L2. */
struct block_grouped_work {
  block_gemm_params g;
  grouped_params rows;
  int64_t sfa_slab, c_slab, sfb_group;
  void *list;
  int32_t column_tiles, pieces;
  bool vectors; /* 16 bytes of c may be stored at once */

  __device__ __forceinline__ int64_t items() const { return static_cast<int64_t>(*grouped_count(list)) * column_tiles; }
  __device__ __forceinline__ int64_t sfa_at(int32_t slab) const { return slab * sfa_slab; }
  __device__ __forceinline__ int64_t sfb_at(int32_t group) const { return group * sfb_group; }
  __device__ __forceinline__ int64_t c_at(int32_t slab) const { return slab * c_slab; }

  /* Returns whether tile number `at` has a group. */
  template <class tile> __device__ __forceinline__ bool find(int64_t at, block_place *to) const {
    const grouped_tile found = grouped_list(list)[at / column_tiles];
    to->slab = static_cast<int32_t>(found.first / rows.R);
    to->row = static_cast<int32_t>(found.first % rows.R);
    to->rows = found.end - found.first;
    to->column = static_cast<int32_t>(at % column_tiles) * tile::columns;
    to->group = found.group;
    return found.group >= 0;
  }

  /* Makes zeros of dead rows, by the warps that multiply. */
  template <class tile, class Out> __device__ __forceinline__ void clear(const block_place &place) const {
    if (!rows.zero) return;
    const int32_t thread = static_cast<int32_t>(threadIdx.x) - block_loaders;
    const int64_t n = static_cast<int64_t>(place.column) + thread % tile::columns;
    Out *const to = static_cast<Out *>(g.c) + place.slab * c_slab + place.row * g.c_row + n;
    for (int32_t row = thread / tile::columns; row < place.rows && n < g.N; row += 256 / tile::columns)
      to[row * g.c_row] = from_float<Out>(0.0f);
  }
};

/* Declines calls that the copy engine or the list cannot hold. */
inline assay_status block_grouped_wgmma_expect(const block_grouped_params &p, assay_error *error) {
  if (p.g.K % 16 != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "K: found %" PRId64 ", taken here: multiples of 16", p.g.K);
  ASSAY_TRY(block_expect_rows("a", p.g.a, p.g.a_row | p.a_slab, error));
  ASSAY_TRY(block_expect_rows("b", p.g.b, p.g.b_row, error));
  if (p.rows.rows > INT32_MAX - 256 || p.g.N > INT32_MAX - 256)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                      "rows: found %" PRId64 " with N %" PRId64 ", taken here: fewer than 2^31 - 256 of both",
                      p.rows.rows, p.g.N);
  return ASSAY_OK;
}

/* Launches the plan, then the products. */
template <class tile>
assay_status block_grouped_start(const block_grouped_params &p, assay_env *env, assay_error *error) {
  block_grouped_work work = {};
  const block_gemm_params &g = p.g;
  work.g = g;
  work.rows = p.rows;
  work.sfa_slab = p.sfa_slab;
  work.c_slab = p.c_slab;
  work.sfb_group = p.sfb_group;
  work.list = env->workspace;
  work.column_tiles = static_cast<int32_t>((g.N + tile::columns - 1) / tile::columns);
  work.pieces = static_cast<int32_t>((g.K + block_piece - 1) / block_piece);
  work.vectors = block_vectors(g, p.c_slab);
  tensor_map map_a, map_b, map_c;
  ASSAY_TRY(block_map(&map_a, g.a, p.rows.rows / p.rows.R, p.rows.R, g.K, p.a_slab, g.a_row, tile::box, error));
  ASSAY_TRY(block_map(&map_b, g.b, p.rows.G, g.N, g.K, p.b_group, g.b_row, tile::columns, error));
  ASSAY_TRY(block_map_c(&map_c, g, p.rows.rows / p.rows.R, p.rows.R, p.c_slab, work.vectors, error));
  (void)snprintf(env->path, sizeof env->path, "wgmma tile=%dx%d vectors=%d", tile::rows, tile::columns,
                 work.vectors ? 1 : 0);
  ASSAY_TRY(expect_workspace(env, grouped_list_bytes(p.rows, block_few::rows), error));
  ASSAY_TRY(grouped_launch_plan(p.rows, work.list, tile::rows, env, error));
  const int64_t slabs = p.rows.G * ((p.rows.R + tile::rows - 1) / tile::rows);
  const int64_t most = (p.rows.group != NULL ? p.rows.rows : slabs) * work.column_tiles;
  const int64_t blocks = most < env->multiprocessors ? most : env->multiprocessors;
  return with_type(g.out, [&](auto tag) {
    return ASSAY_LAUNCH_WITH(error, (block_gemm_wgmma<tile, typename decltype(tag)::type, block_grouped_work>), blocks,
                             block_threads, tile::bytes, in_turn(), env->stream, map_a, map_b, map_c, work);
  });
}

/* Takes narrow tiles where 64 columns would not give every multiprocessor a tile. */
inline assay_status block_grouped_wgmma_launch(const block_grouped_params &p, bool few, assay_env *env,
                                               assay_error *error) {
  (void)snprintf(env->path, sizeof env->path, "wgmma");
  if (p.rows.rows == 0 || p.g.N == 0) return ASSAY_OK;
  const int64_t groups = p.rows.rows < p.rows.G ? p.rows.rows : p.rows.G;
  if (few && groups * ((p.g.N + 63) / 64) < env->multiprocessors)
    return block_grouped_start<block_narrow>(p, env, error);
  if (few) return block_grouped_start<block_few>(p, env, error);
  return block_grouped_start<block_many>(p, env, error);
}

} // namespace ASSAY_NS
#endif
