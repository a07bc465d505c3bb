/* gpt2.c: ref/models/gpt2.c over launchers. It has learned positions, LayerNorm before each sublayer, one fused QKV,
 * and a gelu_new MLP. The biases of what enters the residual stream are added there: res <- round(res + y + b).
 *
 * Source: docs/definitions.md, section 7. */
#include "gpu/models/pass.h"

static void gpt2_layer(pass *m) {
  pass_norm(m, "attn.pre", &m->x, &m->h);
  pass_linear(m, "attn.qkv", &m->h, &m->qkv, true);
  pass_heads(m, &m->qkv);
  pass_softmax_attention(m, &m->qkv, &m->out);
  pass_linear(m, "attn.proj", &m->out, &m->y, false);
  pass_residual(m, "attn.residual", &m->y, "attn.proj", &m->x);

  pass_norm(m, "mlp.pre", &m->x, &m->h);
  pass_linear(m, "mlp.up", &m->h, &m->up, false);
  pass_bias_gelu_new(m, "mlp.act", &m->up, "mlp.up", &m->gated);
  pass_linear(m, "mlp.down", &m->gated, &m->y, false);
  pass_residual(m, "mlp.residual", &m->y, "mlp.down", &m->x);
}

void pass_gpt2(pass *m) {
  pass_embed(m, &m->x);
  for (m->layer = 0; m->layer < m->config.layers; ++m->layer)
    gpt2_layer(m);
  m->layer = -1;
  pass_head(m, &m->x, &m->h);
}
