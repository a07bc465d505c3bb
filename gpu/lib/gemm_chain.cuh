/* gemm_chain.cuh: products of at most 64 rows, and of 120 to 128, with the bits of gemm_wgmma.cuh. Each element is one
 * chain of steps of 16 products in the order of k.
 *
 * A block has the columns that give each multiprocessor one block. One thread loads weights, which it may ask for under
 * the launch before, and another loads rows. The warpgroup that multiplies waits for loads alone: it gives a stage back
 * only where another piece follows in its place. */
#ifndef ASSAY_GPU_LIB_GEMM_CHAIN_CUH
#define ASSAY_GPU_LIB_GEMM_CHAIN_CUH

#include "gpu/lib/gemm_wgmma.cuh"
#include "gpu/lib/ptx_mma.cuh"

namespace ASSAY_NS {

constexpr int32_t chain_threads = 192, chain_piece = 128; /* k of a stage: two halves of 64, each swizzled */
constexpr int32_t chain_measurers = 128; /* threads that compute factors of rows, where rows are scaled */
constexpr int64_t chain_max_rows = 64;

/* A stage has two halves of `rows` rows of x, then two halves of `columns` rows of w. An instruction has 64 rows: with
 * 8, each eight of them is the same. With 32, the others are what follows in shared memory, and their sums are not
 * used. */
template <int rows_, int columns_, int stages_> struct chain_tile {
  static constexpr int rows = rows_, columns = columns_, stages = stages_;
  static constexpr int x_half = 128 * rows, w_half = 128 * columns, x_bytes = 2 * x_half, w_bytes = 2 * w_half;
  static constexpr int stage_bytes = x_bytes + w_bytes;
  static constexpr int control_at = stages * stage_bytes, factors_at = control_at + 2 * stages * 8;
  static constexpr int bytes = factors_at;            /* without factors of rows */
  static constexpr int eights = rows == 8 ? 0 : 1024; /* bytes between eights of rows */
  static_assert(rows == 8 || rows == 32 || rows == 64, "rows that an instruction can address");
  static_assert(rows != 32 || w_bytes >= 4096, "an instruction reads no more than its stage");
};

/* Loads the pieces of x or w, by one thread. */
template <class tile, int bytes>
__device__ __forceinline__ void chain_load(int32_t pieces, const tensor_map *map, int32_t row, unsigned char *to,
                                           uint64_t *full, uint64_t *free) {
  wide_ring<tile::stages> ring;
  for (int32_t piece = 0; piece < pieces; ++piece, ring.next()) {
    unsigned char *const stage = to + ring.stage * tile::stage_bytes;
    if (piece >= tile::stages) mbarrier_wait(&free[ring.stage], ring.parity ^ 1);
    mbarrier_expect(&full[ring.stage], bytes);
    tma_load(stage, map, &full[ring.stage], piece * chain_piece, row);
    tma_load(stage + bytes / 2, map, &full[ring.stage], piece * chain_piece + wide_piece, row);
  }
}

template <class T, class Out>
__device__ __forceinline__ void chain_store(const wide_params &p, int64_t m, int64_t n, float first, float second) {
  Out *const to = static_cast<Out *>(p.c) + m * p.c_row + n;
  if (n >= p.N) return;
  const bool both = n + 1 < p.N;
  if (!p.quads || !both) {
    to[0] = wide_value<T>(p, n, first, to);
    if (both) to[1] = wide_value<T>(p, n + 1, second, to + 1);
    return;
  }
  struct alignas(2 * sizeof(Out)) pair_of {
    Out element[2];
  } const rounded = {{wide_value<T>(p, n, first, to), wide_value<T>(p, n + 1, second, to + 1)}};
#ifdef ASSAY_SIMT
  if (reinterpret_cast<uintptr_t>(to) % sizeof rounded != 0)
    assay_simt->fault("the address of two neighbours is not a multiple of their size", __FILE__, __LINE__);
#endif
  *reinterpret_cast<pair_of *>(to) = rounded;
}

/* Stores the sums of a thread, which has rows m and m + 8, from a column on. Whole blocks of plain products have short
 * code of their own: a cold launch waits for instructions. */
template <class T, int columns>
__device__ __forceinline__ void chain_store_all(const wide_params &p, int64_t m, int64_t column, int32_t lane,
                                                const float (&sum)[columns / 2]) {
  if (!p.wide && p.quads && p.beta == 0.0f && p.bias == nullptr && column + columns <= p.N) {
    T *const to = static_cast<T *>(p.c) + m * p.c_row + column + 2 * (lane % 4);
    ASSAY_UNROLL
    for (int half = 0; half < 2; ++half)
      ASSAY_UNROLL
    for (int j = 0; j < columns / 8 && m + 8 * half < p.M; ++j) {
      const float *const two = sum + 4 * j + 2 * half;
      *reinterpret_cast<uint32_t *>(to + 8 * half * p.c_row + 8 * j) =
          pack_pair<T>(__fmul_rn(p.alpha, two[0]), __fmul_rn(p.alpha, two[1]));
    }
    return;
  }
  ASSAY_UNROLL
  for (int half = 0; half < 2; ++half) {
    if (m + 8 * half >= p.M) break;
    ASSAY_UNROLL
    for (int j = 0; j < columns / 8; ++j) {
      const int64_t n = column + 8 * j + 2 * (lane % 4);
      const float *const two = sum + 4 * j + 2 * half;
      if (p.wide)
        chain_store<T, float>(p, m + 8 * half, n, two[0], two[1]);
      else
        chain_store<T, T>(p, m + 8 * half, n, two[0], two[1]);
    }
  }
}

/* The use of sums by wide_stores, for chains. */
struct chain_stores : wide_plain_sums {
  template <class T, int columns>
  __device__ __forceinline__ void take(const wide_params &p, int64_t m, int64_t n, int32_t lane,
                                       const float (&sum)[columns / 2]) {
    chain_store_all<T, columns>(p, m, n, lane, sum);
  }
};

/* Computes the factors of `rows` rows beside the products, by whole warps. `multipliers` threads wait for them. */
template <int rows, int multipliers>
__device__ __forceinline__ void chain_measure(const wide_scaled_params &p, int64_t row, int32_t thread,
                                              float *factors) {
  const int64_t parts = (p.K + deferred_part - 1) / deferred_part;
  for (int32_t at = thread / 2; at < rows; at += chain_measurers / 2) {
    const int64_t m = row + at;
    const float factor = deferred_factor_by_two<16>(m < p.M ? p.squares + m * parts : nullptr,
                                                    static_cast<int32_t>(p.K), p.eps, p.quads_of_squares);
    if (thread % 2 == 0) factors[at] = factor;
  }
  named_barrier_arrive(1, multipliers + chain_measurers);
}

template <class T, class tile, class Sums>
__device__ __forceinline__ void chain_multiply(const typename Sums::params &p, unsigned char *shared, uint64_t *full,
                                               uint64_t *free, int64_t row, int64_t column) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x), lane = thread % 32;
  wide_ring<tile::stages> ring;
  float sum[tile::columns / 2];
  const auto multiply = [&](bool more) {
    const unsigned char *const stage = shared + ring.stage * tile::stage_bytes;
    mbarrier_wait(&full[ring.stage], ring.parity);
    wgmma_fence();
    const uint64_t a = wgmma_descriptor(stage, tile::eights, 0, swizzle_128);
    const uint64_t b = wgmma_descriptor(stage + tile::x_bytes, 1024, 0, swizzle_128);
    ASSAY_UNROLL
    for (uint32_t half = 0; half < 2; ++half)
      ASSAY_UNROLL
    for (uint32_t k = 0; k < wide_piece / 16; ++k)
      wgmma_m64k16<T, tile::columns>(sum, a + half * (tile::x_half / 16) + 2 * k,
                                     b + half * (tile::w_half / 16) + 2 * k, more || half > 0 || k > 0);
    wgmma_commit();
  };
  Sums sums;
  const int64_t m = row + thread / 32 * 16 + lane / 4;
  if constexpr (Sums::begins) sums.template begin<T, tile::columns>(p, m, column, lane);
  wgmma_order(sum);
  multiply(false);
  int32_t piece = 1;
  for (; piece - 1 + tile::stages < p.pieces; ++piece) {
    const int32_t before = ring.stage;
    ring.next();
    multiply(true);
    wgmma_wait<1>();
    if (lane == 0) mbarrier_arrive(&free[before]);
  }
  for (; piece < p.pieces; ++piece) {
    ring.next();
    multiply(true);
  }
  wgmma_wait<0>();
  wgmma_order(sum);
  if constexpr (Sums::scaled) {
    const float *const factor = reinterpret_cast<const float *>(shared + tile::factors_at) + (m - row);
    named_barrier_sync(1, 128 + chain_measurers); /* all factors are stored */
    sums.scale(factor[0], factor[8]);
  }
  sums.template take<T, tile::columns>(p, m, column, lane, sum);
  sums.end(p, m, lane);
}

