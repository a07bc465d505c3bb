/* gemm_skinny.cuh: products of at most 64 rows with weights [out, in], bound by the bytes of the weights, for gemm,
 * lm_head and gemm_glu. Types are bf16 and f16, with sums in f32 on tensor cores.
 *
 * The order of k inside an mma is free, as long as both operands have the same order. A lane's 16 bytes of a row, k =
 * 32 c + 8 t to 32 c + 8 t + 7 of chunk c, are two mma steps, for rows of x and of w alike. Weights therefore go from
 * global memory into fragments in 16-byte loads, without shared memory. 8 rows of w are the 8 columns of an mma, and 16
 * rows of x are its rows. */
#ifndef ASSAY_GPU_LIB_GEMM_SKINNY_CUH
#define ASSAY_GPU_LIB_GEMM_SKINNY_CUH

#include "gpu/lib/deferred.cuh"
#include "gpu/lib/plain.h"
#include "gpu/lib/ptx.cuh"
#include "gpu/lib/ptx_async.cuh"
#include "gpu/lib/ptx_mma.cuh"
#include "gpu/lib/rowwise.cuh"

namespace ASSAY_NS {

/* c_mn <- alpha * sum_k x_mk w_nk + beta * c_mn + bias_n, over the rows m of x, or over the rows that `select`
 * names. */
struct skinny_params {
  const void *x, *w, *bias; /* bias NULL: none */
  const int32_t *select;    /* [M] rows of x; NULL: row m. A row outside [0, x_rows) counts as zeros */
  void *c;
  int64_t M, N, x_row, x_rows, c_row;
  int32_t K;
  float alpha, beta; /* beta 0: c is not read */
  bool wide, pairs;  /* c is f32, not T; two neighbours of c may be stored at once */
  bool rectified;    /* for skinny_gated: which activation */
  bool early;        /* w is settled: it is read before the wait */
};

constexpr int skinny_max_rows = 64, skinny_chunk = 32;
constexpr int64_t skinny_max_staged = 224 * 1024; /* bytes of x in shared memory */

/* Number of tiles of 16 rows. */
template <int eights> constexpr int skinny_row_tiles = (eights + 1) / 2;

/* ---- pieces ------------------------------------------------------------------------------------------ */

/* Returns row m of x, or the row that select[m] names; NULL stands for zeros. */
template <class T> __device__ __forceinline__ const T *skinny_row(const skinny_params &p, int64_t m) {
  if (m >= p.M) return NULL;
  const int64_t row = p.select != NULL ? p.select[m] : m;
  return row >= 0 && row < p.x_rows ? static_cast<const T *>(p.x) + row * p.x_row : NULL;
}

/* Starts copying two chunks of all rows of x into shared memory, in whole lines. Piece j of row r, 8 k, lies at 8 r +
 * (j ^ 4 (r % 2)), so that reading fragments uses every bank once. Missing pieces become zeros. */
template <class T, int eights>
__device__ __forceinline__ void skinny_fetch(const skinny_params &p, uint4 *stage, int k, int end, int lane) {
  const int piece = lane % 8, at = k + 8 * piece;
  ASSAY_UNROLL
  for (int i = 0; i < 2 * eights && k < end; ++i) {
    const int r = 4 * i + lane / 8;
    const bool there = r < p.M && at < end;
    const T *const from = static_cast<const T *>(p.x) + (there ? r * p.x_row + at : 0);
    cp_async_16(stage + 8 * r + (piece ^ (r % 2 * 4)), from, there ? 16 : 0);
  }
  cp_async_commit();
}

/* Multiplies one chunk: 8 rows of w times all rows of x. sum[i]: rows 16 i + lane / 4 and + 8, columns 2 (lane % 4) and
 * + 1. */
template <class T, int eights>
__device__ __forceinline__ void skinny_multiply(float (&sum)[skinny_row_tiles<eights>][4], const uint4 (&x)[eights],
                                                const uint4 &w) {
  const uint32_t low[2] = {w.x, w.y}, high[2] = {w.z, w.w};
  ASSAY_UNROLL
  for (int i = 0; i < skinny_row_tiles<eights>; ++i) {
    const uint4 upper = x[2 * i], none = {0, 0, 0, 0}, lower = 2 * i + 1 < eights ? x[(2 * i + 1) % eights] : none;
    const uint32_t first[4] = {upper.x, lower.x, upper.y, lower.y}, second[4] = {upper.z, lower.z, upper.w, lower.w};
    mma_m16n8k16<T>(sum[i], first, low);
    mma_m16n8k16<T>(sum[i], second, high);
  }
}

__device__ __forceinline__ void skinny_add(float (&total)[2], uint2 part) {
  total[0] += float_of(part.x);
  total[1] += float_of(part.y);
}

/* Stores a number and, where it exists, its neighbour: at once where p.pairs allows it. */
template <class Out> __device__ __forceinline__ void skinny_put(Out *to, Out first, Out second, bool both, bool pairs) {
  if (both && pairs) {
    struct alignas(2 * sizeof(Out)) pair {
      Out element[2];
    };
#ifdef ASSAY_SIMT
    if (reinterpret_cast<uintptr_t>(to) % sizeof(pair) != 0)
      assay_simt->fault("a pair's address is not a multiple of its size", __FILE__, __LINE__);
#endif
    const pair rounded = {{first, second}};
    *reinterpret_cast<pair *>(to) = rounded;
    return;
  }
  to[0] = first;
  if (both) to[1] = second;
}

/* Stores two neighbouring columns n, n + 1 of row m. */
template <class T, class Out>
__device__ __forceinline__ void skinny_store_as(const skinny_params &p, int64_t m, int64_t n, float first,
                                                float second) {
  Out *const to = static_cast<Out *>(p.c) + m * p.c_row + n;
  const T *const bias = static_cast<const T *>(p.bias);
  const bool both = n + 1 < p.N;
  float value[2] = {__fmul_rn(p.alpha, first), __fmul_rn(p.alpha, second)};
  if (p.beta != 0.0f) {
    value[0] = fmaf(p.beta, to_float(to[0]), value[0]);
    if (both) value[1] = fmaf(p.beta, to_float(to[1]), value[1]);
  }
  if (bias != NULL) {
    value[0] = __fadd_rn(value[0], to_float(bias[n]));
    if (both) value[1] = __fadd_rn(value[1], to_float(bias[n + 1]));
  }
  skinny_put(to, from_float<Out>(value[0]), from_float<Out>(value[1]), both, p.pairs);
}

template <class T>
__device__ __forceinline__ void skinny_store(const skinny_params &p, int64_t m, int64_t n, float first, float second) {
  if (m >= p.M || n >= p.N) return;
  if (p.wide)
    skinny_store_as<T, float>(p, m, n, first, second);
  else
    skinny_store_as<T, T>(p, m, n, first, second);
}

/* ---- epilogues: what becomes of a sum ---------------------------------------------------------------- */

/* Stores each column's sum as it is, by skinny_store. An epilogue has the parameters `params`, which begin with
 * skinny_params, and stores two neighbouring columns of a row at a time. */
struct skinny_columns {
  using params = skinny_params;
  static constexpr bool paired = false, scaled = false, squares = false;
  /* Fetches early what the block's stores will read, for columns from n0 on. */
  template <class T> static __device__ __forceinline__ void prepare(const skinny_params &, int64_t) {}
  /* Returns the row of w that column n of the tiles is a product with. */
  static __device__ __forceinline__ int64_t weights(const skinny_params &, int64_t n) { return n; }
  template <class T>
  static __device__ __forceinline__ void store(const skinny_params &p, int64_t m, int64_t n, float first,
                                               float second) {
    skinny_store<T>(p, m, n, first, second);
  }
};

/* Joins two columns: w holds N / 2 gates, then N / 2 ups, and c_mi = F(gate_mi, up_mi), rounded to T. Every 16 columns
 * of the tiles are 8 gates and the ups of the same channels. One block, and one lane of it, then has both sums of a
 * channel. */
template <class F> struct skinny_gated {
  using params = skinny_params;
  static constexpr bool paired = true, scaled = false, squares = false;
  template <class T> static __device__ __forceinline__ void prepare(const skinny_params &, int64_t) {}
  static __device__ __forceinline__ int64_t channel(int64_t n) { return n / 16 * 8 + n % 8; }
  static __device__ __forceinline__ int64_t weights(const skinny_params &p, int64_t n) {
    const int64_t I = p.N / 2, i = channel(n) < I ? channel(n) : I - 1;
    return n / 8 % 2 == 0 ? i : I + i;
  }
  /* Stores channels i, i + 1 of row m, from the sums of their gates and ups. */
  template <class T>
  static __device__ __forceinline__ void store(const skinny_params &p, int64_t m, int64_t i, const float (&gate)[2],
                                               const float (&up)[2]) {
    const int64_t I = p.N / 2;
    if (m >= p.M || i >= I) return;
    T *const to = static_cast<T *>(p.c) + m * p.c_row + i;
    const T first = from_float<T>(F::of(p.rectified, gate[0], up[0]));
    const T second = from_float<T>(F::of(p.rectified, gate[1], up[1]));
    skinny_put(to, first, second, i + 1 < I, p.pairs);
  }
};

/* For rows whose rms_norm is deferred. squares: [M, parts]; NULL: rows are as they are. */
struct skinny_scaled_params : skinny_params {
  const float *squares;
  float eps;
};

/* Multiplies the sums of each row by the factor of its norm, before `epilogue` has them. */
template <class epilogue> struct skinny_scaled : epilogue {
  using params = skinny_scaled_params;
  static constexpr bool scaled = true;
};

/* Returns the factors of the block's rows, in shared memory. */
__device__ __forceinline__ float *skinny_factors() {
  ASSAY_SHARED(float, factors, skinny_max_rows);
  return factors;
}

/* Computes the factors. Eight lanes have one row. A barrier follows before the factors are used. */
__device__ __forceinline__ void skinny_measure(const skinny_scaled_params &p, float *factors) {
  const int thread = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x) / deferred_lanes;
  const int64_t parts = (p.K + deferred_part - 1) / deferred_part;
  for (int row = thread / deferred_lanes; row < skinny_max_rows; row += step) {
    float factor = 0.0f;
    if (row < p.M) factor = deferred_factor(p.squares + row * parts, p.K, p.eps);
    if (thread % deferred_lanes == 0) factors[row] = factor;
  }
}

