/* prefill_wgmma_load.cuh: the shared memory of the Hopper prefill, its barriers, and the warpgroup that fills it. 128
 * threads make 16-byte asynchronous copies of Q, K and V, in the token order of a key tile, with zeros after the last
 * key.
 *
 * Order of keys: row 8 i + 2 j + b of a block of 64 rows holds token 16 j + 2 i + b. A thread of a warpgroup, which
 * gets columns 8 i + 2 j + b of the scores for its j = lane mod 4, thus gets 16 neighbouring tokens. Rows lie 128 bytes
 * apart in pieces of 64 channels, with their 16-byte chunks permuted by the row's lowest three bits. */
#ifndef ASSAY_GPU_LIB_PREFILL_WGMMA_LOAD_CUH
#define ASSAY_GPU_LIB_PREFILL_WGMMA_LOAD_CUH

#include "gpu/lib/prefill_wgmma_items.cuh"
#include "gpu/lib/ptx_async.cuh"
#include "gpu/lib/paged.cuh"
#include "gpu/lib/rows.cuh"

namespace ASSAY_NS {

constexpr int32_t keys_per_tile_shift = 7;
constexpr int32_t keys_per_tile = 1 << keys_per_tile_shift;

/* The form of the items: 64 rows of a pair of heads of one kv head. If a group has one head, they are 128 rows of that
 * head. */
struct prefill_pairs {
  using item = prefill_item;
  static constexpr int32_t tile_keys = keys_per_tile;
  static __host__ PREFILL_FUNCTION run_shifted run(const attention_params &a) { return {a.G > 1 ? 6 : 7}; }
  static __host__ PREFILL_FUNCTION int32_t lines(const attention_params &) { return 1; }
  static PREFILL_FUNCTION int32_t row_of(const attention_params &, int32_t line) { return line; }
  static __host__ PREFILL_FUNCTION int32_t heads_an_item(const attention_params &a) { return a.G > 1 ? 2 : 1; }
  static __host__ PREFILL_FUNCTION int32_t items_a_run(const attention_params &a) { return a.G > 1 ? a.H / 2 : a.H; }
};

constexpr int32_t prefill_threads = 384; /* one warpgroup that loads, two that compute */
constexpr int32_t prefill_loaders = 128, prefill_computing_warps = 8;

template <int D> struct prefill_layout {
  static constexpr int32_t pieces = D / 64; /* pieces of 64 channels */
  static constexpr int32_t q_stages = 3, kv_stages = 2;
  static constexpr int32_t piece_bytes = 128 * 128;      /* 128 rows: two query tiles, or a tile of keys */
  static constexpr int32_t half_bytes = piece_bytes / 2; /* the part of a piece that is one query tile */
  static constexpr int32_t stage_bytes = pieces * piece_bytes;
  static constexpr int32_t k_at = q_stages * stage_bytes, v_at = k_at + kv_stages * stage_bytes;
  static constexpr int32_t control_at = v_at + kv_stages * stage_bytes;
  static constexpr int32_t bytes = control_at + 512;
};

/* The barriers: *_full completes when a stage is filled, *_free when it has been read. */
template <int D> struct prefill_control {
  using layout = prefill_layout<D>;
  uint64_t q_full[layout::q_stages], q_free[layout::q_stages];
  uint64_t k_full[layout::kv_stages], k_free[layout::kv_stages];
  uint64_t v_full[layout::kv_stages], v_free[layout::kv_stages];
  prefill_item item[layout::q_stages];
  prefill_item next[2][prefill_loaders / 32]; /* one found by each warp; the previous ones may still be read */
};

/* Prefetches what the loaders read first, one line per thread. The loading threads ask for rows and lengths of the
 * requests, the others for the first entries of every request's table. It reads nothing, so it may come before
 * dependency_wait(). */
PREFILL_FUNCTION void prefill_ask(const attention_params &a) {
  constexpr int32_t entries = 32; /* entries per line */
  const int32_t thread = static_cast<int32_t>(threadIdx.x), number = thread - prefill_loaders;
  if (number < 0) {
    if (thread * entries <= a.B) prefetch_l2(a.cu_q + thread * entries);
    if (thread * entries < a.B) prefetch_l2(a.length + thread * entries);
    return;
  }
  const int32_t line = number / max(a.B, 1);
  if (a.B > 0 && line * entries < a.capacity >> a.cache.block_shift)
    prefetch_l2(a.cache.table + (number - line * a.B) * a.cache.table_row + line * entries);
}

/* A stage of a ring and the parity of the phase that fills it. */
struct prefill_ring {
  int32_t stage;
  uint32_t parity;
  template <int stages> PREFILL_FUNCTION void next() {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
};

template <int D> PREFILL_FUNCTION void prefill_barriers(prefill_control<D> *control) {
  using layout = prefill_layout<D>;
  for (int32_t i = 0; i < layout::q_stages; ++i) {
    mbarrier_init(&control->q_full[i], prefill_loaders + 1);
    mbarrier_init(&control->q_free[i], 32 * prefill_computing_warps);
  }
  for (int32_t i = 0; i < layout::kv_stages; ++i) {
    mbarrier_init(&control->k_full[i], prefill_loaders);
    mbarrier_init(&control->v_full[i], prefill_loaders);
    mbarrier_init(&control->k_free[i], prefill_computing_warps);
    mbarrier_init(&control->v_free[i], prefill_computing_warps);
  }
  mbarrier_fence_init();
}

/* One thread's share of the loads: chunk `chunk` of the rows `row`, row + rows_a_pass, ... of every tile. T: two bytes
 * per element. Its copies from a block follow `lines` sequences of addresses. With 2, copies wait less for each other
 * but need more registers. */
template <class T, int D, int lines> struct prefill_loader {
  using layout = prefill_layout<D>;
  static constexpr int32_t chunks = D / 8; /* chunks of 16 bytes per row */
  static constexpr int32_t rows_a_pass = prefill_loaders / chunks;
  static constexpr int32_t passes = 64 / rows_a_pass; /* passes for 64 rows */

  const attention_params &a;
  int32_t chunk, row;
  int32_t to; /* byte offset in a stage of (row, chunk) */

  PREFILL_FUNCTION prefill_loader(const attention_params &a_, int32_t thread) : a(a_) {
    chunk = thread % chunks;
    row = thread / chunks;
    to = chunk / 8 * layout::piece_bytes + row * 128 + (((chunk ^ row) & 7) << 4);
  }

  /* Loads the queries of an item: the rows of both warpgroups, which have two heads or, if a group has one head, two
   * runs. */
  PREFILL_FUNCTION void query(unsigned char *stage, const prefill_item &item) const {
    stage += to;
    ASSAY_ROLLED
    for (int32_t half = 0; half < 2; ++half, stage += layout::half_bytes) {
      const int32_t head = item.head + (a.G > 1 ? half : 0), first = a.G > 1 ? 0 : 64 * half;
      const int32_t rest = item.rows - first - row; /* rows from this thread's first row on */
      const T *from = element_at<T>(a.q, query_offset(a, item.row + first + row, head) + 8 * chunk);
      ASSAY_UNROLL
      for (int32_t pass = 0; pass < passes; ++pass) {
        cp_async_16(stage + pass * rows_a_pass * 128, from, pass * rows_a_pass < rest ? 16 : 0);
        from = element_at<T>(from, rows_a_pass * a.q_row);
      }
    }
  }

  /* Returns K or V of a head at this thread's channels. */
  PREFILL_FUNCTION const T *channels(const void *base, int64_t head) const {
    return element_at<T>(base, head + 8 * chunk);
  }

  /* Looks up this thread's blocks of a tile, for its lower and its upper 64 keys. A block without keys in first <= key
   * < end is not looked up. */
  PREFILL_FUNCTION void look_up(int32_t (&block)[2], const int32_t *table, int32_t tile, int32_t first,
                                int32_t end) const {
    const int32_t run = tile * keys_per_tile + 16 * (row % 8 / 2); /* first of 16 tokens of one block */
    ASSAY_UNROLL
    for (int32_t half = 0; half < 2; ++half) {
      const int32_t t = run + 64 * half;
      block[half] = t < end && t + 16 > first ? table[t >> a.cache.block_shift] : 0;
    }
  }

  /* Loads the lower 64 keys of a tile, or all keys. bounded: keys before `first` (if from_first) and from `end` on
   * become zeros and are not read. */
  template <int halves, bool bounded, bool from_first>
  PREFILL_FUNCTION void keys(unsigned char *stage, const T *base, int64_t block_stride, int64_t token_stride,
                             const int32_t (&block)[2], int32_t tile, int32_t first, int32_t end) const {
    constexpr int32_t ahead = rows_a_pass / 8 * 2; /* tokens from pass to pass */
    constexpr int32_t steps = passes / lines;
    const int32_t inner = row % 8;
    const int32_t run = tile * keys_per_tile + 16 * (inner / 2);
    const int32_t mine = 2 * (row / 8) + inner % 2; /* this thread's first token among the 16 */
    const T *from[halves][lines];
    ASSAY_UNROLL
    for (int32_t half = 0; half < halves; ++half) {
      const int32_t slot = slot_of(a.cache, run + 64 * half) + mine;
      from[half][0] = element_at<T>(base, block[half] * block_stride + slot * token_stride);
      ASSAY_UNROLL
      for (int32_t line = 1; line < lines; ++line)
        from[half][line] = separate(element_at<T>(from[half][line - 1], steps * ahead * token_stride));
    }
    stage += to;
    ASSAY_UNROLL
    for (int32_t step = 0; step < steps; ++step) {
      ASSAY_UNROLL
      for (int32_t at = 0; at < halves * lines; ++at) {
        const int32_t half = at / lines, line = at % lines, pass = line * steps + step;
        const int32_t key = run + 64 * half + mine + pass * ahead;
        const bool live = !bounded || (key < end && (!from_first || key >= first));
        cp_async_16(stage + half * layout::half_bytes + pass * rows_a_pass * 128, from[half][line], live ? 16 : 0);
        from[half][line] = element_at<T>(from[half][line], ahead * token_stride);
      }
    }
  }

  /* Loads the keys of a tile that some row sees, first <= key < end, and zeros for the others. If `whole`, the zeros go
   * to the end of the tile; otherwise they end with its lower half, if the keys do. Without from_first, first is 0. */
  template <bool whole, bool from_first>
  PREFILL_FUNCTION void tile(unsigned char *stage, const T *base, int64_t block_stride, int64_t token_stride,
                             const int32_t (&block)[2], int32_t tile, int32_t first, int32_t end) const {
    const int32_t rest = end - tile * keys_per_tile;
    if (rest >= keys_per_tile && (!from_first || tile * keys_per_tile >= first))
      keys<2, false, false>(stage, base, block_stride, token_stride, block, tile, first, end);
    else if (whole || rest > 64)
      keys<2, true, from_first>(stage, base, block_stride, token_stride, block, tile, first, end);
    else
      keys<1, true, false>(stage, base, block_stride, token_stride, block, tile, first, end);
  }
};

/* The warpgroup that loads. windows: rows may begin after key 0, and the keys of a tile are always filled to its end.
 * whole: the values of a tile are always filled to its end. */
template <class T, int D, bool windows, bool whole, int lines> struct prefill_filler {
  using layout = prefill_layout<D>;

  const attention_params &a;
  unsigned char *const shared;
  prefill_control<D> *const control;
  const prefill_loader<T, D, lines> loader;
  int32_t filled; /* number of key tiles; of value tiles, one less */

  PREFILL_FUNCTION prefill_filler(const attention_params &a_, unsigned char *shared_, prefill_control<D> *control_)
      : a(a_), shared(shared_), control(control_), loader(a_, static_cast<int32_t>(threadIdx.x)), filled(0) {}

  /* Publishes item number `turn` of this block and loads its queries. */
  PREFILL_FUNCTION void announce(const prefill_item &item, int32_t turn) const {
    const int32_t q = turn % layout::q_stages;
    mbarrier_wait(&control->q_free[q], (turn / layout::q_stages & 1) ^ 1);
    if (threadIdx.x == 0) {
      control->item[q] = item;
      mbarrier_arrive(&control->q_full[q]);
    }
    if (item.end == 0) {
      mbarrier_arrive(&control->q_full[q]);
      return;
    }
    loader.query(shared + q * layout::stage_bytes, item);
    cp_async_arrive_noinc(&control->q_full[q]);
  }

  /* The source of an item's tiles: keys first <= key < end of a request, of one head. */
  struct source {
    int32_t request, kv_head, first, end;
  };
  PREFILL_FUNCTION source source_of(const prefill_item &item) const {
    return {item.request, kv_head_of(a, item.head), windows && a.window > 0 ? max(item.position - a.window + 1, 0) : 0,
            item.position + item.rows};
  }
  PREFILL_FUNCTION const int32_t *table(const source &s) const { return a.cache.table + s.request * a.cache.table_row; }

  PREFILL_FUNCTION void look_up(int32_t (&block)[2], const source &s, int32_t tile) const {
    loader.look_up(block, table(s), tile, s.first, s.end);
  }

  PREFILL_FUNCTION void key_tile(const source &s, const int32_t (&block)[2], int32_t tile) {
    const int32_t stage = filled & 1;
    mbarrier_wait(&control->k_free[stage], (filled >> 1 & 1) ^ 1);
    loader.template tile<windows, windows>(shared + layout::k_at + stage * layout::stage_bytes,
                                           loader.channels(a.cache.k, s.kv_head * a.cache.k_head), a.cache.k_block,
                                           a.cache.k_token, block, tile, s.first, s.end);
    cp_async_arrive_noinc(&control->k_full[stage]);
  }

  PREFILL_FUNCTION void value_tile(const source &s, const int32_t (&block)[2], int32_t tile) {
    const int32_t stage = (filled - 1) & 1;
    mbarrier_wait(&control->v_free[stage], ((filled - 1) >> 1 & 1) ^ 1);
    loader.template tile<whole, windows>(shared + layout::v_at + stage * layout::stage_bytes,
                                         loader.channels(a.cache.v, s.kv_head * a.cache.v_head), a.cache.v_block,
                                         a.cache.v_token, block, tile, s.first, s.end);
    cp_async_arrive_noinc(&control->v_full[stage]);
  }

  /* Loads in the order in which the tiles are used: the next item's queries and first keys come before this item's last
   * values. A tile's blocks are looked up before the values of the previous tile are loaded. */
  PREFILL_FUNCTION void run() {
    const int32_t ctas = static_cast<int32_t>(gridDim.x), cta = static_cast<int32_t>(blockIdx.x);
    constexpr int32_t warps = prefill_loaders / 32;
    const int32_t warp = static_cast<int32_t>(threadIdx.x / 32);
    const prefill_request own = prefill_request_of(a, static_cast<int32_t>(lane_id()));
    prefill_walk<prefill_pairs> walk;
    walk.start(a, own);
    int32_t tile = 0, tiles = 0; /* the next tile to load, and the end of the tiles: none before the first item */
    source from = {0, 0, 0, 0};
    int32_t key_block[2] = {0, 0}, value_block[2] = {0, 0};
    /* Rows of the list go from left to right, then from right to left, and so on. A block with a long item thus gets a
     * short one next. */
    for (int32_t turn = 0;; ++turn) {
      prefill_item *const found = control->next[turn / warps % 2];
      if (turn % warps == 0) { /* the items of as many turns as there are warps, one per warp */
        const int32_t mine = turn + warp;
        const prefill_item item = walk.item(a, own, mine * ctas + (mine % 2 == 0 ? cta : ctas - 1 - cta));
        if (threadIdx.x % 32 == 0) found[warp] = item;
        named_barrier_sync(1, prefill_loaders);
      }
      const prefill_item &next = found[turn % warps];
      for (;; ++tile, ++filled) {
        const bool last = tile == tiles;
        if (last) {
          if (next.end != 0) look_up(key_block, source_of(next), next.begin);
          announce(next, turn);
        }
        const int32_t before[2] = {value_block[0], value_block[1]};
        if (!last || next.end != 0) {
          const source keys_from = last ? source_of(next) : from;
          const int32_t keys_tile = last ? next.begin : tile;
          key_tile(keys_from, key_block, keys_tile);
          value_block[0] = key_block[0];
          value_block[1] = key_block[1];
          look_up(key_block, keys_from, keys_tile + 1);
        }
        if (filled > 0) value_tile(from, before, tile - 1);
        if (last) break;
      }
      if (next.end == 0) return;
      from = source_of(next);
      tile = next.begin + 1;
      tiles = next.end;
      ++filled;
    }
  }
};

} // namespace ASSAY_NS
#endif
