/* heads.c: the operations on heads: they are normalised and rotated where they lie in the fused rows, cached, and
 * attended over. */
#include "gpu/models/pass.h"

static const assay_tensor no_tensor = {.data = NULL};

typedef struct head_views {
  assay_tensor q, k, v;
} head_views;

static head_views heads_of(const pass *m, const assay_tensor *qkv) {
  const int64_t H = m->config.heads, H_kv = m->config.kv_heads, D = m->config.head_size;
  return (head_views){pass_view(m, qkv, 0, H), pass_view(m, qkv, H * D, H_kv), pass_view(m, qkv, (H + H_kv) * D, H_kv)};
}

/* Returns this layer's pool. */
static assay_tensor pool_of(const pass *m, const assay_tensor *pool) {
  assay_tensor one = *pool;
  one.data = (unsigned char *)pool->data + m->layer * pool->stride[0] * assay_dtype_size(pool->dtype);
  one.rank = 4;
  for (int32_t a = 0; a < 4; ++a) {
    one.shape[a] = pool->shape[a + 1];
    one.stride[a] = pool->stride[a + 1];
  }
  return one;
}

static assay_tensor scale_of(const pass *m, const char *name) {
  return m->config.kv_dtype != m->config.act_dtype ? pass_weight(m, "attn", name) : no_tensor;
}

static assay_tensor first_of(const assay_tensor *vector, int64_t count) {
  assay_tensor t = *vector;
  t.shape[0] = count;
  return t;
}

/* Passes q or k to a tap: channels of the fused rows. */
static void take_heads(pass *m, const char *name, const assay_tensor *qkv, int64_t first_head, int64_t count) {
  pass_take(m, name, qkv, first_head * m->config.head_size, count * m->config.head_size);
}

/* Normalises one head's rows, by the norm of whole rows. */
static void norm_one_head(pass *m, const char *name, const assay_tensor *qkv, int64_t head) {
  const int64_t D = m->config.head_size;
  const bool uclip = m->config.arch == ASSAY_ASYNCT;
  assay_tensor x = pass_view(m, qkv, head * D, 1);
  x.rank = 2;
  x.shape[1] = D;
  x.stride[1] = 1;
  const pass_arg rms[] = {{"x", x}, {"y", x}, {"g", pass_weight(m, name, "g")}, {.name = NULL}};
  const pass_arg clip[] = {{"x", x},
                           {"y", x},
                           {"alpha", pass_weight(m, name, "alpha")},
                           {"gamma", pass_weight(m, name, "gamma")},
                           {.name = NULL}};
  const pass_param eps[] = {{"eps", m->config.eps}, {NULL, 0}}, none[] = {{NULL, 0}};
  pass_call(m, uclip ? "uclip_norm" : "rms_norm", uclip ? clip : rms, uclip ? none : eps);
}

/* Normalises all heads of q, or of k, in one call: a mean for each D channels, and weights 1 + g that are tiled. */
static void norm_all_heads(pass *m, const assay_tensor *qkv, int64_t first, int64_t heads) {
  const int64_t D = m->config.head_size;
  assay_tensor x = *qkv, g = first_of(&m->tiled, heads * D);
  x.data = (unsigned char *)qkv->data + first * D * assay_dtype_size(qkv->dtype);
  x.shape[1] = heads * D;
  g.rank = 1;
  g.stride[0] = 1;
  g.data =
      (unsigned char *)m->tiled.data + (m->layer * m->tiled.stride[0] + first * D) * assay_dtype_size(m->tiled.dtype);
  const pass_arg args[] = {{"x", x}, {"y", x}, {"g", g}, {.name = NULL}};
  const pass_param params[] = {
      {"eps", m->config.eps}, {"plus_one", 1}, {"round_inner", 0}, {"group", (double)D}, {NULL, 0}};
  pass_call(m, "rms_norm", args, params);
}

enum { HEAD_WEIGHTS = 4 };

