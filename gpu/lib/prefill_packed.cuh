/* prefill_packed.cuh: attention of many query rows over the paged cache on Hopper's tensor cores. Groups may have any
 * size, and V another width than K. The heads of a group are packed into lines: line = row * G + head. One
 * warpgroup loads. Two or three compute, each 64 of an item's lines, against tiles of keys that all read.
 *
 *   S = Q K^T        wgmma, both operands from shared memory, f32 in registers
 *   P = weights(S)   the operator's, in place; rounded to the storage type
 *   O = O + P V      wgmma, P from the registers in which it was computed
 *
 * The products of the next tile are issued before those with V of this one, and run while its weights are made. The
 * last sum of an item, the first tile of the next, and the store of the result overlap.
 *
 * An operator provides Weights:
 *
 *   Weights::params, with `attention_params a`
 *   Weights::bends                             scores take many registers and instructions: tiles are smaller where O
 *                                              is wide, and all are masked
 *   first_key(p, position)                     the first key that a row at this position may see
 *   start(p, head, position)                   head[h], position[h]: of the thread's two lines, 8 apart
 *   weigh<masked>(p, S, key)                   S[4 g + 2 h + b]: line h, token key + 8 g + b
 *   rescale(O)                                 between two tiles
 *   finish(p, exists, row, head, factor)       row[h], head[h]: of the thread's lines, if they exist; factor[h]: O is
 *                                              multiplied by it */
#ifndef ASSAY_GPU_LIB_PREFILL_PACKED_CUH
#define ASSAY_GPU_LIB_PREFILL_PACKED_CUH

#include "gpu/lib/prefill_packed_load.cuh"
#include "gpu/lib/prefill_variant.cuh"
#include "gpu/lib/ptx_mma.cuh"
#include "gpu/lib/ptx_wgmma.cuh"

namespace ASSAY_NS {

/* Transposes four words of each of four neighbouring lanes: word i of lane j becomes word j of lane i. */
PREFILL_FUNCTION void transpose_quad(uint32_t (&word)[4]) {
  const uint32_t lane = lane_id();
  ASSAY_UNROLL
  for (int step = 2; step > 0; step /= 2) {
    const bool upper = (lane & static_cast<uint32_t>(step)) != 0;
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i) {
      if ((i & step) != 0) continue;
      const uint32_t low = word[i], high = word[i + step];
      const uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? low : high, step);
      word[i] = upper ? got : low;
      word[i + step] = upper ? high : got;
    }
  }
}

/* ---- the warpgroups that compute -------------------------------------------------------------------- */