/* Multiplies the sums of two neighbouring columns of row m by the row's factor, where the epilogue asks for that. */
template <class epilogue> __device__ __forceinline__ void skinny_scale(int64_t m, float (&sum)[2]) {
  if constexpr (epilogue::scaled) {
    const float factor = skinny_factors()[m];
    sum[0] = __fmul_rn(factor, sum[0]);
    sum[1] = __fmul_rn(factor, sum[1]);
  }
}

/* Gives the sums of two neighbouring columns to the epilogue. Where it takes squares, four lanes that are `apart` have
 * eight columns of one row, and the first of them stores their part. All lanes of the warp take part. */
template <class T, class epilogue, int apart>
__device__ __forceinline__ void skinny_finish(const typename epilogue::params &p, int64_t m, int64_t n,
                                              float (&sum)[2]) {
  skinny_scale<epilogue>(m, sum);
  if constexpr (epilogue::squares) {
    const float part = deferred_pairs<apart>(epilogue::template store<T>(p, m, n, sum[0], sum[1]));
    if (n % deferred_part == 0) epilogue::put_part(p, m, n, part);
  } else {
    epilogue::template store<T>(p, m, n, sum[0], sum[1]);
  }
}

/* ---- split: the warps of a block share k ------------------------------------------------------------- */

