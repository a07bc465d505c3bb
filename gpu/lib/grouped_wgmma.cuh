/* grouped_wgmma.cuh: products in which each row has the weights of its group, on Hopper's tensor cores, for
 * grouped_gemm and grouped_gemm_masked.
 *
 * Weights are the instruction's A: 64 of their rows, that is, channels of c. Rows of a are its N, so that a group of
 * few rows costs few columns. One warpgroup loads by the copy engine, two multiply. docs/kernels/grouped_gemm.md has
 * the schedule. */
#ifndef ASSAY_GPU_LIB_GROUPED_WGMMA_CUH
#define ASSAY_GPU_LIB_GROUPED_WGMMA_CUH

#include "gpu/lib/grouped_tiles.cuh"
#include "gpu/lib/ptx_mma.cuh"
#include "gpu/lib/ptx_wgmma.cuh"

namespace ASSAY_NS {

constexpr int32_t grouped_threads = 384, grouped_loaders = 128;
constexpr int32_t grouped_channels = 128, grouped_piece = 64; /* channels of a tile, and K of a stage */

/* A patch has 64 rows of a warpgroup's 64 channels of the result. Its 16-byte pieces are swizzled against bank
 * conflicts, as the copy engine reads them. Each of the two warpgroups has two patches, which it uses in turn. */
constexpr int32_t grouped_patch_rows = 64, grouped_patch_pitch = 128,
                  grouped_patch_bytes = grouped_patch_rows * grouped_patch_pitch;

/* Returns where eight neighbouring channels of a row are in a patch. */
__device__ __forceinline__ int32_t grouped_in_patch(int32_t row, int32_t eight) {
  return row * grouped_patch_pitch + (eight ^ row % 8) * 16;
}

/* Barriers: of stages, and of the two slots by which the loading thread hands tiles to those that multiply. */
template <int stages> struct grouped_control {
  uint64_t full[stages], free[stages], told[2], heard[2];
  int64_t item[2]; /* -1: no more */
};

/* A tile has up to `most` rows. They come in boxes of `box` rows: 1, 2 or 4 of them. */
template <int box_, int stages_> struct grouped_shape {
  static constexpr int box = box_, most = 4 * box_, stages = stages_;
  static constexpr int b_bytes = grouped_channels * 2 * grouped_piece, box_bytes = box * 2 * grouped_piece;
  static constexpr int stage_bytes = b_bytes + 4 * box_bytes;
  static constexpr int patch_at = stages * stage_bytes;
  static constexpr int control_at = patch_at + 4 * grouped_patch_bytes;
  static constexpr int bytes = control_at + static_cast<int>(sizeof(grouped_control<stages>));
};
using grouped_few = grouped_shape<16, 8>;
using grouped_many = grouped_shape<64, 4>; /* 256 rows: weights of most groups then leave L2 once */

struct grouped_wgmma_params {
  grouped_params g;
  void *list;
  int64_t c_row;
  int32_t column_tiles, pieces;
  bool vectors; /* eight neighbours of c may be stored at once */
};

/* Returns the boxes that hold so many rows. */
template <class shape> __device__ __forceinline__ int32_t grouped_boxes(int32_t rows) {
  return rows <= shape::box ? 1 : rows <= 2 * shape::box ? 2 : 4;
}

/* A stage of the ring, and the parity of the phase that fills it. */
template <int stages> struct grouped_ring {
  int32_t stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
};

/* Takes tiles, hands them on and loads all their pieces, by one thread. Tiles differ in size, so that blocks take the
 * next one when they are ready for it: the list's counter says which. */
template <class shape>
__device__ __forceinline__ void grouped_load(const grouped_wgmma_params &p, const tensor_map *map_a,
                                             const tensor_map *map_b, unsigned char *shared,
                                             grouped_control<shape::stages> *control) {
  grouped_ring<shape::stages> ring;
  grouped_ring<2> slot;
  uint64_t *const full = control->full, *const free = control->free;
  const int64_t items = static_cast<int64_t>(*grouped_count(p.list)) * p.column_tiles;
  for (int64_t at = blockIdx.x, then;; at = then, slot.next()) {
    mbarrier_wait(&control->heard[slot.stage], slot.parity ^ 1);
    control->item[slot.stage] = at < items ? at : -1;
    mbarrier_arrive(&control->told[slot.stage]);
    if (at >= items) break;
    then = static_cast<int64_t>(gridDim.x + atomicAdd(grouped_taken(p.list), 1ull));
    const grouped_tile tile = grouped_list(p.list)[at / p.column_tiles];
    if (tile.group < 0) continue;
    const int32_t channel = static_cast<int32_t>(at % p.column_tiles) * grouped_channels;
    const int32_t slab = static_cast<int32_t>(tile.first / p.g.R), row = static_cast<int32_t>(tile.first % p.g.R);
    const int32_t boxes = grouped_boxes<shape>(tile.end - tile.first);
    for (int32_t piece = 0; piece < p.pieces; ++piece, ring.next()) {
      mbarrier_wait(&free[ring.stage], ring.parity ^ 1);
      mbarrier_expect(&full[ring.stage], static_cast<uint32_t>(shape::b_bytes + boxes * shape::box_bytes));
      unsigned char *const to = shared + ring.stage * shape::stage_bytes;
      tma_load(to, map_b, &full[ring.stage], piece * grouped_piece, channel, tile.group);
      for (int32_t box = 0; box < boxes; ++box)
        tma_load(to + shape::b_bytes + box * shape::box_bytes, map_a, &full[ring.stage], piece * grouped_piece,
                 row + box * shape::box, slab);
    }
  }
}

/* Where a warpgroup's sums go: `live` rows, and `left` channels from its first one on. */
template <class Out> struct grouped_target {
  const tensor_map *map; /* that of c */
  int32_t at[3];         /* its first channel, row and slab there */
  Out *to;
  int64_t left;
  int32_t live;
};

/* Stores sums of 64 channels and `width` rows by one warpgroup. Results of 16 bits become rows of 64 channels in a
 * patch first. The copy engine stores a patch whose 64 rows all exist, while the next patch or tile is made. Other
 * patches are stored by lanes: eight of them have 128 bytes of a row. `turn` says which patch comes next. */
template <class Out, int width>
__device__ __forceinline__ void grouped_store(const grouped_wgmma_params &p, const float (&sum)[width / 2],
                                              const grouped_target<Out> &out, const float (&bias)[2],
                                              unsigned char *patches, int32_t &turn) {
  constexpr int chunk = width < grouped_patch_rows ? width : grouped_patch_rows;
  const int32_t thread = static_cast<int32_t>(threadIdx.x) % 128, warp = thread / 32, lane = thread % 32;
  const uint32_t barrier = threadIdx.x / 128; /* 1 or 2: of this warpgroup */
  const bool biased = p.g.bias != NULL;
  if constexpr (sizeof(Out) == 4) {
    /* Eight lanes have neighbouring channels, which are 32 bytes. */
    ASSAY_UNROLL
    for (int i = 0; i < width / 2; ++i) {
      const int32_t row = i / 4 * 8 + lane % 4 * 2 + i % 2, channel = warp * 16 + lane / 4 + i / 2 % 2 * 8;
      const float value = biased ? __fadd_rn(sum[i], bias[i / 2 % 2]) : sum[i];
      if (row < out.live && channel < out.left) out.to[row * p.c_row + channel] = from_float<Out>(value);
    }
  } else {
    ASSAY_UNROLL
    for (int first = 0; first < width; first += chunk) {
      if (first >= out.live) break;
      /* The engine stores 16 bytes at a time, also where a row of c ends within them. */
      const bool whole =
          chunk == grouped_patch_rows && p.vectors && first + grouped_patch_rows <= out.live && out.left % 8 == 0;
      unsigned char *const patch = patches + turn * grouped_patch_bytes;
      turn ^= 1;
      ASSAY_UNROLL
      for (int rows = 0; rows < chunk; rows += 16) {
        uint32_t pair[4];
        ASSAY_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int at = (first + rows) / 2 + 2 * i;
          const float low = biased ? __fadd_rn(sum[at], bias[i % 2]) : sum[at];
          const float high = biased ? __fadd_rn(sum[at + 1], bias[i % 2]) : sum[at + 1];
          pair[i] = pack_pair<Out>(low, high);
        }
        stmatrix_x4_trans(patch + grouped_in_patch(rows + lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2), pair);
      }
      fence_proxy_async();
      if (thread == 0) bulk_wait_read<0>(); /* the engine has read the patch before, which is written next */
      named_barrier_sync(barrier, 128);     /* the patch is complete, and all have read the one before it */
      if (thread == 0 && whole && out.left > 0) {
        tma_store(out.map, patch, out.at[0], out.at[1] + first, out.at[2]);
        bulk_commit();
      }
      if (whole) continue;
      ASSAY_UNROLL
      for (int rows = 0; rows < chunk; rows += 16) {
        const int32_t in = rows + thread / 8, row = first + in, channel = thread % 8 * 8;
        if (row >= out.live || channel >= out.left) continue;
        const unsigned char *const from = patch + grouped_in_patch(in, thread % 8);
        Out *const at = out.to + row * p.c_row + channel;
        if (p.vectors && channel + 8 <= out.left) {
          *reinterpret_cast<uint4 *>(at) = *reinterpret_cast<const uint4 *>(from);
        } else {
          for (int i = 0; i < 8 && channel + i < out.left; ++i)
            at[i] = reinterpret_cast<const Out *>(from)[i];
        }
      }
    }
  }
}