template <class T, class Shape, class Weights> struct packed_warpgroup {
  static constexpr int D = Shape::D, D_v = Shape::D_v, keys = Shape::tile_keys;
  using params = typename Weights::params;

  const params &p;
  const uint32_t &rows_per_line;
  unsigned char *const shared;
  packed_control<Shape> *const control;
  const int32_t group, lane;    /* group: 0, 1 or 2 */
  int32_t scored;               /* tiles whose keys have been used */
  int32_t turn;                 /* number of the item */
  int32_t begin, end;           /* its tiles */
  bool low;                     /* the last of them ends in its lower half */
  int32_t open_begin, open_end; /* its tiles in which nothing is masked for the warpgroup's lines */
  Weights weights;
  float O[D_v / 2];
  uint32_t P[keys / 4];

  PREFILL_FUNCTION packed_warpgroup(const params &p_, const uint32_t &rows_per_line_, unsigned char *shared_,
                                    packed_control<Shape> *control_)
      : p(p_), rows_per_line(rows_per_line_), shared(shared_), control(control_),
        group(of_warp(static_cast<int32_t>(threadIdx.x) / 128 - 1)), lane(static_cast<int32_t>(threadIdx.x) % 32),
        scored(0), turn(-1) {}

  /* Half of the keys of a tile's lower half, where that is a width of products. */
  static constexpr int half = keys == 128 ? 32 : keys / 2;

  /* Returns whether no line of the item sees the tile's upper half. */
  PREFILL_FUNCTION bool lower_half(int32_t tile) const { return keys == 128 && low && tile == end - 1; }

  PREFILL_FUNCTION bool open(int32_t tile) const { return !Weights::bends && tile >= open_begin && tile < open_end; }

  template <int count> static PREFILL_FUNCTION void zero(float (&x)[count]) {
    ASSAY_UNROLL
    for (int i = 0; i < count; ++i)
      x[i] = 0.0f;
  }

  /* Returns the thread's first line in the item; the second is 8 further. */
  static PREFILL_FUNCTION int32_t first_line() {
    const int32_t thread = static_cast<int32_t>(threadIdx.x) - prefill_loaders;
    return thread / 32 * 16 + thread % 32 / 4;
  }

  /* Returns the row of a line, counted from a row's first line. A division by G takes longer. */
  PREFILL_FUNCTION int32_t row_of(int32_t line) const {
    return static_cast<int32_t>(static_cast<uint32_t>(line) * rows_per_line >> packed_shift);
  }

  /* Waits until the next item is known. Returns false if there is none. */
  PREFILL_FUNCTION bool fetch() {
    ++turn;
    mbarrier_wait(&control->known[turn % packed_slots], turn / packed_slots & 1);
    const packed_item &item = control->item[turn % packed_slots];
    begin = of_warp(item.begin);
    end = of_warp(item.end);
    low = of_warp(item.low) != 0;
    if constexpr (!Weights::bends) find_open();
    return end != 0;
  }

  /* Begins with the item: its lines' positions and heads. */
  PREFILL_FUNCTION void start() {
    const packed_item &item = control->item[turn % packed_slots];
    const int32_t skip = of_warp(item.skip), place = of_warp(item.position), kv_head = of_warp(item.head);
    int32_t head[2], position[2];
    ASSAY_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int32_t line = skip + first_line() + 8 * h, row = row_of(line);
      position[h] = place + row;
      head[h] = kv_head * p.a.G + line - row * p.a.G;
    }
    weights.start(p, head, position);
  }

  /* Finds the tiles in which nothing is hidden from the warpgroup's lines. */
  PREFILL_FUNCTION void find_open() {
    const packed_item &item = control->item[turn % packed_slots];
    const int32_t skip = of_warp(item.skip), place = of_warp(item.position);
    const int32_t own = 64 * of_warp(static_cast<int32_t>(threadIdx.x) / 128 - 1); /* the warpgroup's first line */
    const int32_t least = place + row_of(skip + own);
    const int32_t high = place + row_of(skip + min(own + 63, max(of_warp(item.rows) - 1, 0)));
    open_begin = (Weights::first_key(p, high) + keys - 1) / keys;
    open_end = max(least + 1, 0) / keys;
  }

  PREFILL_FUNCTION void await_queries() const {
    mbarrier_wait(&control->q_full[turn % Shape::q_stages], turn / Shape::q_stages & 1);
    fence_proxy_async();
  }

  /* With turns, the warpgroups issue their products one after the other: the softmax of one runs beside the products of
   * the other. */
  PREFILL_FUNCTION void await_turn() const {
    if constexpr (Shape::turns) named_barrier_sync(2 + static_cast<uint32_t>(group), 256);
  }
  PREFILL_FUNCTION void pass_turn() const {
    const int32_t next = group + 1 < Shape::groups ? group + 1 : 0;
    if constexpr (Shape::turns) named_barrier_arrive(2 + static_cast<uint32_t>(next), 256);
  }

  /* Issues S of the next tile, for the first 2 * count keys of it. */
  template <int count> PREFILL_FUNCTION void issue_scores(float (&S)[count]) {
    const int32_t stage = of_warp(scored % Shape::k_stages);
    const int32_t q_stage = Shape::q_stages == 1 ? 0 : of_warp(turn % Shape::q_stages);
    mbarrier_wait(&control->k_full[stage], scored / Shape::k_stages & 1);
    fence_proxy_async();
    const uint64_t query = wgmma_descriptor(shared + q_stage * Shape::q_bytes + group * 8192, 1024, 16, swizzle_128);
    const uint64_t rows = wgmma_descriptor(shared + Shape::k_at + stage * Shape::k_bytes, 1024, 16, swizzle_128);
    zero(S);
    wgmma_order(S);
    wgmma_fence();
    ASSAY_UNROLL
    for (int step = 0; step < D / 16; ++step) {
      const uint64_t q_ahead = static_cast<uint64_t>(step / 4 * Shape::q_piece + step % 4 * 32) >> 4;
      const uint64_t k_ahead = static_cast<uint64_t>(step / 4 * Shape::k_piece + step % 4 * 32) >> 4;
      wgmma_m64k16<T, 2 * count, false>(S, query + q_ahead, rows + k_ahead, step > 0);
    }
    wgmma_commit();
  }

  /* Waits until S is complete. Its keys may be overwritten afterwards, and with `last` the queries. */
  template <int pending, int count> PREFILL_FUNCTION void await_scores(float (&S)[count], bool last) {
    wgmma_wait<pending>();
    wgmma_order(S);
    if (lane == 0) mbarrier_arrive(&control->k_free[scored % Shape::k_stages]);
    if (last) mbarrier_arrive(&control->q_free[turn % Shape::q_stages]);
    ++scored;
  }

  /* Issues O += P V over tile number `tile`. */
  PREFILL_FUNCTION void issue_values(int32_t tile) {
    const int32_t stage = of_warp(tile % Shape::v_stages);
    mbarrier_wait(&control->v_full[stage], tile / Shape::v_stages & 1);
    fence_proxy_async();
    const uint64_t values =
        wgmma_descriptor(shared + Shape::v_at + stage * Shape::v_bytes, 1024, Shape::k_piece, swizzle_128);
    wgmma_order(O);
    wgmma_order(P);
    wgmma_fence();
    ASSAY_UNROLL
    for (int step = 0; step < keys / 16; ++step)
      wgmma_m64k16<T, D_v, true>(O, P, 4 * step, values + static_cast<uint64_t>(step * 16 * 128 >> 4), true);
    wgmma_commit();
  }

  template <int pending> PREFILL_FUNCTION void await_values(int32_t tile) {
    wgmma_wait<pending>();
    wgmma_order(O);
    wgmma_order(P);
    if (lane == 0) mbarrier_arrive(&control->v_free[tile % Shape::v_stages]);
  }

  /* Packs S into P. The weights of keys beyond S are 0. */
  template <int count> PREFILL_FUNCTION void pack(const float (&S)[count]) {
    ASSAY_UNROLL
    for (int i = 0; i < keys / 4; ++i)
      P[i] = i < count / 2 ? pack_pair<T>(S[2 * i % count], S[(2 * i + 1) % count]) : 0u;
  }

  template <bool masked, int count> PREFILL_FUNCTION void weigh(float (&S)[count], int32_t tile) {
    const int32_t column = static_cast<int32_t>(lane_id() % 4); /* not kept: a register less, and no spill */
    weights.template weigh<masked>(p, S, tile * keys + 2 * column);
  }

  /* Computes the very first tile, which has no sum to overlap with. count: half of the tile's keys, or a quarter where
   * no line sees those of its upper half. */
  template <int count> PREFILL_FUNCTION void first() {
    float S[count];
    await_queries();
    await_turn();
    issue_scores(S);
    pass_turn();
    await_scores<0>(S, begin == end - 1);
    weigh<true>(S, begin);
    pack(S);
  }

  /* Computes a tile and, meanwhile, the sum of the previous one. If `over`, that was the last tile of the previous
   * item, whose result is then stored. There is one code for each kind of tile. */
  template <bool masked, int count> PREFILL_FUNCTION void next(int32_t tile, bool crosses) {
    const bool over = Shape::q_stages > 1 && crosses;
    const int32_t before = scored - 1;
    float S[count], factor[2];
    if (over) await_queries();
    await_turn();
    issue_scores(S);
    issue_values(before);
    pass_turn();
    if (over) {
      finish(turn - 1, factor);
      start();
    }
    await_scores<1>(S, tile == end - 1);
    weigh<masked>(S, tile);
    await_values<0>(before);
    if (over) {
      store(turn - 1, factor);
      zero(O);
    } else {
      weights.rescale(O);
    }
    pack(S);
  }

  /* Does the same for the first tile of an item where Q has one stage. The queries are not there yet, and registers are
   * few. */
  template <int count> PREFILL_FUNCTION void cross() {
    const int32_t before = scored - 1;
    float S[count], factor[2];
    await_turn();
    issue_values(before);
    finish(turn - 1, factor);
    await_values<0>(before);
    store(turn - 1, factor);
    zero(O);
    start();
    await_queries();
    issue_scores(S);
    pass_turn();
    await_scores<0>(S, begin == end - 1);
    weigh<true>(S, begin);
    pack(S);
  }

  /* Rounds the sums and writes the existing lines. Four lanes exchange what they have of a line, so that each writes 16
   * bytes. */
  PREFILL_FUNCTION void store(int32_t number, const float (&factor)[2]) const {
    const packed_item &item = control->item[number % packed_slots];
    const int32_t column = lane % 4;
    ASSAY_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int32_t line = first_line() + 8 * h, row = row_of(item.skip + line);
      const int64_t at =
          static_cast<int64_t>(item.row + row) * p.a.H + item.head * p.a.G + item.skip + line - row * p.a.G;
      T *const to = static_cast<T *>(p.a.out) + at * D_v + 8 * column;
      ASSAY_UNROLL
      for (int part = 0; part < D_v / 8; part += 4) {
        uint32_t word[4];
        ASSAY_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int g = part + i < D_v / 8 ? part + i : 0;
          word[i] = pack_pair<T>(O[4 * g + 2 * h] * factor[h], O[4 * g + 2 * h + 1] * factor[h]);
        }
        transpose_quad(word);
        if (line < item.rows && (part + 4 <= D_v / 8 || part + column < D_v / 8))
          *reinterpret_cast<uint4 *>(to + 8 * part) = make_uint4(word[0], word[1], word[2], word[3]);
      }
    }
  }

  /* Computes the factors of the item's sums, and writes what belongs to its lines beside them. */
  PREFILL_FUNCTION void finish(int32_t number, float (&factor)[2]) const {
    const packed_item &item = control->item[number % packed_slots];
    const int32_t line = first_line(), row = row_of(item.skip + line), next = row_of(item.skip + line + 8);
    const int32_t head = item.head * p.a.G + item.skip + line;
    const bool exists[2] = {line < item.rows, line + 8 < item.rows};
    const int64_t rows[2] = {item.row + row, item.row + next};
    const int32_t heads[2] = {head - row * p.a.G, head + 8 - next * p.a.G};
    weights.finish(p, exists, rows, heads, factor);
  }

  PREFILL_FUNCTION void run() {
    if (!fetch()) return;
    if (group == Shape::groups - 1) pass_turn();
    start();
    zero(O);
    if (lower_half(begin))
      first<half>();
    else
      first<keys / 2>();
    for (int32_t tile = begin + 1;; ++tile) {
      if constexpr (Shape::q_stages == 1 && !Weights::bends) {
        ASSAY_ROLLED
        for (const int32_t stop = min(open_end, end); tile >= open_begin && tile < stop; ++tile)
          next<false, keys / 2>(tile, false);
      }
      const bool over = tile == end;
      if (over) {
        if (!fetch()) break;
        tile = begin;
      }
      if (Shape::q_stages == 1 && over)
        lower_half(tile) ? cross<half>() : cross<keys / 2>();
      else if (Shape::q_stages > 1 && open(tile))
        next<false, keys / 2>(tile, over);
      else if (lower_half(tile))
        next<true, half>(tile, over);
      else
        next<true, keys / 2>(tile, over);
    }
    float factor[2];
    await_turn();
    issue_values(scored - 1);
    if (group < Shape::groups - 1) pass_turn();
    finish(turn - 1, factor);
    await_values<0>(scored - 1);
    store(turn - 1, factor);
  }
};

