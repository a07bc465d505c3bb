/* qwen3_moe.c: ref/models/qwen3_moe.c over launchers. It is the pass of qwen3, with k of E experts for every row of a
 * sparse layer. Without qk_norm this is the Mixtral family.
 *
 * Source: docs/definitions.md, section 7. */
#include "gpu/models/pass.h"

static void dense_mlp(pass *m) {
  pass_linear(m, "mlp.up", &m->h, &m->up, true);
  pass_swiglu(m, "mlp.act", &m->up, &m->gated);
  pass_linear(m, "mlp.down", &m->gated, &m->y, true);
}

static void sparse_mlp(pass *m) {
  pass_linear(m, "router", &m->h, &m->router, true);
  pass_route(m, "router", &m->router);
  pass_permute(m, &m->h, &m->routed);
  pass_expert_linear(m, "experts.up", &m->routed, &m->routed_up);
  pass_swiglu(m, "experts.act", &m->routed_up, &m->routed_gated);
  pass_expert_linear(m, "experts.down", &m->routed_gated, &m->routed_out);
  pass_combine(m, "moe.out", &m->routed_out, NULL, &m->y);
}

static void qwen3_moe_layer(pass *m) {
  pass_norm(m, "attn.pre", &m->x, &m->h);
  pass_linear(m, "attn.qkv", &m->h, &m->qkv, true);
  pass_heads(m, &m->qkv);
  pass_softmax_attention(m, &m->qkv, &m->out);
  pass_linear(m, "attn.proj", &m->out, &m->y, true);
  pass_residual(m, "attn.residual", &m->y, NULL, &m->x);

  pass_norm(m, "mlp.pre", &m->x, &m->h);
  if (assay_model_is_sparse(&m->config, m->layer))
    sparse_mlp(m);
  else
    dense_mlp(m);
  pass_residual(m, "mlp.residual", &m->y, NULL, &m->x);
}

void pass_qwen3_moe(pass *m) {
  pass_embed(m, &m->x);
  for (m->layer = 0; m->layer < m->config.layers; ++m->layer)
    qwen3_moe_layer(m);
  m->layer = -1;
  pass_head(m, &m->x, &m->h);
}
