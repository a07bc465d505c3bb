/* norm.cuh: rms_norm and layer_norm of rows, alone or after a residual addition; uclip_norm of an element.
 *
 *   warp_rows    one warp per row, four rows per block: for many short rows
 *   block_rows   256 threads per row: for long rows
 *
 * How a row is summed depends only on its length, never on the number of rows. */
#ifndef ASSAY_GPU_LIB_NORM_CUH
#define ASSAY_GPU_LIB_NORM_CUH

#include "gpu/lib/channels.cuh"
#include "gpu/lib/plain.h"
#include "gpu/lib/warp.cuh"

namespace ASSAY_NS {

/* ---- one row ----------------------------------------------------------------------------------------- */

/* Returns the sum over the lanes of a row to each of them. With more lanes than a warp, they are all threads of the
 * block. */
template <int lanes> __device__ __forceinline__ float row_sum(float value) {
  static_assert(lanes == 1 || lanes % 32 == 0, "a row is summed by one lane or by whole warps");
  if constexpr (lanes == 1) return value;
  value = warp_sum(value);
  if constexpr (lanes > 32) {
    ASSAY_SHARED(float, partial, lanes / 32);
    __syncthreads(); /* the results of an earlier sum have been read */
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads(); /* the partial sums are written */
    value = 0.0f;
    ASSAY_UNROLL
    for (int i = 0; i < lanes / 32; ++i)
      value += partial[i];
  }
  return value;
}

/* Returns the value rounded to the storage type and back. */
template <class T> __device__ __forceinline__ float round_to(float value) {
  return to_float(from_float<T>(value));
}

/* ---- rms_norm, layer_norm ---------------------------------------------------------------------------- */

struct norm_params {
  const void *x, *res; /* res: what is added, or NULL */
  void *sum, *y;       /* sum: where round(x + res) goes: res itself, or res_out */
  int64_t x_row, res_row, sum_row, y_row;
  const void *g, *b; /* b: may be NULL */
  int64_t N;
  int32_t C;
  float eps;
  bool round_inner, quads;
  bool early; /* g and b are settled: they are read before the wait */
  assay_dtype type;
};

/* A row of finite numbers whose sum of squares leaves the range of f32 is measured again, 2^-72 times as large. All its
 * squares then add up to less than 2^127, and eps is too small to count. */
constexpr float norm_rescale = 0x1p-72f;

/* Tells whether the sum of a factor has left the range of f32: 1 / sqrt(Inf) is 0, and NaN stays NaN. The squares of a
 * row of f16 never leave it: each is less than 2^32. */
template <class T> __device__ __forceinline__ bool norm_overflowed(float factor) {
  return !std::is_same_v<T, f16> && !(factor > 0.0f);
}

/* Measures such a row once more: returns its factor and, if `centred`, its mean, both of the rescaled row. */
template <class T, bool centred, int lanes>
__device__ float norm_remeasure(const T *x, int32_t channels, bool quads, float *mean) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % lanes;
  const float C = static_cast<float>(channels);
  float v[4], sum = 0.0f;
  *mean = 0.0f;
  for (int pass = centred ? 0 : 1; pass < 2; ++pass) {
    sum = 0.0f;
    for (int32_t c = 4 * lane; c < channels; c += 4 * lanes) {
      load_channels(x, c, channels, quads, v);
      for (int i = 0; i < 4; ++i) {
        const float scaled = v[i] * norm_rescale;
        if (c + i < channels) sum += pass == 0 ? scaled : (scaled - *mean) * (scaled - *mean);
      }
    }
    sum = row_sum<lanes>(sum);
    if (pass == 0) *mean = sum / C;
  }
  return 1.0f / sqrtf(sum / C);
}

/* norm_rows: normalises one row in two passes over it, or three if a mean is subtracted. The first pass also adds the
 * residual and stores the sum, which the others read back. Every thread reads only what it wrote itself.
 * Grid:   ceil(N / rows), rows = 4 with 32 lanes per row, 1 with 256. Block: 128 or 256 threads, `lanes` of them per
 * row; each takes quads of channels 4 * lanes apart.
 * Shared: 32 bytes with 256 lanes, else none.
 * Align:  quads if every base and row stride is a multiple of 4 elements, else by element.
 * Arch:   any.
 * Limit:  bytes: 2 C sizeof(T) per row, 4 C with the addition; later passes find the row in L1 or L2. */
