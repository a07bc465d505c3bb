/* moe_permute.cu: rows of tokens in the order of their experts.
 *
 *   order_p = f >= 0:  y_p = x[floor(f / k)], sy_p = sx[floor(f / k)]   bit for bit
 *   order_p = -1:      zeros, or the bits that y_p and sy_p had
 *
 * An entry of order outside [-1, T k) counts as padding: nothing outside x is read.
 * vectors: 16 bytes per load; elements: one element per thread, rows of any width.
 * docs/kernels/moe_permute.md has the arithmetic. */
#include "gpu/lib/plain.h"
#include "gpu/lib/ptx_edge.cuh"
#include "gpu/lib/vectors.cuh"

namespace ASSAY_NS {
namespace {

struct permute_params {
  const void *x;
  const float *sx; /* NULL: none */
  const int32_t *order;
  void *y;
  float *sy;
  int64_t x_row, sx_row, y_row, sy_row, P, slots;
  int32_t C, S, k, pieces;
  bool untouched;
  assay_dtype type;
};

/* Returns the token of row p, or -1 for padding. Slots have 31 bits: a division of 64 bits is twice as many
 * instructions, before the first load of a row. */
__device__ __forceinline__ int64_t permute_token(const permute_params &p, int64_t row) {
  const int32_t slot = p.order[row];
  if (slot < 0 || slot >= p.slots) return -1;
  return static_cast<uint32_t>(slot) / static_cast<uint32_t>(p.k);
}

/* Copies the scales of a row, by the threads of its first piece. */
__device__ __forceinline__ void permute_scales(const permute_params &p, int64_t row, int64_t token) {
  if (p.sx == nullptr || (token < 0 && p.untouched)) return;
  for (int32_t s = static_cast<int32_t>(threadIdx.x); s < p.S; s += static_cast<int32_t>(blockDim.x))
    p.sy[row * p.sy_row + s] = token >= 0 ? p.sx[token * p.sx_row + s] : 0.0f;
}

/* permute_elements: an element per thread. Bits are moved as integers of the element's size.
 * Grid:   (P * pieces): a row in pieces of 256 channels. Block: 256 threads.
 * Shared: none.
 * Align:  by element.
 * Arch:   any.
 * Limit:  bytes: each row of x read once, each row of y written. */
template <class Bits> __global__ void __launch_bounds__(256) permute_elements(permute_params p) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) / p.pieces;
  const int32_t piece = static_cast<int32_t>(static_cast<int64_t>(blockIdx.x) % p.pieces);
  const int32_t c = piece * 256 + static_cast<int32_t>(threadIdx.x);
  const int64_t token = permute_token(p, row);
  if (piece == 0) permute_scales(p, row, token);
  if (c >= p.C || (token < 0 && p.untouched)) return;
  static_cast<Bits *>(p.y)[row * p.y_row + c] =
      token >= 0 ? static_cast<const Bits *>(p.x)[token * p.x_row + c] : static_cast<Bits>(0);
}

assay_status read_call(const assay_call *call, permute_params *p, assay_error *error) {
  plain_call c;
  *p = permute_params();
  ASSAY_TRY(plain_read(call, &c, error));
  if (c.has("sx") != c.has("sy"))
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "%s: found no data (NULL), allowed a tensor: one is there without the other",
                      c.has("sx") ? "sy" : "sx");
  p->x = c.data<const void>("x");
  p->sx = c.data<const float>("sx");
  p->order = c.data<const int32_t>("order");
  p->y = c.data<void>("y");
  p->sy = c.data<float>("sy");
  p->x_row = c.row("x");
  p->sx_row = c.row("sx");
  p->y_row = c.row("y");
  p->sy_row = c.row("sy");
  p->P = c.dim("P");
  p->C = c.dim32("C");
  p->S = p->sx != NULL ? c.dim32("S") : 0;
  p->k = static_cast<int32_t>(c.integer("k"));
  p->slots = c.dim("T") * p->k;
  p->untouched = c.flag("pad");
  p->type = c.type("x");
  if (p->slots > INT32_MAX)
    return assay_fail(error, ASSAY_ERR_INPUT, "k: found %" PRId64 " slots of all tokens, allowed fewer than 2^31",
                      p->slots);
  return ASSAY_OK;
}

assay_status launch_elements(const assay_call *call, assay_env *env, assay_error *error) {
  permute_params p;
  ASSAY_TRY(read_call(call, &p, error));
  p.pieces = (p.C + 255) / 256;
  (void)snprintf(env->path, sizeof env->path, "elements");
  const int64_t size = assay_dtype_size(p.type), blocks = p.P * p.pieces;
  if (p.P == 0) return ASSAY_OK;
  if (size == 1) return ASSAY_LAUNCH(error, permute_elements<uint8_t>, blocks, 256, 0, env->stream, p);
  if (size == 2) return ASSAY_LAUNCH(error, permute_elements<uint16_t>, blocks, 256, 0, env->stream, p);
  return ASSAY_LAUNCH(error, permute_elements<uint32_t>, blocks, 256, 0, env->stream, p);
}

/* ---- whole vectors ----------------------------------------------------------------------------------- */

