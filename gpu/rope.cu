/* rope.cu: rotary position embedding of q and k.
 *
 *   x_a <- x_a cos - x_b sin,  x_b <- x_b cos + x_a sin        in place, or into q_out, k_out
 *
 * over R/2 pairs of channels, neox (i, i + R/2) or interleaved (2i, 2i + 1); other channels are copied. rows: one block
 * a row, one thread a pair of a head; vectors: one thread a vector of either half, or of interleaved pairs. A position
 * outside the table turns nothing, and nothing outside the table is read. docs/kernels/rope.md has the arithmetic. */
#include "gpu/lib/plain.h"
#include "gpu/lib/rowwise.cuh"
#include "gpu/lib/vectors.cuh"

namespace ASSAY_NS {
namespace {

constexpr int max_threads = 256;

/* q or k: element (row, head, d) at row * from_row + head * D + d. */
struct rope_side {
  const void *from;
  void *to;
  int64_t from_row, to_row;
  int32_t heads;
  bool in_place;
};

struct rope_params {
  rope_side q, k;
  const float *cosine, *sine; /* [max_pos, R / 2] */
  const void *positions;
  int64_t N, max_pos;
  int32_t D, half;        /* half: R / 2 */
  bool interleaved, wide; /* wide: positions are i64 */
};

__device__ __forceinline__ int64_t position_of(const rope_params &p, int64_t row) {
  return p.wide ? static_cast<const int64_t *>(p.positions)[row] : static_cast<const int32_t *>(p.positions)[row];
}

/* One row of q or of k. at: the table's row of the position; negative: none. Each pair is read and written by one
 * thread. */
template <class T>
__device__ __forceinline__ void rotate_row(const rope_params &p, const rope_side &side, int64_t row, int64_t at) {
  const T *const from = static_cast<const T *>(side.from) + row * side.from_row;
  T *const to = static_cast<T *>(side.to) + row * side.to_row;
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  for (int32_t item = thread; item < side.heads * p.half; item += threads) {
    const int32_t head = item / p.half, i = item - head * p.half;
    const int32_t a = head * p.D + (p.interleaved ? 2 * i : i), b = p.interleaved ? a + 1 : a + p.half;
    const float c = at >= 0 ? p.cosine[at + i] : 1.0f, s = at >= 0 ? p.sine[at + i] : 0.0f;
    const float x = to_float(from[a]), y = to_float(from[b]);
    to[a] = from_float<T>(x * c - y * s);
    to[b] = from_float<T>(y * c + x * s);
  }
  const int32_t rest = p.D - 2 * p.half;
  if (side.in_place || rest == 0) return;
  for (int32_t item = thread; item < side.heads * rest; item += threads) {
    const int32_t head = item / rest, d = head * p.D + 2 * p.half + (item - head * rest);
    to[d] = from[d];
  }
}

/* rope_rows
 * Grid:   (N rows). Block: 32 to 256 threads: one a pair, all heads of q, then of k.
 * Shared: none.
 * Align:  by element; neighbouring threads take neighbouring pairs.
 * Arch:   any.
 * Limit:  bytes: 4 * sizeof(T) a pair; the table's row comes from the cache for all heads but the first. */
template <class T> __global__ void __launch_bounds__(max_threads) rope_rows(rope_params p) {
  const int64_t row = blockIdx.x, position = position_of(p, row);
  const int64_t at = position >= 0 && position < p.max_pos ? position * p.half : -1;
  rotate_row<T>(p, p.q, row, at);
  rotate_row<T>(p, p.k, row, at);
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
  p->half = c.dim32("R") / 2;
  if (2 * p->half > p->D)
    return assay_fail(error, ASSAY_ERR_INPUT, "R: found %d, allowed at most D = %d", 2 * p->half, p->D);
  p->max_pos = c.dim("max_pos");
  p->q = side_of(c, "q", "q_out", "H");
  p->k = side_of(c, "k", "k_out", "H_kv");
  p->cosine = c.data<const float>("cos");
  p->sine = c.data<const float>("sin");
  p->positions = c.data<const void>("positions");
  p->wide = c.type("positions") == ASSAY_I64;
  p->interleaved = c.integer("style") == 1;
  return ASSAY_OK;
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  rope_params p;
  ASSAY_TRY(read_call(call, &p, error));
  const int64_t warps = (static_cast<int64_t>(p.q.heads) * p.half + 31) / 32;
  const int64_t threads = warps * 32 < max_threads ? warps * 32 : max_threads;
  (void)snprintf(env->path, sizeof env->path, "rows style=%s R=%d D=%d", p.interleaved ? "interleaved" : "neox",
                 2 * p.half, p.D);
  if (p.N == 0) return ASSAY_OK;
  return with_type(assay_find_arg(call, "q")->dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    return ASSAY_LAUNCH(error, (rope_rows<T>), p.N, threads, 0, env->stream, p);
  });
}

/* ---- whole vectors ----------------------------------------------------------------------------------- */

/* `count` angles of the table from entry i on: cos 1 and sin 0 outside it. */
template <int count>
__device__ __forceinline__ void load_angles(const rope_params &p, int64_t at, int32_t i, float (&c)[count],
                                            float (&s)[count]) {
  static_assert(count == 2 || count % 4 == 0, "angles come in pairs or in vectors");
  ASSAY_UNROLL
  for (int e = 0; e < count; ++e) {
    c[e] = 1.0f;
    s[e] = 0.0f;
  }
  if (at < 0) return;
  if constexpr (count == 2) {
    const float2 both[2] = {*reinterpret_cast<const float2 *>(p.cosine + at + i),
                            *reinterpret_cast<const float2 *>(p.sine + at + i)};
    c[0] = both[0].x, c[1] = both[0].y;
    s[0] = both[1].x, s[1] = both[1].y;
  } else {
    ASSAY_UNROLL
    for (int e = 0; e < count; e += 4) {
      float four[4];
      split_vector<float>(load_vector(p.cosine + at + i + e), four);
      ASSAY_UNROLL
      for (int j = 0; j < 4; ++j)
        c[e + j] = four[j];
      split_vector<float>(load_vector(p.sine + at + i + e), four);
      ASSAY_UNROLL
      for (int j = 0; j < 4; ++j)
        s[e + j] = four[j];
    }
  }
}

/* rope_vectors: neox: a vector of the first half and its partners in the second; interleaved: the pairs of one vector.
 * Values are loaded before the position, whose row of the table they then meet.
 * Grid:   (N rows, pieces of a row's heads). Block: 32 to 256 threads: heads of q, then of k.
 * Shared: none.
 * Align:  every base and distance of rows is a multiple of 16 bytes; halves (neox) or R (interleaved) of whole vectors.
 * Arch:   any.
 * Limit:  bytes: 4 * sizeof(T) a pair; the table's row comes from the cache for all heads but the first. */
template <class T, bool interleaved> __global__ void __launch_bounds__(max_threads) rope_vectors(rope_params p) {
  constexpr int width = vector_width<T>, angles = interleaved ? width / 2 : width;
  take_turn();
  const int64_t row = blockIdx.x;
  const int32_t item = vector_of_thread(), items = (interleaved ? 2 * p.half : p.half) / width; /* of a head */
  const int32_t place = item / items, i = (item - place * items) * width;
  if (place >= p.q.heads + p.k.heads) return;
  const bool is_q = place < p.q.heads;
  const rope_side &side = is_q ? p.q : p.k;
  const int64_t d = static_cast<int64_t>(is_q ? place : place - p.q.heads) * p.D + i;
  const T *const from = static_cast<const T *>(side.from) + row * side.from_row + d;
  T *const to = static_cast<T *>(side.to) + row * side.to_row + d;
  const uint4 low = load_vector(from);
  uint4 high = {};
  if constexpr (!interleaved) high = load_vector(from + p.half);

  const int64_t position = position_of(p, row);
  const int64_t at = position >= 0 && position < p.max_pos ? position * p.half : -1;
  float c[angles], s[angles], x[width], y[width], turned[width];
  load_angles(p, at, interleaved ? i / 2 : i, c, s);
  split_vector<T>(low, x);
  if constexpr (interleaved) {
    ASSAY_UNROLL
    for (int e = 0; e < width; e += 2) {
      turned[e] = x[e] * c[e / 2] - x[e + 1] * s[e / 2];
      turned[e + 1] = x[e + 1] * c[e / 2] + x[e] * s[e / 2];
    }
    store_vector(to, round_vector<T>(turned));
  } else {
    split_vector<T>(high, y);
    ASSAY_UNROLL
    for (int e = 0; e < width; ++e) {
      turned[e] = x[e] * c[e] - y[e] * s[e];
      y[e] = y[e] * c[e] + x[e] * s[e];
    }
    store_vector(to, round_vector<T>(turned));
    store_vector(to + p.half, round_vector<T>(y));
  }
}

assay_status read_vectors(const assay_call *call, rope_params *p, assay_error *error) {
  ASSAY_TRY(read_call(call, p, error));
  const assay_dtype type = assay_find_arg(call, "q")->dtype;
  if (2 * p->half < p->D && !(p->q.in_place && p->k.in_place))
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "R: found %d of %d, with channels to be copied, taken here: none",
                      2 * p->half, p->D);
  ASSAY_TRY(expect_vectors(call, "D", p->D, type, error));
  if (p->half == 0) return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "R: found 0, taken here: 1 or more");
  return expect_vectors(call, "R", p->interleaved ? 2 * p->half : p->half, type, error);
}

assay_status launch_vectors(const assay_call *call, assay_env *env, assay_error *error) {
  rope_params p;
  ASSAY_TRY(read_vectors(call, &p, error));
  const assay_dtype type = assay_find_arg(call, "q")->dtype;
  const vector_grid grid = split_vectors(p.N, (p.q.heads + p.k.heads) * (p.interleaved ? 2 * p.half : p.half), type, 1);
  (void)snprintf(env->path, sizeof env->path, "vectors style=%s R=%d D=%d", p.interleaved ? "interleaved" : "neox",
                 2 * p.half, p.D);
  if (p.N == 0) return ASSAY_OK;
  return with_type(type, [&](auto t) {
    using T = typename decltype(t)::type;
    const auto start = [&](auto kernel) {
      return ASSAY_LAUNCH_WITH(error, kernel, launch_extent(grid.groups, grid.pieces), grid.threads, 0, in_turn(),
                               env->stream, p);
    };
    return p.interleaved ? start(rope_vectors<T, true>) : start(rope_vectors<T, false>);
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
