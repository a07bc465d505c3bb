/* swiglu.cuh: swiglu with a limit, alpha, beta, gates and ups in turn, a weight per row, or a sigmoid alone:
 *
 *   y = g * sigmoid(alpha * g) * (u + beta) * w        g = min(gate, L), u = min(max(up, -L), L)
 *
 * With `sigmoid` the factor g is 1. With c (`cubic`) the argument is alpha (g + c g^3). A kernel provides the division
 * as a struct with a static function `of`. */
#ifndef ASSAY_GPU_LIB_SWIGLU_CUH
#define ASSAY_GPU_LIB_SWIGLU_CUH

#include "gpu/lib/gated.cuh"

namespace ASSAY_NS {

struct swiglu_params {
  gated_params rows;
  const float *w; /* NULL: 1 */
  float limit, alpha, beta, cubic;
  bool interleaved, sigmoid, form; /* form: a parameter or w differs from the plain operator's */
};

/* Returns one element. Comparisons with NaN are false, so that NaN passes both limits. limit is +Inf for none. */
template <class Q> __device__ __forceinline__ float swiglu_of(const swiglu_params &p, float gate, float up, float w) {
  const float g = gate > p.limit ? p.limit : gate;
  const float u = up > p.limit ? p.limit : up < -p.limit ? -p.limit : up;
  const float inner = p.cubic != 0.0f ? g + p.cubic * g * g * g : g;
  const float gated = g == -INFINITY ? 0.0f : Q::of(p.sigmoid ? 1.0f : g, 1.0f + expf(-p.alpha * inner));
  return gated * (u + p.beta) * w;
}

/* swiglu_channels: computes 4 channels of a row per thread.
 * Grid:   (N * pieces): a row in pieces of 4 channels per thread. Block: 32 to 256 threads.
 * Shared: none.
 * Align:  in quads of 4 elements if the base, the row stride and the start of the second half allow it, else by
 * element.
 * Arch:   any.
 * Limit:  bytes: 3 * sizeof(T) per channel. */
template <class T, class Q>
static __global__ void __launch_bounds__(rowwise_max_threads) swiglu_channels(swiglu_params p) {
  const gated_params &r = p.rows;
  const int64_t row = rowwise_row(r.pieces);
  const int32_t i = rowwise_channel(r.pieces), left = r.I - i;
  if (left <= 0) return;
  const T *const x = static_cast<const T *>(r.x) + row * r.x_row;
  const float w = p.w != nullptr ? p.w[row] : 1.0f;
  float first[4], second[4], y[4];
  const int32_t more = p.interleaved ? 2 * left : left;
  load_channels(x + (p.interleaved ? 2 * i : i), more, r.quads, first);
  load_channels(x + (p.interleaved ? 2 * i + 4 : r.I + i), p.interleaved ? more - 4 : left, r.quads, second);
  ASSAY_UNROLL
  for (int j = 0; j < 4; ++j) {
    const float even = j < 2 ? first[2 * j % 4] : second[2 * j % 4];
    const float odd = j < 2 ? first[2 * j % 4 + 1] : second[2 * j % 4 + 1];
    y[j] = swiglu_of<Q>(p, p.interleaved ? even : first[j], p.interleaved ? odd : second[j], w);
  }
  store_channels(static_cast<T *>(r.y) + row * r.y_row + i, left, r.quads, y);
}

inline assay_status swiglu_read(const assay_call *call, swiglu_params *p, assay_error *error) {
  plain_call c;
  *p = swiglu_params();
  ASSAY_TRY(gated_read(call, &p->rows, error));
  ASSAY_TRY(plain_read(call, &c, error));
  p->w = c.data<const float>("w");
  p->alpha = c.real("alpha");
  p->beta = c.real("beta");
  p->limit = c.real("limit") > 0.0f ? c.real("limit") : INFINITY;
  p->interleaved = c.flag("layout");
  p->sigmoid = c.flag("sigmoid");
  p->cubic = c.real("cubic");
  p->form = p->sigmoid || p->w != nullptr || p->alpha != 1.0f || p->beta != 0.0f || p->limit < INFINITY ||
            p->interleaved || p->cubic != 0.0f;
  return ASSAY_OK;
}

template <class Q> assay_status swiglu_launch(const assay_call *call, assay_env *env, assay_error *error) {
  swiglu_params p;
  ASSAY_TRY(swiglu_read(call, &p, error));
  const rowwise_grid grid = rowwise_split(p.rows.N, p.rows.I);
  p.rows.pieces = grid.pieces;
  (void)snprintf(env->path, sizeof env->path, "channels form quads=%d", p.rows.quads ? 1 : 0);
  if (p.rows.N == 0) return ASSAY_OK;
  return with_type(assay_find_arg(call, "x")->dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    return ASSAY_LAUNCH(error, (swiglu_channels<T, Q>), grid.blocks, grid.threads, 0, env->stream, p);
  });
}

