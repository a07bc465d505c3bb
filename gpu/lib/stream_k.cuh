/* stream_k.cuh: the streamed decode (stream.cuh) in even shares, independent of what is done with a score. In the
 * literature it is Stream-K, after Osama et al., 2023 (https://arxiv.org/abs/2301.03598).
 *
 * The blocks of 16 keys of all rows and kv heads are put in one line, head after head and row after row. Every thread
 * block takes an even share of the line, whatever the lengths are, so no multiprocessor has more to do than another.
 * Before the blocks of each (row, kv head) the line has an opening, whose length is the cost of changing over to it.
 * The part of a share that belongs to one (row, kv head) is a piece. Warps take the blocks of a share in turn. The
 * first keys of the next piece are being loaded when a piece ends.
 *
 * A (row, kv head) that lies in several shares belongs to the first of them, its owner. Each of the other shares leaves
 * its result in a `record`, always that share's first piece. The workspace may hold anything, so the owner blanks the
 * records that it will read when it begins, long before it reads them. A word of 8 bytes is either blank or written by
 * the other share, so each word is waited for by itself. A record that was written before it was blanked is lost, and a
 * record may also be missing for other reasons. After a while the waiting thread block computes that piece itself, in
 * the same way and to the same bits. No thread block therefore depends on another one being resident. */
#ifndef ASSAY_GPU_LIB_STREAM_K_CUH
#define ASSAY_GPU_LIB_STREAM_K_CUH

#include "gpu/lib/stream.cuh"
#include "gpu/lib/stream_plan.h"
#include "gpu/lib/warp.cuh"

namespace ASSAY_NS {

/* ---- the line ----------------------------------------------------------------------------------------- */

/* The lengths of the rows, as far as the tables can name keys. through: length of one kv head's part of the line for
 * all rows up to each row, in blocks of 16 keys including openings. It is kept in shared memory. */
struct stream_k_rows {
  int32_t length[stream_k_most_rows];
  uint32_t through[stream_k_most_rows];
  uint32_t of_warp[32];
};

/* Returns the keys of a row of this length, with one row per request. */
__device__ __forceinline__ row_keys stream_k_keys(const attention_params &a, int32_t row, int32_t length) {
  return {row, a.window > 0 ? max(length - a.window, 0) : 0, length - 1};
}

/* Returns the number of blocks of 16 keys that a row sees. */
__device__ __forceinline__ int32_t stream_k_blocks(const row_keys &keys) {
  return keys.last < keys.first ? 0 : keys.last / stream_keys + 1 - keys.first / stream_keys;
}

__device__ __forceinline__ int32_t stream_k_clamp(const attention_params &a, int32_t length) {
  return static_cast<int32_t>(min(static_cast<int64_t>(max(length, 0)), a.capacity));
}

/* Reads all lengths as they are now. A whole thread block of `warps` warps must call it; it has barriers. */
template <int warps> __device__ __forceinline__ void stream_k_look(const attention_params &a, stream_k_rows &rows) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int32_t N = static_cast<int32_t>(a.N);
  uint32_t before = 0;
  ASSAY_ROLLED
  for (int32_t first = 0; first < N; first += 32 * warps) {
    const int32_t row = first + thread, length = row < N ? stream_k_clamp(a, load_early(a.length + row)) : 0;
    const int32_t own = stream_k_blocks(stream_k_keys(a, row, length));
    uint32_t through = own > 0 ? static_cast<uint32_t>(own) + stream_k_opening : 0;
    ASSAY_UNROLL
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_up_sync(all_lanes, through, static_cast<unsigned>(step));
      if (lane >= step) through += other;
    }
    if (first > 0) __syncthreads(); /* the previous sums have been read */
    if (lane == 31) rows.of_warp[warp] = through;
    __syncthreads(); /* the warps' sums are written */
    ASSAY_UNROLL
    for (int32_t w = 0; w < warps; ++w) {
      const uint32_t blocks = rows.of_warp[w];
      through += w < warp ? blocks : 0;
      if (w == 0) through += before;
      before += blocks;
    }
    if (row < N) rows.length[row] = length;
    if (row < N) rows.through[row] = through;
  }
  __syncthreads(); /* all rows are written */
}

/* Returns whether the lengths of this thread's rows are still those that stream_k_look() read. */
template <int warps>
__device__ __forceinline__ bool stream_k_same(const attention_params &a, const stream_k_rows &rows) {
  bool same = true;
  ASSAY_ROLLED
  for (int32_t row = static_cast<int32_t>(threadIdx.x); row < static_cast<int32_t>(a.N); row += 32 * warps)
    same = same && stream_k_clamp(a, a.length[row]) == rows.length[row];
  return same;
}

/* How the line is divided: the first `longer` shares have each + 1 blocks, the others have `each`. */
struct stream_k_line {
  uint32_t each, longer;

