/* stream.cuh: decode attention that streams K and V, independent of what is done with a score.
 *
 * A warp walks alone over a run of blocks of 16 keys of one (request, kv head). The run has consecutive blocks or,
 * where a block needs nothing from the one before, every n-th block. In the second case n warps read side by side.
 * There is no barrier until the run is over. K is loaded by 16-byte loads straight into the A fragments of mma
 * m16n8k16. The order of k inside an mma is free. The 16 bytes of a lane are therefore two k-steps, and q is loaded in
 * the same order. The eight columns hold the heads of the group, repeated. A group of another size takes the next
 * larger number of heads, and its last head stands in the columns that are left over. With g = lane / 4, j = lane mod
 * 4, and 2, 4 or 8 different `heads`:
 *
 *   K      keys g and g + 8, channels 32 i + 8 j .. + 7
 *   q      head g mod heads, the same channels
 *   score  element 2 h + e: key g + 8 h, column 2 j + e
 *   V      keys j, j + 8, j + 4, j + 12, channels 64 p + 8 g .. + 7; where 32 channels are left, 4 g .. + 3 of them
 *
 * Sixteen heads are two sets of columns, and K of a block is multiplied with both while it is in the registers. A lane
 * then keeps four heads that are adjacent: column 2 j + e of set s has head 4 j + 2 s + e.
 *
 * Such a load of K asks for half a line of each of eight keys, and L2 answers twice per line. Where columns are left
 * over (`halved`), a load asks for whole lines of four keys instead. A row of the mma is then half of a key's channels,
 * and a column has the same half of q. Products with the other half are not used. The two halves of a score are added
 * by shuffles. With s the set of eight keys and half(n) = n / heads mod 2:
 *
 *   K      set s: keys 8 s + 2 (g / 2) and, in the lower rows, the next one; channels 64 i + 32 (g mod 2) + 8 j .. + 7
 *   q      head g mod heads, channels 64 i + 32 half(g) + 8 j .. + 7
 *   score  set s, element 2 h + e: key 8 s + 2 (g / 2) + h, column 2 j + e, of use where half(2 j + e) is g mod 2
 *
 * Each lane keeps one copy of a score that no other lane keeps (stream_held). Weights go to the warp's own shared
 * memory. One ballot can tell every lane which keys any head needs. The sum of p v is an mma too, with channels as
 * rows. p is cut into three parts of T's width that together are the f32 p. The parts have columns of their own as far
 * as there are columns, and are added at the end. Which values of V are read, and when, is up to the walk
 * (stream_walk.cuh).
 *
 * T is the type of q, of the mma and of out. KV is the type of the cache: T itself, or fp8 with T = bf16. Every fp8
 * number is a bf16, so codes are loaded and held as codes, and decoded where they are used. The factors of the codes
 * are applied to the scores and the sums. A lane's 16 bytes are then 16 channels, which are four k-steps:
 *
 *   K         keys g and g + 8, channels 64 i + 16 j .. + 15
 *   K halved  with D = 128: set s, channels 64 (g mod 2) + 16 j .. + 15
 *   V         keys j, j + 8, j + 4, j + 12, channels D / 8 g .. + D / 8 - 1: 16 bytes; with D = 64, 8 bytes */
#ifndef ASSAY_GPU_LIB_STREAM_CUH
#define ASSAY_GPU_LIB_STREAM_CUH

#include "gpu/lib/attention.h"
#include "gpu/lib/paged.cuh"
#include "gpu/lib/ptx_async.cuh"
#include "gpu/lib/ptx_mma.cuh"
#include "gpu/lib/rows.cuh"
#include "gpu/lib/types.cuh"

