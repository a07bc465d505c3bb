/* gated.cuh: gated activations over x [N, 2 I], gates first: y = f(g, u), four neighbouring channels per thread. An
 * operator provides f as a struct with a static function `of`. */
#ifndef ASSAY_GPU_LIB_GATED_CUH
#define ASSAY_GPU_LIB_GATED_CUH

#include "gpu/lib/plain.h"
#include "gpu/lib/rowwise.cuh"
#include "gpu/lib/vectors.cuh"

namespace ASSAY_NS {

struct gated_params {
  const void *x;
  void *y;
  int64_t N, x_row, y_row;
  int32_t I, pieces;
  bool quads;
};

/* gated_channels: computes 4 channels of a row per thread.
 * Grid:   (N * pieces): a row in pieces of 4 channels per thread. Block: 32 to 256 threads.
 * Shared: none.
 * Align:  in quads of 4 elements if the base, the row stride and the start of the second half allow it, else by
 * element.
 * Arch:   any.
 * Limit:  bytes: 3 * sizeof(T) per channel. */
template <class T, class F>
static __global__ void __launch_bounds__(rowwise_max_threads) gated_channels(gated_params p) {
  const int64_t row = rowwise_row(p.pieces);
  const int32_t i = rowwise_channel(p.pieces), left = p.I - i;
  if (left <= 0) return;
  const T *const x = static_cast<const T *>(p.x) + row * p.x_row;
  float g[4], u[4];
  load_channels(x + i, left, p.quads, g);
  load_channels(x + p.I + i, left, p.quads, u);
  ASSAY_UNROLL
  for (int j = 0; j < 4; ++j)
    g[j] = F::of(g[j], u[j]);
  store_channels(static_cast<T *>(p.y) + row * p.y_row + i, left, p.quads, g);
}

inline assay_status gated_read(const assay_call *call, gated_params *p, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  ASSAY_TRY(expect_type("x", c.type("x"), error));
  *p = gated_params();
  p->N = c.dim("N");
  p->I = c.dim32("I");
  p->x = c.data<const void>("x");
  p->y = c.data<void>("y");
  p->x_row = c.row("x");
  p->y_row = c.row("y");
  const int64_t size = assay_dtype_size(c.type("x"));
  p->quads = rowwise_quads(p->x, p->x_row, size) && rowwise_quads(p->y, p->y_row, size) && p->I % 4 == 0;
  return ASSAY_OK;
}

template <class F> assay_status gated_launch(const assay_call *call, assay_env *env, assay_error *error) {
  gated_params p;
  ASSAY_TRY(gated_read(call, &p, error));
  const rowwise_grid grid = rowwise_split(p.N, p.I);
  p.pieces = grid.pieces;
  (void)snprintf(env->path, sizeof env->path, "channels quads=%d", p.quads ? 1 : 0);
  if (p.N == 0) return ASSAY_OK;
  return with_type(assay_find_arg(call, "x")->dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    return ASSAY_LAUNCH(error, (gated_channels<T, F>), grid.blocks, grid.threads, 0, env->stream, p);
  });
}

/* ---- whole vectors ----------------------------------------------------------------------------------- */

constexpr int gated_rows = 1; /* two are slower by one per cent, four by three, at 8192 x 3072 */

/* gated_vectors: computes one vector of channels, from its gates and ups, in one row or in `gated_rows` rows.
 * Grid:   (groups of rows, pieces of a row). Block: 32 to 256 threads.
 * Shared: none.
 * Align:  every base and row distance is a multiple of 16 bytes; I consists of whole vectors.
 * Arch:   any.
 * Limit:  bytes: 3 * sizeof(T) per channel. */
template <class T, class F, int rows> static __global__ void __launch_bounds__(256) gated_vectors(gated_params p) {
  constexpr int width = vector_width<T>;
  take_turn();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * rows;
  const int32_t i = width * vector_of_thread();
  if (i >= p.I) return;
  uint4 gates[rows] = {}, ups[rows] = {};
  ASSAY_UNROLL
  for (int r = 0; r < rows; ++r) {
    if (first + r >= p.N) continue;
    const T *const x = static_cast<const T *>(p.x) + (first + r) * p.x_row + i;
    gates[r] = load_vector(x);
    ups[r] = load_vector(x + p.I);
  }
  ASSAY_UNROLL
  for (int r = 0; r < rows; ++r) {
    if (first + r >= p.N) continue;
    float g[width], u[width];
    split_vector<T>(gates[r], g);
    split_vector<T>(ups[r], u);
    ASSAY_UNROLL
    for (int j = 0; j < width; ++j)
      g[j] = F::of(g[j], u[j]);
    store_vector(static_cast<T *>(p.y) + (first + r) * p.y_row + i, round_vector<T>(g));
  }
}

inline assay_status gated_read_vectors(const assay_call *call, gated_params *p, assay_error *error) {
  ASSAY_TRY(gated_read(call, p, error));
  return expect_vectors(call, "I", p->I, assay_find_arg(call, "x")->dtype, error);
}

template <class F> assay_status gated_launch_vectors(const assay_call *call, assay_env *env, assay_error *error) {
  gated_params p;
  ASSAY_TRY(gated_read_vectors(call, &p, error));
  const assay_dtype type = assay_find_arg(call, "x")->dtype;
  const vector_grid grid = split_vectors(p.N, p.I, type, gated_rows);
  (void)snprintf(env->path, sizeof env->path, "vectors rows=%d", grid.rows);
  if (p.N == 0) return ASSAY_OK;
  return with_type(type, [&](auto t) {
    return with_rows<gated_rows>(grid.rows, [&](auto rows) {
      using T = typename decltype(t)::type;
      constexpr int count = decltype(rows)::value;
      return ASSAY_LAUNCH_WITH(error, (gated_vectors<T, F, count>), launch_extent(grid.groups, grid.pieces),
                               grid.threads, 0, in_turn(), env->stream, p);
    });
  });
}

} // namespace ASSAY_NS
#endif
