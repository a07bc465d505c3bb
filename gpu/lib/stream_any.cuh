/* stream_any.cuh: the walk over a run of keys (stream.cuh) for heads of any size.
 *
 * The channels of a head are any multiple of 16 up to the number that the kernel is compiled for (stream_any). K and V
 * of a block of 16 keys are read in units of 128 bytes per key. These are 64 channels of 16 bits, or 128 codes. A block
 * is its units of K and then its units of V. The units of all blocks of a run pass through a ring of registers. A unit
 * is used and makes room for the unit that comes `ring` units later, so memory is always asked for more. A ring of
 * twice the units of a block has K and V of the next block in flight, as the walks of stream_walk.cuh have. A smaller
 * one has less, and leaves registers to the sums.
 *
 * Loads fill with 0 what they do not read: keys after the row's last, dead keys, and channels after the head's last.
 * The registers of K and V are the same, so what they held before could be any number.
 *
 * q is kept in the warp's shared memory, beside the weights, as fragments. With g = lane / 4, j = lane mod 4 and w
 * elements in 16 bytes, unit u has:
 *
 *   K      keys g and g + 8, channels 8 w u + 4 w x + w j .. + w - 1 for x = 0, 1
 *   K halved  keys 8 x + 2 (g / 2) and the next one, channels 8 w u + 4 w (g mod 2) + w j .. + w - 1
 *   V      keys j, j + 8, j + 4, j + 12, channels 8 w u + w g .. + w - 1 */
#ifndef ASSAY_GPU_LIB_STREAM_ANY_CUH
#define ASSAY_GPU_LIB_STREAM_ANY_CUH

#include "gpu/lib/stream.cuh"
#include "gpu/lib/stream_walk.cuh"

