/* block_wgmma.cuh: products of e4m3 matrices with scales on Hopper's tensor cores, for fp8_block_gemm and
 * fp8_grouped_gemm.
 *
 *   c_mn = sum_κ sfa_mκ · sfb_{n/128, κ} · (sum_{i in κ} a_mi · b_ni) + bias_n        κ: pieces of 128 of K
 *
 * One warpgroup loads pieces by the copy engine, two multiply. A sum over a piece leaves the tensor cores by one FMA.
 * `work` says which rows and columns a tile has. docs/kernels/fp8_block_gemm.md has the schedule. */
#ifndef ASSAY_GPU_LIB_BLOCK_WGMMA_CUH
#define ASSAY_GPU_LIB_BLOCK_WGMMA_CUH

#include "gpu/lib/block_gemm.cuh"
#include "gpu/lib/ptx_async.cuh"
#include "gpu/lib/ptx_mma.cuh"
#include "gpu/lib/ptx_wgmma.cuh"
#include "gpu/lib/warp.cuh"

namespace ASSAY_NS {

constexpr int32_t block_threads = 384, block_loaders = 128;

/* A tile of `rows` x `columns` of c. Two warpgroups share it: 64 rows each, or with 64 rows half of the columns each.
 * Rows of a come in boxes, so that a tile of few rows loads few. */
template <int rows_, int columns_, int box_, int stages_> struct block_tile {
  static constexpr int rows = rows_, columns = columns_, box = box_, stages = stages_;
  static constexpr int own = rows == 128 ? columns : columns / 2;      /* columns of a warpgroup */
  static constexpr int step = own == 192 ? 96 : own < 128 ? own : 128; /* columns of a product */
  static constexpr int part = own == 192 ? 64 : step;                  /* neighbours that surely share a scale */
  static constexpr int scales = own == 192 ? 2 : own / part;           /* b's, for a warpgroup's columns of a piece */
  static constexpr int apart = own == 192 ? block_piece : part;        /* columns from one to the next of these */
  static constexpr bool mixed = own == 192;           /* tiles of 128 columns may be among the others */
  static constexpr int b_box = mixed ? 64 : columns;  /* rows of b that one copy moves */
  static constexpr int together = own <= 64 ? 4 : 1;  /* pieces whose products are under way at once */
  static constexpr int loading = own > 128 ? 24 : 40; /* registers of threads that load; 384 begin with 168 */
  static constexpr int box_bytes = box * block_piece, a_bytes = rows * block_piece, b_bytes = columns * block_piece;
  static constexpr int stage_bytes = a_bytes + b_bytes;
  /* For each warp that multiplies: patches of 16 rows of up to 64 columns of the result. The copy engine stores those
   * of a tile while the next one is multiplied; they are swizzled as it reads them. The widest tile has memory for two.
   * Narrow ones have little to store, and their rows lie 16 bytes apart. Both forms are against bank conflicts. */
  static constexpr bool engine = own >= 64;
  static constexpr int patch_columns = own < 64 ? own : 64, patches = own < 64 ? 1 : own == 256 ? 2 : own / 64;
  static constexpr int patch_pitch = engine ? 128 : 2 * patch_columns + 16, patch_bytes = 16 * patch_pitch;
  static constexpr int patch_at = stages * stage_bytes;
  static constexpr int control_at = patch_at + 8 * patches * patch_bytes;
  static constexpr int bytes = control_at + 2 * stages * 8;
  static_assert(bytes <= 232448, "shared memory of a block");
};

/* The place of a tile: rows row .. row + rows - 1 of a slab, and `columns` columns of a group from `column` on. */
struct block_place {
  int32_t row, rows, slab, column, columns, group;
};

/* A stage of the ring, and the parity of the phase that fills it. */
template <int stages> struct block_ring {
  int32_t stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
};

/* Loads all pieces of this block's tiles, by one thread. */
template <class tile, class Work>
__device__ __forceinline__ void block_load(const Work &work, const tensor_map *map_a, const tensor_map *map_b,
                                           unsigned char *shared, uint64_t *full, uint64_t *free) {
  block_ring<tile::stages> ring;
  const int64_t items = work.items();
  for (int64_t at = blockIdx.x; at < items; at += gridDim.x) {
    block_place place;
    if (!work.template find<tile>(at, &place)) continue;
    const int32_t boxes = tile::box == tile::rows ? 1 : (place.rows + tile::box - 1) / tile::box;
    for (int32_t piece = 0; piece < work.pieces; ++piece, ring.next()) {
      mbarrier_wait(&free[ring.stage], ring.parity ^ 1);
      const int32_t columns = tile::mixed ? place.columns : tile::columns;
      mbarrier_expect(&full[ring.stage], static_cast<uint32_t>(columns * block_piece + boxes * tile::box_bytes));
      unsigned char *const to = shared + ring.stage * tile::stage_bytes;
      for (int32_t in = 0; in < columns; in += tile::b_box)
        tma_load(to + tile::a_bytes + in * block_piece, map_b, &full[ring.stage], piece * block_piece,
                 place.column + in, place.group);
      for (int32_t box = 0; box < boxes; ++box)
        tma_load(to + box * tile::box_bytes, map_a, &full[ring.stage], piece * block_piece, place.row + box * tile::box,
                 place.slab);
    }
  }
}

/* A warp's part of a tile: 16 rows of c, of which `rows` exist, and `left` columns from its first on. */
template <class Out> struct block_target {
  const tensor_map *map; /* that of c */
  int32_t at[3];         /* its first column, row and slab there */
  Out *to;
  const Out *bias; /* that of its first column; NULL: none */
  int64_t row;     /* elements between rows of c */
  int64_t left;
  int32_t rows;
  bool vectors; /* 16 bytes of c may be stored at once */
};

/* Adds the bias, which there is, to two neighbours of a row. */
template <class Out>
__device__ __forceinline__ void block_bias(const block_target<Out> &out, int32_t column, float &low, float &high) {
  if (column < out.left) low = __fadd_rn(low, to_float(out.bias[column]));
  if (column + 1 < out.left) high = __fadd_rn(high, to_float(out.bias[column + 1]));
}

/* Returns where eight neighbours of a row are in a patch. */
template <class tile> __device__ __forceinline__ int32_t block_in_patch(int32_t row, int32_t eight) {
  if constexpr (tile::engine)
    return row * tile::patch_pitch + (eight ^ row % 8) * 16;
  else
    return row * tile::patch_pitch + eight * 16;
}

/* Brings the lanes of a warp together before stmatrix, which all of them must execute at once. It orders no memory that
 * stmatrix does not order: stmatrix waits for every lane. No race shows without it. */
__device__ __forceinline__ void block_converge() {
  __syncwarp(0xffffffffu);
}

/* Stores a warp's sums. Results of 16 bits become whole rows in a patch first. The copy engine stores a patch of 16
 * rows while the next tile is multiplied. It stores 16 bytes at a time, also where a row of c ends within them. Where
 * rows end so, where fewer rows exist, or where c lies at odd bytes, lanes store 16 bytes or elements. Results of 32
 * bits are stored in pairs: four lanes have 32 bytes. */
template <class tile, class Out>
__device__ __forceinline__ void block_store_warp(const block_target<Out> &out, float (&total)[tile::own / 2],
                                                 unsigned char *patches) {
  uint32_t thread[1] = {threadIdx.x};
  wgmma_order(thread); /* no address is computed before the loop of pieces: its registers are few */
  const int32_t lane = static_cast<int32_t>(thread[0] % 32);
  if (out.bias != nullptr) { /* one branch, not one for each pair */
    ASSAY_UNROLL
    for (int i = 0; i < tile::own / 2; i += 2)
      block_bias(out, i / 4 * 8 + lane % 4 * 2, total[i], total[i + 1]);
  }
  if constexpr (sizeof(Out) == 4) {
    struct alignas(8) pair_of {
      Out element[2];
    };
    ASSAY_UNROLL
    for (int i = 0; i < tile::own / 2; i += 2) {
      const int32_t row = lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2;
      if (row >= out.rows || column >= out.left) continue;
      Out *const to = out.to + row * out.row + column;
      if (out.vectors && column + 2 <= out.left) {
        *reinterpret_cast<pair_of *>(to) = pair_of{{total[i], total[i + 1]}};
      } else {
        to[0] = total[i];
        if (column + 1 < out.left) to[1] = total[i + 1];
      }
    }
  } else {
    constexpr int lanes = tile::patch_columns / 8; /* lanes that store a row of the patch */
    const bool whole = tile::engine && out.vectors && out.rows >= 16 && out.left % 8 == 0;
    ASSAY_UNROLL
    for (int first = 0; first < tile::own; first += tile::patch_columns) {
      unsigned char *const patch = patches + first / tile::patch_columns % tile::patches * tile::patch_bytes;
      if constexpr (tile::engine) {
        if (lane == 0) bulk_wait_read<tile::patches - 1>(); /* the engine has read what was in this patch */
        block_converge();
      }
      ASSAY_UNROLL
      for (int column = 0; column < tile::patch_columns; column += 16) {
        uint32_t pair[4];
        ASSAY_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int at = (first + column) / 2 + 2 * i;
          pair[i] = pack_pair<Out>(total[at], total[at + 1]);
        }
        stmatrix_x4(patch + block_in_patch<tile>(lane % 16, column / 8 + lane / 16), pair);
      }
      if constexpr (tile::engine) fence_proxy_async();
      __syncwarp(); /* the patch is complete */
      if constexpr (tile::engine) {
        if (lane == 0 && whole && first < out.left) tma_store(out.map, patch, out.at[0] + first, out.at[1], out.at[2]);
        if (lane == 0) bulk_commit(); /* a group for each patch, if only an empty one: patches are counted by groups */
      }
      if (whole) continue;
      ASSAY_UNROLL
      for (int rows = 0; rows < 16; rows += 32 / lanes) {
        const int32_t row = rows + lane / lanes, column = first + lane % lanes * 8;
        if (row >= out.rows || column >= out.left) continue;
        const unsigned char *const from = patch + block_in_patch<tile>(row, lane % lanes);
        Out *const to = out.to + row * out.row + column;
        if (out.vectors && column + 8 <= out.left) {
          *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(from);
        } else {
          for (int i = 0; i < 8 && column + i < out.left; ++i)
            to[i] = reinterpret_cast<const Out *>(from)[i];
        }
      }
      __syncwarp(); /* the patch has been read */
    }
  }
}

