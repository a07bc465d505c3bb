/* moe_combine.cu: weighted sums of the results of a token's experts.
 *
 *   y_tc = round(sum_j w_tj · z[pos_tj, c] + shared_tc)      over the slots with pos_tj in [0, P), j ascending
 *
 * A slot with any other pos is not read. vectors: 16 bytes per load, up to eight rows of a token asked for before the
 * first addition; channels: four neighbouring channels per thread, rows of any width. docs/kernels/moe_combine.md has
 * the arithmetic. */
#include "gpu/lib/channels.cuh"
#include "gpu/lib/plain.h"
#include "gpu/lib/vectors.cuh"

namespace ASSAY_NS {
namespace {

struct combine_params {
  const void *z, *shared; /* shared NULL: none */
  const int32_t *pos;
  const float *w; /* NULL: 1 */
  void *y;
  int64_t z_row, shared_row, y_row, T, P;
  int32_t C, k, pieces;
  bool quads;
  assay_dtype type;
};

/* Returns the row of z of a slot, or -1 for none. */
__device__ __forceinline__ int64_t combine_place(const combine_params &p, int64_t token, int32_t j) {
  const int64_t place = p.pos[token * p.k + j];
  return place >= 0 && place < p.P ? place : -1;
}

/* combine_channels: four channels of a token per thread, slot after slot.
 * Grid:   (T * pieces): a row in pieces of 4 channels per thread. Block: 256 threads.
 * Shared: none.
 * Align:  in quads of 4 elements if every base and row distance allows it, else by element.
 * Arch:   any.
 * Limit:  bytes: k + 1 (with shared k + 2) rows per token. */
template <class T> __global__ void __launch_bounds__(256) combine_channels(combine_params p) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) / p.pieces;
  const int32_t piece = static_cast<int32_t>(static_cast<int64_t>(blockIdx.x) % p.pieces);
  const int32_t c = 4 * (piece * 256 + static_cast<int32_t>(threadIdx.x));
  if (c >= p.C) return;
  float sum[4] = {}, v[4];
  for (int32_t j = 0; j < p.k; ++j) {
    const int64_t place = combine_place(p, token, j);
    if (place < 0) continue;
    const float weight = p.w != nullptr ? p.w[token * p.k + j] : 1.0f;
    load_channels(static_cast<const T *>(p.z) + place * p.z_row, c, p.C, p.quads, v);
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      sum[i] += weight * v[i];
  }
  if (p.shared != nullptr) {
    load_channels(static_cast<const T *>(p.shared) + token * p.shared_row, c, p.C, p.quads, v);
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      sum[i] += v[i];
  }
  store_channels(static_cast<T *>(p.y) + token * p.y_row, c, p.C, p.quads, sum);
}

/* Tells whether every base is a multiple of `bytes`, and every distance of rows one of `width` elements. */
bool combine_aligned(const combine_params &p, int64_t width, int64_t bytes) {
  const uintptr_t bases =
      reinterpret_cast<uintptr_t>(p.z) | reinterpret_cast<uintptr_t>(p.shared) | reinterpret_cast<uintptr_t>(p.y);
  return bases % static_cast<uintptr_t>(bytes) == 0 && (p.z_row | p.shared_row | p.y_row) % width == 0;
}

assay_status read_call(const assay_call *call, combine_params *p, assay_error *error) {
  plain_call c;
  *p = combine_params();
  ASSAY_TRY(plain_read(call, &c, error));
  ASSAY_TRY(expect_type("z", c.type("z"), error));
  p->z = c.data<const void>("z");
  p->shared = c.data<const void>("shared");
  p->pos = c.data<const int32_t>("pos");
  p->w = c.data<const float>("w");
  p->y = c.data<void>("y");
  p->z_row = c.row("z");
  p->shared_row = c.row("shared");
  p->y_row = c.row("y");
  p->T = c.dim("T");
  p->P = c.dim("P");
  p->C = c.dim32("C");
  p->k = c.dim32("k");
  p->quads = combine_aligned(*p, 4, 4 * assay_dtype_size(c.type("z")));
  p->type = c.type("z");
  return ASSAY_OK;
}

assay_status launch_channels(const assay_call *call, assay_env *env, assay_error *error) {
  combine_params p;
  ASSAY_TRY(read_call(call, &p, error));
  p.pieces = (p.C + 1023) / 1024;
  (void)snprintf(env->path, sizeof env->path, "channels quads=%d", p.quads ? 1 : 0);
  if (p.T == 0) return ASSAY_OK;
  return with_type(p.type, [&](auto type) {
    using T = typename decltype(type)::type;
    return ASSAY_LAUNCH(error, (combine_channels<T>), p.T * p.pieces, 256, 0, env->stream, p);
  });
}

/* ---- whole vectors ----------------------------------------------------------------------------------- */

