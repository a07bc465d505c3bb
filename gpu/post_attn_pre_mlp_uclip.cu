/* post_attn_pre_mlp_uclip.cu: y = round(uclip(a; post)), res <- round(y + res), out = uclip(res; pre). It is the
 * seam of a peri-norm layer between attention and MLP, in one launch. docs/kernels/post_attn_pre_mlp_uclip.md has the
 * arithmetic. */
#include "gpu/lib/norm.cuh"
#include "gpu/lib/uclip_vector.cuh"

namespace ASSAY_NS {
namespace {

struct seam_params {
  const void *x, *res; /* x: the operator's a */
  void *sum, *y;       /* sum: res itself, or res_out; y: the operator's out */
  int64_t x_row, res_row, sum_row, y_row;
  uclip_weights post, pre;
  int64_t N;
  int32_t C;
  bool quads;
  bool early; /* all weights are settled: they are read before the wait */
  assay_dtype type;
};

/* seam_quads: four channels per thread, nothing shared between threads.
 * Grid:   (N rows, blocks of a row). Block: 32 to 256 threads, as a row needs.
 * Shared: none.
 * Align:  quads where every base and row stride is a multiple of 4 elements, else by element.
 * Arch:   any.
 * Limit:  bytes: 4 sizeof(T) per channel. */
template <class T> __global__ void __launch_bounds__(256) seam_quads(seam_params p) {
  const int64_t row = blockIdx.x;
  const int32_t c = 4 * static_cast<int32_t>(blockIdx.y * blockDim.x + threadIdx.x);
  if (c >= p.C) return;
  float v[4], res[4];
  load_channels(static_cast<const T *>(p.x) + row * p.x_row, c, p.C, p.quads, v);
  load_channels(static_cast<const T *>(p.res) + row * p.res_row, c, p.C, p.quads, res);
  uclip_channels<T>(p.post, c, p.C, p.quads, v);
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    v[i] = round_to<T>(round_to<T>(v[i]) + res[i]);
  store_channels(static_cast<T *>(p.sum) + row * p.sum_row, c, p.C, p.quads, v);
  uclip_channels<T>(p.pre, c, p.C, p.quads, v);
  store_channels(static_cast<T *>(p.y) + row * p.y_row, c, p.C, p.quads, v);
}

assay_status read_call(const assay_call *call, seam_params *p, assay_error *error) {
  plain_call c;
  *p = seam_params();
  ASSAY_TRY(plain_read(call, &c, error));
  ASSAY_TRY(read_norm_rows(c, "a", "out", p, error));
  ASSAY_TRY(read_uclip(c, "post_", p->C, &p->post, error));
  return read_uclip(c, "pre_", p->C, &p->pre, error);
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  seam_params p;
  ASSAY_TRY(read_call(call, &p, error));
  const quad_grid row = quads_of_row(p.C);
  (void)snprintf(env->path, sizeof env->path, "quads threads=%d quads=%d", row.threads, p.quads ? 1 : 0);
  return with_type(p.type, [&](auto type) {
    using T = typename decltype(type)::type;
    return ASSAY_LAUNCH(error, seam_quads<T>, launch_extent(p.N, row.blocks), row.threads, 0, env->stream, p);
  });
}

/* ---- whole vectors ----------------------------------------------------------------------------------- */

constexpr int seam_rows = 2;

/* seam_vectors: a vector of channels in one row or two; the weights of both norms are loaded once, beside the rows.
 * They are loaded before the wait where they are settled.
 * Grid:   (groups of rows, pieces of a row). Block: 32 to 256 threads.
 * Shared: none.
 * Align:  every base and distance of rows is a multiple of 16 bytes, C of whole vectors.
 * Arch:   any.
 * Limit:  bytes: 4 sizeof(T) per channel. */
template <class T, int rows> __global__ void __launch_bounds__(256) seam_vectors(seam_params p) {
  constexpr int width = vector_width<T>;
  dependents_launch();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * rows;
  const int32_t c = width * vector_of_thread();
  if (c >= p.C) return;
  if (!p.early) dependency_wait();
  const uclip_vector<T> post(p.post, c), pre(p.pre, c);
  if (p.early) dependency_wait();
  uint4 a[rows] = {}, res[rows] = {};
  ASSAY_UNROLL
  for (int r = 0; r < rows; ++r) {
    if (first + r >= p.N) continue;
    a[r] = load_vector(static_cast<const T *>(p.x) + (first + r) * p.x_row + c);
    res[r] = load_vector(static_cast<const T *>(p.res) + (first + r) * p.res_row + c);
  }
  ASSAY_UNROLL
  for (int r = 0; r < rows; ++r) {
    if (first + r >= p.N) continue;
    float v[width], w[width];
    split_vector<T>(a[r], v);
    split_vector<T>(res[r], w);
    post.apply(v);
    split_vector<T>(round_vector<T>(v), v);
    ASSAY_UNROLL
    for (int i = 0; i < width; ++i)
      v[i] += w[i];
    const uint4 sum = round_vector<T>(v);
    store_vector(static_cast<T *>(p.sum) + (first + r) * p.sum_row + c, sum);
    split_vector<T>(sum, v);
    pre.apply(v);
    store_vector(static_cast<T *>(p.y) + (first + r) * p.y_row + c, round_vector<T>(v));
  }
}

assay_status read_vectors(const assay_call *call, seam_params *p, assay_error *error) {
  ASSAY_TRY(read_call(call, p, error));
  return expect_vectors(call, "C", p->C, p->type, error);
}

/* Returns whether no launch before still writes any weight that is given. */
bool weights_settled(const assay_call *call, const assay_env &env) {
  constexpr const char *names[] = {"post_alpha", "post_gamma", "post_beta", "pre_alpha", "pre_gamma", "pre_beta"};
  for (const char *name : names) {
    const assay_tensor *const weight = named_tensor(call, name);
    if (weight != NULL && weight->data != NULL && !is_settled(call, env, name)) return false;
  }
  return true;
}

assay_status launch_vectors(const assay_call *call, assay_env *env, assay_error *error) {
  seam_params p;
  ASSAY_TRY(read_vectors(call, &p, error));
  const vector_grid grid = split_vectors(p.N, p.C, p.type, seam_rows);
  p.early = weights_settled(call, *env);
  (void)snprintf(env->path, sizeof env->path, "vectors rows=%d%s", grid.rows, p.early ? " early" : "");
  return with_type(p.type, [&](auto type) {
    return with_rows<seam_rows>(grid.rows, [&](auto rows) {
      using T = typename decltype(type)::type;
      constexpr int count = decltype(rows)::value;
      return ASSAY_LAUNCH_WITH(error, (seam_vectors<T, count>), launch_extent(grid.groups, grid.pieces), grid.threads,
                               0, in_turn(), env->stream, p);
    });
  });
}

} // namespace
} // namespace ASSAY_NS

#define QUADS                                                                                                          \
  PLAIN_VARIANT("post_attn_pre_mlp_uclip", "quads", "four channels a thread", PLAIN_TYPE_CLAIMS, uclip_contract,       \
                seam_params, read_call, launch)
#define VECTORS                                                                                                        \
  PLAIN_VARIANT("post_attn_pre_mlp_uclip", "vectors", "16 bytes a load, weights once for two rows", PLAIN_TYPE_CLAIMS, \
                uclip_contract, seam_params, read_vectors, launch_vectors)

ASSAY_VARIANTS(post_attn_pre_mlp_uclip, VECTORS, QUADS)
