/* stream.cuh: decode attention that streams K and V, whatever it does with a score.
 *
 * A warp walks alone over a run of blocks of 16 keys of one (request, kv head); no barrier until its run is over. K
 * comes by 16-byte loads straight into the A fragments of mma m16n8k16: the order of k inside an mma is free, so the
 * 16 bytes of a lane are two k-steps, and q is loaded in the same order. The eight columns hold the heads of the group,
 * repeated. With g = lane / 4, j = lane mod 4, and 2, 4 or 8 `heads` that differ:
 *
 *   K      keys g and g + 8, channels 32 i + 8 j .. + 7
 *   q      head g mod heads, the same channels
 *   score  element 2 h + e: key g + 8 h, column 2 j + e
 *   V      keys j, j + 8, j + 4, j + 12, channels 8 g .. + 7 and, with D = 128, 64 + 8 g .. + 7
 *
 * Of the copies of a score each lane keeps what no other keeps (stream_held). Weights go to the warp's own shared
 * memory; one ballot tells every lane which keys any head needs, and V of the others is not read: the registers keep
 * what was there, 0 or the V of a key that was needed, and its weight is 0. V is one block behind K, and both are in
 * flight while the other is used. sum p v is an mma too, channels as rows: p is cut into three parts of T's width,
 * together the f32 p, which stand in columns of their own as far as there are any, and are added in the end.
 *
 * T is the type of q, of the mma and of out; KV that of the cache: T itself, or fp8 with T bf16. Every fp8 number is a
 * bf16, so codes are loaded, held, and decoded where they are used; the factors of the codes meet the scores and the
 * sums. A lane's 16 bytes are 16 channels then, four k-steps:
 *
 *   K      keys g and g + 8, channels 64 i + 16 j .. + 15
 *   V      keys j, j + 8, j + 4, j + 12, channels D / 8 g .. + D / 8 - 1: 16 bytes, with D = 64 8 */
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
constexpr unsigned all_lanes = 0xffffffffu;

/* ---- a run ------------------------------------------------------------------------------------------- */

/* Blocks begin <= n < end of 16 keys; the row begins in block `origin`. */
struct stream_run {
  int32_t request, kv_head, first, last; /* keys */
  int32_t origin, begin, end;
};

/* The run of this warp. Grid: (rows * H_kv, splits). */
__device__ __forceinline__ stream_run stream_run_of(const attention_params &a, int64_t row, int32_t kv_head) {
  const row_keys keys = keys_of_row(a, row);
  stream_run run = {keys.request, kv_head, keys.first, keys.last, 0, 0, 0};
  if (keys.last < keys.first) return run;
  run.origin = keys.first / stream_keys;
  const uint32_t blocks = static_cast<uint32_t>(keys.last / stream_keys + 1 - run.origin);
  const uint32_t warps = blockDim.x / 32, runs = gridDim.y * warps, number = blockIdx.y * warps + threadIdx.x / 32;
  const uint32_t each = blocks / runs, longer = blocks % runs; /* the first `longer` runs have one block more */
  run.begin = run.origin + static_cast<int32_t>(each * number + min(number, longer));
  run.end = run.begin + static_cast<int32_t>(each + (number < longer ? 1 : 0));
  return run;
}

/* Asks for the lines of this row's length and table: the one need not wait for the other then. Reads nothing, so it may
 * come before dependency_wait(). Long tables have few lines in a run. */
__device__ __forceinline__ void stream_ask(const attention_params &a) {
  constexpr int32_t entries = 32, most = 64; /* of a line; lines */
  const int64_t in_table = a.capacity >> a.cache.block_shift;
  const int32_t row = static_cast<int32_t>(blockIdx.x / static_cast<uint32_t>(a.H_kv));
  const int32_t line = static_cast<int32_t>(threadIdx.x);
  if (line == 0) prefetch_l2(a.length + row);
  if (line < most && static_cast<int64_t>(line) * entries < in_table)
    prefetch_l2(a.cache.table + row * a.cache.table_row + line * entries);
}

/* Physical block of block n of the walk; 0 outside begin .. end - 1. */
__device__ __forceinline__ int32_t stream_block_of(const paged_cache &cache, const stream_run &run, int32_t n,
                                                   int32_t begin) {
  const int32_t *const row = cache.table + run.request * cache.table_row;
  return n >= begin && n < run.end ? row[n >> (cache.block_shift - 4)] : 0;
}

