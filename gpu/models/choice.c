/* choice.c: which model forms are on, which variants are forced, and how often each variant took each path. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/registry.h"
#include "gpu/models/pass.h"

/* op: name prefix of the fused operator that the form calls; NULL if the operator is called whether or not the form is
 * on. preset: the switch where the options say nothing. */
static const struct {
  const char *name, *op;
  pass_switch preset;
} form_table[PASS_FORMS] = {
    [PASS_QK_NORM] = {"qk_norm", "qk_norm", PASS_AUTO},
    [PASS_APPEND] = {"append", "attention_append", PASS_OFF},
    [PASS_MMHA] = {"mmha", "mmha", PASS_OFF},
    [PASS_ROPE_APPEND] = {"rope_append", "rope_append", PASS_AUTO},
    [PASS_NORM_ROPE_APPEND] = {"norm_rope_append", "norm_rope_append", PASS_AUTO},
    [PASS_ADD_NORM] = {"add_norm", "add_", PASS_AUTO},
    [PASS_POST_PRE_UCLIP] = {"post_pre_uclip", "post_attn_pre_mlp_uclip", PASS_AUTO},
    [PASS_BIAS_GELU_NEW] = {"bias_gelu_new", NULL, PASS_AUTO},
    [PASS_BIAS_RESIDUAL] = {"bias_residual", NULL, PASS_AUTO},
    [PASS_GEMM_GLU] = {"gemm_glu", "gemm_glu", PASS_AUTO},
    [PASS_GEMM_SEAM] = {"gemm_seam", "gemm_post_pre_uclip", PASS_AUTO},
    [PASS_GEMM_NORM] = {"gemm_norm", "gemm_residual", PASS_OFF},
    [PASS_GROUPED_GEMM] = {"grouped_gemm", "grouped_gemm", PASS_OFF},
    [PASS_MLA_EXPAND] = {"mla_expand", "softmax_attention", PASS_OFF},
    [PASS_EVEN_SHARES] = {"even_shares", NULL, PASS_AUTO},
    [PASS_LM_HEAD_ARGMAX] = {"lm_head_argmax", "lm_head_argmax", PASS_AUTO},
    [PASS_ONE_LAUNCH] = {"one_launch", "one_launch", PASS_AUTO},
};
static const char *const switch_words[] = {[PASS_OFF] = "off", [PASS_ON] = "on", [PASS_AUTO] = "auto"};
/* Pairs of forms that take the same calls. If the first is on, an `auto` second is switched off; asking for both is an
 * error. */
static const pass_form exclusive_pairs[][2] = {{PASS_APPEND, PASS_MMHA},
                                               {PASS_QK_NORM, PASS_NORM_ROPE_APPEND},
                                               {PASS_ROPE_APPEND, PASS_NORM_ROPE_APPEND},
                                               {PASS_ADD_NORM, PASS_POST_PRE_UCLIP},
                                               {PASS_ADD_NORM, PASS_BIAS_RESIDUAL},
                                               {PASS_GEMM_SEAM, PASS_POST_PRE_UCLIP},
                                               {PASS_GEMM_SEAM, PASS_ADD_NORM},
                                               {PASS_POST_PRE_UCLIP, PASS_GEMM_SEAM},
                                               {PASS_ADD_NORM, PASS_GEMM_SEAM}};

/* Tells whether some layer has an MLP with gates, without biases and without experts. */
static bool has_plain_gates(const assay_model_config *c) {
  if (c->mlp_bias || (c->arch != ASSAY_QWEN3 && c->arch != ASSAY_ASYNCT && c->arch != ASSAY_QWEN3_MOE)) return false;
  for (int64_t l = 0; l < c->layers; ++l)
    if (!assay_model_is_sparse(c, l)) return true;
  return false;
}

static bool has_experts(const assay_model_config *c) {
  for (int64_t l = 0; l < c->layers; ++l)
    if (assay_model_is_sparse(c, l)) return true;
  return false;
}

