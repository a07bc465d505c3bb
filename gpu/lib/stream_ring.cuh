/* stream_ring.cuh: the walk over a run of keys (stream.cuh) for heads of any size, through shared memory.
 *
 * K and V of a block of 16 keys pass through a ring in the warp's shared memory, which cp.async fills. The ring has
 * room for `depth` blocks. K of a block makes room for K of the block that comes `depth` rounds later, and so does V.
 * Registers hold q and the sums alone.
 *
 * A copy's 16 bytes are the same channels of a key in both memories, and eight lanes read 128 bytes of a key. A key's
 * row is 16 bytes longer than its channels, so that the eight rows that ldmatrix reads lie in different banks. The
 * fragments are those of ptx_mma.cuh, with g = lane / 4 and j = lane mod 4:
 *
 *   K      keys g and g + 8, channels 16 i + 2 j, + 1, + 8, + 9
 *   q      head g mod heads, the same channels
 *   score  element 2 h + e: key g + 8 h, column 2 j + e
 *   V      channels 16 i + g and + 8, keys 2 j, + 1, + 8, + 9
 *
 * Copies fill with 0 what they do not read: keys that the row does not see. Channels after the head's last are set to 0
 * once, and no copy writes them. */
#ifndef ASSAY_GPU_LIB_STREAM_RING_CUH
#define ASSAY_GPU_LIB_STREAM_RING_CUH

#include "gpu/lib/stream.cuh"
#include "gpu/lib/stream_walk.cuh"

