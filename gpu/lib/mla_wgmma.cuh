/* mla_wgmma.cuh: absorbed attention over a latent cache on Hopper's tensor cores: what the three warpgroups of a block
 * do. 64 rows of one request (heads, and heads of several tokens) share every entry that is loaded.
 *
 *   S = Q K^T      one warpgroup, 576 channels; weights in its registers, and rounded in shared memory
 *   O = O + P V    two warpgroups, 256 channels each; V is the first 512 channels of the tile that was K
 *
 * The third warpgroup loads tiles of 64 entries: by the copy engine, or decoded from entries of 656 bytes. */
#ifndef ASSAY_GPU_LIB_MLA_WGMMA_CUH
#define ASSAY_GPU_LIB_MLA_WGMMA_CUH

#include "gpu/lib/mla.cuh"
#include "gpu/lib/ptx_async.cuh"
#include "gpu/lib/ptx_mma.cuh"
#include "gpu/lib/ptx_wgmma.cuh"
#include "gpu/lib/vectors.cuh"
#include "gpu/lib/warp.cuh"

namespace ASSAY_NS {
namespace {

constexpr int32_t tile_rows = 64, tile_keys = 64, piece_bytes = tile_keys * 128, pieces = mla_entry / 64;
constexpr int32_t tile_bytes = pieces * piece_bytes, stages = 2, half_c = mla_c / 2;
constexpr int32_t blocks_wanted = 132; /* multiprocessors of Hopper: bits do not depend on the card */
constexpr int32_t least_split = 256;   /* keys */
constexpr int32_t latent_threads = 384;

/* Barriers, and what the scoring warpgroup tells the other one. */
struct latent_control {
  uint64_t q_full, full[stages], free[stages], p_full, p_free, done;
  float shrink[tile_rows], inverse[tile_rows];
};

constexpr int32_t stage_at = tile_bytes, p_at = stage_at + stages * tile_bytes, control_at = p_at + tile_rows * 128;
constexpr int32_t latent_bytes = control_at + static_cast<int32_t>(sizeof(latent_control));
static_assert(latent_bytes <= launch_max_shared, "one block per multiprocessor");

struct latent_params {
  mla_params m;
  float *partial, *partial_lse; /* [splits, N H, 512] and [splits, N H]; with splits > 1 */
  int32_t places, splits;       /* places: groups of 64 rows, empty ones included */
  int32_t box, heads;           /* entries of one block, and heads of one row, that one copy moves */
  float scale_2;                /* scale / ln 2 */
};

/* The work of one block: 64 rows of a request's T H, and keys from `begin`, a multiple of 64, to `end`. */
struct latent_item {
  mla_chunk chunk;
  int32_t request, split, first_row, rows, length, begin, end, tiles; /* rows: T H */
  int64_t base;                                                       /* the first row of the request, of N H */
};

/* Returns the first place of a request. Places of 64 rows are handed out without knowing how long requests are. A
 * request begins at place floor(rows before it / 64), and one later for each request before it. Where 64 divides H, its
 * first row is a multiple of 64, and no place is empty. */
__device__ __forceinline__ int64_t first_place(const latent_params &p, int32_t request) {
  const int64_t before = static_cast<int64_t>(mla_begin(p.m, request)) * p.m.H;
  return before / tile_rows + (p.m.H % tile_rows != 0 ? request : 0);
}

/* Returns the last request that begins at the place or before it. */
__device__ __forceinline__ int32_t request_at(const latent_params &p, int64_t place) {
  int32_t low = 0, high = p.m.B;
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    if (first_place(p, middle) <= place)
      low = middle;
    else
      high = middle;
  }
  return low;
}

__device__ __forceinline__ latent_item item_of(const latent_params &p) {
  const int32_t block = static_cast<int32_t>(blockIdx.x);
  const int32_t place = block % p.places;
  latent_item item;
  item.request = request_at(p, place);
  item.chunk = mla_chunk_of(p.m, item.request);
  item.first_row = static_cast<int32_t>(place - first_place(p, item.request)) * tile_rows;
  item.rows = item.chunk.T * p.m.H;
  item.base = static_cast<int64_t>(item.chunk.first) * p.m.H;
  item.split = block / p.places;
  item.length = mla_length(p.m, item.request);
  const int32_t even = (item.length + p.splits - 1) / p.splits;
  const int32_t share = p.splits == 1 ? item.length : (max(even, least_split) + tile_keys - 1) / tile_keys * tile_keys;
  item.begin = static_cast<int32_t>(min(static_cast<int64_t>(item.split) * share, static_cast<int64_t>(item.length)));
  item.end = static_cast<int32_t>(min(static_cast<int64_t>(item.begin) + share, static_cast<int64_t>(item.length)));
  item.tiles = item.first_row < item.rows ? (item.end - item.begin + tile_keys - 1) / tile_keys : 0;
  return item;
}

/* ---- loading ----------------------------------------------------------------------------------------- */

/* Loads the rows' queries, by one thread. A copy moves `heads` heads of one row of q; 64 rows are 64 / heads copies. In
 * place of rows past the request's end the next request's are loaded, or zeros: nothing reads their results. */
__device__ __forceinline__ void load_queries(const latent_params &p, const latent_item &item, const tensor_map *map_q,
                                             unsigned char *shared, latent_control *control) {
  mbarrier_expect(&control->q_full, tile_bytes);
  for (int32_t part = 0; part < tile_rows; part += p.heads) {
    const int32_t at = item.first_row + part, row = item.chunk.first + at / p.m.H;
    for (int32_t x = 0; x < pieces; ++x)
      tma_load(shared + x * piece_bytes + part * 128, map_q, &control->q_full, x * 64, at % p.m.H, row);
  }
}

/* Loads all tiles of an item, by one thread. Where a tile goes past the end, the last entries are loaded again: nothing
 * reads them, but every tile is whole. */
__device__ __forceinline__ void load_entries(const latent_params &p, const latent_item &item, const tensor_map *map_k,
                                             unsigned char *shared, latent_control *control) {
  const int32_t *const table = p.m.table + static_cast<int64_t>(item.request) * p.m.W;
  const int32_t last = (item.end - 1) / p.box * p.box;
  for (int32_t tile = 0; tile < item.tiles; ++tile) {
    const int32_t stage = tile % stages;
    unsigned char *const to = shared + stage_at + stage * tile_bytes;
    for (int32_t part = 0; part < tile_keys / p.box; ++part) {
      const int32_t t = min(item.begin + tile * tile_keys + part * p.box, last), block = table[t / p.m.S];
      if (part == 0) {
        mbarrier_wait(&control->free[stage], (tile / stages & 1) ^ 1);
        mbarrier_expect(&control->full[stage], tile_bytes);
      }
      for (int32_t x = 0; x < pieces; ++x)
        tma_load(to + x * piece_bytes + part * p.box * 128, map_k, &control->full[stage], x * 64, t % p.m.S, block);
    }
  }
}

/* Stores 8 channels of an entry of a tile: 16 bytes at chunk `chunk` of piece `piece`. */
__device__ __forceinline__ void store_chunk(unsigned char *tile, int32_t piece, int32_t entry, int32_t chunk,
                                            const uint4 &eight) {
  store_vector(reinterpret_cast<uint4 *>(tile + piece * piece_bytes + entry * 128 + (((chunk ^ entry) & 7) << 4)),
               eight);
}

/* Returns two e4m3 codes, in the lower half of `codes`, times the scale and rounded. */
template <class T> __device__ __forceinline__ uint32_t decode_pair(uint32_t codes, float scale) {
#ifdef ASSAY_SIMT
  const float low = to_float(e4m3{static_cast<uint8_t>(codes)}),
              high = to_float(e4m3{static_cast<uint8_t>(codes >> 8)});
  return round_pair<T>(low * scale, high * scale);
#else
  const __half2 both(__nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3));
  const float2 value = __half22float2(both);
  return round_pair<T>(value.x * scale, value.y * scale);
#endif
}

