/* rope.cu: rotary position embedding of q and k.
 *
 *   x_a <- x_a cos - x_b sin,  x_b <- x_b cos + x_a sin        in place, or into q_out, k_out
 *
 * over R/2 pairs of channels, neox (i, i + R/2) or interleaved (2i, 2i + 1); other channels are copied. One variant:
 * one block a row, one thread a pair of a head. A position outside the table turns nothing, and nothing outside the
 * table is read. docs/kernels/rope.md has the arithmetic. */
#include "gpu/lib/plain.h"
#include "gpu/lib/rowwise.cuh"

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

constexpr assay_contract contract = rowwise_contract(0.0, 1);

} // namespace
} // namespace ASSAY_NS

#define ROWS                                                                                                           \
  PLAIN_VARIANT("rope", "rows", "one block a row, q and k in one launch", PLAIN_TYPE_CLAIMS "|neox,interleaved",       \
                contract, rope_params, read_call, launch)

ASSAY_VARIANTS(rope, ROWS)
