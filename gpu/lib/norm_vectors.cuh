/* norm_vectors.cuh: rms_norm and layer_norm of rows of whole vectors, alone or behind a residual addition: a row is
 * read once and stays in registers. norm.cuh has the variants that take rows of any width. */
#ifndef ASSAY_GPU_LIB_NORM_VECTORS_CUH
#define ASSAY_GPU_LIB_NORM_VECTORS_CUH

#include "gpu/lib/norm.cuh"
#include "gpu/lib/vectors.cuh"

namespace ASSAY_NS {

constexpr int norm_threads = 512, norm_warps = norm_threads / 32;

/* Sums of `rows` rows over the threads of the block; every thread gets all. One barrier; `partial` is used once. */
template <int rows>
__device__ __forceinline__ void block_sums(float (&partial)[rows * norm_warps], float (&value)[rows]) {
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32, warps = static_cast<int32_t>(blockDim.x) / 32;
  ASSAY_UNROLL
  for (int r = 0; r < rows; ++r)
    value[r] = warp_sum(value[r]);
  if (warps == 1) return;
  if (threadIdx.x % 32 == 0) {
    ASSAY_UNROLL
    for (int r = 0; r < rows; ++r)
      partial[r * norm_warps + warp] = value[r];
  }
  __syncthreads(); /* every warp's sums are there */
  ASSAY_UNROLL
  for (int r = 0; r < rows; ++r) {
    value[r] = 0.0f;
    ASSAY_UNROLL
    for (int i = 0; i < norm_warps; ++i)
      if (i < warps) value[r] += partial[r * norm_warps + i];
  }
}

/* norm_vectors: `rows` rows a block; a thread has the same `parts` vectors of each of them, blockDim.x apart, from the
 * first load to the last store. Weights are loaded with the rows. How a row is summed follows from C alone.
 * Grid:   ceil(N / rows). Block: 32 to 512 threads, a vector each while C allows that.
 * Shared: 64 bytes a row, twice with a mean.
 * Align:  every base and distance of rows is a multiple of 16 bytes, C of whole vectors.
 * Arch:   any.
 * Limit:  bytes: 2 C sizeof(T) a row, 4 C with the addition. */
template <class T, bool centred, bool add, int parts, int rows>
__global__ void __launch_bounds__(norm_threads) norm_vectors(norm_params p) {
  constexpr int width = vector_width<T>;
  ASSAY_SHARED(float, sums, rows *norm_warps);
  const int32_t vectors = p.C / width, thread = static_cast<int32_t>(threadIdx.x);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * rows;
  const float C = static_cast<float>(p.C);
  uint4 x[rows][parts] = {}, res[rows][parts] = {}, g[parts] = {}, b[parts] = {};
  bool mine[parts];
  ASSAY_UNROLL
  for (int part = 0; part < parts; ++part)
    mine[part] = thread + part * static_cast<int32_t>(blockDim.x) < vectors;
  const auto channel = [&](int part) { return width * (thread + part * static_cast<int32_t>(blockDim.x)); };

  ASSAY_UNROLL
  for (int r = 0; r < rows; ++r) {
    const int64_t row = first + r;
    ASSAY_UNROLL
    for (int part = 0; part < parts; ++part) {
      if (row >= p.N || !mine[part]) continue;
      x[r][part] = load_vector(static_cast<const T *>(p.x) + row * p.x_row + channel(part));
      if constexpr (add) res[r][part] = load_vector(static_cast<const T *>(p.res) + row * p.res_row + channel(part));
    }
  }
  ASSAY_UNROLL
  for (int part = 0; part < parts; ++part) {
    if (!mine[part]) continue;
    g[part] = load_vector(static_cast<const T *>(p.g) + channel(part));
    if (p.b != nullptr) b[part] = load_vector(static_cast<const T *>(p.b) + channel(part));
  }

  float sum[rows] = {}, square[rows] = {}, v[width], w[width];
  ASSAY_UNROLL
  for (int r = 0; r < rows; ++r) {
    const int64_t row = first + r;
    ASSAY_UNROLL
    for (int part = 0; part < parts; ++part) {
      split_vector<T>(x[r][part], v);
      if constexpr (add) {
        split_vector<T>(res[r][part], w);
        ASSAY_UNROLL
        for (int i = 0; i < width; ++i)
          v[i] += w[i];
        x[r][part] = round_vector<T>(v);
        if (row < p.N && mine[part])
          store_vector(static_cast<T *>(p.sum) + row * p.sum_row + channel(part), x[r][part]);
        split_vector<T>(x[r][part], v);
      }
      ASSAY_UNROLL
      for (int i = 0; i < width; ++i)
        sum[r] += centred ? v[i] : v[i] * v[i];
    }
  }
  block_sums<rows>(sums, sum);

  float mean[rows] = {};
  if constexpr (centred) {
    ASSAY_UNROLL
    for (int r = 0; r < rows; ++r) {
      mean[r] = sum[r] / C;
      ASSAY_UNROLL
      for (int part = 0; part < parts; ++part) {
        split_vector<T>(x[r][part], v);
        ASSAY_UNROLL
        for (int i = 0; i < width; ++i)
          if (mine[part]) square[r] += (v[i] - mean[r]) * (v[i] - mean[r]);
      }
    }
    ASSAY_SHARED(float, squares, rows *norm_warps);
    block_sums<rows>(squares, square);
  } else {
    ASSAY_UNROLL
    for (int r = 0; r < rows; ++r)
      square[r] = sum[r];
  }

  ASSAY_UNROLL
  for (int r = 0; r < rows; ++r) {
    const int64_t row = first + r;
    const float factor = 1.0f / sqrtf(square[r] / C + p.eps);
    ASSAY_UNROLL
    for (int part = 0; part < parts; ++part) {
      split_vector<T>(x[r][part], v);
      ASSAY_UNROLL
      for (int i = 0; i < width; ++i)
        v[i] = (v[i] - mean[r]) * factor;
      if (!centred && p.round_inner) split_vector<T>(round_vector<T>(v), v);
      split_vector<T>(g[part], w);
      ASSAY_UNROLL
      for (int i = 0; i < width; ++i)
        v[i] *= w[i];
      if constexpr (centred) {
        split_vector<T>(b[part], w);
        ASSAY_UNROLL
        for (int i = 0; i < width; ++i)
          v[i] += w[i];
      }
      if (row < p.N && mine[part])
        store_vector(static_cast<T *>(p.y) + row * p.y_row + channel(part), round_vector<T>(v));
    }
  }
}

/* ---- launcher ---------------------------------------------------------------------------------------- */

inline assay_status read_norm_vectors(const assay_call *call, norm_params *p, assay_error *error) {
  ASSAY_TRY(read_norm(call, p, error));
  const int64_t longest = 4 * norm_threads * (16 / assay_dtype_size(p->type));
  if (p->C > longest)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "C: found %d, taken here: up to %" PRId64, p->C, longest);
  return expect_vectors(call, "C", p->C, p->type, error);
}