namespace ASSAY_NS {

constexpr int stream_keys = 16; /* keys per block of the walk */
constexpr unsigned all_lanes = 0xffffffffu;
constexpr int64_t stream_multiprocessors = 132; /* as on an H200; elsewhere the plan is correct but not as fast */

/* Kernels for D = 64, 96 and 128 know the channels of a head when they are compiled. The others are compiled for the
 * most channels that they take, and take every multiple of 16 up to that number (stream_any.cuh). stream_size: the
 * channels that registers and shared memory have room for. */
template <int D> constexpr bool stream_any = D == 80 || D == 112 || D == 192 || D == 256;
template <int D> constexpr int stream_size = D == 112 ? 128 : D;

/* Returns the channels of a head. */
template <int D> __device__ __forceinline__ int32_t stream_channels(const attention_params &a) {
  return stream_any<D> ? a.D : D;
}

/* ---- a run ------------------------------------------------------------------------------------------- */

/* A run: blocks begin, begin + step, ... < end of 16 keys each. The row begins in block `origin`. */
struct stream_run {
  int32_t request, kv_head, first, last; /* first and last are keys */
  int32_t origin, begin, end, step;
};

/* The part of a (row, kv head) that a thread block has: one split of it, or all of it. Splits of a cluster are
 * adjacent, with grid (segments * splits). Other splits are not, with grid (segments, splits). */
struct stream_place {
  int64_t segment; /* row * H_kv + kv head */
  int32_t row, kv_head;
  uint32_t split, splits;
};

/* Returns the part of this thread block. cluster: thread blocks per cluster; 1 means that there are no clusters. */
__device__ __forceinline__ stream_place stream_place_of(const attention_params &a, int32_t cluster) {
  uint32_t segment = blockIdx.x, split = blockIdx.y, splits = gridDim.y;
  if (cluster > 1) {
    splits = static_cast<uint32_t>(cluster);
    segment = blockIdx.x / splits;
    split = blockIdx.x - segment * splits;
  }
  const uint32_t H_kv = static_cast<uint32_t>(a.H_kv), row = segment / H_kv;
  return {segment, static_cast<int32_t>(row), static_cast<int32_t>(segment - row * H_kv), split, splits};
}

/* Returns the run of this warp, among all warps of all splits. It is an even share of the row's blocks. With `apart`
 * and n warps it is every n-th block. */
template <bool apart>
__device__ __forceinline__ stream_run stream_run_of(const row_keys &keys, const stream_place &at) {
  stream_run run = {keys.request, at.kv_head, keys.first, keys.last, 0, 0, 0, 1};
  if (keys.last < keys.first) return run;
  run.origin = keys.first / stream_keys;
  const int32_t blocks = keys.last / stream_keys + 1 - run.origin;
  const uint32_t warps = blockDim.x / 32, number = at.split * warps + threadIdx.x / 32, all = at.splits * warps;
  if (apart) {
    run.begin = run.origin + static_cast<int32_t>(number);
    run.end = run.origin + blocks;
    run.step = static_cast<int32_t>(all);
  } else { /* the first `longer` shares have one more block */
    const uint32_t each = static_cast<uint32_t>(blocks) / all, longer = static_cast<uint32_t>(blocks) % all;
    run.begin = run.origin + static_cast<int32_t>(each * number + min(number, longer));
    run.end = run.begin + static_cast<int32_t>(each + (number < longer ? 1 : 0));
  }
  return run;
}

/* ---- before it is this launch's turn ------------------------------------------------------------------ */

/* Returns whether this thread block may be among the first of its launch, at most four per multiprocessor. The others
 * begin when one of these has ended. It is then their turn, and what comes before dependency_wait() would cost time. */
__device__ __forceinline__ bool stream_is_first() {
  return blockIdx.x < 4 * stream_multiprocessors;
}

/* Prefetches the lines that hold this row's length and table, so that neither has to wait for the other. It reads
 * nothing, so it may come before dependency_wait(). A run uses few lines of a long table. */
__device__ __forceinline__ void stream_ask(const attention_params &a, const stream_place &at) {
  constexpr int32_t entries = 32, most = 64; /* entries per line; most lines that are prefetched */
  const int64_t in_table = (a.capacity + (INT64_C(1) << a.cache.block_shift) - 1) >> a.cache.block_shift;
  const int32_t line = static_cast<int32_t>(threadIdx.x);
  if (line == 0) prefetch_l2(a.length + at.row);
  if (line < most && static_cast<int64_t>(line) * entries < in_table)
    prefetch_l2(a.cache.table + at.row * a.cache.table_row + line * entries);
}

/* Returns the block in which this warp's run begins if no length decides it, else -1. */
template <bool apart>
__device__ __forceinline__ int32_t stream_known_begin(const attention_params &a, const stream_place &at) {
  const int32_t number = static_cast<int32_t>(at.split * (blockDim.x / 32) + threadIdx.x / 32);
  return apart && a.window == 0 && stream_keys * number < a.capacity ? number : -1;
}

/* Returns the row's last key, counted from the first key of block n. Keys after it need not exist. */
__device__ __forceinline__ int32_t stream_left(const stream_run &run, int32_t n) {
  return run.last - stream_keys * n;
}

/* Prefetches the lines of a block's keys or values. They are rows of `channels` elements, `token` elements apart, from
 * element `at` of the pool. `last` is the last of the 16 rows to prefetch. */
template <class KV, int D>
__device__ __forceinline__ void stream_ask_lines(const void *pool, int64_t at, int64_t token, int32_t last,
                                                 [[maybe_unused]] int32_t channels) {
  constexpr int32_t line = 128 / static_cast<int32_t>(sizeof(KV));                              /* elements per line */
  const int32_t lines = stream_any<D> ? (channels + line - 1) / line : D > line ? D / line : 1; /* per key */
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
  if (lane % stream_keys > last) return;
  const KV *const from = element_at<KV>(pool, at + lane % stream_keys * token);
  ASSAY_UNROLL
  for (int32_t i = lane / stream_keys; i < lines; i += 32 / stream_keys)
    prefetch_l2(from + line * i);
}

/* Returns whether the keys of a run lie in the pool, if the table gives `block` for the first key. With contiguous keys
 * all keys of the run are checked. */
__device__ __forceinline__ bool stream_in_pool(const paged_cache &cache, const stream_run &run, int64_t block) {
  const bool contiguous = cache.block_shift == contiguous_shift;
  return block >= 0 && block + (contiguous ? run.last : 0) < cache.blocks;
}

/* Prefetches the keys of a run's first block, which the table maps to `block`. */
template <class KV, int D>
__device__ __forceinline__ void stream_ask_keys(const attention_params &a, const stream_run &run, int64_t block) {
  const paged_cache &cache = a.cache;
  if (!stream_in_pool(cache, run, block)) return;
  const int64_t slot = stream_keys * run.begin & ((1 << cache.block_shift) - 1);
  stream_ask_lines<KV, D>(cache.k, block * cache.k_block + slot * cache.k_token + run.kv_head * cache.k_head,
                          cache.k_token, stream_left(run, run.begin), a.D);
}

/* Prefetches the values of the same block. */
template <class KV, int D>
__device__ __forceinline__ void stream_ask_values(const attention_params &a, const stream_run &run, int64_t block) {
  const paged_cache &cache = a.cache;
  if (!stream_in_pool(cache, run, block)) return;
  const int64_t slot = stream_keys * run.begin & ((1 << cache.block_shift) - 1);
  stream_ask_lines<KV, D>(cache.v, block * cache.v_block + slot * cache.v_token + run.kv_head * cache.v_head,
                          cache.v_token, stream_left(run, run.begin), a.D);
}

/* Returns the keys of a row by its length as it is before dependency_wait(). The length may be out of date or any
 * number. These keys decide only which lines are prefetched. Returns no keys if the table could not name them. */
__device__ __forceinline__ row_keys early_keys_of_row(const attention_params &a, int32_t row) {
  const int32_t length = load_early(a.length + row);
  if (length <= 0 || length > a.capacity) return {row, 0, -1};
  return {row, a.window > 0 ? max(length - a.window, 0) : 0, length - 1};
}

/* Prefetches the keys of this warp's first block. It comes before dependency_wait(), when the last blocks of the
 * previous launch leave memory idle. The length and the table's entry may therefore be out of date or any number. The
 * prefetched lines always lie in the pool. */
template <class KV, int D, bool apart>
__device__ __forceinline__ void stream_ask_first(const attention_params &a, const stream_place &at) {
  const paged_cache &cache = a.cache;
  const int32_t *const table = cache.table + at.row * cache.table_row;
  const int32_t known = stream_known_begin<apart>(a, at), shift = cache.block_shift - 4;
  int64_t block = known >= 0 ? load_early(table + (known >> shift)) : 0; /* loaded at the same time as the length */
  const stream_run run = stream_run_of<apart>(early_keys_of_row(a, at.row), at);
  if (run.begin >= run.end) return;
  if (known < 0) block = load_early(table + (run.begin >> shift));
  stream_ask_keys<KV, D>(a, run, block);
}

/* Returns the physical block of block n of the walk, or 0 outside begin .. end - 1. */
__device__ __forceinline__ int32_t stream_block_of(const paged_cache &cache, const stream_run &run, int32_t n,
                                                   int32_t begin) {
  const int32_t *const row = cache.table + run.request * cache.table_row;
  return n >= begin && n < run.end ? row[n >> (cache.block_shift - 4)] : 0;
}

/* The table's entries for a run's first two blocks, read while the row's length is still being loaded. They are valid
 * as far as the run has these blocks. */
struct stream_entries {
  int32_t begin, block, next; /* begin: stream_known_begin; -1 if nothing was read */
};
template <bool apart>
__device__ __forceinline__ stream_entries stream_entries_of(const attention_params &a, const stream_place &at) {
  stream_entries entries = {stream_known_begin<apart>(a, at), 0, 0};
  if (entries.begin < 0) return entries;
  const int32_t *const table = a.cache.table + at.row * a.cache.table_row;
  const int32_t second = entries.begin + static_cast<int32_t>(at.splits * (blockDim.x / 32));
  const int32_t shift = a.cache.block_shift - 4;
  entries.block = table[entries.begin >> shift];
  if (stream_keys * second < a.capacity) entries.next = table[second >> shift];
  return entries;
}

/* ---- codes ------------------------------------------------------------------------------------------- */

/* Returns the two fp8 codes in the lower half of `codes` as bf16. The conversion is exact, including NaN and
 * infinities. */
template <class KV> __device__ __forceinline__ uint32_t stream_decode(uint32_t codes) {
#ifdef ASSAY_SIMT
  const KV low = {static_cast<uint8_t>(codes)}, high = {static_cast<uint8_t>(codes >> 8)};
  return bits_of(to_float(low)) >> 16 | (bits_of(to_float(high)) & 0xFFFF0000u);
#else
  __half2_raw pair;
  if constexpr (std::is_same_v<KV, e4m3>) {
    pair = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3);
  } else {
    const uint32_t both = byte_permute(codes, 0u, 0x1404u); /* each code becomes the upper byte of an f16 */
    memcpy(&pair, &both, sizeof pair);
  }
  const float2 f = __half22float2(__half2(pair));
  return pack_pair<bf16>(f.x, f.y);
#endif
}

