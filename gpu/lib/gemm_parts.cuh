/* gemm_parts.cuh: products of at most 128 rows whose terms are shared by the blocks of a cluster.
 *
 * A block multiplies all rows with `columns` channels over one part of k. A tile of many rows and channels reads the
 * fewest bytes per product, and parts of k make enough blocks of it. The sums of a part are cut into units of eight
 * channels. Each unit has an owner among the blocks. The others send it their sums through the cluster's shared memory,
 * and the owner adds the parts in the order of k and stores.
 *
 * With gates, the first half of a tile's channels are gates and the other half their ups; a unit has eight of each. */
#ifndef ASSAY_GPU_LIB_GEMM_PARTS_CUH
#define ASSAY_GPU_LIB_GEMM_PARTS_CUH

#include "gpu/lib/gemm_chain.cuh"

namespace ASSAY_NS {

constexpr int64_t parts_max_rows = 128;

/* A tile of 64 or 128 rows, 64 for each warpgroup. Two more warps load. */
template <int rows_, int columns_, int parts_, int stages_, bool gated_ = false> struct parts_tile {
  static constexpr int rows = rows_, columns = columns_, parts = parts_, stages = stages_;
  static constexpr bool gated = gated_;
  static constexpr int multipliers = 2 * rows, threads = multipliers + 64; /* threads that multiply, and all */
  static constexpr int x_bytes = 128 * rows, w_bytes = 128 * columns, stage_bytes = x_bytes + w_bytes;
  static constexpr int stored = gated ? columns / 2 : columns; /* channels of the result */
  static constexpr int units = stored / 8, most = (units + parts - 1) / parts, quads = gated ? 2 : 1;
  static constexpr int sums_at = stages * stage_bytes, sent_bytes = most * quads * multipliers * 16;
  static constexpr int control_at = sums_at + (parts - 1) * sent_bytes, factors_at = control_at + 2 * stages * 8;
  static constexpr int bytes = factors_at; /* without factors of rows */
  static_assert(bytes <= launch_max_shared, "a block's shared memory");
  static_assert(!gated || columns % 16 == 0, "eight gates and eight ups");
};

/* The pieces of k that a block multiplies, from `first` to before `end`; none if they are equal. */
struct parts_range {
  int32_t first, end;
};

/* Loads the pieces of a warp: weights, or rows. */
template <class tile, bool weights>
__device__ __forceinline__ void parts_load(const wide_params &p, parts_range part, const tensor_map *map, int32_t row,
                                           unsigned char *shared, uint64_t *full, uint64_t *free) {
  constexpr int bytes = weights ? tile::w_bytes : tile::x_bytes;
  wide_ring<tile::stages> ring;
  for (int32_t piece = part.first; piece < part.end; ++piece, ring.next()) {
    unsigned char *const to = shared + ring.stage * tile::stage_bytes + (weights ? tile::x_bytes : 0);
    if (piece >= part.first + tile::stages) mbarrier_wait(&free[ring.stage], ring.parity ^ 1);
    mbarrier_expect(&full[ring.stage], bytes);
    tma_load(to, map, &full[ring.stage], piece * wide_piece, row);
    if (weights && tile::gated)
      tma_load(to + bytes / 2, map, &full[ring.stage], piece * wide_piece, row + static_cast<int32_t>(p.N / 2));
  }
}

/* The base of ends that do not multiply by factors of rows. */
struct parts_unscaled {
  using params = wide_params;
  static constexpr bool scaled = false;
};

/* Multiplies the sums of each row by the factor of its norm, before `epilogue` has them. */
template <class epilogue> struct parts_scaled : epilogue {
  using params = wide_scaled_params;
  static constexpr bool scaled = true;
};

/* The end of a product without gates. store() takes the sums of two neighbouring channels n and n + 1. */
struct parts_plain : parts_unscaled {
  template <class T, int quads>
  static __device__ __forceinline__ void store(const wide_params &p, int64_t m, int64_t n, const float (&sum)[quads][4],
                                               int at) {
    if (p.wide)
      chain_store<T, float>(p, m, n, sum[0][at], sum[0][at + 1]);
    else
      chain_store<T, T>(p, m, n, sum[0][at], sum[0][at + 1]);
  }
};

/* Multiplies the activation of gates with their ups. `activation::of` computes one element. */
template <class activation> struct parts_gated : parts_unscaled {
  template <class T, int quads>
  static __device__ __forceinline__ void store(const wide_params &p, int64_t m, int64_t n, const float (&sum)[quads][4],
                                               int at) {
    T *const to = static_cast<T *>(p.c) + m * p.c_row + n;
    const int64_t I = p.N / 2;
    if (n >= I) return;
    const float first = activation::of(p.rectified, sum[0][at], sum[1][at]);
    const float second = activation::of(p.rectified, sum[0][at + 1], sum[1][at + 1]);
    if (p.quads && n + 1 < I) {
#ifdef ASSAY_SIMT
      if (reinterpret_cast<uintptr_t>(to) % 4 != 0)
        assay_simt->fault("the address of two neighbours is not a multiple of their size", __FILE__, __LINE__);
#endif
      *reinterpret_cast<uint32_t *>(to) = pack_pair<T>(first, second);
      return;
    }
    to[0] = from_float<T>(first);
    if (n + 1 < I) to[1] = from_float<T>(second);
  }
};

/* Multiplies a part, by the warpgroups. */
template <class T, class tile>
__device__ __forceinline__ void parts_multiply(parts_range part, const unsigned char *shared, uint64_t *full,
                                               uint64_t *free, float (&sum)[tile::columns / 2]) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x), lane = thread % 32;
  wide_ring<tile::stages> ring;
  if (part.first == part.end) {
    ASSAY_UNROLL
    for (int i = 0; i < tile::columns / 2; ++i)
      sum[i] = 0.0f;
    return;
  }
  wgmma_order(sum);
  int32_t before = 0; /* the stage whose products may still run */
  for (int32_t piece = part.first; piece < part.end; ++piece, ring.next()) {
    const unsigned char *const stage = shared + ring.stage * tile::stage_bytes;
    mbarrier_wait(&full[ring.stage], ring.parity);
    wgmma_fence();
    const uint64_t a = wgmma_descriptor(stage + thread / 128 * 64 * 128, 1024, 0, swizzle_128);
    const uint64_t b = wgmma_descriptor(stage + tile::x_bytes, 1024, 0, swizzle_128);
    ASSAY_UNROLL
    for (uint32_t k = 0; k < wide_piece / 16; ++k)
      wgmma_m64k16<T, tile::columns>(sum, a + 2 * k, b + 2 * k, piece > part.first || k > 0);
    wgmma_commit();
    if (piece > part.first) {
      wgmma_wait<1>();
      if (lane == 0) mbarrier_arrive(&free[before]);
    }
    before = ring.stage;
  }
  wgmma_wait<0>();
  wgmma_order(sum);
}

