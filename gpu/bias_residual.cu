/* bias_residual.cu: the end of a sublayer.
 *
 *   res <- round(res + y + b)        in place, or into res_out; b may be absent
 *
 * vectors: 16 bytes per load; channels: four neighbouring channels per thread, rows of any width.
 * docs/kernels/bias_residual.md has the arithmetic. */
#include "gpu/lib/plain.h"
#include "gpu/lib/rowwise.cuh"
#include "gpu/lib/vectors.cuh"

namespace ASSAY_NS {
namespace {

struct residual_params {
  const void *res, *y, *b; /* b NULL: none */
  void *out;
  int64_t N, res_row, y_row, out_row;
  int32_t C, pieces;
  bool quads;
};

/* residual_channels
 * Grid:   (N * pieces): a row in pieces of 4 channels per thread. Block: 32 to 256 threads.
 * Shared: none.
 * Align:  in quads of 4 elements if every base and row stride allows it, else by element.
 * Arch:   any.
 * Limit:  bytes: 3 * sizeof(T) per channel. */
template <class T> __global__ void __launch_bounds__(rowwise_max_threads) residual_channels(residual_params p) {
  const int64_t row = rowwise_row(p.pieces);
  const int32_t c = rowwise_channel(p.pieces), left = p.C - c;
  if (left <= 0) return;
  float res[4], y[4], bias[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  load_channels(static_cast<const T *>(p.res) + row * p.res_row + c, left, p.quads, res);
  load_channels(static_cast<const T *>(p.y) + row * p.y_row + c, left, p.quads, y);
  if (p.b != NULL) load_channels(static_cast<const T *>(p.b) + c, left, p.quads, bias);
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    res[i] = res[i] + y[i] + bias[i];
  store_channels(static_cast<T *>(p.out) + row * p.out_row + c, left, p.quads, res);
}

assay_status read_call(const assay_call *call, residual_params *p, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  ASSAY_TRY(expect_type("res", c.type("res"), error));
  *p = residual_params();
  p->N = c.dim("N");
  p->C = c.dim32("C");
  p->res = c.data<const void>("res");
  p->y = c.data<const void>("y");
  p->b = c.data<const void>("b");
  const bool apart = c.has("res_out");
  p->out = c.data<void>(apart ? "res_out" : "res");
  p->res_row = c.row("res");
  p->y_row = c.row("y");
  p->out_row = c.row(apart ? "res_out" : "res");
  const int64_t size = assay_dtype_size(c.type("res"));
  p->quads = rowwise_quads(p->res, p->res_row, size) && rowwise_quads(p->y, p->y_row, size) &&
             rowwise_quads(p->out, p->out_row, size) && rowwise_quads(p->b, 0, size);
  return ASSAY_OK;
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  residual_params p;
  ASSAY_TRY(read_call(call, &p, error));
  const rowwise_grid grid = rowwise_split(p.N, p.C);
  p.pieces = grid.pieces;
  (void)snprintf(env->path, sizeof env->path, "channels quads=%d", p.quads ? 1 : 0);
  if (p.N == 0) return ASSAY_OK;
  return with_type(assay_find_arg(call, "res")->dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    return ASSAY_LAUNCH(error, (residual_channels<T>), grid.blocks, grid.threads, 0, env->stream, p);
  });
}

/* ---- whole vectors ----------------------------------------------------------------------------------- */

constexpr int residual_rows = 4;

/* residual_vectors: a vector of channels in one row or four; the bias once for all of them.
 * Grid:   (groups of rows, pieces of a row). Block: 32 to 256 threads.
 * Shared: none.
 * Align:  every base and distance of rows is a multiple of 16 bytes, C of whole vectors.
 * Arch:   any.
 * Limit:  bytes: 3 * sizeof(T) per channel. */
template <class T, int rows> __global__ void __launch_bounds__(256) residual_vectors(residual_params p) {
  constexpr int width = vector_width<T>;
  take_turn();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * rows;
  const int32_t c = width * vector_of_thread();
  if (c >= p.C) return;
  uint4 res[rows] = {}, y[rows] = {};
  ASSAY_UNROLL
  for (int r = 0; r < rows; ++r) {
    if (first + r >= p.N) continue;
    res[r] = load_vector(static_cast<const T *>(p.res) + (first + r) * p.res_row + c);
    y[r] = load_vector(static_cast<const T *>(p.y) + (first + r) * p.y_row + c);
  }
  float bias[width];
  vector_weights<T>(p.b, false, c, 0.0f, bias);
  ASSAY_UNROLL
  for (int r = 0; r < rows; ++r) {
    if (first + r >= p.N) continue;
    float v[width], w[width];
    split_vector<T>(res[r], v);
    split_vector<T>(y[r], w);
    ASSAY_UNROLL
    for (int i = 0; i < width; ++i)
      v[i] = v[i] + w[i] + bias[i];
    store_vector(static_cast<T *>(p.out) + (first + r) * p.out_row + c, round_vector<T>(v));
  }
}

assay_status read_vectors(const assay_call *call, residual_params *p, assay_error *error) {
  ASSAY_TRY(read_call(call, p, error));
  return expect_vectors(call, "C", p->C, assay_find_arg(call, "res")->dtype, error);
}

assay_status launch_vectors(const assay_call *call, assay_env *env, assay_error *error) {
  residual_params p;
  ASSAY_TRY(read_vectors(call, &p, error));
  const assay_dtype type = assay_find_arg(call, "res")->dtype;
  const vector_grid grid = split_vectors(p.N, p.C, type, residual_rows);
  (void)snprintf(env->path, sizeof env->path, "vectors rows=%d", grid.rows);
  if (p.N == 0) return ASSAY_OK;
  return with_type(type, [&](auto t) {
    return with_rows<residual_rows>(grid.rows, [&](auto rows) {
      using T = typename decltype(t)::type;
      constexpr int count = decltype(rows)::value;
      return ASSAY_LAUNCH_WITH(error, (residual_vectors<T, count>), launch_extent(grid.groups, grid.pieces),
                               grid.threads, 0, in_turn(), env->stream, p);
    });
  });
}

constexpr assay_contract contract = rowwise_contract(0.0, 1);

} // namespace
} // namespace ASSAY_NS

#define CHANNELS                                                                                                       \
  PLAIN_VARIANT("bias_residual", "channels", "four neighbouring channels a thread", PLAIN_TYPE_CLAIMS, contract,       \
                residual_params, read_call, launch)
#define VECTORS                                                                                                        \
  PLAIN_VARIANT("bias_residual", "vectors", "16 bytes a load", PLAIN_TYPE_CLAIMS, contract, residual_params,           \
                read_vectors, launch_vectors)

ASSAY_VARIANTS(bias_residual, VECTORS, CHANNELS)
