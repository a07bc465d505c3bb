/* key_lanes.cuh: rows one by one on CUDA cores, those of decode and a few of ragged batches, for every type, layout,
 * head size and group. A thread block has one row, one kv head and one split of the keys. The group's query heads share
 * what it reads. 4, 8 or 16 lanes share the q . k of a key. Each lane has some channels of the key, in loads of up to
 * 16 bytes, and the same channels of the queries in registers. Heads are handled in passes of as many as the registers
 * hold. Passes after the first find K and V in L1 or L2.
 *
 * A split is one or more tiles of 128 keys. For each tile the scores come first, then the weights, then the sum over V
 * of the keys that some head of the pass needs. The sum stays in registers from tile to tile. Another launch adds the
 * splits in their order. The number of tiles and splits follows from rows, heads and the tables' capacity, never from
 * lengths. An operator defines what it does with a score by its Weights:
 *
 *   begin(p, head, here, own, common)  a pass of `here` heads begins; own: the head whose scores this lane finishes
 *   overlap(p)                         number of scores that a tile needs to the left of its first key
 *   sees(p, here, t, last)             whether some head sees key t
 *   score(p, dot, seen, t, last)       the own head's score from its q . k
 *   publish(common), weighing(p, ...)  the block's scores of a tile are complete: called before and after a barrier
 *   weigh(p, h, score)                 a key's weight from its score and those to the left of it
 *   shrink(h)                          factor for the sums of the previous tiles
 *   close(common)                      all tiles are added
 *   result(p, s, h, head, sum)         the result of a sum over V
 *   finish(p, s, h, at, split)         stores everything else */
#ifndef ASSAY_GPU_LIB_KEY_LANES_CUH
#define ASSAY_GPU_LIB_KEY_LANES_CUH

#include "gpu/lib/schedules.cuh"

