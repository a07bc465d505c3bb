/* fp8_block_gemm_wgmma.cu: a product of e4m3 matrices with scales of 1 x 128 and 128 x 128, on Hopper's tensor cores.
 *
 *   c_mn = sum_κ sfa_mκ · sfb_{n/128, κ} · (sum_{i in κ} a_mi · b_ni) + bias_n        κ: pieces of 128 of K
 *
 * The kernel is in gpu/lib/block_wgmma.cuh. docs/kernels/fp8_block_gemm.md has the schedule. */
#include "gpu/lib/block_wgmma.cuh"

namespace ASSAY_NS {
namespace {

constexpr int32_t rows_together = 8;

/* Finds tile `at` of `rows` rows of `columns` tiles. 8 rows go side by side, so that they share columns of b in L2. */
__device__ __forceinline__ void find_in_bands(int32_t at, int32_t rows, int32_t columns, int32_t *row,
                                              int32_t *column) {
  const int32_t band = at / (rows_together * columns), first = band * rows_together;
  const int32_t high = min(rows_together, rows - first), in = at - first * columns;
  *row = first + in % high;
  *column = in / high;
}

/* The call, and how its tiles are numbered. */
struct block_work {
  block_gemm_params g;
  int32_t row_tiles, column_tiles, pieces;
  bool vectors; /* 16 bytes of c may be stored at once */

  __device__ __forceinline__ int64_t items() const { return static_cast<int64_t>(row_tiles) * column_tiles; }
  __device__ __forceinline__ int64_t sfa_at(int32_t) const { return 0; }
  __device__ __forceinline__ int64_t sfb_at(int32_t) const { return 0; }
  __device__ __forceinline__ int64_t c_at(int32_t) const { return 0; }

  template <class tile> __device__ __forceinline__ bool find(int64_t number, block_place *to) const {
    int32_t row, column;
    find_in_bands(static_cast<int32_t>(number), row_tiles, column_tiles, &row, &column);
    to->row = row * tile::rows;
    to->rows = static_cast<int32_t>(min(g.M - to->row, int64_t{tile::rows}));
    to->slab = to->group = 0;
    to->column = column * tile::columns;
    to->columns = tile::columns;
    return true;
  }
  template <class tile, class Out> __device__ __forceinline__ void clear(const block_place &) const {}
};

/* How a row of tiles is cut: `wide` tiles of 192 columns, then `narrow` ones of 128. */
struct block_cut {
  int32_t rows, wide, narrow; /* rows: the number of those that are cut this way */
};

/* As block_work, with tiles of two widths. Two wide tiles have the columns of three narrow ones, and the first rows may
 * have more of these. All wide tiles come before all narrow ones, so that the last turn is a narrow one. */
struct mixed_work : block_work {
  block_cut cut[2];
  int32_t tiles;

  __device__ __forceinline__ int64_t items() const { return tiles; }

