/* prefill_rows.cuh: single rows of a ragged prefill, with the bits that prefill_wgmma.cuh gives them in a prompt. A
 * prompt's row is one chain over its tiles of 128 keys: running sums by steps of 16 keys. The chain is kept here, and
 * only what it does not order is done side by side.
 *
 *   scores    The blocks of a cluster take tiles in turn, and their warps 16 keys each.
 *   exchange  Blocks send each other what a tile's weights need of other tiles.
 *   weights   The block that has a tile's scores makes its weights, four per thread, and sends them to all.
 *   O         Each block has an equal share of the channels, with one chain per channel over all keys.
 *   sums      Meanwhile, a lane per 32 weights adds them in the prompt's order.
 *
 * Nothing here changes a bit: neither the number of blocks, nor how many tiles they exchange at once, nor the stages.
 *
 * A step of 16 keys within 64 holds tokens 16 j + 4 s + e, with j and e from 0 to 3, as in a prompt's tile.
 *
 * An operator provides Rule:
 *
 *   Rule::params, with `attention_params a`; Rule::sent: floats per tile and head that the blocks exchange
 *   Rule::shrinks                   sums shrink between tiles, by `shrinks`
 *   start(block)                    once per row, before the first barrier
 *   tell(block, run, own, of)       sends what other tiles need of tile `own` of this block, for head `of`
 *   settle(block, run)              when all that was sent has arrived
 *   weigh(block, run, four)         makes the weights of four neighbours
 *   Rule::sums                      the sums of weights are wanted, and so are the maxima of scores
 *   collect(block, run)             when all sums of weights have arrived
 *   finish(block, row, factors)     the factors of the sums, by head */
#ifndef ASSAY_GPU_LIB_PREFILL_ROWS_CUH
#define ASSAY_GPU_LIB_PREFILL_ROWS_CUH

#include "gpu/lib/paged.cuh"
#include "gpu/lib/ptx_async.cuh"
#include "gpu/lib/ptx_mma.cuh"
#include "gpu/lib/rows.cuh"