/* The scales of two rows and of the columns. The four lanes that share these rows read four pieces at once,
 * one piece each. A value is asked for four pieces before it is used. */
template <int count> struct block_scales {
  const float *sfa[2], *sfb[count]; /* at piece 0 */
  float a[2], b[count], of_piece[count][2];

  /* Reads those of pieces `first` to first + 3; past the end, those of the last piece. */
  __device__ __forceinline__ void read(const block_gemm_params &g, int32_t first, int32_t pieces) {
    const int64_t piece = min(first + static_cast<int32_t>(threadIdx.x) % 4, pieces - 1);
    ASSAY_UNROLL
    for (int i = 0; i < 2; ++i)
      a[i] = block_scale(sfa[i], g.packed_a, piece, g.sfa_piece);
    ASSAY_UNROLL
    for (int i = 0; i < count; ++i)
      b[i] = block_scale(sfb[i], g.packed_b, piece, g.sfb_piece);
  }
  /* Multiplies what has been read. */
  __device__ __forceinline__ void multiply() {
    ASSAY_UNROLL
    for (int i = 0; i < count; ++i)
      ASSAY_UNROLL
    for (int half = 0; half < 2; ++half)
      of_piece[i][half] = __fmul_rn(a[half], b[i]);
  }
  /* Returns the product for a piece, which one of the four lanes has. */
  __device__ __forceinline__ float get(int i, int half, int32_t piece) const {
    return __shfl_sync(0xffffffffu, of_piece[i][half], piece % 4, 4);
  }
};