/* Writes the weights of the norms of q and k to args. */
static void head_weights(const pass *m, pass_arg args[HEAD_WEIGHTS]) {
  const char *gamma = m->config.arch == ASSAY_ASYNCT ? "gamma" : "g";
  args[0] = (pass_arg){"q_gamma", pass_weight(m, "attn.q_norm", gamma)};
  args[1] = (pass_arg){"k_gamma", pass_weight(m, "attn.k_norm", gamma)};
  args[2] = (pass_arg){"q_alpha", pass_weight(m, "attn.q_norm", "alpha")};
  args[3] = (pass_arg){"k_alpha", pass_weight(m, "attn.k_norm", "alpha")};
}

static void norm_heads(pass *m, const assay_tensor *qkv, const head_views *at) {
  const bool uclip = m->config.arch == ASSAY_ASYNCT;
  pass_arg args[2 + HEAD_WEIGHTS + 1] = {{"q", at->q}, {"k", at->k}};
  head_weights(m, args + 2);
  const pass_param rms[] = {{"kind", 0}, {"eps", m->config.eps}, {NULL, 0}}, clip[] = {{"kind", 1}, {NULL, 0}};
  m->stage = "attn.qk_norm";
  if (m->config.arch == ASSAY_QWEN3_NEXT) {
    norm_all_heads(m, qkv, 0, m->config.heads);
    norm_all_heads(m, qkv, m->config.heads, m->config.kv_heads);
    return;
  }
  if (pass_call_form(m, PASS_QK_NORM, "qk_norm", args, uclip ? clip : rms)) return;
  for (int64_t h = 0; h < m->config.heads + m->config.kv_heads; ++h)
    norm_one_head(m, h < m->config.heads ? "attn.q_norm" : "attn.k_norm", qkv, h);
}

static void rotate(pass *m, const head_views *at) {
  const pass_arg args[] = {
      {"q", at->q}, {"k", at->k}, {"cos", m->cosine}, {"sin", m->sine}, {"positions", m->positions}, {.name = NULL}};
  const pass_param style[] = {{"style", m->config.rope_style == ASSAY_ROPE_INTERLEAVED}, {NULL, 0}};
  m->stage = "attn.rope";
  pass_call(m, "rope", args, style);
}

/* Returns the rotated keys [N, H_kv D] if a tap wants them. They are placed where the result of attention will be. */
static assay_tensor seen_keys(const pass *m, const head_views *at) {
  const int64_t width = at->k.shape[1] * at->k.shape[2];
  if (!pass_wants(m, "attn.k")) return no_tensor;
  return (assay_tensor){
      .data = m->out.data, .dtype = at->k.dtype, .rank = 2, .shape = {at->k.shape[0], width}, .stride = {width, 1}};
}

enum { APPEND_ARGS = 12 };

/* Writes the arguments of rope_append to args. keys: where the rotated keys go, without data if no tap wants them. */
static void append_args(const pass *m, const head_views *at, const assay_tensor *keys, pass_arg args[APPEND_ARGS]) {
  const assay_tensor k_out = {.data = keys->data,
                              .dtype = at->k.dtype,
                              .rank = 3,
                              .shape = {at->k.shape[0], at->k.shape[1], at->k.shape[2]},
                              .stride = {keys->stride[0], at->k.shape[2], 1}};
  const pass_arg list[APPEND_ARGS] = {{"q", at->q},
                                      {"k", at->k},
                                      {"v", at->v},
                                      {"cos", m->cosine},
                                      {"sin", m->sine},
                                      {"positions", m->positions},
                                      {"slots", m->slots},
                                      {"k_cache", pool_of(m, &m->k_pool)},
                                      {"v_cache", pool_of(m, &m->v_pool)},
                                      {"k_scale", scale_of(m, "k_scale")},
                                      {"v_scale", scale_of(m, "v_scale")},
                                      {"k_out", k_out}};
  for (int i = 0; i < APPEND_ARGS; ++i)
    args[i] = list[i];
}

/* Rotates and appends in one call, if the form is on and a variant takes the call. The keys in the fused rows then stay
 * as they are. keys: the rotated keys, without data if no tap wants them. Returns false if nothing was done. */