static bool model_has(const assay_model_config *c, pass_form form) {
  switch (form) {
  case PASS_QK_NORM:
    return c->qk_norm && c->arch != ASSAY_QWEN3_NEXT; /* qk_norm does not multiply by 1 + g */
  case PASS_APPEND:                                   /* neither operator has sinks and windows */
    return c->arch != ASSAY_GPT_OSS && c->arch != ASSAY_GEMMA2 && c->arch != ASSAY_DEEPSEEK_V3;
  case PASS_MMHA:
    return c->rotated > 0 && !c->qk_norm && c->arch != ASSAY_GPT_OSS && c->arch != ASSAY_GEMMA2 &&
           c->arch != ASSAY_DEEPSEEK_V3;
  case PASS_ROPE_APPEND:
    return c->rotated > 0 && c->arch != ASSAY_DEEPSEEK_V3;
  case PASS_NORM_ROPE_APPEND:
    return model_has(c, PASS_QK_NORM) && model_has(c, PASS_ROPE_APPEND);
  case PASS_ADD_NORM:
    return c->arch != ASSAY_QWEN3_NEXT && c->arch != ASSAY_GEMMA2; /* add_rms_norm does not multiply by 1 + g */
  case PASS_POST_PRE_UCLIP:
    return c->arch == ASSAY_ASYNCT;
  case PASS_BIAS_GELU_NEW:
    return c->arch == ASSAY_GPT2 && c->mlp_bias;
  case PASS_BIAS_RESIDUAL:
    return c->arch == ASSAY_GPT2 && (c->proj_bias || c->mlp_bias);
  case PASS_GEMM_GLU:
    return has_plain_gates(c);
  case PASS_GEMM_SEAM:
    return c->arch == ASSAY_ASYNCT && !c->proj_bias && !c->mlp_bias;
  case PASS_GEMM_NORM:
    return c->arch == ASSAY_QWEN3 && !c->proj_bias && !c->mlp_bias;
  case PASS_ONE_LAUNCH:
    return (c->arch == ASSAY_QWEN3 || c->arch == ASSAY_ASYNCT) && c->qk_norm && !c->qkv_bias && !c->proj_bias &&
           !c->mlp_bias && !c->fp8_weights;
  case PASS_GROUPED_GEMM:
    return has_experts(c);
  case PASS_MLA_EXPAND:
    return c->arch == ASSAY_DEEPSEEK_V3;
  case PASS_EVEN_SHARES:
    return c->arch != ASSAY_DEEPSEEK_V3;
  case PASS_LM_HEAD_ARGMAX:
    return !(c->logit_cap > 0);
  default:
    return true;
  }
}

const char *pass_form_name(pass_form form) {
  return form_table[form].name;
}

/* Sets every form to its preset, and to off where the model cannot have it. */
static void set_presets(pass *m) {
  for (int32_t f = 0; f < PASS_FORMS; ++f)
    m->choices.form[f] = model_has(&m->config, (pass_form)f) ? form_table[f].preset : PASS_OFF;
}

static int32_t number_of(const assay_op *op) {
  int32_t i = 0;
  while (assay_op_at(i) != op)
    ++i;
  return i;
}

assay_status pass_choices_open(pass *m, assay_error *error) {
  pass_choices *c = &m->choices;
  const int32_t ops = assay_op_count(), variants = assay_variant_count();
  int32_t used = 0;
  c->row = calloc((size_t)variants + 1, sizeof *c->row);
  c->first = calloc((size_t)ops + 1, sizeof *c->first);
  c->forced = calloc((size_t)variants + 1, sizeof *c->forced);
  c->wanted = calloc((size_t)ops + 1, sizeof *c->wanted);
  if (c->row == NULL || c->first == NULL || c->forced == NULL || c->wanted == NULL)
    return assay_fail(error, ASSAY_ERR_MEMORY, "session: out of memory");
  set_presets(m);
  for (int32_t o = 0; o < ops; ++o) {
    c->first[o] = used;
    for (int32_t v = 0; v < variants; ++v) {
      const assay_variant *variant = assay_variant_at(v);
      if (strcmp(variant->op, assay_op_at(o)->name) == 0 && strcmp(variant->device, m->device->name) == 0)
        c->row[used++] = variant;
    }
  }
  c->first[ops] = used;
  return ASSAY_OK;
}