namespace ASSAY_NS {

/* Channels of a unit, and units of K, or of V, in a block. */
template <class KV> constexpr int stream_unit_channels = 8 * stream_width<KV>;
template <class KV, int D> constexpr int stream_units = stream_size<D> / stream_unit_channels<KV>;

/* Sixteen heads of more than 128 channels leave few registers. The ring is then smaller, the weights' fragments are
 * kept in shared memory, and the warps keep no pace. */
template <int D, int heads> constexpr bool stream_lean = stream_size<D> > 128 && heads == 16;

/* Returns the units that the ring holds, of 16 registers each. */
__host__ __device__ constexpr int stream_ring_of(int units, bool lean) {
  if (lean) return units == 3 ? 3 : 2;
  return units <= 3 ? 2 * units : units;
}
template <class KV, int D, int heads>
constexpr int stream_ring_units = stream_ring_of(stream_units<KV, D>, stream_lean<D, heads>);
struct stream_slot {
  uint4 of[4];
};
template <class KV, int D, int heads> using stream_ring = stream_slot[stream_ring_units<KV, D, heads>];

/* The place of the next unit, and what decides which of its loads are made. */
template <class KV, int D, int heads> struct stream_reader {
  static constexpr bool halved = stream_halved<KV, D, heads>;
  static constexpr int width = stream_width<KV>, units = stream_units<KV, D>;
  int32_t lane, channels, slots; /* slots: of a physical block, minus one */
  int64_t k_lane, v_lane;        /* from a block's first key to this lane's first channel */

  __device__ __forceinline__ void begin(const attention_params &a, const stream_run &run) {
    lane = static_cast<int32_t>(threadIdx.x % 32);
    channels = stream_channels<D>(a);
    slots = (1 << a.cache.block_shift) - 1;
    const int32_t g = lane / 4, j = lane % 4;
    k_lane = run.kv_head * a.cache.k_head + (halved ? g / 2 * 2 : g) * a.cache.k_token + first_of_keys();
    v_lane = run.kv_head * a.cache.v_head + j * a.cache.v_token + width * g;
  }

  /* Return this lane's first channel of a unit of K, and of V. */
  __device__ __forceinline__ int32_t first_of_keys() const {
    return width * ((halved ? lane / 4 % 2 * 4 : 0) + lane % 4);
  }
  __device__ __forceinline__ int32_t first_of_values() const { return width * (lane / 4); }

  /* Loads unit u of K of block n, which lies in the physical block `block`. last: stream_left(run, n). Keys before
   * `from_key` of the block are not read. */
  template <int from_key = 0>
  __device__ __forceinline__ void keys(const paged_cache &cache, int64_t block, int32_t n, int32_t last, int u,
                                       stream_slot &slot) const {
    const auto wanted = [&](int32_t key) { return (from_key == 0 || key >= from_key) && key <= last; };
    const KV *const from = element_at<KV>(cache.k, stream_key_at(cache, block, n, slots, k_lane) + 8 * width * u);
    ASSAY_UNROLL
    for (int x = 0; x < 2; ++x) {
      const int32_t key = halved ? 8 * x + lane / 8 * 2 : lane / 4,
                    channel = first_of_keys() + (halved ? 0 : 4 * width * x);
      const KV *const low = element_at<KV>(from, halved ? 8 * x * cache.k_token : 4 * width * x);
      const bool there = 8 * width * u + channel < channels;
      load_stream_16_or_zero(&slot.of[2 * x], low, there && wanted(key));
      load_stream_16_or_zero(&slot.of[2 * x + 1], element_at<KV>(low, (halved ? 1 : 8) * cache.k_token),
                             there && wanted(key + (halved ? 1 : 8)));
    }
  }

  /* Loads unit u of V of the keys whose bit is set in `live`, which has stream_mask's order. */
  __device__ __forceinline__ void values(const paged_cache &cache, int64_t block, int32_t n, uint32_t live, int u,
                                         stream_slot &slot) const {
    const KV *from = element_at<KV>(cache.v, stream_value_at(cache, block, n, slots, v_lane) + 8 * width * u);
    const uint32_t mine = 8 * width * u + first_of_values() < channels ? live >> (4 * (lane % 4)) : 0u;
    ASSAY_UNROLL
    for (int s = 0; s < 4; ++s) { /* key j + 4 s */
      load_stream_16_or_zero(&slot.of[2 * (s % 2) + s / 2], from, (mine >> (16 * (s % 2) + 2 * (s / 2)) & 1u) != 0);
      from = element_at<KV>(from, 4 * cache.v_token);
    }
  }
};

/* ---- q ------------------------------------------------------------------------------------------------ */

/* Places in the warp's shared memory: the weights of two blocks, then q as [fragments][lanes], then the weights'
 * fragments if lean. */
template <int heads> constexpr int stream_query_at = 2 * stream_keys *heads;
template <class KV, int D, int heads>
constexpr int stream_weights_at = stream_query_at<heads> + 4 * 32 * stream_query_loads<KV, D, heads>;
template <class KV, int D, int heads>
constexpr bool stream_any_fits = stream_weights_at<KV, D, heads> +
                                     (stream_lean<D, heads> ? 2 * 32 * stream_column_sets<heads> * stream_sets<heads>
                                                            : 0) <=
                                 stream_shared_floats<D, heads>;

/* Keeps the compiler from mixing the work before it with the work after it, which needs more registers. It orders
 * nothing that lanes share: no race shows without it. */
__device__ __forceinline__ void stream_keep_apart() {
  __syncwarp(0xffffffffu);
}

/* Puts q of the row into the warp's shared memory. Channels after the head's last are 0. */
template <class T, class KV, int D, int heads>
__device__ __forceinline__ void stream_put_query(const attention_params &a, int64_t row, int32_t kv_head,
                                                 float *shared) {
  static_assert(stream_any_fits<KV, D, heads>, "the weights and q fit");
  constexpr bool halved = stream_halved<KV, D, heads>;
  constexpr int32_t width = stream_width<KV>, loads = width / 8; /* loads of q per 16 bytes of K */
  constexpr int count = stream_set_loads<KV, D, heads>;
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), column = lane / 4;
  const int32_t half = halved ? column / heads % 2 : 0;
  uint4 *const to = reinterpret_cast<uint4 *>(shared + stream_query_at<heads>) + lane;
  ASSAY_UNROLL
  for (int set = 0; set < stream_column_sets<heads>; ++set) {
    const int32_t head = kv_head * a.G + min(stream_head_of_column<heads>(column, set), a.G - 1);
    const T *const from = element_at<T>(a.q, query_offset(a, row, head));
    ASSAY_UNROLL
    for (int i = 0; i < count; ++i) {
      const int32_t channel = width * (4 * half + lane % 4) + (halved ? 8 : 4) * width * (i / loads) + 8 * (i % loads);
      uint4 q = make_uint4(0u, 0u, 0u, 0u);
      if (channel < a.D) q = *reinterpret_cast<const uint4 *>(from + channel);
      to[32 * (set * count + i)] = q;
    }
  }
  stream_keep_apart(); /* q is stored before a unit is asked for; a lane reads what it stored itself */
}

