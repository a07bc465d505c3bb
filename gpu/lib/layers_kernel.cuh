/* layers_kernel.cuh: the kernel of layers.cuh, what its three other warps do, and the packing of weights. */
#ifndef ASSAY_GPU_LIB_LAYERS_KERNEL_CUH
#define ASSAY_GPU_LIB_LAYERS_KERNEL_CUH

#include "gpu/lib/layers_attend.cuh"

namespace ASSAY_NS {

/* ---- the loaders --------------------------------------------------------------------------------------------- */

/* A pace for the copies. A block that copies as fast as it can fills its ring in a few microseconds, and then waits.
 * While all blocks do so, words take up to three times as long, and some blocks get their keys late. With few slots per
 * layer the copies are therefore spread over the layer. With many, memory is what all wait for, and there is no pace
 * (docs/log/2026-11-30-h200-one-launch-keys.md). */
constexpr int layers_paced_slots = 24;        /* most slots per layer that have a pace */
constexpr uint32_t layers_pace_clocks = 1400; /* between two copies of 16 KB */

/* The copies of one loader. Two warps copy: one all slots of even number, the other those of odd number. Both count all
 * slots. One warp issues too slowly for all. Where there is a pace, the first has all of them. */
template <class S> struct layers_loader {
#ifdef ASSAY_SIMT
  static constexpr bool paced = false;
#else
  static constexpr bool paced = true;
#endif
  layers_place<S> place;
  uint32_t last = 0; /* when the last copy began */
  int number, lane;
  bool mine, apart; /* apart: copies have a pace */

  /* number: the loader's, 0 or 1. */
  __device__ __forceinline__ layers_loader(const layers_plan &plan, int number_, int lane_)
      : number(number_), lane(lane_), mine(number_ == 0) {
    int slots = layers_slots<S>(S::qkv_bytes) + layers_slots<S>(S::proj_bytes) + layers_slots<S>(S::up_bytes) +
                layers_slots<S>(S::down_bytes);
    layers_span of;
    for (layers_spans<S> spans(plan); spans.next(plan, lane, of);)
      slots += 2 * ((of.last - of.first + S::slot_keys - 1) / S::slot_keys) + layers_looks_back<S>(of);
    apart = paced && slots <= layers_paced_slots;
  }

  /* Waits until the next slot is empty, and until its time has come. Returns false if the other loader has it. */
  template <class M> __device__ __forceinline__ bool begin(M &m) {
    if (!mine) return false;
    layers_wait(&m.drained[place.at], place.phase ^ 1u);
    if (!apart) return true;
    while (clock_cycles() - last < layers_pace_clocks)
      ;
    last = clock_cycles();
    return true;
  }
  __device__ __forceinline__ void end() {
    place.advance(1);
    if (!apart) mine = !mine;
  }
};

/* Lane 0 announces a slot's bytes at its `full`, and copies. */
template <class S, class M>
__device__ __forceinline__ void layers_fill_weights(M &m, layers_loader<S> &loader, const unsigned char *&from,
                                                    int bytes) {
  ASSAY_ROLLED
  for (int at = 0; at < bytes; at += S::slot_weights) {
    const uint32_t count = static_cast<uint32_t>(bytes - at < S::slot_weights ? bytes - at : S::slot_weights);
    if (loader.begin(m) && loader.lane == 0) {
      uint64_t *const full = &m.full[loader.place.at];
      mbarrier_expect(full, count);
      bulk_load(m.ring[loader.place.at], from, count, full);
    }
    loader.end();
    from += count;
  }
}

/* Copies the boxes of up to slot_keys keys or values. token: of lane i, the place in the cache of box i of those that
 * are looked up together. first, left: the slot's first box among these, and the keys that remain from there on. The
 * last box has the rest of its tokens too, which may be anything. */
template <class S, class M>
__device__ __forceinline__ void layers_fill_keys(M &m, layers_loader<S> &loader, const tensor_map *map, int32_t token,
                                                 int first, int left, int kv_head, int layer) {
  if (loader.begin(m)) {
    const int boxes = min((left + S::box_keys - 1) / S::box_keys, S::slot_boxes), lane = loader.lane;
    const int32_t at = __shfl_sync(layers_all, token, (first + lane) % 32);
    uint64_t *const full = &m.full[loader.place.at];
    if (lane == 0) mbarrier_expect(full, static_cast<uint32_t>(boxes * S::box_bytes));
    __syncwarp();
    if (lane < boxes) tma_load(m.ring[loader.place.at] + lane * S::box_bytes, map, full, 0, at, 0, kv_head, layer);
  }
  loader.end();
}

/* Copies the keys and values of a span: a chunk of keys, then its values. */
template <class S, class M>
__device__ __forceinline__ void layers_fill_span(const layers_params &p, const layers_maps &maps, M &m,
                                                 layers_loader<S> &loader, const layers_span &of, int layer) {
  constexpr int known = 32 * S::box_keys; /* tokens of a look into the table */
  const int32_t *const table = p.table + of.row * p.table_stride;
  if (layers_looks_back<S>(of)) { /* the box before the span, whose last two keys are asked for */
    const int before = of.first - S::box_keys;
    const int32_t token = table[before / p.block_size] * p.block_size + before % p.block_size;
    layers_fill_keys<S>(m, loader, &maps.k, token, 0, S::box_keys, of.kv_head, layer);
  }
  ASSAY_ROLLED
  for (int looked = of.first; looked < of.last; looked += known) {
    const int mine = min(looked + loader.lane * S::box_keys, of.last - 1) / S::box_keys * S::box_keys;
    const int32_t token = table[mine / p.block_size] * p.block_size + mine % p.block_size;
    const int end = min(looked + known, of.last);
    ASSAY_ROLLED
    for (int first = looked; first < end; first += S::chunk_keys)
      ASSAY_ROLLED
    for (int half = 0; half < 2; ++half)
      ASSAY_ROLLED
    for (int at = first; at < min(first + S::chunk_keys, end); at += S::slot_keys)
      layers_fill_keys<S>(m, loader, half == 0 ? &maps.k : &maps.v, token, (at - looked) / S::box_keys, of.last - at,
                          of.kv_head, layer);
  }
}

template <class S, class M>
__device__ __forceinline__ void layers_load(const layers_params &p, const layers_maps &maps, M &m, int number,
                                            int lane) {
  layers_loader<S> loader(m.plan, number, lane);
  ASSAY_ROLLED
  for (int layer = 0; layer < p.layers; ++layer) {
    const unsigned char *from = reinterpret_cast<const unsigned char *>(p.packed) +
                                (static_cast<int64_t>(layer) * S::blocks + blockIdx.x) * S::block_bytes;
    layers_fill_weights<S>(m, loader, from, S::qkv_bytes);
    layers_span of;
    for (layers_spans<S> spans(m.plan); spans.next(m.plan, lane, of);)
      layers_fill_span<S>(p, maps, m, loader, of, layer);
    layers_fill_weights<S>(m, loader, from, S::proj_bytes);
    layers_fill_weights<S>(m, loader, from, S::up_bytes);
    layers_fill_weights<S>(m, loader, from, S::down_bytes);
  }
}

/* ---- the keeper ---------------------------------------------------------------------------------------------- */

/* Empties the words of an octet of rows `width` wide, in both tiles. */
template <int width> __device__ __forceinline__ void layers_empty_octet(uint4 *units, int octet, int lane) {
  ASSAY_ROLLED
  for (int tile = 0; tile < 2; ++tile)
    store_words_8(layers_octet<width>(units, tile, octet, lane), make_uint2(empty_word, empty_word));
}

/* Empties the words of attention's results for a row and a kv head. */
template <class S> __device__ __forceinline__ void layers_empty_unit(uint4 *units, int row, int kv_head, int lane) {
  ASSAY_ROLLED
  for (int i = lane; i < S::group * S::channels / 2; i += 32)
    store_word(layers_pair<S::attended>(units + S::at_attended, row, kv_head * S::group * S::channels + 2 * i),
               empty_word);
}

template <class S> __device__ __forceinline__ void layers_empty_piece(uint4 *units, int number, int lane) {
  const uint4 empty = make_uint4(empty_word, empty_word, empty_word, empty_word);
  ASSAY_ROLLED
  for (int i = lane; i < S::piece_units; i += 32)
    store_words_16(units + S::at_pieces + number * S::piece_units + i, empty);
}

/* Empties the pieces that this block has written, in the fixed form; without a plan its share of all. */
template <class S>
__device__ __forceinline__ void layers_empty_pieces(uint4 *units, const layers_plan &plan, bool planned, int lane) {
  ASSAY_ROLLED
  for (int number = static_cast<int>(blockIdx.x); number < S::pieces && !planned; number += S::blocks)
    layers_empty_piece<S>(units, number, lane);
  layers_span of;
  for (layers_spans<S> spans(plan); planned && spans.next(plan, lane, of);)
    if (!of.owns) layers_empty_piece<S>(units, layers_number<S>(of.row, of.kv_head, of.piece), lane);
}

/* Empties the words that this block writes in a layer, whatever the number of rows. planned: they are of this launch,
 * whose plan says who has written the results of a unit. Else the units are divided evenly. */
template <class S>
__device__ __forceinline__ void layers_empty(uint4 *units, const layers_plan &plan, bool planned, int lane) {
  const int block = static_cast<int>(blockIdx.x), first = block / S::parts * S::parts, part = block % S::parts;
  const uint4 empty = make_uint4(empty_word, empty_word, empty_word, empty_word);
  ASSAY_ROLLED
  for (int stream = S::at_in; stream <= S::at_mid; stream += S::at_mid - S::at_in) {
    layers_empty_octet<S::hidden>(units + stream, block, lane);
    store_word(layers_square(units + stream + S::stream_units, lane, block), empty_word);
  }
  ASSAY_ROLLED
  for (int i = lane; i < layers_rows * S::qkv_tiles; i += 32)
    store_words_16(units + S::at_qkv + i / S::qkv_tiles * (S::qkv / 8) + block * S::qkv_tiles + i % S::qkv_tiles,
                   empty);
  ASSAY_ROLLED
  for (int u = block; u < layers_rows * S::kv_heads; u += S::blocks)
    if (!planned || plan.earlier[u / S::kv_heads] < 0)
      layers_empty_unit<S>(units, u / S::kv_heads, u % S::kv_heads, lane);
  layers_span of;
  for (layers_spans<S> spans(plan); planned && spans.next(plan, lane, of);)
    if (of.owns && (!S::fixed || of.piece == 0)) layers_empty_unit<S>(units, of.row, of.kv_head, lane);
  if constexpr (S::fixed)
    layers_empty_pieces<S>(units, plan, planned, lane);
  else
    layers_empty_piece<S>(units, block, lane);
  ASSAY_ROLLED
  for (int i = 0; i < S::act_tiles; ++i)
    layers_empty_octet<S::intermediate>(units + S::at_act, block * S::act_tiles + i, lane);
  ASSAY_ROLLED
  for (int to = 0; to < S::parts; ++to)
    ASSAY_ROLLED
  for (int i = lane; i < 64; i += 32)
    if (to != part) store_words_16(units + S::at_parts + ((first + to) * S::parts + part) * 64 + i, empty);
}

/* Returns the words of layer `number`, counted over all launches. */
template <class S> __device__ __forceinline__ uint4 *layers_set(const layers_params &p, uint32_t number) {
  return p.words + static_cast<int64_t>(number % layers_sets) * S::set_units;
}

template <class S, class M>
__device__ __forceinline__ void layers_keep(const layers_params &p, M &m, uint32_t begin, int lane) {
  ASSAY_ROLLED
  for (int layer = 0; layer < p.layers; ++layer) {
    const uint32_t number = begin + static_cast<uint32_t>(layer);
    ASSAY_ROLLED
    for (int i = lane; i < S::blocks; i += 32) {
      uint32_t asked = 0;
      while (static_cast<int32_t>(load_acquire(p.done + i) - (number - 2u)) < 0)
        ask_again(&asked);
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(&m.clean);
    layers_wait(&m.read, static_cast<uint32_t>(layer) & 1u);
    layers_empty<S>(layers_set<S>(p, number - 1u), m.plan, layer > 0, lane);
    __threadfence();
    __syncwarp();
    if (lane == 0) store_release(p.done + blockIdx.x, number);
  }
}

/* ---- the workers --------------------------------------------------------------------------------------------- */

/* qkv: the block's columns of q, k and v. */
template <class S, int tiles, class M>
__device__ __forceinline__ void layers_qkv(const layers_params &p, M &m, uint4 *units, int layer,
                                           layers_place<S> &place, int warp, int lane, uint32_t &stage) {
  constexpr int columns = S::qkv_tiles;
  float sum[columns][tiles][4] = {}, squares = 0.0f;
  layers_product<S, S::hidden, tiles, columns, S::hidden_pairs, true, !S::gate, layers_slots<S>(S::qkv_bytes)>(
      m, units + S::at_in, 0, place, warp, lane, stage, sum, &squares, layer);
  if (lane == 0) mbarrier_arrive(&m.read); /* the warp has all its words of the stream */
  m.square[warp][lane] = squares;
  layers_put_sums<S, tiles, columns>(m, sum, warp, lane, stage);
  for (int i = warp * 32 + lane; i < columns * tiles * 32; i += S::workers) {
    const int row = i / 32 % tiles * 16 + lane / 4;
    const int channel = (static_cast<int>(blockIdx.x) * columns + i / (32 * tiles)) * 8 + lane % 4 * 2;
    const float4 of = layers_sum_of<S, tiles, columns>(m, i);
    const float first = layers_factor<S>(m, row, p.eps), second = layers_factor<S>(m, row + 8, p.eps);
    uint32_t *const to = reinterpret_cast<uint32_t *>(units + S::at_qkv) + (row * S::qkv + channel) / 2;
    store_word(to, pack_pair<bf16>(of.x * first, of.y * first));
    store_word(to + 8 * (S::qkv / 2), pack_pair<bf16>(of.z * second, of.w * second));
  }
  layers_free_sums(m, lane, stage);
}

/* proj: the block's octet of the stream. */
template <class S, int tiles, class M>
__device__ __forceinline__ void layers_proj(const layers_params &p, M &m, uint4 *units, int64_t layer,
                                            layers_place<S> &place, int warp, int lane, uint32_t &stage) {
  const layers_seam<S> seam =
      layers_seam_of<S>(layers_norm<S>(p, layer, 1), layers_norm<S>(p, layer, S::gate ? 2 : 1), lane);
  float sum[1][tiles][4] = {};
  layers_product<S, S::attended, tiles, 1, S::proj_pairs, true, false, layers_slots<S>(S::proj_bytes)>(
      m, units + S::at_attended, 0, place, warp, lane, stage, sum, nullptr);
  layers_put_sums<S, tiles, 1>(m, sum, warp, lane, stage);
  for (int i = warp; i < tiles; i += S::warps)
    layers_add<S>(p, m, units + S::at_mid, seam, i, lane, layers_sum_of<S, tiles, 1>(m, i * 32 + lane));
  layers_free_sums(m, lane, stage);
}

/* Returns gate * sigmoid(gate) * up, or of asynct max(gate, 0) * up. */
template <class S> __device__ __forceinline__ float layers_act(float gate, float up) {
  if constexpr (S::gate) return (gate < 0.0f ? 0.0f : gate) * up;
  return gate * reciprocal_approx(1.0f + exp2_approx(-1.44269504f * gate)) * up;
}

/* up: gates and ups of the block's channels. */
template <class S, int tiles, class M>
__device__ __forceinline__ void layers_up(const layers_params &p, M &m, uint4 *units, layers_place<S> &place, int warp,
                                          int lane, uint32_t &stage) {
  constexpr int columns = S::up_tiles, acts = S::act_tiles;
  float sum[columns][tiles][4] = {}, squares = 0.0f;
  layers_product<S, S::hidden, tiles, columns, S::hidden_pairs, false, !S::gate, layers_slots<S>(S::up_bytes)>(
      m, units + S::at_mid, 0, place, warp, lane, stage, sum, &squares);
  m.square[warp][lane] = squares;
  layers_put_sums<S, tiles, columns>(m, sum, warp, lane, stage);
  for (int i = warp * 32 + lane; i < acts * tiles * 32; i += S::workers) {
    const int tile = i / 32 % tiles, row = tile * 16 + lane / 4;
    const float4 gate = layers_sum_of<S, tiles, columns>(m, i);
    const float4 up = layers_sum_of<S, tiles, columns>(m, i + acts * tiles * 32);
    const float first = layers_factor<S>(m, row, p.eps), second = layers_factor<S>(m, row + 8, p.eps);
    const uint2 act = make_uint2(
        pack_pair<bf16>(layers_act<S>(gate.x * first, up.x * first), layers_act<S>(gate.y * first, up.y * first)),
        pack_pair<bf16>(layers_act<S>(gate.z * second, up.z * second), layers_act<S>(gate.w * second, up.w * second)));
    const int octet = static_cast<int>(blockIdx.x) * acts + i / (32 * tiles);
    store_words_8(layers_octet<S::intermediate>(units + S::at_act, tile, octet, lane), act);
  }
  layers_free_sums(m, lane, stage);
}

/* Asks for the sums of the other blocks of the group, and adds all in the order of k. */
template <class S, int tiles>
__device__ __forceinline__ float4 layers_joined(const uint4 *from, int part, int unit, const float4 &own) {
  uint4 word[S::parts];
  uint32_t asked = 0;
  for (;;) {
    bool empty = false;
    ASSAY_UNROLL
    for (int k = 0; k < S::parts; ++k)
      word[k] = k == part ? make_uint4(bits_of(own.x), bits_of(own.y), bits_of(own.z), bits_of(own.w))
                          : load_words_16(from + k * 64 + unit);
    ASSAY_UNROLL
    for (int k = 0; k < S::parts; ++k)
      empty = empty || (k != part && has_empty(word[k]));
    if (!empty) break;
    ask_again(&asked);
  }
  __syncwarp();
  float4 sum = make_float4(float_of(word[0].x), float_of(word[0].y), float_of(word[0].z), float_of(word[0].w));
  ASSAY_UNROLL
  for (int k = 1; k < S::parts; ++k) {
    sum.x += float_of(word[k].x);
    sum.y += float_of(word[k].y);
    sum.z += float_of(word[k].z);
    sum.w += float_of(word[k].w);
  }
  return sum;
}

/* down: the block's part of k for the octets of its group. Each block then ends its own octet. next: the next layer's
 * words; NULL: there is none. */
template <class S, int tiles, class M>
__device__ __forceinline__ void layers_down(const layers_params &p, M &m, uint4 *units, uint4 *next, int64_t layer,
                                            layers_place<S> &place, int warp, int lane, uint32_t &stage) {
  constexpr int columns = S::parts;
  const int block = static_cast<int>(blockIdx.x), part = block % S::parts, group = block - part;
  const layers_seam<S> seam =
      layers_seam_of<S>(layers_norm<S>(p, layer, 3), next != nullptr ? layers_norm<S>(p, layer + 1, 0) : nullptr, lane);
  float sum[columns][tiles][4] = {};
  layers_product<S, S::intermediate, tiles, columns, S::down_pairs, true, false, layers_slots<S>(S::down_bytes)>(
      m, units + S::at_act, part * (S::part_terms / 16), place, warp, lane, stage, sum, nullptr);
  layers_put_sums<S, tiles, columns>(m, sum, warp, lane, stage);
  for (int i = warp; i < columns * tiles; i += S::warps) { /* the block's own octet comes last */
    const int octet = (part + 1 + i / tiles) % S::parts, tile = i % tiles, unit = tile * 32 + lane;
    const float4 of = layers_sum_of<S, tiles, columns>(m, octet * (tiles * 32) + unit);
    uint4 *const parts = units + S::at_parts + (group + octet) * (S::parts * 64);
    if (octet != part) {
      store_words_16(parts + part * 64 + unit, make_uint4(word_of(of.x), word_of(of.y), word_of(of.z), word_of(of.w)));
      continue;
    }
    layers_add<S>(p, m, next, seam, tile, lane, layers_joined<S, tiles>(parts, part, unit, of));
  }
  layers_free_sums(m, lane, stage);
}

template <class S, int tiles, class M>
__device__ __forceinline__ void layers_work(const layers_params &p, M &m, uint32_t begin, int first_warp,
                                            int first_lane) {
  layers_place<S> place;
  uint32_t stage = 0;
  layers_begin<S, tiles>(p, m, layers_set<S>(p, begin) + S::at_in, first_warp * 32 + first_lane);
  ASSAY_ROLLED
  for (int layer = 0; layer < p.layers; ++layer) {
    const uint32_t number = begin + static_cast<uint32_t>(layer);
    const int lane = computed_anew(first_lane), warp = computed_anew(first_warp);
    uint4 *const units = layers_set<S>(p, number);
    layers_qkv<S, tiles>(p, m, units, layer, place, warp, lane, stage);
    layers_attend_none<S, tiles>(m, units, warp * 32 + lane);
    layers_span of;
    layers_part sum = {};
    bool again = false;
    for (layers_spans<S> spans(m.plan); spans.next(m.plan, lane, of); again = true)
      layers_attend<S>(p, m, units, of, again, layer, place, warp, lane, stage, sum);
    layers_proj<S, tiles>(p, m, units, layer, place, warp, lane, stage);
    layers_up<S, tiles>(p, m, units, place, warp, lane, stage);
    uint4 *const next = layer + 1 < p.layers ? layers_set<S>(p, number + 1u) + S::at_in : nullptr;
    layers_down<S, tiles>(p, m, units, next, layer, place, warp, lane, stage);
  }
}

/* all_layers: layers.cuh describes it. tiles: of 16 rows. */
template <class S, int tiles>
__global__ void __launch_bounds__(S::threads, 1) all_layers(const __grid_constant__ layers_maps maps, layers_params p) {
  using memory = layers_memory<S, tiles>;
  ASSAY_DYNAMIC_SHARED_1024(unsigned char, dynamic);
  memory &m = *reinterpret_cast<memory *>(dynamic);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  if (thread == 0) {
    m.begin = p.done[blockIdx.x] + 1u;
    for (int i = 0; i < S::slots; ++i) {
      mbarrier_init(&m.full[i], 1);
      mbarrier_init(&m.drained[i], S::warps);
    }
    mbarrier_init(&m.read, S::warps);
    mbarrier_init(&m.clean, 1);
    mbarrier_init(&m.freed, S::warps);
    mbarrier_fence_init();
    tensor_map_prefetch(&maps.k);
    tensor_map_prefetch(&maps.v);
  }
  if (warp == 1) layers_make_plan<S>(p, m.plan, lane);
  __syncthreads();
  if (warp < S::warps) {
    if constexpr (S::moves_registers) registers_more<layers_more>();
    layers_work<S, tiles>(p, m, m.begin, warp, lane);
    return;
  }
  if constexpr (S::moves_registers) registers_fewer<layers_fewer>();
  if (warp < S::warps + 2) layers_load<S>(p, maps, m, warp - S::warps, lane);
  if (warp == S::warps + 2) layers_keep<S>(p, m, m.begin, lane);
}

/* Makes the map of a cache, [layers][tokens, kv_heads, channels], whose layers are `pool_layer` elements apart. */
template <class S>
assay_status layers_map(tensor_map *map, bf16 *pool, int64_t pool_layer, int64_t layers, assay_error *error) {
  constexpr int token_bytes = S::kv_heads * S::key_bytes;
  tensor_shape shape = {};
  shape.rank = 5;
  shape.element_bytes = 2;
  const int64_t extent[5] = {S::span_bytes / 2, pool_layer / (S::kv_heads * S::channels), S::spans, S::kv_heads,
                             layers};
  const int64_t stride[5] = {2, token_bytes, S::span_bytes, S::key_bytes, 2 * pool_layer};
  const int32_t box[5] = {S::span_bytes / 2, S::box_keys, S::spans, 1, 1};
  for (int i = 0; i < 5; ++i) {
    shape.extent[i] = extent[i];
    shape.stride[i] = stride[i];
    shape.box[i] = box[i];
  }
  shape.swizzle = S::span_bytes == 128 ? swizzle_128 : S::span_bytes == 64 ? swizzle_64 : swizzle_32;
  return tensor_map_make(map, pool, shape, error);
}

/* ---- packing --------------------------------------------------------------------------------------------------- */

/* One layer's weights, [out, in], and its others. */
struct layers_pack_params {
  const bf16 *qkv, *proj, *up, *down;
  const bf16 *pre, *post, *q, *k; /* qwen3: of its four norms */
  /* asynct: alpha, gamma and beta of four norms; beta may be NULL. Alphas of q and k, and their gammas. */
  const bf16 *clip[12], *q_gamma, *k_gamma;
  bool per_channel[3];      /* alpha, gamma, beta: one number per channel */
  const float *taps, *gate; /* asynct: of the filter, and of each head */
  int32_t taps_count;
  uint4 *packed; /* the layer's */
  bf16 *norms;
};

/* Returns place i of a layer's other weights, asynct's as far as they are bf16. */
template <class S> __device__ __forceinline__ bf16 layers_other(const layers_pack_params &p, int64_t i) {
  constexpr int heads = S::at_heads, D = S::channels;
  const bf16 zero = from_float<bf16>(0.0f);
  if (i >= heads + 2 * D) return i == heads + 2 * D ? *p.q_gamma : i == heads + 2 * D + 1 ? *p.k_gamma : zero;
  if (i >= heads) return i < heads + D ? p.q[i - heads] : p.k[i - heads - D];
  if constexpr (!S::gate) return i < S::hidden ? p.pre[i] : p.post[i - S::hidden];
  const int number = static_cast<int>(i / S::hidden);
  const bf16 *const from = p.clip[number];
  return from == nullptr ? zero : from[p.per_channel[number % 3] ? i % S::hidden : 0];
}

/* Copies a layer's other weights, by all threads of the grid. */
template <class S>
__device__ __forceinline__ void layers_pack_others(const layers_pack_params &p, int64_t thread, int64_t threads) {
  for (int64_t i = thread; i < (S::gate ? S::at_gate : S::norms); i += threads)
    p.norms[i] = layers_other<S>(p, i);
  if constexpr (S::gate) {
    float *const to = reinterpret_cast<float *>(p.norms + S::at_gate);
    for (int64_t i = thread; i < 4 + S::heads; i += threads)
      to[i] = i >= 4 ? p.gate[i - 4] : i < p.taps_count ? p.taps[i] : 0.0f;
  }
}

/* Returns the first word of 16 bytes of a tile's weights: column `row` of w, [.., width], terms from `first` on. */
__device__ __forceinline__ uint4 layers_packed(const bf16 *w, int64_t width, int64_t row, int64_t first, int lane) {
  const uint32_t *const from = reinterpret_cast<const uint32_t *>(w + row * width + first) + lane % 4;
  return make_uint4(from[0], from[4], from[8], from[12]);
}

/* layers_pack: copies a layer's weights into the order in which all_layers reads them. Every bit stays as it is.
 * Grid: (ceil(blocks * block_bytes / 16 / 256)). Block: 256 threads, 16 bytes each. */
template <class S> __global__ void __launch_bounds__(256) layers_pack(layers_pack_params p) {
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x, of_block = S::block_bytes / 16;
  layers_pack_others<S>(p, unit, static_cast<int64_t>(gridDim.x) * 256);
  if (unit >= S::blocks * of_block) return;
  const int block = static_cast<int>(unit / of_block), lane = static_cast<int>(unit % 32), r = lane / 4;
  int at = static_cast<int>(unit % of_block) / 32; /* counts tiles of a pair of steps */
  uint4 *const to = p.packed + unit;
  constexpr int qkv = S::qkv_bytes / 512, proj = S::proj_bytes / 512, up = S::up_bytes / 512;
  if (at < qkv) {
    const int64_t row = (block * S::qkv_tiles + at % S::qkv_tiles) * 8 + r;
    *to = layers_packed(p.qkv, S::hidden, row, at / S::qkv_tiles * 32, lane);
    return;
  }
  at -= qkv;
  if (at < proj) {
    *to = layers_packed(p.proj, S::attended, block * 8 + r, at * 32, lane);
    return;
  }
  at -= proj;
  if (at < up) {
    const int tile = at % S::up_tiles, half = tile / S::act_tiles;
    const int64_t row = half * S::intermediate + (block * S::act_tiles + tile % S::act_tiles) * 8 + r;
    *to = layers_packed(p.up, S::hidden, row, at / S::up_tiles * 32, lane);
    return;
  }
  at -= up;
  const int64_t row = (block / S::parts * S::parts + at % S::parts) * 8 + r;
  *to = layers_packed(p.down, S::intermediate, row, block % S::parts * S::part_terms + at / S::parts * 32, lane);
}

} // namespace ASSAY_NS
#endif
