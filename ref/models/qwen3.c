/* qwen3.c: RMSNorm before each sublayer, grouped heads, each head of q and k normalised before rotation, SwiGLU.
 * Without qk_norm this is the Llama family.
 *
 * Source: docs/definitions.md, section 7; Qwen3 technical report, 2025; Touvron et al., "LLaMA", 2023. */
#include "ref/models/model.h"

static void qwen3_layer(model *m) {
  model_norm(m, "attn.pre", &m->x, &m->h);
  model_linear(m, "attn.qkv", &m->h, &m->qkv, true);
  model_heads(m, &m->qkv, &m->q, &m->k, &m->v);
  model_softmax_attention(m, &m->q, &m->out);
  model_linear(m, "attn.proj", &m->out, &m->y, true);
  model_residual(m, "attn.residual", &m->y, NULL, &m->x);

  model_norm(m, "mlp.pre", &m->x, &m->h);
  model_linear(m, "mlp.up", &m->h, &m->up, true);
  model_swiglu(m, "mlp.act", &m->up, &m->gated);
  model_linear(m, "mlp.down", &m->gated, &m->y, true);
  model_residual(m, "mlp.residual", &m->y, NULL, &m->x);
}

void qwen3_forward(model *m) {
  model_embed(m, &m->x);
  for (m->layer = 0; m->layer < m->config.layers; ++m->layer)
    qwen3_layer(m);
  m->layer = -1;
  model_pick(m, &m->x, &m->picked);
  model_norm(m, "final", &m->picked, &m->picked);
  model_head(m, &m->picked);
}
