/* gemm_wgmma.cuh: products of any number of rows with weights [out, in] on Hopper's tensor cores, for gemm and lm_head.
 * Types are bf16 and f16, with sums in f32.
 *
 * Every element is one chain of steps of 16 products in the order of k, from zero. No sum is cut into parts, and no
 * choice changes the chain. Tiles of six shapes share this order. A row therefore has the same bits in a call of one
 * row and in a call of thousands. The host chooses the shape by the number of tiles alone. */
#ifndef ASSAY_GPU_LIB_GEMM_WGMMA_CUH
#define ASSAY_GPU_LIB_GEMM_WGMMA_CUH

#include "gpu/lib/deferred.cuh"
#include "gpu/lib/plain.h"
#include "gpu/lib/ptx_async.cuh"
#include "gpu/lib/ptx_wgmma.cuh"
#include "gpu/lib/rowwise.cuh"

namespace ASSAY_NS {

/* c_mn <- alpha * sum_k x_mk w_nk + beta * c_mn + bias_n */
struct wide_params {
  const void *x, *w, *bias; /* bias NULL: none */
  void *c;
  int64_t M, N, K, x_row, c_row;
  float alpha, beta; /* beta 0: c is not read */
  bool wide, quads;  /* c is f32, not T; four neighbours of c may be stored at once */
  bool early;        /* w is settled: it is read before the wait */
  bool rectified;    /* for parts with gates: which activation */
  int32_t row_tiles, column_tiles, pieces;
};

constexpr int32_t wide_piece = 64, wide_loaders = 128; /* k of a stage; threads of the warpgroup that loads */

/* A tile of rows x columns of c, and the warpgroups that share it: 64 rows each, or with 64 rows equal columns. */
template <int rows_, int columns_, int groups_, int stages_> struct wide_tile {
  static constexpr int rows = rows_, columns = columns_, groups = groups_, stages = stages_;
  static constexpr bool by_rows = rows == 128;
  static constexpr bool paired = false; /* w is two halves, and a tile has half of its columns from each */
  static constexpr int own = by_rows ? columns : columns / groups; /* columns of a warpgroup */
  static constexpr int threads = wide_loaders + 128 * groups;
  static constexpr int row_bytes = 2 * wide_piece, a_bytes = rows * row_bytes, b_bytes = columns * row_bytes;
  static constexpr int stage_bytes = a_bytes + b_bytes, control_at = stages * stage_bytes;
  static constexpr int factors_at = control_at + 2 * stages * 8; /* for sums of rows that are scaled */
  static constexpr int bytes = factors_at;
  static_assert(!by_rows || groups == 2, "two warpgroups have 64 rows each");
  static_assert(stage_bytes % 1024 == 0, "stages are swizzled in units of 1024 bytes");
};

/* The place of tile number `at`. Eight rows of tiles go side by side, so that they share columns of w in L2. */
struct wide_place {
  int32_t row, column;
};

__device__ __forceinline__ wide_place wide_place_of(const wide_params &p, int32_t at) {
  constexpr int32_t together = 8;
  const int32_t band = at / (together * p.column_tiles), first = band * together;
  const int32_t rows = min(together, p.row_tiles - first), in = at - first * p.column_tiles;
  return {first + in % rows, in / rows};
}

/* A stage of the ring, and the parity of the phase that fills it. */
template <int stages> struct wide_ring {
  int32_t stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
};

template <class tile>
__device__ __forceinline__ void wide_load_w(const tensor_map *map_w, unsigned char *shared, uint64_t *full,
                                            int32_t stage, int32_t piece, int32_t column) {
  mbarrier_expect(&full[stage], tile::stage_bytes);
  unsigned char *const to = shared + stage * tile::stage_bytes + tile::a_bytes;
  if constexpr (tile::paired)
    tma_load(to, map_w, &full[stage], piece * wide_piece, column * tile::columns / 2, 0);
  else
    tma_load(to, map_w, &full[stage], piece * wide_piece, column * tile::columns);
}

/* Asks for w of the first tile's pieces, as many as there are stages. Returns their number. */
template <class tile>
__device__ __forceinline__ int32_t wide_load_early(const wide_params &p, const tensor_map *map_w, unsigned char *shared,
                                                   uint64_t *full) {
  const int32_t pieces = min(p.pieces, tile::stages);
  const wide_place place = wide_place_of(p, static_cast<int32_t>(blockIdx.x));
  for (int32_t piece = 0; piece < pieces; ++piece)
    wide_load_w<tile>(map_w, shared, full, piece, piece, place.column);
  return pieces;
}

/* Loads all pieces of this block's tiles, by one thread. w of the first `asked` pieces has been asked for. */
template <class tile>
__device__ __forceinline__ void wide_load(const wide_params &p, const tensor_map *map_x, const tensor_map *map_w,
                                          unsigned char *shared, uint64_t *full, uint64_t *free, int32_t asked) {
  wide_ring<tile::stages> ring;
  const int32_t tiles = p.row_tiles * p.column_tiles, step = static_cast<int32_t>(gridDim.x);
  for (int32_t at = static_cast<int32_t>(blockIdx.x); at < tiles; at += step) {
    const wide_place place = wide_place_of(p, at);
    for (int32_t piece = 0; piece < p.pieces; ++piece, ring.next()) {
      if (--asked < 0) {
        mbarrier_wait(&free[ring.stage], ring.parity ^ 1);
        wide_load_w<tile>(map_w, shared, full, ring.stage, piece, place.column);
      }
      tma_load(shared + ring.stage * tile::stage_bytes, map_x, &full[ring.stage], piece * wide_piece,
               place.row * tile::rows);
    }
  }
}

/* ---- results ----------------------------------------------------------------------------------------- */

/* Returns the element of c of one sum. */
template <class T, class Out>
__device__ __forceinline__ Out wide_value(const wide_params &p, int64_t n, float sum, const Out *old) {
  float value = __fmul_rn(p.alpha, sum);
  if (p.beta != 0.0f) value = fmaf(p.beta, to_float(*old), value);
  if (p.bias != nullptr) value = __fadd_rn(value, to_float(static_cast<const T *>(p.bias)[n]));
  return from_float<Out>(value);
}

template <class T, class Out>
__device__ __forceinline__ void wide_store(const wide_params &p, int64_t m, int64_t n, const float (&four)[4]) {
  if (m >= p.M) return;
  Out *const to = static_cast<Out *>(p.c) + m * p.c_row + n;
  if (!p.quads || n + 4 > p.N) {
    for (int i = 0; i < 4 && n + i < p.N; ++i)
      to[i] = wide_value<T>(p, n + i, four[i], to + i);
    return;
  }
  struct alignas(4 * sizeof(Out)) quad_of {
    Out element[4];
  } rounded;
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    rounded.element[i] = wide_value<T>(p, n + i, four[i], to + i);
#ifdef ASSAY_SIMT
  if (reinterpret_cast<uintptr_t>(to) % sizeof rounded != 0)
    assay_simt->fault("the address of four neighbours is not a multiple of their size", __FILE__, __LINE__);
#endif
  *reinterpret_cast<quad_of *>(to) = rounded;
}

/* Stores the sums of a warpgroup's part of a tile. Its first row and column for this lane are m and n0. Four lanes hold
 * pairs of neighbours in two groups of 8 columns; lane q of them stores columns 4 q to 4 q + 3 of these 16. */
template <class T, class Out, int own>
__device__ __forceinline__ void wide_store_all(const wide_params &p, int64_t m, int64_t n0, int32_t lane,
                                               const float (&sum)[own / 2]) {
  const int32_t source = lane / 4 * 4 + lane % 2 * 2;
  ASSAY_UNROLL
  for (int j = 0; j < own / 8; j += 2)
    ASSAY_UNROLL
  for (int half = 0; half < 2; ++half) {
    float four[4];
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float low = __shfl_sync(0xffffffffu, sum[4 * j + 2 * half + i % 2], source + i / 2);
      const float high = __shfl_sync(0xffffffffu, sum[4 * j + 4 + 2 * half + i % 2], source + i / 2);
      four[i] = lane % 4 < 2 ? low : high;
    }
    wide_store<T, Out>(p, m + 8 * half, n0 + 8 * j + 4 * (lane % 4), four);
  }
}

