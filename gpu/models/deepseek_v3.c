/* deepseek_v3.c: ref/models/deepseek_v3.c over launchers. Attention is absorbed, over a cache of latent entries. The
 * first layers are dense. In the others each row goes through k experts of the best groups, and through one more that
 * all rows share.
 *
 * Source: docs/definitions.md, section 7. */
#include "gpu/models/pass.h"

static void dense_mlp(pass *m) {
  pass_linear(m, "mlp.up", &m->h, &m->up, true);
  pass_swiglu(m, "mlp.act", &m->up, &m->gated);
  pass_linear(m, "mlp.down", &m->gated, &m->y, true);
}

static void sparse_mlp(pass *m) {
  const bool shared = m->config.shared_size > 0;
  pass_linear(m, "router", &m->h, &m->router, true);
  pass_route(m, "router", &m->router);
  pass_permute(m, &m->h, &m->routed);
  pass_expert_linear(m, "experts.up", &m->routed, &m->routed_up);
  pass_swiglu(m, "experts.act", &m->routed_up, &m->routed_gated);
  pass_expert_linear(m, "experts.down", &m->routed_gated, &m->routed_out);
  if (shared) {
    pass_linear(m, "shared.up", &m->h, &m->shared_up, true);
    pass_swiglu(m, "shared.act", &m->shared_up, &m->shared_gated);
    pass_linear(m, "shared.down", &m->shared_gated, &m->shared, true);
  }
  pass_combine(m, "moe.out", &m->routed_out, shared ? &m->shared : NULL, &m->y);
}

static void deepseek_v3_layer(pass *m) {
  pass_norm(m, "attn.pre", &m->x, &m->h);
  pass_latent_heads(m);
  pass_latent_attention(m, &m->out);
  pass_linear(m, "attn.proj", &m->out, &m->y, true);
  pass_residual(m, "attn.residual", &m->y, NULL, &m->x);

  pass_norm(m, "mlp.pre", &m->x, &m->h);
  if (assay_model_is_sparse(&m->config, m->layer))
    sparse_mlp(m);
  else
    dense_mlp(m);
  pass_residual(m, "mlp.residual", &m->y, NULL, &m->x);
}

void pass_deepseek_v3(pass *m) {
  pass_embed(m, &m->x);
  for (m->layer = 0; m->layer < m->config.layers; ++m->layer)
    deepseek_v3_layer(m);
  m->layer = -1;
  pass_head(m, &m->x, &m->h);
}