/* gemm_chain: computes `columns` columns of c for a tile of rows.
 * Grid:   (ceil(N / columns), row tiles). Block: a warpgroup that multiplies, a warp that loads weights, a warp that
 * loads rows. Shared: up to 225 KB: the ring of pieces of x and w, swizzled by 128 bytes, and two barriers for each.
 * Align:  x and w at multiples of 16 bytes, rows and bases; c by two neighbours if it allows, else by element.
 * Arch:   sm_90a.
 * Limit:  bytes: N K sizeof(T). x comes from L2 once per block. */
template <class T, class tile, class Sums = chain_stores>
static __global__ void __launch_bounds__(chain_threads + (Sums::scaled ? chain_measurers : 0), 1)
    gemm_chain(const __grid_constant__ tensor_map map_x, const __grid_constant__ tensor_map map_w,
               typename Sums::params p) {
  ASSAY_DYNAMIC_SHARED_1024(unsigned char, shared);
  uint64_t *const full = reinterpret_cast<uint64_t *>(shared + tile::control_at), *const free = full + tile::stages;
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32, lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int32_t column = static_cast<int32_t>(blockIdx.x) * tile::columns;
  const int32_t row = static_cast<int32_t>(blockIdx.y) * tile::rows;
  dependents_launch();
  if (threadIdx.x == 0) {
    for (int i = 0; i < tile::stages; ++i) {
      mbarrier_init(&full[i], 2); /* both threads that load */
      mbarrier_init(&free[i], 4); /* the warps that multiply */
    }
    mbarrier_fence_init();
    tensor_map_prefetch(&map_x);
    tensor_map_prefetch(&map_w);
  }
  __syncthreads(); /* the barriers are made */
  if (warp != 4 || !p.early) dependency_wait();
  if (warp == 4) {
    if (lane == 0) chain_load<tile, tile::w_bytes>(p.pieces, &map_w, column, shared + tile::x_bytes, full, free);
  } else if (warp == 5) {
    if (lane == 0) chain_load<tile, tile::x_bytes>(p.pieces, &map_x, row, shared, full, free);
  } else if (Sums::scaled && warp > 5) {
    if constexpr (Sums::scaled)
      chain_measure<tile::rows, 128>(p, row, static_cast<int32_t>(threadIdx.x) - chain_threads,
                                     reinterpret_cast<float *>(shared + tile::factors_at));
  } else {
    chain_multiply<T, tile, Sums>(p, shared, full, free, row, column);
  }
}

