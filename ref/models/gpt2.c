/* gpt2.c: learned positions, LayerNorm before each sublayer, one fused QKV, gelu_new MLP. The biases of the layers that
 * feed the residual stream are added at the stream: res <- round(res + y + b).
 *
 * Source: docs/definitions.md, section 7; Radford et al., "Language models are unsupervised multitask learners". */
#include "ref/models/model.h"

static void gpt2_layer(model *m) {
  model_norm(m, "attn.pre", &m->x, &m->h);
  model_linear(m, "attn.qkv", &m->h, &m->qkv, true);
  model_heads(m, &m->qkv, &m->q, &m->k, &m->v);
  model_softmax_attention(m, &m->q, &m->out);
  model_linear(m, "attn.proj", &m->out, &m->y, false);
  model_residual(m, "attn.residual", &m->y, "attn.proj", &m->x);

  model_norm(m, "mlp.pre", &m->x, &m->h);
  model_linear(m, "mlp.up", &m->h, &m->up, false);
  model_bias_gelu_new(m, "mlp.act", &m->up, "mlp.up", &m->gated);
  model_linear(m, "mlp.down", &m->gated, &m->y, false);
  model_residual(m, "mlp.residual", &m->y, "mlp.down", &m->x);
}

void gpt2_forward(model *m) {
  model_embed(m, &m->x);
  for (m->layer = 0; m->layer < m->config.layers; ++m->layer)
    gpt2_layer(m);
  m->layer = -1;
  model_pick(m, &m->x, &m->picked);
  model_norm(m, "final", &m->picked, &m->picked);
  model_head(m, &m->picked);
}
