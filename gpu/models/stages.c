/* stages.c: the calls of a forward pass that work on whole rows: embedding, norms, linear layers, activations. */
#include <string.h>

#include "gpu/models/pass.h"

static const pass_param no_params[] = {{NULL, 0}};
static const assay_tensor absent = {.data = NULL};

/* For gemma2: takes rows of the table times sqrt(C), one term per row. The product is rounded once. */
static void scaled_embed(pass *m, const assay_tensor *x) {
  const int64_t N = x->shape[0];
  assay_tensor ids = m->ids;
  ids.rank = 2;
  ids.shape[1] = ids.stride[1] = ids.stride[0] = 1;
  ids.shape[0] = m->embed_scale.shape[0] = N;
  const pass_arg args[] = {
      {"z", pass_weight(m, "embed", "w")}, {"pos", ids}, {"w", m->embed_scale}, {"y", *x}, {.name = NULL}};
  pass_call(m, "moe_combine", args, no_params);
}

void pass_embed(pass *m, const assay_tensor *x) {
  const assay_tensor places = pass_weight(m, "embed_pos", "w");
  const pass_arg args[] = {{"table", pass_weight(m, "embed", "w")},
                           {"ids", m->ids},
                           {"position_table", places},
                           {"positions", places.data != NULL ? m->positions : places},
                           {"y", *x},
                           {.name = NULL}};
  m->stage = "embed";
  if (m->embed_scale.data != NULL && !MISTAKE(ENGINE_EMBED_UNSCALED))
    scaled_embed(m, x);
  else
    pass_call(m, "embedding", args, no_params);
  pass_take(m, "embed", x, 0, x->shape[1]);
}

/* ---- norms, and the work that waits for them ----------------------------------------------------------- */

typedef struct norm_words {
  const char *op, *add_op, *factor, *slope, *offset; /* names of arguments; NULL: the operator has no such argument */
  bool eps;
} norm_words;

static const norm_words norms[ASSAY_ARCH_COUNT] = {
    [ASSAY_GPT2] = {"layer_norm", "add_layer_norm", "g", NULL, "b", true},
    [ASSAY_QWEN3] = {"rms_norm", "add_rms_norm", "g", NULL, NULL, true},
    [ASSAY_QWEN3_MOE] = {"rms_norm", "add_rms_norm", "g", NULL, NULL, true},
    [ASSAY_GPT_OSS] = {"rms_norm", "add_rms_norm", "g", NULL, NULL, true},
    [ASSAY_DEEPSEEK_V3] = {"rms_norm", "add_rms_norm", "g", NULL, NULL, true},
    [ASSAY_QWEN3_NEXT] = {"rms_norm", "add_rms_norm", "g", NULL, NULL, true},
    [ASSAY_GEMMA2] = {"rms_norm", "add_rms_norm", "g", NULL, NULL, true},
    [ASSAY_ASYNCT] = {"uclip_norm", "add_uclip_norm", "gamma", "alpha", "beta", false},
};

/* Computes y = norm(x) if res is NULL. Otherwise it computes res += x, y = norm(res) if a variant takes the call, and
 * returns false if none does. */
static bool call_norm(pass *m, const char *name, const assay_tensor *x, const assay_tensor *res,
                      const assay_tensor *y) {
  const norm_words *w = &norms[m->config.arch];
  const bool plus_one = m->config.arch == ASSAY_QWEN3_NEXT || m->config.arch == ASSAY_GEMMA2;
  const bool in_f32 = m->config.arch == ASSAY_GPT_OSS || plus_one;
  const pass_param eps[] = {{"eps", m->config.eps},
                            {in_f32 ? "round_inner" : NULL, 0},
                            {plus_one && !MISTAKE(ENGINE_ONE_PLUS_LOST) ? "plus_one" : NULL, 1},
                            {NULL, 0}};
  if (res != NULL && plus_one) return false; /* add_rms_norm has no such weight */
  pass_arg args[8] = {{"x", *x}, {"y", *y}, {w->factor, pass_weight(m, name, w->factor)}};
  int used = 3;
  if (w->slope != NULL) args[used++] = (pass_arg){w->slope, pass_weight(m, name, w->slope)};
  if (w->offset != NULL) args[used++] = (pass_arg){w->offset, pass_weight(m, name, w->offset)};
  if (res != NULL) args[used++] = (pass_arg){"res", *res};
  m->stage = name;
  if (res != NULL) return pass_call_form(m, PASS_ADD_NORM, w->add_op, args, w->eps ? eps : no_params);
  pass_call(m, w->op, args, w->eps ? eps : no_params);
  return true;
}