/* ---- whole vectors ----------------------------------------------------------------------------------- */

/* swiglu_vectors: computes one vector of channels of a row, from two vectors of x: its gates and ups, or both in turn.
 * Grid:   (rows, pieces of a row). Block: 32 to 256 threads.
 * Shared: none.
 * Align:  every base and row distance is a multiple of 16 bytes; I consists of whole vectors.
 * Arch:   any.
 * Limit:  bytes: 3 * sizeof(T) per channel. */
template <class T, class Q, bool interleaved>
static __global__ void __launch_bounds__(256) swiglu_vectors(swiglu_params p) {
  constexpr int width = vector_width<T>;
  take_turn();
  const gated_params &r = p.rows;
  const int64_t row = static_cast<int64_t>(blockIdx.x);
  const int32_t i = width * vector_of_thread();
  if (i >= r.I) return;
  const T *const x = static_cast<const T *>(r.x) + row * r.x_row + (interleaved ? 2 * i : i);
  const float w = p.w != nullptr ? p.w[row] : 1.0f;
  float in[2 * width], y[width];
  const uint4 first = load_vector(x), second = load_vector(x + (interleaved ? width : r.I));
  float half[width];
  split_vector<T>(first, half);
  ASSAY_UNROLL
  for (int j = 0; j < width; ++j)
    in[j] = half[j];
  split_vector<T>(second, half);
  ASSAY_UNROLL
  for (int j = 0; j < width; ++j)
    in[width + j] = half[j];
  ASSAY_UNROLL
  for (int j = 0; j < width; ++j)
    y[j] = swiglu_of<Q>(p, in[interleaved ? 2 * j : j], in[interleaved ? 2 * j + 1 : width + j], w);
  store_vector(static_cast<T *>(r.y) + row * r.y_row + i, round_vector<T>(y));
}

inline assay_status swiglu_read_vectors(const assay_call *call, swiglu_params *p, assay_error *error) {
  ASSAY_TRY(swiglu_read(call, p, error));
  return expect_vectors(call, "I", p->rows.I, assay_find_arg(call, "x")->dtype, error);
}

template <class Q> assay_status swiglu_launch_vectors(const assay_call *call, assay_env *env, assay_error *error) {
  swiglu_params p;
  ASSAY_TRY(swiglu_read_vectors(call, &p, error));
  const assay_dtype type = assay_find_arg(call, "x")->dtype;
  const vector_grid grid = split_vectors(p.rows.N, p.rows.I, type, 1);
  (void)snprintf(env->path, sizeof env->path, "vectors form");
  if (p.rows.N == 0) return ASSAY_OK;
  return with_type(type, [&](auto t) {
    using T = typename decltype(t)::type;
    const auto extent = launch_extent(grid.groups, grid.pieces);
    if (p.interleaved)
      return ASSAY_LAUNCH_WITH(error, (swiglu_vectors<T, Q, true>), extent, grid.threads, 0, in_turn(), env->stream, p);
    return ASSAY_LAUNCH_WITH(error, (swiglu_vectors<T, Q, false>), extent, grid.threads, 0, in_turn(), env->stream, p);
  });
}

} // namespace ASSAY_NS
#endif