/* The shape of skinny_split: how a cluster of blocks computes 8 * groups columns. k is divided among its blocks, and in
 * each block among its warps. Warps walk it in pairs of chunks. Per warp, `ahead` chunks of all rows of w and `stages`
 * pairs of x are in flight. */
template <int eights_, int groups_, int warps_, int ahead_, int stages_, int cluster_ = 1> struct skinny_shape {
  static constexpr int eights = eights_, groups = groups_, warps = warps_, ahead = ahead_, stages = stages_;
  static constexpr int cluster = cluster_, tiles = groups * skinny_row_tiles<eights>, threads = 32 * warps;
  static constexpr int units = tiles * 64;  /* pairs of neighbours */
  static constexpr int stage = eights * 64; /* in units of 16 bytes: 8 * eights rows of 128 bytes */
  static constexpr int parts_bytes = warps * units * 8 + (cluster > 1 ? units * 8 : 0);
  static constexpr int shared_bytes = parts_bytes + warps * stages * stage * 16;
  static_assert(ahead % 2 == 0, "w is walked in pairs of chunks");
  static_assert(cluster <= 2, "the second block of a cluster ends the sums of the first");
};

/* skinny_split: computes 8 * groups channels of the result, for all rows.
 * Grid:   (cluster * ceil(N / (8 groups))). Block: `warps` warps; each has a range of k in whole chunks.
 * Shared: 16 bytes per lane, warp and tile of 16 by 8: the warps' sums, added in the order of warps. In a cluster, the
 * first block sends its sums to the second, which adds its own warps to them and stores.
 * Align:  rows of x and w at multiples of 16 bytes, K a multiple of 8; c by element or pair.
 * Arch:   sm_80.
 * Limit:  bytes: N K sizeof(T). Weights and x are in flight before the first product. x comes from L2: eights / groups
 * times the bytes of the weights. */
