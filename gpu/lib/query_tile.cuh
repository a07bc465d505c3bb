/* query_tile.cuh: attention of many query rows over the paged cache on CUDA cores, independent of what is done with a
 * score. It uses four warps, 32 lines of one request and kv head, and tiles of 64 keys. It takes what tensor cores do
 * not: f32, fp8, layout x, every group, every head size.
 *
 * A line is a query row and head. Lines of a request are numbered through its rows, with a row's heads of the group
 * together. A tile of 32 is therefore full whatever the group is. K and V of a tile of keys are read once for all of
 * them.
 *
 *   S = Q K^T        f32; a warp has 8 lines, a lane two keys of each: 16 sums, over pieces of 64 channels of K
 *   P = weights(S)   the operator's, in place; then through shared memory, with a key's 8 lines together
 *   O = O + P V      f32; a lane has two channels of a piece of 64 for the warp's 8 lines
 *
 * A warp skips keys whose weight is 0 for all its lines. Keys whose weight is 0 for all lines of the block are not
 * read.
 *
 * Tiles of keys begin at multiples of 64, and a line's sums run in key order. A line's bits therefore depend neither on
 * the other lines of its block nor on its place among them.
 *
 * An operator provides Weights:
 *
 *   Weights::params, with `attention_params a`;  Weights::line: first, last (keys), and what else a line has
 *   blocks                                   per multiprocessor, as many as leave the registers it needs
 *   prepare(p, row, head, line)              fills the rest of a line, and may move its first and last key
 *   sparse(p)                                whether there are keys between first and last that sees() excludes
 *   sees(p, line, t)                         for first <= t <= last
 *   start()
 *   weigh(p, line, l, t, s, O)               line l of the warp; t: the lane's first key, the second is 32 further.
 *                                            s: its two scores q . k, which become weights. O: the line's sums so far
 *   finish(p, l, at, O)                      at: row * H + head */
#ifndef ASSAY_GPU_LIB_QUERY_TILE_CUH
#define ASSAY_GPU_LIB_QUERY_TILE_CUH

#include "gpu/lib/paged.cuh"
#include "gpu/lib/prefill_variant.cuh"
#include "gpu/lib/rows.cuh"
#include "gpu/lib/schedules.cuh"

namespace ASSAY_NS {

constexpr int32_t query_warps = 4, query_threads = 32 * query_warps;
constexpr int32_t lines_a_warp = 8, query_lines = lines_a_warp * query_warps;
constexpr int32_t query_keys = 64, piece_channels = 64, most_pieces = attention_max_D / piece_channels;
constexpr int32_t piece_pitch = piece_channels + 4; /* eight keys of a quad of channels lie in different banks */

/* A line's sums: two channels of each piece. */
using line_sums = float[most_pieces][2];

/* ---- items ------------------------------------------------------------------------------------------ */

/* Lines of one request. Line i is row `row` + (head + i) / G, head (head + i) mod G of the group. */
struct query_item {
  int64_t row;
  int32_t request, head, lines;
  int32_t position; /* position of `row`; negative: it sees nothing */
  bool padding;     /* rows after all requests */
};

/* Returns the number of a request's first tile. Request B stands for the rows after all requests. A request has at most
 * as many tiles as there are numbers up to the next request's first: floor(a + b) + 1 >= floor(a) + ceil(b). */
__device__ __forceinline__ int64_t first_query_tile(const attention_params &a, int32_t request) {
  return static_cast<int64_t>(a.cu_q[request]) * a.G / query_lines + request;
}

inline int64_t most_query_tiles(const attention_params &a) {
  return a.N * a.G / query_lines + a.B + 1;
}

__device__ __forceinline__ query_item query_item_of(const attention_params &a, int64_t tile) {
  int32_t low = 0, high = a.B + 1; /* first tile of low <= tile < first tile of high */
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    if (first_query_tile(a, middle) <= tile)
      low = middle;
    else
      high = middle;
  }
  const int64_t first_row = a.cu_q[low], line = (tile - first_query_tile(a, low)) * query_lines;
  const int64_t end = low < a.B ? a.cu_q[low + 1] : a.N;
  const int64_t left = (end - first_row) * a.G - line, row = line / a.G;
  query_item item;
  item.request = low;
  item.row = first_row + row;
  item.head = static_cast<int32_t>(line - row * a.G);
  item.lines = static_cast<int32_t>(left < 0 ? 0 : left < query_lines ? left : query_lines);
  item.padding = low == a.B;
  item.position = item.padding ? -1 : a.length[low] - static_cast<int32_t>(end - item.row);
  return item;
}

