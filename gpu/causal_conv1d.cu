/* causal_conv1d.cu: a short causal convolution along the rows of requests. The definition is in ref/causal_conv1d.c's
 * head and in docs/definitions.md, section 12.
 *
 * vectors: a thread walks down rows in four channels, and keeps the rows before in registers.
 * rows:    a thread per row and channel makes y. A second launch moves the states.
 *
 * docs/kernels/causal_conv1d.md has the arithmetic. */
#include "gpu/lib/launch.h"
#include "gpu/lib/plain.h"
#include "gpu/lib/vec.cuh"
#include "gpu/lib/vectors.cuh"

namespace ASSAY_NS {
namespace {

constexpr int conv_threads = 256, conv_most_past = 3;
constexpr int walk_threads = 128, walk_width = 4; /* channels of a thread */
constexpr int walk_ahead = 4;                     /* rows that a thread asks for before it needs them */
constexpr int walk_resident = 6;                  /* blocks of a multiprocessor */
constexpr int64_t walk_blocks = 2 * walk_resident * 132, walk_most_rows = 32;

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
  if (row < p.B && p.cu[row] == row && p.cu[row + 1] > row) return static_cast<int32_t>(row); /* all have one row */
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

/* ---- vectors ----------------------------------------------------------------------------------------- */

/* A walk: the channels of a thread, the request it is at, and rows first to last - 1 of it. */
template <class T, class W, int past> struct conv_walker {
  static constexpr int width = walk_width, taps = past + 1;
  const conv_params &p;
  int32_t c, request;
  int64_t first, last, slot;
  bool fresh;
  float w[width][taps], bias[width];

  /* Loads the weights, which lie one channel after the other, and the bias. */
  __device__ __forceinline__ void load_weights() {
    ASSAY_UNROLL
    for (int i = 0; i < taps; ++i) {
      const quad<W> some = load_quad(static_cast<const W *>(p.w) + static_cast<int64_t>(c) * taps + i * width, true);
      ASSAY_UNROLL
      for (int e = 0; e < width; ++e)
        w[(i * width + e) / taps][(i * width + e) % taps] = to_float(some.element[e]);
    }
    quad<W> some = {};
    if (p.bias != nullptr) some = load_quad(static_cast<const W *>(p.bias) + c, true);
    ASSAY_UNROLL
    for (int e = 0; e < width; ++e)
      bias[e] = p.bias != nullptr ? to_float(some.element[e]) : 0.0f;
  }

  /* Goes to the request of a row, which ends after the row, whatever cu says. */
  __device__ __forceinline__ void enter(int64_t row) {
    request = request_of(p, row);
    first = begin_of(p, request);
    last = max(begin_of(p, request + 1), row + 1);
    slot = slot_of(p, request);
    fresh = p.fresh[request] != 0;
  }

  __device__ __forceinline__ const T *state_row(int64_t k) const {
    return static_cast<const T *>(p.state) + slot * p.state_row + k * p.C + c;
  }

  /* Returns the row `past - k` rows before `row` as it is stored: of x, of the state, or zeros. */
  __device__ __forceinline__ quad<T> row_before(int64_t row, int k) const {
    const int64_t from = row - past + k, old = from - first + past; /* old: its row in the state */
    if (from >= first) return load_quad(static_cast<const T *>(p.x) + from * p.x_row + c, true);
    if (!fresh && slot >= 0) return load_quad(state_row(old), true);
    return quad<T>();
  }

  /* Makes y in rows `row` to `until` - 1 of the request. Four rows of x are asked for before the four before them are
   * used. */
  __device__ __forceinline__ void walk(int64_t row, int64_t until) const {
    float before[past][width];
    quad<T> next[walk_ahead];
    const T *x = static_cast<const T *>(p.x) + row * p.x_row + c;
    T *y = static_cast<T *>(p.y) + row * p.y_row + c;
    ASSAY_UNROLL
    for (int i = 0; i < walk_ahead; ++i)
      if (row + i < until) next[i] = load_quad(x + i * p.x_row, true);
    ASSAY_UNROLL
    for (int k = 0; k < past; ++k) {
      const quad<T> old = row_before(row, k);
      ASSAY_UNROLL
      for (int e = 0; e < width; ++e)
        before[k][e] = to_float(old.element[e]);
    }
    ASSAY_ROLLED
    for (; row < until; row += walk_ahead) {
      quad<T> now[walk_ahead];
      x += walk_ahead * p.x_row;
      ASSAY_UNROLL
      for (int i = 0; i < walk_ahead; ++i) {
        now[i] = next[i];
        if (row + walk_ahead + i < until) next[i] = load_quad(x + i * p.x_row, true);
      }
      ASSAY_UNROLL
      for (int i = 0; i < walk_ahead; ++i) {
        if (row + i >= until) continue;
        float own[width], sum[width];
        ASSAY_UNROLL
        for (int e = 0; e < width; ++e) {
          own[e] = to_float(now[i].element[e]);
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
        store_rounded(y + i * p.y_row, sum);
      }
      y += walk_ahead * p.y_row;
    }
  }

  /* Moves the request's state by its rows, as bits. All of it is read before the first row is written. */
  __device__ __forceinline__ void move_state() const {
    if (slot < 0 || last <= first) return;
    quad<T> moved[past];
    ASSAY_UNROLL
    for (int k = 0; k < past; ++k)
      moved[k] = row_before(last, k);
    ASSAY_UNROLL
    for (int k = 0; k < past; ++k)
      store_quad(const_cast<T *>(state_row(k)), moved[k], true);
  }
};

/* conv_walk: four channels per thread, in `rows` rows one after the other. The walk in which a request begins also has
 * its next `past - 1` rows, and moves its state. Thus one thread alone reads and writes a slot's channels.
 * Grid:   (ceil(N / rows) * pieces): rows, in pieces of 128 quads. Block: 128 threads.
 * Shared: none.
 * Align:  quads: rows of x, y and the state; w, bias.
 * Arch:   any.
 * Limit:  bytes: x read once and y written. */
template <class T, class W, int past>
__global__ void __launch_bounds__(walk_threads, walk_resident) conv_walk(conv_params p, int32_t rows) {
  take_turn();
  const int64_t begin = static_cast<int64_t>(blockIdx.x) / p.pieces * rows, end = min(begin + rows, p.N);
  const int32_t piece = static_cast<int32_t>(static_cast<int64_t>(blockIdx.x) % p.pieces);
  conv_walker<T, W, past> walker{p, (piece * walk_threads + static_cast<int32_t>(threadIdx.x)) * walk_width};
  if (walker.c >= p.C) return;
  walker.load_weights();
  walker.enter(begin);
  int64_t row = begin;
  bool own = walker.first == begin;
  if (!own && row < walker.first + past) row = min(walker.first + past, walker.last); /* the walk before has these */
  for (;;) {
    walker.walk(row, min(walker.last, own ? max(end, walker.first + past) : end));
    if (own) walker.move_state();
    if (walker.last >= end) return;
    row = walker.last;
    own = true;
    walker.enter(row);
  }
}

/* conv_state: the new state of a request, in one channel per thread. Bits are moved as integers of the type's size; all
 * are read before the first is written.
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

/* Reads a call of whole quads. Weights lie close together, so that only their base matters. */
assay_status read_vectors(const assay_call *call, conv_params *p, assay_error *error) {
  ASSAY_TRY(read_call(call, p, error));
  if (p->C % walk_width != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "C: found %d, taken here: multiples of %d", p->C, walk_width);
  const uintptr_t numbers =
      reinterpret_cast<uintptr_t>(p->x) | reinterpret_cast<uintptr_t>(p->state) | reinterpret_cast<uintptr_t>(p->y);
  const uintptr_t weights = reinterpret_cast<uintptr_t>(p->w) | reinterpret_cast<uintptr_t>(p->bias);
  const uintptr_t quad_bytes = walk_width * static_cast<uintptr_t>(assay_dtype_size(p->type));
  const uintptr_t weight_bytes = walk_width * static_cast<uintptr_t>(assay_dtype_size(p->weight_type));
  if (numbers % quad_bytes != 0 || weights % weight_bytes != 0 ||
      (p->x_row | p->state_row | p->y_row) % walk_width != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                      "call: found a base or a distance of rows that is no multiple of %d elements, taken here: "
                      "multiples",
                      walk_width);
  p->pieces = (p->C / walk_width + walk_threads - 1) / walk_threads;
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
  const auto start = [&](auto kernel) {
    return ASSAY_LAUNCH_WITH(error, kernel, blocks, walk_threads, 0, in_turn(), env->stream, p, rows);
  };
  return p.past == 1 ? start(conv_walk<T, W, 1>) : p.past == 2 ? start(conv_walk<T, W, 2>) : start(conv_walk<T, W, 3>);
}

assay_status launch_vectors(const assay_call *call, assay_env *env, assay_error *error) {
  conv_params p;
  ASSAY_TRY(read_vectors(call, &p, error));
  (void)snprintf(env->path, sizeof env->path, "vectors taps=%d rows=%s", p.past + 1,
                 rows_of_walk(p) > 1 ? "several" : "1");
  if (p.N == 0) return ASSAY_OK;
  return with_type(p.type, [&](auto type) {
    using T = typename decltype(type)::type;
    return p.weight_type == ASSAY_F32 ? walk<T, float>(p, env, error) : walk<T, T>(p, env, error);
  });
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
  PLAIN_VARIANT("causal_conv1d", "vectors", "four channels a thread, rows one after the other", PLAIN_TYPE_CLAIMS,     \
                fast_contract, conv_params, read_vectors, launch_vectors)
#define ROWS                                                                                                           \
  PLAIN_VARIANT("causal_conv1d", "rows", "a thread per row and channel", PLAIN_TYPE_CLAIMS, contract, conv_params,     \
                read_call, launch)

ASSAY_VARIANTS(causal_conv1d, VECTORS, ROWS)