template <class T, class shape, class epilogue>
static __global__ void __launch_bounds__(shape::threads, 1) skinny_split(typename epilogue::params p) {
  constexpr int eights = shape::eights, groups = shape::groups, warps = shape::warps, ahead = shape::ahead;
  constexpr int stages = shape::stages, row_tiles = skinny_row_tiles<eights>, cluster = shape::cluster;
  ASSAY_DYNAMIC_SHARED(uint4, parts);
  if constexpr (cluster > 1) cluster_arrive();
  dependents_launch();
  if (!p.early) dependency_wait();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int rank = static_cast<int>(blockIdx.x) % cluster;
  const int64_t n0 = static_cast<int64_t>(blockIdx.x) / cluster * (8 * groups);

  /* Chunks [first, last) belong to this warp, in pairs of chunks, which are 128 bytes of a row. `left` counts k from
   * the lane's part of the next chunk. */
  constexpr int pairs = 2 * warps * cluster;
  const int chunks = (p.K + skinny_chunk - 1) / skinny_chunk, each = (chunks + pairs - 1) / pairs * 2;
  const int first = (rank * warps + warp) * each, last = first + each < chunks ? first + each : chunks;
  const int start = first * skinny_chunk + lane % 4 * 8;
  const int end = last * skinny_chunk < p.K ? last * skinny_chunk : p.K;
  int left = end - start;
  const uint4 none = {0, 0, 0, 0};

  uint4 w[ahead][groups];
  const T *row[groups];
  ASSAY_UNROLL
  for (int j = 0; j < groups; ++j) {
    const int64_t n = epilogue::weights(p, n0 + 8 * j + lane / 4);
    row[j] = static_cast<const T *>(p.w) + (n < p.N ? n : p.N - 1) * p.K + start;
  }
  /* Loads two chunks: both halves of a line, one after the other. */
  const auto load_w = [&](int at, int chunk) {
    ASSAY_UNROLL
    for (int j = 0; j < groups; ++j)
      ASSAY_UNROLL
    for (int i = chunk; i < chunk + 2; ++i)
      w[at + i - chunk][j] = i * skinny_chunk < left ? load_stream_16(row[j] + i * skinny_chunk) : none;
  };
  ASSAY_UNROLL
  for (int i = 0; i < ahead; i += 2)
    load_w(i, i);
  if (p.early) dependency_wait();

  uint4 *const ring = parts + shape::parts_bytes / 16 + warp * (stages * shape::stage);
  int next = first * skinny_chunk, place = 0; /* k of the pair to fetch next; the stage to read next */
  ASSAY_UNROLL
  for (int i = 0; i < stages; ++i, next += 2 * skinny_chunk)
    skinny_fetch<T, eights>(p, ring + i * shape::stage, next, end, lane);

  epilogue::template prepare<T>(p, n0);
  if constexpr (epilogue::scaled) skinny_measure(p, skinny_factors());

  float sum[groups][row_tiles][4] = {};
  for (int chunk = first; chunk < last; chunk += ahead) {
    ASSAY_UNROLL
    for (int i = 0; i < ahead; i += 2) {
      if (i > 0 && chunk + i >= last) break;
      uint4 *const stage = ring + place * shape::stage;
      cp_async_wait<stages - 1>();
      __syncwarp(); /* the warp's lanes have their parts of the stage */
      ASSAY_UNROLL
      for (int half = 0; half < 2; ++half) {
        uint4 x[eights];
        ASSAY_UNROLL
        for (int e = 0; e < eights; ++e)
          x[e] = stage[(8 * e + lane / 4) * 8 + ((4 * half + lane % 4) ^ (lane / 4 % 2 * 4))];
        ASSAY_UNROLL
        for (int j = 0; j < groups; ++j)
          skinny_multiply<T, eights>(sum[j], x, w[i + half][j]);
      }
      load_w(i, i + ahead);
      __syncwarp(); /* all lanes have read the stage */
      skinny_fetch<T, eights>(p, stage, next, end, lane);
      next += 2 * skinny_chunk;
      place = place + 1 < stages ? place + 1 : 0;
    }
    left -= ahead * skinny_chunk;
    ASSAY_UNROLL
    for (int j = 0; j < groups; ++j)
      row[j] += ahead * skinny_chunk;
  }

  ASSAY_UNROLL
  for (int j = 0; j < groups; ++j)
    ASSAY_UNROLL
  for (int i = 0; i < row_tiles; ++i) {
    const float(&s)[4] = sum[j][i];
    parts[(warp * shape::tiles + j * row_tiles + i) * 32 + lane] = {bits_of(s[0]), bits_of(s[1]), bits_of(s[2]),
                                                                    bits_of(s[3])};
  }
  __syncthreads(); /* all warps' sums are written */

  /* Stores the sums over the warps of two neighbours of one row, per thread. */
  const auto store = [&](int unit, float(&total)[2]) {
    const int tile = unit / 64, at = unit % 64 / 2; /* the lane */
    const int64_t m = tile % row_tiles * 16 + unit % 2 * 8 + at / 4;
    if constexpr (!epilogue::paired) skinny_finish<T, epilogue, 2>(p, m, n0 + tile / row_tiles * 8 + at % 4 * 2, total);
  };
  const uint2 *const halves = reinterpret_cast<const uint2 *>(parts);
  uint2 *const sent = reinterpret_cast<uint2 *>(parts) + warps * shape::units; /* the first block's sums */
  if constexpr (cluster > 1) cluster_wait();                                   /* all blocks have started */
  const auto add_warps = [&](int unit, float(&total)[2]) {
    ASSAY_UNROLL
    for (int i = 0; i < warps; ++i)
      skinny_add(total, halves[i * shape::units + unit]);
  };
  for (int unit = thread; unit < shape::units && rank == 0; unit += shape::threads) {
    float total[2] = {0.0f, 0.0f};
    if constexpr (epilogue::paired) {
      static_assert(cluster == 1 && groups % 2 == 0, "a block has the gates and the ups of its channels");
      constexpr int half = row_tiles * 64; /* units of 8 columns: gates, then ups */
      if (unit / half % 2 != 0) continue;
      float up[2] = {0.0f, 0.0f};
      add_warps(unit, total);
      add_warps(unit + half, up);
      const int at = unit % 64 / 2;
      const int64_t m = unit / 64 % row_tiles * 16 + unit % 2 * 8 + at / 4;
      skinny_scale<epilogue>(m, total);
      skinny_scale<epilogue>(m, up);
      epilogue::template store<T>(p, m, epilogue::channel(n0 + unit / half * 8) + at % 4 * 2, total, up);
    } else if constexpr (cluster == 1) {
      add_warps(unit, total);
      store(unit, total);
    } else {
      add_warps(unit, total);
      *cluster_shared(sent + unit, 1) = {bits_of(total[0]), bits_of(total[1])};
    }
  }
  if constexpr (cluster > 1) {
    cluster_arrive();
    cluster_wait(); /* the first block's sums have arrived */
    for (int unit = thread; unit < shape::units && rank == 1; unit += shape::threads) {
      float total[2] = {float_of(sent[unit].x), float_of(sent[unit].y)};
      add_warps(unit, total);
      store(unit, total);
    }
  }
}