/* ---- stream: many columns ---------------------------------------------------------------------------- */

/* All of x stays in shared memory, in pieces as above, and tiles of w go through a ring. */
template <int rows_, int columns_, int stages_> struct chain_flow {
  static constexpr int rows = rows_, columns = columns_, stages = stages_;
  static constexpr int x_half = 128 * rows, w_half = 128 * columns, x_bytes = 2 * x_half, stage_bytes = 2 * w_half;
  static constexpr int control_at = stages * stage_bytes, x_at = (control_at + 2 * stages * 8 + 8 + 1023) / 1024 * 1024;
  static constexpr int spare = rows == 32 ? 4096 : 0, eights = rows == 8 ? 0 : 1024;
  static int64_t bytes(int64_t K) { return x_at + (K + chain_piece - 1) / chain_piece * x_bytes + spare; }
};

/* gemm_chain_flow: computes tiles of `columns` columns for all rows, one after the other. With other Sums than the
 * preset, sums are not stored. */
template <class T, class tile, class Sums = chain_stores>
static __global__ void __launch_bounds__(chain_threads, 1)
    gemm_chain_flow(const __grid_constant__ tensor_map map_x, const __grid_constant__ tensor_map map_w, wide_params p) {
  ASSAY_DYNAMIC_SHARED_1024(unsigned char, shared);
  uint64_t *const full = reinterpret_cast<uint64_t *>(shared + tile::control_at), *const free = full + tile::stages;
  uint64_t *const there = free + tile::stages; /* x */
  const int32_t thread = static_cast<int32_t>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int32_t step = static_cast<int32_t>(gridDim.x), first = static_cast<int32_t>(blockIdx.x);
  dependents_launch();
  if (thread == 0) {
    for (int i = 0; i < tile::stages; ++i) {
      mbarrier_init(&full[i], 1);
      mbarrier_init(&free[i], 4); /* the warps that multiply */
    }
    mbarrier_init(there, 1);
    mbarrier_fence_init();
    tensor_map_prefetch(&map_x);
    tensor_map_prefetch(&map_w);
  }
  __syncthreads(); /* the barriers are made */
  if (warp != 4 || !p.early) dependency_wait();
  wide_ring<tile::stages> ring;
  if (warp == 4) {
    for (int32_t at = first; at < p.column_tiles && lane == 0; at += step)
      for (int32_t piece = 0; piece < p.pieces; ++piece, ring.next()) {
        unsigned char *const stage = shared + ring.stage * tile::stage_bytes;
        mbarrier_wait(&free[ring.stage], ring.parity ^ 1);
        mbarrier_expect(&full[ring.stage], tile::stage_bytes);
        tma_load(stage, &map_w, &full[ring.stage], piece * chain_piece, at * tile::columns);
        tma_load(stage + tile::w_half, &map_w, &full[ring.stage], piece * chain_piece + wide_piece, at * tile::columns);
      }
  } else if (warp == 5) {
    if (lane == 0) mbarrier_expect(there, static_cast<uint32_t>(p.pieces * tile::x_bytes));
    for (int32_t piece = 0; piece < p.pieces && lane == 0; ++piece) {
      unsigned char *const to = shared + tile::x_at + piece * tile::x_bytes;
      tma_load(to, &map_x, there, piece * chain_piece, 0);
      tma_load(to + tile::x_half, &map_x, there, piece * chain_piece + wide_piece, 0);
    }
  } else {
    const int32_t own_row = warp * 16 + lane / 4;
    Sums sums;
    mbarrier_wait(there, 0);
    for (int32_t at = first; at < p.column_tiles; at += step) {
      float sum[tile::columns / 2];
      int32_t before = 0; /* the stage whose products may still run */
      for (int32_t piece = 0; piece < p.pieces; ++piece, ring.next()) {
        mbarrier_wait(&full[ring.stage], ring.parity);
        const uint64_t a = wgmma_descriptor(shared + tile::x_at + piece * tile::x_bytes, tile::eights, 0, swizzle_128);
        const uint64_t b = wgmma_descriptor(shared + ring.stage * tile::stage_bytes, 1024, 0, swizzle_128);
        wgmma_order(sum);
        wgmma_fence();
        ASSAY_UNROLL
        for (uint32_t half = 0; half < 2; ++half)
          ASSAY_UNROLL
        for (uint32_t k = 0; k < wide_piece / 16; ++k)
          wgmma_m64k16<T, tile::columns>(sum, a + half * (tile::x_half / 16) + 2 * k,
                                         b + half * (tile::w_half / 16) + 2 * k, piece > 0 || half > 0 || k > 0);
        wgmma_commit();
        wgmma_wait<1>();
        if (piece > 0 && lane == 0) mbarrier_arrive(&free[before]);
        before = ring.stage;
      }
      wgmma_wait<0>();
      wgmma_order(sum);
      if (lane == 0) mbarrier_arrive(&free[before]);
      sums.template take<T, tile::columns>(p, own_row, static_cast<int64_t>(at) * tile::columns, lane, sum);
    }
    sums.end(p, own_row, lane);
  }
}

