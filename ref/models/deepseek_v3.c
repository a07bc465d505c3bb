/* deepseek_v3.c: RMSNorm before each sublayer, latent attention, and SwiGLU. The first layers are dense. In the others
 * a router chooses k of E experts from the best groups, and one more expert is shared by all rows. Its result is added
 * to the weighted sum.
 *
 * Source: docs/definitions.md, section 7; DeepSeek-AI, "DeepSeek-V3 technical report", 2024. */
#include "ref/models/model.h"

static void dense_mlp(model *m) {
  model_linear(m, "mlp.up", &m->h, &m->up, false);
  model_swiglu(m, "mlp.act", &m->up, &m->gated);
  model_linear(m, "mlp.down", &m->gated, &m->y, false);
}

static void sparse_mlp(model *m) {
  model_router(m, "router", &m->h, &m->router);
  model_route(m, "router", &m->router);
  model_permute(m, &m->h, &m->routed);
  model_expert_linear(m, "experts.up", &m->routed, &m->routed_up);
  model_swiglu(m, "experts.act", &m->routed_up, &m->routed_gated);
  model_expert_linear(m, "experts.down", &m->routed_gated, &m->routed_out);
  if (m->config.shared_size > 0) {
    model_linear(m, "shared.up", &m->h, &m->shared_up, false);
    model_swiglu(m, "shared.act", &m->shared_up, &m->shared_gated);
    model_linear(m, "shared.down", &m->shared_gated, &m->shared, false);
  }
  model_combine(m, "moe.out", &m->routed_out, m->config.shared_size > 0 ? &m->shared : NULL, &m->y);
}

static void deepseek_v3_layer(model *m) {
  model_norm(m, "attn.pre", &m->x, &m->h);
  model_latent_query(m, &m->h, &m->q);
  model_latent_entry(m, &m->h);
  model_latent_rotate(m, &m->q);
  model_latent_append(m);
  model_latent_attention(m, &m->q, &m->out);
  model_linear(m, "attn.proj", &m->out, &m->y, false);
  model_residual(m, "attn.residual", &m->y, NULL, &m->x);

  model_norm(m, "mlp.pre", &m->x, &m->h);
  if (assay_model_is_sparse(&m->config, m->layer))
    sparse_mlp(m);
  else
    dense_mlp(m);
  model_residual(m, "mlp.residual", &m->y, NULL, &m->x);
}

void deepseek_v3_forward(model *m) {
  model_embed(m, &m->x);
  for (m->layer = 0; m->layer < m->config.layers; ++m->layer)
    deepseek_v3_layer(m);
  m->layer = -1;
  model_pick(m, &m->x, &m->picked);
  model_norm(m, "final", &m->picked, &m->picked);
  model_head(m, &m->picked);
}