void pass_choices_close(pass *m) {
  free(m->choices.row);
  free(m->choices.first);
  free(m->choices.forced);
  free(m->choices.wanted);
  free(m->counts.row);
}

/* ---- words ------------------------------------------------------------------------------------------- */

static void append(char *text, size_t size, const char *word) {
  const size_t used = strlen(text);
  (void)snprintf(text + used, size - used, "%s%s", used > 0 ? ", " : "", word);
}

/* Splits "name=value" in two. Returns false if there is no "=", or if the name does not fit. */
static bool split(const char *word, char *name, size_t size, const char **value) {
  const char *equals = strchr(word, '=');
  if (equals == NULL || (size_t)(equals - word) >= size) return false;
  (void)snprintf(name, size, "%.*s", (int)(equals - word), word);
  *value = equals + 1;
  return true;
}

static assay_status set_form(pass_choices *c, const char *word, assay_error *error) {
  char name[64] = "", known[240] = "";
  const char *value = "";
  const bool whole = split(word, name, sizeof name, &value);
  for (int32_t f = 0; f < PASS_FORMS; ++f) {
    append(known, sizeof known, form_table[f].name);
    if (strcmp(name, form_table[f].name) != 0) continue;
    for (int32_t s = PASS_OFF; s <= PASS_AUTO; ++s)
      if (strcmp(value, switch_words[s]) == 0) {
        c->form[f] = (pass_switch)s;
        return ASSAY_OK;
      }
    return assay_fail(error, ASSAY_ERR_INPUT, "form %s: found '%.40s', allowed: off, on, auto", name, value);
  }
  return assay_fail(error, ASSAY_ERR_INPUT, "form: found '%.60s', allowed: %s, each with =off, =on or =auto",
                    whole ? name : word, known);
}

assay_status pass_find_variant(const pass *m, const char *op, const char *name, const assay_op **found,
                               const assay_variant **variant, assay_error *error) {
  const pass_choices *c = &m->choices;
  char known[400] = "";
  *found = assay_op_find(op);
  *variant = NULL;
  if (*found == NULL) {
    for (int32_t o = 0; o < assay_op_count(); ++o)
      append(known, sizeof known, assay_op_at(o)->name);
    return assay_fail(error, ASSAY_ERR_INPUT, "variant: found operator '%.60s', allowed: %s", op, known);
  }
  if (name == NULL) return ASSAY_OK;
  const int32_t number = number_of(*found);
  for (int32_t v = c->first[number]; v < c->first[number + 1]; ++v) {
    append(known, sizeof known, c->row[v]->name);
    if (strcmp(c->row[v]->name, name) != 0) continue;
    *variant = c->row[v];
    return ASSAY_OK;
  }
  return assay_fail(error, ASSAY_ERR_INPUT, "variant: found %s variant '%.60s', allowed on %s: %s", op, name,
                    m->device->name, known);
}

/* Adds a variant to the operator's list of forced ones, once. */
static void want(pass_choices *c, int32_t op, const assay_variant *variant) {
  const assay_variant **list = c->forced + c->first[op];
  for (int32_t i = 0; i < c->wanted[op]; ++i)
    if (list[i] == variant) return;
  list[c->wanted[op]++] = variant;
}