/* Waits for the products of piece i of four. */
__device__ __forceinline__ void block_wait(int i) {
  if (i == 0)
    wgmma_wait<3>();
  else if (i == 1)
    wgmma_wait<2>();
  else if (i == 2)
    wgmma_wait<1>();
  else
    wgmma_wait<0>();
}

/* Multiplies all pieces of one tile: one of two warpgroups, which has `own` columns of it, in products of `step`. `a`
 * and `b` are where its operands begin in a stage.
 * Narrow tiles have few products per piece, and their latency would bind. There the products of four pieces are issued
 * before the first sums are awaited. The scales of the first pieces have been read. middle: in a mixed tile the second
 * 64 columns are in the second block of b. */
template <class tile, int own, int step>
__device__ __forceinline__ void
block_multiply(const block_gemm_params &g, int32_t pieces, block_ring<tile::stages> &ring, const unsigned char *a,
               const unsigned char *b, uint64_t *full, uint64_t *free, block_scales<tile::scales> &scales, bool middle,
               float (&total)[tile::own / 2]) {
  constexpr int steps = own / step, parts = own / tile::part, sums = step / 2;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  const auto issue = [&](float(&sum)[sums], int32_t stage, int i) {
    const uint64_t from_a = wgmma_descriptor(a + stage * tile::stage_bytes, 1024, 0, swizzle_128);
    const uint64_t from_b =
        wgmma_descriptor(b + stage * tile::stage_bytes + i * step * block_piece, 1024, 0, swizzle_128);
    wgmma_order(sum);
    wgmma_fence();
    ASSAY_UNROLL
    for (uint32_t k = 0; k < block_piece / 32; ++k)
      wgmma_m64k32<e4m3, e4m3, step>(sum, from_a + 2 * k, from_b + 2 * k, k > 0);
    wgmma_commit();
  };
  const auto read_scales = [&](int32_t piece, float(&scale)[parts][2]) {
    if (piece % 4 == 0) {
      scales.multiply();
      scales.read(g, piece + 4, pieces);
    }
    float of[tile::scales][2]; /* in mixed tiles two or three parts are in two blocks of b */
    ASSAY_UNROLL
    for (int j = 0; j < tile::scales; ++j)
      ASSAY_UNROLL
    for (int half = 0; half < 2; ++half)
      of[j][half] = scales.get(j, half, piece);
    ASSAY_UNROLL
    for (int j = 0; j < parts; ++j)
      ASSAY_UNROLL
    for (int half = 0; half < 2; ++half)
      scale[j][half] = !tile::mixed ? of[j][half] : j == 2 || (j == 1 && middle) ? of[1][half] : of[0][half];
  };
  const auto add = [&](const float(&sum)[sums], int i, const float(&scale)[parts][2]) {
    ASSAY_UNROLL
    for (int j = 0; j < sums; ++j) {
      const int at = i * sums + j; /* four neighbours are sums of two rows, in the same 8 columns */
      total[at] = fmaf(sum[j], scale[at * 2 / tile::part][j / 2 % 2], total[at]);
    }
  };
  ASSAY_UNROLL
  for (int i = 0; i < tile::own / 2; ++i)
    total[i] = 0.0f;
  if constexpr (tile::together > 1) {
    for (int32_t piece = 0; piece < pieces; piece += tile::together) {
      float sum[tile::together][sums];
      int32_t at[tile::together];
      ASSAY_UNROLL
      for (int i = 0; i < tile::together; ++i) {
        at[i] = i > 0 ? at[i - 1] : ring.stage; /* past the end: the last piece again, without use */
        if (piece + i < pieces) {
          mbarrier_wait(&full[ring.stage], ring.parity);
          at[i] = ring.stage;
          ring.next();
        }
        issue(sum[i], at[i], 0);
      }
      ASSAY_UNROLL
      for (int i = 0; i < tile::together; ++i) {
        float scale[parts][2];
        read_scales(piece + i, scale); /* scales come while products are made */
        block_wait(i);
        wgmma_order(sum[i]);
        if (piece + i < pieces) add(sum[i], 0, scale);
      }
      ASSAY_UNROLL
      for (int i = 0; i < tile::together; ++i)
        if (piece + i < pieces && lane == 0) mbarrier_arrive(&free[at[i]]);
    }
  } else if constexpr (tile::mixed) { /* the second product waits while the first sums are added */
    for (int32_t piece = 0; piece < pieces; ++piece, ring.next()) {
      float scale[parts][2], first[sums], second[sums];
      mbarrier_wait(&full[ring.stage], ring.parity);
      issue(first, ring.stage, 0);
      issue(second, ring.stage, 1);
      read_scales(piece, scale); /* scales come while products are made */
      wgmma_wait<1>();
      wgmma_order(first);
      add(first, 0, scale);
      wgmma_wait<0>();
      wgmma_order(second);
      if (lane == 0) mbarrier_arrive(&free[ring.stage]);
      add(second, 1, scale);
    }
  } else {
    for (int32_t piece = 0; piece < pieces; ++piece, ring.next()) {
      float scale[parts][2];
      mbarrier_wait(&full[ring.stage], ring.parity);
      ASSAY_UNROLL
      for (int i = 0; i < steps; ++i) {
        float sum[sums];
        issue(sum, ring.stage, i);
        if (i == 0) read_scales(piece, scale); /* scales come while products are made */
        wgmma_wait<0>();
        wgmma_order(sum);
        if (i == steps - 1 && lane == 0) mbarrier_arrive(&free[ring.stage]);
        add(sum, i, scale);
      }
    }
  }
}

