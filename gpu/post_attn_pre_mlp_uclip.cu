/* post_attn_pre_mlp_uclip.cu: y = round(uclip(a; post)), res <- round(y + res), out = uclip(res; pre): the seam of a
 * peri-norm layer between attention and MLP, in one launch. docs/kernels/post_attn_pre_mlp_uclip.md has the
 * arithmetic. */
#include "gpu/lib/norm.cuh"

namespace ASSAY_NS {
namespace {

struct seam_params {
  const void *a, *res;
  void *sum, *out; /* sum: res itself, or res_out */
  int64_t a_row, res_row, sum_row, out_row;
  uclip_weights post, pre;
  int64_t N;
  int32_t C;
  bool quads;
  assay_dtype type;
};

/* seam_quads: four channels a thread, nothing shared between threads.
 * Grid:   (N rows, blocks of a row). Block: 32 to 256 threads, as a row needs.
 * Shared: none.
 * Align:  quads where every base and row stride is a multiple of 4 elements, else by element.
 * Arch:   any.
 * Limit:  bytes: 4 sizeof(T) a channel. */
template <class T> __global__ void __launch_bounds__(256) seam_quads(seam_params p) {
  const int64_t row = blockIdx.x;
  const int32_t c = 4 * static_cast<int32_t>(blockIdx.y * blockDim.x + threadIdx.x);
  if (c >= p.C) return;
  float v[4], res[4];
  load_channels(static_cast<const T *>(p.a) + row * p.a_row, c, p.C, p.quads, v);
  load_channels(static_cast<const T *>(p.res) + row * p.res_row, c, p.C, p.quads, res);
  uclip_channels<T>(p.post, c, p.C, p.quads, v);
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    v[i] = round_to<T>(round_to<T>(v[i]) + res[i]);
  store_channels(static_cast<T *>(p.sum) + row * p.sum_row, c, p.C, p.quads, v);
  uclip_channels<T>(p.pre, c, p.C, p.quads, v);
  store_channels(static_cast<T *>(p.out) + row * p.out_row, c, p.C, p.quads, v);
}

assay_status read_call(const assay_call *call, seam_params *p, assay_error *error) {
  plain_call c;
  *p = seam_params();
  ASSAY_TRY(plain_read(call, &c, error));
  ASSAY_TRY(expect_type("a", c.type("a"), error));
  const char *const sum = c.has("res_out") ? "res_out" : "res";
  p->N = c.dim("N");
  p->C = c.dim32("C");
  ASSAY_TRY(read_uclip(c, "post_", p->C, &p->post, error));
  ASSAY_TRY(read_uclip(c, "pre_", p->C, &p->pre, error));
  p->a = c.data<const void>("a");
  p->res = c.data<const void>("res");
  p->sum = c.data<void>(sum);
  p->out = c.data<void>("out");
  p->a_row = c.row("a");
  p->res_row = c.row("res");
  p->sum_row = c.row(sum);
  p->out_row = c.row("out");
  p->quads = plain_quads(c);
  p->type = c.type("a");
  return ASSAY_OK;
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

} // namespace
} // namespace ASSAY_NS

#define QUADS                                                                                                          \
  PLAIN_VARIANT("post_attn_pre_mlp_uclip", "quads", "four channels a thread", PLAIN_TYPE_CLAIMS, uclip_contract,       \
                seam_params, read_call, launch)

ASSAY_VARIANTS(post_attn_pre_mlp_uclip, QUADS)
