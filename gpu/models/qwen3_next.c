/* qwen3_next.c: ref/models/qwen3_next.c over launchers. Most layers have a gated delta rule, the others gated
 * attention. Each row goes through k experts, and through one more that all rows share.
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
  if (m->config.shared_size > 0) pass_shared(m);
  pass_combine(m, "moe.out", &m->routed_out, m->config.shared_size > 0 ? &m->weighted : NULL, &m->y);
}

static void attention(pass *m) {
  pass_linear(m, "attn.qkv", &m->h, &m->qkv, true);
  pass_heads(m, &m->qkv);
  pass_softmax_attention(m, &m->qkv, &m->out);
  pass_gate_result(m);
  pass_linear(m, "attn.proj", &m->out, &m->y, true);
}

static void delta_rule(pass *m) {
  pass_delta(m);
  pass_linear(m, "delta.proj", &m->delta_out, &m->y, true);
}

static void qwen3_next_layer(pass *m) {
  pass_norm(m, "attn.pre", &m->x, &m->h);
  if (assay_model_is_linear(&m->config, m->layer))
    delta_rule(m);
  else
    attention(m);
  pass_residual(m, "attn.residual", &m->y, NULL, &m->x);

  pass_norm(m, "mlp.pre", &m->x, &m->h);
  if (assay_model_is_sparse(&m->config, m->layer))
    sparse_mlp(m);
  else
    dense_mlp(m);
  pass_residual(m, "mlp.residual", &m->y, NULL, &m->x);
}

void pass_qwen3_next(pass *m) {
  pass_embed(m, &m->x);
  for (m->layer = 0; m->layer < m->config.layers; ++m->layer)
    qwen3_next_layer(m);
  m->layer = -1;
  pass_head(m, &m->x, &m->h);
}
