/* stream.cuh: decode attention that streams K and V, whatever it does with a score.
 *
 * A warp walks alone over a run of blocks of 16 keys of one (request, kv head); no barrier until its run is over. K
 * comes by 16-byte loads straight into the A fragments of mma m16n8k16: the order of k inside an mma is free, so the 16
 * bytes of a lane are two k-steps, and q is loaded in the same order. The eight columns hold the heads of the group,
 * repeated. With g = lane / 4, j = lane mod 4, `heads` = 2, 4 or 8 columns that differ: K     lane: keys g and g + 8,
 * channels 32 i + 8 j .. + 7 q     lane: head g mod heads, the same channels score element 2 h + e of a lane: key g + 8
 * h, column 2 j + e V     lane: key `keys_a_load` t + lane / (D / 8), channels 8 (lane mod D / 8) .. + 7 Of the copies
 * of a score each lane keeps what no other keeps (stream_held). Weights go to the warp's own shared memory; one ballot
 * tells every lane which keys any head needs, and V of the others is not read. V is one block behind K, and both are in
 * flight while the other is used. sum p v runs in f32 on the CUDA cores: p is not rounded, and a key that is dead for a
 * head does not touch that head's sum. */
#ifndef ASSAY_GPU_LIB_STREAM_CUH
#define ASSAY_GPU_LIB_STREAM_CUH

#include "gpu/lib/attention.h"
#include "gpu/lib/paged.cuh"
#include "gpu/lib/ptx_async.cuh"
#include "gpu/lib/ptx_mma.cuh"
#include "gpu/lib/rows.cuh"
#include "gpu/lib/types.cuh"