/* Loads all tiles of an item whose entries are 656 bytes, by a warpgroup. A warp takes an entry at a time: 16 codes a
 * lane, all of one scale. `batch` entries of each warp are in flight. Entries past the end become zeros. */
template <class T>
__device__ __forceinline__ void load_words(const latent_params &p, const latent_item &item, unsigned char *shared,
                                           latent_control *control) {
  constexpr int32_t batch = 8, vectors = mla_pe / 8;
  const int32_t thread = static_cast<int32_t>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  for (int32_t tile = 0; tile < item.tiles; ++tile) {
    const int32_t stage = tile % stages, begin = item.begin + tile * tile_keys;
    unsigned char *const to = shared + stage_at + stage * tile_bytes;
    ASSAY_ROLLED
    for (int32_t first = warp; first < tile_keys; first += 4 * batch) {
      uint4 codes[batch] = {};
      float scale[batch] = {};
      ASSAY_UNROLL
      for (int i = 0; i < batch; ++i) {
        const int32_t t = begin + first + 4 * i;
        if (t >= item.end) continue;
        const uint32_t *const word = element_at<uint32_t>(p.m.words, mla_entry_begin(p.m, item.request, t, mla_words));
        codes[i] = load_vector(word + 4 * lane);
        scale[i] = float_of(word[mla_scale_word + lane * 16 / mla_tile]);
      }
      if (first == warp) mbarrier_wait(&control->free[stage], (tile / stages & 1) ^ 1);
      ASSAY_UNROLL
      for (int i = 0; i < batch; ++i) {
        const uint4 low = make_uint4(decode_pair<T>(codes[i].x, scale[i]), decode_pair<T>(codes[i].x >> 16, scale[i]),
                                     decode_pair<T>(codes[i].y, scale[i]), decode_pair<T>(codes[i].y >> 16, scale[i]));
        const uint4 high = make_uint4(decode_pair<T>(codes[i].z, scale[i]), decode_pair<T>(codes[i].z >> 16, scale[i]),
                                      decode_pair<T>(codes[i].w, scale[i]), decode_pair<T>(codes[i].w >> 16, scale[i]));
        /* Every other four lanes begin with the second half, so that 8 lanes write to all banks. */
        const int32_t turn = lane / 4 % 2, chunk = lane % 4 * 2;
        store_chunk(to, lane / 4, first + 4 * i, chunk + turn, turn != 0 ? high : low);
        store_chunk(to, lane / 4, first + 4 * i, chunk + 1 - turn, turn != 0 ? low : high);
      }
    }
    uint4 rotated[tile_keys * vectors / 128] = {};
    ASSAY_UNROLL
    for (int i = 0; i < tile_keys * vectors / 128; ++i) {
      const int32_t at = thread + 128 * i, t = begin + at / vectors;
      if (t >= item.end) continue;
      rotated[i] = load_vector(element_at<uint32_t>(p.m.words, mla_entry_begin(p.m, item.request, t, mla_words)) +
                               mla_pe_word + 4 * (at % vectors));
    }
    ASSAY_UNROLL
    for (int i = 0; i < tile_keys * vectors / 128; ++i)
      store_chunk(to, pieces - 1, (thread + 128 * i) / vectors, (thread + 128 * i) % vectors, rotated[i]);
    fence_proxy_async();
    mbarrier_arrive(&control->full[stage]);
  }
}