/* The factor by which q . k of the stored numbers is multiplied: `base` times the factor of the codes. The product is
 * kept in two parts, so a score is rounded only once, with fp8 as without. */
template <class KV> struct stream_factor {
  float high;
  __device__ __forceinline__ void begin(float base, const attention_params &, int32_t) { high = base; }
  __device__ __forceinline__ float times(float x) const { return x * high; }
};
struct stream_factor_of_codes {
  float high, low;
  __device__ __forceinline__ void begin(float base, const attention_params &a, int32_t kv_head) {
    const float k_scale = k_scale_of(a.cache, kv_head);
    high = base * k_scale;
    low = fmaf(base, k_scale, -high);
  }
  __device__ __forceinline__ float times(float x) const {
    const float product = x * high;
    return fabsf(product) <= 3.40282347e38f ? fmaf(x, high, x * low) : product; /* an infinity has no second part */
  }
};
template <> struct stream_factor<e4m3> : stream_factor_of_codes {};
template <> struct stream_factor<e5m2> : stream_factor_of_codes {};

/* Returns a sum over V of the stored numbers, multiplied by the factor of V. */
template <class KV>
__device__ __forceinline__ float stream_value(float sum, const attention_params &a, int32_t kv_head) {
  if constexpr (is_fp8<KV>::value) return sum * v_scale_of(a.cache, kv_head);
  return sum;
}

/* ---- K, q, V ----------------------------------------------------------------------------------------- */

template <class KV> constexpr int stream_width = 16 / static_cast<int>(sizeof(KV)); /* elements in 16 bytes */

/* Tells whether there are columns for two halves, and lines to read whole. */
template <class KV, int D, int heads>
constexpr bool stream_halved = heads <= 4 && D *static_cast<int>(sizeof(KV)) % 128 == 0;