/* Returns the bias of the stage `linear` if its product has not added it. */
static assay_tensor late_bias(const pass *m, const char *linear) {
  return linear != NULL && m->choices.form[PASS_BIAS_RESIDUAL] != PASS_OFF ? pass_weight(m, linear, "b") : absent;
}

static void residual_alone(pass *m) {
  const pass_arg args[] = {
      {"res", *m->waiting.x}, {"y", *m->waiting.y}, {"b", late_bias(m, m->waiting.linear)}, {.name = NULL}};
  m->stage = m->waiting.residual;
  pass_call(m, "bias_residual", args, no_params);
}

/* For asynct: computes the waiting norm, the residual, and the norm `name` of it in one call. Returns false if no
 * variant takes it. */
static bool sandwich(pass *m, const char *name, const assay_tensor *y, int64_t layer) {
  const assay_tensor alpha = pass_weight(m, name, "alpha"), gamma = pass_weight(m, name, "gamma"),
                     beta = pass_weight(m, name, "beta");
  m->layer = m->waiting.layer;
  const pass_arg args[] = {{"a", *m->waiting.from},
                           {"res", *m->waiting.x},
                           {"post_alpha", pass_weight(m, m->waiting.post, "alpha")},
                           {"post_gamma", pass_weight(m, m->waiting.post, "gamma")},
                           {"post_beta", pass_weight(m, m->waiting.post, "beta")},
                           {"pre_alpha", alpha},
                           {"pre_gamma", gamma},
                           {"pre_beta", beta},
                           {"out", *y},
                           {.name = NULL}};
  m->stage = m->waiting.residual;
  const bool taken = pass_call_form(m, PASS_POST_PRE_UCLIP, "post_attn_pre_mlp_uclip", args, no_params);
  m->layer = layer;
  return taken;
}

static void product(pass *m, const char *name, const assay_tensor *x, const assay_tensor *y, bool biased);

/* For asynct: computes the waiting product and all that sandwich() computes in one call. Returns false if no variant
 * takes it. */
static bool seam(pass *m, const char *name, const assay_tensor *y, int64_t layer) {
  const char *const post = m->waiting.post;
  const assay_tensor alpha = pass_weight(m, name, "alpha"), gamma = pass_weight(m, name, "gamma"),
                     beta = pass_weight(m, name, "beta");
  m->layer = m->waiting.layer;
  const bool lost = MISTAKE(ENGINE_OFFSET_LOST);
  const pass_arg args[] = {{"a", *m->waiting.last_x},
                           {"b", pass_weight(m, m->waiting.last, "w")},
                           {"res", *m->waiting.x},
                           {"post_alpha", pass_weight(m, post, "alpha")},
                           {"post_gamma", pass_weight(m, post, "gamma")},
                           {"post_beta", pass_weight(m, post, "beta")},
                           {"pre_alpha", alpha},
                           {"pre_gamma", gamma},
                           {"pre_beta", lost ? absent : beta},
                           {"out", *y},
                           {.name = NULL}};
  m->stage = m->waiting.residual;
  const bool taken = pass_call_form(m, PASS_GEMM_SEAM, "gemm_post_pre_uclip", args, no_params);
  m->layer = layer;
  return taken;
}

/* For qwen3: computes the waiting product, the residual, and the norm `name` except for its division, which then waits
 * for the next product. Returns false if no variant takes it. */
static bool undivided(pass *m, const char *name, const assay_tensor *y, int64_t layer) {
  const assay_tensor g = pass_weight(m, name, "g");
  m->layer = m->waiting.layer;
  const pass_arg args[] = {{"a", *m->waiting.last_x},
                           {"b", pass_weight(m, m->waiting.last, "w")},
                           {"res", *m->waiting.x},
                           {"g", g},
                           {"out", *y},
                           {"squares", m->squares},
                           {.name = NULL}};
  m->stage = m->waiting.residual;
  m->waiting.division = pass_call_form(m, PASS_GEMM_NORM, "gemm_residual", args, no_params);
  m->layer = layer;
  return m->waiting.division;
}

