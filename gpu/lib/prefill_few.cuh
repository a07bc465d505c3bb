/* prefill_few.cuh: few single rows of a ragged prefill, with the bits that prefill_wgmma.cuh gives them in a prompt
 * (prefill_rows.cuh has more rows). A prompt's row is one chain over its tiles of 128 keys: running sums by steps of 16
 * keys. The chain is kept here. A cluster has one row and group of heads, and each kind of work has warps of its own:
 *
 *   scorers   4 warps that copy 16 keys twice per tile and score them. The blocks of a cluster take tiles in turn, and
 *             send scores and their peaks to all blocks.
 *   weighers  2 warps that make the weights of tiles in turn. They need only the peaks of the tiles between. Every
 *             block makes all weights for itself.
 *   loaders   4 warps that copy 16 of every 64 values of the block's channels
 *   adders    4 warps with equal shares of these channels, with one chain per channel over all keys
 *
 * Nothing here changes a bit: neither the number of blocks nor the stages.
 *
 * Token 16 j + 4 s + 2 h + b of a stage of V lies in row 16 s + 8 h + 2 j + b, so that a step's eight rows for ldmatrix
 * are neighbours. Rows are 16 bytes longer than their channels, and neighbours therefore lie in different banks. */
#ifndef ASSAY_GPU_LIB_PREFILL_FEW_CUH
#define ASSAY_GPU_LIB_PREFILL_FEW_CUH

#include "gpu/lib/prefill_single.cuh"

