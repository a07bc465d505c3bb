/* softmax_rows.cuh: single rows of a ragged prefill, with the bits that softmax_attention_wgmma.cu gives them in a
 * prompt. A prompt's row is one chain over its tiles of 128 keys. It has the peak so far, weights rounded under that
 * peak, and running sums by steps of 16 keys. The chain is kept here, and only what it does not order is done side by
 * side.
 *
 *   scores    every key alone: the blocks of a cluster take tiles in turn
 *   peaks     a maximum over tiles may be taken in any order: blocks exchange the tiles' maxima
 *   weights   a tile's, under the peak up to this tile, by the block that has its scores; all blocks get them
 *   O         one chain per channel: each block has an equal share of the channels and all keys
 *
 * Nothing here changes a bit: neither the number of blocks, nor how many tiles they exchange at once, nor the stages.
 *
 * A step of 16 keys within 64 holds tokens 16 j + 4 s + e, with j and e from 0 to 3, as in a prompt's tile. */
#ifndef ASSAY_GPU_LIB_SOFTMAX_ROWS_CUH
#define ASSAY_GPU_LIB_SOFTMAX_ROWS_CUH

#include "gpu/lib/paged.cuh"
#include "gpu/lib/ptx_async.cuh"
#include "gpu/lib/ptx_mma.cuh"
#include "gpu/lib/rows.cuh"
#include "gpu/lib/softmax_score.cuh"
#include "gpu/lib/softmax_tile.cuh"