/* ---- one tile of keys ------------------------------------------------------------------------------- */

/* Returns a mask of keys of a tile, one bit per key. */
__device__ __forceinline__ uint64_t key_bits(int32_t from, int32_t to) {
  const int32_t first = max(from, 0), last = min(to, query_keys - 1);
  return first > last ? 0 : ~UINT64_C(0) << first & ~UINT64_C(0) >> (query_keys - 1 - last);
}

/* Loads channels channel .. channel + 63 of the wanted keys of the tile, as f32, to to[key * piece_pitch + channel].
 * Keys that are not wanted are not read, and their places keep their contents. Threads take quads of neighbouring
 * channels. In layout x, where tokens are neighbours, neighbouring threads take quads of neighbouring keys. */
template <class KV, bool values>
__device__ __forceinline__ void load_piece(const attention_params &a, int32_t request, int32_t kv_head, int32_t base,
                                           uint64_t wanted, int32_t channel, float scale, bool v_quads, float *to) {
  constexpr int32_t quads = piece_channels / 4, passes = query_keys * quads / query_threads, together = 2;
  const paged_cache &cache = a.cache;
  const bool by_token = cache.v_channel != 1;
  ASSAY_ROLLED
  for (int32_t pass = 0; pass < passes; pass += together) {
    quad<KV> held[together];
    int32_t place[together]; /* -1: not wanted */
    ASSAY_UNROLL
    for (int32_t i = 0; i < together; ++i) {
      const int32_t mine = static_cast<int32_t>(threadIdx.x) + (pass + i) * query_threads;
      const int32_t key = by_token ? mine % query_keys : mine / quads;
      const int32_t at = 4 * (by_token ? mine / query_keys : mine % quads), d = channel + at, t = base + key;
      place[i] = -1;
      if ((wanted >> key & 1) == 0 || d >= (values ? a.D_v : a.D)) continue;
      place[i] = key * piece_pitch + at;
      const int64_t block = block_of(cache, request, t);
      const int32_t slot = slot_of(cache, t);
      if constexpr (values) {
        const int64_t value = v_offset(cache, block, slot, kv_head) + d * cache.v_channel;
        if (by_token) {
          ASSAY_UNROLL
          for (int e = 0; e < 4; ++e)
            held[i].element[e] = *element_at<KV>(cache.v, value + e * cache.v_channel);
        } else {
          held[i] = load_quad(element_at<KV>(cache.v, value), v_quads);
        }
      } else {
        const int64_t key_at = k_offset(cache, block, slot, kv_head) + k_channel(cache, d);
        held[i] = load_quad(element_at<KV>(cache.k, key_at), cache.quads);
      }
    }
    ASSAY_UNROLL
    for (int32_t i = 0; i < together; ++i) {
      if (place[i] < 0) continue;
      quad<float> full;
      ASSAY_UNROLL
      for (int e = 0; e < 4; ++e)
        full.element[e] = dequantise(held[i].element[e], scale);
      *reinterpret_cast<quad<float> *>(to + place[i]) = full;
    }
  }
}

