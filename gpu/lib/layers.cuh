/* layers.cuh: all layers of a decode step of qwen3 in one launch: from the first norm to the last residual.
 *
 * The blocks are all under way from the first layer to the last. A layer has these stages, one after the other. Results
 * of a stage lie in global memory, in words, where the next one finds them:
 *
 *   qkv        products of the rows times the norm's weight. The norm's factor multiplies the sums.
 *   attention  A block has a row and a kv head, or a part of its keys (layers_plan.cuh): norms, rotation, append, then
 *              online softmax by warps. Blocks that share a row's keys exchange pieces of its sums.
 *   proj       product, residual. The block keeps its octet of the stream in shared memory.
 *   up         gates and ups of the same channels, with the norm as in qkv, then SwiGLU.
 *   down       product over a part of k. Neighbouring blocks exchange sums. Then the residual.
 *
 * The warps of a block:
 *
 *   workers    the stages. They share k in each product.
 *   loaders    Two warps copy to a ring of slots in shared memory, in the order of use: the block's weights, keys and
 *              values of all layers.
 *   the keeper It empties words.
 *
 * Words. An empty word has all bits set, and no result is that word: bf16 and f32 have one NaN each (word_of). A reader
 * asks for its words until none is empty. The word itself is all that is read. No order with other memory is needed:
 * other blocks read nothing that the launch writes except words. The key and the value of a new token go to the caches
 * for later launches, and this block takes them from shared memory.
 *
 * Words are used again, in sets of one layer. Layers are counted over all launches: layer e has set e % layers_sets.
 * The argument for emptying has three parts.
 *
 *   1. When a block has all words of the stream of layer e, all blocks have all their words of layer e - 1. Each block
 *      writes to the stream after it had them, since the stream depends on their values. The keeper then empties the
 *      words that its block has written (`read`). A reader that had a value does not need the word again.
 *   2. The keeper then says so: done = e, by a release. Other keepers acquire all blocks' done >= e, and arrive at
 *      `clean`, where the workers of their block wait before layer e + 2. They write words of layer e + 3 at the
 *      earliest in layer e + 2, and read them later. Emptying thus comes before these writes and reads: release and
 *      acquire between keepers, the mbarrier inside a block.
 *   3. Between launches the end of a launch orders everything. The words of the last layer are emptied by the next
 *      launch, in its first layer. Memory that was filled with ones is a state after a launch: no layer is done.
 *
 * The lanes of a warp leave a loop of questions one by one. They come together again before a product or a barrier of
 * whole warps (layers_wait).
 *
 * Grid:   (blocks), all resident. Block: warps + 3 warps, or + 4.
 * Shared: slots of the ring, the sums of warps, one row's heads.
 * Align:  16 bytes for all rows. Arch: sm_90a.
 * Limit:  bytes of the weights; between stages the time for words to travel. */
#ifndef ASSAY_GPU_LIB_LAYERS_CUH
#define ASSAY_GPU_LIB_LAYERS_CUH

#include "gpu/lib/layers_plan.cuh"
#include "gpu/lib/ptx_async.cuh"
#include "gpu/lib/ptx_edge.cuh"
#include "gpu/lib/ptx_mma.cuh"
#include "gpu/lib/ptx_words.cuh"
#include "gpu/lib/warp.cuh"

/* Marks a place of a stage, for a program that asks for the time (bench/probe_layers.cu). */
#ifndef LAYERS_MARK
#define LAYERS_MARK(stage, place) (void)(stage)
#endif