namespace ASSAY_NS {

constexpr int32_t single_threads = 128, single_warps = 4;
constexpr int32_t single_tile = 128, single_unit = 16384; /* keys per tile; bytes per stage */
constexpr int32_t single_heads = 8, single_most_stages = 12;

struct single_params {
  softmax_params s;
  int32_t blocks, tiles, stages; /* blocks per cluster; a block's tiles per exchange; stages of the ring */
  int32_t sets, heads;           /* blocks side by side that share a kv head's group; most heads of one */
};

/* Places in shared memory, in bytes. A score of token t lies at t + t / 16 * 4. */
struct single_layout {
  int32_t full, table, entries, scores, scores_row, weights, weights_row, zeros, tops, peaks, shrinks, sums, rest,
      bytes;
  __host__ __device__ explicit single_layout(const single_params &p) {
    const int32_t all = p.blocks * p.tiles, G = p.heads;
    entries = all * single_tile / 16 + 1;
    full = p.stages * single_unit;
    table = full + 8 * single_most_stages;
    scores_row = (p.tiles * single_tile / 16 * 20 + 4) * 4;
    scores = (table + 2 * entries * 4 + 15) / 16 * 16;
    weights_row = all * single_tile * 2 + 16;
    weights = scores + G * scores_row;
    zeros = weights + G * weights_row;
    tops = zeros + 16;
    peaks = tops + all * G * 4;
    shrinks = peaks + all * G * 4;
    sums = (shrinks + all * G * 4 + 15) / 16 * 16;
    rest = sums + all * G * 16;
    bytes = rest + 2 * G * 4;
  }
};

/* A place in the sequence of units that a block loads: those of a run of tiles' keys, then those of its values. */
struct single_cursor {
  int32_t run, at;
};

template <class T, int D> struct single_block {
  const single_params &p;
  const attention_params &a;
  unsigned char *const shared;
  const single_layout at;
  uint64_t *const full;
  const int32_t thread, warp, lane;
  int32_t rank, width; /* width: channels of O of this block */
  int32_t request, kv_head, head, G, keys, all, runs;
  single_cursor cursor;
  int32_t filled, used; /* units */
  uint32_t Q[D / 16][2];
  float O[2][4];
  float total;

  static constexpr int32_t key_rows = single_unit / (2 * D); /* keys of a unit of keys */
  static constexpr int32_t a_tile = single_tile / key_rows;  /* units per tile */

  __device__ __forceinline__ single_block(const single_params &p_, unsigned char *shared_)
      : p(p_), a(p_.s.a), shared(shared_), at(p_), full(reinterpret_cast<uint64_t *>(shared_ + at.full)),
        thread(static_cast<int32_t>(threadIdx.x)), warp(thread / 32), lane(thread % 32), cursor({0, 0}), filled(0),
        used(0), total(0.0f) {}

  template <class X> __device__ __forceinline__ X *place(int32_t offset) const {
    return reinterpret_cast<X *>(shared + offset);
  }
  __device__ __forceinline__ int32_t value_rows() const { return single_unit / (2 * width); }
  __device__ __forceinline__ int32_t first_key(int32_t run) const { return run * all * single_tile; }
  __device__ __forceinline__ int32_t keys_in(int32_t run) const {
    return min(keys - first_key(run), all * single_tile);
  }
  __device__ __forceinline__ int32_t tiles_in(int32_t run) const {
    return (keys_in(run) + single_tile - 1) / single_tile;
  }
  __device__ __forceinline__ int32_t own_tiles(int32_t run) const {
    return (tiles_in(run) - rank + p.blocks - 1) / p.blocks;
  }
  __device__ __forceinline__ int32_t value_units(int32_t run) const {
    return (keys_in(run) + value_rows() - 1) / value_rows();
  }

  /* ---- loads  */

  /* Reads the table's entries for a run. */
  __device__ __forceinline__ void read_table(int32_t run) const {
    if (run >= runs) return;
    const int32_t shift = a.cache.block_shift, first = first_key(run) >> shift;
    const int32_t count = ((first_key(run) + keys_in(run) - 1) >> shift) - first + 1;
    const int32_t *const from = a.cache.table + request * a.cache.table_row + first;
    for (int32_t i = thread; i < count; i += single_threads)
      place<int32_t>(at.table)[(run & 1) * at.entries + i] = from[i];
  }

  /* Copies 16 KB: `width` channels of each of a run of keys, from key `first` on, and zeros from the row's end on. */
  template <bool values>
  __device__ __forceinline__ void copy(unsigned char *stage, int32_t run, int32_t first, int32_t channels) const {
    const paged_cache &cache = a.cache;
    const int32_t chunks = channels / 8, chunk = thread % chunks, rows = single_threads / chunks;
    const int32_t *const table =
        place<int32_t>(at.table) + (run & 1) * at.entries - (first_key(run) >> cache.block_shift);
    const int64_t block_stride = values ? cache.v_block : cache.k_block;
    const int64_t token_stride = values ? cache.v_token : cache.k_token;
    const T *const base = values ? element_at<T>(cache.v, kv_head * cache.v_head + rank * width + 8 * chunk)
                                 : element_at<T>(cache.k, kv_head * cache.k_head + 8 * chunk);
    ASSAY_UNROLL
    for (int32_t pass = 0; pass < single_unit / 16 / single_threads; ++pass) {
      const int32_t row = thread / chunks + pass * rows, token = first + row;
      const bool live = token < keys;
      const int64_t block = live ? table[token >> cache.block_shift] : 0;
      const T *const from =
          live ? element_at<T>(base, block * block_stride + slot_of(cache, token) * token_stride) : base;
      const int32_t twist = values ? value_twist(row) : row & 7;
      cp_async_16(stage + row * 2 * channels + ((chunk ^ twist) << 4), from, live ? 16 : 0);
    }
  }

  /* Eight rows of a step lie in different banks: they are the tokens e and 16 + e of a step. */
  __device__ __forceinline__ int32_t value_twist(int32_t row) const {
    const int32_t eight = (row & 3) | (row >> 4 & 1) << 2;
    return width >= 64 ? eight : width == 32 ? eight >> 1 : eight >> 2;
  }

  /* Loads the next unit, if there is one. */
  __device__ __forceinline__ void load() {
    if (cursor.run >= runs) return;
    const int32_t stage = filled % p.stages, of_keys = own_tiles(cursor.run) * a_tile;
    unsigned char *const to = shared + stage * single_unit;
    if (cursor.at < of_keys) {
      const int32_t tile = rank + p.blocks * (cursor.at / a_tile);
      copy<false>(to, cursor.run, first_key(cursor.run) + tile * single_tile + cursor.at % a_tile * key_rows, D);
    } else {
      copy<true>(to, cursor.run, first_key(cursor.run) + (cursor.at - of_keys) * value_rows(), width);
    }
    cp_async_arrive_noinc(&full[stage]);
    ++filled;
    if (++cursor.at == of_keys + value_units(cursor.run)) cursor = {cursor.run + 1, 0};
  }

  /* Waits for the next unit, and loads another in place of the unit before it. */
  __device__ __forceinline__ const unsigned char *take() {
    const int32_t stage = used % p.stages;
    mbarrier_wait(&full[stage], used / p.stages & 1);
    __syncthreads();
    ++used;
    load();
    return shared + stage * single_unit;
  }

  /* ---- scores and weights  */

  __device__ __forceinline__ void load_query(int64_t row) {
    const int32_t mine = lane / 4;
    const T *const q = element_at<T>(a.q, query_offset(a, row, head + (mine < G ? mine : 0)));
    ASSAY_UNROLL
    for (int step = 0; step < D / 16; ++step)
      ASSAY_UNROLL
    for (int i = 0; i < 2; ++i)
      Q[step][i] = mine < G ? *reinterpret_cast<const uint32_t *>(q + 16 * step + 8 * i + 2 * (lane % 4)) : 0u;
  }

  __device__ __forceinline__ float *score(int32_t of, int32_t token) const {
    return place<float>(at.scores + of * at.scores_row) + token + token / 16 * 4;
  }

  /* Computes the scores of a unit whose first key is number `first` of the block's own in this run. */
  __device__ __forceinline__ void scores(const unsigned char *stage, int32_t first) const {
    ASSAY_UNROLL
    for (int32_t sixteen = 0; sixteen < key_rows / 16; sixteen += single_warps) {
      const int32_t from = (sixteen + warp) * 16, row = from + lane % 16;
      float S[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      ASSAY_UNROLL
      for (int step = 0; step < D / 16; ++step) {
        uint32_t k[4];
        ldmatrix_x4(k, stage + row * 2 * D + (((2 * step + lane / 16) ^ (row & 7)) << 4));
        mma_m16n8k16<T>(S, k, Q[step]);
      }
      const int32_t token = first + from + lane / 4, of = 2 * (lane % 4);
      ASSAY_UNROLL
      for (int i = 0; i < 4; ++i)
        if (of + i % 2 < G) *score(of + i % 2, token + i / 2 * 8) = S[i];
    }
  }

  __device__ __forceinline__ void meet() const {
    if (p.blocks == 1) {
      __syncthreads();
    } else {
      cluster_arrive();
      cluster_wait();
    }
  }
  template <class X> __device__ __forceinline__ void send(X *to, X value) const {
    if (p.blocks == 1) {
      *to = value;
      return;
    }
    ASSAY_ROLLED
    for (int32_t other = 0; other < p.blocks; ++other)
      *cluster_shared(to, static_cast<uint32_t>(other)) = value;
  }

  /* The place of a lane among the lanes that weigh: lane j of tile `own` of this block, for head `of`. */
  struct weigher {
    int32_t j, of, own, tile, stop; /* stop: the last visible key, counted from the lane's first */
  };
  __device__ __forceinline__ weigher weigher_of(int32_t number, int32_t run) const {
    weigher w;
    w.j = number % 4;
    w.of = number / 4 % G;
    w.own = number / 4 / G;
    w.tile = rank + p.blocks * w.own;
    w.stop = keys - 1 - first_key(run) - w.tile * single_tile - 16 * w.j;
    return w;
  }
  __device__ __forceinline__ const float *sixteen_of(const weigher &w, int32_t half) const {
    return score(w.of, w.own * single_tile + 64 * half + 16 * w.j);
  }

  /* Sends the maxima of this block's tiles to all blocks. */
  __device__ __forceinline__ void send_tops(int32_t run) const {
    for (int32_t number = thread; number < own_tiles(run) * G * 4; number += single_threads) {
      const weigher w = weigher_of(number, run);
      float most = -INFINITY;
      ASSAY_ROLLED
      for (int32_t half = 0; half < 2; ++half) {
        const float *const S = sixteen_of(w, half);
        ASSAY_UNROLL
        for (int i = 0; i < 16; ++i)
          most = fmaxf(most, 64 * half + i > w.stop ? -INFINITY : S[i]);
      }
      most = group_max<4>(most);
      if (w.j == 0) send(place<float>(at.tops) + w.tile * G + w.of, most);
    }
  }

  /* Computes the peaks up to each tile, and how the sums shrink at it. */
  __device__ __forceinline__ void find_peaks(int32_t run, float factor) const {
    const float *const tops = place<float>(at.tops);
    for (int32_t number = thread; number < tiles_in(run) * G; number += single_threads) {
      const int32_t tile = number / G, of = number % G;
      float before = place<float>(at.rest)[of];
      for (int32_t i = 0; i < tile; ++i)
        before = fmaxf(before, tops[i * G + of]);
      const float peak = fmaxf(before, tops[number]);
      const softmax_peak top(peak, factor);
      place<float>(at.peaks)[number] = peak;
      place<float>(at.shrinks)[number] = top.shrink(before);
    }
  }

  /* Makes weights of the scores of this block's tiles, and sends them and their sums to all blocks. */
  __device__ __forceinline__ void send_weights(int32_t run, float factor) const {
    for (int32_t number = thread; number < own_tiles(run) * G * 4; number += single_threads) {
      const weigher w = weigher_of(number, run);
      const softmax_peak top(place<float>(at.peaks)[w.tile * G + w.of], factor);
      uint2 *const to = place<uint2>(at.weights + w.of * at.weights_row + w.tile * single_tile * 2) + w.j;
      float sum = 0.0f;
      ASSAY_ROLLED
      for (int32_t half = 0; half < 2; ++half) {
        const float *const S = sixteen_of(w, half);
        ASSAY_UNROLL
        for (int s = 0; s < 4; ++s) {
          float weight[4];
          ASSAY_UNROLL
          for (int e = 0; e < 4; ++e) {
            const int i = 4 * s + e;
            weight[e] = top.weight(64 * half + i > w.stop ? -INFINITY : S[i]);
            sum += weight[e];
          }
          send(to + 16 * half + 4 * s,
               make_uint2(pack_pair<T>(weight[0], weight[1]), pack_pair<T>(weight[2], weight[3])));
        }
      }
      send(place<float>(at.sums) + (w.tile * G + w.of) * 4 + w.j, sum);
    }
  }

  /* Adds a run's sums of weights to the lane's total. */
  __device__ __forceinline__ void add_totals(int32_t run) {
    if (thread >= 4 * G) return;
    const int32_t of = thread / 4, tiles = tiles_in(run);
    for (int32_t tile = 0; tile < tiles; ++tile)
      total = fmaf(total, place<float>(at.shrinks)[tile * G + of], place<float>(at.sums)[tile * 4 * G + thread]);
    if (thread % 4 == 0) place<float>(at.rest)[of] = place<float>(at.peaks)[(tiles - 1) * G + of];
  }

  /* ---- values  */

  /* Adds a unit's values, from key `first` of the run on, to this block's channels. */
  __device__ __forceinline__ void values(const unsigned char *stage, int32_t run, int32_t first) {
    const int32_t sixteens = width / 16, here = keys_in(run);
    if (warp >= sixteens) return;
    const int32_t mine = lane % 8, of = lane / 8;
    const unsigned char *const weights =
        mine < G ? shared + at.weights + mine * at.weights_row + of % 2 * 16 : shared + at.zeros;
    const int32_t tokens = of / 2 * 32 + mine / 4 * 16 + mine % 4; /* the lane's row in step 0 */
    for (int32_t block = 0; block < value_rows() && first + block < here; block += 64) {
      const int32_t key = first + block, tile = key / single_tile;
      if (key % single_tile == 0 && (tile > 0 || run > 0)) {
        ASSAY_UNROLL
        for (int e = 0; e < 2; ++e) {
          const int32_t column = min(2 * (lane % 4) + e, G - 1);
          const float shrink = place<float>(at.shrinks)[tile * G + column];
          ASSAY_UNROLL
          for (int i = 0; i < 4; ++i)
            O[i / 2][i % 2 * 2 + e] *= shrink;
        }
      }
      ASSAY_UNROLL
      for (int s = 0; s < 4; ++s) {
        uint32_t w[2];
        ldmatrix_x2(w, mine < G ? weights + (key + 16 * s) * 2 : weights);
        const int32_t row = block + tokens + 4 * s;
        ASSAY_UNROLL
        for (int i = 0; i < 2; ++i) {
          const int32_t sixteen = warp + single_warps * i;
          if (sixteen >= sixteens) break;
          uint32_t v[4];
          ldmatrix_x4_trans(v, stage + row * 2 * width + (((2 * sixteen + of % 2) ^ value_twist(row)) << 4));
          mma_m16n8k16<T>(O[i], v, w);
        }
      }
    }
  }

  __device__ __forceinline__ void store(int64_t row, const float *factor) const {
    T *const to = static_cast<T *>(a.out) + (row * a.H + head) * D + rank * width;
    ASSAY_UNROLL
    for (int i = 0; i < 2; ++i)
      ASSAY_UNROLL
    for (int c = 0; c < 4; ++c) {
      const int32_t of = 2 * (lane % 4) + c % 2, channel = (warp + single_warps * i) * 16 + lane / 4 + c / 2 * 8;
      if (of >= G || channel >= width) continue;
      const uint32_t pair = pack_pair<T>(O[i][c] * factor[of], 0.0f);
      const uint16_t bits = static_cast<uint16_t>(pair);
      memcpy(to + of * D + channel, &bits, sizeof bits);
    }
  }

  /* Finds the row's request and its number of keys. In a step of single tokens, row n is that of request n. */
  __device__ __forceinline__ void find(int64_t row) {
    row_keys found = {static_cast<int32_t>(row), 0, -1};
    const int32_t next = min(static_cast<int32_t>(row), a.B - 1); /* -1: no requests */
    const bool alone = next >= 0 && a.cu_q[next] == row && a.cu_q[next + 1] == row + 1;
    const int32_t length = next >= 0 ? a.length[next] : 0;
    if (alone)
      found = {next, 0, length - 1};
    else
      found = keys_of_row(a, row);
    request = found.request;
    keys = found.last + 1;
  }

  __device__ __forceinline__ void run(int64_t row) {
    float *const peaks = place<float>(at.rest), *const factors = peaks + p.heads;
    all = p.blocks * p.tiles;
    width = D / p.blocks;
    find(row);
    runs = keys > 0 ? (keys + all * single_tile - 1) / (all * single_tile) : 0;
    ASSAY_UNROLL
    for (int i = 0; i < 8; ++i)
      O[i / 4][i % 4] = 0.0f;
    read_table(0);
    if (thread < G) peaks[thread] = -INFINITY;
    if (thread < 4) place<uint32_t>(at.zeros)[thread] = 0u;
    if (thread == 0) {
      for (int32_t i = 0; i < p.stages; ++i)
        mbarrier_init(&full[i], single_threads);
      mbarrier_fence_init();
    }
    __syncthreads();
    for (int32_t i = 0; i + 1 < p.stages; ++i)
      load();
    if (runs > 0) load_query(row);
    if (p.blocks > 1) cluster_wait(); /* all blocks have started */
    const float factor = a.scale * softmax_log2_e;
    for (int32_t r = 0; r < runs; ++r) {
      read_table(r + 1);
      const int32_t units = own_tiles(r) * a_tile;
      for (int32_t i = 0; i < units; ++i)
        scores(take(), i * key_rows);
      __syncthreads();
      send_tops(r);
      meet();
      find_peaks(r, factor);
      __syncthreads();
      send_weights(r, factor);
      meet();
      add_totals(r);
      const int32_t of_values = value_units(r);
      for (int32_t i = 0; i < of_values; ++i)
        values(take(), r, i * value_rows());
    }
    __syncthreads();
    if (thread < 4 * G) {
      const int32_t of = thread / 4;
      const softmax_end end(p.s, head + of, peaks[of], group_sum<4>(total), a.scale);
      if (thread % 4 == 0) factors[of] = end.factor;
      if (thread % 4 == 0 && rank == 0 && p.s.lse != nullptr) p.s.lse[row * a.H + head + of] = end.lse;
    }
    __syncthreads();
    store(row, factors);
  }
};

/* Prefetches what a row needs first; it reads nothing. */
__device__ __forceinline__ void single_ask(const attention_params &a, int64_t row) {
  constexpr int32_t entries = 32;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  if (row >= a.B) return;
  if (thread == 0) prefetch_l2(a.cu_q + row);
  if (thread == 1) prefetch_l2(a.length + row);
  if (thread >= 2 && (thread - 2) * entries < a.capacity >> a.cache.block_shift)
    prefetch_l2(a.cache.table + row * a.cache.table_row + (thread - 2) * entries);
}

/* softmax_rows: handles one row and a kv head's group of heads per cluster.
 * Grid:   N * H_kv * sets * blocks. Block: 128 threads. Cluster: `blocks`, 1 to 8, with at least 16 channels each.
 * Shared: single_layout: stages of 16 KB of keys or values, scores, weights of the group. */
template <class T, int D> __global__ void __launch_bounds__(single_threads) softmax_rows(single_params p) {
  ASSAY_DYNAMIC_SHARED_1024(unsigned char, shared);
  const int64_t number = blockIdx.x / static_cast<uint32_t>(p.blocks);
  const int32_t in_row = p.s.a.H_kv * p.sets;
  const int64_t row = number / in_row;
  const int32_t unit = static_cast<int32_t>(number - row * in_row), set = unit % p.sets;
  dependents_launch();
  if (p.blocks > 1) cluster_arrive();
  single_ask(p.s.a, row);
  single_block<T, D> block(p, shared);
  block.rank = static_cast<int32_t>(blockIdx.x) % p.blocks;
  block.kv_head = unit / p.sets;
  block.head = block.kv_head * p.s.a.G + set * p.heads;
  block.G = min(p.heads, p.s.a.G - set * p.heads);
  dependency_wait();
  block.run(row);
}

/* ---- launch ------------------------------------------------------------------------------------------ */

/* Returns how a call is spread. As many blocks as fit twice share a row. */
inline single_params single_shape(const softmax_params &s, int64_t multiprocessors) {
  single_params p = {};
  p.s = s;
  p.sets = (s.a.G + single_heads - 1) / single_heads;
  p.heads = s.a.G < single_heads ? s.a.G : single_heads;
  const int64_t rows = s.a.N * s.a.H_kv * p.sets;
  const int32_t most = s.a.D / 16;
  p.blocks = 1;
  while (2 * p.blocks <= most && 2 * p.blocks * single_tile <= s.a.capacity &&
         2 * p.blocks * rows <= 2 * multiprocessors)
    p.blocks *= 2;
  p.tiles = (s.a.D == 64 ? 8 : 4) / (p.heads > 4 ? 2 : 1);
  const bool alone = p.blocks * rows <= multiprocessors;
  p.stages = single_most_stages;
  if (s.a.D == 128 && p.tiles == 2) p.stages = 8; /* no more than the units of a run */
  if (s.a.D == 64) p.stages = p.tiles;
  const int64_t room = alone ? launch_max_shared : (INT64_C(228) * 1024 - 2 * 1024) / 2;
  while (p.stages > 2 && single_layout(p).bytes > room)
    --p.stages;
  return p;
}

template <class T> assay_status single_start(const single_params &p, assay_env *env, assay_error *error) {
  launch_options options = in_turn();
  options.cluster = p.blocks;
  const attention_params &a = p.s.a;
  const int64_t grid = a.N * a.H_kv * p.sets * p.blocks, bytes = single_layout(p).bytes;
  return a.D == 64
             ? ASSAY_LAUNCH_WITH(error, (softmax_rows<T, 64>), grid, single_threads, bytes, options, env->stream, p)
             : ASSAY_LAUNCH_WITH(error, (softmax_rows<T, 128>), grid, single_threads, bytes, options, env->stream, p);
}

} // namespace ASSAY_NS
#endif
