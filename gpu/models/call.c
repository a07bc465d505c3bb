/* call.c: one operator of a forward pass: its arguments by name, the first variant that takes them, and the taps. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/hash.h"
#include "core/calls.h"
#include "core/registry.h"
#include "gpu/models/pass.h"

/* ---- weights by name ---------------------------------------------------------------------------------- */

struct pass_name {
  char text[ASSAY_MODEL_NAME]; /* "": no entry */
  int32_t index;
};

static uint64_t hash_of(const char *text) {
  return hash_text(HASH_START, text);
}

assay_status pass_names_open(pass *m, assay_error *error) {
  const int32_t count = assay_model_weight_count(&m->config);
  int64_t size = 64;
  while (size < 2 * (int64_t)count)
    size *= 2;
  m->name = calloc((size_t)size, sizeof *m->name);
  m->name_mask = size - 1;
  if (m->name == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "session: out of memory");
  for (int32_t i = 0; i < count; ++i) {
    assay_weight_spec spec;
    (void)assay_model_weight_spec(&m->config, i, &spec);
    int64_t at = (int64_t)(hash_of(spec.name) & (uint64_t)m->name_mask);
    while (m->name[at].text[0] != '\0')
      at = (at + 1) & m->name_mask;
    m->name[at].index = i;
    (void)snprintf(m->name[at].text, sizeof m->name[at].text, "%s", spec.name);
  }
  return ASSAY_OK;
}

static int32_t pass_name_find(const pass *m, const char *text) {
  int64_t at = (int64_t)(hash_of(text) & (uint64_t)m->name_mask);
  for (; m->name[at].text[0] != '\0'; at = (at + 1) & m->name_mask)
    if (strcmp(m->name[at].text, text) == 0) return m->name[at].index;
  return -1;
}

static void full_name(const pass *m, const char *name, const char *part, char full[ASSAY_MODEL_NAME]) {
  const char *dot = part[0] != '\0' ? "." : "";
  if (m->layer < 0)
    (void)snprintf(full, ASSAY_MODEL_NAME, "%s%s%s", name, dot, part);
  else
    (void)snprintf(full, ASSAY_MODEL_NAME, "layers.%d.%s%s%s", (int)m->layer, name, dot, part);
}

assay_tensor pass_weight(const pass *m, const char *name, const char *part) {
  char full[ASSAY_MODEL_NAME];
  full_name(m, name, part, full);
  const int32_t index = pass_name_find(m, full);
  return index < 0 ? (assay_tensor){.data = NULL} : m->weight[index];
}

assay_tensor pass_view(const pass *m, const assay_tensor *rows, int64_t first, int64_t heads) {
  const int64_t D = m->config.head_size;
  return (assay_tensor){.data = (unsigned char *)rows->data + first * assay_dtype_size(rows->dtype),
                        .dtype = rows->dtype,
                        .rank = 3,
                        .shape = {rows->shape[0], heads, D},
                        .stride = {rows->stride[0], D, 1}};
}

/* ---- one operator ------------------------------------------------------------------------------------ */

static bool fill_args(pass *m, const assay_op *op, const pass_arg *args, assay_tensor *tensor) {
  for (; args->name != NULL; ++args) {
    int32_t i = 0;
    while (i < op->arg_count && strcmp(op->args[i].name, args->name) != 0)
      ++i;
    if (i == op->arg_count) {
      pass_fail(m, assay_fail(m->error, ASSAY_ERR_INTERNAL, "%s has no argument %s", op->name, args->name));
      return false;
    }
    tensor[i] = args->tensor;
  }
  return true;
}

static bool fill_params(pass *m, const assay_op *op, const pass_param *params, double *value) {
  for (int32_t i = 0; i < op->param_count; ++i)
    value[i] = op->params[i].fallback;
  for (; params->name != NULL; ++params) {
    int32_t i = 0;
    while (i < op->param_count && strcmp(op->params[i].name, params->name) != 0)
      ++i;
    if (i == op->param_count) {
      pass_fail(m, assay_fail(m->error, ASSAY_ERR_INTERNAL, "%s has no parameter %s", op->name, params->name));
      return false;
    }
    value[i] = params->value;
  }
  return true;
}

/* Ensures a workspace of `bytes`. It grows between launches, when no launch uses it. */
static assay_status reserve(pass *m, int64_t bytes) {
  if (bytes <= m->workspace_bytes) return ASSAY_OK;
  assay_status status = m->device->synchronize(m->error);
  if (status != ASSAY_OK) return status;
  if (m->workspace != NULL) m->device->release(m->workspace);
  m->workspace = NULL;
  m->workspace_bytes = 0;
  status = m->device->alloc(bytes, &m->workspace, m->error);
  if (status == ASSAY_OK) m->workspace_bytes = bytes;
  return status;
}

/* Returns the settled arguments of a call, as assay_env says. They are the weights and the tables of angles, which no
 * launch of a step writes; they lie before the rows. An engine copies its inputs before a step's first launch. */
