/* prefill_mma.cuh: attention of many query rows over the paged cache with mma.sync, independent of what is done with a
 * score. It uses four warps, 64 query rows of one head and tiles of 64 keys. It takes calls that prefill_wgmma.cuh does
 * not take: every group of heads, every block of the cache, and more head sizes.
 *
 *   S = Q K^T        mma m16n8k16, f32 in registers; a warp has 16 rows and all keys of the tile
 *   P = weights(S)   the operator's, in place; rounded to the storage type
 *   O = O + P V      P from the registers in which it was computed
 *
 * There are two stages of K and V and of Q. The next tile, which may belong to the next item, is loaded while this one
 * is computed. There is one barrier per tile. Order of keys: row 8 i + 2 j + b of a tile holds token 16 j + 2 i + b. A
 * thread, which gets columns 8 i + 2 j + b of the scores for its j = lane mod 4, thus gets 16 neighbouring tokens.
 *
 * An operator provides Weights:
 *
 *   Weights::params, with `attention_params a`
 *   start(p, head, position)            position: of the thread's first row; the second is 8 further
 *   weigh<masked>(p, S, tile)           S[i][2 h + b]: row 8 h further, token 16 (lane mod 4) + 2 i + b of the tile;
 *                                       masked: some row of the warp does not see some key
 *   rescale(O)                          before the tile's values are added
 *   finish(p, item, row, factor)        row: the thread's first in the item; factor[h]: O is multiplied by it */
#ifndef ASSAY_GPU_LIB_PREFILL_MMA_CUH
#define ASSAY_GPU_LIB_PREFILL_MMA_CUH

#include "gpu/lib/paged.cuh"
#include "gpu/lib/prefill_variant.cuh"
#include "gpu/lib/prefill_wgmma_items.cuh"
#include "gpu/lib/ptx_async.cuh"
#include "gpu/lib/ptx_mma.cuh"
#include "gpu/lib/rows.cuh"