  __device__ __forceinline__ stream_k_line(uint32_t blocks, uint32_t shares)
      : each(blocks / shares), longer(blocks % shares) {}
  __device__ __forceinline__ uint32_t begin_of(uint32_t share) const { return each * share + min(share, longer); }
  __device__ __forceinline__ uint32_t size_of(uint32_t share) const { return each + (share < longer ? 1 : 0); }
  __device__ __forceinline__ uint32_t share_of(uint32_t block) const {
    const uint32_t in_longer = (each + 1) * longer;
    return block < in_longer ? block / (each + 1) : longer + (block - in_longer) / each;
  }
};

/* A (row, kv head) and its place in the line. */
struct stream_k_segment {
  int32_t row, kv_head;
  uint32_t begin, end;
};

/* Returns the segment that has block `at` of the line; the block must exist. Each lane may ask for another block. */
__device__ __forceinline__ stream_k_segment stream_k_find(const stream_k_rows &rows, int32_t N, int32_t heads,
                                                          uint32_t at) {
  const uint32_t H_kv = static_cast<uint32_t>(heads), wanted = at / H_kv;
  int32_t low = 0, high = N - 1; /* the search ends at the first row whose blocks go beyond `wanted` */
  ASSAY_ROLLED
  while (low < high) {
    const int32_t middle = (low + high) / 2;
    if (rows.through[middle] > wanted)
      high = middle;
    else
      low = middle + 1;
  }
  const uint32_t first = low > 0 ? rows.through[low - 1] : 0, blocks = rows.through[low] - first;
  const uint32_t head = (at - first * H_kv) / blocks, begin = first * H_kv + head * blocks;
  return {low, static_cast<int32_t>(head), begin, begin + blocks};
}

/* ---- pieces ------------------------------------------------------------------------------------------- */

/* A piece: blocks begin .. end - 1 of a (row, kv head), counted from its first block. The piece is empty if begin ==
 * end. */
struct stream_k_piece {
  int32_t row, kv_head;
  int32_t begin, end, blocks; /* blocks: of the whole (row, kv head) */
  uint32_t done, left; /* done: blocks of the share before the piece; left: length of the line after it, in the share */

  __device__ __forceinline__ bool there() const { return begin < end; }
  __device__ __forceinline__ bool from_first() const { return begin == 0; }
  __device__ __forceinline__ bool to_last() const { return end == blocks; }
};

/* Returns the number of blocks among the first `count` places of a (row, kv head)'s part of the line. */
__device__ __forceinline__ int32_t stream_k_among(uint32_t count) {
  return static_cast<int32_t>(count > stream_k_opening ? count - stream_k_opening : 0);
}

/* Returns the first piece of a share. *last becomes the last share that has blocks of this share's last (row, kv head),
 * if that one's first block is in this share. Otherwise *last becomes the share itself. The whole warp must call it. */
__device__ __forceinline__ stream_k_piece stream_k_first(const attention_params &a, const stream_k_rows &rows,
                                                         uint32_t share, uint32_t shares, uint32_t *last) {
  const int32_t N = static_cast<int32_t>(a.N), lane = static_cast<int32_t>(threadIdx.x % 32);
  const stream_k_line line(rows.through[N - 1] * static_cast<uint32_t>(a.H_kv), shares);
  const uint32_t begin = line.begin_of(share), size = line.size_of(share), end = begin + size;
  *last = share;
  if (size == 0) return {};
  /* Even lanes search for the first segment, odd lanes for the last. */
  const stream_k_segment found = stream_k_find(rows, N, a.H_kv, lane % 2 == 0 ? begin : end - 1);
  const uint32_t opened = found.begin + stream_k_opening;
  const uint32_t beyond = opened >= begin && opened < end ? line.share_of(found.end - 1) : share;
  const uint32_t first_begin = __shfl_sync(all_lanes, found.begin, 0), first_end = __shfl_sync(all_lanes, found.end, 0);
  const uint32_t until = min(first_end, end);
  *last = __shfl_sync(all_lanes, beyond, 1);
  return {__shfl_sync(all_lanes, found.row, 0),
          __shfl_sync(all_lanes, found.kv_head, 0),
          stream_k_among(begin - first_begin),
          stream_k_among(until - first_begin),
          stream_k_among(first_end - first_begin),
          0,
          end - until};
}

/* Returns the piece after `piece`. */
__device__ __forceinline__ stream_k_piece stream_k_next(const attention_params &a, const stream_k_rows &rows,
                                                        const stream_k_piece &piece) {
  stream_k_piece next = piece;
  next.done += static_cast<uint32_t>(piece.end - piece.begin);
  next.begin = next.end = 0;
  if (next.left <= stream_k_opening) return next;
  if (++next.kv_head == a.H_kv) {
    next.kv_head = 0;
    do {
      ++next.row;
      next.blocks = stream_k_among(rows.through[next.row] - rows.through[next.row - 1]);
    } while (next.blocks == 0);
  }
  next.end = min(next.blocks, stream_k_among(next.left));
  next.left -= static_cast<uint32_t>(next.end) + stream_k_opening;
  return next;
}