static uint64_t settled_of(const pass *m, const assay_call *call) {
  const uintptr_t begin = (uintptr_t)m->memory, end = (uintptr_t)m->x.data;
  uint64_t settled = 0;
  for (int32_t i = 0; i < call->op->arg_count; ++i) {
    const uintptr_t at = (uintptr_t)call->arg[i].data;
    const bool given = at != 0 && (at == (uintptr_t)m->positions.data || at == (uintptr_t)m->slots.data);
    const bool input = at >= m->inputs_begin && at < m->inputs_end;
    if (given || input || (at >= begin && at < end)) settled |= UINT64_C(1) << i;
  }
  return MISTAKE(ENGINE_SETTLED_LOST) ? 0 : settled;
}

static assay_status launch(pass *m, const assay_variant *variant, const assay_call *call) {
  int64_t bytes = 0;
  const bool outside = assay_plugin_here(); /* built-in launchers leave the numeric modes as they are */
  assay_status status =
      outside ? variant_workspace(variant, call, &bytes, m->error) : variant->workspace(call, &bytes, m->error);
  if (status == ASSAY_OK && m->measuring) {
    if (bytes > m->measured_bytes) m->measured_bytes = bytes;
    return ASSAY_OK;
  }
  if (status == ASSAY_OK) status = reserve(m, bytes);
  if (status != ASSAY_OK) return status;
  if (m->left_out.op == call->op && (m->left_out.variant == NULL || m->left_out.variant == variant)) {
    ++m->left_out.calls;
    return ASSAY_OK;
  }
  assay_env env = {.stream = m->stream,
                   .workspace = m->workspace,
                   .workspace_bytes = bytes,
                   .multiprocessors = m->multiprocessors,
                   .memory_rate = m->memory_rate,
                   .settled = settled_of(m, call)};
  assay_model_path told = {.op = call->op->name,
                           .variant = variant->name,
                           .path = env.path,
                           .stage = m->stage,
                           .layer = m->layer,
                           .calls = 1};
  if (m->hooks.before != NULL) m->hooks.before(m->hooks.context, &told);
  status = outside ? variant_launch(variant, call, &env, m->error) : variant->launch(call, &env, m->error);
  if (status == ASSAY_OK && m->hooks.after != NULL) m->hooks.after(m->hooks.context, &told);
  if (status == ASSAY_OK) pass_count_call(m, variant, env.path);
  return status;
}

/* A call made from names and values. make() returns false if it failed. */
typedef struct made_call {
  assay_call call;
  assay_tensor tensor[ASSAY_MAX_ARGS];
  double value[ASSAY_MAX_PARAMS];
  int32_t number; /* number of the operator */
} made_call;

static bool make(pass *m, const char *name, const pass_arg *args, const pass_param *params, made_call *made) {
  memset(made, 0, sizeof *made);
  while (made->number < assay_op_count() && strcmp(assay_op_at(made->number)->name, name) != 0)
    ++made->number;
  if (made->number == assay_op_count()) {
    pass_fail(m, assay_fail(m->error, ASSAY_ERR_INTERNAL, "no operator %s", name));
    return false;
  }
  const assay_op *op = assay_op_at(made->number);
  made->call = (assay_call){op, made->tensor, made->value};
  return fill_args(m, op, args, made->tensor) && fill_params(m, op, params, made->value);
}

enum { REASON = 1600 };

/* Returns the first variant that takes the call and is preferred; NULL if there is none. */
static const assay_variant *choose_preferred(const pass *m, const made_call *made) {
  const pass_choices *c = &m->choices;
  for (int32_t v = c->first[made->number]; v < c->first[made->number + 1]; ++v)
    if (pass_prefers(m, &made->call, c->row[v]) && pass_may_take(m, c->row[v]) &&
        variant_supports(c->row[v], &made->call, NULL) == ASSAY_OK)
      return c->row[v];
  return NULL;
}

/* Returns the variant that takes the call, or NULL and the reason. The reason is that of the operator's last variant
 * or, with forced variants, of each of them. */
static const assay_variant *choose(pass *m, const made_call *made, char reason[REASON]) {
  const pass_choices *c = &m->choices;
  const int32_t first = c->first[made->number], wanted = c->wanted[made->number];
  const int32_t count = wanted > 0 ? wanted : c->first[made->number + 1] - first;
  const assay_variant *const *list = (wanted > 0 ? c->forced : c->row) + first;
  size_t used = 0;
  const assay_variant *preferred = wanted == 0 ? choose_preferred(m, made) : NULL;
  (void)snprintf(reason, REASON, "there is none for this device");
  for (int32_t v = 0; v < count; ++v) {
    assay_error why = {""};
    if (MISTAKE(ENGINE_LIST_OF_ONE) && wanted > 0 && v > 0) break;
    if (!pass_may_take(m, list[v]))
      (void)assay_fail(&why, ASSAY_ERR_UNSUPPORTED, "its rows may depend on the batch");
    else if (wanted == 0 && list[v]->contract.chunk != ASSAY_NONE)
      (void)assay_fail(&why, ASSAY_ERR_UNSUPPORTED, "it rounds inside a chunk, where a model's mirror does not");
    else if (variant_supports(list[v], &made->call, &why) == ASSAY_OK) {
      m->evenly = m->evenly || (preferred != NULL && preferred != list[v] && pass_shares_evenly(preferred));
      return preferred != NULL ? preferred : list[v];
    }
    if (wanted == 0) used = 0;
    (void)snprintf(reason + used, REASON - used, "%s%.80s: %.150s", used > 0 ? "; " : "", list[v]->name, why.text);
    used = strlen(reason);
  }
  return NULL;
}

