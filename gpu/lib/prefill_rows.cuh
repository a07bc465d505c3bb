/* prefill_rows.cuh: single rows of a ragged prefill, with the bits that prefill_wgmma.cuh gives them in a prompt. A
 * prompt's row is one chain over its tiles of 128 keys: running sums by steps of 16 keys. The chain is kept here, and
 * only what it does not order is done side by side.
 *
 *   scores    The blocks of a cluster take tiles in turn.
 *   exchange  Blocks send each other what a tile's weights need of other tiles.
 *   weights   The block that has a tile's scores makes its weights, and sends them to all.
 *   O         Each block has an equal share of the channels, with one chain per channel over all keys.
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
 *   tell(block, w)                  sends what other tiles need of this one, by the four lanes of a tile and head
 *   settle(block, run)              when all that was sent has arrived
 *   Rule::lane                      makes a lane's weights: begin before each 16 of them, weight for each, end
 *   collect(block, run)             when all weights have arrived
 *   finish(block, row, factors)     the factors of the sums, by head */
#ifndef ASSAY_GPU_LIB_PREFILL_ROWS_CUH
#define ASSAY_GPU_LIB_PREFILL_ROWS_CUH

#include "gpu/lib/paged.cuh"
#include "gpu/lib/ptx_async.cuh"
#include "gpu/lib/ptx_mma.cuh"
#include "gpu/lib/rows.cuh"