/* ---- stream: a warp has all of k --------------------------------------------------------------------- */

/* skinny_stream: computes tiles of 16 channels for all rows, one tile per warp and turn. x is staged once per block, as
 * fragments.
 * Grid:   one block per multiprocessor. Block: `warps` warps.
 * Shared: 512 bytes per 8 rows of x and chunk.
 * Align:  as skinny_split.
 * Arch:   sm_80.
 * Limit:  bytes: N K sizeof(T). `ring` chunks of a warp's weights are in flight, across tiles. */
template <class T, int eights, int warps, int ring, class epilogue>
static __global__ void __launch_bounds__(32 * warps, 1) skinny_stream(typename epilogue::params p) {
  constexpr int row_tiles = skinny_row_tiles<eights>;
  ASSAY_DYNAMIC_SHARED(uint4, staged); /* [chunk][eights][32] */
  dependents_launch();
  if (!p.early) dependency_wait();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int chunks = (p.K + skinny_chunk - 1) / skinny_chunk, turns = (chunks + ring - 1) / ring;
  const int tiles = static_cast<int>((p.N + 15) / 16), step = static_cast<int>(gridDim.x) * warps;
  const uint4 none = {0, 0, 0, 0};
  int tile = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);

  /* The next chunks are those of row[]. `left` is what remains of them, in k from the lane's part on. */
  uint4 w[ring][2];
  const T *row[2];
  int left = 0;
  const auto begin_tile = [&](int of) {
    ASSAY_UNROLL
    for (int j = 0; j < 2; ++j) {
      const int64_t n = epilogue::weights(p, static_cast<int64_t>(of) * 16 + 8 * j + lane / 4);
      row[j] = static_cast<const T *>(p.w) + (n < p.N ? n : p.N - 1) * p.K + lane % 4 * 8;
    }
    left = of < tiles ? p.K - lane % 4 * 8 : 0;
  };
  /* Loads two chunks: both halves of a line, one after the other. */
  const auto load_w = [&](int at) {
    ASSAY_UNROLL
    for (int j = 0; j < 2; ++j)
      ASSAY_UNROLL
    for (int i = at; i < at + 2; ++i)
      w[i][j] = i * skinny_chunk < left ? load_stream_16(row[j] + i * skinny_chunk) : none;
  };
  begin_tile(tile);
  ASSAY_UNROLL
  for (int i = 0; i < ring; i += 2)
    load_w(i);
  if (p.early) dependency_wait();

  for (int at = thread; at < turns * ring * eights * 32; at += 32 * warps) {
    const int eight = at / 32 % eights, k = at / (32 * eights) * skinny_chunk;
    const T *const from = skinny_row<T>(p, 8 * eight + lane / 4);
    staged[at] = k + lane % 4 * 8 < p.K && from != NULL ? load_l2_16(from + k + lane % 4 * 8) : none;
  }
  if constexpr (epilogue::scaled) skinny_measure(p, skinny_factors());
  __syncthreads(); /* x is staged, and so are the factors of rows */

  for (; tile < tiles; tile += step) {
    float sum[2][row_tiles][4] = {};
    const uint4 *from = staged + lane;
    for (int turn = 1; turn <= turns; ++turn, from += ring * eights * 32) {
      if (turn < turns) {
        left -= ring * skinny_chunk;
        row[0] += ring * skinny_chunk;
        row[1] += ring * skinny_chunk;
      } else {
        begin_tile(tile + step);
      }
      ASSAY_UNROLL
      for (int i = 0; i < ring; ++i) {
        uint4 x[eights];
        ASSAY_UNROLL
        for (int e = 0; e < eights; ++e)
          x[e] = from[(i * eights + e) * 32];
        ASSAY_UNROLL
        for (int j = 0; j < 2; ++j)
          skinny_multiply<T, eights>(sum[j], x, w[i][j]);
        if (i % 2 == 1) load_w(i - 1);
      }
    }
    ASSAY_UNROLL
    for (int i = 0; i < row_tiles; ++i)
      ASSAY_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int64_t m = 16 * i + 8 * half + lane / 4;
      if constexpr (epilogue::paired) {
        float gate[2] = {sum[0][i][2 * half], sum[0][i][2 * half + 1]};
        float up[2] = {sum[1][i][2 * half], sum[1][i][2 * half + 1]};
        skinny_scale<epilogue>(m, gate);
        skinny_scale<epilogue>(m, up);
        epilogue::template store<T>(p, m, static_cast<int64_t>(tile) * 8 + lane % 4 * 2, gate, up);
      } else {
        ASSAY_UNROLL
        for (int j = 0; j < 2; ++j) {
          float total[2] = {sum[j][i][2 * half], sum[j][i][2 * half + 1]};
          skinny_finish<T, epilogue, 1>(p, m, static_cast<int64_t>(tile) * 16 + 8 * j + lane % 4 * 2, total);
        }
      }
    }
  }
}