/* From so many vectors of y on, blocks enough are resident to hide the loads, and four rows in flight are faster. */
constexpr int64_t combine_many = 1 << 18;

/* combine_vectors: a vector of a token's channels per thread. `ahead` rows are asked for before the first is added,
 * four or eight. The order of the additions is that of combine_channels: j ascending, then shared.
 * Grid:   (T, pieces of a row). Block: 32 to 256 threads.
 * Shared: none.
 * Align:  every base and row distance of z, shared and y is a multiple of 16 bytes; C of whole vectors.
 * Arch:   any.
 * Limit:  bytes: k + 1 (with shared k + 2) rows per token. */
template <class T, int ahead> __global__ void __launch_bounds__(256) combine_vectors(combine_params p) {
  constexpr int width = vector_width<T>;
  take_turn();
  const int64_t token = blockIdx.x;
  const int32_t c = width * vector_of_thread();
  if (c >= p.C) return;
  float sum[width] = {}, v[width];
  for (int32_t first = 0; first < p.k; first += ahead) {
    uint4 row[ahead] = {};
    float weight[ahead];
    bool there[ahead];
    ASSAY_UNROLL
    for (int a = 0; a < ahead; ++a) {
      const int64_t place = first + a < p.k ? combine_place(p, token, first + a) : -1;
      there[a] = place >= 0;
      weight[a] = there[a] && p.w != nullptr ? p.w[token * p.k + first + a] : 1.0f;
      const T *const from = static_cast<const T *>(p.z) + (there[a] ? place : 0) * p.z_row + c;
      if constexpr (ahead > 4)
        load_stream_16_if(&row[a], from, there[a]);
      else if (there[a])
        row[a] = load_vector(from);
    }
    ASSAY_UNROLL
    for (int a = 0; a < ahead; ++a) {
      if (!there[a]) continue;
      split_vector<T>(row[a], v);
      ASSAY_UNROLL
      for (int i = 0; i < width; ++i)
        sum[i] += weight[a] * v[i];
    }
  }
  if (p.shared != nullptr) {
    split_vector<T>(load_vector(static_cast<const T *>(p.shared) + token * p.shared_row + c), v);
    ASSAY_UNROLL
    for (int i = 0; i < width; ++i)
      sum[i] += v[i];
  }
  store_vector(static_cast<T *>(p.y) + token * p.y_row + c, round_vector<T>(sum));
}

/* Declines what is not whole vectors. */
assay_status read_vectors(const assay_call *call, combine_params *p, assay_error *error) {
  ASSAY_TRY(read_call(call, p, error));
  const int64_t width = 16 / assay_dtype_size(p->type);
  if (p->C % width != 0)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "C: found %d, taken here: multiples of %" PRId64, p->C, width);
  if (combine_aligned(*p, width, 16)) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED,
                    "call: found a base or a distance of rows that is no multiple of 16 bytes, taken here: multiples");
}

assay_status launch_vectors(const assay_call *call, assay_env *env, assay_error *error) {
  combine_params p;
  ASSAY_TRY(read_vectors(call, &p, error));
  const int32_t vectors = p.C / static_cast<int32_t>(16 / assay_dtype_size(p.type));
  p.pieces = (vectors + 255) / 256;
  const int32_t threads = ((vectors + p.pieces - 1) / p.pieces + 31) / 32 * 32;
  const launch_extent grid(p.T, p.pieces);
  const bool deep = p.k > 4 && p.T * vectors < combine_many;
  (void)snprintf(env->path, sizeof env->path, "vectors ahead=%d", deep ? 8 : 4);
  if (p.T == 0) return ASSAY_OK;
  return with_type(p.type, [&](auto type) {
    using T = typename decltype(type)::type;
    if (deep) return ASSAY_LAUNCH_WITH(error, (combine_vectors<T, 8>), grid, threads, 0, in_turn(), env->stream, p);
    return ASSAY_LAUNCH_WITH(error, (combine_vectors<T, 4>), grid, threads, 0, in_turn(), env->stream, p);
  });
}

constexpr assay_contract contract = {
    .qk_lanes = 1, .pv_lanes = 1, .run_to_run = true, .renumbering = true, .permutation = true, .alone = true};

} // namespace
} // namespace ASSAY_NS

#define CHANNELS                                                                                                       \
  PLAIN_VARIANT("moe_combine", "channels", "four neighbouring channels a thread", PLAIN_TYPE_CLAIMS, contract,         \
                combine_params, read_call, launch_channels)
#define VECTORS                                                                                                        \
  PLAIN_VARIANT("moe_combine", "vectors", "16 bytes a load, up to eight rows in flight", PLAIN_TYPE_CLAIMS, contract,  \
                combine_params, read_vectors, launch_vectors)

ASSAY_VARIANTS(moe_combine, VECTORS, CHANNELS)
