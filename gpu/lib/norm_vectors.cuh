/* norm_vectors.cuh: rms_norm and layer_norm of rows of whole vectors, alone or after a residual addition. A row is read
 * once and stays in registers. norm.cuh has the variants that take rows of any width. */
#ifndef ASSAY_GPU_LIB_NORM_VECTORS_CUH
#define ASSAY_GPU_LIB_NORM_VECTORS_CUH

#include "gpu/lib/norm.cuh"
#include "gpu/lib/vectors.cuh"

namespace ASSAY_NS {

constexpr int norm_threads = 512, norm_warps = norm_threads / 32;
/* Where there are many rows, a block has few threads, and each thread has some vectors of the block's row. More rows
 * are then under way in a multiprocessor. */
constexpr int norm_small_threads = 128, norm_small_blocks = 6, norm_many_vectors = 128;

/* Returns x + res rounded to the type. v becomes the rounded values. */
template <class T>
__device__ __forceinline__ uint4 add_vectors(const uint4 &x, const uint4 &res, float (&v)[vector_width<T>]) {
  float w[vector_width<T>];
  split_vector<T>(x, v);
  split_vector<T>(res, w);
  ASSAY_UNROLL
  for (int i = 0; i < vector_width<T>; ++i)
    v[i] += w[i];
  const uint4 sum = round_vector<T>(v);
  split_vector<T>(sum, v);
  return sum;
}

/* Return a vector's contribution to the first sum (of squares or, if centred, of values) and to the second sum (of
 * squared distances). */
template <bool centred, int width> __device__ __forceinline__ float first_sum(const float (&v)[width]) {
  float sum = 0.0f;
  ASSAY_UNROLL
  for (int i = 0; i < width; ++i)
    sum += centred ? v[i] : v[i] * v[i];
  return sum;
}

template <int width> __device__ __forceinline__ float second_sum(const float (&v)[width], float mean) {
  float sum = 0.0f;
  ASSAY_UNROLL
  for (int i = 0; i < width; ++i)
    sum += (v[i] - mean) * (v[i] - mean);
  return sum;
}

/* Return the same of the vector rescaled. */
template <class T, bool centred>
__device__ __forceinline__ float rescaled_sum(const uint4 &x, float mean, bool squares) {
  float v[vector_width<T>];
  split_vector<T>(x, v);
  ASSAY_UNROLL
  for (int i = 0; i < vector_width<T>; ++i)
    v[i] *= norm_rescale;
  return squares ? second_sum(v, mean) : first_sum<true>(v);
}

/* Returns the normed vector, from x and its weights. mean and factor are of the rescaled row if `rescaled`. */
template <class T, bool centred, bool rescaled>
__device__ __forceinline__ uint4 normed_vector(const norm_params &p, const uint4 &x, const uint4 &g, const uint4 &b,
                                               float mean, float factor) {
  constexpr int width = vector_width<T>;
  constexpr float scale = rescaled ? norm_rescale : 1.0f;
  float v[width], weight[width], bias[width];
  split_vector<T>(x, v);
  ASSAY_UNROLL
  for (int i = 0; i < width; ++i)
    v[i] = centred ? (v[i] * scale - mean) * factor : v[i] * factor * scale;
  if (!centred && p.round_inner) split_vector<T>(round_vector<T>(v), v);
  split_vector<T>(g, weight);
  if constexpr (centred) split_vector<T>(b, bias);
  ASSAY_UNROLL
  for (int i = 0; i < width; ++i)
    v[i] = centred ? v[i] * weight[i] + bias[i] : v[i] * weight[i];
  return round_vector<T>(v);
}

/* Normalises a row whose squares left the range of f32. One warp reads the row from memory again. The kernels then need
 * no registers for such rows, and both kernels give the same bits. Vectors 32 w to 32 w + 31 are added by one
 * butterfly, and these sums in order. */
template <class T, bool centred, bool add> __device__ void norm_rescaled_row(const norm_params &p, int64_t row) {
  const T *const x =
      add ? static_cast<const T *>(p.sum) + row * p.sum_row : static_cast<const T *>(p.x) + row * p.x_row;
  const int32_t vectors = p.C / vector_width<T>, lane = static_cast<int32_t>(threadIdx.x) % 32;
  T *const y = static_cast<T *>(p.y) + row * p.y_row;
  float mean = 0.0f, sum = 0.0f;
  for (int pass = centred ? 0 : 1; pass < 2; ++pass) {
    sum = 0.0f;
    ASSAY_ROLLED
    for (int32_t first = 0; first < vectors; first += 32) {
      const bool mine = first + lane < vectors;
      const uint4 vector = mine ? load_vector(x + (first + lane) * vector_width<T>) : uint4();
      sum += warp_sum(mine ? rescaled_sum<T, centred>(vector, mean, pass == 1) : 0.0f);
    }
    if (pass == 0) mean = sum / static_cast<float>(p.C);
  }
  const float factor = 1.0f / sqrtf(sum / static_cast<float>(p.C));
  ASSAY_ROLLED
  for (int32_t vector = lane; vector < vectors; vector += 32) {
    const int32_t channel = vector * vector_width<T>;
    uint4 b = {};
    if (p.b != nullptr) b = load_vector(static_cast<const T *>(p.b) + channel);
    store_vector(y + channel,
                 normed_vector<T, centred, true>(p, load_vector(x + channel),
                                                 load_vector(static_cast<const T *>(p.g) + channel), b, mean, factor));
  }
}

/* Returns the sum over the threads of the block to every thread, of `parts` values per thread. A part of a warp is one
 * butterfly. These sums are added in order, all warps of a part first. There is one barrier; `partial` is used once. */
template <int parts> __device__ __forceinline__ float block_sum(float (&partial)[norm_warps], float (&value)[parts]) {
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32, warps = static_cast<int32_t>(blockDim.x) / 32;
  ASSAY_UNROLL
  for (int part = 0; part < parts; ++part)
    value[part] = warp_sum(value[part]);
  float sum = 0.0f;
  if (warps == 1) {
    ASSAY_UNROLL
    for (int part = 0; part < parts; ++part)
      sum += value[part];
    return sum;
  }
  ASSAY_UNROLL
  for (int part = 0; part < parts; ++part)
    if (threadIdx.x % 32 == 0) partial[part * warps + warp] = value[part];
  __syncthreads(); /* every warp's sums are written */
  ASSAY_UNROLL
  for (int i = 0; i < norm_warps; ++i)
    if (i < parts * warps) sum += partial[i];
  return sum;
}

/* norm_vectors: normalises one row per block. A thread keeps `parts` vectors of it, blockDim.x apart, from the first
 * load to the last store. Weights are loaded with the row, or before the wait where they are settled. How a row is
 * summed follows from C alone. Grid:   (N). Block: 32 to 512 threads, one vector per thread while C allows it. Shared:
 * 64 bytes, 128 with a mean. Align:  every base and row distance is a multiple of 16 bytes; C consists of whole
 * vectors. Arch:   any. Limit:  bytes: 2 C sizeof(T) per row, 4 C with the addition. */
template <class T, bool centred, bool add, int parts, bool small>
__global__ void __launch_bounds__(small ? norm_small_threads : norm_threads, small ? norm_small_blocks : 1)
    norm_vectors(norm_params p) {
  constexpr int width = vector_width<T>, sums_of_thread = small ? parts : 1;
  constexpr bool late = small && centred; /* registers for two weights would cost rows */
  ASSAY_SHARED(float, sums, norm_warps);
  dependents_launch();
  const int32_t vectors = p.C / width, thread = static_cast<int32_t>(threadIdx.x);
  const int64_t row = blockIdx.x;
  const float C = static_cast<float>(p.C);
  uint4 x[parts] = {}, res[parts] = {}, g[parts] = {}, b[parts] = {};
  const auto mine = [&](int part) { return thread + part * static_cast<int32_t>(blockDim.x) < vectors; };
  const auto channel = [&](int part) { return width * (thread + part * static_cast<int32_t>(blockDim.x)); };
  const auto load_weights = [&](int part) {
    if (!mine(part)) return;
    g[part] = load_vector(static_cast<const T *>(p.g) + channel(part));
    if (p.b != nullptr) b[part] = load_vector(static_cast<const T *>(p.b) + channel(part));
  };
  if (!p.early) dependency_wait();
  ASSAY_UNROLL
  for (int part = 0; part < parts; ++part)
    if (!late) load_weights(part);
  if (p.early) dependency_wait();
  ASSAY_UNROLL
  for (int part = 0; part < parts; ++part) {
    if (!mine(part)) continue;
    x[part] = load_vector(static_cast<const T *>(p.x) + row * p.x_row + channel(part));
    if constexpr (add) res[part] = load_vector(static_cast<const T *>(p.res) + row * p.res_row + channel(part));
  }

  float v[width], sum[sums_of_thread] = {}, mean = 0.0f;
  ASSAY_UNROLL
  for (int part = 0; part < parts; ++part) {
    if constexpr (add) {
      x[part] = add_vectors<T>(x[part], res[part], v);
      if (mine(part)) store_vector(static_cast<T *>(p.sum) + row * p.sum_row + channel(part), x[part]);
    } else {
      split_vector<T>(x[part], v);
    }
    sum[small ? part : 0] += first_sum<centred>(v);
  }
  float square = block_sum(sums, sum);
  if constexpr (centred) {
    ASSAY_SHARED(float, squares, norm_warps);
    mean = square / C;
    ASSAY_UNROLL
    for (int part = 0; part < sums_of_thread; ++part)
      sum[part] = 0.0f;
    ASSAY_UNROLL
    for (int part = 0; part < parts; ++part) {
      split_vector<T>(x[part], v);
      if (mine(part)) sum[small ? part : 0] += second_sum(v, mean);
    }
    square = block_sum(squares, sum);
  }
  const float factor = 1.0f / sqrtf(square / C + p.eps);
  if (norm_overflowed<T>(factor)) { /* the same for all threads of the block */
    /* The row of sums is written: block_sum had a barrier after it. In a block of one warp each lane reads what it
     * wrote itself. */
    if (thread < 32) norm_rescaled_row<T, centred, add>(p, row);
    return;
  }
  ASSAY_UNROLL
  for (int part = 0; part < parts; ++part) {
    if (!mine(part)) continue;
    if (late) load_weights(part);
    store_vector(static_cast<T *>(p.y) + row * p.y_row + channel(part),
                 normed_vector<T, centred, false>(p, x[part], g[part], b[part], mean, factor));
  }
}

/* norm_many: normalises one row per warp, of at most 32 * parts vectors, when there are many rows. There is no barrier,
 * and work per row is done once for `parts` vectors per lane. Sums equal those of norm_vectors to the bit: vectors 32 w
 * to 32 w + 31 are added by one butterfly, and these sums in order.
 * Grid:   ceil(N / 4). Block: 128 threads.
 * Shared: none.
 * Align:  as norm_vectors.
 * Arch:   any.
 * Limit:  as norm_vectors. */
template <class T, bool centred, bool add, int parts> __global__ void __launch_bounds__(128) norm_many(norm_params p) {
  constexpr int width = vector_width<T>;
  take_turn();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * 4 + static_cast<int32_t>(threadIdx.x) / 32;
  const int32_t vectors = p.C / width, lane = static_cast<int32_t>(threadIdx.x) % 32;
  const float C = static_cast<float>(p.C);
  if (row >= p.N) return; /* whole warps leave */
  uint4 x[parts] = {}, res[parts] = {};
  const auto mine = [&](int part) { return lane + 32 * part < vectors; };
  const auto channel = [&](int part) { return width * (lane + 32 * part); };
  const auto in_order = [](const float(&value)[parts]) {
    float sum = 0.0f;
    ASSAY_UNROLL
    for (int part = 0; part < parts; ++part)
      sum += warp_sum(value[part]);
    return sum;
  };
  ASSAY_UNROLL
  for (int part = 0; part < parts; ++part) {
    if (!mine(part)) continue;
    x[part] = load_vector(static_cast<const T *>(p.x) + row * p.x_row + channel(part));
    if constexpr (add) res[part] = load_vector(static_cast<const T *>(p.res) + row * p.res_row + channel(part));
  }

  float v[width], sum[parts], mean = 0.0f;
  ASSAY_UNROLL
  for (int part = 0; part < parts; ++part) {
    if constexpr (add) {
      x[part] = add_vectors<T>(x[part], res[part], v);
      if (mine(part)) store_vector(static_cast<T *>(p.sum) + row * p.sum_row + channel(part), x[part]);
    } else {
      split_vector<T>(x[part], v);
    }
    sum[part] = first_sum<centred>(v);
  }
  float square = in_order(sum);
  if constexpr (centred) {
    mean = square / C;
    ASSAY_UNROLL
    for (int part = 0; part < parts; ++part) {
      split_vector<T>(x[part], v);
      sum[part] = mine(part) ? second_sum(v, mean) : 0.0f;
    }
    square = in_order(sum);
  }
  const float factor = 1.0f / sqrtf(square / C + p.eps);
  if (norm_overflowed<T>(factor)) { /* the same for all lanes of the row */
    /* Each lane reads what it wrote itself. */
    norm_rescaled_row<T, centred, add>(p, row);
    return;
  }
  ASSAY_UNROLL
  for (int part = 0; part < parts; ++part) {
    if (!mine(part)) continue;
    const uint4 g = load_vector(static_cast<const T *>(p.g) + channel(part));
    uint4 b = {};
    if (p.b != nullptr) b = load_vector(static_cast<const T *>(p.b) + channel(part));
    store_vector(static_cast<T *>(p.y) + row * p.y_row + channel(part),
                 normed_vector<T, centred, false>(p, x[part], g, b, mean, factor));
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

/* Launches one warp per row of up to 128 vectors, or a small block per row of up to 512, if there are enough rows.
 * Otherwise it launches one block per row: one vector per thread up to 512 vectors, then two, then four. */
template <bool centred, bool add>
assay_status launch_norm_vectors(const assay_call *call, assay_env *env, assay_error *error) {
  norm_params p;
  ASSAY_TRY(read_norm_vectors(call, &p, error));
  const int32_t vectors = p.C / static_cast<int32_t>(16 / assay_dtype_size(p.type));
  const bool several = several_rows(p.N, vectors);
  const bool small = several && vectors > norm_many_vectors && vectors <= norm_threads;
  const bool many = several && vectors <= norm_many_vectors;
  const int32_t most = small ? norm_small_threads : norm_threads;
  const int32_t parts = many ? (vectors + 31) / 32 : (vectors + most - 1) / most;
  const int32_t threads = ((vectors + parts - 1) / parts + 31) / 32 * 32;
  p.early = !many && is_settled(call, *env, "g") && (p.b == nullptr || is_settled(call, *env, "b"));
  (void)snprintf(env->path, sizeof env->path, "%s parts=%d%s",
                 many    ? "many"
                 : small ? "small"
                         : "vectors",
                 parts, p.early ? " early" : "");
  return with_type(p.type, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto start = [&](auto kernel) {
      return ASSAY_LAUNCH_WITH(error, kernel, many ? (p.N + 3) / 4 : p.N, many ? 128 : threads, 0, in_turn(),
                               env->stream, p);
    };
    if (many) {
      if (parts == 1) return start(norm_many<T, centred, add, 1>);
      return start(norm_many<T, centred, add, norm_many_vectors / 32>);
    }
    if (parts == 1) return start(norm_vectors<T, centred, add, 1, false>);
    if (small && parts == 2) return start(norm_vectors<T, centred, add, 2, true>);
    if (small) return start(norm_vectors<T, centred, add, 4, true>);
    if (parts == 2) return start(norm_vectors<T, centred, add, 2, false>);
    return start(norm_vectors<T, centred, add, 4, false>);
  });
}

#define NORM_VECTORS(op, centred, add)                                                                                 \
  PLAIN_VARIANT(op, "vectors", "a row in registers, 16 bytes a load", PLAIN_TYPE_CLAIMS, warp_rows_contract,           \
                norm_params, read_norm_vectors, launch_norm_vectors<centred, add>)

} // namespace ASSAY_NS
#endif