/* Multiplies all pieces of one tile, as `width` columns. */
template <class T, class shape, int width>
__device__ __forceinline__ void grouped_multiply(const grouped_wgmma_params &p, grouped_ring<shape::stages> &ring,
                                                 unsigned char *shared, uint64_t *full, uint64_t *free,
                                                 float (&sum)[width / 2]) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x) - grouped_loaders, half = thread / 128, lane = thread % 32;
  int32_t before = 0;
  ASSAY_UNROLL
  for (int i = 0; i < width / 2; ++i)
    sum[i] = 0.0f;
  for (int32_t piece = 0; piece < p.pieces; ++piece, ring.next()) {
    const unsigned char *const stage = shared + ring.stage * shape::stage_bytes;
    mbarrier_wait(&full[ring.stage], ring.parity);
    const uint64_t b = wgmma_descriptor(stage + half * (shape::b_bytes / 2), 1024, 0, swizzle_128);
    const uint64_t a = wgmma_descriptor(stage + shape::b_bytes, 1024, 0, swizzle_128);
    wgmma_order(sum);
    wgmma_fence();
    ASSAY_UNROLL
    for (uint32_t k = 0; k < grouped_piece / 16; ++k)
      wgmma_m64k16<T, width>(sum, b + 2 * k, a + 2 * k, true);
    wgmma_commit();
    wgmma_wait<1>(); /* the products of the piece before are made */
    if (piece > 0 && lane == 0) mbarrier_arrive(&free[before]);
    before = ring.stage;
  }
  wgmma_wait<0>();
  wgmma_order(sum);
  if (lane == 0) mbarrier_arrive(&free[before]);
}

