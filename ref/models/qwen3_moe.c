/* qwen3_moe.c: the pass of qwen3 with experts in its sparse layers. Each row goes through the k experts that its router
 * chooses, and the router's weights add up their results. Without qk_norm this is the Mixtral family.
 *
 * Source: docs/definitions.md, section 7; Qwen3 technical report, 2025; Jiang et al., "Mixtral of experts", 2024. */
#include "ref/models/model.h"

static void dense_mlp(model *m) {
  model_linear(m, "mlp.up", &m->h, &m->up, true);
  model_swiglu(m, "mlp.act", &m->up, &m->gated);
  model_linear(m, "mlp.down", &m->gated, &m->y, true);
}

static void sparse_mlp(model *m) {
  model_linear(m, "router", &m->h, &m->router, true);
  model_route(m, "router", &m->router);
  model_permute(m, &m->h, &m->routed);
  model_expert_linear(m, "experts.up", &m->routed, &m->routed_up);
  model_swiglu(m, "experts.act", &m->routed_up, &m->routed_gated);
  model_expert_linear(m, "experts.down", &m->routed_gated, &m->routed_out);
  model_combine(m, "moe.out", &m->routed_out, NULL, &m->y);
}

static void qwen3_moe_layer(model *m) {
  model_norm(m, "attn.pre", &m->x, &m->h);
  model_linear(m, "attn.qkv", &m->h, &m->qkv, true);
  model_heads(m, &m->qkv, &m->q, &m->k, &m->v);
  model_softmax_attention(m, &m->q, &m->out);
  model_linear(m, "attn.proj", &m->out, &m->y, true);
  model_residual(m, "attn.residual", &m->y, NULL, &m->x);

  model_norm(m, "mlp.pre", &m->x, &m->h);
  if (assay_model_is_sparse(&m->config, m->layer))
    sparse_mlp(m);
  else
    dense_mlp(m);
  model_residual(m, "mlp.residual", &m->y, NULL, &m->x);
}

void qwen3_moe_forward(model *m) {
  model_embed(m, &m->x);
  for (m->layer = 0; m->layer < m->config.layers; ++m->layer)
    qwen3_moe_layer(m);
  m->layer = -1;
  model_pick(m, &m->x, &m->picked);
  model_norm(m, "final", &m->picked, &m->picked);
  model_head(m, &m->picked);
}
