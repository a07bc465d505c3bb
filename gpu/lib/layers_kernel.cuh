/* layers_kernel.cuh: the kernel of layers.cuh, what its two other warps do, and the packing of weights. */
#ifndef ASSAY_GPU_LIB_LAYERS_KERNEL_CUH
#define ASSAY_GPU_LIB_LAYERS_KERNEL_CUH

#include "gpu/lib/layers_attention.cuh"
#include "gpu/lib/ptx_edge.cuh"

namespace ASSAY_NS {

/* ---- the ring's warp --------------------------------------------------------------------------------------- */

/* All lanes arrive at a slot's `full`. For weights they do so at once, and lane 0 announces bytes. For keys each lane
 * arrives when its own copies are complete. */
template <class S, class M>
__device__ __forceinline__ void layers_fill_weights(M &m, layers_place<S> &place, const unsigned char *&from, int bytes,
                                                    int lane) {
  ASSAY_ROLLED
  for (int at = 0; at < bytes; at += S::slot_weights) {
    const uint32_t count = static_cast<uint32_t>(bytes - at < S::slot_weights ? bytes - at : S::slot_weights);
    uint64_t *const full = &m.full[place.at];
    layers_wait(&m.drained[place.at], place.phase ^ 1u);
    if (lane == 0) {
      mbarrier_expect(full, count);
      bulk_load(m.ring[place.at], from, count, full);
    } else {
      mbarrier_arrive(full);
    }
    place.advance(1);
    from += count;
  }
}

/* Copies the keys or the values of up to slot_keys tokens from `first` on. There are always whole sixteens of them: the
 * last token comes again, so that its values times 0 are as good as its own. */
template <class S, class M>
__device__ __forceinline__ void layers_fill_keys(const layers_params &p, M &m, layers_place<S> &place, const bf16 *pool,
                                                 const layers_unit_of &of, int first, int lane) {
  const int left = of.earlier - first, wanted = (left + 15) / 16 * 16;
  const int count = wanted < S::slot_keys ? wanted : S::slot_keys;
  const int32_t *const table = p.table + of.row * p.table_stride;
  constexpr int pieces = S::key_bytes / 16, at_once = 32 / pieces; /* a key's pieces of 16 bytes; keys copied at once */
  constexpr int each = (S::slot_keys + 31) / 32;
  int32_t slot[each]; /* where keys lane, lane + 32 are in the pool */
  ASSAY_UNROLL
  for (int i = 0; i < each; ++i) {
    const int token = min(first + lane + 32 * i, of.earlier - 1);
    slot[i] = table[token / p.block_size] * p.block_size + token % p.block_size;
  }
  layers_wait(&m.drained[place.at], place.phase ^ 1u);
  const bf16 *const from = pool + of.kv_head * S::channels + lane % pieces * 8;
  unsigned char *const to = m.ring[place.at] + lane % pieces * 16;
  constexpr int step = 4 * at_once < S::slot_keys ? 4 * at_once : S::slot_keys;
  ASSAY_ROLLED
  for (int i = 0; i < S::slot_keys; i += step)
    ASSAY_UNROLL
  for (int j = 0; j < step; j += at_once) {
    const int key = i + j + lane / pieces;
    const int32_t of_key = __shfl_sync(layers_all, each > 1 && key >= 32 ? slot[each - 1] : slot[0], key % 32);
    if (key < count)
      cp_async_16(to + key * S::key_stride, from + static_cast<int64_t>(of_key) * (S::kv_heads * S::channels), 16);
  }
  cp_async_arrive_noinc(&m.full[place.at]);
  place.advance(1);
}

template <class S, int tiles, class M>
__device__ __forceinline__ void layers_ring(const layers_params &p, M &m, int lane) {
  layers_place<S> place;
  ASSAY_ROLLED
  for (int layer = 0; layer < p.layers; ++layer) {
    const unsigned char *from = reinterpret_cast<const unsigned char *>(p.packed) +
                                (static_cast<int64_t>(layer) * S::blocks + blockIdx.x) * S::block_bytes;
    layers_fill_weights<S>(m, place, from, S::qkv_bytes, lane);
    for (int u = static_cast<int>(blockIdx.x); u < 16 * tiles * S::kv_heads; u += S::blocks) {
      const layers_unit_of of = layers_row<S>(p, u);
      ASSAY_ROLLED
      for (int first = 0; first < of.earlier; first += S::chunk_keys)
        ASSAY_ROLLED
      for (int half = 0; half < 2; ++half) {
        const bf16 *const pool = (half == 0 ? p.k_pool : p.v_pool) + layer * p.pool_layer;
        layers_fill_keys<S>(p, m, place, pool, of, first, lane);
        if (first + S::slot_keys < of.earlier) layers_fill_keys<S>(p, m, place, pool, of, first + S::slot_keys, lane);
      }
    }
    layers_fill_weights<S>(m, place, from, S::proj_bytes, lane);
    layers_fill_weights<S>(m, place, from, S::up_bytes, lane);
    layers_fill_weights<S>(m, place, from, S::down_bytes, lane);
  }
}

/* ---- the keeper ---------------------------------------------------------------------------------------------- */

/* Empties the words of an octet of rows `width` wide, in both tiles. */
template <int width> __device__ __forceinline__ void layers_empty_octet(uint4 *units, int octet, int lane) {
  ASSAY_ROLLED
  for (int tile = 0; tile < 2; ++tile)
    store_words_8(layers_octet<width>(units, tile, octet, lane), make_uint2(empty_word, empty_word));
}

/* Empties the words that this block writes in a layer, whatever the number of rows. */
template <class S> __device__ __forceinline__ void layers_empty(uint4 *units, int lane) {
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
    ASSAY_ROLLED
  for (int i = lane; i < S::group * S::channels / 2; i += 32) {
    const int channel = u % S::kv_heads * S::group * S::channels + 2 * i;
    store_word(layers_pair<S::attended>(units + S::at_attended, u / S::kv_heads, channel), empty_word);
  }
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
    layers_empty<S>(layers_set<S>(p, number - 1u), lane);
    __threadfence();
    __syncwarp();
    if (lane == 0) store_release(p.done + blockIdx.x, number);
  }
}