constexpr int norm_rows_a_block = 4;

/* A vector a thread up to 512 of them, then 2, then 4; several rows a block where there are enough of short ones. */
template <bool centred, bool add>
assay_status launch_norm_vectors(const assay_call *call, assay_env *env, assay_error *error) {
  norm_params p;
  ASSAY_TRY(read_norm_vectors(call, &p, error));
  const int32_t vectors = p.C / static_cast<int32_t>(16 / assay_dtype_size(p.type));
  int32_t parts = 1;
  while (parts * norm_threads < vectors)
    parts *= 2;
  const int32_t threads = ((vectors + parts - 1) / parts + 31) / 32 * 32;
  const int32_t rows = parts == 1 && several_rows(p.N, vectors) ? norm_rows_a_block : 1;
  (void)snprintf(env->path, sizeof env->path, "vectors parts=%d rows=%d", parts, rows);
  return with_type(p.type, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto start = [&](auto kernel) {
      return ASSAY_LAUNCH(error, kernel, (p.N + rows - 1) / rows, threads, 0, env->stream, p);
    };
    if (rows > 1) return start(norm_vectors<T, centred, add, 1, norm_rows_a_block>);
    if (parts == 1) return start(norm_vectors<T, centred, add, 1, 1>);
    if (parts == 2) return start(norm_vectors<T, centred, add, 2, 1>);
    return start(norm_vectors<T, centred, add, 4, 1>);
  });
}

#define NORM_VECTORS(op, centred, add)                                                                                 \
  PLAIN_VARIANT(op, "vectors", "a row in registers, 16 bytes a load", PLAIN_TYPE_CLAIMS, warp_rows_contract,           \
                norm_params, read_norm_vectors, launch_norm_vectors<centred, add>)

} // namespace ASSAY_NS
#endif