/* ---- codes ------------------------------------------------------------------------------------------- */

/* The two fp8 codes in the lower half, as bf16. Exact, NaN and infinities included. */
template <class KV> __device__ __forceinline__ uint32_t stream_decode(uint32_t codes) {
#ifdef ASSAY_SIMT
  const KV low = {static_cast<uint8_t>(codes)}, high = {static_cast<uint8_t>(codes >> 8)};
  return bits_of(to_float(low)) >> 16 | (bits_of(to_float(high)) & 0xFFFF0000u);
#else
  __half2_raw pair;
  if constexpr (std::is_same_v<KV, e4m3>) {
    pair = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3);
  } else {
    const uint32_t both = byte_permute(codes, 0u, 0x1404u); /* each the upper byte of an f16 */
    memcpy(&pair, &both, sizeof pair);
  }
  const float2 f = __half22float2(__half2(pair));
  return pack_pair<bf16>(f.x, f.y);
#endif
}

/* What q . k of the stored numbers is multiplied with: `base`, and the factor of the codes. Their product is kept in
 * two parts: a score is rounded once, with fp8 as without. */
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

/* A sum over V of the stored numbers, as one of V. */
template <class KV>
__device__ __forceinline__ float stream_value(float sum, const attention_params &a, int32_t kv_head) {
  if constexpr (is_fp8<KV>::value) return sum * v_scale_of(a.cache, kv_head);
  return sum;
}

/* ---- K, q, V ----------------------------------------------------------------------------------------- */

template <class KV> constexpr int stream_width = 16 / static_cast<int>(sizeof(KV)); /* elements of 16 bytes */

/* Keys g and g + 8. */
template <class KV, int D> struct stream_fragment {
  static constexpr int count = D / (4 * stream_width<KV>);
  uint4 low[count], high[count];
};

/* at: of this lane's first channel of key g. */
template <class KV, int D>
__device__ __forceinline__ void stream_load_keys(const paged_cache &cache, int64_t at, stream_fragment<KV, D> *k) {
  const KV *const low = element_at<KV>(cache.k, at), *const high = element_at<KV>(cache.k, at + 8 * cache.k_token);
  ASSAY_UNROLL
  for (int i = 0; i < k->count; ++i)
    k->low[i] = load_stream_16(low + 4 * stream_width<KV> * i);
  ASSAY_UNROLL
  for (int i = 0; i < k->count; ++i)
    k->high[i] = load_stream_16(high + 4 * stream_width<KV> * i);
}

/* This lane's fragments of q, in the order of its channels of K. */
template <class T, class KV, int D, int heads>
__device__ __forceinline__ void stream_load_query(const attention_params &a, int64_t row, int32_t kv_head,
                                                  uint4 (&q)[D / 32]) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t head = kv_head * a.G + min(lane / 4 % heads, a.G - 1);
  const T *const from = element_at<T>(a.q, query_offset(a, row, head) + stream_width<KV> * (lane % 4));
  ASSAY_UNROLL
  for (int i = 0; i < D / 32; ++i)
    q[i] = *reinterpret_cast<const uint4 *>(from + (is_fp8<KV>::value ? 64 * (i / 2) + 8 * (i % 2) : 32 * i));
}

/* d += the products of four codes of K each way and as many channels of q. */
template <class T, class KV>
__device__ __forceinline__ void stream_step_of_codes(float (&d)[4], uint32_t low, uint32_t high, uint32_t q_first,
                                                     uint32_t q_second) {
  const uint32_t a[4] = {stream_decode<KV>(low & 0xFFFFu), stream_decode<KV>(high & 0xFFFFu),
                         stream_decode<KV>(low >> 16), stream_decode<KV>(high >> 16)};
  const uint32_t b[2] = {q_first, q_second};
  mma_m16n8k16<T>(d, a, b);
}

