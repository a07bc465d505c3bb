/* embedding.cu: rows of a table.
 *
 *   y_n = table[ids_n]                                          bit for bit, or
 *   y_n = round(table[ids_n] + position_table[positions_n])
 *
 * An id outside [0, V), or a position outside [0, max_pos), gives a row of zeros: nothing outside a table is read.
 * vectors: 16 bytes per load; channels: four neighbouring channels per thread, rows of any width.
 * docs/kernels/embedding.md has the arithmetic. */
#include "gpu/lib/plain.h"
#include "gpu/lib/rowwise.cuh"
#include "gpu/lib/vectors.cuh"

namespace ASSAY_NS {
namespace {

struct embedding_params {
  const void *table, *position_table; /* the second NULL: none */
  const int32_t *ids, *positions;
  void *y;
  int64_t N, V, max_pos;
  int32_t C, pieces;
  bool quads;
};

template <class T> __device__ __forceinline__ quad<T> load_raw(const T *from, int32_t left, bool quads) {
  if (left >= 4) {
    expect_quad(from, quads);
    return load_quad(from, quads);
  }
  quad<T> to = {};
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    if (i < left) to.element[i] = from[i];
  return to;
}

/* embedding_channels
 * Grid:   (N * pieces): a row in pieces of 4 channels per thread. Block: 32 to 256 threads.
 * Shared: none.
 * Align:  in quads of 4 elements if every base and the width allow it, else by element.
 * Arch:   any.
 * Limit:  bytes: 2 * sizeof(T) per channel, 3 with positions. */
template <class T> __global__ void __launch_bounds__(rowwise_max_threads) embedding_channels(embedding_params p) {
  const int64_t row = rowwise_row(p.pieces);
  const int32_t c = rowwise_channel(p.pieces), left = p.C - c;
  if (left <= 0) return;
  const int64_t id = p.ids[row], position = p.positions != NULL ? p.positions[row] : 0;
  const bool inside = id >= 0 && id < p.V && (p.positions == NULL || (position >= 0 && position < p.max_pos));
  quad<T> y = {};
  if (inside) {
    y = load_raw(static_cast<const T *>(p.table) + id * p.C + c, left, p.quads);
    if (p.positions != NULL) {
      const quad<T> offset = load_raw(static_cast<const T *>(p.position_table) + position * p.C + c, left, p.quads);
      ASSAY_UNROLL
      for (int i = 0; i < 4; ++i)
        y.element[i] = from_float<T>(to_float(y.element[i]) + to_float(offset.element[i]));
    }
  }
  T *const to = static_cast<T *>(p.y) + row * p.C + c;
  if (left >= 4) {
    store_quad(to, y, p.quads);
  } else {
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      if (i < left) to[i] = y.element[i];
  }
}

assay_status read_call(const assay_call *call, embedding_params *p, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  ASSAY_TRY(expect_type("table", c.type("table"), error));
  if (c.has("position_table") != c.has("positions"))
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "%s: found no data (NULL), allowed a tensor: one is there without the other",
                      c.has("positions") ? "position_table" : "positions");
  *p = embedding_params();
  p->N = c.dim("N");
  p->V = c.dim("V");
  p->C = c.dim32("C");
  p->max_pos = c.dim("max_pos");
  p->table = c.data<const void>("table");
  p->ids = c.data<const int32_t>("ids");
  p->position_table = c.data<const void>("position_table");
  p->positions = c.data<const int32_t>("positions");
  p->y = c.data<void>("y");
  const int64_t size = assay_dtype_size(c.type("table"));
  p->quads = rowwise_quads(p->table, p->C, size) && rowwise_quads(p->position_table, p->C, size) &&
             rowwise_quads(p->y, p->C, size);
  return ASSAY_OK;
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  embedding_params p;
  ASSAY_TRY(read_call(call, &p, error));
  const rowwise_grid grid = rowwise_split(p.N, p.C);
  p.pieces = grid.pieces;
  (void)snprintf(env->path, sizeof env->path, "channels quads=%d", p.quads ? 1 : 0);
  if (p.N == 0) return ASSAY_OK;
  return with_type(assay_find_arg(call, "table")->dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    return ASSAY_LAUNCH(error, (embedding_channels<T>), grid.blocks, grid.threads, 0, env->stream, p);
  });
}

