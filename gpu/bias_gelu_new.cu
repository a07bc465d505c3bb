/* bias_gelu_new.cu: bias and the tanh form of GELU.
 *
 *   v = x + b,  x <- v/2 * (1 + tanh(sqrt(2/pi) * (v + 0.044715 v^3)))        in place, or into x_out
 *
 * vectors: 16 bytes per load; channels: four neighbouring channels per thread, rows of any width.
 * docs/kernels/bias_gelu_new.md has the arithmetic. */
#include "gpu/lib/plain.h"
#include "gpu/lib/rowwise.cuh"
#include "gpu/lib/vectors.cuh"

namespace ASSAY_NS {
namespace {

struct gelu_params {
  const void *x, *b;
  void *out;
  int64_t N, x_row, out_row;
  int32_t C, pieces;
  bool quads;
};

__device__ __forceinline__ float gelu_new(float v) {
  const float u = 0.7978845608f * (v + 0.044715f * v * v * v);
  return 0.5f * v * (1.0f + tanhf(u));
}

/* gelu_channels
 * Grid:   (N * pieces): a row in pieces of 4 channels per thread. Block: 32 to 256 threads.
 * Shared: none.
 * Align:  in quads of 4 elements if every base and row stride allows it, else by element.
 * Arch:   any.
 * Limit:  bytes: 2 * sizeof(T) per channel; in f32, tanh is the larger part of the instructions. */
template <class T> __global__ void __launch_bounds__(rowwise_max_threads) gelu_channels(gelu_params p) {
  const int64_t row = rowwise_row(p.pieces);
  const int32_t c = rowwise_channel(p.pieces), left = p.C - c;
  if (left <= 0) return;
  float x[4], bias[4];
  load_channels(static_cast<const T *>(p.x) + row * p.x_row + c, left, p.quads, x);
  load_channels(static_cast<const T *>(p.b) + c, left, p.quads, bias);
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    x[i] = gelu_new(x[i] + bias[i]);
  store_channels(static_cast<T *>(p.out) + row * p.out_row + c, left, p.quads, x);
}

assay_status read_call(const assay_call *call, gelu_params *p, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  ASSAY_TRY(expect_type("x", c.type("x"), error));
  *p = gelu_params();
  p->N = c.dim("N");
  p->C = c.dim32("C");
  p->x = c.data<const void>("x");
  p->b = c.data<const void>("b");
  const bool apart = c.has("x_out");
  p->out = c.data<void>(apart ? "x_out" : "x");
  p->x_row = c.row("x");
  p->out_row = c.row(apart ? "x_out" : "x");
  const int64_t size = assay_dtype_size(c.type("x"));
  p->quads =
      rowwise_quads(p->x, p->x_row, size) && rowwise_quads(p->out, p->out_row, size) && rowwise_quads(p->b, 0, size);
  return ASSAY_OK;
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  gelu_params p;
  ASSAY_TRY(read_call(call, &p, error));
  const rowwise_grid grid = rowwise_split(p.N, p.C);
  p.pieces = grid.pieces;
  (void)snprintf(env->path, sizeof env->path, "channels quads=%d", p.quads ? 1 : 0);
  if (p.N == 0) return ASSAY_OK;
  return with_type(assay_find_arg(call, "x")->dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    return ASSAY_LAUNCH(error, (gelu_channels<T>), grid.blocks, grid.threads, 0, env->stream, p);
  });
}

/* ---- whole vectors ----------------------------------------------------------------------------------- */

constexpr int gelu_rows = 4;

/* Computes v/2 (1 + tanh u) as v / (1 + exp(-2u)): no cancellation, and half the instructions of tanh. expf of 128 and
 * more is infinite, and the quotient is 0. */
__device__ __forceinline__ float gelu_sigmoid(float v) {
  const float u = 0.7978845608f * (v + 0.044715f * v * v * v);
  return __fdividef(v, 1.0f + expf(-2.0f * u));
}

/* gelu_vectors: a vector of channels in one row or four; the bias once for all of them.
 * Grid:   (groups of rows, pieces of a row). Block: 32 to 256 threads.
 * Shared: none.
 * Align:  every base and distance of rows is a multiple of 16 bytes, C of whole vectors.
 * Arch:   any.
 * Limit:  bytes: 2 * sizeof(T) per channel. */
template <class T, int rows> __global__ void __launch_bounds__(256) gelu_vectors(gelu_params p) {
  constexpr int width = vector_width<T>;
  take_turn();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * rows;
  const int32_t c = width * vector_of_thread();
  if (c >= p.C) return;
  uint4 x[rows] = {};
  ASSAY_UNROLL
  for (int r = 0; r < rows; ++r)
    if (first + r < p.N) x[r] = load_vector(static_cast<const T *>(p.x) + (first + r) * p.x_row + c);
  float bias[width];
  split_vector<T>(load_vector(static_cast<const T *>(p.b) + c), bias);
  ASSAY_UNROLL
  for (int r = 0; r < rows; ++r) {
    if (first + r >= p.N) continue;
    float v[width];
    split_vector<T>(x[r], v);
    ASSAY_UNROLL
    for (int i = 0; i < width; ++i)
      v[i] = gelu_sigmoid(v[i] + bias[i]);
    store_vector(static_cast<T *>(p.out) + (first + r) * p.out_row + c, round_vector<T>(v));
  }
}

assay_status read_vectors(const assay_call *call, gelu_params *p, assay_error *error) {
  ASSAY_TRY(read_call(call, p, error));
  return expect_vectors(call, "C", p->C, assay_find_arg(call, "x")->dtype, error);
}

assay_status launch_vectors(const assay_call *call, assay_env *env, assay_error *error) {
  gelu_params p;
  ASSAY_TRY(read_vectors(call, &p, error));
  const assay_dtype type = assay_find_arg(call, "x")->dtype;
  const vector_grid grid = split_vectors(p.N, p.C, type, gelu_rows);
  (void)snprintf(env->path, sizeof env->path, "vectors rows=%d", grid.rows);
  if (p.N == 0) return ASSAY_OK;
  return with_type(type, [&](auto t) {
    return with_rows<gelu_rows>(grid.rows, [&](auto rows) {
      using T = typename decltype(t)::type;
      constexpr int count = decltype(rows)::value;
      return ASSAY_LAUNCH_WITH(error, (gelu_vectors<T, count>), launch_extent(grid.groups, grid.pieces), grid.threads,
                               0, in_turn(), env->stream, p);
    });
  });
}

/* tanhf: 2 ulp. expf and the division: 2 ulp each. */
constexpr assay_contract contract = rowwise_contract(2.0, 1), vectors_contract = rowwise_contract(4.0, 1);

} // namespace
} // namespace ASSAY_NS

#define CHANNELS                                                                                                       \
  PLAIN_VARIANT("bias_gelu_new", "channels", "four neighbouring channels a thread", PLAIN_TYPE_CLAIMS, contract,       \
                gelu_params, read_call, launch)
#define VECTORS                                                                                                        \
  PLAIN_VARIANT("bias_gelu_new", "vectors", "16 bytes a load, a sigmoid for tanh", PLAIN_TYPE_CLAIMS,                  \
                vectors_contract, gelu_params, read_vectors, launch_vectors)

ASSAY_VARIANTS(bias_gelu_new, VECTORS, CHANNELS)
