/* causal_conv1d.cu: a short causal convolution along the rows of requests. The definition is in ref/causal_conv1d.c's
 * head and in docs/definitions.md, section 12.
 *
 * vectors: a thread walks down rows in 16 bytes of channels, and keeps the rows before in registers.
 * rows:    a thread per row and channel makes y.
 *
 * In both a second launch moves the states. docs/kernels/causal_conv1d.md has the arithmetic. */
#include "gpu/lib/launch.h"
#include "gpu/lib/plain.h"
#include "gpu/lib/vectors.cuh"

namespace ASSAY_NS {
namespace {

constexpr int conv_threads = 256, conv_most_past = 3;
constexpr int walk_threads = 128, walk_ahead = 4; /* rows that a thread loads before it needs them */
constexpr int64_t walk_blocks = 12 * 132, walk_most_rows = 32;

struct conv_params {
  const void *x, *w, *bias; /* bias NULL: none */
  const int32_t *cu, *slots, *fresh;
  void *state, *y;
  int64_t x_row, state_row, y_row, N, S;
  int32_t C, past, B, pieces;
  bool silu;
  assay_dtype type, weight_type;
};

/* Returns the request of a row: the last one that begins at the row or before it, and has rows. */
__device__ __forceinline__ int32_t request_of(const conv_params &p, int64_t row) {
  int32_t low = 0, high = p.B; /* cu[low] <= row < cu[high] */
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    if (p.cu[middle] <= row)
      low = middle;
    else
      high = middle;
  }
  return low;
}

/* Returns the slot of a request, or -1 for none. */
__device__ __forceinline__ int64_t slot_of(const conv_params &p, int32_t request) {
  const int64_t slot = p.slots[request];
  return slot >= 0 && slot < p.S ? slot : -1;
}

/* Returns the first row of a request inside x. */
__device__ __forceinline__ int64_t begin_of(const conv_params &p, int32_t request) {
  return min(max(static_cast<int64_t>(p.cu[request]), static_cast<int64_t>(0)), p.N);
}

/* conv_rows: an element of y per thread.
 * Grid:   (N * pieces): a row in pieces of 256 channels. Block: 256 threads.
 * Shared: none.
 * Align:  by element.
 * Arch:   any.
 * Limit:  bytes: x read once and y written; other reads of x find it in L1 or L2. */
template <class T, class W> __global__ void __launch_bounds__(conv_threads) conv_rows(conv_params p) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) / p.pieces;
  const int32_t piece = static_cast<int32_t>(static_cast<int64_t>(blockIdx.x) % p.pieces);
  const int32_t c = piece * conv_threads + static_cast<int32_t>(threadIdx.x);
  if (c >= p.C) return;
  const int32_t request = request_of(p, row);
  const int64_t first = begin_of(p, request), slot = p.fresh[request] != 0 ? -1 : slot_of(p, request);
  const W *const w = static_cast<const W *>(p.w) + static_cast<int64_t>(c) * (p.past + 1);
  float sum = p.bias != nullptr ? to_float(static_cast<const W *>(p.bias)[c]) : 0.0f;
  for (int32_t j = 0; j <= p.past; ++j) {
    const int64_t from = row + j - p.past, old = from - first + p.past; /* old: its row in the state */
    float value = 0.0f;
    if (from >= first)
      value = to_float(static_cast<const T *>(p.x)[from * p.x_row + c]);
    else if (slot >= 0)
      value = to_float(static_cast<const T *>(p.state)[slot * p.state_row + old * p.C + c]);
    sum += to_float(w[j]) * value;
  }
  if (p.silu) sum = sum / (1.0f + expf(-sum));
  static_cast<T *>(p.y)[row * p.y_row + c] = from_float<T>(sum);
}

/* Loads the rows before `row` of its request: of x, of the state, or zeros. */
template <class T, int past>
__device__ __forceinline__ void load_past(const conv_params &p, int32_t request, int64_t row, int32_t c,
                                          float (&before)[past][vector_width<T>]) {
  const int64_t first = begin_of(p, request);
  const int64_t slot = p.fresh[request] != 0 ? -1 : slot_of(p, request);
  ASSAY_UNROLL
  for (int k = 0; k < past; ++k) {
    const int64_t from = row - past + k, old = from - first + past; /* old: its row in the state */
    uint4 vector = make_uint4(0u, 0u, 0u, 0u);
    if (from >= first)
      vector = load_vector(static_cast<const T *>(p.x) + from * p.x_row + c);
    else if (slot >= 0)
      vector = load_vector(static_cast<const T *>(p.state) + slot * p.state_row + old * p.C + c);
    split_vector<T>(vector, before[k]);
  }
}

