/* prefill_wgmma.cuh: attention of many query rows over the paged cache on Hopper's tensor cores, independent of what is
 * done with a score. One warpgroup loads and two compute, each 64 query rows of one head against tiles of 128 keys.
 *
 *   S = Q K^T        wgmma, both operands from shared memory, f32 in registers
 *   P = weights(S)   the operator's, in place; rounded to the storage type
 *   O = O + P V      wgmma, P from the registers in which it was computed
 *
 * The scores of the next tile are computed while the weights of this one are made. The first tile of the next item is
 * computed during the last sum of this one. The two warpgroups have two heads of one kv head, so they share K and V and
 * have equal work. If a group has one head, they have two runs of rows.
 *
 * An operator provides Weights:
 *
 *   Weights::params, with `attention_params a`; Weights::masks_all: every tile is masked, and on both sides
 *   Weights::registers                         216 or 224 per computing thread: without spills
 *   Weights::compact                           no code for a tile exists twice. This is for weights that take many
 *                                              instructions: prompts of a few tiles would wait for instructions.
 *                                              Otherwise an item's first tile has code of its own.
 *   start(p, head, position)                   position: of the thread's first row; the second is 8 further
 *   weigh<groups, mask>(S, tile)               S[4 g + 2 h + b]: row 8 h further, token 16 (lane mod 4) + 64 (g / 8)
 *                                              + 2 (g mod 8) + b of the tile
 *   rescale(O)                                 between two tiles
 *   finish(p, item, row, head, factor)         row: the thread's first in the item; factor[h]: O is multiplied by it */
#ifndef ASSAY_GPU_LIB_PREFILL_WGMMA_CUH
#define ASSAY_GPU_LIB_PREFILL_WGMMA_CUH

#include "gpu/lib/prefill_variant.cuh"
#include "gpu/lib/prefill_wgmma_load.cuh"
#include "gpu/lib/ptx_mma.cuh"
#include "gpu/lib/ptx_wgmma.cuh"