/* ---- scores and sums of a unit ------------------------------------------------------------------------- */

/* A lane's scores of 16 keys, in two chains. If halved, they are those of two sets of keys. */
template <int heads> using stream_chains = float[stream_column_sets<heads>][2][4];

/* Adds the products of unit u of K and q. */
template <class T, class KV, int D, int heads>
__device__ __forceinline__ void stream_score_unit(const stream_slot &slot, const uint4 *query, int u,
                                                  stream_chains<heads> &score) {
  constexpr int loads = stream_width<KV> / 8, count = stream_set_loads<KV, D, heads>;
  ASSAY_UNROLL
  for (int x = 0; x < 2; ++x) {
    ASSAY_UNROLL
    for (int set = 0; set < stream_column_sets<heads>; ++set) {
      constexpr bool halved = stream_halved<KV, D, heads>;
      const int at = set * count + loads * (halved ? u : 2 * u + x);
      uint4 q[loads];
      ASSAY_UNROLL
      for (int i = 0; i < loads; ++i)
        q[i] = query[32 * (at + i)];
      if constexpr (halved)
        stream_multiply<T, KV>(score[0][x], score[0][x], slot.of[2 * x], slot.of[2 * x + 1], q);
      else
        stream_multiply<T, KV>(score[set][0], score[set][1], slot.of[2 * x], slot.of[2 * x + 1], q);
    }
  }
}

/* Selects the scores that this lane keeps from the finished chains. */
template <class KV, int D, int heads>
__device__ __forceinline__ void stream_finish(const stream_chains<heads> &score, int32_t lane,
                                              stream_kept<heads> &kept) {
  if constexpr (stream_halved<KV, D, heads>) {
    stream_join_halves<heads>(score[0], lane, kept);
  } else {
    ASSAY_UNROLL
    for (int set = 0; set < stream_column_sets<heads>; ++set) {
      float both[4];
      ASSAY_UNROLL
      for (int i = 0; i < 4; ++i)
        both[i] = score[set][0][i] + score[set][1][i];
      stream_keep<heads>(both, lane, set, kept);
    }
  }
}

/* Returns a lane's fragment of V for step i of a unit: channels 2 i and 2 i + 1 of its own. */
template <class KV> __device__ __forceinline__ void stream_unit_values(const stream_slot &v, int i, uint32_t (&a)[4]) {
  const int word = is_fp8<KV>::value ? i / 2 : i;
  const auto of = [&](int at) {
    return word == 0 ? v.of[at].x : word == 1 ? v.of[at].y : word == 2 ? v.of[at].z : v.of[at].w;
  };
  ASSAY_UNROLL
  for (int half = 0; half < 2; ++half) { /* two keys, 8 apart */
    if constexpr (is_fp8<KV>::value) {
      const uint32_t codes = byte_permute(of(2 * half), of(2 * half + 1), i % 2 != 0 ? 0x7362u : 0x5140u);
      a[2 * half] = stream_decode<KV>(codes & 0xFFFFu);
      a[2 * half + 1] = stream_decode<KV>(codes >> 16);
    } else {
      a[2 * half] = byte_permute(of(2 * half), of(2 * half + 1), 0x5410u);
      a[2 * half + 1] = byte_permute(of(2 * half), of(2 * half + 1), 0x7632u);
    }
  }
}

/* Adds the products of unit u of V and the weights to sum. */
template <class T, class KV, int D, int heads>
__device__ __forceinline__ void stream_add_unit(const stream_slot &v, const stream_weights<heads> &weights, int u,
                                                stream_sums<D, heads> &sum) {
  constexpr int steps = stream_width<KV> / 2;
  ASSAY_UNROLL
  for (int i = 0; i < steps; ++i) {
    uint32_t a[4];
    stream_unit_values<KV>(v, i, a);
    ASSAY_UNROLL
    for (int c = 0; c < stream_column_sets<heads>; ++c) {
      ASSAY_UNROLL
      for (int set = 0; set < stream_sets<heads>; ++set)
        mma_m16n8k16<T>(sum[c * (stream_size<D> / 16) + steps * u + i], a, weights[c][set]);
    }
  }
}