/* Computes the product that waits, if there is one, in a call that takes the rest too or alone. Returns whether the
 * call took the rest. */
static bool waiting_product(pass *m, const char *name, const assay_tensor *y) {
  const int64_t layer = m->layer;
  if (m->waiting.last == NULL) return false;
  const bool seamed = m->waiting.post != NULL && seam(m, name, y, layer);
  const bool through = seamed || (m->config.arch == ASSAY_QWEN3 && undivided(m, name, y, layer));
  m->layer = m->waiting.layer;
  if (!through) product(m, m->waiting.last, m->waiting.last_x, m->waiting.last_y, true);
  m->layer = layer;
  m->waiting.last = NULL;
  return through;
}

/* Computes y = norm `name` of the stream, after the work that waits for it. */
static void norm_of_waiting(pass *m, const char *name, const assay_tensor *y) {
  const int64_t layer = m->layer;
  const assay_tensor *const x = m->waiting.x;
  bool through = waiting_product(m, name, y) || (m->waiting.post != NULL && sandwich(m, name, y, layer));
  m->layer = m->waiting.layer;
  const bool biased = late_bias(m, m->waiting.linear).data != NULL;
  if (!through && m->waiting.post != NULL) {
    (void)call_norm(m, m->waiting.post, m->waiting.from, NULL, m->waiting.y);
    pass_take(m, m->waiting.post, m->waiting.y, 0, m->waiting.y->shape[1]);
  }
  m->layer = layer;
  if (MISTAKE(ENGINE_RESIDUAL_AFTER_NORM)) {
    (void)call_norm(m, name, x, NULL, y);
    through = true;
    m->layer = m->waiting.layer;
    residual_alone(m);
    m->layer = layer;
  }
  if (!through && !biased) through = call_norm(m, name, m->waiting.y, x, y);
  m->layer = m->waiting.layer;
  if (!through) residual_alone(m);
  pass_take(m, m->waiting.residual, x, 0, x->shape[1]);
  m->layer = layer;
  m->waiting.post = m->waiting.residual = NULL;
  if (!through) (void)call_norm(m, name, x, NULL, y);
}

static void norm(pass *m, const char *name, const assay_tensor *x, const assay_tensor *y) {
  if (m->waiting.residual != NULL)
    norm_of_waiting(m, name, y);
  else
    (void)call_norm(m, name, x, NULL, y);
}

void pass_norm(pass *m, const char *name, const assay_tensor *x, const assay_tensor *y) {
  const bool waits = m->choices.form[PASS_POST_PRE_UCLIP] != PASS_OFF || m->waiting.last != NULL;
  if (m->config.arch == ASSAY_ASYNCT && strstr(name, ".post") != NULL && waits) {
    m->waiting.post = name;
    m->waiting.from = x;
    return;
  }
  norm(m, name, x, y);
  if (!m->waiting.division) pass_take(m, name, y, 0, y->shape[1]);
}

void pass_residual(pass *m, const char *name, const assay_tensor *y, const char *linear, const assay_tensor *x) {
  m->waiting.residual = name;
  m->waiting.linear = linear;
  m->waiting.y = y;
  m->waiting.x = x;
  m->waiting.layer = m->layer;
}

/* Chooses the tokens of a greedy step by lm_head_argmax, where the form takes the call. Their logits go where the first
 * of all logits would be. With `auto` the variant is wgmma: others are slower than two calls. */
static bool head_argmax(pass *m, const assay_tensor *h) {
  assay_tensor best = m->logits;
  best.rank = 1;
  best.stride[0] = 1;
  const pass_arg args[] = {{"x", *h},
                           {"w", pass_weight(m, m->config.tied_head ? "embed" : "head", "w")},
                           {"row_index", m->rows},
                           {"token", m->token},
                           {"status", m->token_status},
                           {"logit", best},
                           {.name = NULL}};
  const pass_param params[] = {{NULL, 0}};
  m->stage = "token";
  const char *by = m->choices.form[PASS_LM_HEAD_ARGMAX] == PASS_ON ? NULL : "wgmma";
  if (!pass_would_call_by(m, PASS_LM_HEAD_ARGMAX, "lm_head_argmax", args, params, by)) return false;
  pass_call(m, "lm_head_argmax", args, params);
  return true;
}