namespace ASSAY_NS {

constexpr unsigned layers_all = 0xFFFFFFFFu;
constexpr uint32_t layers_barrier = 1; /* where the workers meet */

/* ---- shared memory --------------------------------------------------------------------------------------- */

template <class S, int tiles> struct layers_memory {
  static constexpr int sums = S::warps * tiles * 32; /* in units of four f32, for one tile of columns */
  static constexpr int most_tiles = S::up_tiles > S::qkv_tiles ? (S::up_tiles > S::parts ? S::up_tiles : S::parts)
                                                               : (S::qkv_tiles > S::parts ? S::qkv_tiles : S::parts);
  alignas(1024) unsigned char ring[S::slots][S::slot_bytes];
  float4 sum[most_tiles * sums];
  uint2 stream[tiles * 32];                                 /* the block's octet of the residual stream */
  float square[S::warps][layers_rows];                      /* sums of squares, over a part of the blocks */
  alignas(16) uint32_t head[S::group + 2][S::channels / 2]; /* the row's heads of q, its key, its value */
  float rect[2][S::group][2 + S::chunk_keys];   /* gate: rectified scores of a chunk and of two keys before */
  alignas(16) uint16_t weight[S::warps][4][16]; /* two heads' weights of 16 keys: rounded, then the rest */
  float score[S::group];                        /* each head's, of the new key */
  layers_plan plan;
  uint32_t begin; /* the number of the launch's first layer */
  uint64_t full[S::slots], drained[S::slots], read, clean, freed;
};

/* A warp's run: for each head peak, total, and sums of channels, of rounded weights and of what was rounded off. Runs
 * lie where products have their sums. */
template <class S> struct layers_run { float peak[S::group], total[S::group], sum[S::group][2][S::channels]; };

/* A place in the ring, and its phase. */
template <class S> struct layers_place {
  int at = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void advance(int count) {
    at += count;
    if (at >= S::slots) {
      at -= S::slots;
      phase ^= 1u;
    }
  }
  __device__ __forceinline__ layers_place ahead(int count) const {
    layers_place there = *this;
    there.advance(count);
    return there;
  }
};

/* Gives `count` slots back, for the whole warp. Each was full. Loads from shared memory may still be under way, and an
 * arrival can overtake them. The copy engine would then write what they have not read yet. The fence orders both
 * (docs/log/2026-11-29-h200-overtaken-loads.md). */
template <class S, class M>
__device__ __forceinline__ void layers_give_back(M &m, layers_place<S> &place, int count, int lane) {
  fence_proxy_async();
  __syncwarp();
  if (lane < count) mbarrier_arrive(&m.drained[place.ahead(lane).at]);
  place.advance(count);
}

/* Waits for a phase, and has the lanes of the warp together again. */
__device__ __forceinline__ void layers_wait(uint64_t *barrier, uint32_t parity) {
  mbarrier_wait(barrier, parity);
  __syncwarp();
}

/* Waits until `count` slots are full, a lane for each: a wait takes long even where nothing is missing. */
template <class S, class M>
__device__ __forceinline__ void layers_await(M &m, const layers_place<S> &place, int count, int lane) {
  const layers_place<S> there = place.ahead(lane < count ? lane : 0);
  if (lane < count) mbarrier_wait(&m.full[there.at], there.phase);
  __syncwarp();
}

/* Waits at the beginning of a product: for the slots of its weights, and until no warp reads earlier sums. With a
 * `layer` of 0 and more it also waits until the keeper has emptied what the layer needs. */
template <class S, int slots, class M>
__device__ __forceinline__ void layers_await_stage(M &m, const layers_place<S> &place, uint32_t stage, int layer,
                                                   int lane) {
  static_assert(slots <= 30, "two lanes wait for something else");
  const layers_place<S> there = place.ahead(lane < slots ? lane : 0);
  uint64_t *const barrier = lane < slots ? &m.full[there.at] : lane == 31 ? &m.freed : &m.clean;
  const uint32_t parity = lane < slots ? there.phase
                          : lane == 31 ? (stage & 1u) ^ 1u
                                       : static_cast<uint32_t>(layer) & 1u;
  if (lane < slots || lane == 31 || (lane == 30 && layer >= 0)) mbarrier_wait(barrier, parity);
  __syncwarp();
}

/* Has the workers meet. */
template <class S> __device__ __forceinline__ void layers_meet() {
  __syncwarp();
  named_barrier_sync(layers_barrier, S::workers);
}

/* ---- words ----------------------------------------------------------------------------------------------- */

/* Asks for `steps` steps of rows, of all tiles. With `norm` it also asks for the warp's share of the sums of squares,
 * which follow the stream. Words may be empty. */
template <class S, int width, int tiles, int steps, bool norm, int each>
__device__ __forceinline__ void layers_ask(const uint4 *units, int first, int warp, int lane,
                                           uint4 (&row)[steps][tiles], uint4 (&square)[each]) {
  ASSAY_UNROLL
  for (int s = 0; s < steps; ++s)
    ASSAY_UNROLL
  for (int i = 0; i < tiles; ++i)
    row[s][i] = load_words_16(units + layers_unit<width>(i, first + s, lane));
  ASSAY_UNROLL
  for (int i = 0; i < each && norm; ++i) {
    const int four = warp * each + i;
    const bool on = four < S::blocks / 4 && lane < 16 * tiles;
    square[i] = on ? load_words_16(units + S::stream_units + four * layers_rows + lane) : make_uint4(0u, 0u, 0u, 0u);
  }
}

/* Waits until one unit of each step has words. Rows are many bytes, and asking for all again and again takes long. */
template <class S, int width, int tiles, int steps>
__device__ __forceinline__ void layers_ask_for_some(const uint4 *units, int first, int lane, uint32_t &asked) {
  do
    ask_again(&asked);
  while (has_empty(load_words_16(units + layers_unit<width>(tiles - 1, first + lane % steps, lane))));
  __syncwarp();
}

/* ---- products ---------------------------------------------------------------------------------------------- */

/* Returns the place of 16 bytes of the stage's weights: of this lane, a pair of steps and a tile. */
template <class S, class M>
__device__ __forceinline__ const uint4 *layers_weights(const M &m, const layers_place<S> &place, int number, int lane) {
  const int offset = number * 512;
  const int at = place.at + offset / S::slot_weights, slot = at >= S::slots ? at - S::slots : at;
  return reinterpret_cast<const uint4 *>(m.ring[slot] + offset % S::slot_weights) + lane;
}

/* Multiplies a pair of steps: all tiles of rows with all tiles of columns. Neighbouring products do not depend on each
 * other: first all of the first step, then all of the second. */
template <int tiles, int columns>
__device__ __forceinline__ void layers_multiply(float (&sum)[columns][tiles][4], float (&other)[columns][tiles][4],
                                                const uint4 (&first)[tiles], const uint4 (&second)[tiles],
                                                const uint4 (&w)[columns]) {
  ASSAY_UNROLL
  for (int n = 0; n < columns; ++n)
    ASSAY_UNROLL
  for (int i = 0; i < tiles; ++i) {
    const uint32_t rows[4] = {first[i].x, first[i].y, first[i].z, first[i].w}, low[2] = {w[n].x, w[n].y};
    mma_m16n8k16<bf16>(sum[n][i], rows, low);
  }
  ASSAY_UNROLL
  for (int n = 0; n < columns; ++n)
    ASSAY_UNROLL
  for (int i = 0; i < tiles; ++i) {
    const uint32_t rows[4] = {second[i].x, second[i].y, second[i].z, second[i].w}, high[2] = {w[n].z, w[n].w};
    mma_m16n8k16<bf16>(other[n][i], rows, high);
  }
}

/* Stores the warp's sums, [warp][column tile][row tile][lane], and meets the other workers. No warp reads earlier ones
 * any more. `stage` counts the products of the launch. */
template <class S, int tiles, int columns, class M>
__device__ __forceinline__ void layers_put_sums(M &m, const float (&sum)[columns][tiles][4], int warp, int lane,
                                                uint32_t &stage) {
  LAYERS_MARK(stage, 2);
  float4 *const to = m.sum + warp * (columns * tiles * 32) + lane;
  ASSAY_UNROLL
  for (int n = 0; n < columns; ++n)
    ASSAY_UNROLL
  for (int i = 0; i < tiles; ++i)
    to[(n * tiles + i) * 32] = make_float4(sum[n][i][0], sum[n][i][1], sum[n][i][2], sum[n][i][3]);
  layers_meet<S>();
  LAYERS_MARK(stage, 3);
  ++stage;
}

/* Says that this warp no longer reads sums. */
template <class M> __device__ __forceinline__ void layers_free_sums(M &m, int lane, uint32_t stage) {
  LAYERS_MARK(stage - 1u, 4);
  __syncwarp();
  if (lane == 0) mbarrier_arrive(&m.freed);
}

/* Adds the sums of all warps, in their order. unit: of [column tile][row tile][lane]. */
template <class S, int tiles, int columns, class M>
__device__ __forceinline__ float4 layers_sum_of(const M &m, int unit) {
  float4 sum = m.sum[unit];
  ASSAY_UNROLL
  for (int w = 1; w < S::warps; ++w) {
    const float4 more = m.sum[w * (columns * tiles * 32) + unit];
    sum.x += more.x;
    sum.y += more.y;
    sum.z += more.z;
    sum.w += more.w;
  }
  return sum;
}

/* A product whose rows are words: `pairs` pairs of steps of each warp, from step `first` on. Most often all words
 * have come, and the first steps are multiplied while the last come. Where some were empty, all is done again.
 *
 * With `early` the weights are in registers before the rows come, and their slots are free. slots: those of the stage.
 * norm: the rows have one, and *squares becomes the warp's share of their squares, of row `lane`. layer: -1, or the
 * layer that the product begins. */
template <class S, int width, int tiles, int columns, int pairs, bool early, bool norm, int slots, class M>
__device__ __forceinline__ void layers_product(M &m, const uint4 *units, int first, layers_place<S> &place, int warp,
                                               int lane, uint32_t stage, float (&sum)[columns][tiles][4],
                                               float *squares, int layer = -1) {
  constexpr bool few = columns * tiles <= 4; /* few: each step has sums of its own */
  constexpr int ahead = early ? pairs : 2;   /* pairs of weights that are in registers */
  constexpr int each = norm ? (S::blocks / 4 + S::warps - 1) / S::warps : 1;
  uint4 row[2 * pairs][tiles], square[each], w[ahead][columns];
  const int at = warp * pairs;
  uint32_t asked = 0;
  const auto load = [&](uint4(&to)[columns], int k) {
    ASSAY_UNROLL
    for (int n = 0; n < columns; ++n)
      to[n] = *layers_weights<S>(m, place, (at + k) * columns + n, lane);
  };
  layers_await_stage<S, slots>(m, place, stage, layer, lane);
  ASSAY_UNROLL
  for (int k = 0; k < pairs && early; ++k)
    load(w[k % ahead], k);
  if constexpr (early) layers_give_back<S>(m, place, slots, lane);
  LAYERS_MARK(stage, 0);
  for (;;) {
    float other[columns][tiles][4] = {};
    bool empty = false;
    layers_ask<S, width, tiles, 2 * pairs, norm, each>(units, first + 2 * at, warp, lane, row, square);
    if constexpr (!early) load(w[0], 0);
    ASSAY_UNROLL
    for (int k = 0; k < pairs; ++k) {
      if (!early && k + 1 < pairs) load(w[(k + 1) % ahead], k + 1);
      layers_multiply<tiles, columns>(sum, few ? other : sum, row[2 * k], row[2 * k + 1], w[k % ahead]);
      ASSAY_UNROLL
      for (int i = 0; i < tiles; ++i)
        empty = empty || has_empty(row[2 * k][i]) || has_empty(row[2 * k + 1][i]);
    }
    ASSAY_UNROLL
    for (int i = 0; i < each && norm; ++i)
      empty = empty || has_empty(square[i]);
    ASSAY_UNROLL
    for (int n = 0; n < columns && few; ++n)
      ASSAY_UNROLL
    for (int i = 0; i < tiles; ++i)
      ASSAY_UNROLL
    for (int c = 0; c < 4; ++c)
      sum[n][i][c] += other[n][i][c];
    if (!__any_sync(layers_all, empty)) break;
    layers_ask_for_some<S, width, tiles, 2 * pairs>(units, first + 2 * at, lane, asked);
    ASSAY_UNROLL
    for (int n = 0; n < columns; ++n)
      ASSAY_UNROLL
    for (int i = 0; i < tiles; ++i)
      ASSAY_UNROLL
    for (int c = 0; c < 4; ++c)
      sum[n][i][c] = 0.0f;
  }
  LAYERS_MARK(stage, 1);
  if constexpr (!early) layers_give_back<S>(m, place, slots, lane);
  if constexpr (norm) {
    float of_row = 0.0f;
    ASSAY_UNROLL
    for (int i = 0; i < each; ++i)
      of_row += (float_of(square[i].x) + float_of(square[i].y)) + (float_of(square[i].z) + float_of(square[i].w));
    *squares = of_row;
  }
}

/* Returns the factor of the norm of a row: 1 / sqrt(mean of squares + eps). Norms that clip have none. */
template <class S, class M> __device__ __forceinline__ float layers_factor(const M &m, int row, float eps) {
  if constexpr (S::gate) return 1.0f;
  float sum = 0.0f;
  ASSAY_UNROLL
  for (int w = 0; w < S::warps; ++w)
    sum += m.square[w][row];
  return rsqrt_approx(sum / static_cast<float>(S::hidden) + eps);
}

/* ---- the residual stream ------------------------------------------------------------------------------------ */

/* The weights of the lane's two channels in the norms between two products. qwen3: pre[0] is g. asynct: alpha, gamma,
 * beta of the norm after the first product, and of the one before the second. */
template <class S> struct layers_seam { uint32_t post[3], pre[S::gate ? 3 : 1]; };

/* Returns those of the norms with these numbers, in the order in which a layer has them. post: of asynct. Either may be
 * NULL. */
template <class S>
__device__ __forceinline__ layers_seam<S> layers_seam_of(const bf16 *post, const bf16 *pre, int lane) {
  layers_seam<S> seam = {};
  const int at = static_cast<int>(blockIdx.x) * 4 + lane % 4;
  ASSAY_UNROLL
  for (int i = 0; i < (S::gate ? 3 : 1); ++i)
    if (pre != nullptr) seam.pre[i] = reinterpret_cast<const uint32_t *>(pre + i * S::hidden)[at];
  ASSAY_UNROLL
  for (int i = 0; i < 3 && S::gate; ++i)
    if (post != nullptr) seam.post[i] = reinterpret_cast<const uint32_t *>(post + i * S::hidden)[at];
  return seam;
}

/* Returns where norm `number` of a layer begins. */
template <class S>
__device__ __forceinline__ const bf16 *layers_norm(const layers_params &p, int64_t layer, int number) {
  return p.norms + layer * S::norms + number * (S::gate ? 3 : 1) * S::hidden;
}

/* Returns x, at least -1 and at most 1. NaN stays. */
__device__ __forceinline__ float layers_clip(float x) {
  return x < -1.0f ? -1.0f : x > 1.0f ? 1.0f : x;
}

/* Clips two channels of two rows: gamma * clip(alpha * x, -1, 1) + beta. x: row, row + 8. */
__device__ __forceinline__ void layers_clip(float (&x)[4], const uint32_t (&weights)[3]) {
  float alpha[2], gamma[2], beta[2];
  unpack_pair<bf16>(weights[0], alpha[0], alpha[1]);
  unpack_pair<bf16>(weights[1], gamma[0], gamma[1]);
  unpack_pair<bf16>(weights[2], beta[0], beta[1]);
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    x[i] = gamma[i % 2] * layers_clip(alpha[i % 2] * x[i]) + beta[i % 2];
}

/* Gives the block's octet of the stream to the next stage. qwen3: squares, and rows times the norm's weights. asynct:
 * rows after the norm. units: where the words go; NULL: the stream is the result, and goes to p.y. */
template <class S>
__device__ __forceinline__ void layers_give(const layers_params &p, uint4 *units, const layers_seam<S> &seam, int tile,
                                            int lane, const uint2 &stream) {
  const int block = static_cast<int>(blockIdx.x), row = 16 * tile + lane / 4;
  if (units == nullptr) {
    uint32_t *const to = reinterpret_cast<uint32_t *>(p.y) + block * 4 + lane % 4;
    if (row < p.M) to[row * (S::hidden / 2)] = stream.x;
    if (row + 8 < p.M) to[(row + 8) * (S::hidden / 2)] = stream.y;
    return;
  }
  float x[4];
  unpack_pair<bf16>(stream.x, x[0], x[1]);
  unpack_pair<bf16>(stream.y, x[2], x[3]);
  uint2 *const to = layers_octet<S::hidden>(units, tile, block, lane);
  if constexpr (S::gate) {
    layers_clip(x, seam.pre);
    store_words_8(to, make_uint2(pack_pair<bf16>(x[0], x[1]), pack_pair<bf16>(x[2], x[3])));
  } else {
    float weight[2];
    unpack_pair<bf16>(seam.pre[0], weight[0], weight[1]);
    store_words_8(to, make_uint2(pack_pair<bf16>(x[0] * weight[0], x[1] * weight[1]),
                                 pack_pair<bf16>(x[2] * weight[0], x[3] * weight[1])));
    const float first = groups_sum<4>(x[0] * x[0] + x[1] * x[1]), second = groups_sum<4>(x[2] * x[2] + x[3] * x[3]);
    if (lane % 4 == 0) store_word(layers_square(units + S::stream_units, row, block), word_of(first));
    if (lane % 4 == 1) store_word(layers_square(units + S::stream_units, row + 8, block), word_of(second));
  }
}

/* Adds a product's sums to the block's octet of the stream, and gives it to the next stage. asynct has a norm of the
 * sums before. */
template <class S, class M>
__device__ __forceinline__ void layers_add(const layers_params &p, M &m, uint4 *units, const layers_seam<S> &seam,
                                           int tile, int lane, const float4 &sum) {
  uint2 &kept = m.stream[tile * 32 + lane];
  float x[4], more[4] = {sum.x, sum.y, sum.z, sum.w};
  unpack_pair<bf16>(kept.x, x[0], x[1]);
  unpack_pair<bf16>(kept.y, x[2], x[3]);
  if constexpr (S::gate) layers_clip(more, seam.post);
  kept = make_uint2(pack_pair<bf16>(x[0] + more[0], x[1] + more[1]), pack_pair<bf16>(x[2] + more[2], x[3] + more[3]));
  layers_give<S>(p, units, seam, tile, lane, kept);
}

/* Takes the rows that the launch begins with, and gives them to the first layer. */
template <class S, int tiles, class M>
__device__ __forceinline__ void layers_begin(const layers_params &p, M &m, uint4 *units, int thread) {
  const int block = static_cast<int>(blockIdx.x), lane = thread % 32;
  for (int i = thread; i < tiles * 32; i += S::workers) {
    const int tile = i / 32, row = 16 * tile + lane / 4;
    const uint32_t *const from = reinterpret_cast<const uint32_t *>(p.x) + block * 4 + lane % 4;
    m.stream[i] = make_uint2(row < p.M ? from[row * (S::hidden / 2)] : 0u,
                             row + 8 < p.M ? from[(row + 8) * (S::hidden / 2)] : 0u);
    layers_give<S>(p, units, layers_seam_of<S>(nullptr, layers_norm<S>(p, 0, 0), lane), tile, lane, m.stream[i]);
  }
}

} // namespace ASSAY_NS
#endif