/* Sets of eight columns, and the steps of the sums of all sets. */
template <int heads> constexpr int stream_column_sets = heads == 16 ? 2 : 1;
template <int D, int heads> constexpr int stream_steps = stream_size<D> / 16 * stream_column_sets<heads>;
template <int D, int heads> using stream_sums = float[stream_steps<D, heads>][4]; /* a lane's sums of p v */

/* Returns the head in column g of a set. */
template <int heads> __device__ __forceinline__ int32_t stream_head_of_column(int32_t g, int32_t set) {
  return heads == 16 ? g / 2 * 4 + 2 * set + g % 2 : g % heads;
}

/* The upper rows of the A fragments (low) and the lower ones (high). If halved: [set][line]. */
template <class KV, int D, int heads> struct stream_fragment {
  static constexpr bool halved = stream_halved<KV, D, heads>;
  static constexpr int count = D / (4 * stream_width<KV>), lines = count / 2;
  uint4 low[count], high[count];

  /* Return distances in elements: lane_offset from the block's first key to this lane's low[0], step from there to
   * low[i], step_down from low[i] to high[i]. */
  __device__ __forceinline__ static int64_t lane_offset(const paged_cache &cache, int32_t lane) {
    const int32_t g = lane / 4, j = lane % 4;
    if constexpr (halved) return g / 2 * 2 * cache.k_token + stream_width<KV> * (g % 2 * 4 + j);
    return g * cache.k_token + stream_width<KV> * j;
  }
  __device__ __forceinline__ static int64_t step(const paged_cache &cache, int i) {
    if constexpr (halved) return i / lines * 8 * cache.k_token + i % lines * 8 * stream_width<KV>;
    return 4 * stream_width<KV> * i;
  }
  __device__ __forceinline__ static int64_t step_down(const paged_cache &cache) { return keys_down * cache.k_token; }

  /* key() returns the key of low[i]. The key of high[i] is keys_down after it. */
  static constexpr int32_t keys_down = halved ? 1 : 8;
  __device__ __forceinline__ static int32_t key(int32_t lane, int i) {
    return halved ? i / lines * 8 + lane / 8 * 2 : lane / 4;
  }
};

/* Loads keys up to key `last`, counted from the block's first key. Registers of later keys keep their contents. at:
 * this lane's first channel of its first key. */
template <class KV, int D, int heads>
__device__ __forceinline__ void stream_load_keys(const paged_cache &cache, int64_t at, int32_t last, int32_t lane,
                                                 stream_fragment<KV, D, heads> *k) {
  using fragment = stream_fragment<KV, D, heads>;
  const KV *const low = element_at<KV>(cache.k, at), *const high = element_at<KV>(low, fragment::step_down(cache));
  ASSAY_UNROLL
  for (int i = 0; i < fragment::count; ++i)
    load_stream_16_if(&k->low[i], low + fragment::step(cache, i), fragment::key(lane, i) <= last);
  ASSAY_UNROLL
  for (int i = 0; i < fragment::count; ++i)
    load_stream_16_if(&k->high[i], high + fragment::step(cache, i),
                      fragment::key(lane, i) + fragment::keys_down <= last);
}

/* Loads only the last `halo` keys of a block. */
template <int halo, class KV, int D, int heads>
__device__ __forceinline__ void stream_load_last_keys(const paged_cache &cache, int64_t at, int32_t lane, bool on,
                                                      stream_fragment<KV, D, heads> *k) {
  using fragment = stream_fragment<KV, D, heads>;
  constexpr int first = fragment::halved ? fragment::lines : 0; /* the second set, or the lower rows */
  ASSAY_UNROLL
  for (int i = first; i < fragment::count; ++i) {
    const int64_t low = at + fragment::step(cache, i);
    const int32_t key = fragment::key(lane, i);
    if (fragment::halved) load_stream_16_if(&k->low[i], element_at<KV>(cache.k, low), on && key >= stream_keys - halo);
    load_stream_16_if(&k->high[i], element_at<KV>(cache.k, low + fragment::step_down(cache)),
                      on && key + fragment::keys_down >= stream_keys - halo);
  }
}

/* Number of this lane's fragments of q, which are in the order of its channels of K: of a set of columns, and of all.
 */
template <class KV, int D, int heads>
constexpr int stream_set_loads = stream_size<D> / (stream_halved<KV, D, heads> ? 64 : 32);
template <class KV, int D, int heads>
constexpr int stream_query_loads = stream_column_sets<heads> *stream_set_loads<KV, D, heads>;

template <class T, class KV, int D, int heads>
__device__ __forceinline__ void stream_load_query(const attention_params &a, int64_t row, int32_t kv_head,
                                                  uint4 (&q)[stream_query_loads<KV, D, heads>]) {
  constexpr bool halved = stream_halved<KV, D, heads>;
  constexpr int32_t width = stream_width<KV>, loads = width / 8; /* loads of q per 16 bytes of K */
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), column = lane / 4;
  const int32_t half = halved ? column / heads % 2 : 0;
  constexpr int count = stream_set_loads<KV, D, heads>;
  ASSAY_UNROLL
  for (int set = 0; set < stream_column_sets<heads>; ++set) {
    const int32_t head = kv_head * a.G + min(stream_head_of_column<heads>(column, set), a.G - 1);
    const T *const from = element_at<T>(a.q, query_offset(a, row, head) + width * (4 * half + lane % 4));
    ASSAY_UNROLL
    for (int i = 0; i < count; ++i)
      q[set * count + i] =
          *reinterpret_cast<const uint4 *>(from + (halved ? 8 : 4) * width * (i / loads) + 8 * (i % loads));
  }
}

