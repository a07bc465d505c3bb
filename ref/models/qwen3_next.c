/* qwen3_next.c: a gated delta rule in most layers and gated attention in the others. Norms multiply by 1 + g. Each row
 * goes through k experts, and through one more that all rows share. A gate weighs the shared expert's result.
 *
 * Source: docs/definitions.md, section 7; Yang, Kautz, Hatamizadeh, "Gated delta networks", 2024. */
#include "ref/models/model.h"

static void mlp_dense(model *m) {
  model_linear(m, "mlp.up", &m->h, &m->up, false);
  model_swiglu(m, "mlp.act", &m->up, &m->gated);
  model_linear(m, "mlp.down", &m->gated, &m->y, false);
}

static void mlp_sparse(model *m) {
  model_linear(m, "router", &m->h, &m->router, false);
  model_route(m, "router", &m->router);
  model_permute(m, &m->h, &m->routed);
  model_expert_linear(m, "experts.up", &m->routed, &m->routed_up);
  model_swiglu(m, "experts.act", &m->routed_up, &m->routed_gated);
  model_expert_linear(m, "experts.down", &m->routed_gated, &m->routed_out);
  if (m->config.shared_size > 0) {
    model_linear(m, "shared.up", &m->h, &m->shared_up, false);
    model_swiglu(m, "shared.act", &m->shared_up, &m->shared_gated);
    model_linear(m, "shared.down", &m->shared_gated, &m->shared, false);
    model_linear(m, "shared.gate", &m->h, &m->shared_gate, false);
    model_weigh_shared(m, &m->shared_gate, &m->shared);
  }
  model_combine(m, "moe.out", &m->routed_out, m->config.shared_size > 0 ? &m->shared : NULL, &m->y);
}

static void attention(model *m) {
  model_linear(m, "attn.qkv", &m->h, &m->qkv, false);
  model_heads(m, &m->qkv, &m->q, &m->k, &m->v);
  model_softmax_attention(m, &m->q, &m->out);
  model_linear(m, "attn.gate", &m->h, &m->gate, false);
  model_sigmoid_gate(m, "attn.gated", &m->gate, &m->out);
  model_linear(m, "attn.proj", &m->out, &m->y, false);
}

static void delta_rule(model *m) {
  model_linear(m, "delta.in", &m->h, &m->delta_in, false);
  model_conv(m, "delta.conv", &m->delta_in, &m->conv);
  model_delta_gates(m, &m->delta_in, &m->decay, &m->share);
  model_delta_rule(m, "delta.out", &m->conv, &m->decay, &m->share, &m->delta_out);
  model_delta_norm(m, "delta.norm", &m->delta_in, &m->delta_out);
  model_linear(m, "delta.proj", &m->delta_out, &m->y, false);
}

static void qwen3_next_layer(model *m) {
  model_norm(m, "attn.pre", &m->x, &m->h);
  if (assay_model_is_linear(&m->config, m->layer))
    delta_rule(m);
  else
    attention(m);
  model_residual(m, "attn.residual", &m->y, NULL, &m->x);

  model_norm(m, "mlp.pre", &m->x, &m->h);
  if (assay_model_is_sparse(&m->config, m->layer))
    mlp_sparse(m);
  else
    mlp_dense(m);
  model_residual(m, "mlp.residual", &m->y, NULL, &m->x);
}

void qwen3_next_forward(model *m) {
  model_embed(m, &m->x);
  for (m->layer = 0; m->layer < m->config.layers; ++m->layer)
    qwen3_next_layer(m);
  m->layer = -1;
  model_pick(m, &m->x, &m->picked);
  model_norm(m, "final", &m->picked, &m->picked);
  model_head(m, &m->picked);
}