/* ---- whole vectors ----------------------------------------------------------------------------------- */

constexpr int embedding_rows = 4;

/* embedding_vectors: a vector of channels of one row or four.
 * Grid:   (groups of rows, pieces of a row). Block: 32 to 256 threads.
 * Shared: none.
 * Align:  every base is a multiple of 16 bytes, C of whole vectors.
 * Arch:   any.
 * Limit:  bytes: 2 * sizeof(T) per channel, 3 with positions. */
template <class T, int rows> __global__ void __launch_bounds__(256) embedding_vectors(embedding_params p) {
  constexpr int width = vector_width<T>;
  take_turn();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * rows;
  const int32_t c = width * vector_of_thread();
  if (c >= p.C) return;
  int64_t id[rows], position[rows];
  bool inside[rows];
  ASSAY_UNROLL
  for (int r = 0; r < rows; ++r) {
    const bool there = first + r < p.N;
    id[r] = there ? p.ids[first + r] : -1;
    position[r] = there && p.positions != NULL ? p.positions[first + r] : 0;
    inside[r] = id[r] >= 0 && id[r] < p.V && (p.positions == NULL || (position[r] >= 0 && position[r] < p.max_pos));
  }
  uint4 y[rows] = {}, offset[rows] = {};
  ASSAY_UNROLL
  for (int r = 0; r < rows; ++r) {
    if (!inside[r]) continue;
    y[r] = load_vector(static_cast<const T *>(p.table) + id[r] * p.C + c);
    if (p.positions != NULL) offset[r] = load_vector(static_cast<const T *>(p.position_table) + position[r] * p.C + c);
  }
  ASSAY_UNROLL
  for (int r = 0; r < rows; ++r) {
    if (first + r >= p.N) continue;
    if (p.positions != NULL && inside[r]) {
      float v[width], w[width];
      split_vector<T>(y[r], v);
      split_vector<T>(offset[r], w);
      ASSAY_UNROLL
      for (int i = 0; i < width; ++i)
        v[i] += w[i];
      y[r] = round_vector<T>(v);
    }
    store_vector(static_cast<T *>(p.y) + (first + r) * p.C + c, y[r]);
  }
}

assay_status read_vectors(const assay_call *call, embedding_params *p, assay_error *error) {
  ASSAY_TRY(read_call(call, p, error));
  return expect_vectors(call, "C", p->C, assay_find_arg(call, "table")->dtype, error);
}

assay_status launch_vectors(const assay_call *call, assay_env *env, assay_error *error) {
  embedding_params p;
  ASSAY_TRY(read_vectors(call, &p, error));
  const assay_dtype type = assay_find_arg(call, "table")->dtype;
  const vector_grid grid = split_vectors(p.N, p.C, type, embedding_rows);
  (void)snprintf(env->path, sizeof env->path, "vectors rows=%d", grid.rows);
  if (p.N == 0) return ASSAY_OK;
  return with_type(type, [&](auto t) {
    return with_rows<embedding_rows>(grid.rows, [&](auto rows) {
      using T = typename decltype(t)::type;
      constexpr int count = decltype(rows)::value;
      return ASSAY_LAUNCH_WITH(error, (embedding_vectors<T, count>), launch_extent(grid.groups, grid.pieces),
                               grid.threads, 0, in_turn(), env->stream, p);
    });
  });
}

constexpr assay_contract contract = rowwise_contract(0.0, 1);

} // namespace
} // namespace ASSAY_NS

#define CHANNELS                                                                                                       \
  PLAIN_VARIANT("embedding", "channels", "four neighbouring channels a thread", PLAIN_TYPE_CLAIMS, contract,           \
                embedding_params, read_call, launch)
#define VECTORS                                                                                                        \
  PLAIN_VARIANT("embedding", "vectors", "16 bytes a load", PLAIN_TYPE_CLAIMS, contract, embedding_params,              \
                read_vectors, launch_vectors)

ASSAY_VARIANTS(embedding, VECTORS, CHANNELS)