/* Makes zeros of dead rows, by the warps that multiply. */
template <class Out>
__device__ __forceinline__ void grouped_clear(const grouped_wgmma_params &p, const grouped_tile &tile, int64_t n0) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x) - grouped_loaders, channel = thread % 128;
  for (int32_t row = tile.first + thread / 128; row < tile.end && n0 + channel < p.g.N; row += 2)
    static_cast<Out *>(p.g.c)[row * p.c_row + n0 + channel] = from_float<Out>(0.0f);
}

/* Multiplies and stores this block's tiles: one of two warpgroups, each with 64 of a tile's 128 channels. */
template <class T, class Out, class shape>
__device__ __forceinline__ void grouped_walk(const grouped_wgmma_params &p, const tensor_map *map_c,
                                             unsigned char *shared, grouped_control<shape::stages> *control) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x) - grouped_loaders, warp = thread / 32, lane = thread % 32;
  unsigned char *const patches = shared + shape::patch_at + thread / 128 * 2 * grouped_patch_bytes;
  grouped_ring<shape::stages> ring;
  grouped_ring<2> slot;
  int32_t turn = 0;
  uint64_t *const full = control->full, *const free = control->free;
  for (;; slot.next()) {
    mbarrier_wait(&control->told[slot.stage], slot.parity);
    const int64_t at = control->item[slot.stage];
    mbarrier_arrive(&control->heard[slot.stage]); /* by each lane: racecheck cannot follow one for all that have read */
    if (at < 0) break;
    const grouped_tile tile = grouped_list(p.list)[at / p.column_tiles];
    const int64_t n0 = at % p.column_tiles * grouped_channels, n = n0 + thread / 128 * 64;
    if (tile.group < 0) {
      if (p.g.zero) grouped_clear<Out>(p, tile, n0);
      continue;
    }
    const int64_t slab = tile.first / p.g.R, row = tile.first % p.g.R;
    grouped_target<Out> out;
    out.map = map_c;
    out.at[0] = static_cast<int32_t>(n);
    out.at[1] = static_cast<int32_t>(row);
    out.at[2] = static_cast<int32_t>(slab);
    out.to = static_cast<Out *>(p.g.c) + slab * p.g.c_slab + row * p.c_row + n;
    out.left = p.g.N - n;
    out.live = tile.end - tile.first;
    float bias[2] = {0.0f, 0.0f};
    if (p.g.bias != NULL) ASSAY_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int64_t channel = n + warp % 4 * 16 + lane / 4 + 8 * i;
      if (channel < p.g.N) bias[i] = to_float(static_cast<const T *>(p.g.bias)[tile.group * p.g.N + channel]);
    }
    const auto make = [&](auto boxes) {
      constexpr int width = decltype(boxes)::value * shape::box;
      float sum[width / 2];
      grouped_multiply<T, shape, width>(p, ring, shared, full, free, sum);
      grouped_store<Out, width>(p, sum, out, bias, patches, turn);
    };
    const int32_t boxes = grouped_boxes<shape>(out.live);
    if (boxes == 1)
      make(std::integral_constant<int, 1>());
    else if (boxes == 2)
      make(std::integral_constant<int, 2>());
    else
      make(std::integral_constant<int, 4>());
  }
  if (thread % 128 == 0) bulk_wait<0>(); /* the last patches are stored */
}

