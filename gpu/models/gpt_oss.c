/* gpt_oss.c: ref/models/gpt_oss.c over launchers. Experts stand in every layer and biases in every linear layer. The
 * softmax has sinks, every second layer a window, and the activation is clamped.
 *
 * Source: docs/definitions.md, section 7. */
#include "gpu/models/pass.h"

static void gpt_oss_layer(pass *m) {
  pass_norm(m, "attn.pre", &m->x, &m->h);
  pass_linear(m, "attn.qkv", &m->h, &m->qkv, true);
  pass_heads(m, &m->qkv);
  pass_softmax_attention(m, &m->qkv, &m->out);
  pass_linear(m, "attn.proj", &m->out, &m->y, true);
  pass_residual(m, "attn.residual", &m->y, NULL, &m->x);

  pass_norm(m, "mlp.pre", &m->x, &m->h);
  pass_linear(m, "router", &m->h, &m->router, true);
  pass_route(m, "router", &m->router);
  pass_permute(m, &m->h, &m->routed);
  pass_expert_linear(m, "experts.up", &m->routed, &m->routed_up);
  pass_clamped_swiglu(m, "experts.act", &m->routed_up, &m->routed_gated);
  pass_expert_linear(m, "experts.down", &m->routed_gated, &m->routed_out);
  pass_combine(m, "moe.out", &m->routed_out, NULL, &m->y);
  pass_residual(m, "mlp.residual", &m->y, NULL, &m->x);
}

void pass_gpt_oss(pass *m) {
  pass_embed(m, &m->x);
  for (m->layer = 0; m->layer < m->config.layers; ++m->layer)
    gpt_oss_layer(m);
  m->layer = -1;
  pass_head(m, &m->x, &m->h);
}