/* Adds to d the products of four codes of K from both rows (low and high) and the same channels of q. */
template <class T, class KV>
__device__ __forceinline__ void stream_step_of_codes(float (&d)[4], uint32_t low, uint32_t high, uint32_t q_first,
                                                     uint32_t q_second) {
  const uint32_t a[4] = {stream_decode<KV>(low & 0xFFFFu), stream_decode<KV>(high & 0xFFFFu),
                         stream_decode<KV>(low >> 16), stream_decode<KV>(high >> 16)};
  const uint32_t b[2] = {q_first, q_second};
  mma_m16n8k16<T>(d, a, b);
}

/* Adds the products of 16 bytes of K from both rows (low and high) and the matching q. Every other k-step goes to d,
 * the rest to e. */
template <class T, class KV>
__device__ __forceinline__ void stream_multiply(float (&d)[4], float (&e)[4], const uint4 &low, const uint4 &high,
                                                const uint4 *query) {
  const uint4 q = query[0];
  if constexpr (is_fp8<KV>::value) {
    const uint4 next = query[1];
    stream_step_of_codes<T, KV>(d, low.x, high.x, q.x, q.y);
    stream_step_of_codes<T, KV>(e, low.y, high.y, q.z, q.w);
    stream_step_of_codes<T, KV>(d, low.z, high.z, next.x, next.y);
    stream_step_of_codes<T, KV>(e, low.w, high.w, next.z, next.w);
  } else {
    const uint32_t a[4] = {low.x, high.x, low.y, high.y}, b[2] = {q.x, q.y};
    mma_m16n8k16<T>(d, a, b);
    const uint32_t c[4] = {low.z, high.z, low.w, high.w}, f[2] = {q.z, q.w};
    mma_m16n8k16<T>(e, c, f);
  }
}

/* A lane's share of four keys of V, in loads of 16 or of 8 bytes. channels: elements per load. rest: where 32 channels
 * are left of 16-bit types, a load of 8 bytes more per key. */
template <class KV, int D> struct stream_share {
  static constexpr int bytes = D * static_cast<int>(sizeof(KV)) / 8, parts = bytes > 16 ? bytes / 16 : 1;
  static constexpr int channels = (bytes == 8 ? 8 : 16) / static_cast<int>(sizeof(KV));
  static constexpr bool more = bytes > 16 && bytes % 16 != 0;
  using load = std::conditional_t<bytes == 8, uint2, uint4>;
  load of[4 * parts];
  uint2 rest[more ? 4 : 1];
};

__device__ __forceinline__ void stream_load_if(uint4 *v, const void *address, bool on) {
  load_stream_16_if(v, address, on);
}
__device__ __forceinline__ void stream_load_if(uint2 *v, const void *address, bool on) {
  load_stream_8_if(v, address, on);
}

/* Loads V of the keys whose bit is set in `live`, which has stream_mask's order. Registers of other keys keep their
 * contents. The keys are j, j + 8, j + 4, j + 12. at: this lane's first channel of key j. */
template <class KV, int D>
__device__ __forceinline__ void stream_load_values(const paged_cache &cache, int64_t at, uint32_t live, int32_t lane,
                                                   stream_share<KV, D> &v) {
  const uint32_t mine = live >> (4 * (lane % 4));
  const int64_t step = 4 * cache.v_token;
  using share = stream_share<KV, D>;
  constexpr int parts = share::parts;
  const KV *from = element_at<KV>(cache.v, at);
  ASSAY_UNROLL
  for (int s = 0; s < 4; ++s) { /* key j + 4 s */
    const int bit = 16 * (s % 2) + 2 * (s / 2), place = 2 * (s % 2) + s / 2;
    ASSAY_UNROLL
    for (int half = 0; half < parts; ++half)
      stream_load_if(&v.of[place * parts + half], from + 64 * half, (mine >> bit & 1u) != 0);
    if constexpr (share::more)
      stream_load_if(&v.rest[place], from + 64 * parts - 4 * (lane / 4), (mine >> bit & 1u) != 0);
    from = element_at<KV>(from, step);
  }
}

/* ---- which lane keeps which score -------------------------------------------------------------------- */

/* The scores that a lane keeps: `halves` keys, 8 apart, of `width` heads.
 *
 *   2 heads  key g + 8 (j / 2), head j mod 2.
 *   4 heads  key g + 8 (j / 2), heads 2 (j mod 2) + 0, 1.
 *   8 heads  keys g, g + 8, heads 2 j + 0, 1.
 *  16 heads  keys g, g + 8, heads 4 j + 0, 1, 2, 3. */
template <int heads> struct stream_held {
  static constexpr int halves = heads >= 8 ? 2 : 1, width = heads == 2 ? 1 : heads == 16 ? 4 : 2;
};

template <int heads>
using stream_kept = float[stream_held<heads>::halves][stream_held<heads>::width]; /* the scores of this lane */

/* Selects the scores that this lane keeps from those of 16 keys and 8 columns of a set. */
template <int heads>
__device__ __forceinline__ void stream_keep(const float (&score)[4], int32_t lane, int set, stream_kept<heads> &kept) {
  const int32_t j = lane % 4;
  if constexpr (heads >= 8) {
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      kept[i / 2][2 * set + i % 2] = score[i];
  } else if constexpr (heads == 4) {
    ASSAY_UNROLL
    for (int i = 0; i < 2; ++i)
      kept[0][i] = j >= 2 ? score[2 + i] : score[i];
  } else {
    const float low = j % 2 != 0 ? score[1] : score[0], high = j % 2 != 0 ? score[3] : score[2];
    kept[0][0] = j >= 2 ? high : low;
  }
}