/* Loads the weights of a vector of channels, which lie one channel after the other, and the bias. */
template <class T, class W, int past>
__device__ __forceinline__ void load_taps(const conv_params &p, int32_t c, float (&w)[vector_width<T>][past + 1],
                                          float (&bias)[vector_width<T>]) {
  constexpr int width = vector_width<T>, of_weights = vector_width<W>, taps = past + 1;
  static_assert(width * taps % of_weights == 0, "the weights of a vector of channels are whole vectors");
  ASSAY_UNROLL
  for (int i = 0; i < width * taps; i += of_weights) {
    float some[of_weights];
    split_vector<W>(load_vector(static_cast<const W *>(p.w) + static_cast<int64_t>(c) * taps + i), some);
    ASSAY_UNROLL
    for (int e = 0; e < of_weights; ++e)
      w[(i + e) / taps][(i + e) % taps] = some[e];
  }
  ASSAY_UNROLL
  for (int e = 0; e < width; ++e)
    bias[e] = 0.0f;
  if (p.bias == nullptr) return;
  ASSAY_UNROLL
  for (int i = 0; i < width; i += of_weights) {
    float some[of_weights];
    split_vector<W>(load_vector(static_cast<const W *>(p.bias) + c + i), some);
    ASSAY_UNROLL
    for (int e = 0; e < of_weights; ++e)
      bias[i + e] = some[e];
  }
}

/* conv_walk: a vector of channels per thread, in `rows` rows one after the other.
 * Grid:   (ceil(N / rows) * pieces): rows, in pieces of 128 vectors. Block: 128 threads.
 * Shared: none.
 * Align:  16 bytes: rows of x, y and the state; w, bias.
 * Arch:   any.
 * Limit:  bytes: x read once and y written. */
template <class T, class W, int past>
__global__ void __launch_bounds__(walk_threads, 4) conv_walk(conv_params p, int32_t rows) {
  constexpr int width = vector_width<T>;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) / p.pieces * rows, end = min(begin + rows, p.N);
  const int32_t piece = static_cast<int32_t>(static_cast<int64_t>(blockIdx.x) % p.pieces);
  const int32_t c = (piece * walk_threads + static_cast<int32_t>(threadIdx.x)) * width;
  if (c >= p.C) return;
  float w[width][past + 1], bias[width], before[past][width];
  load_taps<T, W, past>(p, c, w, bias);
  int32_t request = request_of(p, begin);
  load_past<T, past>(p, request, begin, c, before);
  const T *const x = static_cast<const T *>(p.x) + c;
  T *const y = static_cast<T *>(p.y) + c;
  ASSAY_ROLLED
  for (int64_t first = begin; first < end; first += walk_ahead) {
    uint4 ahead[walk_ahead];
    ASSAY_UNROLL
    for (int i = 0; i < walk_ahead; ++i)
      if (first + i < end) ahead[i] = load_vector(x + (first + i) * p.x_row);
    ASSAY_UNROLL
    for (int i = 0; i < walk_ahead; ++i) {
      const int64_t row = first + i;
      if (row >= end) continue;
      if (request + 1 < p.B && p.cu[request + 1] <= row) { /* the row is a request's first */
        request = request_of(p, row);
        load_past<T, past>(p, request, row, c, before);
      }
      float own[width], sum[width];
      split_vector<T>(ahead[i], own);
      ASSAY_UNROLL
      for (int e = 0; e < width; ++e) {
        sum[e] = bias[e];
        ASSAY_UNROLL
        for (int j = 0; j < past; ++j)
          sum[e] += w[e][j] * before[j][e];
        sum[e] += w[e][past] * own[e];
        if (p.silu) sum[e] = __fdividef(sum[e], 1.0f + expf(-sum[e]));
        ASSAY_UNROLL
        for (int j = 0; j + 1 < past; ++j)
          before[j][e] = before[j + 1][e];
        before[past - 1][e] = own[e];
      }
      store_rounded(y + row * p.y_row, sum);
    }
  }
}