static bool rotate_and_append(pass *m, const head_views *at, assay_tensor *keys) {
  pass_arg args[APPEND_ARGS + 1] = {{.name = NULL}};
  const pass_param params[] = {
      {"style", m->config.rope_style == ASSAY_ROPE_INTERLEAVED}, {"scale_per_head", 1}, {NULL, 0}};
  *keys = seen_keys(m, at);
  if (m->config.rotated == 0 || m->attention != PASS_SEPARATE) return false;
  append_args(m, at, keys, args);
  m->stage = "attn.rope";
  return pass_call_form(m, PASS_ROPE_APPEND, "rope_append", args, params);
}

/* With more rows the operators apart are faster (docs/log/2026-11-28-h200-step-heads.md). */
enum { MOST_ROWS_AT_ONCE = 1024 };

/* Does the same after the norms of q and k, all in one call. The norms then have no taps. `auto` leaves a step to the
 * operators apart if a tap wants the norms, or if there are many rows. */
static bool norm_rotate_and_append(pass *m, const head_views *at, assay_tensor *keys) {
  const bool tapped = pass_wants(m, "attn.q_norm") || pass_wants(m, "attn.k_norm");
  const pass_switch form = m->choices.form[PASS_NORM_ROPE_APPEND];
  pass_arg args[APPEND_ARGS + HEAD_WEIGHTS + 1] = {{.name = NULL}};
  const pass_param params[] = {{"style", m->config.rope_style == ASSAY_ROPE_INTERLEAVED},
                               {"scale_per_head", 1},
                               {"kind", m->config.arch == ASSAY_ASYNCT},
                               {"eps", m->config.eps},
                               {NULL, 0}};
  *keys = seen_keys(m, at);
  if (!m->config.qk_norm || m->config.arch == ASSAY_QWEN3_NEXT) return false;
  if (m->config.rotated == 0 || m->attention != PASS_SEPARATE) return false;
  if (form == PASS_AUTO && (tapped || at->q.shape[0] > MOST_ROWS_AT_ONCE)) return false;
  append_args(m, at, keys, args);
  head_weights(m, args + APPEND_ARGS);
  m->stage = "attn.rope";
  return pass_call_form(m, PASS_NORM_ROPE_APPEND, "norm_rope_append", args, params);
}

/* ---- attention that also appends, and rotates ---------------------------------------------------------- */

enum { FUSED_ARGS = 20, FUSED_PARAMS = 8 };

typedef struct fused_words {
  pass_arg args[FUSED_ARGS];
  pass_param params[FUSED_PARAMS];
} fused_words;

static void fused_shared(const pass *m, int at, fused_words *w) {
  const bool gate = m->config.arch == ASSAY_ASYNCT;
  const pass_arg list[] = {{"slots", m->slots},
                           {"k_cache", pool_of(m, &m->k_pool)},
                           {"v_cache", pool_of(m, &m->v_pool)},
                           {"k_scale", scale_of(m, "k_scale")},
                           {"v_scale", scale_of(m, "v_scale")},
                           {"block_table", m->table},
                           {"kv_len", m->kv_len},
                           {"taps", gate ? pass_weight(m, "attn", "taps") : first_of(&m->no_taps, 1)},
                           {"gamma", gate ? pass_weight(m, "attn", "gamma") : first_of(&m->no_taps, m->config.heads)},
                           {"out", pass_view(m, &m->out, 0, m->config.heads)},
                           {.name = NULL}};
  for (size_t i = 0; i < sizeof list / sizeof list[0]; ++i)
    w->args[at + (int)i] = list[i];
  const pass_param params[] = {{"kind", gate ? 0 : 1},
                               {"scale_per_head", 1},
                               {"style", m->config.rope_style == ASSAY_ROPE_INTERLEAVED},
                               {"lo", m->config.gate_lo},
                               {"hi", m->config.gate_hi},
                               {"relu_pre", m->config.gate_relu_pre},
                               {NULL, 0}};
  for (size_t i = 0; i < sizeof params / sizeof params[0]; ++i)
    w->params[i] = params[i];
}

static fused_words append_words(const pass *m, const head_views *at) {
  fused_words w = {{{.name = NULL}}, {{NULL, 0}}};
  w.args[0] = (pass_arg){"q", at->q};
  w.args[1] = (pass_arg){"k_new", at->k};
  w.args[2] = (pass_arg){"v_new", at->v};
  fused_shared(m, 3, &w);
  w.params[2] = w.params[3]; /* the operator has no style */
  w.params[3] = w.params[4];
  w.params[4] = w.params[5];
  w.params[5] = (pass_param){NULL, 0};
  return w;
}