/* ---- the kernel ------------------------------------------------------------------------------------- */

/* prefill_packed: handles 128 or 192 lines of a kv head per item; each block takes items in turns.
 * rows_per_line: packed_rows_per_line(G), for row_of().
 * Grid:   at most one block per multiprocessor. Block: Shape::threads.
 * Shared: Shape::bytes. */
template <class T, class Shape, class Weights>
__global__ void __launch_bounds__(Shape::threads, 1)
    prefill_packed(typename Weights::params p, uint32_t rows_per_line) {
  ASSAY_DYNAMIC_SHARED_1024(unsigned char, shared);
  packed_control<Shape> *const control = reinterpret_cast<packed_control<Shape> *>(shared + Shape::control_at);
  dependents_launch();
  if (threadIdx.x == 0) packed_barriers(control);
  __syncthreads();
  prefill_ask(p.a);
  dependency_wait();
  if (threadIdx.x < prefill_loaders) {
    registers_fewer<Shape::loading>();
    packed_filler<T, Shape, Weights> filler(p, shared, control);
    filler.run();
  } else {
    registers_more<Shape::computing>();
    packed_warpgroup<T, Shape, Weights> warpgroup(p, rows_per_line, shared, control);
    warpgroup.run();
  }
}

/* ---- launchers -------------------------------------------------------------------------------------- */