/* Lets all pieces of one tile pass: a warpgroup whose rows or columns all lie past the end. */
template <class tile>
__device__ __forceinline__ void block_let_pass(int32_t pieces, block_ring<tile::stages> &ring, uint64_t *full,
                                               uint64_t *free) {
  for (int32_t piece = 0; piece < pieces; ++piece, ring.next()) {
    mbarrier_wait(&full[ring.stage], ring.parity);
    __syncwarp(); /* all lanes have seen the phase, before the loader may begin the next one */
    if (threadIdx.x % 32 == 0) mbarrier_arrive(&free[ring.stage]);
  }
}

/* Multiplies and stores this block's tiles: one of two warpgroups. */
template <class tile, class Out, class Work>
__device__ __forceinline__ void block_walk(const Work &work, const tensor_map *map_c, unsigned char *shared,
                                           uint64_t *full, uint64_t *free) {
  const block_gemm_params &g = work.g;
  const int32_t warp = of_warp(static_cast<int32_t>(threadIdx.x) / 32 - block_loaders / 32), group = warp / 4;
  const int32_t row_in = (tile::rows == 128 ? group * 64 : 0) + warp % 4 * 16;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int32_t column_in = tile::rows == 128 ? 0 : group * tile::own;
  const unsigned char *const a = shared + (tile::rows == 128 ? group * 64 * block_piece : 0);
  const unsigned char *const b = shared + tile::a_bytes + column_in * block_piece;
  unsigned char *const patches = shared + tile::patch_at + warp * (tile::patches * tile::patch_bytes);
  block_ring<tile::stages> ring;
  block_scales<tile::scales> scales;
  block_place next;
  /* Finds tile `at`, and asks for the scales of its first pieces. Rows and columns past the end have the scales of the
   * last ones, and are not stored. */
  const auto find = [&](int64_t at) {
    if (!work.template find<tile>(at, &next)) return false;
    const float *const sfa = g.sfa + work.sfa_at(next.slab), *const sfb = g.sfb + work.sfb_at(next.group);
    ASSAY_UNROLL
    for (int half = 0; half < 2; ++half)
      scales.sfa[half] = sfa + (next.row + min(row_in + lane / 4 + 8 * half, next.rows - 1)) * g.sfa_row;
    ASSAY_UNROLL
    for (int i = 0; i < tile::scales; ++i) {
      const int64_t column = static_cast<int64_t>(next.column) + column_in + i * tile::apart;
      scales.sfb[i] = sfb + min(column, g.N - 1) / block_piece * g.sfb_row;
    }
    scales.read(g, 0, work.pieces);
    return true;
  };
  const auto find_next = [&](int32_t turn) {
    const int64_t then = blockIdx.x + (int64_t{turn} + 1) * gridDim.x;
    return then < work.items() && find(then);
  };
  bool live = find_next(-1);
  for (int32_t turn = 0; blockIdx.x + int64_t{turn} * gridDim.x < work.items(); ++turn) {
    const block_place place = next;
    const bool found = live;
    if (!found) {
      work.template clear<tile, Out>(place);
      live = find_next(turn);
      continue;
    }
    /* The widest tile has no registers for this. */
    if (tile::own <= 128 && ((tile::rows == 128 && place.rows <= group * 64) || place.column + column_in >= g.N)) {
      block_let_pass<tile>(work.pieces, ring, full, free);
      live = find_next(turn);
      continue;
    }
    float total[tile::own / 2];
    const bool middle = place.column % block_piece != 0;
    if constexpr (tile::mixed) {
      if (place.columns == tile::columns)
        block_multiply<tile, tile::own, tile::step>(g, work.pieces, ring, a, b, full, free, scales, middle, total);
      else
        block_multiply<tile, 128, 64>(g, work.pieces, ring, a, b, full, free, scales, middle, total);
    } else {
      block_multiply<tile, tile::own, tile::step>(g, work.pieces, ring, a, b, full, free, scales, middle, total);
    }
    live = find_next(turn); /* its scales come while this tile is stored */
    const int64_t n0 = static_cast<int64_t>(place.column) + column_in;
    block_target<Out> out;
    out.map = map_c;
    out.at[0] = place.column + column_in;
    out.at[1] = place.row + row_in;
    out.at[2] = place.slab;
    out.to = static_cast<Out *>(g.c) + work.c_at(place.slab) + (place.row + row_in) * g.c_row + n0;
    out.bias = g.bias != nullptr ? static_cast<const Out *>(g.bias) + place.group * g.N + n0 : nullptr;
    out.row = g.c_row;
    out.left = tile::mixed ? min(g.N - n0, static_cast<int64_t>(place.columns)) : g.N - n0;
    out.rows = place.rows - row_in;
    out.vectors = work.vectors;
    block_store_warp<tile, Out>(out, total, patches);
  }
  if (tile::engine && lane == 0) bulk_wait<0>(); /* the last patches are stored */
}