/* From so many vectors on, threads have several. */
constexpr int32_t permute_ahead = 4;
constexpr int64_t permute_many = 1 << 18;
/* The most vectors of x that a pass over all rows reads, and the least piece of a row. All rows are asked for their
 * first piece before the second. The k copies of a piece then find it in L2, although x as a whole is more than L2
 * holds. */
constexpr int64_t permute_kept = 1 << 20;
constexpr int32_t permute_least = 192;

/* permute_vectors: `ahead` vectors of 16 bytes per thread, all asked for before the first is written. Distances and
 * widths are in vectors. With more than one, y is more than the cache holds, and gives way to x there.
 * Grid:   (P, pieces of a row). Block: 32 to 256 threads.
 * Shared: none.
 * Align:  every base, row distance and width of x and y is a multiple of 16 bytes.
 * Arch:   any.
 * Limit:  bytes: each row of x read once (the k copies of a row find it in L2), each row of y written. */
template <int ahead> __global__ void __launch_bounds__(256) permute_vectors(permute_params p) {
  take_turn();
  const int64_t row = blockIdx.x, token = permute_token(p, row);
  const int32_t first = static_cast<int32_t>(blockIdx.y * blockDim.x * ahead + threadIdx.x);
  const int32_t step = static_cast<int32_t>(blockDim.x);
  if (blockIdx.y == 0) permute_scales(p, row, token);
  if (token < 0 && p.untouched) return;
  const uint4 *const from = static_cast<const uint4 *>(p.x) + (token >= 0 ? token * p.x_row : 0);
  uint4 *const to = static_cast<uint4 *>(p.y) + row * p.y_row;
  uint4 value[ahead] = {};
  ASSAY_UNROLL
  for (int i = 0; i < ahead; ++i)
    if (token >= 0 && first + i * step < p.C) value[i] = load_vector(from + first + i * step);
  ASSAY_UNROLL
  for (int i = 0; i < ahead; ++i) {
    if (first + i * step >= p.C) continue;
    if constexpr (ahead > 1)
      store_stream_16(to + first + i * step, value[i]);
    else
      store_vector(to + first + i * step, value[i]);
  }
}

/* Declines what is not whole vectors, and turns channels into vectors. */
assay_status read_vectors(const assay_call *call, permute_params *p, assay_error *error) {
  ASSAY_TRY(read_call(call, p, error));
  const int64_t width = 16 / assay_dtype_size(p->type);
  if (p->C % width != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "C: found %d, taken here: multiples of %" PRId64, p->C, width);
  if (reinterpret_cast<uintptr_t>(p->x) % 16 != 0 || reinterpret_cast<uintptr_t>(p->y) % 16 != 0 ||
      p->x_row % width != 0 || p->y_row % width != 0)
    return assay_fail(
        error, ASSAY_ERR_UNSUPPORTED,
        "call: found a base or a distance of rows that is no multiple of 16 bytes, taken here: multiples");
  p->C = static_cast<int32_t>(p->C / width);
  p->x_row /= width;
  p->y_row /= width;
  return ASSAY_OK;
}

assay_status launch_vectors(const assay_call *call, assay_env *env, assay_error *error) {
  permute_params p;
  ASSAY_TRY(read_vectors(call, &p, error));
  const int32_t ahead = p.P * p.C >= permute_many ? permute_ahead : 1, most = 256 * ahead;
  const int64_t passes = (p.slots / p.k * p.C + permute_kept - 1) / permute_kept;
  p.pieces = (p.C + most - 1) / most;
  if (passes > p.pieces)
    p.pieces = static_cast<int32_t>(std::max<int64_t>(p.pieces, std::min<int64_t>(passes, p.C / permute_least)));
  const int32_t per_piece = (p.C + p.pieces - 1) / p.pieces;
  const int32_t threads = ((per_piece + ahead - 1) / ahead + 31) / 32 * 32;
  (void)snprintf(env->path, sizeof env->path, "vectors ahead=%d", ahead);
  if (p.P == 0) return ASSAY_OK;
  const launch_extent grid(p.P, p.pieces);
  if (ahead > 1)
    return ASSAY_LAUNCH_WITH(error, permute_vectors<permute_ahead>, grid, threads, 0, in_turn(), env->stream, p);
  return ASSAY_LAUNCH_WITH(error, permute_vectors<1>, grid, threads, 0, in_turn(), env->stream, p);
}

constexpr assay_contract contract = {
    .qk_lanes = 1, .pv_lanes = 1, .run_to_run = true, .renumbering = true, .permutation = true, .alone = true};

} // namespace
} // namespace ASSAY_NS

#define ELEMENTS                                                                                                       \
  PLAIN_VARIANT("moe_permute", "elements", "an element a thread, any width", "f32,f16,bf16,e4m3", contract,            \
                permute_params, read_call, launch_elements)
#define VECTORS                                                                                                        \
  PLAIN_VARIANT("moe_permute", "vectors", "16 bytes a load", "f32,f16,bf16,e4m3", contract, permute_params,            \
                read_vectors, launch_vectors)

ASSAY_VARIANTS(moe_permute, VECTORS, ELEMENTS)