/* ---- launch ------------------------------------------------------------------------------------------ */

constexpr int skinny_stream_warps = 8, skinny_stream_ring = 8;

/* The shapes for each number of groups. Sixteen warps have 128 registers per thread, eight have 255, and a block has
 * 227 KB; what is in flight must fit. */
template <int eights, int groups> struct skinny_shape_of;
template <int eights> struct skinny_shape_of<eights, 1> {
  using type = skinny_shape<eights, 1, 16, eights <= 4 ? 6 : 2, eights <= 4 ? 3 : 1>;
};
template <int eights> struct skinny_shape_of<eights, 2> { using type = skinny_shape<eights, 2, 16, 2, 1>; };
template <int eights> struct skinny_shape_of<eights, 3> { using type = skinny_shape<eights, 3, 8, 4, 2>; };
template <int eights> struct skinny_shape_of<eights, 4> { using type = skinny_shape<eights, 4, 8, 4, 2>; };
template <int eights> struct skinny_shape_of<eights, 6> { using type = skinny_shape<eights, 6, 8, 2, 2>; };

/* The same for an epilogue. With an activation, 64 rows of 16 columns need more than 128 registers. Up to 32 rows of 48
 * columns have twice as many weights in flight: all of them, for K = 1024. */
template <class epilogue, int eights, int groups> struct skinny_shape_for : skinny_shape_of<eights, groups> {};
template <class F, int eights> struct skinny_shape_for<skinny_gated<F>, eights, 6> {
  using type = skinny_shape<eights, 6, 8, eights <= 4 ? 4 : 2, 2>;
};
template <class F> struct skinny_shape_for<skinny_gated<F>, 8, 2> { using type = skinny_shape<8, 2, 8, 4, 2>; };

template <class epilogue, int eights, int groups>
struct skinny_shape_for<skinny_scaled<epilogue>, eights, groups> : skinny_shape_for<epilogue, eights, groups> {};

/* 17 to 32 rows of 8 channels. Up to 1024 terms, a block leaves room for another on its multiprocessor. With more, a
 * block would take more bytes of x from L2 than of weights: two blocks share 16 channels and half of x each. */