template <class T, bool centred, bool add, int lanes>
__global__ void __launch_bounds__(lanes > 128 ? lanes : 128) norm_rows(norm_params p) {
  constexpr int rows = lanes > 128 ? 1 : 128 / lanes;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % lanes;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * rows + static_cast<int32_t>(threadIdx.x) / lanes;
  if (row >= p.N) return; /* whole warps leave, and no barrier follows: blocks of several rows have none */
  const T *x = static_cast<const T *>(p.x) + row * p.x_row;
  T *const sum = add ? static_cast<T *>(p.sum) + row * p.sum_row : nullptr;
  T *const y = static_cast<T *>(p.y) + row * p.y_row;
  const float C = static_cast<float>(p.C);
  float v[4], first = 0.0f, square = 0.0f;

  for (int32_t c = 4 * lane; c < p.C; c += 4 * lanes) {
    load_channels(x, c, p.C, p.quads, v);
    if constexpr (add) {
      float res[4];
      load_channels(static_cast<const T *>(p.res) + row * p.res_row, c, p.C, p.quads, res);
      ASSAY_UNROLL
      for (int i = 0; i < 4; ++i)
        v[i] = round_to<T>(v[i] + res[i]);
      store_channels(sum, c, p.C, p.quads, v);
    }
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      first += centred ? v[i] : v[i] * v[i];
  }
  if (add) x = sum;

  float mean = 0.0f;
  if constexpr (centred) {
    mean = row_sum<lanes>(first) / C;
    for (int32_t c = 4 * lane; c < p.C; c += 4 * lanes) {
      load_channels(x, c, p.C, p.quads, v);
      ASSAY_UNROLL
      for (int i = 0; i < 4; ++i)
        if (c + i < p.C) square += (v[i] - mean) * (v[i] - mean);
    }
  } else {
    square = first;
  }
  float factor = 1.0f / sqrtf(row_sum<lanes>(square) / C + p.eps), scale = 1.0f;
  if (norm_overflowed<T>(factor)) { /* the same for all lanes of the row */
    scale = norm_rescale;
    factor = norm_remeasure<T, centred, lanes>(x, p.C, p.quads, &mean);
  }

  for (int32_t c = 4 * lane; c < p.C; c += 4 * lanes) {
    float g[4], b[4];
    load_channels(x, c, p.C, p.quads, v);
    load_channels(static_cast<const T *>(p.g), c, p.C, p.quads, g);
    load_weights<T>({p.b, false}, c, p.C, p.quads, 0.0f, b);
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i) {
      float n = centred ? (v[i] * scale - mean) * factor : v[i] * factor * scale;
      if (!centred && p.round_inner) n = round_to<T>(n);
      v[i] = centred ? n * g[i] + b[i] : n * g[i];
    }
    store_channels(y, c, p.C, p.quads, v);
  }
}

/* ---- launchers --------------------------------------------------------------------------------------- */

/* Reads the rows of a norm, with a residual in the add_ forms: `x` and `y` are the names of input and result; the sum
 * goes to res_out, or to res itself. Refuses a type of x that no kernel has. */
template <class Params>
assay_status read_norm_rows(const plain_call &c, const char *x, const char *y, Params *p, assay_error *error) {
  const char *const sum = c.has("res_out") ? "res_out" : "res";
  ASSAY_TRY(expect_type(x, c.type(x), error));
  p->x = c.data<const void>(x);
  p->res = c.data<const void>("res");
  p->sum = c.data<void>(sum);
  p->y = c.data<void>(y);
  p->x_row = c.row(x);
  p->res_row = c.row("res");
  p->sum_row = c.row(sum);
  p->y_row = c.row(y);
  p->N = c.dim("N");
  p->C = c.dim32("C");
  p->quads = plain_quads(c);
  p->type = c.type(x);
  return ASSAY_OK;
}

/* Rows, g, b; eps, round_inner. */
inline assay_status read_norm(const assay_call *call, norm_params *p, assay_error *error) {
  plain_call c;
  *p = norm_params();
  ASSAY_TRY(plain_read(call, &c, error));
  ASSAY_TRY(read_norm_rows(c, "x", "y", p, error));
  p->g = c.data<const void>("g");
  p->b = c.data<const void>("b");
  p->eps = c.real("eps");
  p->round_inner = c.number("round_inner") == 1.0; /* layer_norm has none */
  return ASSAY_OK;
}