/* Adds the products of a piece's channels to the scores of the lane's two keys. q: the warp's first line. */
__device__ __forceinline__ void dot_piece(const float *q, int32_t D, const float *piece, int32_t channels,
                                          float (&s)[lines_a_warp][2]) {
  const float *const k = piece + lane_id() * piece_pitch;
  ASSAY_ROLLED
  for (int32_t c = 0; c < channels; c += 4) {
    const quad<float> k0 = load_quad(k + c, true), k1 = load_quad(k + 32 * piece_pitch + c, true);
    ASSAY_UNROLL
    for (int l = 0; l < lines_a_warp; ++l) {
      const quad<float> mine = load_quad(q + l * D + c, true);
      ASSAY_UNROLL
      for (int e = 0; e < 4; ++e) {
        s[l][0] += mine.element[e] * k0.element[e];
        s[l][1] += mine.element[e] * k1.element[e];
      }
    }
  }
}

/* Adds weight times V over the keys of `live`, in their order, to the sums of the lane's two channels of a piece. V of
 * a line whose weight is 0 may be anything. */
__device__ __forceinline__ void add_piece(const float *weight, const float *piece, uint64_t live, int number,
                                          line_sums (&O)[lines_a_warp]) {
  const float *const v = piece + lane_id();
  ASSAY_ROLLED
  for (; live != 0; live &= live - 1) {
    const int32_t key = __ffsll(static_cast<long long>(live)) - 1;
    const float v0 = v[key * piece_pitch], v1 = v[key * piece_pitch + 32];
    ASSAY_UNROLL
    for (int l = 0; l < lines_a_warp; l += 4) {
      const quad<float> w = load_quad(weight + key * lines_a_warp + l, true);
      ASSAY_UNROLL
      for (int e = 0; e < 4; ++e) {
        if (w.element[e] == 0.0f) continue;
        O[l + e][number][0] += w.element[e] * v0;
        O[l + e][number][1] += w.element[e] * v1;
      }
    }
  }
}

/* ---- the kernel ------------------------------------------------------------------------------------- */

/* f32 of dynamic shared memory: the queries, a piece of K or V, the weights of each warp. */
constexpr int32_t query_piece_floats = query_keys * piece_pitch;
constexpr int32_t query_weight_floats = query_keys * lines_a_warp;

inline int64_t query_tile_shared(int32_t D) {
  return 4 * (query_lines * D + query_piece_floats + query_warps * query_weight_floats);
}

/* query_tile: handles 32 lines of one request and kv head, over the keys that some of them see.
 * Grid:   (most_query_tiles * H_kv), later tiles first, since they have more keys. A block without lines returns at
 * once.
 * Block:  128 threads. Shared: 25.5 KB and 128 D bytes, 41.5 KB with D = 128.
 * Align:  K in quads if cache.quads, V if v_quads, else by element; queries and output by element. Arch: any.
 * Limit:  f32 additions: 2 * (D + D_v) per key and line; 10 loads from shared memory per 64 additions in Q K^T, 4 per
 * 16 in P V. */