/* ---- launch ------------------------------------------------------------------------------------------ */

/* Rows are loaded after weights that were asked for early, and wait for them. With few terms the wait costs more than
 * the early start gains (docs/log/2026-11-28-h200-invariant-again.md). */
constexpr int64_t chain_early_terms = 2048;

template <class T, class tile, class Sums = chain_stores>
assay_status chain_start(typename Sums::params p, assay_env *env, assay_error *error) {
  p.early = p.early && p.K >= chain_early_terms;
  p.row_tiles = static_cast<int32_t>((p.M + tile::rows - 1) / tile::rows);
  p.column_tiles = static_cast<int32_t>((p.N + tile::columns - 1) / tile::columns);
  p.pieces = static_cast<int32_t>((p.K + chain_piece - 1) / chain_piece);
  tensor_map map_x, map_w;
  ASSAY_TRY(wide_map(&map_x, p.x, p.M, p.K, p.x_row, tile::rows, error));
  ASSAY_TRY(wide_map(&map_w, p.w, p.N, p.K, p.K, tile::columns, error));
  (void)snprintf(env->path, sizeof env->path, "wgmma chain rows=%d channels=%d%s", tile::rows, tile::columns,
                 p.early ? " early" : "");
  constexpr int threads = chain_threads + (Sums::scaled ? chain_measurers : 0);
  constexpr int bytes = tile::bytes + (Sums::scaled ? tile::rows * 4 : 0);
  return ASSAY_LAUNCH_WITH(error, (gemm_chain<T, tile, Sums>), launch_extent(p.column_tiles, p.row_tiles), threads,
                           bytes, in_turn(), env->stream, map_x, map_w, p);
}