/* Scores of 16 keys and 8 columns, not scaled. */
template <class T, class KV, int D>
__device__ __forceinline__ void stream_scores(const stream_fragment<KV, D> &k, const uint4 *query, int32_t lane,
                                              float (&score)[4]) {
  float other[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    score[i] = 0.0f;
  ASSAY_UNROLL
  for (int i = 0; i < k.count; ++i) {
    if constexpr (is_fp8<KV>::value) {
      const uint4 q = query[64 * i + lane], next = query[64 * i + 32 + lane];
      stream_step_of_codes<T, KV>(score, k.low[i].x, k.high[i].x, q.x, q.y);
      stream_step_of_codes<T, KV>(other, k.low[i].y, k.high[i].y, q.z, q.w);
      stream_step_of_codes<T, KV>(score, k.low[i].z, k.high[i].z, next.x, next.y);
      stream_step_of_codes<T, KV>(other, k.low[i].w, k.high[i].w, next.z, next.w);
    } else {
      const uint4 q = query[32 * i + lane];
      const uint32_t a[4] = {k.low[i].x, k.high[i].x, k.low[i].y, k.high[i].y}, b[2] = {q.x, q.y};
      mma_m16n8k16<T>(score, a, b);
      const uint32_t c[4] = {k.low[i].z, k.high[i].z, k.low[i].w, k.high[i].w}, d[2] = {q.z, q.w};
      mma_m16n8k16<T>(other, c, d);
    }
  }
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    score[i] += other[i];
}

/* A lane's share of four keys of V, in loads of 16 bytes, or of 8. */
template <class KV, int D> struct stream_share {
  static constexpr int bytes = D * static_cast<int>(sizeof(KV)) / 8, parts = bytes > 16 ? bytes / 16 : 1;
  using load = std::conditional_t<bytes == 8, uint2, uint4>;
  load of[4 * parts];
};

__device__ __forceinline__ void stream_load_if(uint4 *v, const void *address, bool on) {
  load_stream_16_if(v, address, on);
}
__device__ __forceinline__ void stream_load_if(uint2 *v, const void *address, bool on) {
  load_stream_8_if(v, address, on);
}

/* V of the keys whose bit is set in `live` (stream_mask's order); others keep what was there. Keys j, j + 8, j + 4,
 * j + 12. at: of this lane's first channel of key j. */
template <class KV, int D>
__device__ __forceinline__ void stream_load_values(const paged_cache &cache, int64_t at, uint32_t live, int32_t lane,
                                                   stream_share<KV, D> &v) {
  const uint32_t mine = live >> (4 * (lane % 4));
  const int64_t step = 4 * cache.v_token;
  constexpr int parts = stream_share<KV, D>::parts;
  const KV *from = element_at<KV>(cache.v, at);
  ASSAY_UNROLL
  for (int s = 0; s < 4; ++s) { /* key j + 4 s */
    const int bit = 16 * (s % 2) + 2 * (s / 2), place = 2 * (s % 2) + s / 2;
    ASSAY_UNROLL
    for (int half = 0; half < parts; ++half)
      stream_load_if(&v.of[place * parts + half], from + 64 * half, (mine >> bit & 1u) != 0);
    from = element_at<KV>(from, step);
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

/* Weights are multiplied by it before they are cut, and sums divided in the end: up to 2^8 they fit f16 then, and the
 * third part of small ones is not lost below its least number. bf16 has the range of f32. */
template <class T> inline constexpr float stream_unit = 1.0f;
template <> inline constexpr float stream_unit<f16> = 128.0f;

/* Two weights in three parts of T's width: their sum is the weights, to 24 bits. */
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

template <int heads> constexpr int stream_sets = heads == 2 ? 1 : heads == 4 ? 2 : 3; /* mma a step */

/* What stands in column g: with 2 heads part g / 2 of head g mod 2; with 4 part g / 4, and in a second mma the third;
 * with 8 one part a mma. */
template <int heads> __device__ __forceinline__ uint32_t stream_column(const uint32_t (&part)[3], int set, int32_t g) {
  if (heads == 2) return g < 2 ? part[0] : g < 4 ? part[1] : g < 6 ? part[2] : 0u;
  if (heads == 4) return set == 0 ? (g < 4 ? part[0] : part[1]) : g < 4 ? part[2] : 0u;
  return part[set];
}

/* The channel in row g or, `upper`, g + 8 of step i of the sums. */
template <class KV, int D> __device__ __forceinline__ int32_t stream_channel(int32_t g, int32_t i, int32_t upper) {
  if (is_fp8<KV>::value || D == 64) return D / 8 * g + 2 * i + upper;
  return 8 * g + i + 64 * upper;
}

/* A lane's fragment of V for step i of the sums. In a register: keys j, j + 8; j + 4, j + 12. */
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
    const int word = D == 128 ? i / 2 : i;
    const auto of = [&](int at) {
      return word == 0 ? v.of[at].x : word == 1 ? v.of[at].y : word == 2 ? v.of[at].z : v.of[at].w;
    };
    const auto pair = [&](int at, bool upper) { /* one channel of two keys, 8 apart */
                                                return byte_permute(of(at), of(at + parts), upper ? 0x7632u : 0x5410u);
    };
    if constexpr (D == 128) {
      const bool upper = i % 2 != 0;
      a[0] = pair(0, upper);
      a[1] = pair(1, upper);
      a[2] = pair(2 * parts, upper);
      a[3] = pair(2 * parts + 1, upper);
    } else {
      a[0] = pair(0, false);
      a[1] = pair(0, true);
      a[2] = pair(2, false);
      a[3] = pair(2, true);
    }
  }
}

/* sum[i][c] += over one block. */
template <class T, class KV, int D, int heads>
__device__ __forceinline__ void stream_add(const stream_share<KV, D> &v, const float *weight, int32_t lane,
                                           float (&sum)[D / 16][4]) {
  constexpr int sets = stream_sets<heads>;
  const int32_t g = lane / 4;
  const float *const mine = weight + lane % 4 * heads + g % heads;
  uint32_t low[3], high[3], b[sets][2];
  constexpr float unit = stream_unit<T>;
  stream_parts<T>(unit * mine[0], unit * mine[8 * heads], low);
  stream_parts<T>(unit * mine[4 * heads], unit * mine[12 * heads], high);
  ASSAY_UNROLL
  for (int set = 0; set < sets; ++set) {
    b[set][0] = stream_column<heads>(low, set, g);
    b[set][1] = stream_column<heads>(high, set, g);
  }
  ASSAY_UNROLL
  for (int i = 0; i < D / 16; ++i) {
    uint32_t a[4];
    stream_values<KV, D>(v, i, a);
    ASSAY_UNROLL
    for (int set = 0; set < sets; ++set)
      mma_m16n8k16<T>(sum[i], a, b[set]);
  }
}

/* Adds the parts, and puts the sums to shared memory: [heads][D], over the walk's. */
template <class T, class KV, int D, int heads>
__device__ __forceinline__ void stream_put_sums(float (&sum)[D / 16][4], float *shared) {
  constexpr int copies = 8 / heads, each = D / 16 / copies; /* lanes with the same sums; steps that a lane writes */
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), g = lane / 4, j = lane % 4;
  __syncwarp(); /* the weights are used up */
  ASSAY_UNROLL
  for (int i = 0; i < D / 16; ++i) {
    ASSAY_UNROLL
    for (int c = 0; c < 4; ++c) {
      ASSAY_UNROLL
      for (int step = heads / 2; step < 4; step *= 2)
        sum[i][c] += __shfl_xor_sync(all_lanes, sum[i][c], step);
      const int32_t head = heads == 2 ? c % 2 : 2 * (j % (heads / 2)) + c % 2;
      const int32_t channel = stream_channel<KV, D>(g, i, c / 2);
      if (j / (4 / copies) == i / each) shared[head * D + channel] = sum[i][c] * (1.0f / stream_unit<T>);
    }
  }
}