static fused_words whole_words(const pass *m, const assay_tensor *qkv) {
  fused_words w = {{{.name = NULL}}, {{NULL, 0}}};
  w.args[0] = (pass_arg){"qkv", pass_view(m, qkv, 0, m->config.heads + 2 * m->config.kv_heads)};
  w.args[1] = (pass_arg){"cos", m->cosine};
  w.args[2] = (pass_arg){"sin", m->sine};
  fused_shared(m, 3, &w);
  return w;
}

/* Chooses the form of attention. The fused operators are for one new token per request. */
static void choose_attention(pass *m, const assay_tensor *qkv, const head_views *at) {
  m->attention = PASS_SEPARATE;
  m->stage = "attn.out";
  if (!m->decode) return;
  if (m->config.rotated > 0 && !m->config.qk_norm && m->choices.form[PASS_MMHA] != PASS_OFF) {
    const fused_words w = whole_words(m, qkv);
    if (pass_would_call(m, PASS_MMHA, "mmha", w.args, w.params)) m->attention = PASS_WHOLE;
  }
  if (m->attention == PASS_SEPARATE && m->choices.form[PASS_APPEND] != PASS_OFF) {
    const fused_words w = append_words(m, at);
    if (pass_would_call(m, PASS_APPEND, "attention_append", w.args, w.params)) m->attention = PASS_APPENDS;
  }
}

/* Runs a fused operator. Returns false if attention is a call of its own. */
static bool attend_fused(pass *m, const assay_tensor *qkv) {
  if (m->attention == PASS_SEPARATE) return false;
  const head_views at = heads_of(m, qkv);
  const fused_words w = m->attention == PASS_WHOLE ? whole_words(m, qkv) : append_words(m, &at);
  m->stage = "attn.out";
  pass_call(m, m->attention == PASS_WHOLE ? "mmha" : "attention_append", w.args, w.params);
  return true;
}

void pass_heads(pass *m, const assay_tensor *qkv) {
  const head_views at = heads_of(m, qkv);
  const int64_t H = m->config.heads, H_kv = m->config.kv_heads;
  choose_attention(m, qkv, &at);
  assay_tensor keys;
  bool appended = norm_rotate_and_append(m, &at, &keys);
  if (m->config.qk_norm && (!appended || MISTAKE(ENGINE_NORMED_AGAIN))) {
    norm_heads(m, qkv, &at);
    take_heads(m, "attn.q_norm", qkv, 0, H);
    take_heads(m, "attn.k_norm", qkv, H, H_kv);
  }
  if (m->attention == PASS_WHOLE) return;
  if (!appended) appended = rotate_and_append(m, &at, &keys);
  if (!appended && m->config.rotated > 0) rotate(m, &at);
  take_heads(m, "attn.q", qkv, 0, H);
  if (!appended)
    take_heads(m, "attn.k", qkv, H, H_kv);
  else if (keys.data != NULL)
    pass_take(m, "attn.k", &keys, 0, keys.shape[1]);
  take_heads(m, "attn.v", qkv, H + H_kv, H_kv);
  if ((appended && !MISTAKE(ENGINE_APPENDED_AGAIN)) || m->attention == PASS_APPENDS) return;
  const pass_arg args[] = {{"k", at.k},
                           {"v", at.v},
                           {"slots", m->slots},
                           {"k_cache", pool_of(m, &m->k_pool)},
                           {"v_cache", pool_of(m, &m->v_pool)},
                           {"k_scale", scale_of(m, "k_scale")},
                           {"v_scale", scale_of(m, "v_scale")},
                           {.name = NULL}};
  const pass_param per_head[] = {{"scale_per_head", 1}, {NULL, 0}};
  m->stage = "attn.append";
  pass_call(m, "kv_append", args, per_head);
}

/* ---- attention --------------------------------------------------------------------------------------- */

enum { SHARED_ARGS = 9 };

/* Says whether attention has one row per request and no cu_q. In invariant steps decoded tokens are prompts of one
 * token, so that one variant takes every row. */