/* Selects the scores that this lane keeps from the halves of scores of two sets. A lane and its partner, which has the
 * other halves, keep one row each. The lane also has scores of the other set or the other head. These go to the
 * neighbouring lane, which has nothing of use itself. */
template <int heads>
__device__ __forceinline__ void stream_join_halves(const float (&score)[2][4], int32_t lane, stream_kept<heads> &kept) {
  const bool lower = lane / 4 % 2 != 0, second = lane % 4 >= 2, odd = lane % 2 != 0;
  const auto joined = [&](float up, float low, int partner) {
    return (lower ? low : up) + __shfl_xor_sync(all_lanes, lower ? up : low, partner);
  };
  if constexpr (heads == 4) {
    float all[2][2];
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      all[i / 2][i % 2] = joined(score[i / 2][i % 2], score[i / 2][2 + i % 2], 6);
    ASSAY_UNROLL
    for (int e = 0; e < 2; ++e) {
      const float other = __shfl_xor_sync(all_lanes, second ? all[0][e] : all[1][e], 2);
      kept[0][e] = second != lower ? other : second ? all[1][e] : all[0][e];
    }
  } else {
    float all[2];
    ASSAY_UNROLL
    for (int e = 0; e < 2; ++e)
      all[e] = joined(second ? score[1][e] : score[0][e], second ? score[1][2 + e] : score[0][2 + e], 5);
    const float other = __shfl_xor_sync(all_lanes, odd ? all[0] : all[1], 1);
    kept[0][0] = odd != lower ? other : odd ? all[1] : all[0];
  }
}

/* Computes the scores of 16 keys, not scaled. */
template <class T, class KV, int D, int heads>
__device__ __forceinline__ void stream_scores(const stream_fragment<KV, D, heads> &k, const uint4 *q, int32_t lane,
                                              stream_kept<heads> &kept) {
  using fragment = stream_fragment<KV, D, heads>;
  constexpr int loads = stream_width<KV> / 8;
  ASSAY_UNROLL
  for (int set = 0; set < stream_column_sets<heads>; ++set) {
    const uint4 *const of_set = q + set * stream_set_loads<KV, D, heads>;
    float score[2][4] = {};
    ASSAY_UNROLL
    for (int i = 0; i < fragment::count; ++i) {
      if constexpr (fragment::halved)
        stream_multiply<T, KV>(score[i / fragment::lines], score[i / fragment::lines], k.low[i], k.high[i],
                               of_set + loads * (i % fragment::lines));
      else
        stream_multiply<T, KV>(score[0], score[1], k.low[i], k.high[i], of_set + loads * i);
    }
    if constexpr (fragment::halved) {
      stream_join_halves<heads>(score, lane, kept);
    } else {
      ASSAY_UNROLL
      for (int i = 0; i < 4; ++i)
        score[0][i] += score[1][i];
      stream_keep<heads>(score[0], lane, set, kept);
    }
  }
}

/* Return the first key and the first head that a lane keeps. */
template <int heads> __device__ __forceinline__ int32_t stream_kept_key(int32_t lane) {
  return lane / 4 + (heads >= 8 ? 0 : 8 * (lane % 4 / 2));
}
template <int heads> __device__ __forceinline__ int32_t stream_kept_head(int32_t lane) {
  return heads == 16 ? 4 * (lane % 4) : heads == 8 ? 2 * (lane % 4) : heads == 4 ? 2 * (lane % 2) : lane % 2;
}

/* Returns a mask of the keys that any head needs, from what each lane says about the keys it keeps. Key u is bit 4 (u
 * mod 8) + 2 (u / 8). Other bits have no meaning. */
template <int heads> __device__ __forceinline__ uint32_t stream_mask(const bool (&needed)[stream_held<heads>::halves]) {
  const uint32_t low = __ballot_sync(all_lanes, needed[0]);
  if constexpr (heads < 8) return low | low >> 1;
  const uint32_t high = __ballot_sync(all_lanes, needed[stream_held<heads>::halves - 1]);
  const uint32_t a = low | low >> 1, b = high | high >> 1;
  return ((a | a >> 2) & 0x11111111u) | ((b | b >> 2) & 0x11111111u) << 2;
}

/* Writes the weights of a block to shared memory, as [16 keys][heads]. */
template <int heads>
__device__ __forceinline__ void
stream_put_weights(const float (&p)[stream_held<heads>::halves][stream_held<heads>::width], int32_t lane,
                   float *weight) {
  float *const at = weight + stream_kept_key<heads>(lane) * heads + stream_kept_head<heads>(lane);
  ASSAY_UNROLL
  for (int h = 0; h < stream_held<heads>::halves; ++h) {
    if constexpr (heads == 2)
      at[0] = p[h][0];
    else if constexpr (heads == 16)
      *reinterpret_cast<float4 *>(at + 8 * heads * h) = make_float4(p[h][0], p[h][1], p[h][2], p[h][3]);
    else
      *reinterpret_cast<float2 *>(at + 8 * heads * h) = make_float2(p[h][0], p[h][1]);
  }
}

/* ---- sum over V -------------------------------------------------------------------------------------- */

/* Factor by which weights are multiplied before they are cut; sums are divided by it at the end. With f16, weights up
 * to 2^8 still fit, and the third part of small weights is not lost below the smallest f16. bf16 has the range of f32
 * and needs no factor. */
template <class T> inline constexpr float stream_unit = 1.0f;
template <> inline constexpr float stream_unit<f16> = 128.0f;