/* ---- computing --------------------------------------------------------------------------------------- */

/* Writes zeros over entries `valid` to 63 in four pieces of a tile: dead bytes must not be multiplied. All threads of a
 * warpgroup call it; `id` is their barrier. */
__device__ __forceinline__ void clear_tail(unsigned char *four_pieces, int32_t valid, uint32_t id) {
  if (valid >= tile_keys) return;
  const int32_t thread = static_cast<int32_t>(threadIdx.x) % 128;
  for (int32_t i = thread; i < (tile_keys - valid) * 32; i += 128)
    *reinterpret_cast<uint4 *>(four_pieces + i % 32 / 8 * piece_bytes + (valid + i / 32) * 128 + i % 8 * 16) = uint4{};
  fence_proxy_async();
  named_barrier_sync(id, 128);
}

/* Returns where the result of row `at` of a request's T H begins. */
template <class T> __device__ __forceinline__ T *out_of(const latent_params &p, const latent_item &item, int32_t at) {
  return static_cast<T *>(p.m.out) + static_cast<int64_t>(item.chunk.first + at / p.m.H) * p.m.out_row +
         static_cast<int64_t>(at % p.m.H) * mla_c;
}

/* Stores a warpgroup's half of O, each row times its factor. The thread has rows `row` and `row` + 8 of the block. */
template <class T>
__device__ __forceinline__ void store_half(const latent_params &p, const latent_item &item, int32_t row, int32_t half,
                                           const float (&O)[half_c / 2], const float (&factor)[2]) {
  const int32_t column = half * half_c + 2 * (static_cast<int32_t>(threadIdx.x) % 4);
  ASSAY_UNROLL
  for (int h = 0; h < 2; ++h) {
    const int32_t at = item.first_row + row + 8 * h;
    if (at >= item.rows) continue;
    if (p.splits == 1) {
      T *const to = out_of<T>(p, item, at) + column;
      ASSAY_UNROLL
      for (int j = 0; j < half_c / 8; ++j)
        *reinterpret_cast<uint32_t *>(to + 8 * j) =
            round_pair<T>(O[4 * j + 2 * h] * factor[h], O[4 * j + 2 * h + 1] * factor[h]);
    } else {
      const int64_t place = static_cast<int64_t>(item.split) * p.m.N * p.m.H + item.base + at;
      float *const to = p.partial + place * mla_c + column;
      ASSAY_UNROLL
      for (int j = 0; j < half_c / 8; ++j)
        *reinterpret_cast<float2 *>(to + 8 * j) =
            make_float2(O[4 * j + 2 * h] * factor[h], O[4 * j + 2 * h + 1] * factor[h]);
    }
  }
}