namespace ASSAY_NS {

/* ---- sizes ------------------------------------------------------------------------------------------ */

constexpr int32_t key_lanes_threads = 128; /* per block, at most */
constexpr int32_t key_lanes_tile = 128;
constexpr int32_t key_lanes_halo = 8; /* room to the left of a tile's scores */
constexpr int32_t key_lanes_words = key_lanes_tile / 32;

/* Returns the number of heads per pass: 64 registers for the queries' channels of a lane, and at most four heads.
 * channels: a class of D and D_v. */
__host__ __device__ constexpr int32_t key_lanes_heads(int32_t lanes, int32_t channels) {
  const int32_t fit = 64 * lanes / channels;
  return fit < 4 ? fit : 4;
}

/* Returns the number of blocks per multiprocessor: as many as leave room for these registers and those of the
 * softmax. */
__host__ __device__ constexpr int32_t key_lanes_resident(int32_t lanes, int32_t channels) {
  return key_lanes_heads(lanes, channels) * channels / lanes > 32 ? 2 : 3;
}

/* Channels per load of K: 16 bytes, but few enough that every lane has some. */
template <class KV, int lanes, int channels>
constexpr int32_t key_unit = static_cast<int32_t>(16 / sizeof(KV)) < channels / lanes
                                 ? static_cast<int32_t>(16 / sizeof(KV))
                                 : channels / lanes;

/* Channels per load of V: 32 lanes load 128 channels together. */
constexpr int32_t value_unit = 4;

/* The host's decisions about a launch. */
struct key_lanes_shape {
  int32_t lanes;    /* lanes per key */
  int32_t channels; /* class of the larger of D and D_v: 64, 128, 256 */
  int32_t threads;
  int32_t tiles, splits; /* tiles per split; splits */
  bool k_units, v_units; /* whether units of K, and of V, are aligned to their size */
  assay_dtype q;
};

/* ---- elements --------------------------------------------------------------------------------------- */

/* Elements in the form in which they were loaded. An element is extracted where it is used; otherwise each would need a
 * register of its own. */
template <class T, int count> struct elements { uint32_t word[count * sizeof(T) / 4]; };

template <class T, int count> __device__ __forceinline__ T element_of(const elements<T, count> &from, int32_t e) {
  constexpr int32_t each = 4 / sizeof(T);
  const uint32_t word = from.word[e / each] >> (e % each * 8 * static_cast<int32_t>(sizeof(T)));
  if constexpr (sizeof(T) == 4) {
    return float_of(word);
  } else {
    return T{static_cast<decltype(T::bits)>(word)};
  }
}

/* Puts an element in a place that holds 0. */
template <class T, int count> __device__ __forceinline__ void put_element(elements<T, count> &to, int32_t e, T value) {
  constexpr int32_t each = 4 / sizeof(T);
  uint32_t word = 0;
  memcpy(&word, &value, sizeof value);
  to.word[e / each] |= word << (e % each * 8 * static_cast<int32_t>(sizeof(T)));
}

/* Loads elements. `from` must be a multiple of their size, or of 16 bytes. */
template <class T, int count> __device__ __forceinline__ elements<T, count> load_elements(const T *from) {
  elements<T, count> to;
#ifdef ASSAY_SIMT
  if (reinterpret_cast<uintptr_t>(from) % (sizeof to < 16 ? sizeof to : 16) != 0)
    assay_simt->fault("a load that is not aligned to its size", __FILE__, __LINE__);
  memcpy(&to, from, sizeof to);
#else
  if constexpr (sizeof to >= 16) {
    ASSAY_UNROLL
    for (int i = 0; i < static_cast<int>(sizeof to / 16); ++i) {
      const uint4 four = reinterpret_cast<const uint4 *>(from)[i];
      memcpy(to.word + 4 * i, &four, 16);
    }
  } else if constexpr (sizeof to == 8) {
    const uint2 two = *reinterpret_cast<const uint2 *>(from);
    memcpy(to.word, &two, 8);
  } else {
    to.word[0] = *reinterpret_cast<const uint32_t *>(from);
  }
#endif
  return to;
}

/* Read and write element `at` of a tensor of the queries' type, a few times per row. */
__device__ __forceinline__ float load_as(assay_dtype type, const void *from, int64_t at) {
  if (type == ASSAY_F32) return *element_at<float>(from, at);
  return type == ASSAY_F16 ? to_float(*element_at<f16>(from, at)) : to_float(*element_at<bf16>(from, at));
}

__device__ __forceinline__ void store_as(assay_dtype type, void *to, int64_t at, float value) {
  if (type == ASSAY_F32)
    static_cast<float *>(to)[at] = value;
  else if (type == ASSAY_F16)
    static_cast<f16 *>(to)[at] = from_float<f16>(value);
  else
    static_cast<bf16 *>(to)[at] = from_float<bf16>(value);
}

/* ---- scores ----------------------------------------------------------------------------------------- */

/* Adds each of `heads` numbers over a group of lanes. The sum of number h ends in the lanes / heads lanes from h *
 * lanes / heads on. Where lanes have several numbers, half of them go to the other half of the lanes. */
template <int lanes, int heads> __device__ __forceinline__ float sums_of_lanes(float (&value)[heads], int32_t lane) {
  const unsigned mask = group_mask<lanes>();
  ASSAY_UNROLL
  for (int count = heads, step = lanes / 2; step > 0; step /= 2) {
    if (count > 1) {
      count /= 2;
      const bool upper = (lane & step) != 0;
      ASSAY_UNROLL
      for (int i = 0; i < count; ++i) {
        const float given = select_float(upper, value[i], value[i + count]);
        value[i] = select_float(upper, value[i + count], value[i]) + __shfl_xor_sync(mask, given, step);
      }
    } else {
      value[0] += __shfl_xor_sync(mask, value[0], step);
    }
  }
  return value[0];
}

/* Returns channels d .. d + unit - 1 of a key, with 0 after the last channel. A unit that is not aligned to its size is
 * loaded in quads. */
template <class KV, int unit>
__device__ __forceinline__ elements<KV, unit> load_key_unit(const paged_cache &cache, int64_t key, int32_t d, int32_t D,
                                                            bool aligned) {
  const int64_t at = key + k_channel(cache, d);
  if (aligned) return load_elements<KV, unit>(element_at<KV>(cache.k, at));
  elements<KV, unit> to = {};
  ASSAY_UNROLL
  for (int i = 0; i < unit; i += 4) {
    if (d + i >= D) break;
    const quad<KV> four = load_quad(element_at<KV>(cache.k, at + i), cache.quads);
    memcpy(to.word + i * sizeof(KV) / 4, &four, sizeof four);
  }
  return to;
}

/* Writes the scores of the keys from <= t < to, to scores[head * pitch + t - base]. The softmax gives masked keys
 * -inf. */
template <class KV, int lanes, int channels, class Weights>
__device__ __forceinline__ void score_keys(const typename Weights::params &p, const key_lanes_shape &s,
                                           Weights &weights, const row_keys &keys, int32_t kv_head, const float *query,
                                           int32_t here, int32_t from, int32_t to, float *scores, int32_t base) {
  constexpr int32_t heads = key_lanes_heads(lanes, channels), unit = key_unit<KV, lanes, channels>;
  constexpr int32_t units = channels / lanes / unit, pitch = key_lanes_halo + key_lanes_tile;
  constexpr int32_t fit = 128 / static_cast<int32_t>(units * unit * sizeof(KV)); /* bytes in flight per lane */
  constexpr int32_t most = heads < 4 ? 4 : 3, together = fit < 1 ? 1 : fit < most ? fit : most; /* keys */
  const paged_cache &cache = p.a.cache;
  const int32_t thread = static_cast<int32_t>(threadIdx.x), lane = thread % lanes;
  const int32_t groups = static_cast<int32_t>(blockDim.x) / lanes;
  const float k_scale = k_scale_of(cache, kv_head);
  float q[heads][units * unit];
  ASSAY_UNROLL
  for (int h = 0; h < heads; ++h) {
    ASSAY_UNROLL
    for (int i = 0; i < units * unit; ++i)
      q[h][i] = query[h * channels + (i / unit * lanes + lane) * unit + i % unit];
  }

  ASSAY_ROLLED
  for (int32_t first = from + thread / lanes; first < to; first += together * groups) {
    elements<KV, unit> k[together][units];
    bool seen[together];
    ASSAY_UNROLL
    for (int j = 0; j < together; ++j) {
      const int32_t t = first + j * groups;
      seen[j] = t < to && weights.sees(p, here, t, keys.last);
      if (!seen[j]) continue;
      const int64_t key = key_offset(cache, keys.request, kv_head, t);
      ASSAY_UNROLL
      for (int i = 0; i < units; ++i) {
        const int32_t d = (i * lanes + lane) * unit;
        if (d < p.a.D) k[j][i] = load_key_unit<KV, unit>(cache, key, d, p.a.D, s.k_units);
      }
    }
    ASSAY_UNROLL
    for (int j = 0; j < together; ++j) {
      const int32_t t = first + j * groups;
      float sum[heads][4] = {};
      ASSAY_UNROLL
      for (int i = 0; i < units; ++i) {
        if (!seen[j] || (i * lanes + lane) * unit >= p.a.D) continue;
        float full[unit];
        ASSAY_UNROLL
        for (int e = 0; e < unit; ++e)
          full[e] = dequantise(element_of(k[j][i], e), k_scale);
        ASSAY_UNROLL
        for (int h = 0; h < heads; ++h) {
          if (h >= here) break;
          ASSAY_UNROLL
          for (int e = 0; e < unit; ++e)
            sum[h][e % 4] += q[h][i * unit + e] * full[e];
        }
      }
      float dot[heads];
      ASSAY_UNROLL
      for (int h = 0; h < heads; ++h)
        dot[h] = sum_of_quad(sum[h]);
      const float whole = sums_of_lanes<lanes, heads>(dot, lane);
      const int32_t head = lane / (lanes / heads);
      if (t < to && head < here && lane % (lanes / heads) == 0)
        scores[head * pitch + t - base] = weights.score(p, whole, seen[j], t, keys.last);
    }
  }
}

/* ---- the sum over V --------------------------------------------------------------------------------- */

/* The keys of a tile that some head of the pass needs. */
struct live_keys {
  int32_t count;
  const uint32_t *word;  /* one bit per key */
  const int32_t *key;    /* in ascending order, counted from the tile's first key */
  const int64_t *offset; /* offset of channel 0 of their V */
};

/* Adds weights times V. A thread has `value_unit` neighbouring channels of every `rows`-th live key. */
template <class KV, int channels, int heads>
__device__ __forceinline__ void add_units(const attention_params &a, const key_lanes_shape &s, int32_t here,
                                          const live_keys &live, const float *weight, float v_scale,
                                          float (&sum)[heads][value_unit]) {
  constexpr int32_t unit = value_unit, columns = channels / unit, together = 8; /* keys in flight */
  const int32_t thread = static_cast<int32_t>(threadIdx.x), d = thread % columns * unit;
  const int32_t rows = static_cast<int32_t>(blockDim.x) / columns;
  if (d >= a.D_v) return;
  ASSAY_ROLLED
  for (int32_t first = thread / columns; first < live.count; first += together * rows) {
    elements<KV, unit> v[together] = {};
    ASSAY_UNROLL
    for (int j = 0; j < together; ++j) {
      const int32_t i = first + j * rows;
      if (i >= live.count) break;
      const KV *const from = element_at<KV>(a.cache.v, live.offset[i] + d);
      if (s.v_units) {
        v[j] = load_elements<KV, unit>(from);
      } else {
        ASSAY_UNROLL
        for (int e = 0; e < unit; ++e)
          put_element(v[j], e, from[e]);
      }
    }
    ASSAY_UNROLL
    for (int j = 0; j < together; ++j) {
      const int32_t i = first + j * rows;
      if (i >= live.count) break;
      const float *const own = weight + live.key[i] * heads;
      float full[unit];
      ASSAY_UNROLL
      for (int e = 0; e < unit; ++e)
        full[e] = dequantise(element_of(v[j], e), v_scale);
      ASSAY_UNROLL
      for (int h = 0; h < heads; ++h) {
        if (h >= here) break;
        const float w = own[h];
        ASSAY_UNROLL
        for (int e = 0; e < unit; ++e)
          sum[h][e] += w * full[e];
      }
    }
  }
}

/* Does the same in layout x, where a channel's tokens are neighbours. A thread has one or two channels of every
 * `rows`-th group of eight keys. */
template <class KV, int heads>
__device__ __forceinline__ void add_channels(const attention_params &a, const key_lanes_shape &s, int32_t here,
                                             int32_t request, int32_t kv_head, int32_t base, const live_keys &live,
                                             const float *weight, float v_scale, float (&sum)[heads][value_unit]) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  const int32_t width = min(threads, s.channels), rows = threads / width;
  constexpr int32_t together = sizeof(KV) == 4 ? 2 : 4; /* groups of eight keys in flight */
  ASSAY_ROLLED
  for (int32_t first = thread / width; first < key_lanes_tile / 8; first += together * rows) {
    uint32_t bits[together];
    int64_t value[together];
    ASSAY_UNROLL
    for (int j = 0; j < together; ++j) {
      const int32_t eight = first + j * rows, t = base + eight * 8;
      bits[j] = eight < key_lanes_tile / 8 ? live.word[eight / 4] >> (eight % 4 * 8) & 255u : 0;
      if (bits[j] != 0) value[j] = v_offset(a.cache, block_of(a.cache, request, t), slot_of(a.cache, t), kv_head);
    }
    ASSAY_UNROLL
    for (int c = 0; c < 2; ++c) {
      const int32_t d = thread % width + c * width;
      if (d >= a.D_v) break;
      elements<KV, 8> v[together] = {};
      ASSAY_UNROLL
      for (int j = 0; j < together; ++j) {
        if (bits[j] == 0) continue;
        const int64_t at = value[j] + d * a.cache.v_channel;
        if (s.v_units) {
          v[j] = load_elements<KV, 8>(element_at<KV>(a.cache.v, at));
        } else {
          ASSAY_UNROLL
          for (int e = 0; e < 8; ++e)
            if ((bits[j] >> e & 1) != 0) put_element(v[j], e, *element_at<KV>(a.cache.v, at + e * a.cache.v_token));
        }
      }
      ASSAY_UNROLL
      for (int j = 0; j < together; ++j) {
        ASSAY_UNROLL
        for (int e = 0; e < 8; ++e) {
          if ((bits[j] >> e & 1) == 0) continue; /* no head needs it: its V may be anything */
          const float *const own = weight + ((first + j * rows) * 8 + e) * heads;
          const float full = dequantise(element_of(v[j], e), v_scale);
          ASSAY_UNROLL
          for (int h = 0; h < heads; ++h)
            if (h < here) sum[h][c] += own[h] * full;
        }
      }
    }
  }
}

