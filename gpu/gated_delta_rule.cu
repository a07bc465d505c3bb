/* gated_delta_rule.cu: linear attention with a matrix S [D_k, D_v] for each request and value head.
 *
 *   S <- exp(g) S;    d = beta (v - S^T k);    S <- S + k d^T;    o = scale S^T q        row by row
 *
 * Columns of S do not depend on each other. columns: some lanes have a column, for every size. registers: a block has
 * 64 columns of a state of 64 or 128 rows, read and written once in vectors; it is for decoding.
 * docs/kernels/gated_delta_rule.md has the arithmetic. */
#include "gpu/lib/delta_rule.cuh"
#include "gpu/lib/vec.cuh"
#include "gpu/lib/warp.cuh"

namespace ASSAY_NS {
namespace {

constexpr int rule_threads = 128, rule_warps = rule_threads / 32;

/* The work of a block: one value head of one request, and a piece of its columns. */
struct rule_work {
  int64_t first, end, slot; /* rows, inside the tensors; slot -1: none */
  int32_t head, key, piece;
  bool fresh;
};

__device__ __forceinline__ rule_work rule_work_of(const rule_params &p, int64_t block) {
  rule_work w;
  const int32_t request = static_cast<int32_t>(block / p.pieces / p.H_v);
  w.piece = static_cast<int32_t>(block % p.pieces);
  w.head = static_cast<int32_t>(block / p.pieces % p.H_v);
  w.key = w.head / (p.H_v / p.H_k);
  w.first = rule_row(p, request);
  w.end = rule_row(p, request + 1);
  w.slot = rule_slot(p, request);
  w.fresh = p.fresh[request] != 0;
  return w;
}

/* ---- columns ----------------------------------------------------------------------------------------- */

/* Loads a row of q or k: lane l of `lanes` has channels l, l + lanes, ... Divides it by its length, with l2. */
template <class T, int lanes, int parts>
__device__ __forceinline__ void load_key(const rule_params &p, const T *from, int lane, float (&x)[parts]) {
  float square = 0.0f;
  ASSAY_UNROLL
  for (int e = 0; e < parts; ++e) {
    const int i = lane + lanes * e;
    x[e] = i < p.D_k ? to_float(from[i]) : 0.0f;
    square += x[e] * x[e];
  }
  if (!p.l2) return;
  const float factor = 1.0f / sqrtf(group_sum<lanes>(square) + p.eps);
  ASSAY_UNROLL
  for (int e = 0; e < parts; ++e)
    x[e] *= factor;
}

template <int lanes, int parts>
__device__ __forceinline__ float column_dot(const float (&s)[parts], const float (&x)[parts]) {
  float sum = 0.0f;
  ASSAY_UNROLL
  for (int e = 0; e < parts; ++e)
    sum += s[e] * x[e];
  return group_sum<lanes>(sum);
}

/* rule_columns: all rows of a request, for 16 or 8 columns of one value head. S stays in registers.
 * Grid:   (B * H_v * pieces): pieces of 16 columns. Block: 128 threads, eight per column.
 * Shared: none.
 * Align:  by element.
 * Arch:   any.
 * Limit:  latency: rows follow each other. q and k are read once per piece, from L1 or L2. */
template <class T, class State, int lanes, int parts>
__global__ void __launch_bounds__(rule_threads) rule_columns(rule_params p) {
  const rule_work w = rule_work_of(p, blockIdx.x);
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int32_t column = w.piece * (rule_threads / lanes) + static_cast<int32_t>(threadIdx.x) / lanes;
  if (w.end <= w.first) return;
  const bool live = column < p.D_v; /* other lanes take part in the sums only */
  State *const state = static_cast<State *>(p.state) + (w.slot >= 0 ? w.slot : 0) * p.state_row +
                       static_cast<int64_t>(w.head) * p.D_k * p.D_v + column;
  float s[parts], k[parts], q[parts];
  ASSAY_UNROLL
  for (int e = 0; e < parts; ++e) {
    const int i = lane + lanes * e;
    s[e] = live && i < p.D_k && w.slot >= 0 && !w.fresh ? to_float(state[static_cast<int64_t>(i) * p.D_v]) : 0.0f;
  }
  for (int64_t n = w.first; n < w.end; ++n) {
    const int64_t key = static_cast<int64_t>(w.key) * p.D_k;
    load_key<T, lanes, parts>(p, static_cast<const T *>(p.k) + n * p.k_row + key, lane, k);
    load_key<T, lanes, parts>(p, static_cast<const T *>(p.q) + n * p.q_row + key, lane, q);
    const float alpha = expf(p.g[n * p.g_row + w.head]), beta = p.beta[n * p.beta_row + w.head];
    const int64_t channel = static_cast<int64_t>(w.head) * p.D_v + column;
    const float v = live ? to_float(static_cast<const T *>(p.v)[n * p.v_row + channel]) : 0.0f;
    ASSAY_UNROLL
    for (int e = 0; e < parts; ++e)
      s[e] *= alpha;
    const float d = beta * (v - column_dot<lanes, parts>(s, k));
    ASSAY_UNROLL
    for (int e = 0; e < parts; ++e)
      s[e] += k[e] * d;
    const float o = p.scale * column_dot<lanes, parts>(s, q);
    if (live && lane == 0) static_cast<T *>(p.o)[n * p.o_row + channel] = from_float<T>(o);
  }
  ASSAY_UNROLL
  for (int e = 0; e < parts; ++e) {
    const int i = lane + lanes * e;
    if (live && i < p.D_k && w.slot >= 0) state[static_cast<int64_t>(i) * p.D_v] = from_float<State>(s[e]);
  }
}

/* ---- registers --------------------------------------------------------------------------------------- */

constexpr int piece_columns = 64, column_quads = piece_columns / 4, rows_at_once = rule_threads / column_quads;

/* Puts a row of q or k into shared memory, divided by its length with l2. One warp. */
template <class T, int D_k> __device__ __forceinline__ void share_key(const rule_params &p, const T *from, float *to) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float x[D_k / 32], square = 0.0f;
  ASSAY_UNROLL
  for (int e = 0; e < D_k / 32; ++e) {
    x[e] = to_float(from[lane + 32 * e]);
    square += x[e] * x[e];
  }
  const float factor = p.l2 ? 1.0f / sqrtf(warp_sum(square) + p.eps) : 1.0f;
  ASSAY_UNROLL
  for (int e = 0; e < D_k / 32; ++e)
    to[lane + 32 * e] = x[e] * factor;
}

/* Returns the sums over all rows of S, for the four columns of this thread. `partial` has a row per warp. */
__device__ __forceinline__ void sum_rows(float *partial, float (&sum)[4]) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int quad = lane % column_quads;
  ASSAY_UNROLL
  for (int c = 0; c < 4; ++c)
    sum[c] += __shfl_xor_sync(0xffffffffu, sum[c], column_quads);
  if (lane < column_quads) {
    ASSAY_UNROLL
    for (int c = 0; c < 4; ++c)
      partial[warp * piece_columns + 4 * quad + c] = sum[c];
  }
  __syncthreads();
  ASSAY_UNROLL
  for (int c = 0; c < 4; ++c) {
    sum[c] = 0.0f;
    ASSAY_UNROLL
    for (int other = 0; other < rule_warps; ++other)
      sum[c] += partial[other * piece_columns + 4 * quad + c];
  }
}