/* Of a warp: fragments of q, weights of two blocks; later, in their place, the sums. */
template <int D> constexpr int stream_query_floats = 4 * D;
template <int D, int heads>
constexpr int stream_shared_floats =
    stream_query_floats<D> + 2 * stream_keys *heads > heads *D ? stream_query_floats<D> + 2 * stream_keys *heads
                                                               : heads *D;

/* ---- joining splits ---------------------------------------------------------------------------------- */

/* A block has groups of threads, each the elements of the block; group g has splits g, g + groups, ... */
constexpr int stream_merge_threads = 128, stream_merge_groups = 8;
constexpr int stream_batch = 6; /* splits of a group whose sums are under way together */

/* Sums of splits b, b + step, ..., `pitch` floats apart; 0 behind the last. */
__device__ __forceinline__ void stream_load_splits(const float *from, int32_t pitch, int32_t b, int32_t step,
                                                   int32_t splits, float (&sum)[stream_batch]) {
  ASSAY_UNROLL
  for (int32_t k = 0; k < stream_batch; ++k)
    sum[k] = b + k * step < splits ? from[static_cast<int64_t>(b + k * step) * pitch] : 0.0f;
}

/* What the groups' threads of an element have, added in their order; complete in group 0. shared: [groups][threads].
 * Block: a barrier. */
__device__ __forceinline__ float stream_add_groups(float own, float *shared) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  shared[thread] = own;
  __syncthreads(); /* all groups' sums are there */
  if (thread < stream_merge_threads)
    for (int32_t at = thread + stream_merge_threads; at < threads; at += stream_merge_threads)
      own += shared[at];
  return own;
}