/* grouped_wgmma: computes tiles of 128 channels and up to 64 or 256 rows of one group, one after the other.
 * Grid:   one block per multiprocessor. Block: 384 threads: a warpgroup that loads, two that multiply.
 * Shared: 216 KB: the ring of pieces of b and a, swizzled by 128 bytes; two patches for each warpgroup; barriers.
 * Align:  a and b at multiples of 16 bytes, rows and bases; c by eight neighbours if it allows, else by element.
 * Arch:   sm_90a.
 * Limit:  flops: 2 N K of each live row; with few rows a group, bytes: the weights of groups with rows. */
template <class T, class Out, class shape>
static __global__ void __launch_bounds__(grouped_threads, 1)
    grouped_wgmma(const __grid_constant__ tensor_map map_a, const __grid_constant__ tensor_map map_b,
                  const __grid_constant__ tensor_map map_c, grouped_wgmma_params p) {
  ASSAY_DYNAMIC_SHARED_1024(unsigned char, shared);
  auto *const control = reinterpret_cast<grouped_control<shape::stages> *>(shared + shape::control_at);
  if (threadIdx.x == 0) {
    for (int i = 0; i < shape::stages; ++i) {
      mbarrier_init(&control->full[i], 1);
      mbarrier_init(&control->free[i], 8); /* the warps that multiply */
    }
    for (int i = 0; i < 2; ++i) {
      mbarrier_init(&control->told[i], 1);
      mbarrier_init(&control->heard[i], grouped_threads - grouped_loaders);
    }
    mbarrier_fence_init();
    tensor_map_prefetch(&map_a);
    tensor_map_prefetch(&map_b);
  }
  __syncthreads(); /* the barriers are made */
  take_turn();
  if (threadIdx.x < grouped_loaders) {
    registers_fewer<40>();
    if (threadIdx.x == 0) grouped_load<shape>(p, &map_a, &map_b, shared, control);
  } else {
    registers_more<232>();
    grouped_walk<T, Out, shape>(p, &map_c, shared, control);
  }
}