/* Puts the weights' fragments of this lane to shared memory, or gets them from there. at: this lane's first. */
template <int heads>
__device__ __forceinline__ void stream_put_fragments(const stream_weights<heads> &weights, uint2 *at) {
  ASSAY_UNROLL
  for (int i = 0; i < stream_column_sets<heads> * stream_sets<heads>; ++i) {
    const uint32_t(&pair)[2] = weights[i / stream_sets<heads>][i % stream_sets<heads>];
    at[32 * i] = make_uint2(pair[0], pair[1]);
  }
}
template <int heads>
__device__ __forceinline__ void stream_get_fragments(stream_weights<heads> &weights, const uint2 *at) {
  ASSAY_UNROLL
  for (int i = 0; i < stream_column_sets<heads> * stream_sets<heads>; ++i) {
    const uint2 pair = at[32 * i];
    weights[i / stream_sets<heads>][i % stream_sets<heads>][0] = pair.x;
    weights[i / stream_sets<heads>][i % stream_sets<heads>][1] = pair.y;
  }
}

/* ---- the walk ----------------------------------------------------------------------------------------- */

/* Loads the first units of a run's first block, if it has one; the table maps the block to `block`. sparse: V is loaded
 * only when its weights are known. */
template <bool sparse, class KV, int D, int heads>
__device__ __forceinline__ void stream_first_units(const attention_params &a, const stream_run &run, int64_t block,
                                                   stream_ring<KV, D, heads> &ring) {
  constexpr int units = stream_units<KV, D>;
  if (run.begin >= run.end) return;
  stream_reader<KV, D, heads> reader;
  reader.begin(a, run);
  const int32_t n = run.begin;
  const uint32_t seen = sparse ? 0u : stream_visible(run, stream_keys * n, reader.lane);
  ASSAY_UNROLL
  for (int s = 0; s < stream_ring_units<KV, D, heads>; ++s) {
    if (s < units)
      reader.keys(a.cache, block, n, stream_left(run, n), s, ring[s]);
    else if (!sparse)
      reader.values(a.cache, block, n, seen, s - units, ring[s]);
  }
}

/* K of the last keys of the block before a run, which a weigher with a halo needs. */
template <class KV, int D> using stream_edge = stream_slot[stream_units<KV, D>];

/* Loads the last `halo` keys of the block before a run that does not begin with its row. */
template <int halo, class KV, int D, int heads>
__device__ __forceinline__ void stream_load_edge(const attention_params &a, const stream_run &run,
                                                 stream_edge<KV, D> &edge) {
  if (run.begin >= run.end || run.begin == run.origin) return;
  stream_reader<KV, D, heads> reader;
  reader.begin(a, run);
  const int64_t block = stream_block_of(a.cache, run, run.begin - 1, 0);
  ASSAY_UNROLL
  for (int u = 0; u < stream_units<KV, D>; ++u)
    reader.template keys<stream_keys - halo>(a.cache, block, run.begin - 1, stream_keys - 1, u, edge[u]);
}

/* Gives the scores of these keys to the weigher, if there are any. q must be in `shared`. */
template <class T, class KV, int D, int heads, class Weigher>
__device__ __forceinline__ void stream_score_edge(const stream_run &run, const stream_edge<KV, D> &edge,
                                                  const float *shared, Weigher &weigher) {
  if (run.begin >= run.end || run.begin == run.origin) return;
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
  const uint4 *const query = reinterpret_cast<const uint4 *>(shared + stream_query_at<heads>) + lane;
  stream_chains<heads> score = {};
  stream_kept<heads> kept;
  ASSAY_UNROLL
  for (int u = 0; u < stream_units<KV, D>; ++u)
    stream_score_unit<T, KV, D, heads>(edge[u], query, u, score);
  stream_finish<KV, D, heads>(score, lane, kept);
  weigher.edge(kept, stream_keys * (run.begin - 1));
}