/* ---- the kernel ------------------------------------------------------------------------------------- */

/* Lists the live keys of a tile from one bit per key, and the places of their V. */
__device__ __forceinline__ void list_live(const paged_cache &cache, int32_t request, int32_t kv_head, int32_t base,
                                          const uint32_t *word, int32_t *key, int64_t *offset) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  ASSAY_ROLLED
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < key_lanes_tile; i += static_cast<int32_t>(blockDim.x)) {
    if ((word[i / 32] >> lane & 1) == 0) continue;
    int32_t before = __popc(word[i / 32] & ((1u << lane) - 1u));
    for (int32_t w = 0; w < i / 32; ++w)
      before += __popc(word[w]);
    const int32_t t = base + i;
    key[before] = i;
    offset[before] = v_offset(cache, block_of(cache, request, t), slot_of(cache, t), kv_head);
  }
}

/* Returns the keys that a row sees; an operator with masks of its own has another form. */
template <class Params> __device__ __forceinline__ row_keys keys_seen(const Params &p, int64_t row) {
  return keys_of_row(p.a, row);
}

/* key_lanes: handles one row, one split of its keys, one kv head with all its query heads.
 * Grid:   (N rows, splits, H_kv). A split without visible keys returns at once, unless it is the only one.
 * Block:  32, 64 or 128 threads, no more than a table's capacity needs. For q . k there are 4, 8 or 16 lanes per key,
 * for the weights one thread per key. For the sum over V there is one thread per few channels of every so many keys.
 * Shared: up to 4 KB of queries; 2 KB of weights; 2 to 4 KB of scores and, in their place, the threads' sums; 1.5 KB
 * for the list of live keys.
 * Align:  K and V in loads of up to 16 bytes if base, strides and D are multiples of them. Otherwise K in quads if
 * cache.quads and by element if not, V by element. q and out by element. Arch: any.
 * Limit:  bytes: L * (D + D_v) * sizeof(KV) per row and kv head, with V of live keys only. */