namespace ASSAY_NS {

/* Sizes in bytes: of a key's row, and of K, or of V, of a block. */
template <int D> constexpr int ring_row = 2 * D + 16;
template <int D> constexpr int ring_block = stream_keys *ring_row<D>;

/* Steps of 16 channels, and the fragments of q of a lane. Those of sixteen heads lie in shared memory. */
template <int D> constexpr int ring_steps = D / 16;
template <int heads> constexpr bool ring_shares_query = heads == 16;
template <int D, int heads> constexpr int ring_fragments = ring_steps<D> *stream_column_sets<heads>;

__host__ __device__ constexpr int larger_of(int a, int b) {
  return a > b ? a : b;
}

/* A warp's shared memory in floats. ring_alone_floats: the ring. ring_floats: the weights of a block and then the ring.
 * Later the sums take their place, as stream_shared_floats says, with `more` floats after them. */
template <int D, int depth> constexpr int ring_alone_floats = 2 * depth *(ring_block<D> / 4);
template <int D, int heads, int depth, int more>
constexpr int ring_floats = larger_of(stream_keys *heads + ring_alone_floats<D, depth>,
                                      (stream_shared_floats<D, heads> + more + 3) / 4 * 4);

/* Calls use(c) with c = 0 .. count - 1 as constants. */
template <int count, class Use> __device__ __forceinline__ void ring_times(Use use) {
  if constexpr (count > 0) {
    ring_times<count - 1>(use);
    use(std::integral_constant<int, count - 1>());
  }
}

/* Returns the fewest channels of the heads that a kernel of size D takes. */
__host__ __device__ constexpr int ring_least(int D) {
  return D == 256 ? 208 : D == 192 ? 144 : D == 112 || D == 96 ? 96 : 16;
}

/* Whether a lane's 16 bytes are those of a run through all channels of all keys. If not, eight lanes copy 128 bytes of
 * a key, and rows whose channels are no multiple of 64 take more requests. */
template <int D> constexpr bool ring_in_turn = D == 80 || D == 96 || D == 112;

/* Copies of K or of V of a block. A lane copies 16 bytes of some channels of some keys. */
template <class T, int D> struct ring_reader {
  static constexpr int lines = D / 64, least = ring_least(D);
  static constexpr int passes = ring_in_turn<D> ? D / 16 : 1; /* each has 32 lanes */
  int32_t lane, channels, slots;                              /* slots: of a physical block, minus one */
  int32_t place[passes]; /* in turn: the key of each pass, and 16 bits on its channel */

  __device__ __forceinline__ void begin(const attention_params &a) {
    lane = static_cast<int32_t>(threadIdx.x % 32);
    channels = a.D;
    slots = (1 << a.cache.block_shift) - 1;
    if constexpr (ring_in_turn<D>) {
      const int32_t chunks = a.D / 8;
      ASSAY_UNROLL
      for (int i = 0; i < passes; ++i) {
        const int32_t key = (lane + 32 * i) / chunks;
        place[i] = key | (lane + 32 * i - key * chunks) << 19;
      }
    }
  }

  /* Copies keys `from_key` to `last` of a block to the ring. at: the block's first key in the pool. */
  __device__ __forceinline__ void copy(const void *pool, int64_t at, int64_t token, int32_t from_key, int32_t last,
                                       char *to) const {
    const auto bytes = [&](int32_t key) { return key >= from_key && key <= last ? 16 : 0; };
    if constexpr (ring_in_turn<D>) {
      ASSAY_UNROLL
      for (int i = 0; i < passes; ++i) {
        const int32_t key = place[i] & 0xFFFF, channel = place[i] >> 16;
        if (key < stream_keys)
          cp_async_16(to + key * ring_row<D> + 2 * channel, element_at<T>(pool, at + key * token + channel),
                      bytes(key));
      }
    } else {
      const int32_t key = lane / 8, channel = 8 * (lane % 8);
      const T *from = element_at<T>(pool, at + key * token + channel);
      char *const here = to + key * ring_row<D> + 2 * channel;
      ring_times<4>([&](auto row) {
        constexpr int i = decltype(row)::value;
        const int count = bytes(key + 4 * i);
        ring_times<lines>([&](auto line) {
          constexpr int c = decltype(line)::value;
          if (64 * c + 64 <= least || 64 * c + channel < channels)
            cp_async_16_beside<4 * i * ring_row<D> + 128 * c, 128 * c>(here, from, count);
        });
        from = element_at<T>(from, 4 * token);
      });
    }
  }
  __device__ __forceinline__ void keys(const paged_cache &cache, const stream_run &run, int64_t block, int32_t n,
                                       char *to) const {
    const int64_t at = stream_key_at(cache, block, n, slots, run.kv_head * cache.k_head);
    copy(cache.k, at, cache.k_token, run.first - stream_keys * n, stream_left(run, n), to);
  }
  __device__ __forceinline__ void values(const paged_cache &cache, const stream_run &run, int64_t block, int32_t n,
                                         char *to) const {
    const int64_t at = stream_value_at(cache, block, n, slots, run.kv_head * cache.v_head);
    copy(cache.v, at, cache.v_token, run.first - stream_keys * n, stream_left(run, n), to);
  }
};

/* Sets the channels after the head's last to 0, in all rows of the ring. */
template <int D, int depth> __device__ __forceinline__ void ring_clear(int32_t channels, char *ring) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
  if (channels == D) return;
  for (int32_t row = lane; row < 2 * depth * stream_keys; row += 32)
    for (int32_t channel = channels; channel < D; channel += 8)
      *reinterpret_cast<uint4 *>(ring + row * ring_row<D> + 2 * channel) = make_uint4(0u, 0u, 0u, 0u);
}

/* Returns a lane's fragment of q: step i of a set of columns. */
template <class T, int heads>
__device__ __forceinline__ uint2 ring_query(const attention_params &a, int64_t row, int32_t kv_head, int set, int i) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
  if (16 * i >= a.D) return make_uint2(0u, 0u);
  const int32_t head = kv_head * a.G + min(stream_head_of_column<heads>(lane / 4, set), a.G - 1);
  const T *const from = element_at<T>(a.q, query_offset(a, row, head) + 16 * i + 2 * (lane % 4));
  return make_uint2(*reinterpret_cast<const uint32_t *>(from), *reinterpret_cast<const uint32_t *>(from + 8));
}