/* Four sums of a thread, as they are sent. */
struct alignas(16) parts_quad {
  float sum[4];
};

/* gemm_parts: computes `columns` channels of all rows, with k shared by the blocks of a cluster.
 * Grid:   column tiles times parts. Cluster: parts. Block: two warpgroups that multiply, a warp that loads weights, a
 *         warp that loads rows.
 * Shared: up to 227 KB: the ring of pieces of x and w, swizzled by 128 bytes, and two barriers per stage. The sums
 *         from other blocks have room after the ring.
 * Align:  x and w at multiples of 16 bytes, rows and bases; c by two neighbours if it allows, else by element.
 * Arch:   sm_90a.
 * Limit:  bytes: N K sizeof(T). */
template <class T, class tile, class epilogue>
static __global__ void __launch_bounds__(tile::threads + (epilogue::scaled ? chain_measurers : 0), 1)
    gemm_parts(const __grid_constant__ tensor_map map_x, const __grid_constant__ tensor_map map_w,
               typename epilogue::params p) {
  ASSAY_DYNAMIC_SHARED_1024(unsigned char, shared);
  uint64_t *const full = reinterpret_cast<uint64_t *>(shared + tile::control_at), *const free = full + tile::stages;
  const int32_t thread = static_cast<int32_t>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int32_t rank = static_cast<int32_t>(blockIdx.x) % tile::parts;
  const int32_t each = (p.pieces + tile::parts - 1) / tile::parts;
  const int64_t channel = static_cast<int64_t>(blockIdx.x) / tile::parts * tile::stored;
  const parts_range part = {min(p.pieces, rank * each), min(p.pieces, (rank + 1) * each)};
  if constexpr (tile::parts > 1) cluster_arrive();
  dependents_launch();
  if (thread == 0) {
    for (int i = 0; i < tile::stages; ++i) {
      mbarrier_init(&full[i], 2);                      /* both threads that load */
      mbarrier_init(&free[i], tile::multipliers / 32); /* the warps that multiply */
    }
    mbarrier_fence_init();
    tensor_map_prefetch(&map_x);
    tensor_map_prefetch(&map_w);
  }
  __syncthreads();                                    /* the barriers are made */
  constexpr int32_t loads_w = tile::multipliers / 32; /* the warp that loads weights; the next one loads rows */
  if (warp != loads_w || !p.early) dependency_wait();
  if (warp >= loads_w) {
    if constexpr (epilogue::scaled)
      if (warp > loads_w + 1)
        chain_measure<tile::rows, tile::multipliers>(p, 0, thread - tile::threads,
                                                     reinterpret_cast<float *>(shared + tile::factors_at));
    if (warp == loads_w && lane == 0)
      parts_load<tile, true>(p, part, &map_w, static_cast<int32_t>(channel), shared, full, free);
    if (warp == loads_w + 1 && lane == 0) parts_load<tile, false>(p, part, &map_x, 0, shared, full, free);
    __syncwarp();
    if constexpr (tile::parts > 1) {
      cluster_wait();
      cluster_arrive();
    }
    return;
  }
  float sum[tile::columns / 2], factor[2];
  const int64_t m = thread / 32 * 16 + lane / 4;
  parts_multiply<T, tile>(part, shared, full, free, sum);
  if constexpr (epilogue::scaled) {
    named_barrier_sync(1, tile::multipliers + chain_measurers); /* all factors are stored */
    factor[0] = reinterpret_cast<const float *>(shared + tile::factors_at)[m];
    factor[1] = reinterpret_cast<const float *>(shared + tile::factors_at)[m + 8];
  }
  parts_quad *const sums = reinterpret_cast<parts_quad *>(shared + tile::sums_at) + thread;
  constexpr int sent = tile::most * tile::quads * tile::multipliers; /* quads that a block sends another */
  if constexpr (tile::parts > 1) {
    cluster_wait(); /* all blocks have started */
    ASSAY_UNROLL
    for (int unit = 0; unit < tile::units; ++unit) {
      const int owner = unit % tile::parts, at = unit / tile::parts * tile::quads;
      if (owner == rank) continue;
      parts_quad *const to = cluster_shared(sums, owner) + (rank - (rank > owner)) * sent + at * tile::multipliers;
      ASSAY_UNROLL
      for (int quad = 0; quad < tile::quads; ++quad) {
        const float *const four = sum + 4 * (unit + quad * tile::units);
        to[quad * tile::multipliers] = parts_quad{{four[0], four[1], four[2], four[3]}};
      }
    }
    cluster_arrive();
    cluster_wait(); /* the others' sums have arrived */
  }
  ASSAY_UNROLL
  for (int at = 0; at < tile::most; ++at) {
    const int unit = at * tile::parts + rank;
    if (unit >= tile::units) break;
    float whole[tile::quads][4];
    ASSAY_UNROLL
    for (int quad = 0; quad < tile::quads; ++quad) {
      parts_quad own = {};
      ASSAY_UNROLL
      for (int r = 0; r < tile::parts && at * tile::parts + r < tile::units; ++r) {
        const float *const four = sum + 4 * (at * tile::parts + r + quad * tile::units);
        ASSAY_UNROLL
        for (int i = 0; i < 4; ++i)
          own.sum[i] = r == rank ? four[i] : own.sum[i];
      }
      ASSAY_UNROLL
      for (int from = 0; from < tile::parts; ++from) {
        parts_quad other = own;
        if (from != rank) other = sums[(from - (from > rank)) * sent + (at * tile::quads + quad) * tile::multipliers];
        ASSAY_UNROLL
        for (int i = 0; i < 4; ++i)
          whole[quad][i] = from == 0 ? other.sum[i] : __fadd_rn(whole[quad][i], other.sum[i]);
      }
      if constexpr (epilogue::scaled)
        for (int i = 0; i < 4; ++i)
          whole[quad][i] = __fmul_rn(factor[i / 2], whole[quad][i]);
    }
    const int64_t n = channel + 8 * unit + 2 * (lane % 4);
    ASSAY_UNROLL
    for (int half = 0; half < 2; ++half)
      if (m + 8 * half < p.M) epilogue::template store<T>(p, m + 8 * half, n, whole, 2 * half);
  }
}

