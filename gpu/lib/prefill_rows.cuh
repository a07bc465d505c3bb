/* prefill_rows.cuh: single rows of a ragged prefill, with the bits that prefill_wgmma.cuh gives them in a prompt. It is
 * for more rows than clusters find multiprocessors (prefill_few.cuh). A prompt's row is one chain over tiles of
 * 128 keys: running sums by steps of 16 keys. The chain is kept here, and each kind of work has warps of its own, so
 * that nothing waits for what it does not need.
 *
 *   loaders   2 warps for a ring of keys, and 2 for a ring of values
 *   scores    4 warps, 16 keys each
 *   weights   1 warp makes the weights of all tiles in order.
 *   values    4 warps with equal shares of the channels, with one chain per channel over all keys
 *
 * A block has one row and group of heads after the other, and its loaders run ahead into the next ones. The number of
 * stages changes no bit.
 *
 * Row r of a stage lies at r * pitch + r / 16 * 32. The pitch is 16 bytes more than a row, so that eight rows
 * that ldmatrix reads lie in different banks. */
#ifndef ASSAY_GPU_LIB_PREFILL_ROWS_CUH
#define ASSAY_GPU_LIB_PREFILL_ROWS_CUH

#include "gpu/lib/prefill_single.cuh"

namespace ASSAY_NS {

constexpr int32_t single_most_stages = 12, single_slots = 4; /* slots: tiles whose scores and weights have room */

template <class Params> struct single_params {
  Params s;
  int32_t k_stages, v_stages; /* stages of the rings */
  int32_t sets, heads;        /* blocks side by side that share a kv head's group; most heads of one */
};

__host__ __device__ constexpr int32_t single_row(int32_t row, int32_t pitch) {
  return row * pitch + (row >> 4) * 32;
}

/* Places in shared memory, in bytes. A score of token t of a tile lies at t + t / 16 * 4. */
struct single_layout {
  static constexpr int32_t scores_row = (single_tile / 16 * 20 + 4) * 4, weights_row = single_tile * 2 + 16;
  int32_t pitch, stage_bytes, v_at, scores, weights, notes, barriers, bytes;
  template <class Params> __host__ __device__ single_layout(const single_params<Params> &p, int32_t D) {
    pitch = 2 * D + 16;
    stage_bytes = single_row(single_half, pitch);
    v_at = p.k_stages * stage_bytes;
    scores = v_at + p.v_stages * stage_bytes;
    weights = scores + single_slots * p.heads * scores_row;
    notes = weights + single_slots * p.heads * weights_row;
    barriers = notes + single_slots * 32 * 16;
    bytes = barriers + 8 * (4 * single_most_stages + 4 * single_slots);
  }
};

/* The barriers: full and free of each ring's stages; for each slot, scores sent and used, weights made and used. */
struct single_control {
  uint64_t k_full[single_most_stages], k_free[single_most_stages], v_full[single_most_stages],
      v_free[single_most_stages];
  uint64_t scored[single_slots], unscored[single_slots], weighed[single_slots], unweighed[single_slots];
};

constexpr int32_t single_scorers = 4, single_adders = 4, single_loaders = 2; /* warps; loaders: per ring */
constexpr int32_t single_threads = 32 * (single_scorers + single_adders + 1 + 2 * single_loaders);

template <class T, int D, class Rule> struct single_block {
  using params = single_params<typename Rule::params>;
  const params &p;
  const attention_params &a;
  unsigned char *const shared;
  const single_layout at;
  single_control *const control;
  const int32_t warp, lane;
  int32_t kv_head, head, G, request, keys, tiles;
  int32_t row, before; /* before: tiles of the rows before */

  __device__ __forceinline__ single_block(const params &p_, unsigned char *shared_)
      : p(p_), a(p_.s.a), shared(shared_), at(p_, D),
        control(reinterpret_cast<single_control *>(shared_ + at.barriers)),
        warp(static_cast<int32_t>(threadIdx.x) / 32), lane(static_cast<int32_t>(threadIdx.x) % 32), before(0) {}

  template <class X> __device__ __forceinline__ X *place(int32_t offset) const {
    return reinterpret_cast<X *>(shared + offset);
  }

  /* Returns the slot of a tile, and the slot's turns before, by the tile's number among those of all rows so far. */
  __device__ __forceinline__ int32_t slot_of_tile(int32_t tile) const { return (before + tile) % single_slots; }
  __device__ __forceinline__ int32_t turn_of_tile(int32_t tile) const { return (before + tile) / single_slots; }

  __device__ __forceinline__ void make_barriers() const {
    constexpr uint32_t loading = 32 * single_loaders;
    for (int32_t i = 0; i < p.k_stages; ++i) {
      mbarrier_init(&control->k_full[i], loading);
      mbarrier_init(&control->k_free[i], single_scorers);
    }
    for (int32_t i = 0; i < p.v_stages; ++i) {
      mbarrier_init(&control->v_full[i], loading);
      mbarrier_init(&control->v_free[i], single_adders);
    }
    for (int32_t i = 0; i < single_slots; ++i) {
      mbarrier_init(&control->scored[i], single_scorers);
      mbarrier_init(&control->unscored[i], 1);
      mbarrier_init(&control->weighed[i], 1);
      mbarrier_init(&control->unweighed[i], single_adders);
    }
    mbarrier_fence_init();
  }

  /* Finds the row's request and its number of keys. In a step of single tokens, row n is that of request n. */
  __device__ __forceinline__ void find() {
    row_keys found = {row, 0, -1};
    const int32_t next = min(row, a.B - 1); /* -1: no requests */
    const bool alone = next >= 0 && a.cu_q[next] == row && a.cu_q[next + 1] == row + 1;
    const int32_t length = next >= 0 ? a.length[next] : 0;
    if (alone)
      found = {next, 0, length - 1};
    else
      found = keys_of_row(a, row);
    request = found.request;
    keys = found.last + 1;
    tiles = (keys + single_tile - 1) / single_tile;
  }

  /* Calls use() for each row and group of heads that the block has. */
  template <class Use> __device__ __forceinline__ void each_row(Use use) {
    const int32_t in_row = a.H_kv * p.sets;
    for (int32_t unit = static_cast<int32_t>(blockIdx.x);; unit += static_cast<int32_t>(gridDim.x)) {
      row = unit / in_row;
      if (row >= a.N) break;
      const int32_t in = unit - row * in_row, set = in % p.sets;
      kv_head = in / p.sets;
      head = kv_head * a.G + set * p.heads;
      G = min(p.heads, a.G - set * p.heads);
      find();
      use();
      before += tiles;
    }
  }

  /* ---- loaders  */

  /* Calls fill(first, block_of) for each 64 keys. `first` is a key, and block_of(token) returns the block of one of
   * these tokens. A look-up between copies would wait for all copies before it. Each lane of a warp therefore holds an
   * entry of the table. The next 32 are asked for before those in use are used up. */
  template <class Fill> __device__ __forceinline__ void each_piece(Fill fill) const {
    const int32_t shift = a.cache.block_shift, each = max(1, single_half >> shift), held = 32 / each;
    const int32_t *const table = a.cache.table + request * a.cache.table_row;
    const auto entry = [&](int32_t piece) {
      const int32_t first = (piece + lane / each) * single_half;
      const int32_t at_entry = (first >> shift) + lane % each;
      return lane / each < held && first < keys && at_entry <= (keys - 1) >> shift ? table[at_entry] : 0;
    };
    int32_t now = 0, later = entry(0);
    for (int32_t piece = 0;; ++piece) {
      const int32_t first = piece * single_half;
      if (first >= keys) break;
      if (piece % held == 0) {
        now = later;
        later = entry(piece + held);
      }
      fill(first, [&](int32_t token) {
        return __shfl_sync(0xffffffffu, now, piece % held * each + (token >> shift) - (first >> shift));
      });
    }
  }

  /* Copies 64 keys or values from key `first` on, and zeros from the row's end on. Weights of what is not there are 0,
   * and it must be numbers. */
  template <bool values, class BlockOf>
  __device__ __forceinline__ void copy(unsigned char *stage, int32_t first, BlockOf block_of) const {
    constexpr int32_t pitch = 2 * D + 16, chunks = D / 8, threads = 32 * single_loaders;
    constexpr int32_t rows_a_pass = threads / chunks, passes = 4;
    const paged_cache &cache = a.cache;
    const int64_t block_stride = values ? cache.v_block : cache.k_block;
    const int64_t token_stride = values ? cache.v_token : cache.k_token;
    const int32_t thread = static_cast<int32_t>(threadIdx.x) % threads, chunk = thread % chunks;
    const T *const base = values ? element_at<T>(cache.v, kv_head * cache.v_head + 8 * chunk)
                                 : element_at<T>(cache.k, kv_head * cache.k_head + 8 * chunk);
    for (int32_t from_row = 0; from_row < single_half; from_row += passes * rows_a_pass) {
      const T *from[passes];
      ASSAY_UNROLL
      for (int32_t i = 0; i < passes; ++i) {
        const int32_t token = min(first + from_row + i * rows_a_pass + thread / chunks, keys - 1);
        from[i] = element_at<T>(base, block_of(token) * block_stride + slot_of(cache, token) * token_stride);
      }
      ASSAY_UNROLL
      for (int32_t i = 0; i < passes; ++i) {
        const int32_t to = from_row + i * rows_a_pass + thread / chunks;
        cp_async_16(stage + single_row(to, pitch) + 16 * chunk, from[i], first + to < keys ? 16 : 0);
      }
    }
  }

  /* Fills a ring of `stages` stages, with keys or values. */
  template <bool values>
  __device__ __forceinline__ void fill(unsigned char *stage, int32_t stages, uint64_t *full, uint64_t *free) {
    single_ring ring = {0, 0};
    int32_t used = 0;
    each_row([&] {
      each_piece([&](int32_t first, auto block_of) {
        if (used++ >= stages) mbarrier_wait(free + ring.stage, ring.parity ^ 1);
        copy<values>(stage + ring.stage * at.stage_bytes, first, block_of);
        cp_async_arrive_noinc(full + ring.stage);
        ring.next(stages);
      });
    });
  }

  /* ---- scores  */

  __device__ __forceinline__ float *score(int32_t slot, int32_t of, int32_t token) const {
    return place<float>(at.scores + (slot * p.heads + of) * single_layout::scores_row) + token + token / 16 * 4;
  }

  __device__ __forceinline__ void score_row(single_ring &ring) const {
    uint32_t Q[D / 16][2];
    const int32_t mine = lane / 4;
    const T *const q = element_at<T>(a.q, query_offset(a, row, head + (mine < G ? mine : 0)));
    ASSAY_UNROLL
    for (int step = 0; step < D / 16; ++step)
      ASSAY_UNROLL
    for (int i = 0; i < 2; ++i)
      Q[step][i] = mine < G ? *reinterpret_cast<const uint32_t *>(q + 16 * step + 8 * i + 2 * (lane % 4)) : 0u;
    const int32_t of = 2 * (lane % 4), in_stage = warp * 16 + lane % 16;
    for (int32_t tile = 0; tile < tiles; ++tile) {
      const int32_t slot = slot_of_tile(tile), turn = turn_of_tile(tile);
      for (int32_t half = 0; half < 2; ++half) {
        const int32_t first = tile * single_tile + half * single_half;
        if (first >= keys) break;
        float S[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        mbarrier_wait(&control->k_full[ring.stage], ring.parity);
        const unsigned char *const from =
            shared + ring.stage * at.stage_bytes + single_row(in_stage, 2 * D + 16) + lane / 16 * 16;
        uint32_t k[D / 16][4];
        ASSAY_UNROLL
        for (int step = 0; step < D / 16; ++step)
          ldmatrix_x4(k[step], from + 32 * step);
        ASSAY_UNROLL
        for (int step = 0; step < D / 16; ++step)
          mma_m16n8k16<T>(S, k[step], Q[step]);
        if (lane == 0) mbarrier_arrive(&control->k_free[ring.stage]);
        ring.next(p.k_stages);
        if (half == 0 && turn > 0) mbarrier_wait(&control->unscored[slot], (turn & 1) ^ 1);
        const int32_t token = half * single_half + warp * 16 + lane / 4;
        ASSAY_UNROLL
        for (int i = 0; i < 4; ++i)
          if (of + i % 2 < G) *score(slot, of + i % 2, token + i / 2 * 8) = S[i];
      }
      __syncwarp();
      if (lane == 0) mbarrier_arrive(&control->scored[slot]);
    }
  }

  /* ---- weights  */

  /* Returns the weights of the lane's tokens in the lower half of a tile. Those in the upper half are 128 bytes on. */
  __device__ __forceinline__ uint4 *weights_of(int32_t slot, int32_t of) const {
    return place<uint4>(at.weights + (slot * p.heads + of) * single_layout::weights_row + lane % 4 * 32);
  }

  __device__ __forceinline__ void weigh_row() const {
    const int32_t of = lane / 4, j = lane % 4, head_of = of < G ? of : 0; /* lanes without a head do as the first */
    Rule rule(*this);
    for (int32_t tile = 0; tile < tiles; ++tile) {
      const int32_t slot = slot_of_tile(tile), turn = turn_of_tile(tile);
      mbarrier_wait(&control->scored[slot], turn & 1);
      if (turn > 0) mbarrier_wait(&control->unweighed[slot], (turn & 1) ^ 1);
      float w[32];
      ASSAY_UNROLL
      for (int i = 0; i < 8; ++i) {
        const float4 four =
            *reinterpret_cast<const float4 *>(score(slot, head_of, i / 4 * single_half + 16 * j + i % 4 * 4));
        w[4 * i] = four.x;
        w[4 * i + 1] = four.y;
        w[4 * i + 2] = four.z;
        w[4 * i + 3] = four.w;
      }
      place<single_note>(at.notes)[slot * 32 + lane] = rule.weigh(w, keys - 1 - tile * single_tile - 16 * j);
      uint4 *const to = weights_of(slot, of);
      ASSAY_UNROLL
      for (int i = 0; i < 4; ++i)
        if (of < G)
          to[i / 2 * 8 + i % 2] =
              make_uint4(pack_pair<T>(w[8 * i], w[8 * i + 1]), pack_pair<T>(w[8 * i + 2], w[8 * i + 3]),
                         pack_pair<T>(w[8 * i + 4], w[8 * i + 5]), pack_pair<T>(w[8 * i + 6], w[8 * i + 7]));
      __syncwarp();
      if (lane == 0) mbarrier_arrive(&control->weighed[slot]);
      if (lane == 0) mbarrier_arrive(&control->unscored[slot]);
    }
  }

  /* ---- values  */

  template <int32_t parts> __device__ __forceinline__ void add_row(single_ring &ring) const {
    const int32_t number = warp - first_adder, of = lane / 4, j = lane % 4;
    float O[parts][4];
    typename Rule::sum total;
    ASSAY_UNROLL
    for (int m = 0; m < parts; ++m)
      ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      O[m][i] = 0.0f;
    /* Key positions 2 j, 2 j + 1, 2 j + 8, 2 j + 9 of a step are tokens 16 j + 4 s + e. A lane's row for ldmatrix: */
    const int32_t k = lane % 8, matrix = lane / 8;
    const int32_t tokens = k / 2 * 16 + k % 2 + matrix / 2 * 2, channel = matrix % 2 * 8;
    for (int32_t tile = 0; tile < tiles; ++tile) {
      const int32_t slot = slot_of_tile(tile), turn = turn_of_tile(tile);
      mbarrier_wait(&control->weighed[slot], turn & 1);
      uint4 w[2][2];
      ASSAY_UNROLL
      for (int half = 0; half < 2; ++half)
        ASSAY_UNROLL
      for (int i = 0; i < 2; ++i)
        if (of < G)
          w[half][i] = weights_of(slot, of)[8 * half + i];
        else
          w[half][i] = make_uint4(0u, 0u, 0u, 0u);
      const single_note note = place<single_note>(at.notes)[slot * 32 + lane];
      total.add(note);
      if (Rule::shrinks) {
        const float shrinks[2] = {__shfl_sync(0xffffffffu, note.shrink, 8 * j),
                                  __shfl_sync(0xffffffffu, note.shrink, 8 * j + 4)};
        ASSAY_UNROLL
        for (int m = 0; m < parts; ++m)
          ASSAY_UNROLL
        for (int i = 0; i < 4; ++i)
          O[m][i] *= shrinks[i % 2];
      }
      __syncwarp();
      if (lane == 0) mbarrier_arrive(&control->unweighed[slot]);
      ASSAY_UNROLL
      for (int half = 0; half < 2; ++half) {
        if (tile * single_tile + half * single_half >= keys) break;
        mbarrier_wait(&control->v_full[ring.stage], ring.parity);
        const unsigned char *const from = shared + at.v_at + ring.stage * at.stage_bytes +
                                          single_row(tokens, at.pitch) + 2 * (number * 16 * parts + channel);
        uint32_t v[4][parts][4];
        ASSAY_UNROLL
        for (int s = 0; s < 4; ++s)
          ASSAY_UNROLL
        for (int m = 0; m < parts; ++m)
          ldmatrix_x4_trans(v[s][m], from + 4 * s * at.pitch + 32 * m);
        ASSAY_UNROLL
        for (int s = 0; s < 4; ++s) {
          const uint4 &four = w[half][s / 2];
          const uint32_t weights[2] = {s % 2 == 0 ? four.x : four.z, s % 2 == 0 ? four.y : four.w};
          ASSAY_UNROLL
          for (int m = 0; m < parts; ++m)
            mma_m16n8k16<T>(O[m], v[s][m], weights);
        }
        if (lane == 0) mbarrier_arrive(&control->v_free[ring.stage]);
        ring.next(p.v_stages);
      }
    }
    const float factor = total.factor(*this, row, of < G ? of : 0, number == 0 && of < G && j == 0);
    const float factors[2] = {__shfl_sync(0xffffffffu, factor, 8 * j), __shfl_sync(0xffffffffu, factor, 8 * j + 4)};
    T *const to = static_cast<T *>(a.out) + (static_cast<int64_t>(row) * a.H + head) * D;
    ASSAY_UNROLL
    for (int m = 0; m < parts; ++m)
      ASSAY_UNROLL
    for (int c = 0; c < 4; ++c) {
      const int32_t column = 2 * j + c % 2, at_channel = (number * parts + m) * 16 + lane / 4 + c / 2 * 8;
      if (column >= G) continue;
      const uint16_t bits = static_cast<uint16_t>(pack_pair<T>(O[m][c] * factors[c % 2], 0.0f));
      memcpy(to + column * D + at_channel, &bits, sizeof bits);
    }
  }

  __device__ __forceinline__ void run() {
    single_ring ring = {0, 0};
    if (warp >= first_loader + single_loaders)
      fill<true>(shared + at.v_at, p.v_stages, control->v_full, control->v_free);
    else if (warp >= first_loader)
      fill<false>(shared, p.k_stages, control->k_full, control->k_free);
    else if (warp == weigher)
      each_row([&] { weigh_row(); });
    else if (warp >= first_adder)
      each_row([&] { add_row<D / 64>(ring); });
    else
      each_row([&] { score_row(ring); });
  }

  static constexpr int32_t first_adder = single_scorers, weigher = first_adder + single_adders;
  static constexpr int32_t first_loader = weigher + 1;
};

/* single_rows: handles a row and a kv head's group of heads per block, one after the other.
 * Grid:   no more blocks than there are rows times groups. Shared: single_layout. */
template <class T, int D, class Rule>
__global__ void __launch_bounds__(single_threads, 2) single_rows(single_params<typename Rule::params> p) {
  ASSAY_DYNAMIC_SHARED_1024(unsigned char, shared);
  dependents_launch();
  single_block<T, D, Rule> block(p, shared);
  if (threadIdx.x == 0) block.make_barriers();
  single_ask(p.s.a, static_cast<int32_t>(blockIdx.x) / (p.s.a.H_kv * p.sets));
  __syncthreads();
  dependency_wait();
  block.run();
}

/* ---- launch ------------------------------------------------------------------------------------------ */

/* Returns how a call is spread. Two blocks are on a multiprocessor. */
template <class Rule> single_params<typename Rule::params> single_shape(const typename Rule::params &s) {
  constexpr int64_t room = INT64_C(226) * 1024 / 2;
  single_params<typename Rule::params> p = {};
  p.s = s;
  p.sets = single_sets(s.a);
  p.heads = s.a.G < single_heads ? s.a.G : single_heads;
  const auto fits = [&](int32_t k_stages, int32_t v_stages) {
    single_params<typename Rule::params> other = p;
    other.k_stages = k_stages;
    other.v_stages = v_stages;
    return single_layout(other, s.a.D).bytes <= room;
  };
  p.k_stages = p.v_stages = 2;
  while (p.k_stages < single_most_stages && fits(p.k_stages + 1, p.v_stages)) {
    ++p.k_stages;
    if (fits(p.k_stages, p.v_stages + 1)) ++p.v_stages;
  }
  return p;
}

template <class T, class Rule>
assay_status single_start(const single_params<typename Rule::params> &p, assay_env *env, assay_error *error) {
  const attention_params &a = p.s.a;
  const int64_t rows = a.N * a.H_kv * p.sets, places = 2 * env->multiprocessors;
  const int64_t bytes = single_layout(p, a.D).bytes, grid = rows > places ? places : rows;
  const auto launch = [&](auto channels) {
    return ASSAY_LAUNCH_WITH(error, (single_rows<T, decltype(channels)::value, Rule>), grid, single_threads, bytes,
                             in_turn(), env->stream, p);
  };
  return a.D == 64 ? launch(std::integral_constant<int, 64>()) : launch(std::integral_constant<int, 128>());
}

template <class Rule> void single_path(const typename Rule::params &s, assay_env *env) {
  (void)snprintf(env->path, sizeof env->path, "wgmma rows sets=%d D=%d%s", single_sets(s.a), s.a.D, cache_word(s.a));
}

} // namespace ASSAY_NS
#endif