/* block_gemm_wgmma: computes tiles of c, one after the other.
 * Grid:   one block per multiprocessor. Block: 384 threads: a warpgroup that loads, two that multiply.
 * Shared: up to 227 KB: the ring of pieces of a and b, swizzled by 128 bytes; a patch for each warp; two barriers a
 *         stage.
 * Align:  a and b at multiples of 16 bytes, rows and bases; c by 16 bytes (f32: by 8) if it allows, else by element.
 * Arch:   sm_90a.
 * Limit:  flops: 2 N K of each row on the tensor cores of 8 bits; below some hundred rows, bytes: N K. */
template <class tile, class Out, class Work>
static __global__ void __launch_bounds__(block_threads, 1)
    block_gemm_wgmma(const __grid_constant__ tensor_map map_a, const __grid_constant__ tensor_map map_b,
                     const __grid_constant__ tensor_map map_c, Work work) {
  ASSAY_DYNAMIC_SHARED_1024(unsigned char, shared);
  uint64_t *const full = reinterpret_cast<uint64_t *>(shared + tile::control_at), *const free = full + tile::stages;
  if (threadIdx.x == 0) {
    for (int i = 0; i < tile::stages; ++i) {
      mbarrier_init(&full[i], 1);
      mbarrier_init(&free[i], 8); /* the warps that multiply */
    }
    mbarrier_fence_init();
    tensor_map_prefetch(&map_a);
    tensor_map_prefetch(&map_b);
  }
  __syncthreads(); /* the barriers are made */
  take_turn();
  if (threadIdx.x < block_loaders) {
    registers_fewer<tile::loading>();
    if (threadIdx.x == 0) block_load<tile>(work, &map_a, &map_b, shared, full, free);
  } else {
    registers_more<(504 - tile::loading) / 2>();
    block_walk<tile, Out>(work, &map_c, shared, full, free);
  }
}