/* conv_state: the new state of a request, in one channel per thread, or in one vector of them. Bits are moved as
 * integers of that size; all are read before the first is written.
 * Grid:   (B * pieces). Block: 256 threads.
 * Shared: none.
 * Align:  by element.
 * Arch:   any.
 * Limit:  bytes: the state read or the last rows of x, and the state written. */
template <class Bits> __global__ void __launch_bounds__(conv_threads) conv_state(conv_params p) {
  const int32_t request = static_cast<int32_t>(static_cast<int64_t>(blockIdx.x) / p.pieces);
  const int32_t piece = static_cast<int32_t>(static_cast<int64_t>(blockIdx.x) % p.pieces);
  const int32_t c = piece * conv_threads + static_cast<int32_t>(threadIdx.x);
  const int64_t first = begin_of(p, request), end = begin_of(p, request + 1), slot = slot_of(p, request);
  if (c >= p.C || slot < 0 || end <= first) return;
  const bool fresh = p.fresh[request] != 0;
  Bits *const state = static_cast<Bits *>(p.state) + slot * p.state_row + c;
  Bits moved[conv_most_past] = {};
  ASSAY_UNROLL
  for (int k = 0; k < conv_most_past; ++k) {
    if (k >= p.past) continue;
    const int64_t from = end - p.past + k;
    if (from >= first)
      moved[k] = static_cast<const Bits *>(p.x)[from * p.x_row + c];
    else if (!fresh)
      moved[k] = state[(from - first + p.past) * p.C];
  }
  ASSAY_UNROLL
  for (int k = 0; k < conv_most_past; ++k)
    if (k < p.past) state[static_cast<int64_t>(k) * p.C] = moved[k];
}

assay_status read_call(const assay_call *call, conv_params *p, assay_error *error) {
  plain_call c;
  *p = conv_params();
  ASSAY_TRY(plain_read(call, &c, error));
  ASSAY_TRY(expect_type("x", c.type("x"), error));
  p->x = c.data<const void>("x");
  p->w = c.data<const void>("w");
  p->bias = c.data<const void>("bias");
  p->cu = c.data<const int32_t>("cu");
  p->slots = c.data<const int32_t>("slots");
  p->fresh = c.data<const int32_t>("fresh");
  p->state = c.data<void>("state");
  p->y = c.data<void>("y");
  p->x_row = c.row("x");
  p->state_row = c.row("state");
  p->y_row = c.row("y");
  p->N = c.dim("N");
  p->S = c.dim("S");
  p->C = c.dim32("C");
  p->past = c.dim32("J");
  p->B = c.dim32("B");
  p->pieces = (p->C + conv_threads - 1) / conv_threads;
  p->silu = c.flag("silu");
  p->type = c.type("x");
  p->weight_type = c.type("w");
  if (p->bias != nullptr && c.type("bias") != p->weight_type)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "bias: found dtype %s, taken here: that of w, %s",
                      assay_dtype_name(c.type("bias")), assay_dtype_name(p->weight_type));
  return ASSAY_OK;
}

/* Reads a call of whole vectors. Weights lie close together, so that only their base matters. */
assay_status read_vectors(const assay_call *call, conv_params *p, assay_error *error) {
  ASSAY_TRY(read_call(call, p, error));
  const int32_t width = static_cast<int32_t>(16 / assay_dtype_size(p->type));
  if (p->C % width != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "C: found %d, taken here: multiples of %d", p->C, width);
  const uintptr_t bases = reinterpret_cast<uintptr_t>(p->x) | reinterpret_cast<uintptr_t>(p->w) |
                          reinterpret_cast<uintptr_t>(p->bias) | reinterpret_cast<uintptr_t>(p->state) |
                          reinterpret_cast<uintptr_t>(p->y);
  if (bases % 16 != 0 || (p->x_row | p->state_row | p->y_row) % width != 0)
    return assay_fail(
        error, ASSAY_ERR_UNSUPPORTED,
        "call: found a base or a distance of rows that is no multiple of 16 bytes, taken here: multiples");
  p->pieces = (p->C / width + walk_threads - 1) / walk_threads;
  return ASSAY_OK;
}