/* Adds p v of the run's keys to sum. The first units of the run's first block must be in the ring, and q in `shared`.
 * `weigher` is that of stream_walk_sparse or of stream_walk_dense.
 *
 * block, next: physical blocks of the run's first two blocks. pace: stream_pace or stream_no_pace. */
template <bool sparse, class T, class KV, int D, int heads, class Weigher, class Pace>
__device__ __forceinline__ void
stream_walk_any(const attention_params &a, const stream_run &run, stream_ring<KV, D, heads> &ring, int64_t block,
                int64_t next, float *shared, Weigher &weigher, stream_sums<D, heads> &sum, Pace pace) {
  constexpr int units = stream_units<KV, D>, room = stream_ring_units<KV, D, heads>;
  constexpr bool lean = stream_lean<D, heads>;
  static_assert(2 * units % room == 0 && (room == 2 * units || room <= units),
                "a unit has the same slot in all blocks");
  constexpr int32_t size = stream_keys * heads; /* weights of a block */
  const paged_cache &cache = a.cache;
  stream_reader<KV, D, heads> reader;
  reader.begin(a, run);
  const int32_t lane = reader.lane, step = run.step;
  const uint4 *const query = reinterpret_cast<const uint4 *>(shared + stream_query_at<heads>) + lane;
  uint2 *const fragments = reinterpret_cast<uint2 *>(shared + stream_weights_at<KV, D, heads>) + lane;
  int32_t put = 0; /* where the weights of this block go; the previous ones are next to them */
  for (int32_t n = run.begin; n < run.end; n += step) {
    const bool more = n + step < run.end;
    uint32_t seen = sparse ? 0u : stream_visible(run, stream_keys * n, lane);
    stream_chains<heads> score = {};
    stream_kept<heads> kept;
    ASSAY_UNROLL
    for (int u = 0; u < units; ++u) {
      stream_score_unit<T, KV, D, heads>(ring[u % room], query, u, score);
      if constexpr (lean) stream_keep_apart(); /* no unit begins before the last one's end */
      const int then = u + room;               /* counted from this block's first unit */
      if (then < units)
        reader.keys(cache, block, n, stream_left(run, n), then, ring[u % room]);
      else if (then < 2 * units && !sparse)
        reader.values(cache, block, n, seen, then - units, ring[u % room]);
      else if (then >= 2 * units && more)
        reader.keys(cache, next, n + step, stream_left(run, n + step), then - 2 * units, ring[u % room]);
    }
    stream_finish<KV, D, heads>(score, lane, kept);
    weigher.keep(kept, stream_keys * n);
    const int32_t after = stream_block_of(cache, run, n + 2 * step, run.begin);
    if constexpr (sparse) {
      seen = weigher.weigh(kept, stream_keys * n, shared + put, sum);
      ASSAY_UNROLL
      for (int u = 0; u < units && u < room; ++u)
        reader.values(cache, block, n, seen, u, ring[(units + u) % room]);
    } else {
      weigher.weigh(kept, shared + put, sum);
    }
    __syncwarp(); /* the new weights are written; the previous ones are used up */
    stream_weights<heads> weights;
    stream_cut<T, heads>(shared + put, lane, weights);
    if constexpr (lean) {
      stream_put_fragments<heads>(weights, fragments);
      stream_keep_apart(); /* the fragments are read again for every unit */
    }
    const uint32_t seen_next = sparse || !more ? 0u : stream_visible(run, stream_keys * (n + step), lane);
    pace.hold(more);
    ASSAY_UNROLL
    for (int u = 0; u < units; ++u) {
      stream_slot &slot = ring[(units + u) % room];
      if constexpr (lean) stream_get_fragments<heads>(weights, fragments);
      stream_add_unit<T, KV, D, heads>(slot, weights, u, sum);
      if constexpr (lean) stream_keep_apart(); /* no unit begins before the last one's end */
      const int then = units + u + room;
      if (then < 2 * units)
        reader.values(cache, block, n, seen, then - units, slot);
      else if (then < 3 * units && more)
        reader.keys(cache, next, n + step, stream_left(run, n + step), then - 2 * units, slot);
      else if (then >= 3 * units && !sparse && more)
        reader.values(cache, next, n + step, seen_next, then - 3 * units, slot);
    }
    pace.abreast();
    put = size - put;
    block = next;
    next = after;
  }
}

} // namespace ASSAY_NS
#endif