namespace ASSAY_NS {

constexpr int32_t few_keys = 16; /* that a warp asks for at a time */
constexpr int32_t few_scorers = 4, few_weighers = 2, few_adders = 4, few_loaders = 4; /* warps */

/* Places in shared memory, in bytes. A score of token t of a tile lies at t + t / 16 * 4. */
struct few_layout {
  static constexpr int32_t scores_row = (single_tile / 16 * 20 + 4) * 4, weights_row = single_tile * 2 + 16;
  static constexpr int32_t tops_row = few_scorers * 4;
  int32_t width, adders, v_pitch, k_bytes, v_bytes, v_at, scores, tops, weights, notes, barriers, bytes;
  few_layout() = default;
  template <class Shape> few_layout(const Shape &p, int32_t D) {
    width = D / p.blocks;
    adders = width / 16 < few_adders ? width / 16 : few_adders;
    v_pitch = 2 * width + 16;
    k_bytes = few_keys * (2 * D + 16);
    v_bytes = single_half * v_pitch;
    v_at = few_scorers * p.k_stages * k_bytes;
    scores = v_at + p.v_stages * v_bytes;
    tops = scores + p.slots * p.heads * scores_row;
    weights = tops + p.slots * p.heads * tops_row;
    notes = weights + p.slots * p.heads * weights_row;
    barriers = notes + p.slots * 32 * 16;
    bytes = barriers + 8 * (few_scorers * p.k_stages + 2 * p.v_stages + 4 * p.slots);
  }
};

template <class Params> struct few_params {
  Params s;
  int32_t blocks, slots;      /* blocks per cluster; tiles whose scores and weights have room, a multiple of blocks */
  int32_t k_stages, v_stages; /* stages of a scorer's ring, of 16 keys; stages of the ring of 64 values */
  int32_t sets, heads;        /* blocks side by side that share a kv head's group; most heads of one */
  few_layout at;
};

constexpr int32_t few_threads = 32 * (few_scorers + few_weighers + few_adders + few_loaders);

template <class T, int D, class Rule> struct few_block {
  using params = few_params<typename Rule::params>;
  static constexpr int32_t first_weigher = few_scorers, first_adder = few_scorers + few_weighers;
  static constexpr int32_t first_loader = first_adder + few_adders;
  const params &p;
  const attention_params &a;
  unsigned char *const shared;
  const few_layout &at;
  const int32_t warp, lane, rank;
  int32_t row, kv_head, head, G, request, keys, tiles;

  __device__ __forceinline__ few_block(const params &p_, unsigned char *shared_)
      : p(p_), a(p_.s.a), shared(shared_), at(p_.at), warp(static_cast<int32_t>(threadIdx.x) / 32),
        lane(static_cast<int32_t>(threadIdx.x) % 32), rank(static_cast<int32_t>(blockIdx.x) % p_.blocks) {
    const int32_t unit = static_cast<int32_t>(blockIdx.x) / p.blocks, in_row = a.H_kv * p.sets;
    row = unit / in_row;
    const int32_t in = unit - row * in_row, set = in % p.sets;
    kv_head = in / p.sets;
    head = kv_head * a.G + set * p.heads;
    G = min(p.heads, a.G - set * p.heads);
  }

  template <class X> __device__ __forceinline__ X *place(int32_t offset) const {
    return reinterpret_cast<X *>(shared + offset);
  }

  /* ---- barriers: full stages of a scorer's ring; full and free stages of values; for each slot, scores sent and used,
   * weights made and used  */

  __device__ __forceinline__ uint64_t *k_full(int32_t stage) const {
    return place<uint64_t>(at.barriers) + warp * p.k_stages + stage;
  }
  __device__ __forceinline__ uint64_t *v_full(int32_t stage) const {
    return place<uint64_t>(at.barriers) + few_scorers * p.k_stages + stage;
  }
  __device__ __forceinline__ uint64_t *v_free(int32_t stage) const { return v_full(stage) + p.v_stages; }
  __device__ __forceinline__ uint64_t *scored(int32_t slot) const { return v_full(slot) + 2 * p.v_stages; }
  __device__ __forceinline__ uint64_t *unscored(int32_t slot) const { return scored(slot) + p.slots; }
  __device__ __forceinline__ uint64_t *weighed(int32_t slot) const { return scored(slot) + 2 * p.slots; }
  __device__ __forceinline__ uint64_t *unweighed(int32_t slot) const { return scored(slot) + 3 * p.slots; }

  __device__ __forceinline__ void make_barriers() const {
    for (int32_t i = 0; i < few_scorers * p.k_stages; ++i)
      mbarrier_init(place<uint64_t>(at.barriers) + i, 32);
    for (int32_t i = 0; i < p.v_stages; ++i) {
      mbarrier_init(v_full(i), 32 * few_loaders);
      mbarrier_init(v_free(i), static_cast<uint32_t>(at.adders));
    }
    for (int32_t i = 0; i < p.slots; ++i) {
      mbarrier_init(scored(i), few_scorers);
      mbarrier_init(unscored(i), static_cast<uint32_t>(p.blocks * few_weighers));
      mbarrier_init(weighed(i), 1);
      mbarrier_init(unweighed(i), static_cast<uint32_t>(at.adders));
    }
    mbarrier_fence_init();
  }

  /* ---- the row and its table  */

  /* Entries of the block table for a warp's pieces of 16 keys. Each lane holds one, and asks for the one that is 32
   * pieces later. A look-up between copies would wait for all copies before it. */
  struct entries {
    int32_t now, later;
  };

  /* Finds the row's request and its number of keys, and asks for the first entries meanwhile. In a step of single
   * tokens, row n is that of request n. key_of(piece) is a piece's first key. */
  template <class KeyOf> __device__ __forceinline__ entries find(KeyOf key_of) {
    entries e = {0, 0};
    const int32_t next = min(row, a.B - 1); /* -1: no requests */
    const int32_t first = next >= 0 ? a.cu_q[next] : 0, after = next >= 0 ? a.cu_q[next + 1] : 0;
    const int32_t length = next >= 0 ? a.length[next] : 0, key = key_of(lane);
    if (next >= 0 && key < a.capacity) e.later = (a.cache.table + next * a.cache.table_row)[key >> a.cache.block_shift];
    row_keys found = {next, 0, length - 1};
    const bool single = next >= 0 && first == row && after == row + 1;
    if (!single) found = keys_of_row(a, row);
    request = found.request;
    keys = found.last + 1;
    tiles = (keys + single_tile - 1) / single_tile;
    if (!single) e.later = look(0, key_of);
    return e;
  }

  template <class KeyOf> __device__ __forceinline__ int32_t look(int32_t piece, KeyOf key_of) const {
    const int32_t first = key_of(piece + lane);
    return first < keys ? (a.cache.table + request * a.cache.table_row)[first >> a.cache.block_shift] : 0;
  }

  /* Returns the block of a piece. The pieces come one after the other. */
  template <class KeyOf>
  __device__ __forceinline__ int32_t block_of_piece(entries &e, int32_t piece, KeyOf key_of) const {
    if (piece % 32 == 0) {
      e.now = e.later;
      e.later = look(piece + 32, key_of);
    }
    return __shfl_sync(0xffffffffu, e.now, piece % 32);
  }

  /* Asks for 16 keys or values from key `first` on, of rows of `chunks` pieces of 16 bytes; zeros from the row's end
   * on. from: channel 0 of the block. to(key) is the place of a key's row. */
  template <int32_t chunks, class To>
  __device__ __forceinline__ void copy(const T *from, int32_t first, int64_t token, To to) const {
    constexpr int32_t at_once = 32 / chunks;
    const int32_t key = lane / chunks, chunk = lane % chunks, left = keys - first - key;
    from = element_at<T>(from, (slot_of(a.cache, first) + key) * token + 8 * chunk);
    ASSAY_UNROLL
    for (int32_t i = 0; i < few_keys; i += at_once) {
      cp_async_16(to(i + key) + 16 * chunk, from, i < left ? 16 : 0);
      from = element_at<T>(from, at_once * token);
    }
  }

  /* ---- scores  */

  template <class X> __device__ __forceinline__ void send(X *to, X value) const {
    ASSAY_ROLLED
    for (int32_t other = 0; other < p.blocks; ++other)
      *cluster_shared(to, static_cast<uint32_t>(other)) = value;
  }

  __device__ __forceinline__ float *score(int32_t slot, int32_t of, int32_t token) const {
    return place<float>(at.scores + (slot * p.heads + of) * few_layout::scores_row) + token + token / 16 * 4;
  }
  /* The peaks of a tile's keys, by scorer. */
  __device__ __forceinline__ float *tops(int32_t slot, int32_t of) const {
    return place<float>(at.tops + (slot * p.heads + of) * few_layout::tops_row);
  }

  /* Computes the scores of `count` blocks of 16 keys. */
  template <int count>
  __device__ __forceinline__ void multiply_keys(float (&S)[2][4], const uint32_t (&Q)[D / 16][2],
                                                const unsigned char *const (&from)[2]) const {
    uint32_t k[2][count][4];
    ASSAY_UNROLL
    for (int b = 0; b < count; ++b)
      ldmatrix_x4(k[0][b], from[b]);
    ASSAY_UNROLL
    for (int step = 0; step < D / 16; ++step) {
      ASSAY_UNROLL
      for (int b = 0; b < count; ++b)
        if (step + 1 < D / 16) ldmatrix_x4(k[(step + 1) % 2][b], from[b] + 32 * (step + 1));
      ASSAY_UNROLL
      for (int b = 0; b < count; ++b)
        mma_m16n8k16<T>(S[b], k[step % 2][b], Q[step]);
    }
  }

  __device__ __forceinline__ void score_row() {
    constexpr int32_t pitch = 2 * D + 16;
    uint32_t Q[D / 16][2];
    const int32_t mine = lane / 4;
    const T *const q = element_at<T>(a.q, query_offset(a, row, head + (mine < G ? mine : 0)));
    const auto key_of = [&](int32_t piece) {
      return (rank + piece / 2 * p.blocks) * single_tile + piece % 2 * single_half + few_keys * warp;
    };
    entries e = find(key_of);
    unsigned char *const ring = shared + warp * p.k_stages * at.k_bytes;
    const T *const base = element_at<T>(a.cache.k, kv_head * a.cache.k_head);
    int32_t asked = 0, to_stage = 0;
    const auto ask = [&] {
      const int32_t first = key_of(asked);
      if (first < keys) {
        unsigned char *const stage = ring + to_stage * at.k_bytes;
        copy<D / 8>(element_at<T>(base, block_of_piece(e, asked, key_of) * a.cache.k_block), first, a.cache.k_token,
                    [&](int32_t key) { return stage + key * pitch; });
        cp_async_arrive_noinc(k_full(to_stage));
      }
      ++asked;
      to_stage = to_stage + 1 < p.k_stages ? to_stage + 1 : 0;
    };
    ASSAY_ROLLED
    for (int32_t i = 0; i < p.k_stages; ++i)
      ask();
    ASSAY_UNROLL
    for (int step = 0; step < D / 16; ++step)
      ASSAY_UNROLL
    for (int i = 0; i < 2; ++i)
      Q[step][i] = mine < G ? *reinterpret_cast<const uint32_t *>(q + 16 * step + 8 * i + 2 * (lane % 4)) : 0u;
    cluster_wait(); /* all blocks have made their barriers */
    single_ring at_stage = {0, 0};
    const int32_t of = 2 * (lane % 4);
    int32_t slot = rank, turn = 0;
    for (int32_t tile = rank; tile < tiles; tile += p.blocks) {
      const int32_t first = tile * single_tile + few_keys * warp;
      const int32_t count = first >= keys ? 0 : first + single_half < keys ? 2 : 1;
      float S[2][4] = {};
      const unsigned char *from[2] = {};
      ASSAY_UNROLL
      for (int b = 0; b < 2; ++b) {
        if (b >= count) break;
        mbarrier_wait(k_full(at_stage.stage), at_stage.parity);
        from[b] = ring + at_stage.stage * at.k_bytes + lane % 16 * pitch + lane / 16 * 16;
        at_stage.next(p.k_stages);
      }
      if (count == 2)
        multiply_keys<2>(S, Q, from);
      else if (count == 1)
        multiply_keys<1>(S, Q, from);
      __syncwarp(); /* all lanes have read the stages */
      ASSAY_ROLLED
      for (int32_t b = 0; b < count; ++b)
        ask();
      float top[2] = {-INFINITY, -INFINITY};
      if constexpr (Rule::has_peak) {
        ASSAY_UNROLL
        for (int b = 0; b < 2; ++b)
          ASSAY_UNROLL
        for (int i = 0; i < 4; ++i)
          if (first + single_half * b + lane / 4 + i / 2 * 8 < keys) top[i % 2] = fmaxf(top[i % 2], S[b][i]);
        ASSAY_UNROLL
        for (int by = 4; by < 32; by *= 2) {
          ASSAY_UNROLL
          for (int i = 0; i < 2; ++i)
            top[i] = fmaxf(top[i], __shfl_xor_sync(0xffffffffu, top[i], by));
        }
      }
      if (turn > 0) mbarrier_wait_cluster(unscored(slot), (turn & 1) ^ 1);
      const int32_t token = few_keys * warp + lane / 4;
      ASSAY_UNROLL
      for (int b = 0; b < 2; ++b)
        ASSAY_UNROLL
      for (int i = 0; i < 4; ++i)
        if (of + i % 2 < G) send(score(slot, of + i % 2, token + single_half * b + i / 2 * 8), S[b][i]);
      if constexpr (Rule::has_peak) {
        ASSAY_UNROLL
        for (int i = 0; i < 2; ++i)
          if (lane < 4 && of + i < G) send(tops(slot, of + i) + warp, top[i]);
      }
      __syncwarp();
      if (lane < p.blocks) mbarrier_arrive_at(scored(slot), static_cast<uint32_t>(lane));
      slot += p.blocks;
      if (slot >= p.slots) {
        slot = rank;
        ++turn;
      }
    }
  }

  /* ---- weights  */

  /* Returns the weights of the lane's tokens in the lower half of a tile. Those in the upper half are 128 bytes on. */
  __device__ __forceinline__ uint4 *weights_of(int32_t slot, int32_t of) const {
    return place<uint4>(at.weights + (slot * p.heads + of) * few_layout::weights_row + lane % 4 * 32);
  }

  __device__ __forceinline__ void weigh_row() {
    find([](int32_t) { return 0; });
    cluster_wait();                                                       /* all blocks have made their barriers */
    const int32_t of = lane / 4, j = lane % 4, head_of = of < G ? of : 0; /* lanes without a head do as the first */
    Rule rule(*this);
    int32_t slot = 0, turn = 0;
    for (int32_t tile = 0; tile < tiles; ++tile) {
      const bool used_again = tile + p.slots < tiles;
      mbarrier_wait_cluster(scored(slot), turn & 1);
      if (tile % few_weighers == warp - first_weigher) {
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
        const single_note note = rule.weigh(w, keys - 1 - tile * single_tile - 16 * j, tops(slot, head_of));
        if (turn > 0) mbarrier_wait(unweighed(slot), (turn & 1) ^ 1);
        place<single_note>(at.notes)[slot * 32 + lane] = note;
        uint4 *const to = weights_of(slot, of);
        ASSAY_UNROLL
        for (int i = 0; i < 4; ++i)
          if (of < G)
            to[i / 2 * 8 + i % 2] =
                make_uint4(pack_pair<T>(w[8 * i], w[8 * i + 1]), pack_pair<T>(w[8 * i + 2], w[8 * i + 3]),
                           pack_pair<T>(w[8 * i + 4], w[8 * i + 5]), pack_pair<T>(w[8 * i + 6], w[8 * i + 7]));
        __syncwarp();
        if (lane == 0) mbarrier_arrive(weighed(slot));
      } else {
        rule.pass(score(slot, head_of, single_tile - 16), tops(slot, head_of));
        __syncwarp();
      }
      if (used_again && lane == 0) mbarrier_arrive_at(unscored(slot), static_cast<uint32_t>(tile & (p.blocks - 1)));
      if (++slot == p.slots) {
        slot = 0;
        ++turn;
      }
    }
  }

  /* ---- values  */

  template <int32_t width> __device__ __forceinline__ void load_values() {
    constexpr int32_t pitch = 2 * width + 16;
    const int32_t number = warp - first_loader;
    const auto key_of = [&](int32_t piece) { return piece * single_half + few_keys * number; };
    entries e = find(key_of);
    const T *const base = element_at<T>(a.cache.v, kv_head * a.cache.v_head + rank * width);
    single_ring ring = {0, 0};
    for (int32_t piece = 0; piece * single_half < keys; ++piece) {
      if (piece >= p.v_stages) mbarrier_wait(v_free(ring.stage), ring.parity ^ 1);
      unsigned char *const stage = shared + at.v_at + ring.stage * at.v_bytes + 2 * number * pitch;
      /* Token 16 j + 4 s + 2 h + b is in row 16 s + 8 h + 2 j + b. */
      copy<width / 8>(element_at<T>(base, block_of_piece(e, piece, key_of) * a.cache.v_block), key_of(piece),
                      a.cache.v_token,
                      [&](int32_t key) { return stage + (key / 4 * 16 + key / 2 % 2 * 8 + key % 2) * pitch; });
      cp_async_arrive_noinc(v_full(ring.stage));
      ring.next(p.v_stages);
    }
    cluster_wait(); /* all blocks have made their barriers */
  }

  /* The weights and values of two steps. */
  struct operands {
    uint32_t w[4], v[2][4];
  };
  /* Fetches the lower or upper two steps of a half of a tile. */
  __device__ __forceinline__ void fetch(operands &to, int32_t slot, int32_t stage, int half, int upper) const {
    const int32_t of = lane / 4, matrix = lane / 8;
    const unsigned char *const from = shared + at.v_at + stage * at.v_bytes +
                                      (32 * upper + matrix / 2 * 8 + lane % 8) * at.v_pitch +
                                      32 * (warp - first_adder) + matrix % 2 * 16;
    const uint4 w = of < G ? weights_of(slot, of)[8 * half + upper] : make_uint4(0u, 0u, 0u, 0u);
    memcpy(to.w, &w, sizeof w);
    ASSAY_UNROLL
    for (int s = 0; s < 2; ++s)
      ldmatrix_x4_trans(to.v[s], from + 16 * s * at.v_pitch);
  }
  static __device__ __forceinline__ void add(float (&O)[4], const operands &x) {
    ASSAY_UNROLL
    for (int s = 0; s < 2; ++s) {
      const uint32_t weights[2] = {x.w[2 * s], x.w[2 * s + 1]};
      mma_m16n8k16<T>(O, x.v[s], weights);
    }
  }
  /* Gives a stage of values back. */
  __device__ __forceinline__ void give_back(uint64_t *barrier) const {
    __syncwarp();
    if (lane == 0) mbarrier_arrive(barrier);
  }

  __device__ __forceinline__ void add_row() {
    const int32_t number = warp - first_adder, of = lane / 4, j = lane % 4;
    find([](int32_t) { return 0; });
    cluster_wait(); /* all blocks have made their barriers */
    float O[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    typename Rule::sum total;
    single_ring stage = {0, 0}, slot = {0, 0};
    operands lower, upper;
    float shrinks[2] = {}; /* this lane's, of a tile's two heads */
    const auto begin = [&] {
      mbarrier_wait(weighed(slot.stage), slot.parity);
      const single_note note = place<single_note>(at.notes)[slot.stage * 32 + lane];
      total.add(note);
      if (Rule::shrinks) {
        ASSAY_UNROLL
        for (int h = 0; h < 2; ++h)
          shrinks[h] = __shfl_sync(0xffffffffu, note.shrink, 8 * j + 4 * h);
      }
      mbarrier_wait(v_full(stage.stage), stage.parity);
      fetch(lower, slot.stage, stage.stage, 0, 0);
    };
    if (tiles > 0) begin();
    ASSAY_ROLLED
    for (int32_t tile = 0; tile < tiles; ++tile) {
      if (Rule::shrinks) {
        ASSAY_UNROLL
        for (int i = 0; i < 4; ++i)
          O[i] *= shrinks[i % 2];
      }
      fetch(upper, slot.stage, stage.stage, 0, 1);
      add(O, lower);
      if (tile * single_tile + single_half < keys) {
        uint64_t *const read = v_free(stage.stage);
        stage.next(p.v_stages);
        mbarrier_wait(v_full(stage.stage), stage.parity);
        fetch(lower, slot.stage, stage.stage, 1, 0);
        add(O, upper);
        give_back(read);
        fetch(upper, slot.stage, stage.stage, 1, 1);
        add(O, lower);
      }
      uint64_t *const read = v_free(stage.stage), *const used = unweighed(slot.stage);
      stage.next(p.v_stages);
      slot.next(p.slots);
      if (tile + 1 < tiles) begin();
      add(O, upper);
      give_back(read);
      if (lane == 0) mbarrier_arrive(used);
    }
    const float factor = total.factor(*this, row, of < G ? of : 0, number == 0 && rank == 0 && of < G && j == 0);
    const float factors[2] = {__shfl_sync(0xffffffffu, factor, 8 * j), __shfl_sync(0xffffffffu, factor, 8 * j + 4)};
    T *const to = static_cast<T *>(a.out) + (static_cast<int64_t>(row) * a.H + head) * D + rank * at.width;
    ASSAY_UNROLL
    for (int c = 0; c < 4; ++c) {
      const int32_t column = 2 * j + c % 2, at_channel = number * 16 + lane / 4 + c / 2 * 8;
      if (column >= G) continue;
      const uint16_t bits = static_cast<uint16_t>(pack_pair<T>(O[c] * factors[c % 2], 0.0f));
      memcpy(to + column * D + at_channel, &bits, sizeof bits);
    }
  }

  __device__ __forceinline__ void run() {
    if (warp < first_weigher) return score_row();
    if (warp < first_adder) return weigh_row();
    if (warp >= first_loader) {
      if (at.width == 64) return load_values<64>();
      if (at.width == 32) return load_values<32>();
      return load_values<16>();
    }
    if (warp - first_adder >= at.adders) return cluster_wait();
    add_row();
  }
};

/* few_rows: handles a row and a kv head's group of heads per cluster.
 * Grid:   clusters, one for each row and group. Cluster: `blocks`, 2 or 4.
 * Shared: few_layout. */
template <class T, int D, class Rule>
__global__ void __launch_bounds__(few_threads, 2) few_rows(few_params<typename Rule::params> p) {
  ASSAY_DYNAMIC_SHARED_1024(unsigned char, shared);
  dependents_launch();
  few_block<T, D, Rule> block(p, shared);
  if (threadIdx.x == 0) block.make_barriers();
  single_ask(p.s.a, block.row);
  __syncthreads();
  cluster_arrive();
  dependency_wait();
  block.run();
}

/* ---- launch ------------------------------------------------------------------------------------------ */

/* Returns how many blocks a cluster has: as many as find a multiprocessor of their own. 1: there are more rows.
 * Clusters of eight lose to clusters of four. Clusters of four do not all run at once where they need two places of
 * every multiprocessor (docs/log/2026-11-29-h200-invariant-few.md). */
inline int32_t few_blocks(const attention_params &a, int64_t multiprocessors) {
  const int64_t rows = a.N * a.H_kv * single_sets(a);
  return 4 * rows <= multiprocessors ? 4 : 2 * rows <= multiprocessors ? 2 : 1;
}

/* Returns how a call is spread. A block has a whole multiprocessor in clusters of two, and half of one in clusters of
 * four. Four multiprocessors side by side are not always found. */
template <class Rule>
few_params<typename Rule::params> few_shape(const typename Rule::params &s, int64_t multiprocessors) {
  few_params<typename Rule::params> p = {};
  p.s = s;
  p.sets = single_sets(s.a);
  p.heads = s.a.G < single_heads ? s.a.G : single_heads;
  p.blocks = few_blocks(s.a, multiprocessors);
  const int64_t room = p.blocks == 2 ? 226 * 1024 : 113 * 1024;
  p.slots = p.blocks == 2 ? 4 : 8;
  p.k_stages = p.blocks == 2 ? 3 : 2;
  p.v_stages = p.blocks == 2 ? 6 : 8;
  if (few_layout(p, s.a.D).bytes > room) p.slots = 4;
  while (few_layout(p, s.a.D).bytes > room)
    --p.v_stages;
  p.at = few_layout(p, s.a.D);
  return p;
}

template <class T, class Rule>
assay_status few_start(const few_params<typename Rule::params> &p, assay_env *env, assay_error *error) {
  launch_options options = in_turn();
  options.cluster = p.blocks;
  const attention_params &a = p.s.a;
  const int64_t grid = a.N * a.H_kv * p.sets * p.blocks;
  const auto launch = [&](auto channels) {
    return ASSAY_LAUNCH_WITH(error, (few_rows<T, decltype(channels)::value, Rule>), grid, few_threads, p.at.bytes,
                             options, env->stream, p);
  };
  return a.D == 64 ? launch(std::integral_constant<int, 64>()) : launch(std::integral_constant<int, 128>());
}

template <class Rule> void few_path(const typename Rule::params &s, assay_env *env) {
  (void)snprintf(env->path, sizeof env->path, "wgmma few blocks=%d sets=%d D=%d%s",
                 few_blocks(s.a, env->multiprocessors), single_sets(s.a), s.a.D, cache_word(s.a));
}

} // namespace ASSAY_NS
#endif
