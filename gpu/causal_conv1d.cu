/* causal_conv1d.cu: a short causal convolution along the rows of requests. The definition is in ref/causal_conv1d.c's
 * head and in docs/definitions.md, section 12.
 *
 * rows: a thread per row and channel makes y; a second launch moves the state, a thread per request and channel.
 * docs/kernels/causal_conv1d.md has the arithmetic. */
#include "gpu/lib/launch.h"
#include "gpu/lib/plain.h"

namespace ASSAY_NS {
namespace {

constexpr int conv_threads = 256, conv_most_past = 3;

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

/* conv_state: the new state of a request, in one channel per thread. Bits are moved as integers of the element's size;
 * all are read before the first is written.
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

/* f32 throughout, one running sum; expf and the division: 2 ulp. */
constexpr assay_contract contract = {
    .exp_ulp = 2.0, .qk_lanes = 1, .pv_lanes = 1, .run_to_run = true, .renumbering = true, .lanes = 1, .alone = true};

} // namespace
} // namespace ASSAY_NS

#define ROWS                                                                                                           \
  PLAIN_VARIANT("causal_conv1d", "rows", "a thread per row and channel", PLAIN_TYPE_CLAIMS, contract, conv_params,     \
                read_call, launch)

ASSAY_VARIANTS(causal_conv1d, ROWS)