/* The base of a use of sums. It does not begin before the first products, which chains alone offer. Rows have no
 * factors, and nothing is left to do after the last tile. */
struct wide_plain_sums {
  using params = wide_params;
  static constexpr bool begins = false, scaled = false;
  __device__ __forceinline__ void end(const wide_params &, int64_t, int32_t) {}
};

/* The use of sums: this one stores them. take() gets the sums of a tile, and end() comes after the last one. `params`
 * begin with wide_params. */
struct wide_stores : wide_plain_sums {
  template <class T, int own>
  __device__ __forceinline__ void take(const wide_params &p, int64_t m, int64_t n, int32_t lane,
                                       const float (&sum)[own / 2]) {
    if (p.wide)
      wide_store_all<T, float, own>(p, m, n, lane, sum);
    else
      wide_store_all<T, T, own>(p, m, n, lane, sum);
  }
};

/* ---- factors of rows --------------------------------------------------------------------------------- */

/* wide_params of rows whose rms_norm is deferred (gpu/lib/deferred.cuh). */
struct wide_scaled_params : wide_params {
  const float *squares; /* [M, parts of a row] */
  float eps;
  bool quads_of_squares; /* four parts may be loaded at once */
};

/* The base of a use of sums whose rows have factors. A thread has rows m and m + 8. */
struct wide_scaled_sums : wide_plain_sums {
  using params = wide_scaled_params;
  static constexpr bool scaled = true;
  __device__ __forceinline__ void scale(float first, float second) {
    factor_[0] = first;
    factor_[1] = second;
  }

protected:
  /* Multiplies a sum by the factor of its row: m, or with half 1 that of m + 8. */
  __device__ __forceinline__ float product(int half, float sum) const { return __fmul_rn(factor_[half], sum); }
  /* Multiplies all sums of a thread. They lie in fours: two of row m, two of row m + 8. */
  template <int count>
  __device__ __forceinline__ void products(const float (&sum)[count], float (&scaled_sum)[count]) const {
    ASSAY_UNROLL
    for (int i = 0; i < count; ++i)
      scaled_sum[i] = product(i / 2 % 2, sum[i]);
  }

private:
  float factor_[2];
};