/* ---- launch ------------------------------------------------------------------------------------------ */

template <class Use> assay_status grouped_with_type(assay_dtype type, Use use) {
  if (type == ASSAY_BF16) return use(type_tag<bf16>());
#ifndef ASSAY_FEW_TYPES
  if (type == ASSAY_F16) return use(type_tag<f16>());
#endif
  return ASSAY_ERR_INTERNAL;
}

#ifdef ASSAY_FEW_TYPES
#define GROUPED_WGMMA_CLAIMS "bf16"
#else
#define GROUPED_WGMMA_CLAIMS "f16,bf16"
#endif

/* Declines calls that the copy engine or the list cannot hold. */
inline assay_status grouped_wgmma_expect(const grouped_plan &plan, int64_t a_row, assay_error *error) {
  const grouped_params &p = plan.p;
  if (grouped_with_type(plan.type, [](auto) { return ASSAY_OK; }) != ASSAY_OK)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "a: found dtype %s, taken here: " GROUPED_WGMMA_CLAIMS,
                      assay_dtype_name(plan.type));
  if (p.K % 8 != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "K: found %" PRId64 ", taken here: multiples of 8", p.K);
  if (reinterpret_cast<uintptr_t>(p.a) % 16 != 0 || a_row % 8 != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                      "a: found a base or a distance of rows that is no multiple of 16 bytes, taken here: multiples");
  if (reinterpret_cast<uintptr_t>(p.b) % 16 != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                      "b: found a base that is no multiple of 16 bytes, taken here: multiples");
  if (p.rows > INT32_MAX - 256)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "rows: found %" PRId64 ", taken here: fewer than 2^31 - 256",
                      p.rows);
  return ASSAY_OK;
}

/* Makes the map of [slabs, rows, K], of which one copy moves `box` rows. */
inline assay_status grouped_map(tensor_map *map, const void *base, int64_t slabs, int64_t rows, int64_t K, int64_t slab,
                                int64_t row, int32_t box, assay_error *error) {
  tensor_shape shape = {};
  shape.rank = 3;
  shape.element_bytes = 2;
  shape.extent[0] = K;
  shape.extent[1] = rows;
  shape.extent[2] = slabs;
  shape.stride[1] = 2 * (rows > 1 ? row : K);
  shape.stride[2] = slabs > 1 ? 2 * slab : shape.stride[1];
  shape.box[0] = grouped_piece;
  shape.box[1] = box;
  shape.box[2] = 1;
  shape.swizzle = swizzle_128;
  return tensor_map_make(map, const_cast<void *>(base), shape, error);
}

/* Makes the map of c, of which one copy stores a patch. Without `vectors`, or with fewer rows than a patch has, the
 * engine stores nothing. */
inline assay_status grouped_map_c(tensor_map *map, const grouped_wgmma_params &p, int64_t slabs, assay_error *error) {
  *map = tensor_map();
  if (!p.vectors || p.g.R < grouped_patch_rows) return ASSAY_OK;
  tensor_shape shape = {};
  shape.rank = 3;
  shape.element_bytes = 2;
  shape.extent[0] = p.g.N;
  shape.extent[1] = p.g.R;
  shape.extent[2] = slabs;
  shape.stride[1] = 2 * p.c_row;
  shape.stride[2] = slabs > 1 ? 2 * p.g.c_slab : shape.stride[1];
  shape.box[0] = 64;
  shape.box[1] = grouped_patch_rows;
  shape.box[2] = 1;
  shape.swizzle = swizzle_128;
  return tensor_map_make(map, p.g.c, shape, error);
}