void pass_head(pass *m, const assay_tensor *x, const assay_tensor *h) {
  norm(m, "final", x, h);
  pass_take_picked(m, "final", h);
  if (m->logits.shape[0] == 0) return;
  m->argmax = m->greedy && head_argmax(m, h);
  if (!m->argmax) pass_logits(m, h);
}

void pass_logits(pass *m, const assay_tensor *h) {
  const pass_arg args[] = {{"x", *h},
                           {"w", pass_weight(m, m->config.tied_head ? "embed" : "head", "w")},
                           {"row_index", m->rows},
                           {"logits", m->logits},
                           {.name = NULL}};
  const bool caps = m->config.logit_cap > 0 && !MISTAKE(ENGINE_LOGITS_UNCAPPED);
  const pass_param params[] = {{caps ? "softcap" : NULL, m->config.logit_cap}, {NULL, 0}};
  m->stage = "logits";
  pass_call(m, "lm_head", args, params);
  pass_take(m, "logits", &m->logits, 0, m->logits.shape[1]);
}

/* ---- linear layers, activations ------------------------------------------------------------------------ */

enum { FEW_ROWS = 32 };   /* most rows for which forms of products, where they are auto, take one */
enum { SOME_ROWS = 128 }; /* most rows of gemm_glu/parts */

/* Calls gemm_glu, or with `ask` alone says whether the form would. x: the rows of mlp.up; y: those of mlp.act. With
 * more than FEW_ROWS rows, `auto` takes the variant `parts` alone, and with more than SOME_ROWS `wgmma`: others are
 * slower than two calls. In an invariant step it takes `chain` alone, which has the bits of two calls. */
static bool glu(pass *m, const assay_tensor *x, const assay_tensor *y, bool ask) {
  const bool reglu = (m->config.arch == ASSAY_ASYNCT) != MISTAKE(ENGINE_OTHER_ACTIVATION);
  const bool divides = m->waiting.division && !MISTAKE(ENGINE_DIVISION_LOST);
  const pass_arg args[] = {{"a", *x},
                           {"b", pass_weight(m, "mlp.up", "w")},
                           {"y", *y},
                           {"squares", divides ? m->squares : absent},
                           {.name = NULL}};
  const pass_param params[] = {{"act", reglu}, {"eps", m->config.eps}, {NULL, 0}};
  m->stage = "mlp.act";
  const bool any = m->choices.form[PASS_GEMM_GLU] == PASS_ON || x->shape[0] <= FEW_ROWS;
  const char *const many = x->shape[0] <= SOME_ROWS ? "parts" : "wgmma";
  const char *const by = pass_wants_chain(m) ? "chain" : any ? NULL : many;
  if (ask) return pass_would_call_by(m, PASS_GEMM_GLU, "gemm_glu", args, params, by);
  pass_call(m, "gemm_glu", args, params);
  m->waiting.division = false;
  return true;
}

/* Tells whether the product mlp.up waits for its activation, to be one call with it. */
static bool waits_for_activation(pass *m, const assay_tensor *x) {
  if (m->choices.form[PASS_GEMM_GLU] == PASS_OFF || m->config.arch == ASSAY_GPT2 || m->config.mlp_bias) return false;
  return glu(m, x, &m->gated, true);
}

/* Tells whether the product is the last of a sublayer of asynct or qwen3, and waits for the norms after it. The last
 * one of qwen3 does not: lm_head reads rows that are divided. */
static bool waits_for_norms(const pass *m, const char *name, const assay_tensor *x) {
  const bool qwen3 = m->config.arch == ASSAY_QWEN3;
  const pass_switch form = m->choices.form[qwen3 ? PASS_GEMM_NORM : PASS_GEMM_SEAM];
  const bool down = strcmp(name, "mlp.down") == 0, last = down || strcmp(name, "attn.proj") == 0;
  if (form == PASS_OFF || !last || (!qwen3 && m->config.arch != ASSAY_ASYNCT)) return false;
  if (qwen3 && down && m->layer + 1 == m->config.layers) return false;
  return pass_weight(m, name, "b").data == NULL && (form == PASS_ON || x->shape[0] <= FEW_ROWS);
}

void pass_linear(pass *m, const char *name, const assay_tensor *x, const assay_tensor *y, bool biased) {
  if (strcmp(name, "mlp.up") == 0 && waits_for_activation(m, x)) {
    m->waiting.product = x;
    return;
  }
  if (!waits_for_norms(m, name, x)) {
    product(m, name, x, y, biased);
    return;
  }
  m->waiting.last = name;
  m->waiting.last_x = x;
  m->waiting.last_y = y;
}