/* Returns this warp's run of a piece. The warps continue in turn where the previous piece ended. */
template <int warps>
__device__ __forceinline__ stream_run stream_k_run(const attention_params &a, const stream_k_rows &rows,
                                                   const stream_k_piece &piece) {
  const row_keys keys = stream_k_keys(a, piece.row, rows.length[piece.row]);
  const int32_t warp = static_cast<int32_t>(threadIdx.x / 32), origin = keys.first / stream_keys;
  const int32_t turn = static_cast<int32_t>(piece.done % static_cast<uint32_t>(warps));
  const int32_t mine = warp - turn + (warp < turn ? warps : 0);
  return {keys.request,       piece.kv_head, keys.first, keys.last, origin, origin + piece.begin + mine,
          origin + piece.end, warps};
}

/* ---- records ------------------------------------------------------------------------------------------ */

/* Areas of the workspace, in words of two f32. record: what each share leaves for an owner. begun: its last piece, if
 * other shares have the rest. instead: what is computed in place of a share. */
struct stream_k_memory {
  uint64_t *record, *begun, *instead; /* [shares][words] */
  int32_t words;

  __device__ __forceinline__ uint64_t *of(uint64_t *all, uint32_t share) const {
    return all + static_cast<int64_t>(share) * words;
  }
};

constexpr uint64_t stream_k_blank = ~UINT64_C(0);
constexpr int32_t stream_k_polls = 64; /* polls for a missing word; about 40 us */

/* Writes a word. If two NaN look like a blank word, they are replaced by other NaN. */
__device__ __forceinline__ void stream_k_put(uint64_t *to, float low, float high) {
  uint64_t word = static_cast<uint64_t>(bits_of(high)) << 32 | bits_of(low);
  if (word == stream_k_blank) word = UINT64_C(0x7FFFFFFF7FFFFFFF);
  store_relaxed(to, word);
}

/* Reads `count` words of a record. Returns false if one has not arrived. */
template <int count>
__device__ __forceinline__ bool stream_k_get(const uint64_t *const (&from)[count], uint64_t (&word)[count]) {
  bool there = false;
  ASSAY_ROLLED
  for (int32_t i = 0; !there && i < stream_k_polls; ++i) {
    there = true;
    ASSAY_UNROLL
    for (int n = 0; n < count; ++n)
      word[n] = load_relaxed(from[n]);
    ASSAY_UNROLL
    for (int n = 0; n < count; ++n)
      there = there && word[n] != stream_k_blank;
  }
  return there;
}

/* Blanks the records of shares own + 1 to last. The whole thread block must call it. */
template <int warps>
__device__ __forceinline__ void stream_k_await(const stream_k_memory &memory, uint32_t own, uint32_t last) {
  const int32_t words = memory.words * static_cast<int32_t>(last - own); /* the records are adjacent */
  uint64_t *const from = memory.of(memory.record, own + 1);
  ASSAY_ROLLED
  for (int32_t word = static_cast<int32_t>(threadIdx.x); word < words; word += 32 * warps)
    store_relaxed(from + word, stream_k_blank);
}

/* ---- host --------------------------------------------------------------------------------------------- */

constexpr int64_t stream_k_blocks_a_multiprocessor = 2;
/* The workspace is requested without a device, so it is as large as the largest Hopper needs. */
constexpr int64_t stream_k_most_shares = stream_k_blocks_a_multiprocessor * stream_multiprocessors;

inline int64_t stream_k_shares(const assay_env *env) {
  const int64_t wanted = stream_k_blocks_a_multiprocessor * env->multiprocessors;
  return wanted < stream_k_most_shares ? wanted : stream_k_most_shares;
}

/* Returns launch_options.shared_percent for thread blocks with `dynamic` bytes of dynamic shared memory. */
inline int32_t stream_k_shared_percent(int64_t dynamic) {
  constexpr int64_t all = 228 * 1024, others = 2048; /* the pieces, and what the system reserves */
  const int64_t bytes =
      stream_k_blocks_a_multiprocessor * (dynamic + static_cast<int64_t>(sizeof(stream_k_rows)) + others);
  const int32_t percent = static_cast<int32_t>((100 * bytes + all - 1) / all);
  return percent > stream_shared_percent ? percent : stream_shared_percent;
}

inline int64_t stream_k_workspace(int64_t words) {
  return 3 * stream_k_most_shares * words * static_cast<int64_t>(sizeof(uint64_t));
}

inline stream_k_memory stream_k_places(void *workspace, int64_t shares, int64_t words) {
  uint64_t *const memory = static_cast<uint64_t *>(workspace);
  return {memory, memory + shares * words, memory + 2 * shares * words, static_cast<int32_t>(words)};
}

} // namespace ASSAY_NS
#endif