/* Writes lse of a row: of the result, or of a split. */
__device__ __forceinline__ void store_lse(const latent_params &p, const latent_item &item, int32_t row, float lse) {
  const int64_t place = item.base + row;
  if (row >= item.rows) return;
  if (p.splits > 1)
    p.partial_lse[static_cast<int64_t>(item.split) * p.m.N * p.m.H + place] = lse;
  else if (p.m.lse != nullptr)
    p.m.lse[place] = lse;
}

template <int count> __device__ __forceinline__ void zero(float (&x)[count]) {
  ASSAY_UNROLL
  for (int i = 0; i < count; ++i)
    x[i] = 0.0f;
}

__device__ __forceinline__ void rescale(float (&O)[half_c / 2], const float (&shrink)[2]) {
  if (__all_sync(0xffffffffu, shrink[0] >= 1.0f && shrink[1] >= 1.0f)) return;
  ASSAY_UNROLL
  for (int i = 0; i < half_c / 2; ++i)
    O[i] *= shrink[i / 2 % 2];
}

/* The warpgroup that makes scores and weights, and the sums of channels 0 to 255. */
template <class T> struct latent_scorer {
  const latent_params &p;
  const latent_item &item;
  unsigned char *const shared;
  latent_control *const control;
  const int32_t warp, lane, row; /* row: the thread's first of two in the block, 8 apart */
  int32_t limit[2];              /* keys that the two rows see */
  float peak[2], total[2], shrink[2];
  float O[half_c / 2];
  uint32_t P[16];

  __device__ __forceinline__ latent_scorer(const latent_params &p_, const latent_item &item_, unsigned char *shared_,
                                           latent_control *control_)
      : p(p_), item(item_), shared(shared_), control(control_), warp(static_cast<int32_t>(threadIdx.x) / 32 % 4),
        lane(static_cast<int32_t>(threadIdx.x) % 32), row(16 * warp + lane / 4) {
    ASSAY_UNROLL
    for (int h = 0; h < 2; ++h) {
      limit[h] = mla_seen(item.length, item.chunk.T, min(item.first_row + row + 8 * h, item.rows - 1) / p.m.H);
      peak[h] = -INFINITY;
      total[h] = 0.0f;
    }
    zero(O);
  }

  __device__ __forceinline__ unsigned char *stage_of(int32_t tile) const {
    return shared + stage_at + tile % stages * tile_bytes;
  }

  __device__ __forceinline__ void issue_scores(float (&S)[32], int32_t tile) {
    mbarrier_wait(&control->full[tile % stages], tile / stages & 1);
    uint32_t anew[1] = {0}; /* hides that the descriptors are the same for every tile: they would fill registers */
    wgmma_order(anew);
    const uint64_t query = wgmma_descriptor(shared, 1024, 16, swizzle_128) + anew[0];
    const uint64_t keys = wgmma_descriptor(stage_of(tile), 1024, 16, swizzle_128);
    wgmma_order(S);
    wgmma_fence();
    ASSAY_UNROLL
    for (int step = 0; step < mla_entry / 16; ++step) {
      const uint64_t ahead = static_cast<uint64_t>(step / 4 * piece_bytes + step % 4 * 32) >> 4;
      wgmma_m64k16<T, tile_keys>(S, query + ahead, keys + ahead, step > 0);
    }
    wgmma_commit();
  }

  /* Turns S into weights, rounds them into P and shared memory, and tells the other warpgroup. */
  __device__ __forceinline__ void weigh(float (&S)[32], int32_t tile) {
    const int32_t key = item.begin + tile * tile_keys;
    const int32_t least = mla_seen(item.length, item.chunk.T, item.first_row / p.m.H);
    if (key + tile_keys > min(least, item.end)) {
      ASSAY_UNROLL
      for (int i = 0; i < 32; ++i)
        if (key + i / 4 * 8 + 2 * (lane % 4) + i % 2 >= min(limit[i / 2 % 2], item.end)) S[i] = -INFINITY;
    }
    ASSAY_UNROLL
    for (int h = 0; h < 2; ++h) {
      float most = peak[h];
      ASSAY_UNROLL
      for (int i = 0; i < 16; ++i)
        most = fmaxf(most, S[i / 2 * 4 + 2 * h + i % 2]);
      most = groups_max<4>(most);
      const float top = most == -INFINITY ? 0.0f : most;
      shrink[h] = peak[h] == most ? 1.0f : exp2_approx((peak[h] - top) * p.scale_2);
      peak[h] = most;
      float sum = 0.0f;
      ASSAY_UNROLL
      for (int i = 0; i < 16; ++i) {
        float &s = S[i / 2 * 4 + 2 * h + i % 2];
        s = exp2_approx((s - top) * p.scale_2);
        sum += s;
      }
      total[h] = total[h] * shrink[h] + sum;
    }
    if (tile > 0) mbarrier_wait(&control->p_free, (tile - 1) & 1);
    unsigned char *const weights = shared + p_at + row * 128 + lane % 4 * 4;
    ASSAY_UNROLL
    for (int i = 0; i < 16; ++i) {
      P[i] = round_pair<T>(S[2 * i], S[2 * i + 1]);
      *reinterpret_cast<uint32_t *>(weights + i % 2 * 1024 + (((i / 2) ^ (lane / 4)) << 4)) = P[i];
    }
    if (lane % 4 == 0) {
      control->shrink[row] = shrink[0];
      control->shrink[row + 8] = shrink[1];
    }
    fence_proxy_async();
    mbarrier_arrive(&control->p_full);
    rescale(O, shrink);
  }

  __device__ __forceinline__ void issue_values(int32_t tile) {
    unsigned char *const stage = stage_of(tile);
    clear_tail(stage, item.end - item.begin - tile * tile_keys, 1);
    const uint64_t values = wgmma_descriptor(stage, 1024, piece_bytes, swizzle_128);
    wgmma_order(O);
    wgmma_order(P);
    wgmma_fence();
    ASSAY_UNROLL
    for (int step = 0; step < tile_keys / 16; ++step)
      wgmma_m64k16<T, half_c, true>(O, P, 4 * step, values + static_cast<uint64_t>(step * 16 * 128 >> 4), true);
    wgmma_commit();
  }

  __device__ __forceinline__ void run() {
    float S[32];
    mbarrier_wait(&control->q_full, 0);
    issue_scores(S, 0);
    wgmma_wait<0>();
    wgmma_order(S);
    for (int32_t tile = 0; tile < item.tiles - 1; ++tile) {
      weigh(S, tile);
      issue_values(tile);
      issue_scores(S, tile + 1);
      wgmma_wait<1>();
      wgmma_order(O);
      wgmma_order(P);
      if (lane == 0) mbarrier_arrive(&control->free[tile % stages]);
      wgmma_wait<0>();
      wgmma_order(S);
    }
    weigh(S, item.tiles - 1);
    issue_values(item.tiles - 1);
    wgmma_wait<0>();
    wgmma_order(O);
    float factor[2];
    ASSAY_UNROLL
    for (int h = 0; h < 2; ++h) {
      const float sum = groups_sum<4>(total[h]);
      factor[h] = sum != 0.0f ? 1.0f / sum : 0.0f; /* NaN shows */
      if (lane % 4 != 0) continue;
      control->inverse[row + 8 * h] = factor[h];
      store_lse(p, item, item.first_row + row + 8 * h,
                sum != 0.0f ? __fadd_rn(__fmul_rn(peak[h], p.m.scale), logf(sum)) : -INFINITY);
    }
    mbarrier_arrive(&control->done);
    store_half<T>(p, item, row, 0, O, factor);
  }
};