template <class T, class tile, class Sums = chain_stores>
assay_status chain_start_flow(wide_params p, assay_env *env, assay_error *error) {
  p.row_tiles = 1;
  p.column_tiles = static_cast<int32_t>((p.N + tile::columns - 1) / tile::columns);
  p.pieces = static_cast<int32_t>((p.K + chain_piece - 1) / chain_piece);
  tensor_map map_x, map_w;
  ASSAY_TRY(wide_map(&map_x, p.x, p.M, p.K, p.x_row, tile::rows, error));
  ASSAY_TRY(wide_map(&map_w, p.w, p.N, p.K, p.K, tile::columns, error));
  (void)snprintf(env->path, sizeof env->path, "wgmma flow rows=%d channels=%d%s", tile::rows, tile::columns,
                 p.early ? " early" : "");
  const int64_t blocks = p.column_tiles < env->multiprocessors ? p.column_tiles : env->multiprocessors;
  return ASSAY_LAUNCH_WITH(error, (gemm_chain_flow<T, tile, Sums>), blocks, chain_threads, tile::bytes(p.K), in_turn(),
                           env->stream, map_x, map_w, p);
}

template <class T, int rows, class Sums = chain_stores>
assay_status chain_columns(const typename Sums::params &p, assay_env *env, assay_error *error) {
  const int64_t row_tiles = (p.M + rows - 1) / rows,
                columns = (p.N * row_tiles + env->multiprocessors - 1) / env->multiprocessors;
  using narrowest = chain_tile<rows, 16, rows == 64 ? 10 : rows == 32 ? 18 : 24>;
  if (columns <= 16) return chain_start<T, narrowest, Sums>(p, env, error);
  if (columns <= 32) return chain_start<T, chain_tile<rows, 32, 8>, Sums>(p, env, error);
  if constexpr (rows == 64)
    if (columns > 48) return chain_start<T, chain_tile<rows, 64, 6>, Sums>(p, env, error);
  return chain_start<T, chain_tile<rows, 48, 8>, Sums>(p, env, error);
}

/* Returns whether two tiles of 64 rows are faster than the tiles of gemm_wgmma.cuh. With 128 rows they gain 0.9 to 2.2
 * us. With 80 they lose: the copy engine is slow for rows beyond the tensor
 * (docs/log/2026-11-28-h200-invariant-look.md). */
inline bool chain_pairs(const wide_params &p, int64_t multiprocessors) {
  return p.M >= 120 && p.M <= 128 && 2 * ((p.N + 63) / 64) <= multiprocessors;
}

/* Returns whether all of x finds room beside a ring. */
template <class tile> bool chain_fits(const wide_params &p) {
  return tile::bytes(p.K) <= launch_max_shared;
}

/* Launches a chain for few rows, where a block has few columns or all of x finds room, and else tiles. The bits are the
 * same. */
template <int = 0>
assay_status chain_launch(const wide_params &p, assay_dtype type, assay_env *env, assay_error *error) {
  if (p.M > chain_max_rows && !chain_pairs(p, env->multiprocessors)) return wide_launch(p, type, env, error);
  const bool few = p.N <= 48 * static_cast<int64_t>(env->multiprocessors);
  return wide_with_type(type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (p.M > chain_max_rows) return chain_columns<T, 64>(p, env, error);
    if (p.M <= 8) {
      using flow = chain_flow<8, 64, 10>;
      if (few) return chain_columns<T, 8>(p, env, error);
      if (chain_fits<flow>(p)) return chain_start_flow<T, flow>(p, env, error);
    } else if (p.M <= 32) {
      using flow = chain_flow<32, 64, 8>;
      using shorter = chain_flow<32, 64, 4>;
      if (few) return chain_columns<T, 32>(p, env, error);
      if (chain_fits<flow>(p)) return chain_start_flow<T, flow>(p, env, error);
      if (chain_fits<shorter>(p)) return chain_start_flow<T, shorter>(p, env, error);
    } else {
      using flow = chain_flow<64, 64, 5>;
      if (few) return chain_columns<T, 64>(p, env, error);
      if (chain_fits<flow>(p)) return chain_start_flow<T, flow>(p, env, error);
    }
    return wide_launch(p, type, env, error);
  });
}

} // namespace ASSAY_NS
#endif
