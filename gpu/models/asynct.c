/* asynct.c: ref/models/asynct.c over launchers. Nothing here looks at a whole row: norms clip each channel, and
 * attention gates each key. A norm stands before and after each sublayer: x <- x + post(sublayer(pre(x))).
 *
 * Source: docs/definitions.md, section 7. */
#include "gpu/models/pass.h"

static void asynct_layer(pass *m) {
  pass_norm(m, "attn.pre", &m->x, &m->h);
  pass_linear(m, "attn.qkv", &m->h, &m->qkv, true);
  pass_heads(m, &m->qkv);
  pass_gate_attention(m, &m->qkv, &m->out);
  pass_linear(m, "attn.proj", &m->out, &m->y, true);
  pass_norm(m, "attn.post", &m->y, &m->z);
  pass_residual(m, "attn.residual", &m->z, NULL, &m->x);

  pass_norm(m, "mlp.pre", &m->x, &m->h);
  pass_linear(m, "mlp.up", &m->h, &m->up, true);
  pass_reglu(m, "mlp.act", &m->up, &m->gated);
  pass_linear(m, "mlp.down", &m->gated, &m->y, true);
  pass_norm(m, "mlp.post", &m->y, &m->z);
  pass_residual(m, "mlp.residual", &m->z, NULL, &m->x);
}

void pass_asynct(pass *m) {
  pass_embed(m, &m->x);
  const bool done = pass_one_launch(m);
  for (m->layer = 0; m->layer < m->config.layers && !done; ++m->layer)
    asynct_layer(m);
  m->layer = -1;
  pass_head(m, &m->x, &m->h);
}