/* The factors of a tile's rows in shared memory, and two barriers. There are two such places, used in turn. */
class wide_factors {
public:
  static constexpr int rows = 128, bytes = 2 * (4 * rows + 2 * 8), measuring_warps = 3;
  __device__ __forceinline__ wide_factors(unsigned char *at, int32_t place)
      : factor_(reinterpret_cast<float *>(at + 32) + place * rows), ready_(reinterpret_cast<uint64_t *>(at) + place),
        used_(ready_ + 2) {}
  __device__ __forceinline__ void init(uint32_t users) const {
    mbarrier_init(ready_, measuring_warps);
    mbarrier_init(used_, users);
  }
  __device__ __forceinline__ void await(uint32_t parity) const { mbarrier_wait(ready_, parity); }
  __device__ __forceinline__ void await_room(uint32_t parity) const { mbarrier_wait(used_, parity ^ 1); }
  __device__ __forceinline__ float row(int32_t at) const { return factor_[at]; }
  __device__ __forceinline__ void put(int32_t at, float factor) const { factor_[at] = factor; }
  __device__ __forceinline__ void fill(int32_t lane) const {
    __syncwarp(); /* all lanes have put their factors */
    if (lane == 0) mbarrier_arrive(ready_);
  }
  __device__ __forceinline__ void give_back(int32_t lane) const {
    __syncwarp(); /* all lanes have read theirs */
    if (lane == 0) mbarrier_arrive(used_);
  }

private:
  float *factor_;
  uint64_t *ready_, *used_;
};

