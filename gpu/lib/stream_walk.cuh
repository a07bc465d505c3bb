/* stream_walk.cuh: the two walks over a run of keys (stream.cuh). Each has a `weigher` that turns scores into weights.
 *
 * Both walks keep K and V of a block in flight while others are used: 8 KB per warp with bf16 and 128 channels. The
 * sparse walk is for weights that are often 0. It loads V one block later than K, and only the V of keys that some head
 * needs. The registers of other keys keep their contents, which are 0 or the V of a key that was needed, and their
 * weight is 0. The dense walk is for weights that are hardly ever 0. It asks for V together with K, so a run of n
 * blocks waits n times for memory, not n + 1 times. */
#ifndef ASSAY_GPU_LIB_STREAM_WALK_CUH
#define ASSAY_GPU_LIB_STREAM_WALK_CUH

#include "gpu/lib/stream.cuh"

namespace ASSAY_NS {

/* Return where a lane's part of K, or of V, begins. The first function of each pair counts from the block's first key.
 * The second returns the place in the pool, for block n of the walk, which lies in the physical block `block`. slots:
 * slots of a physical block, minus one. */
template <class KV, int D, int heads>
__device__ __forceinline__ int64_t stream_key_lane(const paged_cache &cache, const stream_run &run, int32_t lane) {
  return run.kv_head * cache.k_head + stream_fragment<KV, D, heads>::lane_offset(cache, lane);
}
__device__ __forceinline__ int64_t stream_key_at(const paged_cache &cache, int64_t block, int32_t n, int32_t slots,
                                                 int64_t lane_at) {
  return block * cache.k_block + (stream_keys * n & slots) * cache.k_token + lane_at;
}
template <class KV, int D>
__device__ __forceinline__ int64_t stream_value_lane(const paged_cache &cache, const stream_run &run, int32_t lane) {
  using share = stream_share<KV, D>;
  return run.kv_head * cache.v_head + lane % 4 * cache.v_token + share::channels * (lane / 4);
}
__device__ __forceinline__ int64_t stream_value_at(const paged_cache &cache, int64_t block, int32_t n, int32_t slots,
                                                   int64_t lane_at) {
  return block * cache.v_block + (stream_keys * n & slots) * cache.v_token + lane_at;
}

/* ---- V after K --------------------------------------------------------------------------------------- */

/* Adds p v of the run's keys to sum. K of the run's first block must be in k. `weigher`:
 *
 *   weigher.keep(kept, t)                turns the scores of keys t .. t + 15, by lane, into the form that it needs
 *   weigher.weigh(kept, t, weight, sum)  writes the weights of these keys, returns stream_mask; may rescale sum
 *
 * block, next: physical blocks of the run's first two blocks. shared: stream_shared_floats that belong to the warp.
 * follow(): called when k and q are used up, if the run has a block. */
template <class T, class KV, int D, int heads, class Weigher, class Follow>
__device__ __forceinline__ void
stream_walk_sparse(const attention_params &a, const stream_run &run, const uint4 (&q)[stream_query_loads<KV, D, heads>],
                   stream_fragment<KV, D, heads> &k, int64_t block, int64_t next, float *shared, Weigher &weigher,
                   stream_sums<D, heads> &sum, Follow follow) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
  const paged_cache &cache = a.cache;
  const int32_t begin = run.begin, step = run.step, slots = (1 << cache.block_shift) - 1;
  const int64_t k_lane = stream_key_lane<KV, D, heads>(cache, run, lane);
  const int64_t v_lane = stream_value_lane<KV, D>(cache, run, lane);
  constexpr int32_t size = stream_keys * heads; /* weights of a block */
  int32_t put = 0; /* where the weights of this block go; the previous ones are next to them */
  stream_share<KV, D> v = {};
  for (int32_t n = begin; n < run.end; n += step) {
    stream_kept<heads> kept;
    stream_scores<T>(k, q, lane, kept);
    weigher.keep(kept, stream_keys * n);
    if (n + step < run.end)
      stream_load_keys(cache, stream_key_at(cache, next, n + step, slots, k_lane), stream_left(run, n + step), lane,
                       &k);
    else
      follow();
    const int32_t after = stream_block_of(cache, run, n + 2 * step, begin);
    if (n > begin) stream_add<T, KV, D, heads>(v, shared + size - put, lane, sum);
    const uint32_t live = weigher.weigh(kept, stream_keys * n, shared + put, sum);
    stream_load_values<KV, D>(cache, stream_value_at(cache, block, n, slots, v_lane), live, lane, v);
    __syncwarp(); /* the new weights are written; the previous ones are used up */
    put = size - put;
    block = next;
    next = after;
  }
  if (begin < run.end) stream_add<T, KV, D, heads>(v, shared + size - put, lane, sum);
}