/* Cuts two weights into three parts of T's width. The sum of the parts is the weights, to 24 bits. */
template <class T> __device__ __forceinline__ void stream_parts(float low, float high, uint32_t (&part)[3]) {
  ASSAY_UNROLL
  for (int i = 0; i < 3; ++i) {
    float a, b;
    part[i] = pack_pair<T>(low, high);
    unpack_pair<T>(part[i], a, b);
    low -= a;
    high -= b;
  }
}

template <int heads> constexpr int stream_sets = heads == 2 ? 1 : heads == 4 ? 2 : 3; /* mma instructions per step */

/* Returns the content of column g. With 2 heads it is part g / 2 of head g mod 2. With 4 heads it is part g / 4, and a
 * second mma has the third part. With 8 heads there is one part per mma. */
template <int heads> __device__ __forceinline__ uint32_t stream_column(const uint32_t (&part)[3], int set, int32_t g) {
  if (heads == 2) return g < 2 ? part[0] : g < 4 ? part[1] : g < 6 ? part[2] : 0u;
  if (heads == 4) return set == 0 ? (g < 4 ? part[0] : part[1]) : g < 4 ? part[2] : 0u;
  return part[set];
}

/* The steps of the sums come in three kinds. The first `paired` steps have one channel each of two parts of V, 64
 * channels apart. The next ones, up to `whole`, have two channels of a last part alone, and the rest two of the 32
 * channels that are left. Codes have two channels of one part. */
template <class KV, int D> constexpr int stream_paired = is_fp8<KV>::value ? 0 : D / 128 * 8;
template <class KV, int D> constexpr int stream_whole = is_fp8<KV>::value ? 0 : D / 64 * 4;

/* Returns the channel in row g or, if `upper`, row g + 8 of step i of the sums. */
template <class KV, int D> __device__ __forceinline__ int32_t stream_channel(int32_t g, int32_t i, int32_t upper) {
  constexpr int paired = stream_paired<KV, D>, whole = stream_whole<KV, D>, width = stream_width<KV>;
  if (stream_any<D>) return 8 * width * (i / (width / 2)) + width * g + 2 * (i % (width / 2)) + upper;
  if (is_fp8<KV>::value) return D / 8 * g + 2 * i + upper;
  if (i < paired) return 128 * (i / 8) + 8 * g + i % 8 + 64 * upper;
  if (i < whole) return 16 * paired + 8 * g + 2 * (i - paired) + upper;
  return 16 * whole + 4 * g + 2 * (i - whole) + upper;
}

/* Returns a lane's fragment of V for step i of the sums. A register holds keys j and j + 8, or j + 4 and j + 12. */
template <class KV, int D>
__device__ __forceinline__ void stream_values(const stream_share<KV, D> &v, int i, uint32_t (&a)[4]) {
  constexpr int parts = stream_share<KV, D>::parts;
  if constexpr (is_fp8<KV>::value) {
    const auto of = [&](int at) {
      if constexpr (D == 64)
        return i / 2 == 0 ? v.of[at].x : v.of[at].y;
      else
        return i / 2 == 0 ? v.of[at].x : i / 2 == 1 ? v.of[at].y : i / 2 == 2 ? v.of[at].z : v.of[at].w;
    };
    ASSAY_UNROLL
    for (int half = 0; half < 2; ++half) { /* two channels of two keys, 8 apart */
      const uint32_t codes = byte_permute(of(2 * half), of(2 * half + 1), i % 2 != 0 ? 0x7362u : 0x5140u);
      a[2 * half] = stream_decode<KV>(codes & 0xFFFFu);
      a[2 * half + 1] = stream_decode<KV>(codes >> 16);
    }
  } else {
    constexpr int paired = stream_paired<KV, D>, whole = stream_whole<KV, D>;
    const int word = i < paired ? i % 8 / 2 : i < whole ? i - paired : i - whole;
    const auto of = [&](int at) {
      if (i >= whole) return word == 0 ? v.rest[at].x : v.rest[at].y;
      return word == 0 ? v.of[at].x : word == 1 ? v.of[at].y : word == 2 ? v.of[at].z : v.of[at].w;
    };
    /* One channel of two keys, 8 apart. */
    const auto pair = [&](int at, int apart, bool upper) {
      return byte_permute(of(at), of(at + apart), upper ? 0x7632u : 0x5410u);
    };
    if (i < paired) {
      const bool upper = i % 2 != 0;
      const int part = i / 8 * 2;
      a[0] = pair(part, parts, upper);
      a[1] = pair(part + 1, parts, upper);
      a[2] = pair(2 * parts + part, parts, upper);
      a[3] = pair(2 * parts + part + 1, parts, upper);
    } else {
      const int part = i < whole ? parts - 1 : 0, apart = i < whole ? parts : 1;
      a[0] = pair(part, apart, false);
      a[1] = pair(part, apart, true);
      a[2] = pair(2 * apart + part, apart, false);
      a[3] = pair(2 * apart + part, apart, true);
    }
  }
}

/* A lane's weights of a block as fragments of the mma, for each set of columns. */
template <int heads> using stream_weights = uint32_t[stream_column_sets<heads>][stream_sets<heads>][2];

template <class T, int heads>
__device__ __forceinline__ void stream_cut(const float *weight, int32_t lane, stream_weights<heads> &b) {
  constexpr int sets = stream_sets<heads>, columns = stream_column_sets<heads>;
  const int32_t g = lane / 4;
  uint32_t low[3], high[3];
  constexpr float unit = stream_unit<T>;
  ASSAY_UNROLL
  for (int c = 0; c < columns; ++c) {
    const float *const mine = weight + lane % 4 * heads + stream_head_of_column<heads>(g, c);
    stream_parts<T>(unit * mine[0], unit * mine[8 * heads], low);
    stream_parts<T>(unit * mine[4 * heads], unit * mine[12 * heads], high);
    ASSAY_UNROLL
    for (int set = 0; set < sets; ++set) {
      b[c][set][0] = stream_column<heads>(low, set, g);
      b[c][set][1] = stream_column<heads>(high, set, g);
    }
  }
}

