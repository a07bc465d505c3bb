/* uclip.cuh: uclip_norm of rows, alone or after a residual addition. */
#ifndef ASSAY_GPU_LIB_UCLIP_CUH
#define ASSAY_GPU_LIB_UCLIP_CUH

#include "gpu/lib/norm.cuh"
#include "gpu/lib/uclip_vector.cuh"

namespace ASSAY_NS {

struct uclip_params {
  const void *x, *res; /* res: the residual, or NULL */
  void *sum, *y;       /* sum: place of round(x + res), which is res itself or res_out */
  int64_t x_row, res_row, sum_row, y_row;
  uclip_weights weights;
  int64_t N;
  int32_t C;
  bool quads;
  assay_dtype type;
};

/* uclip_quads: four channels per thread, nothing shared between threads.
 * Grid:   (N rows, blocks of a row). Block: 32 to 256 threads, as a row needs.
 * Shared: none.
 * Align:  quads where every base and row stride is a multiple of 4 elements, else by element.
 * Arch:   any.
 * Limit:  bytes: 2 sizeof(T) per channel, 4 with the addition. */
template <class T, bool add> __global__ void __launch_bounds__(256) uclip_quads(uclip_params p) {
  const int64_t row = blockIdx.x;
  const int32_t c = 4 * static_cast<int32_t>(blockIdx.y * blockDim.x + threadIdx.x);
  if (c >= p.C) return;
  float v[4];
  load_channels(static_cast<const T *>(p.x) + row * p.x_row, c, p.C, p.quads, v);
  if constexpr (add) {
    float res[4];
    load_channels(static_cast<const T *>(p.res) + row * p.res_row, c, p.C, p.quads, res);
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      v[i] = round_to<T>(v[i] + res[i]);
    store_channels(static_cast<T *>(p.sum) + row * p.sum_row, c, p.C, p.quads, v);
  }
  uclip_channels<T>(p.weights, c, p.C, p.quads, v);
  store_channels(static_cast<T *>(p.y) + row * p.y_row, c, p.C, p.quads, v);
}

/* Reads rows, alpha, gamma and beta. */
inline assay_status read_uclip_rows(const assay_call *call, uclip_params *p, assay_error *error) {
  plain_call c;
  *p = uclip_params();
  ASSAY_TRY(plain_read(call, &c, error));
  ASSAY_TRY(read_norm_rows(c, "x", "y", p, error));
  return read_uclip(c, "", p->C, &p->weights, error);
}

template <bool add> assay_status launch_uclip(const assay_call *call, assay_env *env, assay_error *error) {
  uclip_params p;
  ASSAY_TRY(read_uclip_rows(call, &p, error));
  const quad_grid row = quads_of_row(p.C);
  (void)snprintf(env->path, sizeof env->path, "quads threads=%d quads=%d", row.threads, p.quads ? 1 : 0);
  return with_type(p.type, [&](auto type) {
    using T = typename decltype(type)::type;
    return ASSAY_LAUNCH(error, (uclip_quads<T, add>), launch_extent(p.N, row.blocks), row.threads, 0, env->stream, p);
  });
}

/* ---- whole vectors ----------------------------------------------------------------------------------- */

constexpr int uclip_rows = 2;

/* uclip_vectors: a vector of channels in one row or two; the weights are loaded once for all of them, beside the rows.
 * Grid:   (groups of rows, pieces of a row). Block: 32 to 256 threads.
 * Shared: none.
 * Align:  every base and distance of rows is a multiple of 16 bytes, C of whole vectors.
 * Arch:   any.
 * Limit:  bytes: 2 sizeof(T) per channel, 4 with the addition. */
template <class T, bool add, int rows> __global__ void __launch_bounds__(256) uclip_vectors(uclip_params p) {
  constexpr int width = vector_width<T>;
  take_turn();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * rows;
  const int32_t c = width * vector_of_thread();
  if (c >= p.C) return;
  uint4 x[rows] = {}, res[rows] = {};
  ASSAY_UNROLL
  for (int r = 0; r < rows; ++r) {
    if (first + r >= p.N) continue;
    x[r] = load_vector(static_cast<const T *>(p.x) + (first + r) * p.x_row + c);
    if constexpr (add) res[r] = load_vector(static_cast<const T *>(p.res) + (first + r) * p.res_row + c);
  }
  const uclip_vector<T> weights(p.weights, c);
  ASSAY_UNROLL
  for (int r = 0; r < rows; ++r) {
    if (first + r >= p.N) continue;
    float v[width];
    split_vector<T>(x[r], v);
    if constexpr (add) {
      float w[width];
      split_vector<T>(res[r], w);
      ASSAY_UNROLL
      for (int i = 0; i < width; ++i)
        v[i] += w[i];
      const uint4 sum = round_vector<T>(v);
      store_vector(static_cast<T *>(p.sum) + (first + r) * p.sum_row + c, sum);
      split_vector<T>(sum, v);
    }
    weights.apply(v);
    store_vector(static_cast<T *>(p.y) + (first + r) * p.y_row + c, round_vector<T>(v));
  }
}

inline assay_status read_uclip_vectors(const assay_call *call, uclip_params *p, assay_error *error) {
  ASSAY_TRY(read_uclip_rows(call, p, error));
  return expect_vectors(call, "C", p->C, p->type, error);
}

template <bool add> assay_status launch_uclip_vectors(const assay_call *call, assay_env *env, assay_error *error) {
  uclip_params p;
  ASSAY_TRY(read_uclip_vectors(call, &p, error));
  const vector_grid grid = split_vectors(p.N, p.C, p.type, uclip_rows);
  (void)snprintf(env->path, sizeof env->path, "vectors rows=%d", grid.rows);
  return with_type(p.type, [&](auto type) {
    return with_rows<uclip_rows>(grid.rows, [&](auto rows) {
      using T = typename decltype(type)::type;
      constexpr int count = decltype(rows)::value;
      return ASSAY_LAUNCH_WITH(error, (uclip_vectors<T, add, count>), launch_extent(grid.groups, grid.pieces),
                               grid.threads, 0, in_turn(), env->stream, p);
    });
  });
}

} // namespace ASSAY_NS

#define UCLIP_VARIANT(op, add)                                                                                         \
  PLAIN_VARIANT(op, "quads", "four channels a thread", PLAIN_TYPE_CLAIMS, uclip_contract, uclip_params,                \
                read_uclip_rows, launch_uclip<add>)
#define UCLIP_VECTORS(op, add)                                                                                         \
  PLAIN_VARIANT(op, "vectors", "16 bytes a load, weights once for two rows", PLAIN_TYPE_CLAIMS, uclip_contract,        \
                uclip_params, read_uclip_vectors, launch_uclip_vectors<add>)

#endif
