/* gemma2.c: a norm stands before and after each sublayer: x <- x + post(sublayer(pre(x))), and multiplies by 1 + g. The
 * embedding is multiplied by sqrt(C). Scores and logits have soft caps, and every second layer has a window. The MLP is
 * gated by GELU.
 *
 * Source: docs/definitions.md, section 7; Gemma Team, "Gemma 2", 2024. */
#include "ref/models/model.h"

static void gemma2_layer(model *m) {
  model_norm(m, "attn.pre", &m->x, &m->h);
  model_linear(m, "attn.qkv", &m->h, &m->qkv, true);
  model_heads(m, &m->qkv, &m->q, &m->k, &m->v);
  model_softmax_attention(m, &m->q, &m->out);
  model_linear(m, "attn.proj", &m->out, &m->y, true);
  model_norm(m, "attn.post", &m->y, &m->y);
  model_residual(m, "attn.residual", &m->y, NULL, &m->x);

  model_norm(m, "mlp.pre", &m->x, &m->h);
  model_linear(m, "mlp.up", &m->h, &m->up, true);
  model_geglu(m, "mlp.act", &m->up, &m->gated);
  model_linear(m, "mlp.down", &m->gated, &m->y, true);
  model_norm(m, "mlp.post", &m->y, &m->y);
  model_residual(m, "mlp.residual", &m->y, NULL, &m->x);
}

void gemma2_forward(model *m) {
  model_embed(m, &m->x);
  for (m->layer = 0; m->layer < m->config.layers; ++m->layer)
    gemma2_layer(m);
  m->layer = -1;
  model_pick(m, &m->x, &m->picked);
  model_norm(m, "final", &m->picked, &m->picked);
  model_head(m, &m->picked);
}
