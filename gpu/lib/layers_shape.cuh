/* layers_shape.cuh: the sizes of the kernel that has all layers of a decode step (layers.cuh), and where its weights
 * and words lie.
 *
 * The k of an mma is walked in steps of 16: two octets of channels. A lane with r = lane / 4 and t = lane % 4 has these
 * pairs of a step's channels, the first at 2 t of an octet:
 *
 *   rows      word 0 (r, first octet), word 1 (r + 8, first), word 2 (r, second), word 3 (r + 8, second)
 *   weights   two steps of column r in 16 bytes, a word for each of their four octets */
#ifndef ASSAY_GPU_LIB_LAYERS_SHAPE_CUH
#define ASSAY_GPU_LIB_LAYERS_SHAPE_CUH

#include "gpu/lib/launch.h"
#include "gpu/lib/tensor_map.h"
#include "gpu/lib/types.cuh"

namespace ASSAY_NS {

constexpr int layers_rows = 32;                     /* most rows of a step */
constexpr int layers_sets = 4;                      /* layers whose words lie beside each other */
constexpr int layers_most_pieces = 16;              /* fixed: most pieces of a row's keys */
constexpr int layers_more = 224, layers_fewer = 56; /* registers of a worker; of a thread of the other warps */

/* Sizes of a model, and how its layers are divided. Every block has an octet of the residual stream. `warps` share k in
 * each product. The product mlp.down is also divided along k among `parts` neighbouring blocks. */
template <int hidden_, int heads_, int kv_heads_, int channels_, int intermediate_, int blocks_, int warps_, int parts_,
          int slot_weights_, int slots_, bool gate_ = false, bool fixed_ = false>
struct layers_shape {
  /* fixed: a row's sums depend on nothing but the row: its keys are cut into pieces by its own length. */
  static constexpr bool fixed = fixed_;
  /* gate: layers of asynct: norms that clip, before and after each half, gate_attention, reglu. Else those of qwen3. */
  static constexpr bool gate = gate_;
  static constexpr int hidden = hidden_, heads = heads_, kv_heads = kv_heads_, channels = channels_;
  static constexpr int intermediate = intermediate_, blocks = blocks_, warps = warps_, parts = parts_;
  static constexpr int group = heads / kv_heads, attended = heads * channels;
  static constexpr int qkv = (heads + 2 * kv_heads) * channels;
  /* After the workers come two loaders and the keeper. Where workers are whole warpgroups, these are one too, and give
   * registers to the workers. */
  static constexpr bool moves_registers = warps % 8 == 0;
  static constexpr int workers = 32 * warps, threads = workers + (moves_registers ? 128 : 96);

  /* Tiles of 8 columns that a block has in each product, and pairs of steps of each warp. */
  static constexpr int qkv_tiles = qkv / blocks / 8, act_tiles = intermediate / blocks / 8, up_tiles = 2 * act_tiles;
  static constexpr int hidden_pairs = hidden / 32 / warps, proj_pairs = attended / 32 / warps;
  static constexpr int part_terms = intermediate / parts, down_pairs = part_terms / 32 / warps;

  /* Bytes of a block's packed weights in one layer. */
  static constexpr int qkv_bytes = qkv_tiles * 16 * hidden, proj_bytes = 16 * attended;
  static constexpr int up_bytes = up_tiles * 16 * hidden, down_bytes = parts * 16 * part_terms;
  static constexpr int block_bytes = qkv_bytes + proj_bytes + up_bytes + down_bytes;

  /* A layer's other weights. qwen3: attn.pre, mlp.pre, q, k. asynct: alpha, gamma and beta per channel of attn.pre,
   * attn.post, mlp.pre and mlp.post; alphas of q and k, their gammas in 8 places; then f32: the taps of the filter in 4
   * places, and gamma of each head. */
  static constexpr int at_heads = (gate ? 12 : 2) * hidden, at_gate = at_heads + 2 * channels + 8;
  static constexpr int norms = gate ? at_gate + 2 * (4 + (heads + 3) / 4 * 4) : at_heads + 2 * channels;

  /* The ring. A slot has weights, or the keys or values of slot_keys tokens, as boxes of 8 tokens. A box has spans of
   * at most 128 bytes: the first of all tokens, then the second. The copy engine permutes their 16-byte chunks. */
  static constexpr int slot_weights = slot_weights_, slots = slots_;
  static constexpr int key_bytes = 2 * channels, span_bytes = key_bytes < 128 ? key_bytes : 128;
  static constexpr int spans = key_bytes / span_bytes, box_keys = 8, box_bytes = box_keys * key_bytes;
  static constexpr int slot_keys = 8 * warps, slot_boxes = slot_keys / box_keys, chunk_slots = 2;
  static constexpr int chunk_keys = chunk_slots * slot_keys; /* sixteen of each warp */
  static constexpr int slot_bytes = slot_keys * key_bytes > slot_weights ? slot_keys *key_bytes : slot_weights;