namespace ASSAY_NS {

constexpr int32_t single_threads = 256, single_warps = 8;
constexpr int32_t single_tile = 128; /* keys; a stage holds all channels of so many keys, or fewer of more */
constexpr int32_t single_heads = 8, single_most_stages = 6;

template <class Params> struct single_params {
  Params s;
  int32_t blocks, tiles, stages; /* blocks per cluster, tiles of a block per exchange, stages of the ring */
  int32_t sets, heads;           /* blocks side by side that share a kv head's group; most heads of one */
};

/* Places in shared memory, in bytes. A score of token t lies at t + t / 16 * 4. */
struct single_layout {
  int32_t full, table, entries, scores, scores_row, weights, weights_row, zeros, tops, peaks, shrinks, sums, rest,
      bytes;
  template <class Params> __host__ __device__ single_layout(const single_params<Params> &p, int32_t sent) {
    const int32_t all = p.blocks * p.tiles, G = p.heads;
    entries = all * single_tile / 16 + 1;
    full = p.stages * 2 * single_tile * p.s.a.D;
    table = full + 8 * single_most_stages;
    scores_row = (p.tiles * single_tile / 16 * 20 + 4) * 4;
    scores = (table + 2 * entries * 4 + 15) / 16 * 16;
    weights_row = all * single_tile * 2 + 16;
    weights = scores + G * scores_row;
    zeros = weights + G * weights_row;
    tops = zeros + 16;
    peaks = tops + all * G * 4 * sent;
    shrinks = peaks + all * G * 4;
    sums = (shrinks + all * G * 4 + 15) / 16 * 16;
    rest = sums + all * G * 16;
    bytes = rest + 5 * G * 4;
  }
};

/* A place in the sequence of units that a block loads: those of a run of tiles' keys, then those of its values. */
struct single_cursor {
  int32_t run, at;
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

/* The place of a lane among the lanes that weigh: lane j of tile `own` of this block, for head `of`. */
struct single_weigher {
  int32_t j, of, own, tile, stop; /* stop: the last visible key, counted from the lane's first */
};

template <class T, int D, class Rule> struct single_block {
  using params = single_params<typename Rule::params>;
  const params &p;
  const attention_params &a;
  unsigned char *const shared;
  const single_layout at;
  uint64_t *const full;
  const int32_t thread, warp, lane;
  int32_t rank, width; /* width: channels of O of this block */
  int32_t request, kv_head, head, G, keys, all, runs;
  single_cursor cursor;
  int32_t chunks_shift; /* 2^chunks_shift chunks of 16 bytes per key of V */
  single_stage fill, use;
  uint32_t Q[D / 16][2];
  float O[4];
  Rule rule;

  static constexpr int32_t stage_bytes = 2 * single_tile * D;

  __device__ __forceinline__ single_block(const params &p_, unsigned char *shared_)
      : p(p_), a(p_.s.a), shared(shared_), at(p_, Rule::sent), full(reinterpret_cast<uint64_t *>(shared_ + at.full)),
        thread(static_cast<int32_t>(threadIdx.x)), warp(thread / 32), lane(thread % 32), cursor({0, 0}), fill({0, 0}),
        use({0, 0}) {}

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

  /* Copies a stage: `channels` of each of a run of keys, from key `first` on, and zeros from the row's end on. */
  template <bool values>
  __device__ __forceinline__ void copy(unsigned char *stage, int32_t run, int32_t first, int32_t shift) const {
    constexpr int32_t passes = stage_bytes / 16 / single_threads;
    const paged_cache &cache = a.cache;
    const int32_t chunk = thread & ((1 << shift) - 1), row = thread >> shift, rows = single_threads >> shift;
    const int32_t *const table =
        place<int32_t>(at.table) + (run & 1) * at.entries - (first_key(run) >> cache.block_shift);
    const int64_t block_stride = values ? cache.v_block : cache.k_block;
    const int64_t token_stride = values ? cache.v_token : cache.k_token;
    const T *const base = values ? element_at<T>(cache.v, kv_head * cache.v_head + rank * width + 8 * chunk)
                                 : element_at<T>(cache.k, kv_head * cache.k_head + 8 * chunk);
    const T *from[passes];
    ASSAY_UNROLL
    for (int32_t pass = 0; pass < passes; ++pass) {
      const int32_t token = first + row + pass * rows, block = token < keys ? table[token >> cache.block_shift] : 0;
      from[pass] =
          token < keys ? element_at<T>(base, block * block_stride + slot_of(cache, token) * token_stride) : base;
    }
    ASSAY_UNROLL
    for (int32_t pass = 0; pass < passes; ++pass) {
      const int32_t to = row + pass * rows, twist = values ? value_twist(to) : to & 7;
      cp_async_16(stage + (to << (shift + 4)) + ((chunk ^ twist) << 4), from[pass], first + to < keys ? 16 : 0);
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
    const int32_t of_keys = own_tiles(cursor.run), first = first_key(cursor.run);
    unsigned char *const to = shared + fill.stage * stage_bytes;
    if (cursor.at < of_keys)
      copy<false>(to, cursor.run, first + (rank + p.blocks * cursor.at) * single_tile, D == 64 ? 3 : 4);
    else
      copy<true>(to, cursor.run, first + (cursor.at - of_keys) * value_rows(), chunks_shift);
    cp_async_arrive_noinc(&full[fill.stage]);
    fill.next(p.stages);
    if (++cursor.at == of_keys + value_units(cursor.run)) cursor = {cursor.run + 1, 0};
  }

  /* Waits for the next unit, and loads another in place of the unit before it. */
  __device__ __forceinline__ const unsigned char *take() {
    const int32_t stage = use.stage;
    mbarrier_wait(&full[stage], use.parity);
    __syncthreads();
    use.next(p.stages);
    load();
    return shared + stage * stage_bytes;
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

  /* Computes the scores of tile `own` of this block. */
  __device__ __forceinline__ void scores(const unsigned char *stage, int32_t own) const {
    const int32_t row = warp * 16 + lane % 16;
    float S[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    uint32_t k[D / 16][4];
    ASSAY_UNROLL
    for (int step = 0; step < D / 16; ++step)
      ldmatrix_x4(k[step], stage + row * 2 * D + (((2 * step + lane / 16) ^ (row & 7)) << 4));
    ASSAY_UNROLL
    for (int step = 0; step < D / 16; ++step)
      mma_m16n8k16<T>(S, k[step], Q[step]);
    const int32_t token = own * single_tile + warp * 16 + lane / 4, of = 2 * (lane % 4);
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      if (of + i % 2 < G) *score(of + i % 2, token + i / 2 * 8) = S[i];
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

  __device__ __forceinline__ single_weigher weigher_of(int32_t number, int32_t run) const {
    single_weigher w;
    w.j = number % 4;
    w.of = number / 4 % G;
    w.own = number / 4 / G;
    w.tile = rank + p.blocks * w.own;
    w.stop = keys - 1 - first_key(run) - w.tile * single_tile - 16 * w.j;
    return w;
  }
  __device__ __forceinline__ const float *sixteen_of(const single_weigher &w, int32_t half) const {
    return score(w.of, w.own * single_tile + 64 * half + 16 * w.j);
  }

  __device__ __forceinline__ void tell(int32_t run) const {
    for (int32_t number = thread; number < own_tiles(run) * G * 4; number += single_threads)
      rule.tell(*this, weigher_of(number, run));
  }

  /* Makes weights of the scores of this block's tiles, and sends them to all blocks. */
  __device__ __forceinline__ void weigh(int32_t run) const {
    for (int32_t number = thread; number < own_tiles(run) * G * 4; number += single_threads) {
      const single_weigher w = weigher_of(number, run);
      typename Rule::lane lane_of(rule, *this, w, run);
      uint2 *const to = place<uint2>(at.weights + w.of * at.weights_row + w.tile * single_tile * 2) + w.j;
      ASSAY_ROLLED
      for (int32_t half = 0; half < 2; ++half) {
        const float *const S = sixteen_of(w, half);
        lane_of.begin(*this, w, half);
        ASSAY_UNROLL
        for (int s = 0; s < 4; ++s) {
          float weight[4];
          ASSAY_UNROLL
          for (int e = 0; e < 4; ++e)
            weight[e] = lane_of.weight(S[4 * s + e], 64 * half + 4 * s + e > w.stop);
          send(to + 16 * half + 4 * s,
               make_uint2(pack_pair<T>(weight[0], weight[1]), pack_pair<T>(weight[2], weight[3])));
        }
      }
      lane_of.end(*this, w);
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

  __device__ __forceinline__ void run(int64_t row) {
    all = p.blocks * p.tiles;
    width = D / p.blocks;
    chunks_shift = width >= 128 ? 4 : width >= 64 ? 3 : width >= 32 ? 2 : 1;
    find(row);
    runs = keys > 0 ? (keys + all * single_tile - 1) / (all * single_tile) : 0;
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      O[i] = 0.0f;
    read_table(0);
    rule.start(*this);
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
    for (int32_t r = 0; r < runs; ++r) {
      read_table(r + 1);
      const int32_t own = own_tiles(r);
      for (int32_t i = 0; i < own; ++i)
        scores(take(), i);
      __syncthreads();
      tell(r);
      meet();
      rule.settle(*this, r);
      if (Rule::shrinks) __syncthreads();
      weigh(r);
      meet();
      rule.collect(*this, r);
      const int32_t of_values = value_units(r);
      for (int32_t i = 0; i < of_values; ++i)
        values(take(), r, i * value_rows());
    }
    float *const factors = place<float>(at.rest) + 4 * p.heads;
    rule.finish(*this, row, factors); /* a take() stands between the last run's collect() and this */
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

/* single_rows: handles one row and a kv head's group of heads per cluster.
 * Grid:   N * H_kv * sets * blocks. Block: 256 threads. Cluster: `blocks`, 1 to 8, with at least 16 channels each.
 * Shared: single_layout: stages of 128 keys or values, scores, weights of the group. */
template <class T, int D, class Rule>
__global__ void __launch_bounds__(single_threads, 2) single_rows(single_params<typename Rule::params> p) {
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
  dependency_wait();
  block.run(row);
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
  p.stages = 2 * p.tiles < single_most_stages ? 2 * p.tiles : single_most_stages; /* no more than a run has units */
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
    return ASSAY_LAUNCH_WITH(error, (single_rows<T, 64, Rule>), grid, single_threads, bytes, options, env->stream, p);
  return ASSAY_LAUNCH_WITH(error, (single_rows<T, 128, Rule>), grid, single_threads, bytes, options, env->stream, p);
}

template <class Rule> void single_path(const typename Rule::params &s, assay_env *env) {
  const auto shape = single_shape<Rule>(s, env->multiprocessors);
  (void)snprintf(env->path, sizeof env->path, "wgmma rows blocks=%d sets=%d D=%d%s", shape.blocks, shape.sets, s.a.D,
                 cache_word(s.a));
}

} // namespace ASSAY_NS
#endif
