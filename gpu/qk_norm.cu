/* qk_norm.cu: rms_norm or uclip_norm of every head of q and of k, with weights over the head's channels, in one launch.
 * In place or into q_out and k_out. docs/kernels/qk_norm.md has the arithmetic. */
#include "gpu/lib/norm.cuh"

namespace ASSAY_NS {
namespace {

constexpr int warps = 4; /* heads of a block */

struct heads_params {
  const void *in;
  void *out;
  int64_t in_row, out_row;
  uclip_weights weights; /* rms: gamma alone */
  int32_t heads;
};

struct qk_params {
  heads_params q, k;
  int64_t heads; /* of all rows, q and k */
  int32_t D;
  float eps;
  bool rms, round_inner, quads;
  assay_dtype type;
};

/* qk_heads: a head a warp; all of it is read before any of it is written.
 * Grid:   ceil(N (H + H_kv) / 4). Block: 128 threads: four heads, of q first, then of k, row by row.
 * Shared: none.
 * Align:  quads where every base and row stride is a multiple of 4 elements, else by element.
 * Arch:   any.
 * Limit:  bytes: 2 D sizeof(T) a head. */
template <class T> __global__ void __launch_bounds__(32 * warps) qk_heads(qk_params p) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * warps + static_cast<int32_t>(threadIdx.x) / 32;
  if (index >= p.heads) return; /* whole warps */
  const int32_t both = p.q.heads + p.k.heads, place = static_cast<int32_t>(index % both);
  const int64_t row = index / both;
  const bool is_q = place < p.q.heads;
  const heads_params &t = is_q ? p.q : p.k;
  const int64_t head = static_cast<int64_t>(is_q ? place : place - p.q.heads) * p.D;
  const T *const in = static_cast<const T *>(t.in) + row * t.in_row + head;
  T *const out = static_cast<T *>(t.out) + row * t.out_row + head;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;

  float v[2][4], square = 0.0f; /* D is 256 at most: two quads a lane */
  ASSAY_UNROLL
  for (int part = 0; part < 2; ++part) {
    load_channels(in, 4 * (lane + 32 * part), p.D, p.quads, v[part]);
    ASSAY_UNROLL
    for (int i = 0; i < 4; ++i)
      square += v[part][i] * v[part][i];
  }
  float factor = 1.0f;
  if (p.rms) factor = 1.0f / sqrtf(warp_sum(square) / static_cast<float>(p.D) + p.eps);

  ASSAY_UNROLL
  for (int part = 0; part < 2; ++part) {
    const int32_t d = 4 * (lane + 32 * part);
    if (d >= p.D) break;
    if (p.rms) {
      float gamma[4];
      load_weights<T>(t.weights.gamma, d, p.D, p.quads, 1.0f, gamma);
      ASSAY_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float n = v[part][i] * factor;
        v[part][i] = (p.round_inner ? round_to<T>(n) : n) * gamma[i];
      }
    } else {
      uclip_channels<T>(t.weights, d, p.D, p.quads, v[part]);
    }
    store_channels(out, d, p.D, p.quads, v[part]);
  }
}

/* ---- launcher --------------------------------------------------------------------------------------- */

assay_status read_heads(const plain_call &c, const char *name, const char *out, const char *prefix, heads_params *p,
                        assay_error *error) {
  const char *const to = c.has(out) ? out : name;
  p->in = c.data<const void>(name);
  p->out = c.data<void>(to);
  p->in_row = c.row(name);
  p->out_row = c.row(to);
  return read_uclip(c, prefix, c.dim32("D"), &p->weights, error);
}

assay_status read_call(const assay_call *call, qk_params *p, assay_error *error) {
  plain_call c;
  *p = qk_params();
  ASSAY_TRY(plain_read(call, &c, error));
  ASSAY_TRY(expect_type("q", c.type("q"), error));
  p->rms = c.integer("kind") == 0;
  const char *const none_with_rms[] = {"q_alpha", "k_alpha", "q_beta", "k_beta"};
  for (const char *name : none_with_rms)
    if (p->rms && c.has(name))
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: found a tensor, allowed none with kind rms", name);
  ASSAY_TRY(read_heads(c, "q", "q_out", "q_", &p->q, error));
  ASSAY_TRY(read_heads(c, "k", "k_out", "k_", &p->k, error));
  p->q.heads = c.dim32("H");
  p->k.heads = c.dim32("H_kv");
  p->heads = c.dim("N") * (c.dim("H") + c.dim("H_kv"));
  p->D = c.dim32("D");
  p->eps = c.real("eps");
  p->round_inner = c.flag("round_inner");
  p->quads = plain_quads(c);
  p->type = c.type("q");
  return ASSAY_OK;
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  qk_params p;
  ASSAY_TRY(read_call(call, &p, error));
  (void)snprintf(env->path, sizeof env->path, "warp_heads %s quads=%d", p.rms ? "rms" : "uclip", p.quads ? 1 : 0);
  return with_type(p.type, [&](auto type) {
    using T = typename decltype(type)::type;
    return ASSAY_LAUNCH(error, qk_heads<T>, (p.heads + warps - 1) / warps, 32 * warps, 0, env->stream, p);
  });
}

} // namespace
} // namespace ASSAY_NS

#define WARP_HEADS                                                                                                     \
  PLAIN_VARIANT("qk_norm", "warp_heads", "a warp a head, q and k in one launch", PLAIN_TYPE_CLAIMS,                    \
                warp_rows_contract, qk_params, read_call, launch)

ASSAY_VARIANTS(qk_norm, WARP_HEADS)