/* The warpgroup that makes the sums of channels 256 to 511. */
template <class T>
__device__ __forceinline__ void sum_upper_half(const latent_params &p, const latent_item &item, unsigned char *shared,
                                               latent_control *control) {
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32 % 4, lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int32_t row = 16 * warp + lane / 4;
  const uint64_t weights = wgmma_descriptor(shared + p_at, 1024, 16, swizzle_128);
  float O[half_c / 2];
  zero(O);
  for (int32_t tile = 0; tile < item.tiles; ++tile) {
    const int32_t stage = tile % stages;
    unsigned char *const upper = shared + stage_at + stage * tile_bytes + 4 * piece_bytes;
    mbarrier_wait(&control->full[stage], tile / stages & 1);
    mbarrier_wait(&control->p_full, tile & 1);
    const float shrink[2] = {control->shrink[row], control->shrink[row + 8]};
    rescale(O, shrink);
    clear_tail(upper, item.end - item.begin - tile * tile_keys, 2);
    const uint64_t values = wgmma_descriptor(upper, 1024, piece_bytes, swizzle_128);
    wgmma_order(O);
    wgmma_fence();
    ASSAY_UNROLL
    for (int step = 0; step < tile_keys / 16; ++step)
      wgmma_m64k16<T, half_c, true>(O, weights + 2 * step, values + static_cast<uint64_t>(step * 16 * 128 >> 4), true);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_order(O);
    if (lane == 0) {
      mbarrier_arrive(&control->free[stage]);
      mbarrier_arrive(&control->p_free);
    }
  }
  mbarrier_wait(&control->done, 0);
  const float factor[2] = {control->inverse[row], control->inverse[row + 8]};
  store_half<T>(p, item, row, 1, O, factor);
}

/* Writes the rows of an item without keys. */
template <class T> __device__ __forceinline__ void store_nothing(const latent_params &p, const latent_item &item) {
  const int32_t rows = min(tile_rows, item.rows - item.first_row), thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t row = thread; row < rows; row += latent_threads)
    store_lse(p, item, item.first_row + row, -INFINITY);
  if (p.splits > 1) return;
  for (int32_t i = thread; i < rows * mla_c; i += latent_threads)
    out_of<T>(p, item, item.first_row + i / mla_c)[i % mla_c] = from_float<T>(0.0f);
}

} // namespace
} // namespace ASSAY_NS
#endif