/* A lane's fragments of q. */
template <class T, int D, int heads> struct ring_queries {
  static constexpr bool shared = ring_shares_query<heads>;
  uint2 own[shared ? 1 : ring_fragments<D, heads>];
  const uint2 *all; /* [fragments][lanes], of this lane */

  /* Loads q. Where it is shared, `warps` warps of which this is number `warp` load it to `place`, and must wait for
   * each other then. */
  __device__ __forceinline__ void load(const attention_params &a, int64_t row, int32_t kv_head, uint2 *place,
                                       int32_t warp, int32_t warps) {
    const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
    all = place + lane;
    if constexpr (shared) {
      constexpr int32_t count = ring_fragments<D, heads>, at_once = 4;
      ASSAY_ROLLED
      for (int32_t first = warp; first < count; first += at_once * warps) {
        uint2 got[at_once];
        ASSAY_UNROLL
        for (int32_t u = 0; u < at_once; ++u) {
          const int32_t i = min(first + u * warps, count - 1);
          got[u] = ring_query<T, heads>(a, row, kv_head, i / ring_steps<D>, i % ring_steps<D>);
        }
        ASSAY_UNROLL
        for (int32_t u = 0; u < at_once; ++u)
          if (first + u * warps < count) place[32 * (first + u * warps) + lane] = got[u];
      }
    } else {
      ASSAY_UNROLL
      for (int i = 0; i < ring_fragments<D, heads>; ++i)
        own[i] = ring_query<T, heads>(a, row, kv_head, 0, i);
    }
  }
  __device__ __forceinline__ uint2 of(int i) const {
    if constexpr (shared) return all[32 * i];
    return own[i];
  }
};

/* Cuts the weights of a block, for V's order of keys. */
template <class T, int heads>
__device__ __forceinline__ void ring_cut(const float *weight, int32_t lane, stream_weights<heads> &b) {
  const int32_t g = lane / 4;
  uint32_t low[3], high[3];
  constexpr float unit = stream_unit<T>;
  ASSAY_UNROLL
  for (int c = 0; c < stream_column_sets<heads>; ++c) {
    const float *const mine = weight + 2 * (lane % 4) * heads + stream_head_of_column<heads>(g, c);
    stream_parts<T>(unit * mine[0], unit * mine[heads], low);
    stream_parts<T>(unit * mine[8 * heads], unit * mine[9 * heads], high);
    ASSAY_UNROLL
    for (int set = 0; set < stream_sets<heads>; ++set) {
      b[c][set][0] = stream_column<heads>(low, set, g);
      b[c][set][1] = stream_column<heads>(high, set, g);
    }
  }
}

template <int D, int heads> using ring_sums = float[ring_fragments<D, heads>][4]; /* a lane's sums of p v */

/* The walk of a warp over a run. `weigher` is that of stream_walk_dense.
 *
 * block, next: physical blocks of the run's first two blocks. own: where the weights go. pace: stream_pace or
 * stream_no_pace. */