/* Computes the factors of the rows of this block's tiles, by the three warps that load nothing. A place that has the
 * factors of the same rows keeps them. */
template <class tile> __device__ __forceinline__ void wide_measure(const wide_scaled_params &p, unsigned char *shared) {
  constexpr int32_t rows_a_warp = 16;
  const int32_t thread = static_cast<int32_t>(threadIdx.x) - 32, lane = thread % 32;
  const int32_t tiles = p.row_tiles * p.column_tiles, step = static_cast<int32_t>(gridDim.x);
  const int64_t parts = (p.K + deferred_part - 1) / deferred_part;
  int32_t had[2] = {-1, -1};
  wide_ring<2> ring;
  for (int32_t at = static_cast<int32_t>(blockIdx.x); at < tiles; at += step, ring.next()) {
    const int32_t place = wide_place_of(p, at).row;
    const wide_factors of(shared + tile::factors_at, ring.stage);
    of.await_room(ring.parity);
    const bool there = (ring.stage == 0 ? had[0] : had[1]) == place;
    had[0] = ring.stage == 0 ? place : had[0];
    had[1] = ring.stage == 1 ? place : had[1];
    for (int32_t row = thread / 32 * rows_a_warp + lane / 2; row < tile::rows && !there;
         row += wide_factors::measuring_warps * rows_a_warp) {
      const int64_t m = static_cast<int64_t>(place) * tile::rows + row;
      const float factor = deferred_factor_by_two<4>(m < p.M ? p.squares + m * parts : nullptr,
                                                     static_cast<int32_t>(p.K), p.eps, p.quads_of_squares);
      if (lane % 2 == 0) of.put(row, factor);
    }
    of.fill(lane);
  }
}

/* ---- the warpgroups that multiply -------------------------------------------------------------------- */

template <class T, class tile, class Sums>
__device__ __forceinline__ void wide_multiply(const typename Sums::params &p, unsigned char *shared, uint64_t *full,
                                              uint64_t *free) {
  constexpr int own = tile::own;
  const int32_t thread = static_cast<int32_t>(threadIdx.x) - wide_loaders, group = thread / 128, lane = thread % 32;
  const int32_t first_row = tile::by_rows ? group * 64 : 0, first_column = tile::by_rows ? 0 : group * own;
  const int32_t tiles = p.row_tiles * p.column_tiles, step = static_cast<int32_t>(gridDim.x);
  const int32_t own_row = first_row + thread % 128 / 32 * 16 + lane / 4;
  Sums sums;
  wide_ring<tile::stages> ring;
  wide_ring<2> factors;
  for (int32_t at = static_cast<int32_t>(blockIdx.x); at < tiles; at += step, factors.next()) {
    float sum[own / 2];
    int32_t before = 0; /* the stage whose products may still run */
    for (int32_t piece = 0; piece < p.pieces; ++piece, ring.next()) {
      const unsigned char *const stage = shared + ring.stage * tile::stage_bytes;
      mbarrier_wait(&full[ring.stage], ring.parity);
      const uint64_t a = wgmma_descriptor(stage + first_row * tile::row_bytes, 1024, 0, swizzle_128);
      const uint64_t b = wgmma_descriptor(stage + tile::a_bytes + first_column * tile::row_bytes, 1024, 0, swizzle_128);
      wgmma_order(sum);
      wgmma_fence();
      ASSAY_UNROLL
      for (uint32_t k = 0; k < wide_piece / 16; ++k)
        wgmma_m64k16<T, own>(sum, a + 2 * k, b + 2 * k, piece > 0 || k > 0);
      wgmma_commit();
      wgmma_wait<1>();
      if (piece > 0 && lane == 0) mbarrier_arrive(&free[before]);
      before = ring.stage;
    }
    wgmma_wait<0>();
    wgmma_order(sum);
    if (lane == 0) mbarrier_arrive(&free[before]);
    const wide_place place = wide_place_of(p, at);
    const int64_t m = static_cast<int64_t>(place.row) * tile::rows + own_row;
    const int64_t n = static_cast<int64_t>(place.column) * tile::columns + first_column;
    if constexpr (Sums::scaled) {
      wide_factors of(shared + tile::factors_at, factors.stage);
      of.await(factors.parity);
      sums.scale(of.row(own_row), of.row(own_row + 8));
      of.give_back(lane);
    }
    sums.template take<T, own>(p, m, n, lane, sum);
  }
  sums.end(p, own_row, lane);
}