/* ---- the workers --------------------------------------------------------------------------------------------- */

/* qkv: the block's columns of q, k and v. */
template <class S, int tiles, class M>
__device__ __forceinline__ void layers_qkv(const layers_params &p, M &m, uint4 *units, layers_place<S> &place, int warp,
                                           int lane, uint32_t &stage) {
  constexpr int columns = S::qkv_tiles;
  float sum[columns][tiles][4] = {}, squares = 0.0f;
  layers_product<S, S::hidden, tiles, columns, S::hidden_pairs, true, true, layers_slots<S>(S::qkv_bytes)>(
      m, units + S::at_in, 0, place, warp, lane, stage, sum, &squares);
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
  const uint32_t g = layers_norm_pair(p.norms + layer * S::norms + S::hidden, lane);
  float sum[1][tiles][4] = {};
  layers_product<S, S::attended, tiles, 1, S::proj_pairs, true, false, layers_slots<S>(S::proj_bytes)>(
      m, units + S::at_attended, 0, place, warp, lane, stage, sum, nullptr);
  layers_put_sums<S, tiles, 1>(m, sum, warp, lane, stage);
  for (int i = warp; i < tiles; i += S::warps)
    layers_add<S>(p, m, units + S::at_mid, g, i, lane, layers_sum_of<S, tiles, 1>(m, i * 32 + lane));
  layers_free_sums(m, lane, stage);
}

/* Returns gate * sigmoid(gate) * up. */
__device__ __forceinline__ float layers_swiglu(float gate, float up) {
  return gate * reciprocal_approx(1.0f + exp2_approx(-1.44269504f * gate)) * up;
}