template <class KV, int lanes, int channels, template <int> class Weighing>
__global__ void __launch_bounds__(key_lanes_threads, key_lanes_resident(lanes, channels))
    key_lanes(typename Weighing<1>::params p, key_lanes_shape s) {
  using Weights = Weighing<key_lanes_heads(lanes, channels)>;
  constexpr int32_t heads = key_lanes_heads(lanes, channels), pitch = key_lanes_halo + key_lanes_tile;
  constexpr int32_t unit = value_unit, sums = key_lanes_threads * unit;
  ASSAY_SHARED(float, query, heads *channels);
  ASSAY_SHARED(float, weight, heads *key_lanes_tile);
  ASSAY_SHARED(float, scratch, sums > heads * pitch ? sums : heads * pitch); /* sums of the threads; scores of a tile */
  ASSAY_SHARED(int64_t, offset, key_lanes_tile);
  ASSAY_SHARED(int32_t, key, key_lanes_tile);
  ASSAY_SHARED(uint32_t, word, key_lanes_words);
  ASSAY_SHARED(typename Weights::common, common, 1);
  const attention_params &a = p.a;
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  const int64_t row = blockIdx.x;
  const int32_t split = static_cast<int32_t>(blockIdx.y), kv_head = static_cast<int32_t>(blockIdx.z);
  const row_keys keys = keys_seen(p, row);
  const int32_t first_tile = max(split * s.tiles, keys.first / key_lanes_tile);
  const int32_t end_tile = keys.last < keys.first ? 0 : min((split + 1) * s.tiles, keys.last / key_lanes_tile + 1);
  if (s.splits > 1 && first_tile >= end_tile) return;
  const float v_scale = v_scale_of(a.cache, kv_head);
  const bool by_token = a.cache.v_channel != 1; /* layout x */

  ASSAY_ROLLED
  for (int32_t pass = 0; pass < a.G; pass += heads) {
    const int32_t head = kv_head * a.G + pass, here = min(a.G - pass, heads);
    Weights weights;
    weights.begin(p, head, here, thread % lanes / (lanes / heads), common[0]);
    for (int32_t i = thread; i < heads * channels; i += threads) {
      const int32_t h = i / channels, d = i % channels;
      const bool there = h < here && d < a.D;
      query[i] = there ? load_as(s.q, a.q, query_offset(a, row, head + h) + d) : 0.0f;
    }
    float sum[heads][unit] = {};
    __syncthreads(); /* the queries are written */

    ASSAY_ROLLED
    for (int32_t tile = first_tile; tile < end_tile; ++tile) {
      const int32_t base = tile * key_lanes_tile;
      const int32_t begin = max(base, keys.first), end = min(base + key_lanes_tile, keys.last + 1);
      const int32_t score_begin = max(begin - Weights::overlap(p), keys.first);
      float *const scores = scratch + key_lanes_halo;
      score_keys<KV, lanes, channels>(p, s, weights, keys, kv_head, query, here, score_begin, end, scores, base);
      if (thread < Weights::overlap(p) && begin - 1 - thread < score_begin) /* no key to the left of the first */
        for (int32_t h = 0; h < here; ++h)
          scores[h * pitch + begin - 1 - thread - base] = 0.0f;
      weights.publish(common[0]);
      __syncthreads(); /* the scores of the tile are written */

      weights.weighing(p, head, here, common[0]);
      ASSAY_ROLLED
      for (int32_t i = thread; i < key_lanes_tile; i += threads) {
        const int32_t t = base + i;
        bool any = false;
        ASSAY_UNROLL
        for (int h = 0; h < heads; ++h) {
          const bool visible = h < here && t >= begin && t < end;
          const float w = visible ? weights.weigh(p, h, scores + h * pitch + i) : 0.0f;
          weight[i * heads + h] = w;
          any |= w != 0.0f;
        }
        const uint32_t bits = __ballot_sync(0xffffffffu, any);
        if (thread % 32 == 0) word[i / 32] = bits;
      }
      __syncthreads(); /* the tile's weights and live bits are written; its scores have been read */

      ASSAY_UNROLL
      for (int h = 0; h < heads; ++h) {
        ASSAY_UNROLL
        for (int e = 0; e < unit; ++e)
          sum[h][e] *= weights.shrink(h);
      }
      live_keys live = {0, word, key, offset};
      ASSAY_UNROLL
      for (int i = 0; i < key_lanes_words; ++i)
        live.count += __popc(word[i]);
      if (live.count == 0) continue;
      if (by_token) {
        add_channels<KV, heads>(a, s, here, keys.request, kv_head, base, live, weight, v_scale, sum);
      } else {
        list_live(a.cache, keys.request, kv_head, base, word, key, offset);
        __syncthreads(); /* the list is complete */
        add_units<KV, channels, heads>(a, s, here, live, weight, v_scale, sum);
      }
    }

    weights.close(common[0]);
    constexpr int32_t columns = channels / unit;
    const int32_t width = min(threads, channels);
    const int32_t rows = by_token ? threads / width : threads / columns;
    ASSAY_UNROLL
    for (int h = 0; h < heads; ++h) {
      if (h >= here) break;
      ASSAY_UNROLL
      for (int e = 0; e < unit; ++e) {
        if (!by_token)
          scratch[thread / columns * channels + thread % columns * unit + e] = sum[h][e];
        else if (e < 2 && thread % width + e * width < channels)
          scratch[thread / width * channels + thread % width + e * width] = sum[h][e];
      }
      __syncthreads(); /* the threads' sums are written */
      const int64_t at = row * a.H + head + h;
      for (int32_t d = thread; d < a.D_v; d += threads) {
        float whole = 0.0f;
        for (int32_t r = 0; r < rows; ++r)
          whole += scratch[r * channels + d];
        const float value = weights.result(p, s, h, head + h, whole);
        if (s.splits > 1)
          p.partial[(at * s.splits + split) * a.D_v + d] = value;
        else
          store_as(s.q, a.out, at * a.D_v + d, value);
      }
      if (thread == 0) weights.finish(p, s, h, at, split);
      __syncthreads(); /* the threads' sums and the heads' common data have been read */
    }
  }
}