  template <class tile> __device__ __forceinline__ bool find(int64_t number, block_place *to) const {
    int32_t at = static_cast<int32_t>(number), part = 0, row, column;
    for (; part < 3; ++part) { /* wide of the first rows, wide of the others, narrow of both in this order */
      const block_cut &c = cut[part % 2];
      const int32_t count = c.rows * (part < 2 ? c.wide : c.narrow);
      if (at < count) break;
      at -= count;
    }
    const block_cut &of = cut[part % 2];
    find_in_bands(at, of.rows, part < 2 ? of.wide : of.narrow, &row, &column);
    to->row = (row + (part % 2 == 0 ? 0 : cut[0].rows)) * tile::rows;
    to->rows = static_cast<int32_t>(min(g.M - to->row, int64_t{tile::rows}));
    to->slab = to->group = 0;
    to->column = part < 2 ? column * tile::columns : of.wide * tile::columns + column * block_piece;
    to->columns = part < 2 ? tile::columns : block_piece;
    return true;
  }
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

/* Fills in what tiles have in common, and launches. kind: of tiles, for the path. */
template <class tile, class Work>
assay_status launch_work(Work work, const block_gemm_params &g, int64_t tiles, const char *kind, assay_env *env,
                         assay_error *error) {
  work.g = g;
  work.row_tiles = static_cast<int32_t>((g.M + tile::rows - 1) / tile::rows);
  work.column_tiles = static_cast<int32_t>((g.N + tile::columns - 1) / tile::columns);
  work.pieces = static_cast<int32_t>((g.K + block_piece - 1) / block_piece);
  work.vectors = block_vectors(g, 0);
  tensor_map map_a, map_b, map_c;
  ASSAY_TRY(block_map(&map_a, g.a, 1, g.M, g.K, 0, g.a_row, tile::box, error));
  ASSAY_TRY(block_map(&map_b, g.b, 1, g.N, g.K, 0, g.b_row, tile::b_box, error));
  ASSAY_TRY(block_map_c(&map_c, g, 1, g.M, 0, work.vectors, error));
  (void)snprintf(env->path, sizeof env->path, "wgmma tile=%dx%d%s vectors=%d", tile::rows, tile::columns, kind,
                 work.vectors ? 1 : 0);
  const int64_t blocks = tiles < env->multiprocessors ? tiles : env->multiprocessors;
  return with_type(g.out, [&](auto tag) {
    return ASSAY_LAUNCH_WITH(error, (block_gemm_wgmma<tile, typename decltype(tag)::type, Work>), blocks, block_threads,
                             tile::bytes, in_turn(), env->stream, map_a, map_b, map_c, work);
  });
}

template <class tile> assay_status launch_tile(const block_gemm_params &g, assay_env *env, assay_error *error) {
  const int64_t tiles = (g.M + tile::rows - 1) / tile::rows * ((g.N + tile::columns - 1) / tile::columns);
  return launch_work<tile>(block_work{}, g, tiles, "", env, error);
}

using mixed_tile = block_tile<128, 192, 128, 4>;

assay_status launch_mixed(const block_gemm_params &g, const mixed_work &work, assay_env *env, assay_error *error) {
  const bool narrow = work.cut[0].rows * work.cut[0].narrow + work.cut[1].rows * work.cut[1].narrow > 0;
  return launch_work<mixed_tile>(work, g, work.tiles, narrow ? "+128" : "", env, error);
}

/* Returns how often the multiprocessors turn to new tiles. */
int64_t turns_of(int64_t tiles, int64_t multiprocessors) {
  return (tiles + multiprocessors - 1) / multiprocessors;
}

int64_t turns(const block_gemm_params &g, int64_t rows, int64_t columns, int64_t multiprocessors) {
  return turns_of((g.M + rows - 1) / rows * ((g.N + columns - 1) / columns), multiprocessors);
}

/* Returns what a tile of 128 rows costs, in columns: its own, 13 for the rows of a, and its end. On an H200 a tile of
 * 128 columns takes 5 % longer than half a tile of 256. With 12 pieces, tiles of 192 take as long as if they had 27
 * more columns (docs/log/2026-12-01-h200-forms.md). That an end costs less per piece with more pieces is a guess. */
int64_t tile_cost(const block_gemm_params &g, int64_t columns) {
  return columns + 13 + 170 * block_piece / (g.K + block_piece - 1);
}

int64_t turns_cost(const block_gemm_params &g, int64_t columns, int64_t multiprocessors) {
  return turns(g, 128, columns, multiprocessors) * tile_cost(g, columns);
}

/* Cuts rows into tiles of 192 and of 128 columns, for the least cost. The last turn of tiles of one width is often half
 * empty. The cut begins with as many wide tiles as there may be, and with none, one or two narrow ones. Each swap takes
 * two wide tiles for three narrow ones. Swaps pay where they save a turn of wide tiles. Returns the cost. */
int64_t mixed_cut(const block_gemm_params &g, int64_t multiprocessors, mixed_work *work) {
  const int64_t rows = (g.M + 127) / 128;
  int64_t least = INT64_MAX;
  for (int64_t narrow = 0; narrow < 3; ++narrow) {
    const int64_t wide = g.N > 128 * narrow ? (g.N - 128 * narrow + 191) / 192 : 0,
                  most = turns_of(rows * wide, multiprocessors);
    for (int64_t turn = most; turn >= 0 && turn + 4 > most; --turn) {
      const int64_t over = rows * wide - turn * multiprocessors, swaps = over > 0 ? (over + 1) / 2 : 0;
      if (swaps > rows * (wide / 2)) break;
      const int64_t wides = rows * wide - 2 * swaps, tiles = rows * (wide + narrow) + swaps;
      const int64_t by_wide = turns_of(wides, multiprocessors), all = turns_of(tiles, multiprocessors);
      const int64_t cost = by_wide * tile_cost(g, 192) + (all - by_wide) * tile_cost(g, 128);
      if (cost >= least) continue;
      least = cost;
      const int64_t each = swaps / rows, more = swaps % rows; /* the first rows have one swap more */
      const auto cut = [&](int64_t count, int64_t of) {
        return block_cut{static_cast<int32_t>(count), static_cast<int32_t>(wide - 2 * of),
                         static_cast<int32_t>(narrow + 3 * of)};
      };
      work->cut[0] = cut(more, each + 1);
      work->cut[1] = cut(rows - more, each);
      work->tiles = static_cast<int32_t>(tiles);
    }
  }
  return least;
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
    mixed_work mixed = {};
    const int64_t by_two = mixed_cut(p, processors, &mixed);
    const int64_t by_256 = turns_cost(p, 256, processors), by_128 = turns_cost(p, 128, processors);
    if (by_256 <= by_two && by_256 <= by_128) return launch_tile<block_tile<128, 256, 128, 4>>(p, env, error);
    if (by_two < by_128) return launch_mixed(p, mixed, env, error);
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