namespace ASSAY_NS {

constexpr int stream_keys = 16; /* of a block of the walk */
constexpr int stream_most_warps = 12;
constexpr unsigned all_lanes = 0xffffffffu;

/* ---- a run ------------------------------------------------------------------------------------------- */

/* Blocks begin <= n < end of 16 keys; the row begins in block `origin`. */
struct stream_run {
  int32_t request, kv_head, first, last; /* keys */
  int32_t origin, begin, end;
};

/* The run of this warp. Grid: (rows * H_kv, splits). */
__device__ __forceinline__ stream_run stream_run_of(const attention_params &a, int64_t row, int32_t kv_head) {
  const int32_t warps = static_cast<int32_t>(blockDim.x / 32), warp = static_cast<int32_t>(threadIdx.x / 32);
  const row_keys keys = keys_of_row(a, row);
  stream_run run = {keys.request, kv_head, keys.first, keys.last, 0, 0, 0};
  if (keys.last < keys.first) return run;
  run.origin = keys.first / stream_keys;
  const int64_t blocks = keys.last / stream_keys + 1 - run.origin;
  const int64_t runs = static_cast<int64_t>(gridDim.y) * warps,
                number = static_cast<int64_t>(blockIdx.y) * warps + warp;
  run.begin = run.origin + static_cast<int32_t>(blocks * number / runs);
  run.end = run.origin + static_cast<int32_t>(blocks * (number + 1) / runs);
  return run;
}

/* Table entries of the blocks of a run: 32 in the lanes of the warp, 32 more on their way. */
struct stream_table {
  const int32_t *row;
  int32_t shift, end; /* blocks of the walk in one of the cache: 2^shift */
  int32_t now, ahead;
};

__device__ __forceinline__ int32_t stream_entry(const stream_table &table, int32_t n) {
  return n < table.end ? table.row[n >> table.shift] : 0;
}

__device__ __forceinline__ stream_table stream_table_of(const paged_cache &cache, const stream_run &run, int32_t lane) {
  stream_table table = {cache.table + run.request * cache.table_row, cache.block_shift - 4, run.end, 0, 0};
  table.now = stream_entry(table, run.begin + lane);
  table.ahead = stream_entry(table, run.begin + 32 + lane);
  return table;
}

/* Physical block of block n, of which the walk asks in order. */
__device__ __forceinline__ int32_t stream_block_of(stream_table *table, const stream_run &run, int32_t n,
                                                   int32_t lane) {
  const int32_t i = (n - run.begin) & 31;
  if (i == 0 && n > run.begin) {
    table->now = table->ahead;
    table->ahead = stream_entry(*table, n + 32 + lane);
  }
  return __shfl_sync(all_lanes, table->now, i);
}

/* ---- K, q, V ----------------------------------------------------------------------------------------- */

template <int D> struct stream_fragment { uint4 low[D / 32], high[D / 32]; }; /* keys g and g + 8 */

/* at: of channel 8 j of key g. */
template <class T, int D>
__device__ __forceinline__ void stream_load_keys(const paged_cache &cache, int64_t at, stream_fragment<D> *k) {
  const T *const low = element_at<T>(cache.k, at), *const high = element_at<T>(cache.k, at + 8 * cache.k_token);
  ASSAY_UNROLL
  for (int i = 0; i < D / 32; ++i)
    k->low[i] = load_stream_16(low + 32 * i);
  ASSAY_UNROLL
  for (int i = 0; i < D / 32; ++i)
    k->high[i] = load_stream_16(high + 32 * i);
}

/* Fragments of q in shared memory, each lane's own: they would take D / 8 registers. head: of column g. */
template <class T, int D>
__device__ __forceinline__ void stream_put_query(const attention_params &a, int64_t row, int32_t head, int32_t lane,
                                                 uint4 *query) {
  const T *const from = element_at<T>(a.q, query_offset(a, row, head) + 8 * (lane % 4));
  ASSAY_UNROLL
  for (int i = 0; i < D / 32; ++i)
    query[32 * i + lane] = *reinterpret_cast<const uint4 *>(from + 32 * i);
}

/* Scores of 16 keys and 8 columns, not scaled. */
template <class T, int D>
__device__ __forceinline__ void stream_scores(const stream_fragment<D> &k, const uint4 *query, int32_t lane,
                                              float (&score)[4]) {
  float other[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    score[i] = 0.0f;
  ASSAY_UNROLL
  for (int i = 0; i < D / 32; ++i) {
    const uint4 q = query[32 * i + lane];
    const uint32_t a[4] = {k.low[i].x, k.high[i].x, k.low[i].y, k.high[i].y}, b[2] = {q.x, q.y};
    mma_m16n8k16<T>(score, a, b);
    const uint32_t c[4] = {k.low[i].z, k.high[i].z, k.low[i].w, k.high[i].w}, d[2] = {q.z, q.w};
    mma_m16n8k16<T>(other, c, d);
  }
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    score[i] += other[i];
}

template <int D> constexpr int stream_keys_a_load = 256 / D; /* V: keys of one load of the warp */

/* V of the keys whose bit is set in `live` (stream_mask's order); others keep what was there.
 * at: of this lane's channels in V of the first key. */
template <class T, int D>
__device__ __forceinline__ void stream_load_values(const paged_cache &cache, int64_t at, uint32_t live, int32_t lane,
                                                   uint4 (&v)[D / 16]) {
  constexpr int keys = stream_keys_a_load<D>;
  const uint32_t mine = live >> (4 * (lane / (D / 8)));
  const T *from = element_at<T>(cache.v, at);
  const int64_t step = keys * cache.v_token;
  ASSAY_UNROLL
  for (int t = 0; t < D / 16; ++t) {
    const int bit = 4 * (keys * t % 8) + 2 * (keys * t / 8);
    load_stream_16_if(&v[t], from, (mine >> bit & 1u) != 0);
    from = element_at<T>(from, step);
  }
}

/* ---- which lane keeps which score -------------------------------------------------------------------- */

/* A lane keeps `halves` keys, 8 apart, of `width` heads.
 *   heads 2: key g + 8 (j / 2), head j mod 2;  4: the same key, heads 2 (j mod 2) + 0, 1;  8: keys g, g + 8, heads 2 j
 * + 0, 1 */
template <int heads> struct stream_held {
  static constexpr int halves = heads == 8 ? 2 : 1, width = heads == 2 ? 1 : 2;
};

template <int heads>
__device__ __forceinline__ void stream_keep(const float (&score)[4], int32_t j,
                                            float (&kept)[stream_held<heads>::halves][stream_held<heads>::width]) {
  if constexpr (heads == 8) {
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      kept[i / 2][i % 2] = score[i];
  } else if constexpr (heads == 4) {
    ASSAY_UNROLL
    for (int i = 0; i < 2; ++i)
      kept[0][i] = j >= 2 ? score[2 + i] : score[i];
  } else {
    const float low = j % 2 != 0 ? score[1] : score[0], high = j % 2 != 0 ? score[3] : score[2];
    kept[0][0] = j >= 2 ? high : low;
  }
}

/* The first key and head that a lane keeps. */
template <int heads> __device__ __forceinline__ int32_t stream_kept_key(int32_t lane) {
  return lane / 4 + (heads == 8 ? 0 : 8 * (lane % 4 / 2));
}
template <int heads> __device__ __forceinline__ int32_t stream_kept_head(int32_t lane) {
  return heads == 8 ? 2 * (lane % 4) : heads == 4 ? 2 * (lane % 2) : lane % 2;
}

/* Keys that any head needs, from what each lane says of the keys it keeps; key u is bit 4 (u mod 8) + 2 (u / 8), other
 * bits mean nothing. */
template <int heads> __device__ __forceinline__ uint32_t stream_mask(const bool (&needed)[stream_held<heads>::halves]) {
  const uint32_t low = __ballot_sync(all_lanes, needed[0]);
  if constexpr (heads < 8) return low | low >> 1;
  const uint32_t high = __ballot_sync(all_lanes, needed[stream_held<heads>::halves - 1]);
  const uint32_t a = low | low >> 1, b = high | high >> 1;
  return ((a | a >> 2) & 0x11111111u) | ((b | b >> 2) & 0x11111111u) << 2;
}

/* Weights of a block in shared memory: [16 keys][heads]. */
template <int heads>
__device__ __forceinline__ void
stream_put_weights(const float (&p)[stream_held<heads>::halves][stream_held<heads>::width], int32_t lane,
                   float *weight) {
  float *const at = weight + stream_kept_key<heads>(lane) * heads + stream_kept_head<heads>(lane);
  ASSAY_UNROLL
  for (int h = 0; h < stream_held<heads>::halves; ++h) {
    if constexpr (heads == 2)
      at[0] = p[h][0];
    else
      *reinterpret_cast<float2 *>(at + 8 * heads * h) = make_float2(p[h][0], p[h][1]);
  }
}

/* ---- sum over V -------------------------------------------------------------------------------------- */

/* sum[head][channel] += p v over one block; a weight of 0 adds nothing, whatever v holds. */
template <class T, int D, int heads>
__device__ __forceinline__ void stream_add(const uint4 (&v)[D / 16], const float *weight, int32_t lane,
                                           float (&sum)[heads][8]) {
  const float *const mine = weight + lane / (D / 8) * heads;
  ASSAY_UNROLL
  for (int t = 0; t < D / 16; ++t) {
    float p[heads], value[8];
    ASSAY_UNROLL
    for (int h = 0; h < heads; h += 2) {
      const float2 pair = *reinterpret_cast<const float2 *>(mine + t * stream_keys_a_load<D> * heads + h);
      p[h] = pair.x;
      p[h + 1] = pair.y;
    }
    unpack_pair<T>(v[t].x, value[0], value[1]);
    unpack_pair<T>(v[t].y, value[2], value[3]);
    unpack_pair<T>(v[t].z, value[4], value[5]);
    unpack_pair<T>(v[t].w, value[6], value[7]);
    ASSAY_UNROLL
    for (int h = 0; h < heads; ++h) {
      if (p[h] != 0.0f) {
        ASSAY_UNROLL
        for (int e = 0; e < 8; ++e)
          sum[h][e] += p[h] * value[e];
      }
    }
  }
}

/* Of a warp: fragments of q, weights of two blocks; later, in their place, the sums. */
template <int D> constexpr int stream_query_floats = 4 * D;
template <int D, int heads>
constexpr int stream_shared_floats =
    stream_query_floats<D> + 2 * stream_keys *heads > heads *D ? stream_query_floats<D> + 2 * stream_keys *heads
                                                               : heads *D;

/* ---- the walk ---------------------------------------------------------------------------------------- */

/* Adds p v of the run's keys to sum. `weigher` makes weights of scores:
 *   weigher.edge(score, t)            the scores of the block before the run, keys t .. t + 15, of which it wants the
 * last weigher.halo (0: it is not asked) weigher.block(score, t, weight, sum)  writes the weights of keys t .. t + 15,
 * returns stream_mask; may rescale sum shared: 2 * 16 * heads floats of the warp's own. */
template <class T, int D, int heads, class Weigher>
__device__ __forceinline__ void stream_walk(const attention_params &a, const stream_run &run, int64_t row,
                                            float *shared, Weigher &weigher, float (&sum)[heads][8]) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), g = lane / 4, j = lane % 4;
  const paged_cache &cache = a.cache;
  if (run.begin >= run.end) return;
  stream_table table = stream_table_of(cache, run, lane);
  const int32_t slots = (1 << cache.block_shift) - 1;
  const int64_t k_lane = run.kv_head * cache.k_head + g * cache.k_token + 8 * j;
  const int64_t v_lane = run.kv_head * cache.v_head + lane / (D / 8) * cache.v_token + 8 * (lane % (D / 8));