template <class T, int D, int heads, int depth> struct ring_walk {
  ring_reader<T, D> reader;
  char *ring;
  int64_t ahead; /* the physical block that is asked for next */

  /* Asks for K of the run's first block, if it has one. */
  __device__ __forceinline__ void ask_first(const attention_params &a, const stream_run &run, int64_t block, char *to) {
    reader.begin(a);
    ring = to;
    if (run.begin < run.end) reader.keys(a.cache, run, block, run.begin, ring);
    cp_async_commit();
  }

  /* Asks for what else the ring has room for. */
  __device__ __forceinline__ void ask_rest(const attention_params &a, const stream_run &run, int64_t block,
                                           int64_t next) {
    ahead = block;
    ASSAY_UNROLL
    for (int d = 0; d < depth; ++d) {
      const int32_t n = run.begin + d * run.step;
      if (d > 0) {
        if (n < run.end) reader.keys(a.cache, run, ahead, n, ring + d * ring_block<D>);
        cp_async_commit();
      }
      if (n < run.end) reader.values(a.cache, run, ahead, n, ring + (depth + d) * ring_block<D>);
      cp_async_commit();
      ahead = d == 0 ? next : stream_block_of(a.cache, run, n + run.step, run.begin);
    }
    ring_clear<D, depth>(a.D, ring);
  }

  /* Adds p v of the run's keys to sum. */
  template <class Weigher, class Pace>
  __device__ __forceinline__ void walk(const attention_params &a, const stream_run &run,
                                       const ring_queries<T, D, heads> &query, float *own, Weigher &weigher,
                                       ring_sums<D, heads> &sum, Pace pace) {
    const int32_t lane = reader.lane, step = run.step;
    const char *const k_from = ring + lane % 16 * ring_row<D> + lane / 16 * 16;
    const char *const v_from =
        ring + depth * ring_block<D> + (lane % 8 + lane / 16 * 8) * ring_row<D> + lane / 8 % 2 * 16;
    int32_t at = 0; /* the ring's place of this block */
    for (int32_t n = run.begin; n < run.end; n += step) {
      const int32_t later = n + depth * step;
      cp_async_wait<2 * depth - 1>();
      __syncwarp(); /* K has come for all lanes */
      stream_kept<heads> kept;
      {
        float score[stream_column_sets<heads>][2][4] = {};
        ASSAY_UNROLL
        for (int i = 0; i < ring_steps<D>; ++i) {
          uint32_t k[4];
          ldmatrix_x4(k, k_from + at + 32 * i);
          ASSAY_UNROLL
          for (int set = 0; set < stream_column_sets<heads>; ++set) {
            const uint2 q = query.of(set * ring_steps<D> + i);
            const uint32_t b[2] = {q.x, q.y};
            mma_m16n8k16<T>(score[set][i % 2], k, b);
          }
        }
        ASSAY_UNROLL
        for (int set = 0; set < stream_column_sets<heads>; ++set) {
          float both[4];
          ASSAY_UNROLL
          for (int i = 0; i < 4; ++i)
            both[i] = score[set][0][i] + score[set][1][i];
          stream_keep<heads>(both, lane, set, kept);
        }
      }
      __syncwarp(); /* all lanes have read K */
      if (later < run.end) reader.keys(a.cache, run, ahead, later, ring + at);
      cp_async_commit();
      weigher.keep(kept, stream_keys * n);
      const int32_t after = stream_block_of(a.cache, run, later + step, run.begin);
      weigher.weigh(kept, own, sum);
      cp_async_wait<2 * depth - 1>();
      __syncwarp(); /* the weights are written, and V has come for all lanes */
      stream_weights<heads> weights;
      ring_cut<T, heads>(own, lane, weights);
      ASSAY_UNROLL
      for (int i = 0; i < ring_steps<D>; ++i) {
        uint32_t v[4];
        ldmatrix_x4_trans(v, v_from + at + 32 * i);
        ASSAY_UNROLL
        for (int c = 0; c < stream_column_sets<heads>; ++c) {
          ASSAY_UNROLL
          for (int set = 0; set < stream_sets<heads>; ++set)
            mma_m16n8k16<T>(sum[c * ring_steps<D> + i], v, weights[c][set]);
        }
      }
      __syncwarp(); /* all lanes have read V and the weights */
      pace.hold(n + step < run.end);
      if (later < run.end) reader.values(a.cache, run, ahead, later, ring + depth * ring_block<D> + at);
      cp_async_commit();
      pace.abreast();
      ahead = after;
      if (depth > 1) at = at < (depth - 1) * ring_block<D> ? at + ring_block<D> : 0;
    }
  }
};

/* Adds the parts and writes the sums to shared memory as [heads][channels], over the weights and the ring. */
template <class T, int D, int heads>
__device__ __forceinline__ void ring_put_sums(const ring_sums<D, heads> &sum, float *shared, int32_t channels) {
  /* Lanes with the same heads; steps of a set that a lane writes. */
  constexpr int copies = heads < 8 ? 8 / heads : 1, each = (ring_steps<D> + copies - 1) / copies, all = copies * each;
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32), g = lane / 4, j = lane % 4;
  float whole[stream_column_sets<heads> * all][4] = {};
  ASSAY_UNROLL
  for (int i = 0; i < ring_fragments<D, heads>; ++i) {
    ASSAY_UNROLL
    for (int c = 0; c < 4; ++c)
      whole[i][c] = sum[i][c];
  }
  if constexpr (heads < 8) stream_add_half<2, all>(whole, lane);
  if constexpr (heads < 4) stream_add_half<1, all / 2>(whole, lane);
  __syncwarp(); /* all lanes are done with the weights and the ring */
  ASSAY_UNROLL
  for (int i = 0; i < stream_column_sets<heads> * each; ++i) {
    ASSAY_UNROLL
    for (int c = 0; c < 4; ++c) {
      const int32_t head = heads == 2    ? c % 2
                           : heads == 16 ? 4 * j + i / each * 2 + c % 2
                                         : 2 * (j % (heads / 2)) + c % 2;
      const int32_t channel = 16 * (j / (4 / copies) * each + i % each) + g + c / 2 * 8;
      if (channel >= channels) continue;
      shared[head * channels + channel] = whole[i][c] * (1.0f / stream_unit<T>);
    }
  }
}

} // namespace ASSAY_NS
#endif