namespace ASSAY_NS {

constexpr int32_t mma_threads = 128, mma_keys = 64;

/* Returns the number of keys that a row sees before its own. */
PREFILL_FUNCTION int32_t reach_of(const attention_params &a) {
  return a.window > 0 ? a.window - 1 : 1 << 30;
}

/* The form of the items: 64 rows of one head. */
struct mma_runs {
  using item = prefill_item;
  static constexpr int32_t tile_keys = mma_keys;
  static __host__ PREFILL_FUNCTION run_fixed<64> run(const attention_params &) { return {}; }
  static __host__ PREFILL_FUNCTION int32_t lines(const attention_params &) { return 1; }
  static PREFILL_FUNCTION int32_t row_of(const attention_params &, int32_t line) { return line; }
  static __host__ PREFILL_FUNCTION int32_t heads_an_item(const attention_params &) { return 1; }
  static __host__ PREFILL_FUNCTION int32_t items_a_run(const attention_params &a) { return a.H; }
};

/* The shared memory: two stages of Q, of K and of V, 64 rows each. 16-byte chunks of a row are permuted so that eight
 * neighbouring rows of a column of chunks lie in different banks. */
template <int D> struct mma_layout {
  static constexpr int32_t chunks = D / 8, pitch = 2 * D, stage_bytes = 64 * pitch;
  static constexpr int32_t k_at = 2 * stage_bytes, v_at = 4 * stage_bytes, bytes = 6 * stage_bytes;
  static constexpr bool q_in_registers = D <= 128;
  /* Blocks per multiprocessor that shared memory and the registers per thread (128, 168, 255) allow. */
  static constexpr int32_t blocks = D == 32 ? 4 : D == 64 ? 3 : D <= 128 ? 2 : 1;

  /* Chunks are permuted by the row's number within groups of eight, or of four if a row is not a multiple of 128
   * bytes. */
  static constexpr int32_t group = D % 64 == 0 ? 8 : 4;
  static PREFILL_FUNCTION int32_t twist(int32_t row) { return group == 8 ? row & 7 : row >> 1 & 3; }
  static PREFILL_FUNCTION int32_t at(int32_t row, int32_t chunk) { return row * pitch + ((chunk ^ twist(row)) << 4); }

  /* Returns the place of chunk 2 step + half. For every step except the first few it is a value that a lane keeps plus
   * a constant. */
  static PREFILL_FUNCTION int32_t at_step(int32_t row, int step, int32_t half) {
    constexpr int steps = group / 2;
    return at(row, step % steps * 2 + half) + step / steps * group * 16;
  }
};

/* ---- loads ------------------------------------------------------------------------------------------ */

/* One thread's share of the loads: chunks `chunk`, chunk + group, ... of the rows `row`, row + rows_a_pass, ... of
 * every tile. These rows hold tokens that are equally far apart. T: two bytes per element. */
template <class T, int D> struct mma_loader {
  using layout = mma_layout<D>;
  static constexpr int32_t group = layout::group, rows_a_pass = mma_threads / group, passes = 64 / rows_a_pass;
  static constexpr int32_t ahead = rows_a_pass / 8 * 2; /* tokens from pass to pass */

  const attention_params &a;
  unsigned char *const to;  /* (row, chunk) of a stage */
  int32_t row, chunk, mine; /* mine: token of the row */

  PREFILL_FUNCTION mma_loader(const attention_params &a_, unsigned char *shared, int32_t thread)
      : a(a_), to(shared + layout::at(thread / group, thread % group)), row(thread / group), chunk(thread % group),
        mine(16 * (row / 2 % 4) + 2 * (row / 8) + row % 2) {}

  /* Copies the thread's chunks of one row, 16 bytes at a time. */
  static PREFILL_FUNCTION void copy(unsigned char *to, const T *from, int32_t bytes) {
    ASSAY_UNROLL
    for (int32_t i = 0; i < layout::chunks / group; ++i)
      cp_async_16(to + i * group * 16, element_at<T>(from, i * group * 8), bytes);
  }

  PREFILL_FUNCTION void query(const prefill_item &item, int32_t stage) const {
    const T *from = element_at<T>(a.q, query_offset(a, item.row + row, item.head) + 8 * chunk);
    ASSAY_ROLLED
    for (int32_t pass = 0; pass < passes; ++pass) {
      copy(to + stage * layout::stage_bytes + pass * rows_a_pass * layout::pitch, from,
           row + pass * rows_a_pass < item.rows ? 16 : 0);
      from = element_at<T>(from, rows_a_pass * a.q_row);
    }
  }

  /* Loads K and V of a tile, for the keys that some row of the item sees, and zeros for the others. Neither the other
   * keys nor their table entries are read. */
  PREFILL_FUNCTION void keys(const prefill_item &item, int32_t tile, int32_t stage) const {
    const int32_t *const table = a.cache.table + item.request * a.cache.table_row;
    const int32_t end = item.position + item.rows, first = a.window > 0 ? item.position - a.window + 1 : 0;
    const int32_t kv_head = kv_head_of(a, item.head), token = tile * mma_keys + mine;
    const T *const k = element_at<T>(a.cache.k, kv_head * a.cache.k_head + 8 * chunk);
    const T *const v = element_at<T>(a.cache.v, kv_head * a.cache.v_head + 8 * chunk);
    unsigned char *const place = to + stage * layout::stage_bytes;
    int32_t block[passes];
    ASSAY_UNROLL
    for (int32_t pass = 0; pass < passes; ++pass) {
      const int32_t t = token + pass * ahead;
      block[pass] = t < end && t >= first ? table[t >> a.cache.block_shift] : -1;
    }
    ASSAY_UNROLL
    for (int32_t pass = 0; pass < passes; ++pass) {
      const int32_t slot = slot_of(a.cache, token + pass * ahead), bytes = block[pass] >= 0 ? 16 : 0;
      unsigned char *const at = place + pass * rows_a_pass * layout::pitch;
      copy(at + layout::k_at, element_at<T>(k, block[pass] * a.cache.k_block + slot * a.cache.k_token), bytes);
      copy(at + layout::v_at, element_at<T>(v, block[pass] * a.cache.v_block + slot * a.cache.v_token), bytes);
    }
  }
};

/* ---- one warp --------------------------------------------------------------------------------------- */

template <class T, int D, class Weights> struct mma_warp {
  using layout = mma_layout<D>;

  unsigned char *const shared;
  const int32_t warp, lane;
  Weights weights;
  int32_t low, high; /* positions of the warp's first and last row; high below low: it has no rows */
  float O[D / 8][4];
  uint32_t Q[layout::q_in_registers ? D / 16 : 1][4];

  PREFILL_FUNCTION explicit mma_warp(unsigned char *shared_)
      : shared(shared_), warp(static_cast<int32_t>(threadIdx.x) / 32), lane(static_cast<int32_t>(threadIdx.x) % 32) {}

  /* Loads queries of 16 channels into the fragment of the left operand. */
  PREFILL_FUNCTION void load_query(uint32_t (&q)[4], int32_t stage, int step, int32_t ahead) const {
    const int32_t row = 16 * warp + lane % 16;
    ldmatrix_x4(q, shared + stage * layout::stage_bytes + layout::at_step(row, step, lane / 16) + ahead);
  }

  /* Begins an item whose queries are in the stage. */
  PREFILL_FUNCTION void start(const typename Weights::params &p, const prefill_item &item, int32_t stage) {
    low = item.position + 16 * warp;
    high = item.position + min(16 * warp + 16, item.rows) - 1;
    weights.start(p, item.head, low + lane / 4);
    ASSAY_UNROLL
    for (int i = 0; i < D / 8; ++i)
      ASSAY_UNROLL
    for (int c = 0; c < 4; ++c)
      O[i][c] = 0.0f;
    if constexpr (layout::q_in_registers) {
      ASSAY_UNROLL
      for (int step = 0; step < D / 16; ++step)
        load_query(Q[step], stage, step, 0);
    }
  }

  PREFILL_FUNCTION void scores(float (&S)[8][4], int32_t q_stage, int32_t stage) const {
    /* Matrices of 8 keys by 8 channels: keys 0 to 7 with channels 0 to 7 and 8 to 15; keys 8 to 15 with the same
     * channels. */
    const int32_t row = lane / 16 * 8 + lane % 8, half = lane / 8 % 2;
    const unsigned char *const keys = shared + layout::k_at + stage * layout::stage_bytes;
    ASSAY_UNROLL
    for (int i = 0; i < 8; ++i)
      ASSAY_UNROLL
    for (int c = 0; c < 4; ++c)
      S[i][c] = 0.0f;
    /* Queries that are not in registers: as many steps at once as have addresses of their own. */
    constexpr int at_once = layout::q_in_registers ? D / 16 : layout::group / 2;
    ASSAY_ROLLED
    for (int turn = 0; turn < D / 16; turn += at_once) {
      const int32_t ahead = turn * 32;
      ASSAY_UNROLL
      for (int step = 0; step < at_once; ++step) {
        uint32_t q[4];
        if constexpr (layout::q_in_registers) {
          ASSAY_UNROLL
          for (int c = 0; c < 4; ++c)
            q[c] = Q[step][c];
        } else {
          load_query(q, q_stage, step, ahead);
        }
        ASSAY_UNROLL
        for (int pair = 0; pair < 4; ++pair) {
          uint32_t k[4];
          ldmatrix_x4(k, keys + pair * 16 * layout::pitch + layout::at_step(row, step, half) + ahead);
          mma_m16n8k16<T>(S[2 * pair], q, {k[0], k[1]});
          mma_m16n8k16<T>(S[2 * pair + 1], q, {k[2], k[3]});
        }
      }
    }
  }

  PREFILL_FUNCTION void values(const float (&S)[8][4], int32_t stage) {
    /* Transposed matrices: keys 0 to 7 and 8 to 15 with channels 0 to 7, then with channels 8 to 15. */
    const int32_t row = lane % 16, half = lane / 16;
    const unsigned char *const from = shared + layout::v_at + stage * layout::stage_bytes;
    uint32_t P[4][4];
    ASSAY_UNROLL
    for (int i = 0; i < 16; ++i)
      P[i / 4][i % 4] = pack_pair<T>(S[i / 2][2 * (i % 2)], S[i / 2][2 * (i % 2) + 1]);
    ASSAY_UNROLL
    for (int step = 0; step < 4; ++step) {
      ASSAY_UNROLL
      for (int pair = 0; pair < D / 16; ++pair) {
        uint32_t v[4];
        ldmatrix_x4_trans(v, from + step * 16 * layout::pitch + layout::at_step(row, pair, half));
        mma_m16n8k16<T>(O[2 * pair], P[step], {v[0], v[1]});
        mma_m16n8k16<T>(O[2 * pair + 1], P[step], {v[2], v[3]});
      }
    }
  }

  /* Handles a tile whose keys and values are in the stage. Does nothing if no row of the warp sees one of its keys. */
  PREFILL_FUNCTION void tile(const typename Weights::params &p, int32_t number, int32_t q_stage, int32_t stage) {
    const int32_t first = number * mma_keys, last = first + mma_keys - 1;
    if (high < max(low, first) || (p.a.window > 0 && last <= low - p.a.window)) return;
    float S[8][4];
    scores(S, q_stage, stage);
    if (last <= low && (p.a.window == 0 || first > low + 15 - p.a.window))
      weights.template weigh<false>(p, S, number);
    else
      weights.template weigh<true>(p, S, number);
    weights.rescale(O);
    values(S, stage);
  }

  /* Rounds the sums and writes the existing rows. It goes through the item's own queries in shared memory, since no
   * other warp reads this warp's 16 rows of them. */
  PREFILL_FUNCTION void store(const typename Weights::params &p, const prefill_item &item, int32_t stage) {
    unsigned char *const rows = shared + stage * layout::stage_bytes + 16 * warp * layout::pitch;
    float factor[2];
    weights.finish(p, item, 16 * warp + lane / 4, factor);
    __syncwarp();
    ASSAY_UNROLL
    for (int i = 0; i < D / 8; ++i) {
      ASSAY_UNROLL
      for (int h = 0; h < 2; ++h)
        *reinterpret_cast<uint32_t *>(rows + layout::at_step(lane / 4 + 8 * h, i / 2, i % 2) + lane % 4 * 4) =
            pack_pair<T>(O[i][2 * h] * factor[h], O[i][2 * h + 1] * factor[h]);
    }
    __syncwarp();
    T *const out = static_cast<T *>(p.a.out);
    ASSAY_ROLLED
    for (int pass = 0; pass < D / 16; ++pass) {
      const int32_t i = lane + 32 * pass, row = i / layout::chunks, chunk = i % layout::chunks;
      const int32_t at = 16 * warp + row; /* in the item */
      const int64_t to = ((item.row + at) * static_cast<int64_t>(p.a.H) + item.head) * D + 8 * chunk;
      if (at < item.rows)
        *reinterpret_cast<uint4 *>(out + to) = *reinterpret_cast<const uint4 *>(rows + layout::at(row, chunk));
    }
  }
};

/* ---- the kernel ------------------------------------------------------------------------------------- */

/* An item as it is kept between two turns. It is in shared memory, because registers are for sums. */
struct mma_turn {
  prefill_item item;
  prefill_walk<mma_runs> walk; /* state after the item */
};

/* prefill_mma: handles 64 query rows of one head per item; each block takes items in turns, from left to right, then
 * from right to left, and so on.
 * Grid:   at most mma_layout<D>::blocks per multiprocessor. Block: 128 threads.
 * Shared: mma_layout<D>::bytes.
 * Align:  16 bytes for q, K, V, out and all their strides.
 * Arch:   sm_80 and above; D = 256 needs 192 KB of shared memory. */
template <class T, int D, class Weights>
__global__ void __launch_bounds__(mma_threads, mma_layout<D>::blocks) prefill_mma(typename Weights::params p) {
  ASSAY_DYNAMIC_SHARED(unsigned char, shared);
  ASSAY_SHARED(mma_turn, turns, 2); /* for the two stages of Q */
  const attention_params &a = p.a;
  const int32_t ctas = static_cast<int32_t>(gridDim.x), cta = static_cast<int32_t>(blockIdx.x);
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const mma_loader<T, D> loader(a, shared, thread);
  mma_warp<T, D, Weights> warp(shared);
  /* Loads the item of a turn, and its first tile, to stage `to` of K and V. */
  const auto begin = [&](prefill_walk<mma_runs> walk, int32_t turn, int32_t to) {
    const prefill_request own = prefill_request_of(a, static_cast<int32_t>(lane_id()));
    const prefill_item item = walk.item(a, own, turn * ctas + (turn % 2 == 0 ? cta : ctas - 1 - cta));
    if (thread == 0) turns[turn % 2] = {item, walk};
    if (item.end == 0) return;
    loader.query(item, turn % 2);
    loader.keys(item, item.begin, to);
    cp_async_commit();
  };
  prefill_walk<mma_runs> walk;
  walk.start(a, prefill_request_of(a, static_cast<int32_t>(lane_id())));
  begin(walk, 0, 0);
  int32_t stage = 0;
  for (int32_t turn = 0;; ++turn) {
    cp_async_wait<0>();
    __syncthreads(); /* the item and its first tile have arrived; the other stages have been read */
    const prefill_item &item = turns[turn % 2].item;
    if (item.end == 0) return;
    warp.start(p, item, turn % 2);
    for (int32_t tile = item.begin;;) {
      if (tile + 1 < item.end) {
        loader.keys(item, tile + 1, stage ^ 1);
        cp_async_commit();
      } else {
        begin(turns[turn % 2].walk, turn + 1, stage ^ 1);
      }
      warp.tile(p, tile, turn % 2, stage);
      stage ^= 1;
      if (++tile == item.end) break;
      cp_async_wait<0>();
      __syncthreads(); /* the tile has arrived; the other stage has been read */
    }
    warp.store(p, item, turn % 2);
  }
}

/* ---- launchers -------------------------------------------------------------------------------------- */

/* Refuses calls that the schedule cannot run. */
inline assay_status expect_mma(const attention_params &a, const attention_types &types, assay_dtype dtype,
                               assay_error *error) {
  ASSAY_TRY(expect_prompts(a, error));
  ASSAY_TRY(expect_storage(types, dtype, error));
  if (a.D != 32 && a.D != 64 && a.D != 96 && a.D != 128 && a.D != 256)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "D: found %d, allowed 32, 64, 96, 128, 256", a.D);
  ASSAY_TRY(expect_value_rows(a, error));
  return expect_rows_of_16(a, error);
}