/* ---- the walk ---------------------------------------------------------------------------------------- */

/* Adds p v of the run's keys to sum. `weigher` makes weights of scores:
 *   weigher.edge(score, t)         scores of the block before the run, keys t .. t + 15, of which it wants the last
 *                                  weigher.halo; with halo 0 it is not asked
 *   weigher.keep(score, t, kept)   what it needs of the scores of keys t .. t + 15, by lane
 *   weigher.weigh(kept, t, weight, sum)  writes the weights of these keys, returns stream_mask; may rescale sum
 * shared: stream_shared_floats of the warp's own. */
template <class T, class KV, int D, int heads, class Weigher>
__device__ __forceinline__ void stream_walk(const attention_params &a, const stream_run &run, const uint4 (&q)[D / 32],
                                            float *shared, Weigher &weigher, float (&sum)[D / 16][4]) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), g = lane / 4, j = lane % 4;
  const paged_cache &cache = a.cache;
  if (run.begin >= run.end) return;
  const int32_t begin = run.begin, slots = (1 << cache.block_shift) - 1;
  const bool inside = Weigher::halo > 0 && begin > run.origin;
  const int64_t left = stream_block_of(cache, run, begin - 1, inside ? 0 : begin);
  int64_t block = stream_block_of(cache, run, begin, begin), next = stream_block_of(cache, run, begin + 1, begin);
  const int64_t k_lane = run.kv_head * cache.k_head + g * cache.k_token + stream_width<KV> * j;
  const int64_t v_lane = run.kv_head * cache.v_head + j * cache.v_token +
                         stream_share<KV, D>::bytes / stream_share<KV, D>::parts / static_cast<int>(sizeof(KV)) * g;

  uint4 *const query = reinterpret_cast<uint4 *>(shared); /* each lane its own: in registers they would be too many */
  float *const weights = shared + stream_query_floats<D>;
  ASSAY_UNROLL
  for (int i = 0; i < D / 32; ++i)
    query[32 * i + lane] = q[i];
  issue_in_order(); /* between the loads of K the wait for q would hold up half of them */

  stream_fragment<KV, D> k, edge = {};
  if constexpr (Weigher::halo > 0) {
    const int64_t at = left * cache.k_block + ((stream_keys * (begin - 1) & slots) + 8) * cache.k_token + k_lane;
    ASSAY_UNROLL
    for (int i = 0; i < edge.count; ++i)
      load_stream_16_if(&edge.high[i], element_at<KV>(cache.k, at + 4 * stream_width<KV> * i),
                        inside && g >= 8 - Weigher::halo);
  }
  stream_load_keys<KV, D>(cache, block * cache.k_block + (stream_keys * begin & slots) * cache.k_token + k_lane, &k);

  if constexpr (Weigher::halo > 0) {
    if (inside) {
      float score[4];
      stream_scores<T, KV, D>(edge, query, lane, score);
      weigher.edge(score, stream_keys * (begin - 1));
    }
  }

  stream_share<KV, D> v = {};
  for (int32_t n = run.begin; n < run.end; ++n) {
    float score[4], kept[stream_held<heads>::halves][stream_held<heads>::width];
    stream_scores<T, KV, D>(k, query, lane, score);
    weigher.keep(score, stream_keys * n, kept);
    if (n + 1 < run.end)
      stream_load_keys<KV, D>(cache, next * cache.k_block + (stream_keys * (n + 1) & slots) * cache.k_token + k_lane,
                              &k);
    const int32_t after = stream_block_of(cache, run, n + 2, begin);
    float *const now = weights + (n & 1) * stream_keys * heads, *const before =
                                                                    weights + (~n & 1) * stream_keys * heads;
    if (n > run.begin) stream_add<T, KV, D, heads>(v, before, lane, sum);
    const uint32_t live = weigher.weigh(kept, stream_keys * n, now, sum);
    stream_load_values<KV, D>(cache, block * cache.v_block + (stream_keys * n & slots) * cache.v_token + v_lane, live,
                              lane, v);
    __syncwarp(); /* the weights are there; those before are used up */
    block = next;
    next = after;
  }
  stream_add<T, KV, D, heads>(v, weights + (~run.end & 1) * stream_keys * heads, lane, sum);
}

} // namespace ASSAY_NS
#endif