static bool by_decode(const pass *m) {
  return m->tails || (m->decode && (!m->invariant || MISTAKE(ENGINE_INVARIANT_BY_DECODE)));
}

static void shared_args(const pass *m, const assay_tensor *qkv, const assay_tensor *out, pass_arg args[SHARED_ARGS]) {
  assay_tensor to = pass_view(m, out, 0, m->config.heads);
  const pass_arg list[SHARED_ARGS] = {{"q", pass_view(m, qkv, 0, m->config.heads)},
                                      {"k_cache", pool_of(m, &m->k_pool)},
                                      {"v_cache", pool_of(m, &m->v_pool)},
                                      {"k_scale", scale_of(m, "k_scale")},
                                      {"v_scale", scale_of(m, "v_scale")},
                                      {"block_table", m->tails ? m->tail_table : m->table},
                                      {"kv_len", m->tails ? m->tail_len : m->kv_len},
                                      {"cu_q", by_decode(m) ? no_tensor : m->cu_q},
                                      {"out", to}};
  for (int i = 0; i < SHARED_ARGS; ++i)
    args[i] = list[i];
}

void pass_softmax_attention(pass *m, const assay_tensor *qkv, const assay_tensor *out) {
  pass_arg args[SHARED_ARGS + 2] = {{.name = NULL}};
  const pass_param params[] = {{"scale_per_head", 1},
                               {"window", (double)assay_model_window(&m->config, m->layer)},
                               {"scale", m->config.score_scale}, /* 0: 1 / sqrt(D) */
                               {"softcap", m->config.score_cap},
                               {NULL, 0}};
  shared_args(m, qkv, out, args);
  args[SHARED_ARGS] = (pass_arg){"sink", pass_weight(m, "attn", "sinks")};
  m->stage = "attn.out";
  if (!attend_fused(m, qkv)) pass_call(m, "softmax_attention", args, params);
  pass_take(m, "attn.out", out, 0, out->shape[1]);
}

void pass_gate_attention(pass *m, const assay_tensor *qkv, const assay_tensor *out) {
  pass_arg args[SHARED_ARGS + 3] = {{.name = NULL}};
  const pass_param params[] = {{"scale_per_head", 1},
                               {"lo", m->config.gate_lo},
                               {"hi", m->config.gate_hi},
                               {"relu_pre", m->config.gate_relu_pre},
                               {NULL, 0}};
  shared_args(m, qkv, out, args);
  args[SHARED_ARGS] = (pass_arg){"taps", pass_weight(m, "attn", "taps")};
  args[SHARED_ARGS + 1] = (pass_arg){"gamma", pass_weight(m, "attn", "gamma")};
  m->stage = "attn.out";
  if (!attend_fused(m, qkv)) pass_call(m, "gate_attention", args, params);
  pass_take(m, "attn.out", out, 0, out->shape[1]);
}

/* ---- copy-on-write ----------------------------------------------------------------------------------- */

/* Returns a pool as 16-bit elements. Copying moves bits, so two fp8 codes are copied as one 16-bit element. */
static assay_tensor as_wide(const assay_tensor *pool) {
  assay_tensor wide = *pool;
  if (assay_dtype_size(pool->dtype) != 1) return wide;
  wide.dtype = ASSAY_BF16;
  wide.shape[4] /= 2;
  for (int32_t a = 0; a < 4; ++a)
    wide.stride[a] /= 2;
  return wide;
}

void pass_copy_blocks(pass *m) {
  const pass_param none[] = {{NULL, 0}};
  if (m->copies.shape[0] == 0) return;
  if (m->config.arch == ASSAY_DEEPSEEK_V3) {
    pass_copy_entries(m);
    return;
  }
  m->stage = "copies";
  assay_tensor pairs = m->copies;
  if (MISTAKE(ENGINE_ONE_COPY)) pairs.shape[0] = 1;
  const pass_arg args[] = {
      {"k_cache", as_wide(&m->k_pool)}, {"v_cache", as_wide(&m->v_pool)}, {"pairs", pairs}, {.name = NULL}};
  pass_call(m, "copy_blocks", args, none);
}
