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

/* Returns this warp's run of a piece. The warps continue in turn where the previous piece ended. If `apart`, each of n
 * warps has every n-th block. Otherwise each has an even part of adjacent blocks; the first warps of the turn have one
 * more. */
template <int warps, bool apart>
__device__ __forceinline__ stream_run stream_k_run(const attention_params &a, const stream_k_rows &rows,
                                                   const stream_k_piece &piece) {
  const row_keys keys = stream_k_keys(a, piece.row, rows.length[piece.row]);
  const int32_t warp = static_cast<int32_t>(threadIdx.x / 32), origin = keys.first / stream_keys;
  const int32_t turn = static_cast<int32_t>(piece.done % static_cast<uint32_t>(warps));
  const int32_t mine = warp - turn + (warp < turn ? warps : 0);
  if constexpr (apart) {
    return {keys.request,       piece.kv_head, keys.first, keys.last, origin, origin + piece.begin + mine,
            origin + piece.end, warps};
  } else {
    const int32_t blocks = piece.end - piece.begin, each = blocks / warps, longer = blocks % warps;
    const int32_t begin = origin + piece.begin + each * mine + min(mine, longer);
    return {
        keys.request, piece.kv_head, keys.first, keys.last, origin, begin, begin + each + (mine < longer ? 1 : 0), 1};
  }
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

/* ---- the kernels' common part ------------------------------------------------------------------------- */

constexpr uint32_t records_at_once = 2; /* records that are requested together */

/* A pair of channels of a head, which lie half a head apart. channel: of the first of the two, among all heads; number:
 * among all pairs. The threads of a head after its last pair repeat that pair and write nothing. */
struct stream_k_pair {
  int32_t head, channel, number;
  bool there;
};
__device__ __forceinline__ stream_k_pair stream_k_pair_of(int32_t i, int32_t threads_of_head, int32_t half) {
  const int32_t head = i / threads_of_head, within = min(i % threads_of_head, half - 1);
  return {head, head * 2 * half + within, head * half + within, i % threads_of_head < half};
}

/* Prefetches the keys before a run that the weigher needs; the table maps their block to `block`. */
template <class Kind>
__device__ __forceinline__ void stream_k_ask_halo(const attention_params &a, const stream_run &run, int64_t block) {
  if (run.begin >= run.end || run.begin == run.origin) return;
  const paged_cache &cache = a.cache;
  const int64_t slot = (stream_keys * run.begin - Kind::halo) & ((1 << cache.block_shift) - 1);
  stream_ask_lines<typename Kind::KV, Kind::D>(
      cache.k, block * cache.k_block + slot * cache.k_token + run.kv_head * cache.k_head, cache.k_token, Kind::halo - 1,
      a.D);
}

/* Handles an even share of the keys of all rows and kv heads. One thread block has one share. Kind is what is done with
 * the scores of a key:
 *
 *   T, KV, D, heads     as of the kernel
 *   params              the kernel's parameters, with `a`
 *   warps, floats       per thread block; shared memory per warp
 *   apart               whether the warps of a piece have blocks in turn, or adjacent ones (stream_k_run)
 *   dense               whether V of every key is read
 *   halo                keys before a run that the weigher needs
 *   walker              the walk of a warp, and the part of the next run that it keeps while a run is finished:
 *     load(a, run, block)               asks for the run's first keys
 *     begin(a, run, block, next, shared)   asks for what the walk needs besides
 *     walk(.., follow)                  walks; follow() asks for the first keys of the next run
 *   weigher, put        turns scores into weights; puts what it has summed itself to the warp's shared memory
 *   sums_of_warp, put_sums   a lane's sums of p v; puts the warp's to its shared memory
 *   threads_of_head     threads that join the pairs of a head
 *   sums, none, joined, add           sums of a pair: of no keys, of all warps, of more keys
 *   put_record, get_records, write    a pair as part of a record, and as a result */
template <class Kind>
__device__ __forceinline__ void stream_k_body(const typename Kind::params &p, const stream_k_memory &memory,
                                              float *shared) {
  using KV = typename Kind::KV;
  using sums_of = typename Kind::sums;
  constexpr int D = Kind::D, floats = Kind::floats, warps = Kind::warps;
  ASSAY_SHARED(stream_k_rows, all_rows, 1);
  ASSAY_SHARED(stream_k_piece, pieces, 2 * warps); /* per warp: this piece and the next */
  ASSAY_SHARED(uint32_t, last_share, 1);
  stream_k_rows &rows = all_rows[0];
  const attention_params &a = p.a;
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = 32 * warps, lane = thread % 32;
  const int32_t half = stream_channels<D>(a) / 2;
  const int32_t pairs = a.G * half; /* pairs of two channels of a head, half of the head apart */
  const uint32_t shares = gridDim.x, own = blockIdx.x;
  stream_k_piece *const kept_pieces = pieces + 2 * (thread / 32);
  typename Kind::walker walker = {};

  /* Physical blocks of a run's first two blocks and, if the weigher has a halo, of the block before, from the table. */
  int32_t block = 0, next = 0, before = 0;
  const auto run_of = [&](const stream_k_piece &of) { return stream_k_run<warps, Kind::apart>(a, rows, of); };
  const auto look_up = [&](const stream_run &of) {
    block = stream_block_of(a.cache, of, of.begin, of.begin);
    next = stream_block_of(a.cache, of, of.begin + of.step, of.begin);
    if constexpr (Kind::halo > 0) before = stream_block_of(a.cache, of, of.begin - 1, of.origin);
  };
  const auto load_first = [&](const stream_run &of) {
    walker.load(a, of, block);
    if constexpr (Kind::halo > 0) stream_k_ask_halo<Kind>(a, of, before);
  };
  const auto write_out = [&](int32_t row, int32_t kv_head, int32_t pair, const sums_of &sums) {
    Kind::write(p, static_cast<int64_t>(row) * a.H_kv + kv_head, kv_head, pair, sums);
  };

  dependents_launch();
  int32_t turn = 0;     /* which of the two areas is used */
  uint32_t share = own; /* after `own`: the share whose piece is computed in its place */
  bool early = true, again = true;
  while (again) {
    again = false;
    /* The first keys are prefetched and loaded by the lengths and the table as they are before it is this launch's
     * turn. If these were not final, the loop runs once more. */
    if (share == own) stream_k_look<warps>(a, rows);
    uint32_t last;
    stream_k_piece piece = stream_k_first(a, rows, share, shares, &last);
    stream_run run = {};
    bool same = true;
    if (piece.there()) {
      run = run_of(piece);
      if (early && run.begin < run.end) {
        block = load_early(a.cache.table + piece.row * a.cache.table_row + (run.begin >> (a.cache.block_shift - 4)));
        same = stream_in_pool(a.cache, run, block);
        stream_ask_keys<KV, D>(a, run, block);
        if constexpr (Kind::dense) stream_ask_values<KV, D>(a, run, block);
      }
    }
    if (early) dependency_wait();
    if (piece.there()) {
      const int32_t guessed = block;
      if (early && same) walker.load(a, run, block); /* the block before is not known yet */
      look_up(run);
      same = same && (run.begin >= run.end || block == guessed);
      if (!early) load_first(run);
    }
    if (early) {
      early = false;
      again = __syncthreads_and(same && stream_k_same<warps>(a, rows)) == 0;
      if (again) continue;
    }
    if (share == own) {
      stream_k_await<warps>(memory, own, last);
      if (thread == 0) last_share[0] = last;
    }

    while (piece.there()) {
      float *const mine = shared + (turn * warps + thread / 32) * floats;
      typename Kind::sums_of_warp sum = {};
      typename Kind::weigher weigher;
      run = run_of(piece);
      walker.begin(a, run, block, next, mine);
      weigher.begin(p, run);
      const int32_t first_block = block, second_block = next, block_before = before;
      stream_k_piece following = stream_k_next(a, rows, piece);
      if (share != own) following.end = following.begin;
      if (lane == 0) {
        kept_pieces[0] = piece;
        kept_pieces[1] = following;
      }
      __syncwarp(); /* the pieces are written */
      if (following.there()) look_up(run_of(following));
      const auto follow = [&] {
        const stream_k_piece then = kept_pieces[1];
        if (then.there()) load_first(run_of(then));
      };
      walker.walk(a, run, block_before, first_block, second_block, mine, weigher, sum, follow);
      Kind::put_sums(sum, mine, 2 * half);
      Kind::put(weigher, mine);
      __syncthreads(); /* the warps' sums are written */

      const stream_k_piece now = kept_pieces[0];
      piece = kept_pieces[1];
      __syncwarp();        /* the pieces have been read */
      if (piece.there()) { /* a warp without a block of the last piece has loaded nothing yet */
        const stream_run ended = run_of(now);
        if (ended.begin >= ended.end) load_first(run_of(piece));
      }
      const bool whole = now.from_first() && now.to_last();
      const bool begun = now.from_first() && !whole; /* begun here, and other shares have the rest */
      last = last_share[0];
      const float *const area = shared + turn * warps * floats;
      uint64_t *const record = memory.of(begun ? memory.begun : share == own ? memory.record : memory.instead, share);
      turn ^= 1;
      bool missing = false;
      ASSAY_ROLLED
      for (int32_t i = thread; i < a.G * Kind::threads_of_head(half); i += threads) {
        const stream_k_pair at = stream_k_pair_of(i, Kind::threads_of_head(half), half);
        const int32_t pair = at.number;
        const sums_of part = Kind::joined(area, at, half);
        sums_of all = part;
        if (!at.there) continue;
        if (!whole) Kind::put_record(half, record, pairs, pair, part);
        if (begun) {
          ASSAY_ROLLED
          for (uint32_t other = own + 1; other <= last && !missing; other += records_at_once) {
            sums_of more[records_at_once];
            const uint32_t left = last + 1 - other;
            missing = !Kind::get_records(half, memory.of(memory.record, other), memory.words, left, pairs, pair, more);
            ASSAY_UNROLL
            for (uint32_t n = 0; n < records_at_once; ++n)
              if (n < left) Kind::add(&all, more[n]);
          }
        } else if (share != own && share == last) {
          sums_of of[1];
          (void)Kind::get_records(half, memory.of(memory.begun, own), 0, 1, pairs, pair, of);
          all = of[0];
          ASSAY_ROLLED
          for (uint32_t other = own + 1; other <= last && !missing; ++other) {
            of[0] = part; /* the piece that was computed here last */
            if (other != share)
              missing = !Kind::get_records(half, memory.of(memory.instead, other), 0, 1, pairs, pair, of);
            Kind::add(&all, of[0]);
          }
        } else if (!whole) {
          continue;
        }
        if (!missing) write_out(now.row, now.kv_head, pair, all);
      }
      if (begun) again = __syncthreads_or(missing) != 0;
      if (share != own) again = share < last;
      if (again) ++share; /* all awaited pieces are computed anew, in turn */
    }
  }

  /* Rows without keys are in no share. */
  ASSAY_ROLLED
  for (int32_t row = static_cast<int32_t>(own); row < static_cast<int32_t>(a.N); row += static_cast<int32_t>(shares)) {
    if (rows.length[row] > 0) continue;
    ASSAY_ROLLED
    for (int32_t i = thread; i < a.H_kv * pairs; i += threads)
      write_out(row, i / pairs, i % pairs, Kind::none());
  }
}

/* ---- host --------------------------------------------------------------------------------------------- */

constexpr int64_t stream_k_blocks_a_multiprocessor = 2;
/* The workspace is requested without a device, so it is as large as the largest Hopper needs. */
constexpr int64_t stream_k_most_shares = stream_k_blocks_a_multiprocessor * stream_multiprocessors;

inline int64_t stream_k_shares(const assay_env *env) {
  const int64_t wanted = stream_k_blocks_a_multiprocessor * env->multiprocessors;
  return wanted < stream_k_most_shares ? wanted : stream_k_most_shares;
}

/* Returns launch_options.shared_percent for thread blocks with `dynamic` bytes of dynamic shared memory. More than all
 * cannot be asked for: the estimate of other bytes is too high by some hundred. */
inline int32_t stream_k_shared_percent(int64_t dynamic) {
  constexpr int64_t all = 228 * 1024, others = 2048; /* the pieces, and what the system reserves */
  const int64_t bytes =
      stream_k_blocks_a_multiprocessor * (dynamic + static_cast<int64_t>(sizeof(stream_k_rows)) + others);
  const int32_t percent = static_cast<int32_t>((100 * bytes + all - 1) / all);
  return percent > 100 ? 100 : percent > stream_shared_percent ? percent : stream_shared_percent;
}

/* Returns the launch options of `shares` thread blocks with `dynamic` bytes of dynamic shared memory. */
inline launch_options stream_k_options(int64_t shares, int64_t dynamic) {
  constexpr int64_t most_resident = 8; /* for simt; nothing depends on it */
  launch_options options = in_turn();
  options.shared_percent = stream_k_shared_percent(dynamic);
  options.resident = static_cast<int32_t>(shares < most_resident ? shares : most_resident);
  return options;
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
