/* prefill_packed_load.cuh: the shared memory of the packed prefill, its barriers, its order of items, and the warpgroup
 * that fills it. 128 threads make 16-byte asynchronous copies of Q, K and V, with zeros for what no row sees.
 *
 * Rows lie 128 bytes apart in pieces of 64 channels, with their 16-byte chunks permuted by the row's lowest three bits.
 * Keys and lines are in their own order. Four lines of every 16 are one warp's. */
#ifndef ASSAY_GPU_LIB_PREFILL_PACKED_LOAD_CUH
#define ASSAY_GPU_LIB_PREFILL_PACKED_LOAD_CUH

#include "gpu/lib/prefill_wgmma_load.cuh"

namespace ASSAY_NS {

/* A kernel's sizes: channels of K and of V, keys of a tile, stages of Q, K and V. registers: those of a thread that
 * computes. turns: the warpgroups that compute issue products in turn. groups: their number, each with 64 lines. */
template <int D_, int D_v_, int tile, int q, int k, int v, int registers, bool turns_, int groups_ = 2>
struct packed_shape {
  static constexpr bool turns = turns_;
  static constexpr int groups = groups_, lines = 64 * groups, threads = 128 * (groups + 1);
  static constexpr int D = D_, D_v = D_v_, tile_keys = tile, q_stages = q, k_stages = k, v_stages = v,
                       computing = registers;
  /* The loading threads and the computing ones together have the registers with which the block begins: 384 times 168,
   * or 512 times 128. */
  static constexpr int loading = (groups == 2 ? 3 * 168 : 4 * 128) - groups * computing;
  static constexpr int32_t k_piece = tile * 128, q_piece = lines * 128; /* bytes of 64 channels */
  static constexpr int32_t q_bytes = (D + 63) / 64 * q_piece;
  static constexpr int32_t k_bytes = (D + 63) / 64 * k_piece, v_bytes = (D_v + 63) / 64 * k_piece;
  static constexpr int32_t k_at = q_stages * q_bytes, v_at = k_at + k_stages * k_bytes;
  static constexpr int32_t control_at = v_at + v_stages * v_bytes, bytes = control_at + 1024;
  static_assert(tile % 16 == 0 && D % 16 == 0 && D_v % 16 == 0, "a tensor core takes 16 at a time");
  static_assert(q == 1 || q == 2, "an item waits for the one before");
  static_assert(bytes <= launch_max_shared, "one block per multiprocessor");
};

/* The form of the items: `count` lines of a kv head. */
template <int tile, int count> struct packed_runs {
  using item = packed_item;
  static constexpr int32_t tile_keys = tile;
  static __host__ PREFILL_FUNCTION run_fixed<count> run(const attention_params &) { return {}; }
  static __host__ PREFILL_FUNCTION int32_t lines(const attention_params &a) { return a.G; }
  static PREFILL_FUNCTION int32_t row_of(const attention_params &a, int32_t line) { return line / a.G; }
  static __host__ PREFILL_FUNCTION int32_t heads_an_item(const attention_params &) { return 1; }
  static __host__ PREFILL_FUNCTION int32_t items_a_run(const attention_params &a) { return a.H_kv; }
};

/* 1 / G, times 2^packed_shift, rounded up. Its product with a line of an item fits 32 bits, and is exact for groups of
 * up to packed_most_heads. */
constexpr int32_t packed_shift = 24, packed_most_heads = 2048;
inline uint32_t packed_rows_per_line(int32_t G) {
  return static_cast<uint32_t>(((1 << packed_shift) + G - 1) / G);
}

constexpr int32_t packed_slots = 8; /* items whose fields are kept: those of five may be read */

/* ---- the order of the items --------------------------------------------------------------------------- */

/* The bytes of K and V that are to stay in the L2 cache. simt has little, so that small cases have sections. */
#ifdef ASSAY_SIMT
constexpr int64_t packed_l2 = 64 << 10;
#else
constexpr int64_t packed_l2 = 32 << 20;
#endif

/* A warp's place in the list. Sections of kv heads follow each other, whose K and V the L2 cache holds. Within a
 * section, items go from the most key tiles to the fewest. A section begins with a new turn of all blocks. */
template <class Shape> struct packed_walk {
  using form = packed_runs<Shape::tile_keys, Shape::lines>;
  prefill_walk<form> walk;
  int32_t runs;         /* number of runs of all requests */
  int32_t heads, at;    /* kv heads per section; first kv head of this one */
  int32_t turns, begin; /* turns per section; the section's first turn */

  PREFILL_FUNCTION void start(const attention_params &a, const prefill_request &own, int32_t blocks) {
    walk.start(a, own);
    runs = walk.runs_from(a, own, 1);
    int32_t keys = 0; /* in units of 64, rounded up */
    ASSAY_ROLLED
    for (int32_t first = 0; first < a.B; first += 32) {
      const prefill_request r = prefill_walk<form>::request_of(a, own, first);
      keys += (r.cached + r.rows + 63) / 64;
    }
    const int64_t total = __reduce_add_sync(0xffffffffu, keys);
    /* a kv head has these bytes */
    const int64_t bytes = max(total, static_cast<int64_t>(1)) * 64 * 2 * (Shape::D + Shape::D_v);
    const int32_t fit = static_cast<int32_t>(min(packed_l2 / bytes, static_cast<int64_t>(a.H_kv)));
    const int32_t fill = (2 * blocks + runs - 1) / max(runs, 1); /* heads whose items make two turns */
    heads = min(max(max(fit, fill), 1), a.H_kv);
    const int32_t sections = (a.H_kv + heads - 1) / heads;
    heads = (a.H_kv + sections - 1) / sections;
    turns = (runs * heads + blocks - 1) / blocks;
    at = begin = 0;
  }

  /* Finds the item of turn number `turn`, which must not decrease from call to call, and of place `place` in it. There
   * may be none (end 0). Returns whether that turn, or a later one, exists. */
  PREFILL_FUNCTION bool item(const attention_params &a, const prefill_request &own, int32_t turn, int32_t place,
                             int32_t blocks, packed_item *found) {
    *found = {};
    while (turn - begin >= turns) {
      at += heads;
      if (runs == 0 || at >= a.H_kv) {
        at = a.H_kv;
        return false;
      }
      begin += turns;
      walk.start(a, own);
    }
    const int32_t number = (turn - begin) * blocks + place, here = min(heads, a.H_kv - at);
    if (number >= runs * here) return true;
    *found = walk.item(a, own, number, here);
    found->head += at;
    return true;
  }
};

/* The barriers: *_full completes when a stage is filled, *_free when it has been read. An item is known before its
 * queries have room. */
template <class Shape> struct packed_control {
  uint64_t q_full[Shape::q_stages], q_free[Shape::q_stages];
  uint64_t k_full[Shape::k_stages], k_free[Shape::k_stages];
  uint64_t v_full[Shape::v_stages], v_free[Shape::v_stages];
  uint64_t known[packed_slots];
  packed_item item[packed_slots];
  packed_item next[2][prefill_loaders / 32]; /* one found by each warp; the previous ones may still be read */
};

template <class Shape> PREFILL_FUNCTION void packed_barriers(packed_control<Shape> *control) {
  static_assert(sizeof(packed_control<Shape>) <= Shape::bytes - Shape::control_at, "room for the barriers");
  for (int32_t i = 0; i < Shape::q_stages; ++i) {
    mbarrier_init(&control->q_full[i], prefill_loaders);
    mbarrier_init(&control->q_free[i], 128 * Shape::groups);
  }
  for (int32_t i = 0; i < Shape::k_stages; ++i) {
    mbarrier_init(&control->k_full[i], prefill_loaders);
    mbarrier_init(&control->k_free[i], 4 * Shape::groups);
  }
  for (int32_t i = 0; i < Shape::v_stages; ++i) {
    mbarrier_init(&control->v_full[i], prefill_loaders);
    mbarrier_init(&control->v_free[i], 4 * Shape::groups);
  }
  for (int32_t i = 0; i < packed_slots; ++i)
    mbarrier_init(&control->known[i], 1);
  mbarrier_fence_init();
}

/* ---- loading ------------------------------------------------------------------------------------------ */

/* One thread's share of rows of W channels: chunk `chunk` of the lines `line`, line + step, ... of every 16. Lanes
 * beyond the channels copy nothing. T: two bytes per element. */
template <class T, int W> struct packed_lane {
  static constexpr int chunks = W <= 64 ? 8 : W <= 128 ? 16 : 32; /* lanes per line */
  static constexpr int step = 32 / chunks, copies = 4 / step;
  int32_t chunk, line, to; /* to: byte offset in a stage */

  PREFILL_FUNCTION explicit packed_lane(int32_t piece_bytes) {
    const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), warp = static_cast<int32_t>(threadIdx.x / 32);
    chunk = lane % chunks;
    line = 4 * warp + lane / chunks;
    to = chunk / 8 * piece_bytes + line * 128 + (((chunk ^ line) & 7) << 4);
  }
  PREFILL_FUNCTION bool live() const { return W == 8 * chunks || chunk < W / 8; }

