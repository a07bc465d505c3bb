/* stages.c: the calls of a forward pass that work on whole rows: embedding, norms, linear layers, activations. */
#include "gpu/models/pass.h"

static const pass_param no_params[] = {{NULL, 0}};

void pass_embed(pass *m, const assay_tensor *x) {
  const assay_tensor places = pass_weight(m, "embed_pos", "w");
  const pass_arg args[] = {{"table", pass_weight(m, "embed", "w")},
                           {"ids", m->ids},
                           {"position_table", places},
                           {"positions", places.data != NULL ? m->positions : places},
                           {"y", *x},
                           {.name = NULL}};
  pass_call(m, "embedding", args, no_params);
  pass_take(m, "embed", x, 0, x->shape[1]);
}

static void norm(pass *m, const char *name, const assay_tensor *x, const assay_tensor *y) {
  const pass_param eps[] = {{"eps", m->config.eps}, {NULL, 0}};
  if (m->config.arch == ASSAY_ASYNCT) {
    const pass_arg args[] = {{"x", *x},
                             {"alpha", pass_weight(m, name, "alpha")},
                             {"gamma", pass_weight(m, name, "gamma")},
                             {"beta", pass_weight(m, name, "beta")},
                             {"y", *y},
                             {.name = NULL}};
    pass_call(m, "uclip_norm", args, no_params);
  } else if (m->config.arch == ASSAY_GPT2) {
    const pass_arg args[] = {
        {"x", *x}, {"g", pass_weight(m, name, "g")}, {"b", pass_weight(m, name, "b")}, {"y", *y}, {.name = NULL}};
    pass_call(m, "layer_norm", args, eps);
  } else {
    const pass_arg args[] = {{"x", *x}, {"g", pass_weight(m, name, "g")}, {"y", *y}, {.name = NULL}};
    pass_call(m, "rms_norm", args, eps);
  }
}

void pass_norm(pass *m, const char *name, const assay_tensor *x, const assay_tensor *y) {
  norm(m, name, x, y);
  pass_take(m, name, y, 0, y->shape[1]);
}

void pass_linear(pass *m, const char *name, const assay_tensor *x, const assay_tensor *y, bool biased) {
  const pass_arg args[] = {{"a", *x},
                           {"b", pass_weight(m, name, "w")},
                           {"bias", biased ? pass_weight(m, name, "b") : (assay_tensor){.data = NULL}},
                           {"c", *y},
                           {.name = NULL}};
  pass_call(m, "gemm", args, no_params);
  pass_take(m, name, y, 0, y->shape[1]);
}

void pass_residual(pass *m, const char *name, const assay_tensor *y, const char *linear, const assay_tensor *x) {
  const pass_arg args[] = {{"res", *x},
                           {"y", *y},
                           {"b", linear != NULL ? pass_weight(m, linear, "b") : (assay_tensor){.data = NULL}},
                           {.name = NULL}};
  pass_call(m, "bias_residual", args, no_params);
  pass_take(m, name, x, 0, x->shape[1]);
}

/* Without a bias in the configuration, one of zeros would do; gpt2 has one. */
void pass_bias_gelu_new(pass *m, const char *name, const assay_tensor *up, const char *linear,
                        const assay_tensor *act) {
  const pass_arg args[] = {{"x", *up}, {"b", pass_weight(m, linear, "b")}, {"x_out", *act}, {.name = NULL}};
  pass_call(m, "bias_gelu_new", args, no_params);
  pass_take(m, name, act, 0, act->shape[1]);
}

static void gate(pass *m, const char *op, const char *name, const assay_tensor *up, const assay_tensor *act) {
  const pass_arg args[] = {{"x", *up}, {"y", *act}, {.name = NULL}};
  pass_call(m, op, args, no_params);
  pass_take(m, name, act, 0, act->shape[1]);
}

void pass_swiglu(pass *m, const char *name, const assay_tensor *up, const assay_tensor *act) {
  gate(m, "swiglu", name, up, act);
}

void pass_reglu(pass *m, const char *name, const assay_tensor *up, const assay_tensor *act) {
  gate(m, "reglu", name, up, act);
}

void pass_head(pass *m, const assay_tensor *x, const assay_tensor *h) {
  norm(m, "final", x, h);
  pass_take_picked(m, "final", h);
  if (m->logits.shape[0] == 0) return;
  const pass_arg args[] = {{"x", *h},
                           {"w", pass_weight(m, m->config.tied_head ? "embed" : "head", "w")},
                           {"row_index", m->rows},
                           {"logits", m->logits},
                           {.name = NULL}};
  pass_call(m, "lm_head", args, no_params);
  pass_take(m, "logits", &m->logits, 0, m->logits.shape[1]);
}