/* ---- launch ------------------------------------------------------------------------------------------ */

inline assay_status block_expect_rows(const char *name, const void *base, int64_t row, assay_error *error) {
  if (reinterpret_cast<uintptr_t>(base) % 16 == 0 && row % 16 == 0) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                    "%s: found a base or a distance of rows that is no multiple of 16 bytes, taken here: multiples",
                    name);
}

/* Makes the map of [slabs, rows, K], of which one copy moves `box` rows. */
inline assay_status block_map(tensor_map *map, const e4m3 *base, int64_t slabs, int64_t rows, int64_t K, int64_t slab,
                              int64_t row, int32_t box, assay_error *error) {
  tensor_shape shape = {};
  shape.rank = 3;
  shape.element_bytes = 1;
  shape.extent[0] = K;
  shape.extent[1] = rows;
  shape.extent[2] = slabs;
  shape.stride[1] = rows > 1 ? row : (K + 15) / 16 * 16;
  shape.stride[2] = slabs > 1 ? slab : shape.stride[1];
  shape.box[0] = block_piece;
  shape.box[1] = box;
  shape.box[2] = 1;
  shape.swizzle = swizzle_128;
  return tensor_map_make(map, const_cast<e4m3 *>(base), shape, error);
}

/* Makes the map of c, of which one copy stores a patch. Without `vectors`, or with f32, the engine stores nothing. */
inline assay_status block_map_c(tensor_map *map, const block_gemm_params &g, int64_t slabs, int64_t rows, int64_t slab,
                                bool vectors, assay_error *error) {
  *map = tensor_map();
  if (!vectors || assay_dtype_size(g.out) != 2) return ASSAY_OK;
  tensor_shape shape = {};
  shape.rank = 3;
  shape.element_bytes = 2;
  shape.extent[0] = g.N;
  shape.extent[1] = rows;
  shape.extent[2] = slabs;
  shape.stride[1] = 2 * g.c_row;
  shape.stride[2] = slabs > 1 ? 2 * slab : shape.stride[1];
  shape.box[0] = 64;
  shape.box[1] = 16;
  shape.box[2] = 1;
  shape.swizzle = swizzle_128;
  return tensor_map_make(map, g.c, shape, error);
}

/* Tells whether lanes may store 16 bytes of c at once, or 8 of f32. */
inline bool block_vectors(const block_gemm_params &g, int64_t c_slab) {
  const int64_t size = assay_dtype_size(g.out), bytes = size == 4 ? 8 : 16, each = bytes / size;
  return reinterpret_cast<uintptr_t>(g.c) % static_cast<uintptr_t>(bytes) == 0 && g.c_row % each == 0 &&
         c_slab % each == 0;
}

inline assay_status block_wgmma_sums(const assay_call *, const assay_env *, assay_sums *sums, assay_error *) {
  sums->unit = ASSAY_SUM_WGMMA_8;
  block_gemm_scales(sums);
  return ASSAY_OK;
}

constexpr assay_contract block_wgmma_contract = {.qk_lanes = 1,
                                                 .pv_lanes = 1,
                                                 .run_to_run = true,
                                                 .renumbering = true,
                                                 .permutation = true,
                                                 .lanes = 1,
                                                 .alone = true,
                                                 .cut = 32};

} // namespace ASSAY_NS
#endif