/* Launches the plan, then the products. Rows lie a_row and c_row elements apart within a slab. */
template <class shape>
assay_status grouped_wgmma_start(const grouped_plan &plan, int64_t a_row, int64_t c_row, assay_env *env,
                                 assay_error *error) {
  grouped_wgmma_params p = {};
  p.g = plan.p;
  const grouped_params &g = plan.p;
  p.list = env->workspace;
  p.c_row = c_row;
  p.column_tiles = static_cast<int32_t>((g.N + grouped_channels - 1) / grouped_channels);
  p.pieces = static_cast<int32_t>((g.K + grouped_piece - 1) / grouped_piece);
  p.vectors = assay_dtype_size(plan.out) == 2 && reinterpret_cast<uintptr_t>(g.c) % 16 == 0 && c_row % 8 == 0 &&
              g.c_slab % 8 == 0;
  const int64_t slabs = g.rows / g.R;
  tensor_map map_a, map_b, map_c;
  ASSAY_TRY(grouped_map(&map_a, g.a, slabs, g.R, g.K, g.a_slab, a_row, shape::box, error));
  ASSAY_TRY(grouped_map(&map_b, g.b, g.G, g.N, g.K, g.N * g.K, g.K, grouped_channels, error));
  ASSAY_TRY(grouped_map_c(&map_c, p, slabs, error));
  (void)snprintf(env->path, sizeof env->path, "wgmma rows=%d vectors=%d", shape::most, p.vectors ? 1 : 0);
  ASSAY_TRY(expect_workspace(env, grouped_list_bytes(g, grouped_few::most), error));
  ASSAY_TRY(grouped_launch_plan(g, p.list, shape::most, env, error));
  const int64_t most = (g.group != NULL ? g.rows : g.G * ((g.R + shape::most - 1) / shape::most)) * p.column_tiles;
  const int64_t blocks = most < env->multiprocessors ? most : env->multiprocessors;
  return grouped_with_type(plan.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (plan.out == plan.type)
      return ASSAY_LAUNCH_WITH(error, (grouped_wgmma<T, T, shape>), blocks, grouped_threads, shape::bytes, in_turn(),
                               env->stream, map_a, map_b, map_c, p);
    return ASSAY_LAUNCH_WITH(error, (grouped_wgmma<T, float, shape>), blocks, grouped_threads, shape::bytes, in_turn(),
                             env->stream, map_a, map_b, map_c, p);
  });
}

inline assay_status grouped_wgmma_launch(const grouped_plan &plan, int64_t a_row, int64_t c_row, bool few,
                                         assay_env *env, assay_error *error) {
  (void)snprintf(env->path, sizeof env->path, "wgmma");
  if (plan.p.rows == 0 || plan.p.N == 0) return ASSAY_OK;
  if (few) return grouped_wgmma_start<grouped_few>(plan, a_row, c_row, env, error);
  return grouped_wgmma_start<grouped_many>(plan, a_row, c_row, env, error);
}

inline assay_status grouped_wgmma_sums(const assay_call *, const assay_env *, assay_sums *sums, assay_error *) {
  sums->unit = ASSAY_SUM_WGMMA_16;
  sums->pad = grouped_piece;
  sums->after[0] = ASSAY_AFTER_BIAS;
  return ASSAY_OK;
}

constexpr assay_contract grouped_wgmma_contract_of(assay_contract c) {
  c.cut = tensor_core_terms;
  return c;
}
constexpr assay_contract grouped_wgmma_contract = grouped_wgmma_contract_of(rowwise_contract(0.0, 1));

} // namespace ASSAY_NS
#endif