/* Reads "operator=variant,variant". */
static assay_status set_variant(pass *m, const char *word, assay_error *error) {
  char op_name[64] = "", name[64] = "";
  const char *rest = "";
  const assay_op *op = NULL;
  const assay_variant *variant = NULL;
  if (!split(word, op_name, sizeof op_name, &rest))
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "variant: found '%.60s', allowed: operator=variant, or more with commas: operator=one,other",
                      word);
  for (bool more = true; more;) {
    const size_t length = strcspn(rest, ",");
    (void)snprintf(name, sizeof name, "%.*s", length < sizeof name ? (int)length : (int)sizeof name - 1, rest);
    const assay_status status = pass_find_variant(m, op_name, name, &op, &variant, error);
    if (status != ASSAY_OK) return status;
    want(&m->choices, number_of(op), variant);
    more = rest[length] == ',';
    rest += length + more;
  }
  return ASSAY_OK;
}

static bool is_forced(const pass_choices *c, const char *op) {
  const assay_op *found = assay_op_find(op);
  return found != NULL && c->wanted[number_of(found)] > 0;
}

/* Refuses forms set to on that the model cannot have, and two of a pair. Switches off what the model cannot have, and
 * the `auto` second of a pair. */
static assay_status settle_forms(pass *m, assay_error *error) {
  pass_choices *c = &m->choices;
  char known[240] = "";
  for (int32_t f = 0; f < PASS_FORMS; ++f)
    if (model_has(&m->config, (pass_form)f)) append(known, sizeof known, form_table[f].name);
  for (int32_t f = 0; f < PASS_FORMS; ++f)
    if (c->form[f] == PASS_ON && !model_has(&m->config, (pass_form)f))
      return assay_fail(error, ASSAY_ERR_INPUT, "form %s: found on, which this %s model%s cannot have, allowed on: %s",
                        form_table[f].name, assay_model_arch_name(m->config.arch),
                        f == PASS_MMHA && m->config.qk_norm ? " with qk_norm" : "", known);
  for (int32_t f = 0; f < PASS_FORMS; ++f)
    if (!model_has(&m->config, (pass_form)f)) c->form[f] = PASS_OFF;
  for (size_t i = 0; i < sizeof exclusive_pairs / sizeof exclusive_pairs[0]; ++i) {
    const pass_form on = exclusive_pairs[i][0], other = exclusive_pairs[i][1];
    if (c->form[on] != PASS_ON || !model_has(&m->config, other)) continue;
    if (c->form[other] == PASS_ON)
      return assay_fail(error, ASSAY_ERR_INPUT,
                        "form %s: found on beside %s=on, allowed one of them: they take the "
                        "same calls",
                        form_table[on].name, form_table[other].name);
    c->form[other] = PASS_OFF;
  }
  /* The operators that norm_rope_append stands for are apart where one of them is off. */
  if (c->form[PASS_NORM_ROPE_APPEND] == PASS_AUTO &&
      (c->form[PASS_QK_NORM] == PASS_OFF || c->form[PASS_ROPE_APPEND] == PASS_OFF))
    c->form[PASS_NORM_ROPE_APPEND] = PASS_OFF;
  /* A forced variant of an operator that lm_head_argmax stands for is to be called. */
  if (c->form[PASS_LM_HEAD_ARGMAX] == PASS_AUTO && (is_forced(c, "lm_head") || is_forced(c, "sampler")))
    c->form[PASS_LM_HEAD_ARGMAX] = PASS_OFF;
  return ASSAY_OK;
}

/* Tells whether the caller has said how a layer is to be computed: a form of layers, or a variant of an operator in
 * them. */
static bool layers_are_chosen(const pass *m, const assay_model_options *options) {
  static const char *const outside[] = {"embedding", "lm_head", "lm_head_argmax", "sampler"};
  for (int32_t i = 0; i < options->forms; ++i)
    if (strncmp(options->form[i], "one_launch=", 11) != 0 && strncmp(options->form[i], "lm_head_argmax=", 15) != 0)
      return true;
  for (int32_t o = 0; o < assay_op_count(); ++o) {
    bool inside = m->choices.wanted[o] > 0;
    for (size_t i = 0; i < sizeof outside / sizeof *outside; ++i)
      inside = inside && strcmp(assay_op_at(o)->name, outside[i]) != 0;
    if (inside) return true;
  }
  return false;
}