/* Returns the rows of a thread: as many as leave blocks for every multiprocessor. */
int32_t rows_of_walk(const conv_params &p) {
  const int64_t wanted = p.N * p.pieces / walk_blocks;
  return static_cast<int32_t>(wanted < 1 ? 1 : wanted > walk_most_rows ? walk_most_rows : wanted);
}

template <class T, class W> assay_status walk(const conv_params &p, assay_env *env, assay_error *error) {
  const int32_t rows = rows_of_walk(p);
  const int64_t blocks = (p.N + rows - 1) / rows * p.pieces;
  if (p.past == 1) return ASSAY_LAUNCH(error, (conv_walk<T, W, 1>), blocks, walk_threads, 0, env->stream, p, rows);
  if (p.past == 2) return ASSAY_LAUNCH(error, (conv_walk<T, W, 2>), blocks, walk_threads, 0, env->stream, p, rows);
  return ASSAY_LAUNCH(error, (conv_walk<T, W, 3>), blocks, walk_threads, 0, env->stream, p, rows);
}

assay_status launch_vectors(const assay_call *call, assay_env *env, assay_error *error) {
  conv_params p;
  ASSAY_TRY(read_vectors(call, &p, error));
  (void)snprintf(env->path, sizeof env->path, "vectors taps=%d rows=%s", p.past + 1,
                 rows_of_walk(p) > 1 ? "several" : "1");
  if (p.N == 0) return ASSAY_OK;
  ASSAY_TRY(with_type(p.type, [&](auto type) {
    using T = typename decltype(type)::type;
    return p.weight_type == ASSAY_F32 ? walk<T, float>(p, env, error) : walk<T, T>(p, env, error);
  }));
  conv_params of_vectors = p; /* a vector stands for a channel */
  const int32_t width = static_cast<int32_t>(16 / assay_dtype_size(p.type));
  of_vectors.C /= width;
  of_vectors.x_row /= width;
  of_vectors.state_row /= width;
  of_vectors.pieces = (of_vectors.C + conv_threads - 1) / conv_threads;
  return ASSAY_LAUNCH(error, conv_state<uint4>, static_cast<int64_t>(p.B) * of_vectors.pieces, conv_threads, 0,
                      env->stream, of_vectors);
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  conv_params p;
  ASSAY_TRY(read_call(call, &p, error));
  (void)snprintf(env->path, sizeof env->path, "rows taps=%d", p.past + 1);
  if (p.N == 0) return ASSAY_OK;
  ASSAY_TRY(with_type(p.type, [&](auto type) {
    using T = typename decltype(type)::type;
    if (p.weight_type == ASSAY_F32)
      return ASSAY_LAUNCH(error, (conv_rows<T, float>), p.N * p.pieces, conv_threads, 0, env->stream, p);
    return ASSAY_LAUNCH(error, (conv_rows<T, T>), p.N * p.pieces, conv_threads, 0, env->stream, p);
  }));
  const int64_t blocks = static_cast<int64_t>(p.B) * p.pieces;
  if (assay_dtype_size(p.type) == 4)
    return ASSAY_LAUNCH(error, conv_state<uint32_t>, blocks, conv_threads, 0, env->stream, p);
  return ASSAY_LAUNCH(error, conv_state<uint16_t>, blocks, conv_threads, 0, env->stream, p);
}

/* f32 throughout, one running sum; expf and the division: 2 ulp, or 4 with the quotient of `vectors`. */
constexpr assay_contract contract_of(double exp_ulp) {
  return {.exp_ulp = exp_ulp,
          .qk_lanes = 1,
          .pv_lanes = 1,
          .run_to_run = true,
          .renumbering = true,
          .lanes = 1,
          .alone = true};
}
constexpr assay_contract contract = contract_of(2.0), fast_contract = contract_of(4.0);

} // namespace
} // namespace ASSAY_NS

#define VECTORS                                                                                                        \
  PLAIN_VARIANT("causal_conv1d", "vectors", "16 bytes of channels a thread, rows one after the other",                 \
                PLAIN_TYPE_CLAIMS, fast_contract, conv_params, read_vectors, launch_vectors)
#define ROWS                                                                                                           \
  PLAIN_VARIANT("causal_conv1d", "rows", "a thread per row and channel", PLAIN_TYPE_CLAIMS, contract, conv_params,     \
                read_call, launch)

ASSAY_VARIANTS(causal_conv1d, VECTORS, ROWS)
