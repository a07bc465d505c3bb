/* qwen3.c: ref/models/qwen3.c over launchers. It has RMSNorm before each sublayer, grouped heads, each head of q and k
 * normalised before rotation, and SwiGLU. Without qk_norm this is the Llama family.
 *
 * Source: docs/definitions.md, section 7. */
#include "gpu/models/pass.h"

static void qwen3_layer(pass *m) {
  pass_norm(m, "attn.pre", &m->x, &m->h);
  pass_linear(m, "attn.qkv", &m->h, &m->qkv, true);
  pass_heads(m, &m->qkv);
  pass_softmax_attention(m, &m->qkv, &m->out);
  pass_linear(m, "attn.proj", &m->out, &m->y, true);
  pass_residual(m, "attn.residual", &m->y, NULL, &m->x);

  pass_norm(m, "mlp.pre", &m->x, &m->h);
  pass_linear(m, "mlp.up", &m->h, &m->up, true);
  pass_swiglu(m, "mlp.act", &m->up, &m->gated);
  pass_linear(m, "mlp.down", &m->gated, &m->y, true);
  pass_residual(m, "mlp.residual", &m->y, NULL, &m->x);
}

void pass_qwen3(pass *m) {
  pass_embed(m, &m->x);
  const bool done = pass_one_launch(m);
  for (m->layer = 0; m->layer < m->config.layers && !done; ++m->layer)
    qwen3_layer(m);
  m->layer = -1;
  pass_head(m, &m->x, &m->h);
}