static void refuse(pass *m, const made_call *made, const char *reason) {
  const int32_t wanted = m->choices.wanted[made->number];
  pass_fail(m, assay_fail(m->error, ASSAY_ERR_UNSUPPORTED, "%s (%s): %s; %s", made->call.op->name, m->stage,
                          wanted > 1    ? "none of the forced variants takes the call"
                          : wanted == 1 ? "the forced variant does not take the call"
                                        : "no variant takes the call",
                          reason));
}

void pass_call(pass *m, const char *name, const pass_arg *args, const pass_param *params) {
  made_call made;
  char reason[REASON];
  if (m->status != ASSAY_OK || !make(m, name, args, params, &made)) return;
  const assay_variant *variant = choose(m, &made, reason);
  if (variant == NULL)
    refuse(m, &made, reason);
  else
    pass_fail(m, launch(m, variant, &made.call));
}

bool pass_would_call_by(pass *m, pass_form form, const char *name, const pass_arg *args, const pass_param *params,
                        const char *by) {
  made_call made;
  char reason[REASON];
  if (m->status != ASSAY_OK || m->choices.form[form] == PASS_OFF || !make(m, name, args, params, &made)) return false;
  const assay_variant *variant = choose(m, &made, reason);
  if (variant == NULL && m->choices.form[form] == PASS_ON) refuse(m, &made, reason);
  return variant != NULL && (by == NULL || strncmp(variant->name, by, strlen(by)) == 0);
}

bool pass_would_call(pass *m, pass_form form, const char *name, const pass_arg *args, const pass_param *params) {
  return pass_would_call_by(m, form, name, args, params, NULL);
}

bool pass_call_form(pass *m, pass_form form, const char *name, const pass_arg *args, const pass_param *params) {
  if (!pass_would_call(m, form, name, args, params)) return false;
  pass_call(m, name, args, params);
  return true;
}

/* ---- taps -------------------------------------------------------------------------------------------- */

bool pass_wants(const pass *m, const char *name) {
  char full[ASSAY_MODEL_NAME];
  if (m->status != ASSAY_OK || m->taps == NULL) return false;
  if (MISTAKE(ENGINE_LOGITS_NOT_GIVEN) && strcmp(name, "logits") == 0) return false;
  full_name(m, name, "", full);
  return m->taps->wants == NULL || m->taps->wants(m->taps->context, full);
}

/* Passes `count` rows to the tap: the rows `pick`, or all rows if `pick` is NULL. */
static void take(pass *m, const char *name, const assay_tensor *y, int64_t first, int64_t width, const int32_t *pick,
                 int64_t count) {
  if (y->shape[0] == 0 || count == 0 || !pass_wants(m, name)) return;
  char full[ASSAY_MODEL_NAME];
  full_name(m, name, "", full);
  const int64_t rows = y->shape[0], stride = y->stride[0];
  double *value = malloc((size_t)(count * width) * sizeof *value);
  if (value == NULL) {
    pass_fail(m, assay_fail(m->error, ASSAY_ERR_MEMORY, "tap %s: out of memory", full));
    return;
  }
  const int64_t bytes = ((rows - 1) * stride + y->shape[1]) * assay_dtype_size(y->dtype);
  assay_status status = m->device->download(m->host, y->data, bytes, m->error);
  if (status == ASSAY_OK) status = m->device->synchronize(m->error);
  for (int64_t n = 0; n < count && status == ASSAY_OK; ++n) {
    const int64_t row = pick != NULL ? pick[n] : n;
    assay_load_f64_row(m->host, y->dtype, row * stride + first, 1, width, value + n * width);
  }
  if (status == ASSAY_OK) m->taps->take(m->taps->context, full, count, width, value);
  pass_fail(m, status);
  free(value);
}

void pass_take(pass *m, const char *name, const assay_tensor *y, int64_t first, int64_t width) {
  take(m, name, y, first, width, NULL, y->shape[0]);
}

void pass_take_picked(pass *m, const char *name, const assay_tensor *y) {
  if (m->taps != NULL) take(m, name, y, 0, y->shape[1], m->batch->logit_rows, m->batch->logit_count);
}