/* gemm_wgmma: computes tiles of c, one after the other. With other Sums than the preset, sums are not stored.
 * Grid:   one block per multiprocessor. Block: a warpgroup that loads, and one or two that multiply.
 * Shared: up to 208 KB: the ring of pieces of x and w, swizzled by 128 bytes, and two barriers for each.
 * Align:  x and w at multiples of 16 bytes, rows and bases; c by four neighbours if it allows, else by element.
 * Arch:   sm_90a.
 * Limit:  flops: 2 M N K on the tensor cores; below some hundred rows, bytes: N K sizeof(T). */
template <class T, class tile, class Sums = wide_stores>
static __global__ void __launch_bounds__(tile::threads, 1)
    gemm_wgmma(const __grid_constant__ tensor_map map_x, const __grid_constant__ tensor_map map_w,
               typename Sums::params p) {
  ASSAY_DYNAMIC_SHARED_1024(unsigned char, shared);
  uint64_t *const full = reinterpret_cast<uint64_t *>(shared + tile::control_at), *const free = full + tile::stages;
  if (threadIdx.x == 0) {
    constexpr uint32_t users = 4 * tile::groups; /* the warps that multiply */
    for (int i = 0; i < tile::stages; ++i) {
      mbarrier_init(&full[i], 1);
      mbarrier_init(&free[i], users);
    }
    if constexpr (Sums::scaled)
      for (int i = 0; i < 2; ++i)
        wide_factors(shared + tile::factors_at, i).init(users);
    mbarrier_fence_init();
    tensor_map_prefetch(&map_x);
    tensor_map_prefetch(&map_w);
  }
  __syncthreads(); /* the barriers are made */
  dependents_launch();
  if (!p.early) dependency_wait();
  if (threadIdx.x < wide_loaders) {
    if constexpr (tile::groups == 2) registers_fewer<Sums::scaled ? 56 : 40>();
    if constexpr (Sums::scaled)
      if (threadIdx.x >= 32) {
        if (p.early) dependency_wait();
        wide_measure<tile>(p, shared);
        return;
      }
    if (threadIdx.x != 0) return;
    const int32_t asked = p.early ? wide_load_early<tile>(p, &map_w, shared, full) : 0;
    if (p.early) dependency_wait();
    wide_load<tile>(p, &map_x, &map_w, shared, full, free, asked);
  } else {
    if constexpr (tile::groups == 2) registers_more<Sums::scaled ? 224 : 232>();
    if (p.early) dependency_wait();
    wide_multiply<T, tile, Sums>(p, shared, full, free);
  }
}

/* ---- launch ------------------------------------------------------------------------------------------ */

template <class Use> assay_status wide_with_type(assay_dtype type, Use use) {
  if (type == ASSAY_BF16) return use(type_tag<bf16>());
#ifndef ASSAY_FEW_TYPES
  if (type == ASSAY_F16) return use(type_tag<f16>());
#endif
  return ASSAY_ERR_INTERNAL;
}