/* ---- launchers -------------------------------------------------------------------------------------- */

/* Number of rows times kv heads in layout x from which split_keys is faster, where split_keys can run the call. */
constexpr int64_t key_lanes_few_segments = 64;

/* Returns the lanes per key: the fewest with which a pass takes the whole group. */
inline int32_t key_lanes_of(int32_t group, int32_t channels) {
  for (int32_t lanes = 4; lanes < 16; lanes *= 2)
    if (channels / lanes < 64 && key_lanes_heads(lanes, channels) >= (group < 4 ? group : 4)) return lanes;
  return 16;
}

/* Blocks that keep a device of 132 multiprocessors busy: two rounds of four per multiprocessor. */
constexpr int64_t key_lanes_blocks = 2 * 4 * 132;

inline bool multiples_of(const void *base, int64_t strides, int64_t unit, int64_t element) {
  return reinterpret_cast<uintptr_t>(base) % static_cast<uintptr_t>(unit * element) == 0 && strides % unit == 0;
}

inline key_lanes_shape key_lanes_shape_of(const attention_params &a, const attention_types &types) {
  key_lanes_shape s = {};
  const paged_cache &cache = a.cache;
  const int32_t element = static_cast<int32_t>(assay_dtype_size(types.kv));
  s.q = types.q;
  const int32_t widest = a.D > a.D_v ? a.D : a.D_v;
  s.channels = widest <= 64 ? 64 : widest <= 128 ? 128 : 256;
  s.lanes = key_lanes_of(a.G, s.channels);
  const int32_t k_unit = 16 / element < s.channels / s.lanes ? 16 / element : s.channels / s.lanes;
  const int64_t chunk = cache.chunk_shift > 2 ? cache.k_chunk : 0;
  s.k_units =
      a.D % k_unit == 0 && multiples_of(cache.k, cache.k_block | cache.k_head | cache.k_token | chunk, k_unit, element);
  s.v_units = cache.v_channel == 1
                  ? multiples_of(cache.v, cache.v_block | cache.v_head | cache.v_token, value_unit, element)
                  : cache.v_token == 1 && multiples_of(cache.v, 0, element == 4 ? 4 : 8, element) &&
                        (cache.v_block | cache.v_head | cache.v_channel) % 8 == 0;
  /* Enough threads for all channels. */
  const int32_t spread = cache.v_channel == 1 ? s.channels / value_unit : s.channels / 2;
  const int32_t least = spread < 32 ? 32 : spread;
  s.threads = attention_tile(a, key_lanes_threads);
  s.threads = s.threads > 64 ? 128 : s.threads > least ? s.threads : least;
  const int64_t named = a.capacity < INT32_MAX ? a.capacity : INT32_MAX; /* lengths are 32 bits */
  const int64_t segments = a.N * a.H_kv, all = (named + key_lanes_tile - 1) / key_lanes_tile;
  const int64_t wanted = segments > 0 ? key_lanes_blocks / segments : 1;
  const int64_t most = wanted < 1 ? 1 : wanted < all ? wanted : all < 1 ? 1 : all;
  s.tiles = static_cast<int32_t>(all < 1 ? 1 : (all + most - 1) / most);
  s.splits = static_cast<int32_t>(all < 1 ? 1 : (all + s.tiles - 1) / s.tiles);
  return s;
}