/* Computes a product of rows whose norm lacks its division, and divides. */
static void divided_product(pass *m, const char *name, const assay_tensor *x, const assay_tensor *y, bool biased) {
  const pass_arg args[] = {{"a", *x},
                           {"b", pass_weight(m, name, "w")},
                           {"squares", m->squares},
                           {"bias", biased ? pass_weight(m, name, "b") : absent},
                           {"c", *y},
                           {.name = NULL}};
  const pass_param params[] = {{"eps", m->config.eps}, {NULL, 0}};
  m->stage = name;
  m->waiting.division = false;
  pass_call(m, "rms_gemm", args, params);
  pass_take(m, name, y, 0, y->shape[1]);
}

/* Computes a product. A bias that the next stage adds belongs to the product if that form is off. */
static void product(pass *m, const char *name, const assay_tensor *x, const assay_tensor *y, bool biased) {
  if (m->waiting.division && x == &m->h && !MISTAKE(ENGINE_DIVISION_LOST)) {
    divided_product(m, name, x, y, biased);
    return;
  }
  const bool up = strcmp(name, "mlp.up") == 0;
  const bool early = !biased && m->choices.form[up ? PASS_BIAS_GELU_NEW : PASS_BIAS_RESIDUAL] == PASS_OFF;
  const assay_tensor bias = biased || early ? pass_weight(m, name, "b") : absent;
  const pass_arg args[] = {{"a", *x}, {"b", pass_weight(m, name, "w")}, {"bias", bias}, {"c", *y}, {.name = NULL}};
  m->stage = name;
  if (pass_is_narrow(m, name))
    pass_narrow_linear(m, name, x, &bias, y);
  else
    pass_call(m, "gemm", args, no_params);
  if (!early)
    pass_take(m, name, y, 0, y->shape[1]);
  else
    pass_take(m,
              up                              ? "mlp.up.biased"
              : strcmp(name, "mlp.down") == 0 ? "mlp.down.biased"
                                              : "attn.proj.biased",
              y, 0, y->shape[1]);
}

void pass_bias_gelu_new(pass *m, const char *name, const assay_tensor *up, const char *linear,
                        const assay_tensor *act) {
  const assay_tensor bias = pass_weight(m, linear, "b");
  const bool late = m->choices.form[PASS_BIAS_GELU_NEW] != PASS_OFF && bias.data != NULL;
  const pass_arg args[] = {{"x", *up}, {"b", late ? bias : m->zeros}, {"x_out", *act}, {.name = NULL}};
  m->stage = name;
  pass_call(m, "bias_gelu_new", args, no_params);
  pass_take(m, name, act, 0, act->shape[1]);
}

static void gate(pass *m, const char *op, const char *name, const assay_tensor *up, const assay_tensor *act,
                 const pass_param *params) {
  const pass_arg args[] = {{"x", *up}, {"y", *act}, {.name = NULL}};
  const assay_tensor *x = m->waiting.product;
  m->waiting.product = NULL;
  m->stage = name;
  if (x != NULL)
    (void)glu(m, x, act, false);
  else
    pass_call(m, op, args, params);
  pass_take(m, name, act, 0, act->shape[1]);
}

void pass_swiglu(pass *m, const char *name, const assay_tensor *up, const assay_tensor *act) {
  gate(m, "swiglu", name, up, act, no_params);
}

void pass_clamped_swiglu(pass *m, const char *name, const assay_tensor *up, const assay_tensor *act) {
  const pass_param params[] = {{"limit", m->config.act_limit}, {"alpha", 1.702}, {"beta", 1}, {"layout", 1}, {NULL, 0}};
  gate(m, "swiglu", name, up, act, params);
}

void pass_reglu(pass *m, const char *name, const assay_tensor *up, const assay_tensor *act) {
  gate(m, "reglu", name, up, act, no_params);
}

void pass_geglu(pass *m, const char *name, const assay_tensor *up, const assay_tensor *act) {
  const pass_param params[] = {{"alpha", 1.5957691216057308},
                               {"cubic", MISTAKE(ENGINE_CUBIC_LOST) ? 0 : 0.044715},
                               {NULL, 0}}; /* sqrt(8 / pi) */
  gate(m, "swiglu", name, up, act, params);
}