#ifdef ASSAY_FEW_TYPES
#define WIDE_TYPE_CLAIMS "bf16"
#else
#define WIDE_TYPE_CLAIMS "f16,bf16"
#endif

/* Reads the extents of a product, and its operands a, b and `out`. */
inline void wide_read(const plain_call &c, const char *out, wide_params *p) {
  p->M = c.dim("M");
  p->N = c.dim("N");
  p->K = c.dim("K");
  p->x = c.data<const void>("a");
  p->w = c.data<const void>("b");
  p->c = c.data<void>(out);
  p->x_row = c.row("a");
  p->c_row = c.row(out);
}

/* Refuses calls that the kernel cannot run. Nothing here depends on M, except for numbers of tiles beyond 2^31. */
inline assay_status wide_expect(const wide_params &p, assay_dtype type, assay_error *error) {
  if (wide_with_type(type, [](auto) { return ASSAY_OK; }) != ASSAY_OK)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "dtype: found %s, allowed " WIDE_TYPE_CLAIMS,
                      assay_dtype_name(type));
  if (p.K % 8 != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "terms of a sum: found %" PRId64 ", allowed multiples of 8", p.K);
  if (p.x_row % 8 != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "elements between rows: found %" PRId64 ", allowed multiples of 8",
                      p.x_row);
  if (p.x_row >= INT64_C(1) << 39)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "elements between rows: found %" PRId64 ", allowed below 2^39",
                      p.x_row);
  if (reinterpret_cast<uintptr_t>(p.x) % 16 != 0 || reinterpret_cast<uintptr_t>(p.w) % 16 != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "addresses: allowed multiples of 16");
  if (p.M + 256 > INT32_MAX || p.N + 256 > INT32_MAX || p.K + 64 > INT32_MAX ||
      (p.M / 64 + 1) * (p.N / 16 + 1) > INT32_MAX)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                      "M: found %" PRId64 " with N %" PRId64 ", allowed fewer tiles than 2^31", p.M, p.N);
  return ASSAY_OK;
}

inline assay_status wide_map(tensor_map *map, const void *base, int64_t rows, int64_t K, int64_t row, int32_t box,
                             assay_error *error) {
  tensor_shape shape = {};
  shape.rank = 2;
  shape.element_bytes = 2;
  shape.extent[0] = K;
  shape.extent[1] = rows;
  shape.stride[1] = 2 * (rows > 1 ? row : (K + 7) / 8 * 8);
  shape.box[0] = wide_piece;
  shape.box[1] = box;
  shape.swizzle = swizzle_128;
  return tensor_map_make(map, const_cast<void *>(base), shape, error);
}

/* Makes the map of w as two halves of N / 2 rows, which a box takes `box` rows each of. */
inline assay_status wide_map_halves(tensor_map *map, const wide_params &p, int32_t box, assay_error *error) {
  tensor_shape shape = {};
  shape.rank = 3;
  shape.element_bytes = 2;
  shape.extent[0] = p.K;
  shape.extent[1] = p.N / 2;
  shape.extent[2] = 2;
  shape.stride[1] = 2 * p.K;
  shape.stride[2] = p.N * p.K;
  shape.box[0] = wide_piece;
  shape.box[1] = box;
  shape.box[2] = 2;
  shape.swizzle = swizzle_128;
  return tensor_map_make(map, const_cast<void *>(p.w), shape, error);
}

inline int64_t wide_tiles(const wide_params &p, int64_t rows, int64_t columns) {
  return (p.M + rows - 1) / rows * ((p.N + columns - 1) / columns);
}