  /* Returns the byte offset of copy `i` of the 16 lines. */
  PREFILL_FUNCTION int32_t place(int i) const { return (to ^ ((step * i) << 4)) + step * i * 128; }
};

/* The warpgroup that loads. Weights::first_key says which key a row sees first. */
template <class T, class Shape, class Weights> struct packed_filler {
  static constexpr int groups = Shape::tile_keys / 16;
  using params = typename Weights::params;

  const params &p;
  const attention_params &a;
  unsigned char *const shared;
  packed_control<Shape> *const control;
  const packed_lane<T, Shape::D> k_lane, q_lane;
  const packed_lane<T, Shape::D_v> v_lane;
  int32_t filled; /* number of key tiles */

  PREFILL_FUNCTION packed_filler(const params &p_, unsigned char *shared_, packed_control<Shape> *control_)
      : p(p_), a(p_.a), shared(shared_), control(control_), k_lane(Shape::k_piece), q_lane(Shape::q_piece),
        v_lane(Shape::k_piece), filled(0) {}

  /* Tells the warpgroups that compute about item number `turn` of this block. */
  PREFILL_FUNCTION void tell(const packed_item &item, int32_t turn) const {
    if (threadIdx.x != 0) return;
    control->item[turn % packed_slots] = item;
    mbarrier_arrive(&control->known[turn % packed_slots]);
  }

  /* Loads the item's lines of Q. */
  PREFILL_FUNCTION void queries(const packed_item &item, int32_t turn) const {
    const int32_t stage = turn % Shape::q_stages;
    mbarrier_wait(&control->q_free[stage], (turn / Shape::q_stages & 1) ^ 1);
    unsigned char *const to = shared + stage * Shape::q_bytes;
    const int32_t rows = 16 / a.G, heads = 16 - rows * a.G; /* from 16 lines to the next */
    ASSAY_UNROLL
    for (int i = 0; i < q_lane.copies; ++i) {
      const int32_t first = q_lane.line + q_lane.step * i;
      int32_t row = (item.skip + first) / a.G, head = item.skip + first - row * a.G;
      ASSAY_ROLLED
      for (int32_t line = first; line < Shape::lines; line += 16) {
        const T *const from =
            element_at<T>(a.q, query_offset(a, item.row + row, item.head * a.G + head) + 8 * q_lane.chunk);
        if (q_lane.live()) cp_async_16(to + q_lane.place(i) + (line - first) * 128, from, line < item.rows ? 16 : 0);
        row += rows;
        head += heads;
        if (head >= a.G) {
          head -= a.G;
          ++row;
        }
      }
    }
    cp_async_arrive_noinc(&control->q_full[stage]);
  }

  /* The source of an item's tiles: keys first <= key < end of a request, of one kv head. */
  struct source {
    int32_t request, head, first, end;
  };
  PREFILL_FUNCTION source source_of(const packed_item &item) const {
    return {item.request, item.head, Weights::first_key(p, item.position),
            item.position + (item.skip + item.rows - 1) / a.G + 1};
  }

  /* Returns the block of 16 keys number `lane` of a tile. A block without keys in first <= key < end is not looked
   * up. */
  PREFILL_FUNCTION int32_t look_up(const source &s, int32_t tile) const {
    const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), key = tile * Shape::tile_keys + 16 * lane;
    if (lane >= groups || key >= s.end || key + 16 <= s.first) return 0;
    return a.cache.table[s.request * a.cache.table_row + (key >> a.cache.block_shift)];
  }

  /* Loads 16 keys of K or V: keys first <= key < end, and zeros for the others. bounded: there are others. `offset`:
   * where the tile's 16 keys number `lane` begin. */
  template <bool bounded, int W>
  PREFILL_FUNCTION void sixteen(const packed_lane<T, W> &lane, unsigned char *stage, const T *base,
                                int64_t token_stride, int64_t offset, int32_t tile, int group, const source &s) const {
    const int32_t mine = tile * Shape::tile_keys + 16 * group + lane.line;
    const T *from = element_at<T>(base, __shfl_sync(0xffffffffu, offset, group));
    ASSAY_UNROLL
    for (int i = 0; i < lane.copies; ++i) {
      const bool live = !bounded || (mine + lane.step * i < s.end && mine + lane.step * i >= s.first);
      if (lane.live()) cp_async_16(stage + lane.place(i) + group * 2048, from, live ? 16 : 0);
      from = element_at<T>(from, lane.step * token_stride);
    }
  }

  template <int W>
  PREFILL_FUNCTION void tile(const packed_lane<T, W> &lane, unsigned char *stage, const void *cache,
                             int64_t head_stride, int64_t block_stride, int64_t token_stride, int32_t block,
                             int32_t tile, const source &s) const {
    const int32_t slot = slot_of(a.cache, tile * Shape::tile_keys + 16 * static_cast<int32_t>(threadIdx.x % 32));
    const int64_t offset = s.head * head_stride + block * block_stride + slot * token_stride;
    const T *const base = element_at<T>(cache, lane.line * token_stride + 8 * lane.chunk);
    if ((tile + 1) * Shape::tile_keys <= s.end && tile * Shape::tile_keys >= s.first) {
      ASSAY_UNROLL
      for (int group = 0; group < groups; ++group)
        sixteen<false>(lane, stage, base, token_stride, offset, tile, group, s);
    } else {
      ASSAY_ROLLED
      for (int group = 0; group < groups; ++group)
        sixteen<true>(lane, stage, base, token_stride, offset, tile, group, s);
    }
  }

  PREFILL_FUNCTION void key_tile(const source &s, int32_t block, int32_t number) {
    const int32_t stage = filled % Shape::k_stages;
    mbarrier_wait(&control->k_free[stage], (filled / Shape::k_stages & 1) ^ 1);
    tile(k_lane, shared + Shape::k_at + stage * Shape::k_bytes, a.cache.k, a.cache.k_head, a.cache.k_block,
         a.cache.k_token, block, number, s);
    cp_async_arrive_noinc(&control->k_full[stage]);
    ++filled;
  }

  /* Loads the values of tile `number`, which is tile number `turn` of all. */
  PREFILL_FUNCTION void value_tile(const source &s, int32_t block, int32_t number, int32_t turn) const {
    const int32_t stage = turn % Shape::v_stages;
    mbarrier_wait(&control->v_free[stage], (turn / Shape::v_stages & 1) ^ 1);
    tile(v_lane, shared + Shape::v_at + stage * Shape::v_bytes, a.cache.v, a.cache.v_head, a.cache.v_block,
         a.cache.v_token, block, number, s);
    cp_async_arrive_noinc(&control->v_full[stage]);
  }

  /* Loads in the order in which the tiles are used: keys of a tile, then values of the tile before. If Q has two
   * stages, the next item's queries and first keys come before this item's last values. Blocks are looked up a tile
   * ahead. */
  PREFILL_FUNCTION void run() {
    const int32_t ctas = static_cast<int32_t>(gridDim.x), cta = static_cast<int32_t>(blockIdx.x);
    constexpr int32_t warps = prefill_loaders / 32;
    const int32_t warp = static_cast<int32_t>(threadIdx.x / 32);
    packed_walk<Shape> walk;
    walk.start(a, prefill_request_of(a, static_cast<int32_t>(lane_id())), ctas);
    source from = {0, 0, 0, 0};
    int32_t last = 0, block = 0; /* the last item's last tile, and this lane's block of it */
    int32_t told = 0;            /* items so far */
    /* Turns go from left to right, then from right to left, and so on. A block with a long item thus gets a short one
     * next. */
    for (int32_t turn = 0;; ++turn) {
      packed_item *const found = control->next[turn / warps % 2];
      if (turn % warps == 0) { /* the items of as many turns as there are warps, one per warp */
        const int32_t mine = turn + warp;
        packed_item item;
        const prefill_request own = prefill_request_of(a, static_cast<int32_t>(lane_id()));
        const bool exists = walk.item(a, own, mine, mine % 2 == 0 ? cta : ctas - 1 - cta, ctas, &item);
        item.begin = item.end > 0 ? min(Weights::first_key(p, item.position) / Shape::tile_keys, item.end - 1) : exists;
        item.low = source_of(item).end <= item.end * Shape::tile_keys - Shape::tile_keys / 2;
        if (threadIdx.x % 32 == 0) found[warp] = item;
        named_barrier_sync(1, prefill_loaders);
      }
      const packed_item item = found[turn % warps];
      const bool more = item.end != 0;
      if (!more && item.begin != 0) continue; /* none in this turn */
      tell(item, told);
      const source to = source_of(item);
      int32_t ahead = more ? look_up(to, item.begin) : 0;
      if ((Shape::q_stages == 1 || !more) && told > 0) value_tile(from, block, last, filled - 1);
      if (!more) return;
      queries(item, told);
      for (int32_t number = item.begin; number < item.end; ++number) {
        const int32_t before = block;
        block = ahead;
        ahead = look_up(to, number + 1);
        key_tile(to, block, number);
        if (number > item.begin)
          value_tile(to, before, number - 1, filled - 2);
        else if (Shape::q_stages > 1 && told > 0)
          value_tile(from, before, last, filled - 2);
      }
      from = to;
      last = item.end - 1;
      ++told;
    }
  }
};

} // namespace ASSAY_NS
#endif