/* rule_registers: all rows of a request, for 64 columns of one value head. A thread has four neighbouring columns of
 * every eighth row of S; a row is 256 bytes in f32. S is read once and written once.
 * Grid:   (B * H_v * D_v / 64). Block: 128 threads.
 * Shared: q, k, and a row of partial sums per warp, twice.
 * Align:  four elements of the state.
 * Arch:   any.
 * Limit:  bytes of the states, both ways, where requests have one row. */
template <class T, class State, int D_k> __global__ void __launch_bounds__(rule_threads) rule_registers(rule_params p) {
  ASSAY_SHARED(float, q, D_k);
  ASSAY_SHARED(float, k, D_k);
  ASSAY_SHARED(float, read, rule_warps *piece_columns);
  ASSAY_SHARED(float, result, rule_warps *piece_columns);
  constexpr int parts = D_k / rows_at_once;
  const rule_work w = rule_work_of(p, blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x), row = thread / column_quads;
  const int32_t column = w.piece * piece_columns + 4 * (thread % column_quads);
  if (w.end <= w.first) return;
  State *const state = static_cast<State *>(p.state) + (w.slot >= 0 ? w.slot : 0) * p.state_row +
                       static_cast<int64_t>(w.head) * D_k * p.D_v + column;
  float s[parts][4] = {};
  if (w.slot >= 0 && !w.fresh) {
    ASSAY_UNROLL
    for (int e = 0; e < parts; ++e) {
      const quad<State> four = load_quad(state + static_cast<int64_t>(row + rows_at_once * e) * p.D_v, true);
      ASSAY_UNROLL
      for (int c = 0; c < 4; ++c)
        s[e][c] = to_float(four.element[c]);
    }
  }
  for (int64_t n = w.first; n < w.end; ++n) {
    const int64_t key = static_cast<int64_t>(w.key) * D_k, channel = static_cast<int64_t>(w.head) * p.D_v + column;
    /* The row before has read q and k before its last barrier. */
    if (thread < 32) share_key<T, D_k>(p, static_cast<const T *>(p.k) + n * p.k_row + key, k);
    if (thread >= 32 && thread < 64) share_key<T, D_k>(p, static_cast<const T *>(p.q) + n * p.q_row + key, q);
    const float alpha = expf(p.g[n * p.g_row + w.head]), beta = p.beta[n * p.beta_row + w.head];
    float sum[4] = {}, d[4];
    ASSAY_UNROLL
    for (int c = 0; c < 4; ++c)
      d[c] = to_float(static_cast<const T *>(p.v)[n * p.v_row + channel + c]);
    __syncthreads();
    ASSAY_UNROLL
    for (int e = 0; e < parts; ++e) {
      const float x = k[row + rows_at_once * e];
      ASSAY_UNROLL
      for (int c = 0; c < 4; ++c) {
        s[e][c] *= alpha;
        sum[c] += s[e][c] * x;
      }
    }
    sum_rows(read, sum);
    ASSAY_UNROLL
    for (int c = 0; c < 4; ++c) {
      d[c] = beta * (d[c] - sum[c]);
      sum[c] = 0.0f;
    }
    ASSAY_UNROLL
    for (int e = 0; e < parts; ++e) {
      const float x = k[row + rows_at_once * e], y = q[row + rows_at_once * e];
      ASSAY_UNROLL
      for (int c = 0; c < 4; ++c) {
        s[e][c] += x * d[c];
        sum[c] += s[e][c] * y;
      }
    }
    sum_rows(result, sum);
    T *const o = static_cast<T *>(p.o) + n * p.o_row + channel;
    ASSAY_UNROLL
    for (int c = 0; c < 4; ++c)
      if (row == 0) o[c] = from_float<T>(p.scale * sum[c]);
  }
  if (w.slot < 0) return;
  ASSAY_UNROLL
  for (int e = 0; e < parts; ++e) {
    quad<State> four;
    ASSAY_UNROLL
    for (int c = 0; c < 4; ++c)
      four.element[c] = from_float<State>(s[e][c]);
    store_quad(state + static_cast<int64_t>(row + rows_at_once * e) * p.D_v, four, true);
  }
}

