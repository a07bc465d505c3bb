/* gpt_oss.c: experts in every layer, biases in every linear layer. The softmax of each head has a learned sink, and
 * every second layer a window. A router weighs by the softmax over the chosen logits. Gate and up are clamped.
 *
 * Source: docs/definitions.md, section 7; OpenAI, "gpt-oss-120b & gpt-oss-20b model card", 2025. */
#include "ref/models/model.h"

static void gpt_oss_layer(model *m) {
  model_norm(m, "attn.pre", &m->x, &m->h);
  model_linear(m, "attn.qkv", &m->h, &m->qkv, true);
  model_heads(m, &m->qkv, &m->q, &m->k, &m->v);
  model_softmax_attention(m, &m->q, &m->out);
  model_linear(m, "attn.proj", &m->out, &m->y, true);
  model_residual(m, "attn.residual", &m->y, NULL, &m->x);

  model_norm(m, "mlp.pre", &m->x, &m->h);
  model_linear(m, "router", &m->h, &m->router, true);
  model_route(m, "router", &m->router);
  model_permute(m, &m->h, &m->routed);
  model_expert_linear(m, "experts.up", &m->routed, &m->routed_up);
  model_clamped_swiglu(m, "experts.act", &m->routed_up, &m->routed_gated);
  model_expert_linear(m, "experts.down", &m->routed_gated, &m->routed_out);
  model_combine(m, "moe.out", &m->routed_out, NULL, &m->y);
  model_residual(m, "mlp.residual", &m->y, NULL, &m->x);
}

void gpt_oss_forward(model *m) {
  model_embed(m, &m->x);
  for (m->layer = 0; m->layer < m->config.layers; ++m->layer)
    gpt_oss_layer(m);
  m->layer = -1;
  model_pick(m, &m->x, &m->picked);
  model_norm(m, "final", &m->picked, &m->picked);
  model_head(m, &m->picked);
}