/* Refuses calls that are declined, and sets the workspace: `floats` f32 for each (row, head, split), if there are
 * several splits. Ragged batches are taken only if they have few rows and split_keys does not take them. */
inline assay_status key_lanes_plan(const attention_params &a, const key_lanes_shape &s, int32_t floats, int64_t *bytes,
                                   assay_error *error) {
  ASSAY_TRY(expect_few_lines(a, error));
  if (a.cu_q != NULL && splits_take(a))
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                      "cu_q: found a tensor, allowed none with D = %d: split_keys takes ragged rows", a.D);
  if (a.cache.v_channel != 1 && a.N * a.H_kv >= key_lanes_few_segments && splits_take(a))
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                      "N: found %" PRId64 " rows of %d kv heads in layout x, allowed fewer than %" PRId64
                      " rows and kv heads where split_keys takes them",
                      a.N, a.H_kv, key_lanes_few_segments);
  *bytes = s.splits > 1 ? static_cast<int64_t>(sizeof(float)) * floats : 0;
  if (multiply(bytes, a.N) && multiply(bytes, a.H) && multiply(bytes, s.splits)) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                    "N: found %" PRId64 " rows with %d splits, allowed what a 63-bit workspace size holds", a.N,
                    s.splits);
}

/* Returns the threads of the launch that adds the splits: one per channel. */
inline int32_t key_lanes_merge_threads(const attention_params &a) {
  return (a.D_v + 31) / 32 * 32;
}