template <class T, class tile, class epilogue>
assay_status parts_start(typename epilogue::params p, assay_env *env, assay_error *error) {
  p.row_tiles = 1;
  p.column_tiles = static_cast<int32_t>(((tile::gated ? p.N / 2 : p.N) + tile::stored - 1) / tile::stored);
  p.pieces = static_cast<int32_t>((p.K + wide_piece - 1) / wide_piece);
  tensor_map map_x, map_w;
  ASSAY_TRY(wide_map(&map_x, p.x, p.M, p.K, p.x_row, tile::rows, error));
  ASSAY_TRY(wide_map(&map_w, p.w, p.N, p.K, p.K, tile::gated ? tile::columns / 2 : tile::columns, error));
  launch_options options = in_turn();
  options.cluster = tile::parts;
  (void)snprintf(env->path, sizeof env->path, "parts rows=%d channels=%d parts=%d%s", tile::rows, tile::stored,
                 tile::parts, p.early ? " early" : "");
  constexpr int threads = tile::threads + (epilogue::scaled ? chain_measurers : 0);
  constexpr int bytes = tile::bytes + (epilogue::scaled ? tile::rows * 4 : 0);
  return ASSAY_LAUNCH_WITH(error, (gemm_parts<T, tile, epilogue>), p.column_tiles * tile::parts, threads, bytes,
                           options, env->stream, map_x, map_w, p);
}

/* Refuses what the kernels cannot have, beyond what gemm_wgmma.cuh refuses. */
inline assay_status parts_expect(const wide_params &p, assay_dtype type, assay_error *error) {
  ASSAY_TRY(wide_expect(p, type, error));
  if (p.M <= parts_max_rows) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "M: found %" PRId64 ", allowed at most %" PRId64, p.M,
                    parts_max_rows);
}

/* Declares the sums: a chain of steps of 16 for each part of whole pieces, joined in the order of k. */
inline void parts_sums(int32_t parts, assay_sums *sums) {
  sums->unit = ASSAY_SUM_WGMMA_16;
  sums->pad = wide_piece;
  sums->parts = parts;
  sums->tile = wide_piece;
}

/* Returns the contract: one running sum of sixteens at least. */
constexpr assay_contract parts_contract_of(assay_contract c) {
  c.alone = false; /* other variants take calls of more rows */
  c.cut = tensor_core_terms;
  return c;
}
constexpr assay_contract parts_contract = parts_contract_of(rowwise_contract(0.0, 1));

} // namespace ASSAY_NS
#endif
