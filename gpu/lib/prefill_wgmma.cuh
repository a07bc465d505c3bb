/* prefill_wgmma.cuh: attention of many query rows over the paged cache on Hopper's tensor cores, whatever becomes of a
 * score: one warpgroup loads, two compute, each 64 query rows of one head against tiles of 128 keys.
 *
 *   S = Q K^T        wgmma, both operands from shared memory, f32 in registers
 *   P = weights(S)   the operator's, in place; rounded to the storage type
 *   O = O + P V      wgmma, P from the registers it was made in
 *
 * The scores of the next tile are under way while the weights of this one are made; the first tile of the next item
 * while the last sum of this one is. The two warpgroups have two heads of one kv head, so that they share K and V and
 * have the same work; where a group has one head, two runs of rows.
 *
 * Weights: what an operator gives.
 *   Weights::params, with `attention_params a`; Weights::masks_all: every tile is masked, and on both sides
 *   Weights::registers                         of a thread that computes, 216 or 224: without spills
 *   Weights::compact                           no code for a tile is there twice: prompts of a few tiles wait for
 *                                              instructions where weights take many; else an item's first tile has code
 *                                              of its own
 *   start(p, head, position)                   position: of the thread's first row; the second is 8 further
 *   weigh<groups, mask>(S, tile)               S[4 g + 2 h + b]: row 8 h further, token 16 (lane mod 4) + 64 (g / 8)
 *                                              + 2 (g mod 8) + b of the tile
 *   rescale(O)                                 between two tiles
 *   finish(p, item, row, head, factor)         row: the thread's first in the item; factor[h]: what O is multiplied by
 */
#ifndef ASSAY_GPU_LIB_PREFILL_WGMMA_CUH
#define ASSAY_GPU_LIB_PREFILL_WGMMA_CUH

#include "gpu/lib/prefill_wgmma_load.cuh"
#include "gpu/lib/ptx_mma.cuh"
#include "gpu/lib/ptx_wgmma.cuh"