/* Adds the products of one block to sum[i][c]. */
template <class T, class KV, int D, int heads>
__device__ __forceinline__ void stream_add(const stream_share<KV, D> &v, const float *weight, int32_t lane,
                                           stream_sums<D, heads> &sum) {
  constexpr int sets = stream_sets<heads>, columns = stream_column_sets<heads>;
  stream_weights<heads> b;
  stream_cut<T, heads>(weight, lane, b);
  ASSAY_UNROLL
  for (int i = 0; i < D / 16; ++i) {
    uint32_t a[4];
    stream_values<KV, D>(v, i, a);
    ASSAY_UNROLL
    for (int c = 0; c < columns; ++c) {
      ASSAY_UNROLL
      for (int set = 0; set < sets; ++set)
        mma_m16n8k16<T>(sum[c * (D / 16) + i], a, b[c][set]);
    }
  }
}

/* Adds `steps` steps over pairs of lanes, `apart` from each other. Each lane adds half of the steps; the lane with the
 * bit set adds the upper half. */
template <int apart, int steps, int most>
__device__ __forceinline__ void stream_add_half(float (&sum)[most][4], int32_t lane) {
  const bool upper = (lane & apart) != 0;
  ASSAY_UNROLL
  for (int i = 0; i < steps / 2; ++i) {
    ASSAY_UNROLL
    for (int c = 0; c < 4; ++c) {
      const float low = sum[i][c], high = sum[steps / 2 + i][c];
      sum[i][c] = (upper ? high : low) + __shfl_xor_sync(all_lanes, upper ? low : high, apart);
    }
  }
}

/* Writes the sums of eight or sixteen heads to shared memory as [heads][channels], over the walk's weights. The steps
 * of a lane have eight adjacent channels, or four, which go four at a time. */
template <class T, class KV, int D, int heads>
__device__ __forceinline__ void stream_put_quads(const stream_sums<D, heads> &sum, float *shared) {
  constexpr int each = D / 16, paired = stream_paired<KV, D>;
  constexpr float by = 1.0f / stream_unit<T>;
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), g = lane / 4, j = lane % 4;
  __syncwarp(); /* all lanes are done with the weights */
  ASSAY_UNROLL
  for (int of_lane = 0; of_lane < 2 * stream_column_sets<heads>; ++of_lane) {
    const int set = of_lane / 2, e = of_lane % 2;
    float *const head = shared + (heads == 16 ? 4 * j + of_lane : 2 * j + of_lane) * D;
    const auto put = [&](int channel, float x, float y, float z, float w) {
      *reinterpret_cast<float4 *>(head + channel) = make_float4(by * x, by * y, by * z, by * w);
    };
    ASSAY_UNROLL
    for (int i = set * each; i < set * each + paired; i += 4) {
      put(stream_channel<KV, D>(g, i - set * each, 0), sum[i][e], sum[i + 1][e], sum[i + 2][e], sum[i + 3][e]);
      put(stream_channel<KV, D>(g, i - set * each, 1), sum[i][2 + e], sum[i + 1][2 + e], sum[i + 2][2 + e],
          sum[i + 3][2 + e]);
    }
    ASSAY_UNROLL
    for (int i = set * each + paired; i < (set + 1) * each; i += 2)
      put(stream_channel<KV, D>(g, i - set * each, 0), sum[i][e], sum[i][2 + e], sum[i + 1][e], sum[i + 1][2 + e]);
  }
}

/* Adds the parts and writes the sums to shared memory as [heads][channels], over the walk's weights. */
template <class T, class KV, int D, int heads>
__device__ __forceinline__ void stream_put_sums(stream_sums<D, heads> &sum, float *shared, int32_t channels) {
  /* Lanes with the same heads; steps of a set that a lane writes. */
  constexpr int copies = heads < 8 ? 8 / heads : 1, each = stream_size<D> / 16 / copies;
  static_assert(copies * each * 16 == stream_size<D>, "the lanes with the same heads write equally many steps");
  if constexpr (heads >= 8 && !stream_any<D>) {
    stream_put_quads<T, KV, D, heads>(sum, shared);
    return;
  }
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), g = lane / 4, j = lane % 4;
  if constexpr (heads < 8) stream_add_half<2, stream_size<D> / 16>(sum, lane);
  if constexpr (heads < 4) stream_add_half<1, D / 32>(sum, lane);
  __syncwarp(); /* all lanes are done with the weights */
  ASSAY_UNROLL
  for (int i = 0; i < stream_column_sets<heads> * each; ++i) {
    ASSAY_UNROLL
    for (int c = 0; c < 4; ++c) {
      const int32_t head = heads == 2    ? c % 2
                           : heads == 16 ? 4 * j + i / each * 2 + c % 2
                                         : 2 * (j % (heads / 2)) + c % 2;
      const int32_t channel = stream_channel<KV, D>(g, j / (4 / copies) * each + i % each, c / 2);
      if (stream_any<D> && channel >= channels) continue;
      shared[head * channels + channel] = sum[i][c] * (1.0f / stream_unit<T>);
    }
  }
}

/* Shared memory of a warp: the weights of two blocks, and later the sums in their place. */
template <int D, int heads> constexpr int stream_shared_floats = heads *stream_size<D>;
static_assert(stream_shared_floats<64, 2> >= 2 * stream_keys * 2, "the weights of two blocks fit");

} // namespace ASSAY_NS
#endif