/* Gives the weigher the keys before a run that begins inside a row. `left` is the physical block of the block before.
 * meanwhile(): asks for the run's keys, while these are on their way. `weigher` also has:
 *
 *   weigher.edge(kept, t)                takes the scores of the block before the run, keys t .. t + 15. Only the last
 *                                        weigher.halo of them are needed. It is not called if halo is 0. */
template <class T, class KV, int D, int heads, class Weigher, class Meanwhile>
__device__ __forceinline__ void stream_walk_edge(const attention_params &a, const stream_run &run, bool inside,
                                                 const uint4 (&q)[stream_query_loads<KV, D, heads>], int64_t left,
                                                 Weigher &weigher, Meanwhile meanwhile) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), slots = (1 << a.cache.block_shift) - 1;
  stream_fragment<KV, D, heads> edge = {};
  if constexpr (Weigher::halo > 0)
    stream_load_last_keys<Weigher::halo>(
        a.cache, stream_key_at(a.cache, left, run.begin - 1, slots, stream_key_lane<KV, D, heads>(a.cache, run, lane)),
        lane, inside, &edge);
  meanwhile();
  if constexpr (Weigher::halo > 0) {
    if (inside) {
      stream_kept<heads> last;
      stream_scores<T>(edge, q, lane, last);
      weigher.edge(last, stream_keys * (run.begin - 1));
    }
  }
}

/* Adds p v of the run's keys to sum, as stream_walk_sparse does, for a warp that has only q so far. */
template <class T, class KV, int D, int heads, class Weigher>
__device__ __forceinline__ void stream_walk(const attention_params &a, const stream_run &run,
                                            const uint4 (&q)[stream_query_loads<KV, D, heads>], float *shared,
                                            Weigher &weigher, stream_sums<D, heads> &sum) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
  const paged_cache &cache = a.cache;
  stream_fragment<KV, D, heads> k = {};
  if (run.begin >= run.end) return;
  const int32_t begin = run.begin, step = run.step, slots = (1 << cache.block_shift) - 1;
  const bool inside = Weigher::halo > 0 && begin > run.origin;
  const int64_t left = stream_block_of(cache, run, begin - 1, inside ? 0 : begin);
  const int64_t block = stream_block_of(cache, run, begin, begin),
                next = stream_block_of(cache, run, begin + step, begin);
  stream_walk_edge<T, KV, D, heads>(a, run, inside, q, left, weigher, [&] {
    const int64_t k_lane = stream_key_lane<KV, D, heads>(cache, run, lane);
    stream_load_keys(cache, stream_key_at(cache, block, begin, slots, k_lane), stream_left(run, begin), lane, &k);
  });
  stream_walk_sparse<T, KV, D, heads>(a, run, q, k, block, next, shared, weigher, sum, [] {});
}

/* ---- V with K ---------------------------------------------------------------------------------------- */