namespace ASSAY_NS {

/* The keys of a tile that a row may not see: none, the keys after its own, or also the keys before its window. */
enum prefill_mask { mask_none, mask_causal, mask_both };

/* ---- the warpgroups that compute -------------------------------------------------------------------- */

template <class T, int D, class Weights> struct prefill_warpgroup {
  using layout = prefill_layout<D>;
  using params = typename Weights::params;

  const params &p;
  unsigned char *const shared;
  prefill_control<D> *const control;
  const int32_t group, warp, lane; /* group 0 or 1; warp 0 to 3 in the group */
  prefill_ring q;
  int32_t scored; /* tiles whose keys have been used */
  Weights weights;
  /* Fields of the item. Its other fields stay in control until the stage is freed. */
  int32_t q_stage, position, begin, end;
  uint64_t query; /* descriptor */
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

  /* Returns the warp's first row in the item. */
  PREFILL_FUNCTION int32_t first_row() const { return (p.a.G > 1 ? 0 : 64 * group) + 16 * warp; }

  PREFILL_FUNCTION int32_t head_of(const prefill_item &item) const { return item.head + (p.a.G > 1 ? group : 0); }

  /* Waits for the next item's queries. Returns false if there is no next item. */
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

  /* Issues S of the next tile, for 8 * groups keys. */
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

  /* Waits until S is complete. Its keys may be overwritten afterwards. */
  template <int pending, int count> PREFILL_FUNCTION void await_scores(float (&S)[count]) {
    wgmma_wait<pending>();
    wgmma_order(S);
    if (lane == 0) mbarrier_arrive(&control->k_free[scored & 1]);
    ++scored;
  }

  /* Issues O += P V over the first 16 * steps rows of tile number `tile`. */
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

  /* Packs S into P. The weights of keys beyond S, in the upper half of a tile of 64, are 0. */
  template <int count> PREFILL_FUNCTION void pack(const float (&S)[count]) {
    ASSAY_UNROLL
    for (int i = 0; i < 32; ++i)
      P[i] = i < count / 2 ? pack_pair<T>(S[2 * i % count], S[(2 * i + 1) % count]) : 0u;
  }

  /* Computes the very first tile, which has no sum to overlap with. */
  template <int groups, prefill_mask mask> PREFILL_FUNCTION void first() {
    float S[4 * groups];
    issue_scores<groups>(S);
    await_scores<0>(S);
    weights.template weigh<groups, mask>(S, begin);
    pack(S);
  }

  /* Computes another tile and, meanwhile, the sum of the previous tile: 16 * steps keys of this item or of the previous
   * item. summed(): handles O afterwards. */
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

  /* Computes the very last sum. */
  template <int steps> PREFILL_FUNCTION void last() {
    issue_values<steps>(scored - 1);
    await_values(scored - 1);
  }

  /* Rounds the sums and writes the existing rows. It goes through the item's own query tile in shared memory, since no
   * other warp reads this warp's 16 rows of it. Every lane arrives for itself when it is done with these rows. One lane
   * could arrive for all after a barrier of the warp, but compute-sanitizer's racecheck does not recognise this. */
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
    const int32_t rest = item.rows - at; /* rows from this lane's first row on */
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

  /* Returns the end of the tiles in which no row of the item is masked. */
  PREFILL_FUNCTION int32_t open_end() const { return max(position + 1, 0) >> keys_per_tile_shift; }

  /* Returns whether the last tile ends in its lower half. */
  PREFILL_FUNCTION bool ends_low() const {
    return position + of_warp(control->item[q_stage].rows) - (end - 1) * keys_per_tile <= 64;
  }

  /* Computes the tiles in which nothing is masked, one after the other. Returns the next tile. */
  PREFILL_FUNCTION int32_t open_tiles(int32_t tile) {
    for (const int32_t open = min(open_end(), end - 1); tile < open; ++tile)
      next<16, mask_none, 8>(tile, [&] { weights.rescale(O); });
    return tile;
  }

  /* Computes the factors of the item's sums. */
  PREFILL_FUNCTION void finish(float (&factor)[2]) const {
    const prefill_item &item = control->item[q_stage];
    weights.finish(p, item, first_row() + lane / 4, head_of(item), factor);
  }

  /* ---- spread: each kind of first tile has code of its own  */

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

  /* Computes the item's tiles except the first. Returns whether the last tile has 64 keys. */
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

  /* Computes the first tile of an item and the last sum of the previous item. */
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

  /* ---- compact: no code exists twice  */

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

/* prefill: handles 64 query rows of two heads, or 128 rows of one head, per item; each block takes items in turns.
 * Grid:   at most one block per multiprocessor. Block: 384 threads.
 * Shared: prefill_layout<D>::bytes. */
template <class T, int D, class Weights>
__global__ void __launch_bounds__(prefill_threads, 1) prefill(typename Weights::params p) {
  using layout = prefill_layout<D>;
  /* The 128 loading threads and the 256 computing threads together have the registers with which the block begins, 384
   * times 168. */
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

/* Refuses calls that the schedule cannot run. */
inline assay_status expect_prefill(const attention_params &a, const attention_types &types, assay_dtype dtype,
                                   assay_error *error) {
  const paged_cache &cache = a.cache;
  ASSAY_TRY(expect_prompts(a, error));
  ASSAY_TRY(expect_storage(types, dtype, error));
  if (a.D != 64 && a.D != 128) return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "D: found %d, allowed 64, 128", a.D);
  if (a.G != 1 && a.G % 2 != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "H: found %d with %d kv heads, allowed 1 or an even number each",
                      a.H, a.H_kv);
  ASSAY_TRY(expect_value_rows(a, error));
  if (cache.block_shift < 4)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "block_size: found %d, allowed 16 and above",
                      1 << cache.block_shift);
  return expect_rows_of_16(a, error);
}

template <class T, int D, class Weights>
assay_status launch_prefill(const typename Weights::params &p, assay_env *env, assay_error *error) {
  const int64_t items = most_items<prefill_pairs>(p.a);
  const int64_t blocks = items < env->multiprocessors ? items : env->multiprocessors;
  return ASSAY_LAUNCH_WITH(error, (prefill<T, D, Weights>), blocks, prefill_threads, prefill_layout<D>::bytes,
                           in_turn(), env->stream, p);
}

inline void wgmma_path(const attention_params &a, bool plain, assay_env *env) {
  (void)snprintf(env->path, sizeof env->path, "wgmma %s heads=%d D=%d%s", plain ? "plain" : "general", a.G > 1 ? 2 : 1,
                 a.D, cache_word(a));
}

/* The schedule for prefill_strategy. */
struct wgmma_schedule {
  static assay_status expect(const attention_params &a, const attention_types &types, assay_dtype dtype,
                             assay_error *error) {
    return expect_prefill(a, types, dtype, error);
  }
  template <class T, class Weights>
  static assay_status start(const typename Weights::params &p, assay_env *env, assay_error *error) {
    return p.a.D == 64 ? launch_prefill<T, 64, Weights>(p, env, error) : launch_prefill<T, 128, Weights>(p, env, error);
  }
};

} // namespace ASSAY_NS
#endif