  stream_fragment<D> k;
  int64_t block = stream_block_of(&table, run, run.begin, lane);
  stream_load_keys<T, D>(cache, block * cache.k_block + (stream_keys * run.begin & slots) * cache.k_token + k_lane, &k);

  uint4 *const query = reinterpret_cast<uint4 *>(shared);
  float *const weights = shared + stream_query_floats<D>;
  stream_put_query<T, D>(a, row, run.kv_head * a.G + min(g % heads, a.G - 1), lane, query);

  if constexpr (Weigher::halo > 0) {
    if (run.begin > run.origin) {
      const int32_t t = stream_keys * (run.begin - 1);
      stream_fragment<D> edge = {};
      const int64_t at = block_of(cache, run.request, t) * cache.k_block + ((t & slots) + 8) * cache.k_token + k_lane;
      ASSAY_UNROLL
      for (int i = 0; i < D / 32; ++i)
        load_stream_16_if(&edge.high[i], element_at<T>(cache.k, at + 32 * i), g >= 8 - Weigher::halo);
      float score[4];
      stream_scores<T, D>(edge, query, lane, score);
      weigher.edge(score, t);
    }
  }

  uint4 v[D / 16] = {};
  for (int32_t n = run.begin; n < run.end; ++n) {
    float score[4];
    stream_scores<T, D>(k, query, lane, score);
    int64_t next = 0;
    if (n + 1 < run.end) {
      next = stream_block_of(&table, run, n + 1, lane);
      stream_load_keys<T, D>(cache, next * cache.k_block + (stream_keys * (n + 1) & slots) * cache.k_token + k_lane,
                             &k);
    }
    float *const now = weights + (n & 1) * stream_keys * heads, *const before =
                                                                    weights + (~n & 1) * stream_keys * heads;
    if (n > run.begin) stream_add<T, D, heads>(v, before, lane, sum);
    const uint32_t live = weigher.block(score, stream_keys * n, now, sum);
    stream_load_values<T, D>(cache, block * cache.v_block + (stream_keys * n & slots) * cache.v_token + v_lane, live,
                             lane, v);
    __syncwarp(); /* the weights are there; those before are used up */
    block = next;
  }
  stream_add<T, D, heads>(v, weights + (~run.end & 1) * stream_keys * heads, lane, sum);
}

/* The sums of the lanes that share channels, then to shared memory: [heads][D], over the warp's weights. */
template <int D, int heads> __device__ __forceinline__ void stream_put_sums(float (&sum)[heads][8], float *shared) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
  ASSAY_UNROLL
  for (int h = 0; h < heads; ++h) {
    ASSAY_UNROLL
    for (int e = 0; e < 8; ++e) {
      ASSAY_UNROLL
      for (int step = D / 8; step < 32; step *= 2)
        sum[h][e] += __shfl_xor_sync(all_lanes, sum[h][e], step);
    }
  }
  __syncwarp(); /* the weights are used up */
  if (lane >= D / 8) return;
  ASSAY_UNROLL
  for (int h = 0; h < heads; ++h) {
    float4 *const to = reinterpret_cast<float4 *>(shared + h * D + 8 * lane);
    to[0] = make_float4(sum[h][0], sum[h][1], sum[h][2], sum[h][3]);
    to[1] = make_float4(sum[h][4], sum[h][5], sum[h][6], sum[h][7]);
  }
}

} // namespace ASSAY_NS
#endif
