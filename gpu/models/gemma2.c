/* gemma2.c: ref/models/gemma2.c over launchers. A norm stands before and after each sublayer, and multiplies by 1 + g.
 * The embedding is scaled, scores and logits have soft caps, every second layer a window. The MLP is gated by GELU.
 *
 * Source: docs/definitions.md, section 7. */
#include "gpu/models/pass.h"

static void gemma2_layer(pass *m) {
  pass_norm(m, "attn.pre", &m->x, &m->h);
  pass_linear(m, "attn.qkv", &m->h, &m->qkv, true);
  pass_heads(m, &m->qkv);
  pass_softmax_attention(m, &m->qkv, &m->out);
  pass_linear(m, "attn.proj", &m->out, &m->y, true);
  pass_norm(m, "attn.post", &m->y, &m->z);
  pass_residual(m, "attn.residual", &m->z, NULL, &m->x);

  pass_norm(m, "mlp.pre", &m->x, &m->h);
  pass_linear(m, "mlp.up", &m->h, &m->up, true);
  pass_geglu(m, "mlp.act", &m->up, &m->gated);
  pass_linear(m, "mlp.down", &m->gated, &m->y, true);
  pass_norm(m, "mlp.post", &m->y, &m->z);
  pass_residual(m, "mlp.residual", &m->z, NULL, &m->x);
}

void pass_gemma2(pass *m) {
  pass_embed(m, &m->x);
  for (m->layer = 0; m->layer < m->config.layers; ++m->layer)
    gemma2_layer(m);
  m->layer = -1;
  pass_head(m, &m->x, &m->h);
}