  /* Words of a set, in units of four. */
  static constexpr int stream_units = 2 * (hidden / 16) * 32, square_units = layers_rows * blocks / 4;
  static constexpr int at_in = 0, at_mid = stream_units + square_units, at_qkv = 2 * at_mid;
  static constexpr int at_attended = at_qkv + layers_rows * qkv / 8;
  static constexpr int at_act = at_attended + 2 * (attended / 16) * 32;
  static constexpr int at_parts = at_act + 2 * (intermediate / 16) * 32;
  static constexpr int at_pieces = at_parts + blocks * parts * 64;
  static constexpr int piece_units = group * (channels + 2) / 4; /* each head has peak, total, sums of channels */
  static constexpr int pieces =
      fixed ? layers_rows * kv_heads * (layers_most_pieces - 1) : blocks; /* that have words */
  static constexpr int set_units = at_pieces + pieces * piece_units;

  static_assert(norms % 8 == 0 && at_gate % 8 == 0, "16 bytes");
  static_assert(hidden == 8 * blocks, "a block has one octet of the stream");
  static_assert(group == 2, "the four used columns of a product of attention are two heads, in two parts");
  static_assert(span_bytes >= 32 && (span_bytes & (span_bytes - 1)) == 0 && channels <= 128, "what a box takes");
  static_assert(slot_bytes % (8 * span_bytes) == 0, "boxes begin where the permutation does");
  static_assert(blocks <= layers_rows * kv_heads, "no block is beyond the units of all rows");
  static_assert(warps >= 2 && warps % 2 == 0 && blocks % parts == 0 && blocks % 4 == 0, "whole groups");
  static_assert(qkv % (8 * blocks) == 0 && intermediate % (8 * blocks) == 0, "whole tiles");
  static_assert(hidden % (32 * warps) == 0 && attended % (32 * warps) == 0 && part_terms % (32 * warps) == 0,
                "whole pairs of steps");
  static_assert(slots >= 2 * chunk_slots, "a chunk is in the ring at once");
  static_assert(!fixed || group * channels / 2 <= workers, "a thread has the sums of one pair from piece to piece");
  static_assert(slot_weights % 512 == 0, "a tile of a pair of steps is in one slot");
};

/* Slots that `bytes` of weights take. */
template <class S> __host__ __device__ constexpr int layers_slots(int bytes) {
  return (bytes + S::slot_weights - 1) / S::slot_weights;
}

/* The arguments of a launch. */
struct layers_params {
  const uint4 *packed; /* [layers][blocks][block_bytes] */
  const bf16 *norms;   /* [layers][norms] */
  uint4 *words;        /* [layers_sets][set_units] */
  uint32_t *done;      /* [blocks]: the last layer whose words the block has emptied, counted over all launches */
  const bf16 *x;       /* [M, hidden] */
  bf16 *y;             /* [M, hidden]; may be x */
  const float *cosine, *sine;                /* [positions, channels / 2] */
  const int32_t *positions, *kv_len, *table; /* [M], [M], [M, table_stride] */
  const int64_t *slots;                      /* [M]; below 0: the row is not appended */
  bf16 *k_pool, *v_pool;                     /* [layers][blocks, block_size, kv_heads, channels] */
  int64_t pool_layer, table_stride;
  int32_t block_size, M, layers;
  float eps, scale; /* scale: of scores, times log2(e) before a softmax */
  float low, high;  /* gate: where weights are cut off */
};

/* The caches as the copy engine sees them: channels of a span, tokens, spans, kv heads, layers. */
struct layers_maps {
  tensor_map k, v;
};

/* ---- places of words ------------------------------------------------------------------------------------- */

/* Returns the unit of rows in the order of fragments: `width` channels, tile of 16 rows, step of 16 channels. */
template <int width> __device__ __forceinline__ int layers_unit(int tile, int step, int lane) {
  return (tile * (width / 16) + step) * 32 + lane;
}

/* Returns the pairs of an octet of rows r and r + 8, two neighbouring words. */
template <int width> __device__ __forceinline__ uint2 *layers_octet(uint4 *units, int tile, int octet, int lane) {
  return reinterpret_cast<uint2 *>(units + layers_unit<width>(tile, octet / 2, lane)) + octet % 2;
}

/* Returns the word of one row's pair of channels, `channel` and the next. */
template <int width> __device__ __forceinline__ uint32_t *layers_pair(uint4 *units, int row, int channel) {
  const int lane = row % 8 * 4 + channel % 8 / 2, octet = channel / 8;
  return reinterpret_cast<uint32_t *>(layers_octet<width>(units, row / 16, octet, lane)) + row % 16 / 8;
}

/* Returns the sum of squares of a row over the octet of `block`. */
__device__ __forceinline__ uint32_t *layers_square(uint4 *units, int row, int block) {
  return reinterpret_cast<uint32_t *>(units + block / 4 * layers_rows + row) + block % 4;
}

} // namespace ASSAY_NS
#endif