template <class T, class tile, class Sums = wide_stores>
assay_status wide_start(typename Sums::params p, assay_env *env, assay_error *error) {
  p.row_tiles = static_cast<int32_t>((p.M + tile::rows - 1) / tile::rows);
  p.column_tiles = static_cast<int32_t>((p.N + tile::columns - 1) / tile::columns);
  p.pieces = static_cast<int32_t>((p.K + wide_piece - 1) / wide_piece);
  const int64_t tiles = wide_tiles(p, tile::rows, tile::columns);
  tensor_map map_x, map_w;
  ASSAY_TRY(wide_map(&map_x, p.x, p.M, p.K, p.x_row, tile::rows, error));
  if constexpr (tile::paired)
    ASSAY_TRY(wide_map_halves(&map_w, p, tile::columns / 2, error));
  else
    ASSAY_TRY(wide_map(&map_w, p.w, p.N, p.K, p.K, tile::columns, error));
  (void)snprintf(env->path, sizeof env->path, "wgmma tile=%dx%d quads=%d%s", tile::rows, tile::columns, p.quads ? 1 : 0,
                 p.early ? " early" : "");
  const int64_t blocks = tiles < env->multiprocessors ? tiles : env->multiprocessors;
  constexpr int bytes = tile::bytes + (Sums::scaled ? wide_factors::bytes : 0);
  return ASSAY_LAUNCH_WITH(error, (gemm_wgmma<T, tile, Sums>), blocks, tile::threads, bytes, in_turn(), env->stream,
                           map_x, map_w, p);
}

/* Launches the largest tiles of which there are enough for the multiprocessors. Smaller ones are taken where they need
 * one wave and no more. The order of sums is the same in all of them. As a template, it brings its kernels only to
 * files that call it. */
template <int = 0>
assay_status wide_launch(const wide_params &p, assay_dtype type, assay_env *env, assay_error *error) {
  const int64_t mp = env->multiprocessors;
  return wide_with_type(type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (p.M > 64 && wide_tiles(p, 128, 256) >= mp) return wide_start<T, wide_tile<128, 256, 2, 4>>(p, env, error);
    if (p.M > 64 && (4 * wide_tiles(p, 128, 128) >= 3 * mp || wide_tiles(p, 128, 64) > mp))
      return wide_start<T, wide_tile<128, 128, 2, 6>>(p, env, error);
    if (p.M > 64 && wide_tiles(p, 64, 64) > mp) return wide_start<T, wide_tile<128, 64, 2, 8>>(p, env, error);
    if (5 * wide_tiles(p, 64, 64) < 2 * mp) return wide_start<T, wide_tile<64, 16, 1, 20>>(p, env, error);
    if (wide_tiles(p, 64, 32) <= mp) return wide_start<T, wide_tile<64, 32, 1, 16>>(p, env, error);
    return wide_start<T, wide_tile<64, 64, 2, 12>>(p, env, error);
  });
}

inline bool wide_quads(const void *c, int64_t c_row, assay_dtype out) {
  return reinterpret_cast<uintptr_t>(c) % static_cast<uintptr_t>(4 * assay_dtype_size(out)) == 0 && c_row % 4 == 0;
}

/* Declares the sums: steps of 16 in the order of k, with zeros up to whole pieces. */
inline assay_status wide_sums(const assay_call *, const assay_env *, assay_sums *sums, assay_error *) {
  sums->unit = ASSAY_SUM_WGMMA_16;
  sums->pad = wide_piece;
  sums->after[0] = ASSAY_AFTER_ALPHA;
  sums->after[1] = ASSAY_AFTER_OLD;
  sums->after[2] = ASSAY_AFTER_BIAS;
  return ASSAY_OK;
}

/* Returns the contract: one running sum of sixteens. Rows do not depend on the batch. */
constexpr assay_contract wide_contract_of(assay_contract c) {
  c.cut = tensor_core_terms;
  return c;
}
constexpr assay_contract wide_contract = wide_contract_of(rowwise_contract(0.0, 1));

} // namespace ASSAY_NS
#endif