/* ---- launchers --------------------------------------------------------------------------------------- */

/* Returns how many lanes have a column: no lane has more than 16 rows of S. */
constexpr int32_t column_lanes(int32_t D_k) {
  return D_k <= 128 ? 8 : 16;
}

assay_status read_call(const assay_call *call, rule_params *p, assay_error *error) {
  ASSAY_TRY(rule_read(call, p, error));
  const int32_t columns = rule_threads / column_lanes(p->D_k);
  p->pieces = (p->D_v + columns - 1) / columns;
  return ASSAY_OK;
}

/* Declines states that are not whole pieces, or whose quads are not aligned. */
assay_status read_registers(const assay_call *call, rule_params *p, assay_error *error) {
  ASSAY_TRY(read_call(call, p, error));
  p->pieces = p->D_v / piece_columns;
  if (p->D_k != 64 && p->D_k != 128)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "D_k: found %d, taken here: 64, 128", p->D_k);
  if (p->D_v % piece_columns != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "D_v: found %d, taken here: multiples of %d", p->D_v,
                      piece_columns);
  const int64_t bytes = 4 * assay_dtype_size(p->state_type);
  if (reinterpret_cast<uintptr_t>(p->state) % static_cast<uintptr_t>(bytes) != 0 || p->state_row % 4 != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "state: found slots that do not begin at multiples of %lld bytes",
                      static_cast<long long>(bytes));
  return ASSAY_OK;
}

