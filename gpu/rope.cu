/* rope.cu: rotary position embedding of q and k.
 *
 *   x_a <- x_a cos - x_b sin,  x_b <- x_b cos + x_a sin        in place, or into q_out, k_out
 *
 * over R/2 pairs of channels, neox (i, i + R/2) or interleaved (2i, 2i + 1); other channels are copied. rows: one block
 * per row, one thread per pair of a head. vectors: one thread per vector of either half, or of interleaved pairs. A
 * position outside the table turns nothing, and nothing outside the table is read. With heights and widths each pair
 * has the position of its section. docs/kernels/rope.md has the
 * arithmetic. */
#include "gpu/lib/plain.h"
#include "gpu/lib/rope.cuh"
#include "gpu/lib/rowwise.cuh"
#include "gpu/lib/vectors.cuh"

namespace ASSAY_NS {
namespace {

constexpr int max_threads = 256;

/* q or k; element (row, head, d) lies at row * from_row + head * D + d. */
struct rope_side {
  const void *from;
  void *to;
  int64_t from_row, to_row;
  int32_t heads;
  bool in_place;
};

/* Heights and widths of rows, and the pairs that they turn. */
struct rope_axes {
  const void *positions; /* [2, N]; NULL: time alone */
  int32_t height, width; /* pairs */
  bool in_turn, wide;    /* in_turn: sections interleaved; wide: i64 */
};

struct rope_params {
  rope_side q, k;
  rope_angles angles;
  rope_axes axes;
  int64_t N;
  int32_t D;
};

/* Returns the place of the angles of pair i: those of time at `time`, or of the row's height or width. */
__device__ __forceinline__ int64_t angles_of_pair(const rope_params &p, int64_t row, int64_t time, int32_t i) {
  const rope_axes &a = p.axes;
  const int32_t half = p.angles.half;
  const bool height = a.in_turn ? i % 3 == 1 && i < 3 * a.height : i >= half - a.height - a.width && i < half - a.width;
  const bool width = a.in_turn ? i % 3 == 2 && i < 3 * a.width : i >= half - a.width;
  if (!height && !width) return time;
  const int64_t at = (width ? p.N : 0) + row;
  const int64_t position =
      a.wide ? static_cast<const int64_t *>(a.positions)[at] : static_cast<const int32_t *>(a.positions)[at];
  return angles_of(p.angles, position);
}

/* Turns one row of q or of k. time: the position's row of the table, negative if it has none; pairs of other `axes`
 * have their own. Each pair is read and written by one thread. */
template <class T, bool axes>
__device__ __forceinline__ void rotate_row(const rope_params &p, const rope_side &side, int64_t row, int64_t time) {
  const T *const from = static_cast<const T *>(side.from) + row * side.from_row;
  T *const to = static_cast<T *>(side.to) + row * side.to_row;
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  const int32_t half = p.angles.half, apart = pair_apart(p.angles);
  for (int32_t item = thread; item < side.heads * half; item += threads) {
    const int32_t head = item / half, i = item - head * half;
    const int32_t a = head * p.D + first_of_pair(p.angles, i), b = a + apart;
    const int64_t at = axes ? angles_of_pair(p, row, time, i) : time;
    const float2 pair = turned_pair(p.angles, at, i, from[a], from[b]);
    to[a] = from_float<T>(pair.x);
    to[b] = from_float<T>(pair.y);
  }
  const int32_t rest = p.D - 2 * half;
  if (side.in_place || rest == 0) return;
  for (int32_t item = thread; item < side.heads * rest; item += threads) {
    const int32_t head = item / rest, d = head * p.D + 2 * half + (item - head * rest);
    to[d] = from[d];
  }
}

/* rope_rows
 * Grid:   (N rows). Block: 32 to 256 threads: one per pair, all heads of q, then of k.
 * Shared: none.
 * Align:  by element; neighbouring threads take neighbouring pairs.
 * Arch:   any.
 * Limit:  bytes: 4 * sizeof(T) per pair; the table's row comes from the cache for all heads except the first. */
template <class T, bool axes> __global__ void __launch_bounds__(max_threads) rope_rows(rope_params p) {
  const int64_t row = blockIdx.x, at = angles_of(p.angles, position_of(p.angles, row));
  rotate_row<T, axes>(p, p.q, row, at);
  rotate_row<T, axes>(p, p.k, row, at);
}

rope_side side_of(const plain_call &c, const char *name, const char *out, const char *heads) {
  const bool apart = c.has(out);
  return {c.data<const void>(name),
          c.data<void>(apart ? out : name),
          c.row(name),
          c.row(apart ? out : name),
          c.dim32(heads),
          !apart};
}

assay_status read_call(const assay_call *call, rope_params *p, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  ASSAY_TRY(expect_type("q", c.type("q"), error));
  *p = rope_params();
  p->N = c.dim("N");
  p->D = c.dim32("D");
  rope_angles *const angles = &p->angles;
  angles->half = c.dim32("R") / 2;
  if (2 * angles->half > p->D)
    return assay_fail(error, ASSAY_ERR_INPUT, "R: found %d, allowed at most D = %d", 2 * angles->half, p->D);
  angles->max_pos = c.dim("max_pos");
  p->q = side_of(c, "q", "q_out", "H");
  p->k = side_of(c, "k", "k_out", "H_kv");
  angles->cosine = c.data<const float>("cos");
  angles->sine = c.data<const float>("sin");
  angles->positions = c.data<const void>("positions");
  angles->wide = c.type("positions") == ASSAY_I64;
  angles->interleaved = c.integer("style") == 1;
  rope_axes *const axes = &p->axes;
  axes->positions = c.data<const void>("positions_hw");
  if (axes->positions == nullptr) return ASSAY_OK;
  axes->wide = c.type("positions_hw") == ASSAY_I64;
  axes->height = static_cast<int32_t>(c.integer("section_h"));
  axes->width = static_cast<int32_t>(c.integer("section_w"));
  axes->in_turn = c.integer("sections") == 1;
  const int32_t half = angles->half, most_height = axes->in_turn ? (half + 1) / 3 : half;
  const int32_t most_width = axes->in_turn ? half / 3 : half - axes->height;
  if (axes->height > most_height)
    return assay_fail(error, ASSAY_ERR_INPUT, "section_h: found %d, allowed 0 to %d for R = %d", axes->height,
                      most_height, 2 * half);
  if (axes->width > most_width)
    return assay_fail(error, ASSAY_ERR_INPUT, "section_w: found %d, allowed 0 to %d for R = %d", axes->width,
                      most_width, 2 * half);
  return ASSAY_OK;
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  rope_params p;
  ASSAY_TRY(read_call(call, &p, error));
  const int64_t warps = (static_cast<int64_t>(p.q.heads) * p.angles.half + 31) / 32;
  const int64_t threads = warps * 32 < max_threads ? warps * 32 : max_threads;
  (void)snprintf(env->path, sizeof env->path, "rows style=%s R=%d D=%d%s", rope_style_name(p.angles), 2 * p.angles.half,
                 p.D, p.axes.positions != nullptr ? " axes" : "");
  if (p.N == 0) return ASSAY_OK;
  return with_type(assay_find_arg(call, "q")->dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (p.axes.positions != nullptr) return ASSAY_LAUNCH(error, (rope_rows<T, true>), p.N, threads, 0, env->stream, p);
    return ASSAY_LAUNCH(error, (rope_rows<T, false>), p.N, threads, 0, env->stream, p);
  });
}

/* ---- whole vectors ----------------------------------------------------------------------------------- */

/* rope_vectors. neox: a vector of the first half and its partners in the second; interleaved: the pairs of one vector.
 * Values are loaded before the position; its row of the table follows.
 * Grid:   (N rows, pieces of a row's heads). Block: 32 to 256 threads: heads of q, then of k.
 * Shared: none.
 * Align:  every base and distance of rows is a multiple of 16 bytes; halves (neox) or R (interleaved) of whole vectors.
 * Arch:   any.
 * Limit:  bytes: 4 * sizeof(T) per pair; the table's row comes from the cache for all heads except the first. */
template <class T, bool interleaved> __global__ void __launch_bounds__(max_threads) rope_vectors(rope_params p) {
  constexpr int width = vector_width<T>;
  take_turn();
  const int64_t row = blockIdx.x;
  const int32_t half = p.angles.half;
  const int32_t item = vector_of_thread(), items = (interleaved ? 2 * half : half) / width; /* items of a head */
  const int32_t place = item / items, i = (item - place * items) * width;
  if (place >= p.q.heads + p.k.heads) return;
  const bool is_q = place < p.q.heads;
  const rope_side &side = is_q ? p.q : p.k;
  const int64_t d = static_cast<int64_t>(is_q ? place : place - p.q.heads) * p.D + i;
  const T *const from = static_cast<const T *>(side.from) + row * side.from_row + d;
  T *const to = static_cast<T *>(side.to) + row * side.to_row + d;
  const rope_vectors_of pairs = load_pairs<T, interleaved>(p.angles, from);
  const int64_t at = angles_of(p.angles, position_of(p.angles, row));
  store_pairs<T, interleaved>(p.angles, to, turn_vectors<T, interleaved>(p.angles, at, i, pairs));
}

assay_status read_vectors(const assay_call *call, rope_params *p, assay_error *error) {
  ASSAY_TRY(read_call(call, p, error));
  const assay_dtype type = assay_find_arg(call, "q")->dtype;
  if (p->axes.positions != nullptr)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "positions_hw: found heights and widths, taken here: none");
  if (2 * p->angles.half < p->D && !(p->q.in_place && p->k.in_place))
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "R: found %d of %d, with channels to be copied, taken here: none",
                      2 * p->angles.half, p->D);
  ASSAY_TRY(expect_vectors(call, "D", p->D, type, error));
  if (p->angles.half == 0) return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "R: found 0, taken here: 1 or more");
  return expect_vectors(call, "R", p->angles.interleaved ? 2 * p->angles.half : p->angles.half, type, error);
}