template <class Q, class KV, class Weights>
__global__ void __launch_bounds__(query_threads, Weights::blocks)
    query_tile(typename Weights::params p, int64_t tiles, bool v_quads) {
  ASSAY_DYNAMIC_SHARED(float, q);
  ASSAY_SHARED(typename Weights::line, lines, query_lines);
  ASSAY_SHARED(uint32_t, kept, 4);
  ASSAY_SHARED(uint64_t, needed, query_warps);
  const attention_params &a = p.a;
  const int32_t thread = static_cast<int32_t>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int32_t block = static_cast<int32_t>(blockIdx.x), kv_head = block % a.H_kv;
  const query_item item = query_item_of(a, tiles - 1 - block / a.H_kv);
  if (item.lines == 0) return;
  float *const piece = q + query_lines * a.D;
  float *const weight = piece + query_piece_floats + warp * query_weight_floats;
  const float k_scale = k_scale_of(a.cache, kv_head), v_scale = v_scale_of(a.cache, kv_head);

  if (thread < query_lines) {
    typename Weights::line &line = lines[thread];
    const int32_t number = item.head + thread, row = number / a.G;
    const bool blind = item.padding || thread >= item.lines;
    line.last = blind ? -1 : item.position + row;
    line.first = a.window > 0 ? max(line.last - a.window + 1, 0) : 0;
    Weights::prepare(p, item.row + row, kv_head * a.G + number - row * a.G, line);
  }
  for (int32_t l = warp; l < query_lines; l += query_warps) {
    const int32_t number = item.head + l, row = number / a.G;
    const int64_t query = query_offset(a, item.row + row, kv_head * a.G + number - row * a.G);
    for (int32_t d = lane; d < a.D; d += 32)
      q[l * a.D + d] = l < item.lines ? to_float(*element_at<Q>(a.q, query + d)) : 0.0f;
  }
  __syncthreads(); /* lines and queries are written */

  const int32_t own = warp * lines_a_warp, here = min(item.lines - own, lines_a_warp); /* 0 and less: no lines */
  const int32_t first = lines[0].first, last = lines[item.lines - 1].last;
  const int32_t own_first = lines[own].first, own_last = here > 0 ? lines[own + here - 1].last : -1;
  line_sums O[lines_a_warp] = {};
  Weights weights;
  weights.start();

  ASSAY_ROLLED
  for (int32_t base = first / query_keys * query_keys; base <= last; base += query_keys) {
    uint64_t seen = key_bits(first - base, last - base);
    if (Weights::sparse(p)) {
      const int32_t turn = base / query_keys % 2;
      if (thread < query_keys) {
        bool any = false;
        for (int32_t l = 0; l < item.lines && !any; ++l)
          any = base + thread >= lines[l].first && base + thread <= lines[l].last &&
                Weights::sees(p, lines[l], base + thread);
        const uint32_t half = __ballot_sync(0xffffffffu, any);
        if (lane == 0) kept[2 * turn + warp] = half;
      }
      __syncthreads(); /* this tile's bits are written; those of the tile before the previous one have been read */
      seen = static_cast<uint64_t>(kept[2 * turn + 1]) << 32 | kept[2 * turn];
      if (seen == 0) continue;
    }

    float s[lines_a_warp][2] = {};
    const bool active = base <= own_last && base + query_keys > own_first;
    ASSAY_ROLLED
    for (int32_t d = 0; d < a.D; d += piece_channels) {
      __syncthreads(); /* the previous piece has been read */
      load_piece<KV, false>(a, item.request, kv_head, base, seen, d, k_scale, v_quads, piece);
      __syncthreads(); /* the piece is loaded */
      if (active) dot_piece(q + own * a.D + d, a.D, piece, min(a.D - d, piece_channels), s);
    }

    uint64_t live = 0; /* keys that some line of the warp needs */
    if (active) {
      bool low = false, high = false;
      ASSAY_UNROLL
      for (int l = 0; l < lines_a_warp; ++l) {
        if (l < here) weights.weigh(p, lines[own + l], l, base + lane, s[l], O[l]);
        low |= l < here && s[l][0] != 0.0f;
        high |= l < here && s[l][1] != 0.0f;
      }
      ASSAY_UNROLL
      for (int l = 0; l < lines_a_warp; ++l) {
        weight[lane * lines_a_warp + l] = l < here ? s[l][0] : 0.0f;
        weight[(lane + 32) * lines_a_warp + l] = l < here ? s[l][1] : 0.0f;
      }
      live = static_cast<uint64_t>(__ballot_sync(0xffffffffu, high)) << 32 | __ballot_sync(0xffffffffu, low);
    }
    if (lane == 0) needed[warp] = live;
    __syncthreads(); /* the needs of every warp are known and the weights are written; K has been read */
    const uint64_t any = needed[0] | needed[1] | needed[2] | needed[3];
    if (any == 0) continue;

    ASSAY_ROLLED
    for (int32_t number = 0, d = 0; d < a.D_v; ++number, d += piece_channels) {
      if (number > 0) __syncthreads(); /* the previous piece has been read */
      load_piece<KV, true>(a, item.request, kv_head, base, any, d, v_scale, v_quads, piece);
      __syncthreads(); /* the piece is loaded */
      ASSAY_UNROLL
      for (int i = 0; i < most_pieces; ++i) /* registers cannot be indexed at run time */
        if (i == number) add_piece(weight, piece, live, i, O);
    }
  }

  ASSAY_UNROLL
  for (int l = 0; l < lines_a_warp; ++l) {
    if (l >= here) break;
    const int32_t number = item.head + own + l, row = number / a.G;
    const int64_t at = (item.row + row) * a.H + kv_head * a.G + number - row * a.G;
    weights.finish(p, l, at, O[l]);
    ASSAY_UNROLL
    for (int c = 0; c < 2 * most_pieces; ++c) {
      const int32_t d = c * 32 + lane;
      if (d < a.D_v) static_cast<Q *>(a.out)[at * a.D_v + d] = from_float<Q>(O[l][c / 2][c % 2]);
    }
  }
}