template <class T, int D, class Weights>
assay_status launch_mma(const typename Weights::params &p, assay_env *env, assay_error *error) {
  const int64_t items = most_items<mma_runs>(p.a), places = INT64_C(1) * env->multiprocessors * mma_layout<D>::blocks;
  return ASSAY_LAUNCH(error, (prefill_mma<T, D, Weights>), items < places ? items : places, mma_threads,
                      mma_layout<D>::bytes, env->stream, p);
}

/* Calls use(integral constant) for the head sizes that expect_mma allows. */
template <class Use> assay_status mma_with_size(int32_t D, Use use) {
  if (D == 32) return use(std::integral_constant<int, 32>());
  if (D == 64) return use(std::integral_constant<int, 64>());
  if (D == 96) return use(std::integral_constant<int, 96>());
  if (D == 128) return use(std::integral_constant<int, 128>());
  if (D == 256) return use(std::integral_constant<int, 256>());
  return ASSAY_ERR_INTERNAL;
}

/* The schedule for prefill_strategy. */
struct mma_schedule {
  static assay_status expect(const attention_params &a, const attention_types &types, assay_dtype dtype,
                             assay_error *error) {
    return expect_mma(a, types, dtype, error);
  }
  template <class T, class Weights>
  static assay_status start(const typename Weights::params &p, assay_env *env, assay_error *error) {
    return mma_with_size(p.a.D,
                         [&](auto size) { return launch_mma<T, decltype(size)::value, Weights>(p, env, error); });
  }
};

} // namespace ASSAY_NS
#endif