assay_status launch_vectors(const assay_call *call, assay_env *env, assay_error *error) {
  rope_params p;
  ASSAY_TRY(read_vectors(call, &p, error));
  const assay_dtype type = assay_find_arg(call, "q")->dtype;
  const vector_grid grid =
      split_vectors(p.N, (p.q.heads + p.k.heads) * (p.angles.interleaved ? 2 * p.angles.half : p.angles.half), type, 1);
  (void)snprintf(env->path, sizeof env->path, "vectors style=%s R=%d D=%d", rope_style_name(p.angles),
                 2 * p.angles.half, p.D);
  if (p.N == 0) return ASSAY_OK;
  return with_type(type, [&](auto t) {
    using T = typename decltype(t)::type;
    const auto start = [&](auto kernel) {
      return ASSAY_LAUNCH_WITH(error, kernel, launch_extent(grid.groups, grid.pieces), grid.threads, 0, in_turn(),
                               env->stream, p);
    };
    return p.angles.interleaved ? start(rope_vectors<T, true>) : start(rope_vectors<T, false>);
  });
}

constexpr assay_contract contract = rowwise_contract(0.0, 1);

} // namespace
} // namespace ASSAY_NS

#define ROWS                                                                                                           \
  PLAIN_VARIANT("rope", "rows", "one block a row, q and k in one launch", PLAIN_TYPE_CLAIMS "|neox,interleaved",       \
                contract, rope_params, read_call, launch)
#define VECTORS                                                                                                        \
  PLAIN_VARIANT("rope", "vectors", "16 bytes a load, q and k in one launch", PLAIN_TYPE_CLAIMS "|neox,interleaved",    \
                contract, rope_params, read_vectors, launch_vectors)

ASSAY_VARIANTS(rope, VECTORS, ROWS)