namespace ASSAY_NS {

constexpr int32_t single_threads = 256, single_warps = 8, single_loaders = 64; /* threads that compute and that load */
constexpr int32_t single_tile = 128;
constexpr int32_t single_unit = 64; /* keys; a stage holds all channels of so many keys, or fewer of more */
constexpr int32_t single_heads = 8, single_most_stages = 12;

template <class Params> struct single_params {
  Params s;
  int32_t blocks, tiles, stages; /* blocks per cluster, tiles of a block per exchange, stages of the ring */
  int32_t sets, heads;           /* blocks side by side that share a kv head's group; most heads of one */
};

/* Places in shared memory, in bytes. A score of token t lies at t + t / 16 * 4. */
struct single_layout {
  int32_t full, table, entries, scores, scores_row, weights, weights_row, zeros, tops, peaks, shrinks, sums, slabs,
      rest, bytes;
  template <class Params> __host__ __device__ single_layout(const single_params<Params> &p, int32_t sent) {
    const int32_t all = p.blocks * p.tiles, G = p.heads;
    entries = all * single_tile / 16 + 1;
    full = p.stages * 2 * single_unit * p.s.a.D;
    table = full + 16 * single_most_stages;
    scores_row = (p.tiles * single_tile / 16 * 20 + 4) * 4;
    scores = (table + 2 * entries * 4 + 15) / 16 * 16;
    weights_row = all * single_tile * 2 + 16;
    weights = scores + G * scores_row;
    zeros = weights + G * weights_row;
    tops = zeros + 16;
    peaks = tops + all * G * 4 * sent;
    shrinks = peaks + all * G * 4;
    sums = (shrinks + all * G * 4 + 15) / 16 * 16;
    slabs = sums + all * G * 16;
    rest = slabs + p.tiles * G * 4 * single_warps;
    bytes = rest + 5 * G * 4;
  }
};

/* A stage of the ring, and the parity of the phase that fills it. */
struct single_stage {
  int32_t stage;
  uint32_t parity;
  __device__ __forceinline__ void next(int32_t stages) {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
};

/* Four neighbours of tile `own` of this block, for head `of`. */
struct single_four {
  int32_t of, own, tile, first, stop; /* first: of the tile's tokens; stop: the last visible key, counted from it */
  float score[4];
};

template <class T, int D, class Rule> struct single_block {
  using params = single_params<typename Rule::params>;
  const params &p;
  const attention_params &a;
  unsigned char *const shared;
  const single_layout at;
  uint64_t *const full, *const free;
  const int32_t thread, warp, lane; /* thread: among those that compute, or those that load */
  int32_t rank, width;              /* width: channels of O of this block */
  int32_t request, kv_head, head, G, keys, all, runs;
  int32_t arrived;      /* the cluster's barriers at which a loading thread has arrived, after the first */
  int32_t chunks_shift; /* 2^chunks_shift chunks of 16 bytes per key of V */
  single_stage use;
  uint32_t Q[D / 16][2];
  float O[4];
  Rule rule;

  static constexpr int32_t stage_bytes = 2 * single_unit * D,
                           barriers = Rule::sums ? 3 : 2; /* the cluster's, per run */

  __device__ __forceinline__ single_block(const params &p_, unsigned char *shared_)
      : p(p_), a(p_.s.a), shared(shared_), at(p_, Rule::sent), full(reinterpret_cast<uint64_t *>(shared_ + at.full)),
        free(full + single_most_stages), thread(static_cast<int32_t>(threadIdx.x) % single_threads), warp(thread / 32),
        lane(thread % 32), use({0, 0}) {}

  template <class X> __device__ __forceinline__ X *place(int32_t offset) const {
    return reinterpret_cast<X *>(shared + offset);
  }
  __device__ __forceinline__ int32_t value_rows() const { return stage_bytes / (2 * width); }
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
  __device__ __forceinline__ int32_t tile_of(int32_t own) const { return rank + p.blocks * own; }
  /* Returns the number of this block's units of keys. The last one of a tile may have no keys. */
  __device__ __forceinline__ int32_t key_units(int32_t run) const {
    const int32_t own = own_tiles(run);
    return 2 * own - (own > 0 && keys_in(run) - tile_of(own - 1) * single_tile <= single_unit ? 1 : 0);
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
    for (int32_t i = thread; i < count; i += single_loaders)
      place<int32_t>(at.table)[(run & 1) * at.entries + i] = from[i];
  }

  /* Copies a stage: `channels` of each of a run of keys, from key `first` on, and zeros from the row's end on. */
  template <bool values>
  __device__ __forceinline__ void copy(unsigned char *stage, int32_t run, int32_t first, int32_t shift) const {
    constexpr int32_t passes = 4, rounds = stage_bytes / 16 / single_loaders / passes;
    const paged_cache &cache = a.cache;
    const int32_t chunk = thread & ((1 << shift) - 1), row = thread >> shift, rows = single_loaders >> shift;
    const int32_t *const table =
        place<int32_t>(at.table) + (run & 1) * at.entries - (first_key(run) >> cache.block_shift);
    const int64_t block_stride = values ? cache.v_block : cache.k_block;
    const int64_t token_stride = values ? cache.v_token : cache.k_token;
    const T *const base = values ? element_at<T>(cache.v, kv_head * cache.v_head + rank * width + 8 * chunk)
                                 : element_at<T>(cache.k, kv_head * cache.k_head + 8 * chunk);
    ASSAY_ROLLED
    for (int32_t round = 0; round < rounds; ++round) {
      const T *from[passes];
      ASSAY_UNROLL
      for (int32_t pass = 0; pass < passes; ++pass) {
        const int32_t token = first + row + (round * passes + pass) * rows;
        const int32_t block = token < keys ? table[token >> cache.block_shift] : 0;
        from[pass] =
            token < keys ? element_at<T>(base, block * block_stride + slot_of(cache, token) * token_stride) : base;
      }
      ASSAY_UNROLL
      for (int32_t pass = 0; pass < passes; ++pass) {
        const int32_t to = row + (round * passes + pass) * rows, twist = values ? value_twist(to) : to & 7;
        cp_async_16(stage + (to << (shift + 4)) + ((chunk ^ twist) << 4), from[pass], first + to < keys ? 16 : 0);
      }
    }
  }

  /* Eight rows of a step lie in different banks: they are the tokens e and 16 + e of a step. */
  __device__ __forceinline__ int32_t value_twist(int32_t row) const {
    const int32_t eight = (row & 3) | (row >> 4 & 1) << 2;
    return width >= 64 ? eight : width == 32 ? eight >> 1 : eight >> 2;
  }

  /* Takes part in the cluster's barriers up to number `last`. The loading threads arrive before the others, which never
   * wait for them. Before they wait for a stage, they have arrived at every barrier before its use. */
  __device__ __forceinline__ void join(int32_t last) {
    for (; arrived < last && p.blocks > 1; ++arrived) {
      cluster_wait();
      cluster_arrive();
    }
  }

  /* Loads all units of the row, by the loading threads. */
  __device__ __forceinline__ void load() {
    int32_t number = 0, old_run = 0, old_at = 0; /* the unit whose stage is loaded again */
    single_stage fill = {0, 1};
    arrived = 0;
    for (int32_t run = 0; run < runs; ++run) {
      const int32_t of_keys = key_units(run), units = of_keys + value_units(run), first = first_key(run);
      read_table(run);
      named_barrier_sync(2, single_loaders); /* the entries are read, and those of two runs before are used */
      for (int32_t unit = 0; unit < units; ++unit, ++number) {
        if (number >= p.stages) {
          const int32_t old_keys = key_units(old_run);
          join(barriers * old_run + (old_at < old_keys ? 0 : 2));
          mbarrier_wait(&free[fill.stage], fill.parity);
          if (++old_at == old_keys + value_units(old_run)) {
            ++old_run;
            old_at = 0;
          }
        }
        unsigned char *const to = shared + fill.stage * stage_bytes;
        if (unit < of_keys)
          copy<false>(to, run, first + tile_of(unit / 2) * single_tile + unit % 2 * single_unit, D == 64 ? 3 : 4);
        else
          copy<true>(to, run, first + (unit - of_keys) * value_rows(), chunks_shift);
        cp_async_arrive_noinc(&full[fill.stage]);
        fill.next(p.stages);
      }
    }
    join(barriers * runs);
    cp_async_wait<0>();
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

  /* Computes the scores of a unit, by four warps. Where sums are wanted, each warp leaves its maxima. */
  __device__ __forceinline__ void score_unit(const unsigned char *stage, int32_t run, int32_t unit) const {
    const int32_t row = warp % 4 * 16 + lane % 16, own = unit / 2, slab = unit % 2 * 4 + warp % 4;
    float S[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    uint32_t k[D / 16][4];
    ASSAY_UNROLL
    for (int step = 0; step < D / 16; ++step)
      ldmatrix_x4(k[step], stage + row * 2 * D + (((2 * step + lane / 16) ^ (row & 7)) << 4));
    ASSAY_UNROLL
    for (int step = 0; step < D / 16; ++step)
      mma_m16n8k16<T>(S, k[step], Q[step]);
    const int32_t first = slab * 16 + lane / 4, of = 2 * (lane % 4), stop = last_of(run, own);
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      if (of + i % 2 < G) *score(of + i % 2, own * single_tile + first + i / 2 * 8) = S[i];
    if constexpr (Rule::sums) {
      ASSAY_UNROLL
      for (int e = 0; e < 2; ++e) {
        float most = fmaxf(first > stop ? -INFINITY : S[e], first + 8 > stop ? -INFINITY : S[2 + e]);
        ASSAY_UNROLL
        for (int apart = 4; apart < 32; apart *= 2)
          most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, apart));
        if (lane < 4 && of + e < G) place<float>(at.slabs)[(own * G + of + e) * single_warps + slab] = most;
      }
    }
  }

  /* Waits until all threads that compute are here. */
  __device__ __forceinline__ void sync() const { named_barrier_sync(1, single_threads); }
  /* Gives a stage back, by every warp that computes. */
  __device__ __forceinline__ void give(int32_t stage) const {
    __syncwarp();
    if (lane == 0) mbarrier_arrive(&free[stage]);
  }

  /* Computes the scores of this block's tiles. */
  __device__ __forceinline__ void score_tiles(int32_t run) {
    const int32_t units = key_units(run);
    for (int32_t unit = 0; unit < units; ++unit, use.next(p.stages)) {
      mbarrier_wait(&full[use.stage], use.parity); /* every warp waits: none may give a stage back twice in one turn */
      if (unit % 2 == warp / 4) score_unit(shared + use.stage * stage_bytes, run, unit);
      give(use.stage);
    }
    sync();
  }

  __device__ __forceinline__ void meet() const {
    if (p.blocks == 1) {
      sync();
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

  /* Returns the last visible key, counted from the first of tile `own` of this block. */
  __device__ __forceinline__ int32_t last_of(int32_t run, int32_t own) const {
    return keys - 1 - first_key(run) - tile_of(own) * single_tile;
  }

  __device__ __forceinline__ void tell(int32_t run) const {
    for (int32_t number = thread; number < own_tiles(run) * G; number += single_threads)
      rule.tell(*this, run, number / G, number % G);
  }

  /* Makes weights of the scores of this block's tiles, a tile and head per warp, and sends them to all blocks. Weights
   * whose sums are wanted take the places of the scores. */
  __device__ __forceinline__ void weigh(int32_t run) const {
    for (int32_t number = warp; number < own_tiles(run) * G; number += single_warps) {
      single_four f;
      f.of = number % G;
      f.own = number / G;
      f.tile = tile_of(f.own);
      f.first = 4 * lane;
      f.stop = last_of(run, f.own) - f.first;
      float4 *const S = reinterpret_cast<float4 *>(score(f.of, f.own * single_tile + f.first));
      const bool live = f.stop >= 0;
      const float4 read = live ? *S : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      f.score[0] = read.x;
      f.score[1] = read.y;
      f.score[2] = read.z;
      f.score[3] = read.w;
      float w[4];
      rule.weigh(*this, run, f, w);
      if (Rule::sums) *S = make_float4(w[0], w[1], w[2], w[3]);
      /* Tokens 64 half + 16 j + 4 s and the next three lie together, in the order of half, s and j. */
      uint2 *const to = place<uint2>(at.weights + f.of * at.weights_row + f.tile * single_tile * 2);
      send(to + lane / 16 * 16 + lane % 4 * 4 + lane % 16 / 4,
           make_uint2(pack_pair<T>(w[0], w[1]), pack_pair<T>(w[2], w[3])));
    }
  }

  /* Adds the weights of a tile and head in four lanes, as a prompt's threads do: those of tokens 16 j to 16 j + 15 of
   * both halves. The last warps begin, which have fewer channels of O. */
  __device__ __forceinline__ void add_up(int32_t run) const {
    for (int32_t number = single_threads - 1 - thread; number < own_tiles(run) * G * 4; number += single_threads) {
      const int32_t j = number % 4, of = number / 4 % G, own = number / 4 / G;
      float sum = 0.0f;
      ASSAY_UNROLL
      for (int32_t half = 0; half < 2; ++half) {
        const float4 *const w = reinterpret_cast<const float4 *>(score(of, own * single_tile + 64 * half + 16 * j));
        ASSAY_UNROLL
        for (int i = 0; i < 4; ++i) {
          const float4 four = w[i];
          sum += four.x;
          sum += four.y;
          sum += four.z;
          sum += four.w;
        }
      }
      send(place<float>(at.sums) + (tile_of(own) * G + of) * 4 + j, sum);
    }
  }

  /* ---- values  */

  /* Adds a unit's values, from key `first` of the run on, to this block's channels. */
  __device__ __forceinline__ void values(const unsigned char *stage, int32_t run, int32_t first) {
    const int32_t here = keys_in(run);
    if (warp >= width / 16) return;
    const int32_t mine = lane % 8, of = lane / 8;
    const bool live = mine < G;
    const unsigned char *const weights =
        live ? shared + at.weights + mine * at.weights_row + of % 2 * 16 : shared + at.zeros;
    const int32_t tokens = of / 2 * 32 + mine / 4 * 16 + mine % 4; /* the lane's row in step 0 */
    for (int32_t block = 0; block < value_rows() && first + block < here; block += 64) {
      const int32_t key = first + block, tile = key / single_tile;
      uint32_t w[4][2], v[4][4];
      ASSAY_UNROLL
      for (int s = 0; s < 4; ++s) {
        const int32_t row = block + tokens + 4 * s;
        ldmatrix_x2(w[s], live ? weights + (key + 16 * s) * 2 : weights);
        ldmatrix_x4_trans(v[s], stage + row * 2 * width + (((2 * warp + of % 2) ^ value_twist(row)) << 4));
      }
      if (Rule::shrinks && key % single_tile == 0 && (tile > 0 || run > 0)) {
        ASSAY_UNROLL
        for (int e = 0; e < 2; ++e) {
          const int32_t column = min(2 * (lane % 4) + e, G - 1);
          const float shrink = place<float>(at.shrinks)[tile * G + column];
          O[e] *= shrink;
          O[2 + e] *= shrink;
        }
      }
      ASSAY_UNROLL
      for (int s = 0; s < 4; ++s)
        mma_m16n8k16<T>(O, v[s], w[s]);
    }
  }

  __device__ __forceinline__ void store(int64_t row, const float *factor) const {
    if (warp >= width / 16) return;
    T *const to = static_cast<T *>(a.out) + (row * a.H + head) * D + rank * width;
    ASSAY_UNROLL
    for (int c = 0; c < 4; ++c) {
      const int32_t of = 2 * (lane % 4) + c % 2, channel = warp * 16 + lane / 4 + c / 2 * 8;
      if (of >= G) continue;
      const uint16_t bits = static_cast<uint16_t>(pack_pair<T>(O[c] * factor[of], 0.0f));
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

  __device__ __forceinline__ void begin(int64_t row) {
    all = p.blocks * p.tiles;
    width = D / p.blocks;
    chunks_shift = width >= 128 ? 4 : width >= 64 ? 3 : width >= 32 ? 2 : 1;
    find(row);
    runs = keys > 0 ? (keys + all * single_tile - 1) / (all * single_tile) : 0;
  }

  __device__ __forceinline__ void compute(int64_t row) {
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      O[i] = 0.0f;
    rule.start(*this);
    if (thread < 4) place<uint32_t>(at.zeros)[thread] = 0u;
    if (runs > 0) load_query(row);
    sync();
    if (p.blocks > 1) cluster_wait(); /* all blocks have started */
    for (int32_t r = 0; r < runs; ++r) {
      score_tiles(r);
      tell(r);
      meet();
      rule.settle(*this, r);
      if (Rule::shrinks) sync();
      weigh(r);
      meet();
      if (Rule::sums) add_up(r);
      if (Rule::sums && p.blocks > 1) cluster_arrive();
      const int32_t of_values = value_units(r);
      for (int32_t i = 0; i < of_values; ++i, use.next(p.stages)) {
        mbarrier_wait(&full[use.stage], use.parity);
        values(shared + use.stage * stage_bytes, r, i * value_rows());
        give(use.stage);
      }
      sync();
      if (Rule::sums && p.blocks > 1) cluster_wait(); /* all sums have arrived */
      rule.collect(*this, r);
    }
    float *const factors = place<float>(at.rest) + 4 * p.heads;
    sync();
    rule.finish(*this, row, factors);
    sync();
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

/* single_rows: handles one row and a kv head's group of heads per cluster.
 * Grid:   N * H_kv * sets * blocks. Block: 256 threads that compute, 64 that load. Cluster: `blocks`, 1 to 8, with at
 *         least 16 channels each.
 * Shared: single_layout: stages of 64 keys or values, scores, weights of the group. */
template <class T, int D, class Rule>
__global__ void __launch_bounds__(single_threads + single_loaders, 2)
    single_rows(single_params<typename Rule::params> p) {
  ASSAY_DYNAMIC_SHARED_1024(unsigned char, shared);
  const int64_t number = blockIdx.x / static_cast<uint32_t>(p.blocks);
  const int32_t in_row = p.s.a.H_kv * p.sets;
  const int64_t row = number / in_row;
  const int32_t unit = static_cast<int32_t>(number - row * in_row), set = unit % p.sets;
  dependents_launch();
  if (p.blocks > 1) cluster_arrive();
  single_ask(p.s.a, row);
  single_block<T, D, Rule> block(p, shared);
  block.rank = static_cast<int32_t>(blockIdx.x) % p.blocks;
  block.kv_head = unit / p.sets;
  block.head = block.kv_head * p.s.a.G + set * p.heads;
  block.G = min(p.heads, p.s.a.G - set * p.heads);
  if (threadIdx.x == 0) {
    for (int32_t i = 0; i < p.stages; ++i) {
      mbarrier_init(&block.full[i], single_loaders);
      mbarrier_init(&block.free[i], single_warps);
    }
    mbarrier_fence_init();
  }
  __syncthreads(); /* the barriers are made */
  dependency_wait();
  block.begin(row);
  if (threadIdx.x >= single_threads)
    block.load();
  else
    block.compute(row);
}

/* ---- launch ------------------------------------------------------------------------------------------ */

/* Returns how a call is spread. Blocks share a row as long as all of them run at once, wherever clusters find place. */
template <class Rule>
single_params<typename Rule::params> single_shape(const typename Rule::params &s, int64_t multiprocessors) {
  single_params<typename Rule::params> p = {};
  p.s = s;
  p.sets = (s.a.G + single_heads - 1) / single_heads;
  p.heads = s.a.G < single_heads ? s.a.G : single_heads;
  const int64_t rows = s.a.N * s.a.H_kv * p.sets;
  const int32_t most = s.a.D / 16;
  p.blocks = 1;
  while (2 * p.blocks <= most && 2 * p.blocks * single_tile <= s.a.capacity &&
         4 * p.blocks * rows <= 3 * multiprocessors)
    p.blocks *= 2;
  p.tiles = p.heads > 4 ? 2 : 4;
  p.stages = 4 * p.tiles < single_most_stages ? 4 * p.tiles : single_most_stages; /* no more than a run has units */
  const int64_t two = (INT64_C(228) * 1024 - 2 * 1024) / 2;
  const int64_t room = p.blocks == 1 && rows <= multiprocessors ? launch_max_shared : two;
  while (p.stages > 2 && single_layout(p, Rule::sent).bytes > room)
    --p.stages;
  return p;
}

template <class T, class Rule>
assay_status single_start(const single_params<typename Rule::params> &p, assay_env *env, assay_error *error) {
  launch_options options = in_turn();
  options.cluster = p.blocks;
  const attention_params &a = p.s.a;
  const int64_t grid = a.N * a.H_kv * p.sets * p.blocks, bytes = single_layout(p, Rule::sent).bytes;
  if (a.D == 64)
    return ASSAY_LAUNCH_WITH(error, (single_rows<T, 64, Rule>), grid, single_threads + single_loaders, bytes, options,
                             env->stream, p);
  return ASSAY_LAUNCH_WITH(error, (single_rows<T, 128, Rule>), grid, single_threads + single_loaders, bytes, options,
                           env->stream, p);
}

template <class Rule> void single_path(const typename Rule::params &s, assay_env *env) {
  const auto shape = single_shape<Rule>(s, env->multiprocessors);
  (void)snprintf(env->path, sizeof env->path, "wgmma rows blocks=%d sets=%d D=%d%s", shape.blocks, shape.sets, s.a.D,
                 cache_word(s.a));
}

} // namespace ASSAY_NS
#endif