template <bool centred, bool add, int lanes>
assay_status launch_norm(const assay_call *call, assay_env *env, assay_error *error) {
  norm_params p;
  ASSAY_TRY(read_norm(call, &p, error));
  (void)snprintf(env->path, sizeof env->path, "%s lanes=%d quads=%d", lanes > 32 ? "block_rows" : "warp_rows", lanes,
                 p.quads ? 1 : 0);
  constexpr int rows = lanes > 128 ? 1 : 128 / lanes;
  return with_type(p.type, [&](auto type) {
    using T = typename decltype(type)::type;
    return ASSAY_LAUNCH(error, (norm_rows<T, centred, add, lanes>), (p.N + rows - 1) / rows, rows * lanes, 0,
                        env->stream, p);
  });
}

/* Returns the contract. There are `lanes` partial sums. 1 / sqrtf is two roundings, at most one and a half ulp of
 * f32. */
constexpr assay_contract norm_contract(int32_t lanes) {
  return {.exp_ulp = 1.5,
          .qk_lanes = 1,
          .pv_lanes = 1,
          .run_to_run = true,
          .renumbering = true,
          .permutation = true,
          .lanes = lanes,
          .alone = true,
          .rescales = true};
}
constexpr assay_contract warp_rows_contract = norm_contract(32), block_rows_contract = norm_contract(256);

/* The two rows of an operator's variant table. */
#define NORM_VARIANTS(op, centred, add)                                                                                \
  PLAIN_VARIANT(op, "warp_rows", "short rows: a warp each, no barrier", PLAIN_TYPE_CLAIMS, warp_rows_contract,         \
                norm_params, read_norm, launch_norm<centred, add, 32>),                                                \
      PLAIN_VARIANT(op, "block_rows", "long rows: 256 threads each", PLAIN_TYPE_CLAIMS, block_rows_contract,           \
                    norm_params, read_norm, launch_norm<centred, add, 256>)

/* ---- uclip_norm -------------------------------------------------------------------------------------- */

struct uclip_weights {
  channel_weight alpha, gamma, beta;
};

/* Computes v <- gamma clip(alpha v, -1, 1) + beta, for channels c to c + 3 of C. */
template <class T>
__device__ __forceinline__ void uclip_channels(const uclip_weights &w, int32_t c, int32_t C, bool quads,
                                               float (&v)[4]) {
  float alpha[4], gamma[4], beta[4];
  load_weights<T>(w.alpha, c, C, quads, 1.0f, alpha);
  load_weights<T>(w.gamma, c, C, quads, 1.0f, gamma);
  load_weights<T>(w.beta, c, C, quads, 0.0f, beta);
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    v[i] = gamma[i] * fminf(fmaxf(alpha[i] * v[i], -1.0f), 1.0f) + beta[i];
}

/* Reads a vector of either one element for all channels, or `channels` elements. */
inline assay_status read_weight(const plain_call &c, const char *name, int32_t channels, channel_weight *weight,
                                assay_error *error) {
  const assay_tensor *const found = c.tensor(name);
  *weight = channel_weight();
  if (found == NULL) return ASSAY_OK;
  if (found->shape[0] != 1 && found->shape[0] != channels)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %" PRId64 " elements, allowed 1 or %d", name, found->shape[0],
                      channels);
  weight->data = found->data;
  weight->one = found->shape[0] == 1;
  return ASSAY_OK;
}

/* Reads alpha, gamma and beta, each name with `prefix` before it. */
inline assay_status read_uclip(const plain_call &c, const char *prefix, int32_t channels, uclip_weights *w,
                               assay_error *error) {
  const char *const names[] = {"alpha", "gamma", "beta"};
  channel_weight *const to[] = {&w->alpha, &w->gamma, &w->beta};
  for (int i = 0; i < 3; ++i) {
    char name[32];
    (void)snprintf(name, sizeof name, "%s%s", prefix, names[i]);
    ASSAY_TRY(read_weight(c, name, channels, to[i], error));
  }
  return ASSAY_OK;
}

/* A grid with one thread per quad of channels of a row: 32 to 256 threads, and as many blocks as a row needs. */
struct quad_grid {
  int64_t blocks;
  int32_t threads;
};

inline quad_grid quads_of_row(int32_t C) {
  const int32_t quads = (C + 3) / 4;
  const int32_t threads = quads >= 256 ? 256 : (quads + 31) / 32 * 32;
  return {(quads + threads - 1) / threads, threads};
}

/* There are no sums. A product, and a product and a sum, are rounded one by one or fused. */
constexpr assay_contract uclip_contract = norm_contract(1);

} // namespace ASSAY_NS
#endif