/* Returns the keys among t .. t + 15 that the row sees, in the order of stream_mask. The whole warp must call it. */
__device__ __forceinline__ uint32_t stream_visible(const stream_run &run, int32_t t, int32_t lane) {
  const int32_t key = t + lane / 4 + 8 * (lane % 4 / 2);
  return __ballot_sync(all_lanes, key >= run.first && key <= run.last);
}

/* Loads K of a run's first block, if it has one; the table maps the block to `block`. k must hold numbers, but any
 * numbers will do. */
template <class KV, int D, int heads>
__device__ __forceinline__ void stream_first_keys(const paged_cache &cache, const stream_run &run, int64_t block,
                                                  stream_fragment<KV, D, heads> &k) {
  if (run.begin >= run.end) return;
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), slots = (1 << cache.block_shift) - 1;
  const int64_t lane_at = stream_key_lane<KV, D, heads>(cache, run, lane);
  stream_load_keys(cache, stream_key_at(cache, block, run.begin, slots, lane_at), stream_left(run, run.begin), lane,
                   &k);
}

/* Returns V of the same block, for the keys that the row sees. */
template <class KV, int D>
__device__ __forceinline__ stream_share<KV, D> stream_first_values(const paged_cache &cache, const stream_run &run,
                                                                   int64_t block) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
  stream_share<KV, D> v = {};
  if (run.begin < run.end)
    stream_load_values<KV, D>(cache,
                              stream_value_at(cache, block, run.begin, (1 << cache.block_shift) - 1,
                                              stream_value_lane<KV, D>(cache, run, lane)),
                              stream_visible(run, stream_keys * run.begin, lane), lane, v);
  return v;
}

/* Adds p v of the run's keys to sum. K and V of the run's first block must be in k and v. `weigher`:
 *
 *   weigher.keep(kept, t)               as in stream_walk_sparse
 *   weigher.weigh(kept, weight, sum)    writes the weights of these keys; may rescale sum
 *
 * next: physical block of the run's second block. follow(): called when k and q are used up, if the run has a block.
 * pace: stream_pace or stream_no_pace. */
template <class T, class KV, int D, int heads, class Weigher, class Pace, class Follow>
__device__ __forceinline__ void
stream_walk_dense(const attention_params &a, const stream_run &run, const uint4 (&q)[stream_query_loads<KV, D, heads>],
                  stream_fragment<KV, D, heads> &k, stream_share<KV, D> &v, int64_t next, float *shared,
                  Weigher &weigher, stream_sums<D, heads> &sum, Pace pace, Follow follow) {
  constexpr int32_t size = stream_keys * heads; /* weights of a block */
  const paged_cache &cache = a.cache;
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), step = run.step, slots = (1 << cache.block_shift) - 1;
  const int64_t k_lane = stream_key_lane<KV, D, heads>(cache, run, lane);
  const int64_t v_lane = stream_value_lane<KV, D>(cache, run, lane);
  int32_t put = 0; /* where the weights of this block go; the previous ones are next to them */
  for (int32_t n = run.begin; n < run.end; n += step) {
    stream_kept<heads> kept;
    stream_scores<T>(k, q, lane, kept);
    weigher.keep(kept, stream_keys * n);
    if (n + step < run.end)
      stream_load_keys(cache, stream_key_at(cache, next, n + step, slots, k_lane), stream_left(run, n + step), lane,
                       &k);
    else
      follow();
    const int32_t after = stream_block_of(cache, run, n + 2 * step, run.begin);
    weigher.weigh(kept, shared + put, sum);
    __syncwarp(); /* the new weights are written; the previous ones are used up */
    stream_add<T, KV, D, heads>(v, shared + put, lane, sum);
    pace.hold(n + step < run.end);
    if (n + step < run.end)
      stream_load_values<KV, D>(cache, stream_value_at(cache, next, n + step, slots, v_lane),
                                stream_visible(run, stream_keys * (n + step), lane), lane, v);
    pace.abreast();
    put = size - put;
    next = after;
  }
}

} // namespace ASSAY_NS
#endif
