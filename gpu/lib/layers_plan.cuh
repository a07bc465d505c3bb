/* layers_plan.cuh: which blocks attend to which keys, in the kernel that has all layers of a decode step (layers.cuh).
 *
 * A unit is a row and a kv head. It costs its tiles of slot_keys keys, and what a unit costs before its first key.
 * Where the longest unit costs little more than an even share, each block has one whole unit. Otherwise all units stand
 * in a line, the line is cut into equal shares, and block b has the b-th. A block's part of a unit is a span. The block
 * where a unit begins owns it: it joins the other blocks' pieces, and writes the result. The one where it ends has the
 * new token. A block has at most one piece that it does not own, its first span. Every block computes the plan from the
 * lengths, once per launch.
 *
 * In the fixed form (layers_shape) a unit is cut into pieces by its own length alone. A piece is one span, and it is in
 * the block in whose share it begins. The pieces of a unit are joined in their order, wherever they are. The block that
 * has the first one keeps the sum of its own in registers, and then asks for the others. */
#ifndef ASSAY_GPU_LIB_LAYERS_PLAN_CUH
#define ASSAY_GPU_LIB_LAYERS_PLAN_CUH

#include "gpu/lib/layers_shape.cuh"
#include "gpu/lib/warp.cuh"

namespace ASSAY_NS {

/* Costs in tiles: of a unit before its first key, of the least piece, and of joining pieces
 * (docs/log/2026-11-30-h200-one-launch-keys.md). */
constexpr int layers_unit_cost = 1, layers_least_cost = 3, layers_join_cost = 2;

/* Fixed: a row with few tiles has one piece; with more, a piece has four or more. Four tiles are 256 keys. */
constexpr int layers_whole_tiles = 6, layers_piece_tiles = 4;

/* Returns the tiles of a fixed piece of a unit with so many tiles. */
__device__ __forceinline__ int layers_tiles_of_piece(int tiles) {
  if (tiles <= layers_whole_tiles) return max(tiles, 1);
  const int pieces = min((tiles + layers_piece_tiles - 1) / layers_piece_tiles, layers_most_pieces);
  return (tiles + pieces - 1) / pieces;
}

struct layers_plan {
  int begin[layers_rows + 1]; /* where the units of a row begin in the line; the last: its end */
  int earlier[layers_rows];   /* a row's tokens before the new one; -1: it has no request */
  int share;                  /* 0: block u has unit u, whole */
};

/* A block's part of a unit: keys `first` to `last` - 1. */
struct layers_span {
  int row, kv_head, first, last;
  int others;      /* blocks after this one that have pieces of the unit; 0 unless `owns` */
  bool owns, ends; /* has the unit's first keys, or no piece before it; its last keys, and the new token */
  /* Fixed: the piece's number in its unit; owns: the unit's first piece is in this block. others: the pieces after this
   * one, if it is the block's last of the unit; else -1. */
  int piece;
};

/* Tells whether a span needs the two keys before it: the filter of the gate looks back. */
template <class S> __device__ __forceinline__ bool layers_looks_back(const layers_span &of) {
  return S::gate && of.first > 0;
}

/* Computes the plan, by one warp. */
template <class S>
__device__ __forceinline__ void layers_make_plan(const layers_params &p, layers_plan &plan, int lane) {
  const int earlier = lane < p.M ? p.kv_len[lane] - 1 : -1;
  const int cost = earlier < 0 ? 0 : layers_unit_cost + (earlier + S::slot_keys - 1) / S::slot_keys;
  int end = cost * S::kv_heads;
  ASSAY_UNROLL
  for (int apart = 1; apart < 32; apart *= 2) {
    const int before = __shfl_up_sync(0xFFFFFFFFu, end, apart);
    if (lane >= apart) end += before;
  }
  const int most = __reduce_max_sync(0xFFFFFFFFu, cost), all = __shfl_sync(0xFFFFFFFFu, end, 31);
  const int even = max((all + S::blocks - 1) / S::blocks, layers_unit_cost + layers_least_cost);
  const bool whole = !S::fixed && most <= even + layers_join_cost && p.M * S::kv_heads <= S::blocks;
  plan.begin[lane + 1] = end;
  plan.earlier[lane] = earlier;
  if (lane == 0) {
    plan.begin[0] = 0;
    plan.share = whole ? 0 : even;
  }
}

/* Walks over the spans of this block. All lanes of a warp call it together. */
template <class S> struct layers_spans {
  int at, end;

  __device__ __forceinline__ explicit layers_spans(const layers_plan &plan) {
    const int block = static_cast<int>(blockIdx.x);
    at = plan.share == 0 ? 0 : block * plan.share;
    end = plan.share == 0 ? 1 : min(at + plan.share, plan.begin[layers_rows]);
  }

  /* Tells whether there is another span, and which. */
  __device__ __forceinline__ bool next(const layers_plan &plan, int lane, layers_span &span) {
    if constexpr (S::fixed) return next_piece(plan, lane, span);
    if (at >= end) return false;
    if (plan.share == 0) {
      const int unit = static_cast<int>(blockIdx.x), row = unit / S::kv_heads;
      at = end;
      if (plan.earlier[row] < 0) return false;
      span = {row, unit % S::kv_heads, 0, plan.earlier[row], 0, true, true, 0};
      return true;
    }
    const int row = __popc(__ballot_sync(0xFFFFFFFFu, plan.begin[lane + 1] <= at)), begin = plan.begin[row];
    const int cost = (plan.begin[row + 1] - begin) / S::kv_heads, kv_head = (at - begin) / cost;
    const int unit = begin + kv_head * cost, from = at - unit, to = min(cost, end - unit);
    span.row = row;
    span.kv_head = kv_head;
    span.first = max(from - layers_unit_cost, 0) * S::slot_keys;
    span.last = min(max(to - layers_unit_cost, 0) * S::slot_keys, plan.earlier[row]);
    span.owns = from == 0;
    span.others = span.owns ? (unit + cost - 1) / plan.share - static_cast<int>(blockIdx.x) : 0;
    span.ends = to == cost;
    at = unit + to;
    return true;
  }

  /* As next(), in the fixed form: the next piece that begins in the block's share. */
  __device__ __forceinline__ bool next_piece(const layers_plan &plan, int lane, layers_span &span) {
    while (at < end) {
      const int row = __popc(__ballot_sync(0xFFFFFFFFu, plan.begin[lane + 1] <= at)), begin = plan.begin[row];
      const int cost = (plan.begin[row + 1] - begin) / S::kv_heads, kv_head = (at - begin) / cost;
      const int unit = begin + kv_head * cost, from = at - unit, tiles = cost - layers_unit_cost;
      const int each = layers_tiles_of_piece(tiles), pieces = max((tiles + each - 1) / each, 1);
      const int piece = from == 0 ? 0 : max((from - layers_unit_cost + each - 1) / each, 1);
      if (piece >= pieces) { /* the rest of the unit belongs to a piece of the block before */
        at = unit + cost;
        continue;
      }
      if (piece > 0 && unit + layers_unit_cost + piece * each >= end) break;
      const int behind = piece + 1 < pieces ? unit + layers_unit_cost + (piece + 1) * each : unit + cost;
      span.row = row;
      span.kv_head = kv_head;
      span.first = piece * each * S::slot_keys;
      span.last = min((piece + 1) * each * S::slot_keys, plan.earlier[row]);
      span.owns = unit >= static_cast<int>(blockIdx.x) * plan.share;
      span.ends = piece + 1 == pieces;
      span.others = span.ends || behind >= end ? pieces - 1 - piece : -1;
      span.piece = piece;
      at = behind;
      return true;
    }
    at = end;
    return false;
  }
};

} // namespace ASSAY_NS
#endif