assay_status pass_choices_set(pass *m, const assay_model_options *options, assay_error *error) {
  pass_choices *c = &m->choices;
  assay_status status = ASSAY_OK;
  if (options == NULL) return pass_one_launch_open(m, error);
  set_presets(m);
  memset(c->wanted, 0, (size_t)assay_op_count() * sizeof *c->wanted);
  for (int32_t i = 0; i < options->forms && status == ASSAY_OK; ++i)
    status = set_form(c, options->form[i], error);
  for (int32_t i = 0; i < options->variants && status == ASSAY_OK; ++i)
    status = set_variant(m, options->variant[i], error);
  if (status == ASSAY_OK) status = settle_forms(m, error);
  if (status == ASSAY_OK && c->form[PASS_ONE_LAUNCH] == PASS_AUTO && layers_are_chosen(m, options))
    c->form[PASS_ONE_LAUNCH] = PASS_OFF;
  if (status == ASSAY_OK) status = pass_invariant_open(m, options, error);
  if (status == ASSAY_OK) status = pass_expand_open(m, error);
  if (status == ASSAY_OK) status = pass_one_launch_open(m, error);
  return status == ASSAY_OK ? pass_tails_open(m, options->short_tail, error) : status;
}

/* ---- what was asked for and never taken ---------------------------------------------------------------- */

/* Counts the calls of a variant; with NULL, the calls of all operators whose names begin with `op`. */
static int64_t calls_of(const pass *m, const assay_variant *variant, const char *op) {
  int64_t calls = 0;
  for (int32_t i = 0; i < m->counts.count; ++i) {
    const pass_count *row = &m->counts.row[i];
    if (variant != NULL ? row->variant == variant : strncmp(row->variant->op, op, strlen(op)) == 0) calls += row->calls;
  }
  return calls;
}

/* Counts the calls of variants that divide keys evenly. */
static int64_t calls_in_shares(const pass *m) {
  int64_t calls = 0;
  for (int32_t i = 0; i < m->counts.count; ++i)
    if (pass_shares_evenly(m->counts.row[i].variant)) calls += m->counts.row[i].calls;
  return calls;
}

assay_status pass_check_forced(const pass *m, assay_error *error) {
  const pass_choices *c = &m->choices;
  char missing[320] = "", word[160];
  if (MISTAKE(ENGINE_FORCE_FORGOTTEN)) return ASSAY_OK;
  for (int32_t o = 0; o < assay_op_count(); ++o)
    for (int32_t i = 0; i < c->wanted[o]; ++i) {
      const assay_variant *forced = c->forced[c->first[o] + i];
      if (calls_of(m, forced, NULL) > 0) continue;
      (void)snprintf(word, sizeof word, "%s=%s%s", forced->op, forced->name,
                     calls_of(m, NULL, forced->op) > 0 ? "" : " (the operator was not called)");
      append(missing, sizeof missing, word);
    }
  if (missing[0] != '\0')
    return assay_fail(error, ASSAY_ERR_INPUT, "variant: forced, but no call of this run took it: %s", missing);
  for (int32_t f = 0; f < PASS_FORMS; ++f)
    if (c->form[f] == PASS_ON && form_table[f].op != NULL && calls_of(m, NULL, form_table[f].op) == 0)
      return assay_fail(error, ASSAY_ERR_INPUT, "form %s: found on, but this run has no step that it is for",
                        form_table[f].name);
  if (c->form[PASS_EVEN_SHARES] == PASS_ON && calls_in_shares(m) == 0)
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "form even_shares: found on, but no call of this run took such a variant");
  return ASSAY_OK;
}