/* Returns the contract. K and V are rounded to f32 after dequantisation; scores, weights and sums stay in f32. A lane
 * has four sums of a q . k; with D = 8 all channels may belong to one lane. In layout x one thread may add all keys of
 * a split. The number of rows of a call shows in the splits. */
constexpr assay_contract key_lanes_contract(double exp_ulp) {
  return {.k = ASSAY_F32,
          .v = ASSAY_F32,
          .exp_ulp = exp_ulp,
          .qk_lanes = 4,
          .pv_lanes = 1,
          .zero_p_v = ASSAY_V_SKIPPED_FOR_GROUP,
          .run_to_run = true,
          .renumbering = true,
          .permutation = true,
          .lanes = 1};
}

inline void key_lanes_path(const attention_params &a, const key_lanes_shape &s, assay_env *env) {
  (void)snprintf(env->path, sizeof env->path, "key_lanes lanes=%d heads=%d threads=%d tiles=%d splits=%d D=%d%s",
                 s.lanes, key_lanes_heads(s.lanes, s.channels), s.threads, s.tiles, s.splits, a.D, cache_word(a));
}

/* Calls use(type_tag<KV>). */
template <class Use> assay_status with_cached(assay_dtype kv, Use use) {
  if (kv == ASSAY_F32) return use(type_tag<float>());
  if (kv == ASSAY_E4M3) return use(type_tag<e4m3>());
#ifndef ASSAY_FEW_TYPES
  if (kv == ASSAY_F16) return use(type_tag<f16>());
  if (kv == ASSAY_E5M2) return use(type_tag<e5m2>());
#endif
  return use(type_tag<bf16>());
}

template <template <int> class Weighing>
assay_status launch_key_lanes(const typename Weighing<1>::params &p, const attention_types &types,
                              const key_lanes_shape &s, assay_env *env, assay_error *error) {
  const launch_extent grid(p.a.N, s.splits, p.a.H_kv);
  return with_cached(types.kv, [&](auto kv) {
    using KV = typename decltype(kv)::type;
    const auto of = [&](auto *kernel) { return ASSAY_LAUNCH(error, kernel, grid, s.threads, 0, env->stream, p, s); };
    if (s.channels == 64) return of(key_lanes<KV, 4, 64, Weighing>); /* the shapes that key_lanes_of can choose */
    if (s.channels == 128)
      return s.lanes == 4 ? of(key_lanes<KV, 4, 128, Weighing>) : of(key_lanes<KV, 8, 128, Weighing>);
    return s.lanes == 8 ? of(key_lanes<KV, 8, 256, Weighing>) : of(key_lanes<KV, 16, 256, Weighing>);
  });
}

} // namespace ASSAY_NS
#endif