/* up: gates and ups of the block's channels. */
template <class S, int tiles, class M>
__device__ __forceinline__ void layers_up(const layers_params &p, M &m, uint4 *units, layers_place<S> &place, int warp,
                                          int lane, uint32_t &stage) {
  constexpr int columns = S::up_tiles, acts = S::act_tiles;
  float sum[columns][tiles][4] = {}, squares = 0.0f;
  layers_product<S, S::hidden, tiles, columns, S::hidden_pairs, false, true, layers_slots<S>(S::up_bytes)>(
      m, units + S::at_mid, 0, place, warp, lane, stage, sum, &squares);
  m.square[warp][lane] = squares;
  layers_put_sums<S, tiles, columns>(m, sum, warp, lane, stage);
  for (int i = warp * 32 + lane; i < acts * tiles * 32; i += S::workers) {
    const int tile = i / 32 % tiles, row = tile * 16 + lane / 4;
    const float4 gate = layers_sum_of<S, tiles, columns>(m, i);
    const float4 up = layers_sum_of<S, tiles, columns>(m, i + acts * tiles * 32);
    const float first = layers_factor<S>(m, row, p.eps), second = layers_factor<S>(m, row + 8, p.eps);
    const uint2 act = make_uint2(
        pack_pair<bf16>(layers_swiglu(gate.x * first, up.x * first), layers_swiglu(gate.y * first, up.y * first)),
        pack_pair<bf16>(layers_swiglu(gate.z * second, up.z * second), layers_swiglu(gate.w * second, up.w * second)));
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
  const uint32_t g = next != nullptr ? layers_norm_pair(p.norms + (layer + 1) * S::norms, lane) : 0u;
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
    layers_add<S>(p, m, next, g, tile, lane, layers_joined<S, tiles>(parts, part, unit, of));
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
    layers_wait(&m.clean, static_cast<uint32_t>(layer) & 1u);
    layers_qkv<S, tiles>(p, m, units, place, warp, lane, stage);
    for (int u = static_cast<int>(blockIdx.x); u < 16 * tiles * S::kv_heads; u += S::blocks)
      layers_attend<S>(p, m, units, u, layer, place, warp, lane, stage);
    layers_proj<S, tiles>(p, m, units, layer, place, warp, lane, stage);
    layers_up<S, tiles>(p, m, units, place, warp, lane, stage);
    uint4 *const next = layer + 1 < p.layers ? layers_set<S>(p, number + 1u) + S::at_in : nullptr;
    layers_down<S, tiles>(p, m, units, next, layer, place, warp, lane, stage);
  }
}

/* all_layers: layers.cuh describes it. tiles: of 16 rows. */
template <class S, int tiles> __global__ void __launch_bounds__(S::threads, 1) all_layers(layers_params p) {
  using memory = layers_memory<S, tiles>;
  ASSAY_DYNAMIC_SHARED(unsigned char, dynamic);
  memory &m = *reinterpret_cast<memory *>(dynamic);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const uint32_t begin = p.done[blockIdx.x] + 1u;
  if (thread == 0) {
    for (int i = 0; i < S::slots; ++i) {
      mbarrier_init(&m.full[i], 32);
      mbarrier_init(&m.drained[i], S::warps);
    }
    mbarrier_init(&m.read, S::warps);
    mbarrier_init(&m.clean, 1);
    mbarrier_init(&m.freed, S::warps);
    mbarrier_fence_init();
  }
  __syncthreads();
  if (warp < S::warps) {
    if constexpr (S::moves_registers) registers_more<layers_more>();
    layers_work<S, tiles>(p, m, begin, warp, lane);
    return;
  }
  if constexpr (S::moves_registers) registers_fewer<layers_fewer>();
  if (warp == S::warps) layers_ring<S, tiles>(p, m, lane);
  if (warp == S::warps + 1) layers_keep<S>(p, m, begin, lane);
}

/* ---- packing --------------------------------------------------------------------------------------------------- */

/* One layer's weights, [out, in], and its norms. */
struct layers_pack_params {
  const bf16 *qkv, *proj, *up, *down, *pre, *post, *q, *k;
  uint4 *packed; /* the layer's */
  bf16 *norms;
};

/* Returns the first word of 16 bytes of a tile's weights: column `row` of w, [.., width], terms from `first` on. */
__device__ __forceinline__ uint4 layers_packed(const bf16 *w, int64_t width, int64_t row, int64_t first, int lane) {
  const uint32_t *const from = reinterpret_cast<const uint32_t *>(w + row * width + first) + lane % 4;
  return make_uint4(from[0], from[4], from[8], from[12]);
}

/* layers_pack: copies a layer's weights into the order in which all_layers reads them. Every bit stays as it is.
 * Grid: (ceil(blocks * block_bytes / 16 / 256)). Block: 256 threads, 16 bytes each. */
template <class S> __global__ void __launch_bounds__(256) layers_pack(layers_pack_params p) {
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x, of_block = S::block_bytes / 16;
  for (int64_t i = unit; i < S::norms; i += static_cast<int64_t>(gridDim.x) * 256)
    p.norms[i] = i < S::hidden                     ? p.pre[i]
                 : i < 2 * S::hidden               ? p.post[i - S::hidden]
                 : i < 2 * S::hidden + S::channels ? p.q[i - 2 * S::hidden]
                                                   : p.k[i - 2 * S::hidden - S::channels];
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