template <int eights, int groups> using skinny_short = skinny_shape<eights, groups, 8, 4, 2>;
template <int eights, int groups> using skinny_long = skinny_shape<eights, 2 * groups, 12, 4, 2, 2>;
constexpr int skinny_short_terms = 1024;

template <int value_> struct skinny_number { static constexpr int value = value_; };

/* Calls use() with the rows of x in eights: 1, 2, 4 or 8. */
template <class Use> assay_status skinny_with_eights(int64_t M, Use use) {
  if (M <= 8) return use(skinny_number<1>());
  if (M <= 16) return use(skinny_number<2>());
  if (M <= 32) return use(skinny_number<4>());
  return use(skinny_number<8>());
}

template <bool even = false, class Use> assay_status skinny_with_groups(int64_t groups, Use use) {
  if constexpr (even) {
    if (groups <= 2) return use(skinny_number<2>());
  } else {
    if (groups <= 1) return use(skinny_number<1>());
    if (groups <= 2) return use(skinny_number<2>());
    if (groups <= 3) return use(skinny_number<3>());
  }
  if (groups <= 4) return use(skinny_number<4>());
  return use(skinny_number<6>());
}

/* Returns the bytes of shared memory of skinny_stream, for a block of eights rows and a whole number of rings. */
inline int64_t skinny_staged_bytes(int64_t M, int64_t K) {
  const int64_t eights = M <= 8 ? 1 : M <= 16 ? 2 : M <= 32 ? 4 : 8, ring = skinny_stream_ring * skinny_chunk;
  return (K + ring - 1) / ring * skinny_stream_ring * eights * 512;
}

template <class T, class epilogue = skinny_columns>
assay_status skinny_launch_stream(const typename epilogue::params &p, assay_env *env, assay_error *error) {
  return skinny_with_eights(p.M, [&](auto eights) {
    constexpr int rows = decltype(eights)::value;
    const int64_t most = (p.N + 15) / 16, blocks = most < env->multiprocessors ? most : env->multiprocessors;
    (void)snprintf(env->path, sizeof env->path, "skinny stream rows=%d%s", 8 * rows, p.early ? " early" : "");
    return ASSAY_LAUNCH_WITH(error, (skinny_stream<T, rows, skinny_stream_warps, skinny_stream_ring, epilogue>), blocks,
                             32 * skinny_stream_warps, skinny_staged_bytes(p.M, p.K), in_turn(), env->stream, p);
  });
}

/* Returns the columns of a block, in eights: as many as give each multiprocessor one block. */
inline int64_t skinny_groups(int64_t N, int32_t multiprocessors) {
  return ((N + 7) / 8 + multiprocessors - 1) / multiprocessors;
}

/* Calls use() with a value of the shape for the call. */
template <class epilogue, class Use>
assay_status skinny_with_shape(const skinny_params &p, int32_t multiprocessors, Use use) {
  return skinny_with_eights(p.M, [&](auto rows) {
    return skinny_with_groups<epilogue::paired>(skinny_groups(p.N, multiprocessors), [&](auto columns) {
      constexpr int eights = decltype(rows)::value, groups = decltype(columns)::value;
      if constexpr (eights == 4 && groups == 1) {
        if (p.K <= skinny_short_terms) return use(skinny_short<eights, groups>());
        return use(skinny_long<eights, groups>());
      } else {
        return use(typename skinny_shape_for<epilogue, eights, groups>::type());
      }
    });
  });
}

template <class T, class epilogue = skinny_columns>
assay_status skinny_launch_split(const typename epilogue::params &p, assay_env *env, assay_error *error) {
  const int64_t eighths = (p.N + 7) / 8;
  return skinny_with_shape<epilogue>(p, env->multiprocessors, [&](auto chosen) {
    using shape = decltype(chosen);
    launch_options options = in_turn();
    options.cluster = shape::cluster;
    (void)snprintf(env->path, sizeof env->path, "skinny split rows=%d channels=%d warps=%d cluster=%d%s",
                   8 * shape::eights, 8 * shape::groups, shape::warps, shape::cluster, p.early ? " early" : "");
    return ASSAY_LAUNCH_WITH(error, (skinny_split<T, shape, epilogue>),
                             (eighths + shape::groups - 1) / shape::groups * shape::cluster, shape::threads,
                             shape::shared_bytes, options, env->stream, p);
  });
}

template <class Use> assay_status skinny_with_type(assay_dtype type, Use use) {
  if (type == ASSAY_BF16) return use(type_tag<bf16>());
#ifndef ASSAY_FEW_TYPES
  if (type == ASSAY_F16) return use(type_tag<f16>());
#endif
  return ASSAY_ERR_INTERNAL;
}