/* ---- launchers -------------------------------------------------------------------------------------- */

inline assay_status expect_query_tile(const attention_params &a, assay_error *error) {
  ASSAY_TRY(expect_prompts(a, error));
  const int64_t allowed = launch_max_grid_x / a.H_kv, found = most_query_tiles(a);
  if (found <= allowed) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                    "N, B: found up to %" PRId64 " tiles of %" PRId32 " rows and heads, allowed up to %" PRId64
                    " for each of %" PRId32 " kv heads",
                    found, query_lines, allowed, a.H_kv);
}

inline void query_tile_path(const attention_params &a, assay_env *env) {
  (void)snprintf(env->path, sizeof env->path, "query_tile lines=%d keys=%d D=%d%s", query_lines, query_keys, a.D,
                 cache_word(a));
}

template <class Weights>
assay_status launch_query_tile(const typename Weights::params &p, const attention_types &types, assay_env *env,
                               assay_error *error) {
  const paged_cache &cache = p.a.cache;
  const uintptr_t quad = static_cast<uintptr_t>(4 * assay_dtype_size(types.kv));
  const bool v_quads = cache.v_channel == 1 && reinterpret_cast<uintptr_t>(cache.v) % quad == 0 &&
                       (cache.v_block | cache.v_head | cache.v_token) % 4 == 0;
  const int64_t tiles = most_query_tiles(p.a);
  return with_types(types.q, types.kv, [&](auto q, auto kv) {
    using Q = typename decltype(q)::type;
    using KV = typename decltype(kv)::type;
    return ASSAY_LAUNCH(error, (query_tile<Q, KV, Weights>), tiles * p.a.H_kv, query_threads, query_tile_shared(p.a.D),
                        env->stream, p, tiles, v_quads);
  });
}

/* The strategy of an operator whose type Op has `plan`, `read` and `weights`. */
template <class Op> struct query_tile_strategy {
  using plan = typename Op::plan;
  static assay_status read(const assay_call *call, plan *made, assay_error *error) {
    ASSAY_TRY(Op::read(call, made, error));
    return expect_query_tile(made->p.a, error);
  }
  static void path(const plan &made, assay_env *env) { query_tile_path(made.p.a, env); }
  static assay_status start(plan &made, assay_env *env, assay_error *error) {
    return launch_query_tile<typename Op::weights>(made.p, made.types, env, error);
  }
};

/* Returns the contract. K and V are rounded to f32 after dequantisation; scores, p and sums stay in f32. One sum per
 * q . k and per channel. */
constexpr assay_contract query_tile_contract(double exp_ulp) {
  return {.k = ASSAY_F32,
          .v = ASSAY_F32,
          .exp_ulp = exp_ulp,
          .qk_lanes = 1,
          .pv_lanes = 1,
          .zero_p_v = ASSAY_V_SKIPPED,
          .run_to_run = true,
          .renumbering = true,
          .permutation = true,
          .lanes = 1,
          .alone = true};
}

/* The row of the variant table. */
#define QUERY_TILE_VARIANT(op, exp_ulp, Op)                                                                            \
  SCHEDULE_VARIANT(op, "query_tile", "prompts without tensor cores: 32 rows and heads share K and V",                  \
                   "prefill,chunked,mixed", query_tile_contract(exp_ulp), query_tile_strategy<::ASSAY_NS::Op>)

} // namespace ASSAY_NS
#endif