template <class T, class State>
assay_status launch_columns(const rule_params &p, int64_t blocks, assay_env *env, assay_error *error) {
  if (p.D_k <= 16) return ASSAY_LAUNCH(error, (rule_columns<T, State, 8, 2>), blocks, rule_threads, 0, env->stream, p);
  if (p.D_k <= 64) return ASSAY_LAUNCH(error, (rule_columns<T, State, 8, 8>), blocks, rule_threads, 0, env->stream, p);
  if (p.D_k <= 128)
    return ASSAY_LAUNCH(error, (rule_columns<T, State, 8, 16>), blocks, rule_threads, 0, env->stream, p);
  return ASSAY_LAUNCH(error, (rule_columns<T, State, 16, 16>), blocks, rule_threads, 0, env->stream, p);
}

template <class T, class State>
assay_status launch_registers(const rule_params &p, int64_t blocks, assay_env *env, assay_error *error) {
  if (p.D_k == 64) return ASSAY_LAUNCH(error, (rule_registers<T, State, 64>), blocks, rule_threads, 0, env->stream, p);
  return ASSAY_LAUNCH(error, (rule_registers<T, State, 128>), blocks, rule_threads, 0, env->stream, p);
}

template <bool registers> assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  rule_params p;
  if (registers)
    ASSAY_TRY(read_registers(call, &p, error));
  else
    ASSAY_TRY(read_call(call, &p, error));
  (void)snprintf(env->path, sizeof env->path, "%s D_k=%d", registers ? "registers" : "columns", p.D_k);
  if (p.N == 0) return ASSAY_OK;
  const int64_t blocks = static_cast<int64_t>(p.B) * p.H_v * p.pieces;
  return with_type(p.type, [&](auto type) {
    using T = typename decltype(type)::type;
    if (p.state_type == ASSAY_F32)
      return registers ? launch_registers<T, float>(p, blocks, env, error)
                       : launch_columns<T, float>(p, blocks, env, error);
    return registers ? launch_registers<T, bf16>(p, blocks, env, error)
                     : launch_columns<T, bf16>(p, blocks, env, error);
  });
}

/* f32 throughout, and the state once where it is written. expf, sqrtf and the division: 2 ulp. */
constexpr assay_contract rule_contract(int32_t lanes) {
  return {.exp_ulp = 2.0,
          .qk_lanes = 8,
          .pv_lanes = 1,
          .run_to_run = true,
          .renumbering = true,
          .lanes = lanes,
          .alone = true};
}
constexpr assay_contract columns_contract = rule_contract(8), registers_contract = rule_contract(32);

} // namespace
} // namespace ASSAY_NS

#define REGISTERS                                                                                                      \
  PLAIN_VARIANT("gated_delta_rule", "registers", "64 columns a block, states once", PLAIN_TYPE_CLAIMS,                 \
                registers_contract, rule_params, read_registers, launch<true>)
#define COLUMNS                                                                                                        \
  PLAIN_VARIANT("gated_delta_rule", "columns", "lanes that share a column, any size", PLAIN_TYPE_CLAIMS,               \
                columns_contract, rule_params, read_call, launch<false>)

ASSAY_VARIANTS(gated_delta_rule, REGISTERS, COLUMNS)