#ifdef ASSAY_FEW_TYPES
#define SKINNY_TYPE_CLAIMS "bf16"
#else
#define SKINNY_TYPE_CLAIMS "f16,bf16"
#endif

/* Refuses calls that these kernels cannot run. */
inline assay_status skinny_expect(const skinny_params &p, assay_dtype type, assay_error *error) {
  if (skinny_with_type(type, [](auto) { return ASSAY_OK; }) != ASSAY_OK)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "dtype: found %s, allowed " SKINNY_TYPE_CLAIMS,
                      assay_dtype_name(type));
  if (p.M > skinny_max_rows)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "rows: found %lld, allowed at most %d", static_cast<long long>(p.M),
                      skinny_max_rows);
  if (p.K % 8 != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "terms of a sum: found %d, allowed multiples of 8", p.K);
  if (p.x_row % 8 != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "elements between rows: found %lld, allowed multiples of 8",
                      static_cast<long long>(p.x_row));
  if (reinterpret_cast<uintptr_t>(p.x) % 16 != 0 || reinterpret_cast<uintptr_t>(p.w) % 16 != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "addresses: allowed multiples of 16");
  return ASSAY_OK;
}

constexpr int64_t skinny_split_channels = 48; /* per multiprocessor */

/* Tells whether each warp streams all of k. With fewer channels, or longer rows, warps divide k. */
inline bool skinny_streams(const skinny_params &p, int32_t multiprocessors) {
  return p.N > skinny_split_channels * multiprocessors && skinny_staged_bytes(p.M, p.K) <= skinny_max_staged;
}

/* Starts the kernel that fits the shape. */
template <class epilogue = skinny_columns>
assay_status skinny_start(const typename epilogue::params &p, assay_dtype type, assay_env *env, assay_error *error) {
  (void)snprintf(env->path, sizeof env->path, "skinny");
  if (p.M == 0 || p.N == 0) return ASSAY_OK;
  return skinny_with_type(type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return skinny_streams(p, env->multiprocessors) ? skinny_launch_stream<T, epilogue>(p, env, error)
                                                   : skinny_launch_split<T, epilogue>(p, env, error);
  });
}

/* Returns whether two neighbours of c may be stored at once. */
inline bool skinny_pairs(const void *c, int64_t c_row, assay_dtype out) {
  return reinterpret_cast<uintptr_t>(c) % static_cast<uintptr_t>(2 * assay_dtype_size(out)) == 0 && c_row % 2 == 0;
}

/* Returns the place in K of the product that is summed as number i. The first of a chunk's two steps has the first half
 * of each lane's 8, and the second step has the other. */
inline int64_t skinny_order(int64_t i, int64_t) {
  const int64_t in_chunk = i % skinny_chunk, in_step = in_chunk % 16;
  return i - in_chunk + in_step / 4 * 8 + in_chunk / 16 * 4 + in_step % 4;
}

/* Returns the warps over which skinny_split divides k; their sums are added in order. */
template <class epilogue> int64_t skinny_split_parts(const skinny_params &p, int32_t multiprocessors) {
  int64_t parts = 0;
  (void)skinny_with_shape<epilogue>(p, multiprocessors, [&](auto shape) {
    parts = decltype(shape)::warps * decltype(shape)::cluster;
    return ASSAY_OK;
  });
  return parts;
}

/* Declares the sums: steps of 16 as above; in the split kernel each warp's from zero, over whole pairs of chunks. */
template <class epilogue = skinny_columns>
void skinny_sums(bool stream, const skinny_params &p, int32_t multiprocessors, assay_sums *sums) {
  sums->unit = ASSAY_SUM_MMA_16;
  sums->pad = skinny_chunk;
  sums->order = skinny_order;
  if (!stream) {
    sums->parts = skinny_split_parts<epilogue>(p, multiprocessors);
    sums->tile = 2 * skinny_chunk;
  }
  sums->after[0] = ASSAY_AFTER_ALPHA;
  sums->after[1] = ASSAY_AFTER_OLD;
  sums->after[2] = ASSAY_AFTER_BIAS;
}

/* Returns the contract. The stream kernel has one running sum of sixteens, the split kernel has one per warp; one is
 * the smaller number. */
constexpr assay_contract skinny_contract_of(assay_contract c) {
  c.alone = false; /* the rows of a call also decide between stream and split */
  c.cut = tensor_core_terms;
  return c;
}
constexpr assay_contract skinny_contract = skinny_contract_of(rowwise_contract(0.0, 1));

} // namespace ASSAY_NS
#endif
