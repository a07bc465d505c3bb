/* softmax_stream_k.cuh: the streamed decode with a softmax (softmax_stream.cuh), in even shares (stream_k.cuh). */
#ifndef ASSAY_GPU_LIB_SOFTMAX_STREAM_K_CUH
#define ASSAY_GPU_LIB_SOFTMAX_STREAM_K_CUH

#include "gpu/lib/softmax_stream.cuh"
#include "gpu/lib/stream_any.cuh"
#include "gpu/lib/stream_any_plan.h"
#include "gpu/lib/stream_k.cuh"
#include "gpu/lib/stream_pace.cuh"

namespace ASSAY_NS {

/* Returns the number of warps per thread block. Two thread blocks are on a multiprocessor. */
__host__ __device__ constexpr int stream_k_warps(int D, int heads) {
  return (D == 112 || D > 128 ? stream_any_warps : softmax_stream_warps(D, heads)) / 2;
}

constexpr uint32_t records_at_once = 2; /* records that are requested together */

/* The walk of a warp, and the part of the next run that it keeps while a run is finished. This one has K and V of a
 * block in registers of their own.
 *
 *   load(a, run, block)       asks for the run's first keys
 *   begin(a, run, block, ..)  asks for what the walk needs besides
 *   walk(.., follow)          walks; follow() asks for the first keys of the next run */
template <class T, class KV, int D, int heads> struct stream_k_apart {
  stream_fragment<KV, D, heads> k;
  uint4 q[stream_query_loads<KV, D, heads>];
  stream_share<KV, D> v;

  __device__ __forceinline__ void load(const attention_params &a, const stream_run &run, int64_t block) {
    stream_load_query<T, KV, D, heads>(a, run.request, run.kv_head, q);
    stream_first_keys<KV, D, heads>(a.cache, run, block, k);
  }
  __device__ __forceinline__ void begin(const attention_params &a, const stream_run &run, int64_t block, float *) {
    v = stream_first_values<KV, D>(a.cache, run, block);
  }
  template <class Weigher, class Follow>
  __device__ __forceinline__ void walk(const attention_params &a, const stream_run &run, int64_t, int64_t next,
                                       float *shared, Weigher &weigher, stream_sums<D, heads> &sum, Follow follow) {
    stream_walk_dense<T, KV, D, heads>(a, run, q, k, v, next, shared, weigher, sum, stream_no_pace(), follow);
  }
};

/* The same with the ring of stream_any.cuh. Its registers are free only when the walk is over. */
template <class T, class KV, int D, int heads> struct stream_k_ring {
  stream_ring<KV, D, heads> ring;

  __device__ __forceinline__ void load(const attention_params &a, const stream_run &run, int64_t block) {
    stream_first_units<false, KV, D, heads>(a, run, block, ring);
  }
  __device__ __forceinline__ void begin(const attention_params &a, const stream_run &run, int64_t, float *shared) {
    stream_put_query<T, KV, D, heads>(a, run.request, run.kv_head, shared);
  }
  template <class Weigher, class Follow>
  __device__ __forceinline__ void walk(const attention_params &a, const stream_run &run, int64_t block, int64_t next,
                                       float *shared, Weigher &weigher, stream_sums<D, heads> &sum, Follow follow) {
    stream_walk_any<false, T, KV, D, heads>(a, run, ring, block, next, shared, weigher, sum, stream_no_pace());
    if (run.begin < run.end) follow();
  }
};

/* Writes a pair of a record. A record has the sums of two channels, [G][D / 2], then peak and total, [G]. pair: index
 * among the sums. */
__device__ __forceinline__ void put_record(int32_t half, uint64_t *record, int32_t pairs, int32_t pair,
                                           const softmax_sums &sums) {
  stream_k_put(record + pair, sums.first.sum, sums.second);
  if (pair % half == 0) stream_k_put(record + pairs + pair / half, sums.first.peak, sums.first.total);
}
/* Reads the first `there_are` of `count` records that are `apart` words from each other, all at once. Entries of `sums`
 * after them have no meaning. Returns false if a record has not arrived. */
template <int count>
__device__ __forceinline__ bool get_records(int32_t half, const uint64_t *record, int32_t apart, uint32_t there_are,
                                            int32_t pairs, int32_t pair, softmax_sums (&sums)[count]) {
  const uint64_t *from[2 * count];
  uint64_t word[2 * count];
  ASSAY_UNROLL
  for (int n = 0; n < count; ++n) {
    const uint64_t *const of = record + static_cast<int64_t>(min(static_cast<uint32_t>(n), there_are - 1)) * apart;
    from[2 * n] = of + pair;
    from[2 * n + 1] = of + pairs + pair / half;
  }
  const bool there = stream_k_get(from, word);
  const auto low = [](uint64_t of) { return float_of(static_cast<uint32_t>(of)); };
  const auto high = [](uint64_t of) { return float_of(static_cast<uint32_t>(of >> 32)); };
  ASSAY_UNROLL
  for (int n = 0; n < count; ++n)
    sums[n] = {{low(word[2 * n + 1]), high(word[2 * n + 1]), low(word[2 * n])}, high(word[2 * n])};
  return there;
}

/* softmax_stream_k: handles an even share of the keys of all rows and kv heads.
 * Grid:   one block per share, two shares per multiprocessor. Block: 6 warps, or 4.
 * Shared: softmax_shared_floats per warp, twice, used in turn: the weights of two blocks of 16 keys, and later the
 * warp's sums, peaks, totals.
 * Align:  16 bytes for q, K, V and all their strides. Arch: sm_80 and above.
 * Limit:  bytes: 2 * L * D * sizeof(KV) per row and kv head. */
template <class T, class KV, int D, int heads>
__global__ void __launch_bounds__(32 * stream_k_warps(D, heads), 2)
    softmax_stream_k(softmax_params p, stream_k_memory memory) {
  ASSAY_DYNAMIC_SHARED(float, shared);
  constexpr int floats = softmax_shared_floats<D, heads>, warps = stream_k_warps(D, heads);
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
  std::conditional_t<stream_any<D>, stream_k_ring<T, KV, D, heads>, stream_k_apart<T, KV, D, heads>> walker = {};

  /* Physical blocks of a run's first two blocks, from the table. */
  int32_t block = 0, next = 0;
  const auto look_up = [&](const stream_run &of) {
    block = stream_block_of(a.cache, of, of.begin, of.begin);
    next = stream_block_of(a.cache, of, of.begin + warps, of.begin);
  };
  const auto load_first = [&](const stream_run &of) { walker.load(a, of, block); };
  const auto write_out = [&](int32_t row, int32_t kv_head, int32_t pair, const softmax_sums &sums) {
    softmax_write<T, KV, D>(p, static_cast<int64_t>(row) * a.H_kv + kv_head, kv_head, pair, sums);
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
      run = stream_k_run<warps>(a, rows, piece);
      if (early && run.begin < run.end) {
        block = load_early(a.cache.table + piece.row * a.cache.table_row + (run.begin >> (a.cache.block_shift - 4)));
        same = stream_in_pool(a.cache, run, block);
        stream_ask_keys<KV, D>(a, run, block);
        stream_ask_values<KV, D>(a, run, block);
      }
    }
    if (early) dependency_wait();
    if (piece.there()) {
      const int32_t guessed = block;
      if (early && same) load_first(run);
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
      stream_sums<D, heads> sum = {};
      softmax_weigher<KV, heads> weigher;
      run = stream_k_run<warps>(a, rows, piece);
      walker.begin(a, run, block, mine);
      weigher.begin(p, run);
      const int32_t first_block = block, second_block = next;
      stream_k_piece following = stream_k_next(a, rows, piece);
      if (share != own) following.end = following.begin;
      if (lane == 0) {
        kept_pieces[0] = piece;
        kept_pieces[1] = following;
      }
      __syncwarp(); /* the pieces are written */
      if (following.there()) look_up(stream_k_run<warps>(a, rows, following));
      const auto follow = [&] {
        const stream_k_piece then = kept_pieces[1];
        if (then.there()) load_first(stream_k_run<warps>(a, rows, then));
      };
      walker.walk(a, run, first_block, second_block, mine, weigher, sum, follow);
      stream_put_sums<T, KV, D, heads>(sum, mine, 2 * half);
      weigher.put(mine + stream_shared_floats<D, heads>);
      __syncthreads(); /* the warps' sums are written */

      const stream_k_piece now = kept_pieces[0];
      piece = kept_pieces[1];
      __syncwarp();        /* the pieces have been read */
      if (piece.there()) { /* a warp without a block of the last piece has loaded nothing yet */
        const stream_run ended = stream_k_run<warps>(a, rows, now);
        if (ended.begin >= ended.end) load_first(stream_k_run<warps>(a, rows, piece));
      }
      const bool whole = now.from_first() && now.to_last();
      const bool begun = now.from_first() && !whole; /* begun here, and other shares have the rest */
      last = last_share[0];
      const float *const area = shared + turn * warps * floats, *const peaks = area + stream_shared_floats<D, heads>;
      uint64_t *const record = memory.of(begun ? memory.begun : share == own ? memory.record : memory.instead, share);
      turn ^= 1;
      bool missing = false;
      ASSAY_ROLLED
      for (int32_t i = thread; i < a.G * softmax_threads_of_head(2 * half); i += threads) {
        const softmax_pair at = softmax_pair_of(i, 2 * half);
        const int32_t head = at.head, channel = at.channel, pair = at.number;
        const softmax_sums part =
            joined<warps>(peaks + head, peaks + heads + head, area + channel, warps, floats, half);
        softmax_sums all = part;
        if (!at.there) continue;
        if (!whole) put_record(half, record, pairs, pair, part);
        if (begun) {
          ASSAY_ROLLED
          for (uint32_t other = own + 1; other <= last && !missing; other += records_at_once) {
            softmax_sums more[records_at_once];
            const uint32_t left = last + 1 - other;
            missing = !get_records(half, memory.of(memory.record, other), memory.words, left, pairs, pair, more);
            ASSAY_UNROLL
            for (uint32_t n = 0; n < records_at_once; ++n)
              if (n < left) add_sums(&all, more[n]);
          }
        } else if (share != own && share == last) {
          softmax_sums of[1];
          (void)get_records(half, memory.of(memory.begun, own), 0, 1, pairs, pair, of);
          all = of[0];
          ASSAY_ROLLED
          for (uint32_t other = own + 1; other <= last && !missing; ++other) {
            of[0] = part; /* the piece that was computed here last */
            if (other != share) missing = !get_records(half, memory.of(memory.instead, other), 0, 1, pairs, pair, of);
            add_sums(&all, of[0]);
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
    const softmax_sums none = {{-INFINITY, 0.0f, 0.0f}, 0.0f};
    ASSAY_ROLLED
    for (int32_t i = thread; i < a.H_kv * pairs; i += threads)
      write_out(row, i / pairs, i % pairs, none);
  }
}

/* ---- launcher ---------------------------------------------------------------------------------------- */

inline int64_t softmax_stream_k_words(const attention_params &a) {
  return softmax_sent_words(a.G, a.D);
}

/* any: whether the kernels are those of heads of any size. */
template <class Types, bool any>
assay_status softmax_stream_k_launch(const softmax_params &p, const attention_types &types, int64_t shares,
                                     void *workspace, assay_env *env, assay_error *error) {
  constexpr int64_t most_resident = 8; /* for simt; nothing depends on it */
  const stream_k_memory memory = stream_k_places(workspace, shares, softmax_stream_k_words(p.a));
  const auto launch = [&](auto type, auto cached, auto channels, auto columns) {
    using T = typename decltype(type)::type;
    using KV = typename decltype(cached)::type;
    constexpr int D = decltype(channels)::is, heads = decltype(columns)::is;
    constexpr int64_t warps = stream_k_warps(D, heads), shared = 4 * 2 * warps * softmax_shared_floats<D, heads>;
    launch_options options = in_turn();
    options.shared_percent = stream_k_shared_percent(shared);
    options.resident = static_cast<int32_t>(shares < most_resident ? shares : most_resident);
    return ASSAY_LAUNCH_WITH(error, (softmax_stream_k<T, KV, D, heads>), shares, 32 * warps, shared, options,
                             env->stream, p, memory);
  };
  if constexpr (any)
    return stream_any_112<Types>(types, p.a.G, launch);
  else
    return stream_with<Types>(types, p.a.D, p.a.G, launch);
}

} // namespace ASSAY_NS
#endif