/* The schedule for prefill_strategy. */
struct packed_schedule {
  static bool takes(int32_t D, int32_t D_v) {
    if (D == 192 && D_v == 128) return true;
    return D == D_v && (D == 64 || D == 80 || D == 96 || D == 112 || D == 128 || D == 192 || D == 256);
  }

  /* Refuses calls that the schedule cannot run. */
  static assay_status expect(const attention_params &a, const attention_types &types, assay_dtype dtype,
                             assay_error *error) {
    ASSAY_TRY(expect_prompts(a, error));
    ASSAY_TRY(expect_storage(types, dtype, error));
    if (!takes(a.D, a.D_v))
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                        "D, D_v: found %d, %d, allowed 64, 80, 96, 112, 128, 192 and 256 for both, and 192, 128", a.D,
                        a.D_v);
    ASSAY_TRY(expect_value_rows(a, error));
    if (a.G > packed_most_heads)
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "H: found %d with %d kv heads, allowed up to %d each", a.H,
                        a.H_kv, packed_most_heads);
    if (a.cache.block_shift < 4)
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "block_size: found %d, allowed 16 and above",
                        1 << a.cache.block_shift);
    if (a.N > (INT32_MAX - 256) / a.H)
      return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "N: found %" PRId64 " with %d heads, allowed up to %d", a.N, a.H,
                        (INT32_MAX - 256) / a.H);
    return expect_rows_of_16(a, error);
  }

  template <class T, class Weights, class Shape>
  static assay_status launch(const typename Weights::params &p, assay_env *env, assay_error *error) {
    const int64_t items = most_items<packed_runs<Shape::tile_keys, Shape::lines>>(p.a);
    const int64_t blocks = items < env->multiprocessors ? items : env->multiprocessors;
    return ASSAY_LAUNCH_WITH(error, (prefill_packed<T, Shape, Weights>), blocks, Shape::threads, Shape::bytes,
                             in_turn(), env->stream, p, packed_rows_per_line(p.a.G));
  }

  template <class T, class Weights>
  static assay_status start(const typename Weights::params &p, assay_env *env, assay_error *error) {
    /* Items of 192 lines lose on short prompts of single heads (docs/log/2026-11-28-h200-heads-table.md). */
    const bool grouped = p.a.G > 1;
    switch (p.a.D) {
    case 64:
      return launch<T, Weights, packed_shape<64, 64, 112, 2, 3, 3, 152, true, 3>>(p, env, error);
    case 80:
      if (grouped) return launch<T, Weights, packed_shape<80, 80, 80, 2, 3, 3, 152, true, 3>>(p, env, error);
      return launch<T, Weights, packed_shape<80, 80, 128, 2, 2, 3, 224, true>>(p, env, error);
    case 96:
      return launch<T, Weights, packed_shape<96, 96, 128, 2, 2, 3, 224, true>>(p, env, error);
    case 112:
      return launch<T, Weights, packed_shape<112, 112, 128, 2, 2, 3, 224, true>>(p, env, error);
    case 128:
      if constexpr (!Weights::bends)
        if (grouped) return launch<T, Weights, packed_shape<128, 128, 64, 2, 3, 4, 152, true, 3>>(p, env, error);
      return launch<T, Weights, packed_shape<128, 128, Weights::bends ? 112 : 128, 2, 2, 3, 224, true>>(p, env, error);
    case 256:
      return launch<T, Weights, packed_shape<256, 256, Weights::bends ? 64 : 80, 1, 2, 2, 224, false>>(p, env, error);
    default:
      break;
    }
    if (p.a.D_v == 128)
      return launch<T, Weights, packed_shape<192, 128, Weights::bends ? 112 : 128, 1, 2, 2, 224, false>>(p, env, error);
    return launch<T, Weights, packed_shape<192, 192, Weights::bends ? 96 : 112, 1, 2, 2, 224, false>>(p, env, error);
  }
};

} // namespace ASSAY_NS
#endif