namespace ASSAY_NS {

/* Which keys of a tile a row may not see: none, those behind its own, those before its window too. */
enum prefill_mask { mask_none, mask_causal, mask_both };

/* ---- the warpgroups that compute -------------------------------------------------------------------- */

template <class T, int D, class Weights> struct prefill_warpgroup {
  using layout = prefill_layout<D>;
  using params = typename Weights::params;

  const params &p;
  unsigned char *const shared;
  prefill_control<D> *const control;
  const int32_t group, warp, lane; /* group 0 or 1; warp 0 to 3 in it */
  prefill_ring q;
  int32_t scored; /* tiles whose keys are used up */
  Weights weights;
  int32_t q_stage, position, begin, end; /* of the item; the rest of it stays in control until the stage is freed */
  uint64_t query;                        /* descriptor */
  float O[D / 2];
  uint32_t P[32];

  PREFILL_FUNCTION prefill_warpgroup(const params &p_, unsigned char *shared_, prefill_control<D> *control_)
      : p(p_), shared(shared_), control(control_), group(static_cast<int32_t>(threadIdx.x) / 128 - 1),
        warp(static_cast<int32_t>(threadIdx.x) / 32 % 4), lane(static_cast<int32_t>(threadIdx.x) % 32), q({0, 0}),
        scored(0) {}

  template <int count> static PREFILL_FUNCTION void zero(float (&x)[count]) {
    ASSAY_UNROLL
    for (int i = 0; i < count; ++i)
      x[i] = 0.0f;
  }

  /* The warp's first row in the item. */
  PREFILL_FUNCTION int32_t first_row() const { return (p.a.G > 1 ? 0 : 64 * group) + 16 * warp; }

  PREFILL_FUNCTION int32_t head_of(const prefill_item &item) const { return item.head + (p.a.G > 1 ? group : 0); }

  /* Waits for the next item's queries; false: there is none. */
  PREFILL_FUNCTION bool fetch() {
    mbarrier_wait(&control->q_full[q.stage], q.parity);
    const prefill_item &item = control->item[q.stage];
    begin = of_warp(item.begin);
    end = of_warp(item.end);
    position = of_warp(item.position);
    if (end == 0) return false;
    q_stage = q.stage;
    fence_proxy_async();
    query =
        wgmma_descriptor(shared + q_stage * layout::stage_bytes + group * layout::half_bytes, 1024, 16, swizzle_128);
    q.template next<layout::q_stages>();
    weights.start(p, head_of(item), position + first_row() + lane / 4);
    return true;
  }

  /* S of the next tile, 8 * groups keys: issued. */
  template <int groups> PREFILL_FUNCTION void issue_scores(float (&S)[4 * groups]) {
    const int32_t stage = of_warp(scored & 1);
    mbarrier_wait(&control->k_full[stage], scored >> 1 & 1);
    fence_proxy_async();
    const uint64_t keys = wgmma_descriptor(shared + layout::k_at + stage * layout::stage_bytes, 1024, 16, swizzle_128);
    zero(S);
    wgmma_order(S);
    wgmma_fence();
    ASSAY_UNROLL
    for (int step = 0; step < D / 16; ++step) {
      const uint64_t ahead = static_cast<uint64_t>(step / 4 * layout::piece_bytes + step % 4 * 32) >> 4;
      wgmma_m64k16<T, 8 * groups, false>(S, query + ahead, keys + ahead, step > 0);
    }
    wgmma_commit();
  }

  /* S is there; its keys may be overwritten. */
  template <int pending, int count> PREFILL_FUNCTION void await_scores(float (&S)[count]) {
    wgmma_wait<pending>();
    wgmma_order(S);
    if (lane == 0) mbarrier_arrive(&control->k_free[scored & 1]);
    ++scored;
  }

  /* O += P V over the first 16 * steps rows of tile number `tile`: issued. */
  template <int steps> PREFILL_FUNCTION void issue_values(int32_t tile) {
    const int32_t stage = of_warp(tile & 1);
    mbarrier_wait(&control->v_full[stage], tile >> 1 & 1);
    fence_proxy_async();
    const uint64_t values =
        wgmma_descriptor(shared + layout::v_at + stage * layout::stage_bytes, 1024, layout::piece_bytes, swizzle_128);
    wgmma_order(O);
    wgmma_order(P);
    wgmma_fence();
    ASSAY_UNROLL
    for (int step = 0; step < steps; ++step)
      wgmma_m64k16<T, D, true>(O, P, 4 * step, values + static_cast<uint64_t>(step * 16 * 128 >> 4), true);
    wgmma_commit();
  }

  PREFILL_FUNCTION void await_values(int32_t tile) {
    wgmma_wait<0>();
    wgmma_order(O);
    wgmma_order(P);
    if (lane == 0) mbarrier_arrive(&control->v_free[tile & 1]);
  }

  /* The weights of the keys behind S, in the upper half of a tile of 64, are 0. */
  template <int count> PREFILL_FUNCTION void pack(const float (&S)[count]) {
    ASSAY_UNROLL
    for (int i = 0; i < 32; ++i)
      P[i] = i < count / 2 ? pack_pair<T>(S[2 * i % count], S[(2 * i + 1) % count]) : 0u;
  }

  /* The first tile of all: no sum to overlap it with. */
  template <int groups, prefill_mask mask> PREFILL_FUNCTION void first() {
    float S[4 * groups];
    issue_scores<groups>(S);
    await_scores<0>(S);
    weights.template weigh<groups, mask>(S, begin);
    pack(S);
  }

  /* Another tile; meanwhile the sum of the one before, of 16 * steps keys of this item or of the item before it.
   * summed(): what becomes of O then. */
  template <int groups, prefill_mask mask, int steps, class Summed>
  PREFILL_FUNCTION void next(int32_t tile, Summed summed) {
    const int32_t before = scored - 1;
    float S[4 * groups];
    issue_scores<groups>(S);
    issue_values<steps>(before);
    await_scores<1>(S);
    weights.template weigh<groups, mask>(S, tile);
    await_values(before);
    summed();
    pack(S);
  }

  /* The last sum of all. */
  template <int steps> PREFILL_FUNCTION void last() {
    issue_values<steps>(scored - 1);
    await_values(scored - 1);
  }

  /* Rounds the sums and writes the rows that are there, by way of the item's own query tile: a warp's 16 rows of it are
   * read by no other warp. Every lane says for itself that it is done with them: that one lane may say so behind a
   * barrier of the warp is what compute-sanitizer's racecheck does not know. */
  PREFILL_FUNCTION void store(int32_t stage, const float (&factor)[2]) {
    const prefill_item &item = control->item[stage];
    unsigned char *const rows = shared + stage * layout::stage_bytes + group * layout::half_bytes + warp * 16 * 128;
    const int32_t r = lane / 4;
    ASSAY_UNROLL
    for (int i = 0; i < D / 4; ++i) {
      const int g = i / 2, h = i % 2;
      unsigned char *const to =
          rows + g / 8 * layout::piece_bytes + (r + 8 * h) * 128 + (((g ^ r) & 7) << 4) + lane % 4 * 4;
      *reinterpret_cast<uint32_t *>(to) = pack_pair<T>(O[2 * i] * factor[h], O[2 * i + 1] * factor[h]);
    }
    __syncwarp();
    constexpr int32_t chunks = D / 8, rows_a_pass = 32 / chunks;
    const int32_t chunk = lane % chunks, at = first_row() + lane / chunks;
    const int32_t rest = item.rows - at; /* rows from this lane's first on */
    const int64_t pitch = static_cast<int64_t>(p.a.H) * D;
    T *to = static_cast<T *>(p.a.out) + (item.row + at) * pitch + head_of(item) * D + 8 * chunk;
    ASSAY_UNROLL
    for (int pass = 0; pass < 16 / rows_a_pass; ++pass) {
      const int32_t row = pass * rows_a_pass + lane / chunks;
      const unsigned char *const from = rows + chunk / 8 * layout::piece_bytes + row * 128 + (((chunk ^ row) & 7) << 4);
      if (pass * rows_a_pass < rest) *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(from);
      to += rows_a_pass * pitch;
    }
    mbarrier_arrive(&control->q_free[stage]);
  }

  /* Behind the tiles of which no row of the item is masked. */
  PREFILL_FUNCTION int32_t open_end() const { return max(position + 1, 0) >> keys_per_tile_shift; }

  /* Does the last tile end in its lower half? */
  PREFILL_FUNCTION bool ends_low() const {
    return position + of_warp(control->item[q_stage].rows) - (end - 1) * keys_per_tile <= 64;
  }

  /* Tiles that nothing is masked in, one after the other. */
  PREFILL_FUNCTION int32_t open_tiles(int32_t tile) {
    for (const int32_t open = min(open_end(), end - 1); tile < open; ++tile)
      next<16, mask_none, 8>(tile, [&] { weights.rescale(O); });
    return tile;
  }

  /* The factors of the item's sums. */
  PREFILL_FUNCTION void finish(float (&factor)[2]) const {
    const prefill_item &item = control->item[q_stage];
    weights.finish(p, item, first_row() + lane / 4, head_of(item), factor);
  }

  /* ---- each kind of first tile has code of its own ---- */

  PREFILL_FUNCTION void first_any() {
    const bool many = end - begin > 1;
    if (Weights::masks_all)
      first<16, mask_both>();
    else if (!Weights::compact && many && open_end() > begin)
      first<16, mask_none>();
    else if (many || !ends_low())
      first<16, mask_causal>();
    else
      first<8, mask_causal>();
  }

  /* The item's tiles but the first; is the last of 64 keys? */
  PREFILL_FUNCTION bool middle() {
    const auto summed = [&] { weights.rescale(O); };
    int32_t tile = begin + 1;
    if constexpr (Weights::masks_all) {
      for (; tile < end; ++tile)
        next<16, mask_both, 8>(tile, summed);
      return false;
    } else {
      const bool low = ends_low();
      for (tile = open_tiles(tile); tile < end; ++tile) {
        if (tile == end - 1 && low)
          next<8, mask_causal, 8>(tile, summed);
        else
          next<16, mask_causal, 8>(tile, summed);
      }
      return low;
    }
  }

  /* The first tile of an item, and the last sum of the item before. */
  template <int steps> PREFILL_FUNCTION void cross(int32_t old_stage, const float (&factor)[2]) {
    const auto summed = [&] {
      store(old_stage, factor);
      zero(O);
    };
    if constexpr (Weights::masks_all) {
      next<16, mask_both, steps>(begin, summed);
    } else {
      const bool many = end - begin > 1;
      if (many && open_end() > begin)
        next<16, mask_none, steps>(begin, summed);
      else if (many || !ends_low())
        next<16, mask_causal, steps>(begin, summed);
      else
        next<8, mask_causal, steps>(begin, summed);
    }
  }

  PREFILL_FUNCTION void run_spread() {
    for (;;) {
      const bool low = middle();
      const int32_t old_stage = q_stage;
      float factor[2];
      finish(factor);
      if (!fetch()) {
        if (!Weights::masks_all && low)
          last<4>();
        else
          last<8>();
        store(old_stage, factor);
        return;
      }
      if (!Weights::masks_all && low)
        cross<4>(old_stage, factor);
      else
        cross<8>(old_stage, factor);
    }
  }

  /* ---- no code is there twice ---- */

  PREFILL_FUNCTION void run_compact() {
    const auto later = [] {};
    bool more = true;
    for (int32_t tile = begin + 1; more; ++tile) {
      if (!Weights::masks_all) tile = open_tiles(tile);
      const bool over = tile == end;
      const int32_t old_stage = q_stage;
      float factor[2];
      if (over) {
        finish(factor);
        more = fetch();
        tile = begin;
      }
      if (!more)
        last<8>();
      else if (Weights::masks_all)
        next<16, mask_both, 8>(tile, later);
      else if (tile < end - 1 || !ends_low())
        next<16, mask_causal, 8>(tile, later);
      else
        next<8, mask_causal, 8>(tile, later);
      if (over) {
        store(old_stage, factor);
        zero(O);
      } else {
        weights.rescale(O);
      }
    }
  }

  PREFILL_FUNCTION void run() {
    if (!fetch()) return;
    zero(O);
    first_any();
    if constexpr (Weights::compact)
      run_compact();
    else
      run_spread();
  }
};

/* ---- the kernel ------------------------------------------------------------------------------------- */

/* Asks for what the loaders read first, a line a thread: rows and lengths of the requests, by those that load; the
 * first entries of every request's table by the others. Reads nothing, so it may come before dependency_wait(). */
PREFILL_FUNCTION void prefill_ask(const attention_params &a) {
  constexpr int32_t entries = 32; /* of a line */
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

/* prefill: Grid: at most one block a multiprocessor, each takes items in turns. Block: 384 threads. Shared:
 * prefill_layout<D>::bytes. */
template <class T, int D, class Weights>
__global__ void __launch_bounds__(prefill_threads, 1) prefill(typename Weights::params p) {
  using layout = prefill_layout<D>;
  /* 128 threads of the one kind and 256 of the other have what the block begins with, 384 times 168. */
  constexpr int computing = Weights::registers, loading = 504 - 2 * computing;
  static_assert(computing % 8 == 0 && (loading == 72 || loading == 56), "other shares were not tried");
  ASSAY_DYNAMIC_SHARED_1024(unsigned char, shared);
  prefill_control<D> *const control = reinterpret_cast<prefill_control<D> *>(shared + layout::control_at);
  dependents_launch();
  if (threadIdx.x == 0) prefill_barriers(control);
  __syncthreads();
  prefill_ask(p.a);
  dependency_wait();
  if (threadIdx.x < prefill_loaders) {
    registers_fewer<loading>();
    prefill_filler<T, D, Weights::masks_all, Weights::masks_all || Weights::compact, loading == 72 ? 2 : 1> filler(
        p.a, shared, control);
    filler.run();
  } else {
    registers_more<computing>();
    prefill_warpgroup<T, D, Weights> warpgroup(p, shared, control);
    warpgroup.run();
  }
}

/* ---- launchers -------------------------------------------------------------------------------------- */

inline bool is_multiple_of_16(const void *base) {
  return reinterpret_cast<uintptr_t>(base) % 16 == 0;
}

/* What the schedule takes. */
inline assay_status expect_prefill(const attention_params &a, const attention_types &types, assay_dtype dtype,
                                   assay_error *error) {
  const paged_cache &cache = a.cache;
  if (a.cu_q == NULL)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "cu_q: found no data, allowed a tensor: a prefill of ragged rows");
  if (types.q != dtype || types.kv != dtype)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "k_cache: found dtype %s with q %s, allowed %s for both",
                      assay_dtype_name(types.kv), assay_dtype_name(types.q), assay_dtype_name(dtype));
  if (a.D != 64 && a.D != 128) return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "D: found %d, allowed 64, 128", a.D);
  if (a.G != 1 && a.G % 2 != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "H: found %d with %d kv heads, allowed 1 or an even number each",
                      a.H, a.H_kv);
  if (cache.v_channel != 1) return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "layout: found x, allowed nhd, hnd");
  if (cache.block_shift < 4)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "block_size: found %d, allowed 16 and above",
                      1 << cache.block_shift);
  const int64_t strides =
      a.q_row | cache.k_block | cache.k_head | cache.k_token | cache.v_block | cache.v_head | cache.v_token;
  if (strides % 8 != 0 || !is_multiple_of_16(a.q) || !is_multiple_of_16(a.out) || !is_multiple_of_16(cache.k) ||
      !is_multiple_of_16(cache.v))
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                      "q: found rows of q, K or V that do not begin at a multiple of 16 bytes, allowed those that do");
  return ASSAY_OK;
}

template <class T, int D, class Weights>
assay_status launch_prefill(const typename Weights::params &p, assay_env *env, assay_error *error) {
  const int64_t items = most_items<prefill_pairs>(p.a);
  const int64_t blocks = items < env->multiprocessors ? items : env->multiprocessors;
  return ASSAY_LAUNCH_WITH(error, (prefill<T, D, Weights>), blocks, prefill_threads, prefill_layout<D>::bytes,
                           in_turn(), env->stream, p);
}

} // namespace ASSAY_NS
#endif
