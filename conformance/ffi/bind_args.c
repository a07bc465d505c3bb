/* bind_args.c: see bind_args.h. */
#include "bind_args.h"

#include <errno.h>
#include <math.h>

#include <stdlib.h>

int32_t bind_arg_index(const assay_op *op, const char *name) {
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (strcmp(op->args[i].name, name) == 0) return i;
  return -1;
}

int32_t bind_param_index(const assay_op *op, const char *name) {
  for (int32_t i = 0; i < op->param_count; ++i)
    if (strcmp(op->params[i].name, name) == 0) return i;
  return -1;
}

int32_t bind_dim_index(const assay_op *op, const char *name) {
  for (int32_t i = 0; i < op->dim_count; ++i)
    if (strcmp(op->dims[i].name, name) == 0) return i;
  return -1;
}

bool bind_enum_find(const char *names, const char *word, double *value) {
  int32_t index = 0;
  for (const char *at = names; *at != '\0'; at += strcspn(at, ","), at += *at == ',', ++index)
    if (strncmp(at, word, strcspn(at, ",")) == 0 && strlen(word) == strcspn(at, ",")) {
      *value = index;
      return true;
    }
  return false;
}

static int32_t scratch_index(const binding *b, const char *name) {
  for (int32_t i = 0; i < b->scratches; ++i)
    if (strcmp(b->scratch[i].name, name) == 0) return i;
  return -1;
}

bool bind_known_word(const binding *b, const char *word, bool scratch) {
  return bind_arg_index(b->op, word) >= 0 || bind_param_index(b->op, word) >= 0 || bind_dim_index(b->op, word) >= 0 ||
         adapt_find(word) >= 0 || strcmp(word, "none") == 0 || strcmp(word, "true") == 0 ||
         strcmp(word, "false") == 0 || strcmp(word, "planned") == 0 || (scratch && scratch_index(b, word) >= 0);
}

assay_status bind_unknown(const binding *b, yaml_node word, const char *key, const char *more, assay_error *error) {
  char list[1024] = "", near[64];
  size_t used = 0;
  for (int32_t i = 0; i < b->op->arg_count && used < sizeof list; ++i)
    used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", used > 0 ? ", " : "", b->op->args[i].name);
  for (int32_t i = 0; i < b->op->param_count && used < sizeof list; ++i)
    used += (size_t)snprintf(list + used, sizeof list - used, ", %s", b->op->params[i].name);
  for (int32_t i = 0; i < b->op->dim_count && used < sizeof list; ++i)
    used += (size_t)snprintf(list + used, sizeof list - used, ", %s", b->op->dims[i].name);
  const char *text = yaml_kind(word) == NODE_SCALAR ? yaml_text(word) : "";
  const char *guess = word_nearest(text, list, near, sizeof near);
  return yaml_fail(word, error, "%s: found '%.60s'%s%s%s, allowed: %s%s", key, text, guess != NULL ? " (nearest: " : "",
                   guess != NULL ? guess : "", guess != NULL ? ")" : "", list, more);
}

assay_status bind_argument(const binding *b, yaml_node value, const char *key, int32_t *arg, assay_error *error) {
  char list[512] = "";
  size_t used = 0;
  *arg = yaml_kind(value) == NODE_SCALAR ? bind_arg_index(b->op, yaml_text(value)) : -1;
  if (*arg >= 0) return ASSAY_OK;
  for (int32_t i = 0; i < b->op->arg_count && used < sizeof list; ++i)
    used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", used > 0 ? ", " : "", b->op->args[i].name);
  return yaml_fail(value, error, "%s: found '%.60s', allowed the arguments of %s: %s", key,
                   yaml_kind(value) == NODE_SCALAR ? yaml_text(value) : "", b->op->name, list);
}

assay_status bind_place(yaml_node value, bool *host, assay_error *error) {
  *host = strcmp(yaml_text(value), "host") == 0;
  if (*host || strcmp(yaml_text(value), "device") == 0) return ASSAY_OK;
  return yaml_fail(value, error, "place: found '%.60s', allowed device, host", yaml_text(value));
}

/* ---- one argument as a map --------------------------------------------------------------------------- */

typedef struct reading {
  const binding *b;
  bind_arg *made;
  int32_t kinds; /* how many of tensor, param, adapter, float, empty were given */
  bool of_tensor, of_param, of_adapter;
} reading;

static assay_status take_tensor(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  reading *r = context;
  ++r->kinds;
  r->of_tensor = strcmp(field->key, "tensor") == 0;
  r->made->kind = r->of_tensor ? BIND_TENSOR : BIND_EMPTY;
  return bind_argument(r->b, value, field->key, &r->made->index, error);
}

static assay_status take_param(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  reading *r = context;
  (void)field;
  ++r->kinds;
  r->of_param = true;
  r->made->kind = BIND_PARAM;
  r->made->index = bind_param_index(r->b->op, yaml_text(value));
  if (r->made->index >= 0) return ASSAY_OK;
  r->made->kind = BIND_DIM;
  r->made->index = bind_dim_index(r->b->op, yaml_text(value));
  return r->made->index >= 0 ? ASSAY_OK : bind_unknown(r->b, value, "param", "", error);
}

static assay_status set_adapter(const binding *b, bind_arg *made, yaml_node value, assay_error *error) {
  const char *missing = "";
  made->kind = BIND_ADAPTER;
  made->index = adapt_find(yaml_text(value));
  if (made->index < 0)
    return yaml_fail(value, error, "adapter: found '%.60s', allowed: %s", yaml_text(value), adapt_names());
  if (adapt_fits(made->index, b->op, &missing)) return ASSAY_OK;
  return yaml_fail(value, error, "adapter: found %s, allowed for operators with %.*s, which %s has not",
                   yaml_text(value), (int)strcspn(missing, ","), missing, b->op->name);
}

static assay_status take_adapter(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  reading *r = context;
  (void)field;
  ++r->kinds;
  r->of_adapter = true;
  return set_adapter(r->b, r->made, value, error);
}

static assay_status take_float(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  reading *r = context;
  char *end = NULL;
  (void)field;
  ++r->kinds;
  r->made->kind = BIND_REAL;
  r->made->real = strtod(yaml_text(value), &end);
  if (end != yaml_text(value) && *end == '\0' && isfinite(r->made->real)) return ASSAY_OK;
  return yaml_fail(value, error, "float: found '%.60s', allowed a finite number", yaml_text(value));
}

static assay_status take_as(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  static const char *const names[] = {"own", "int", "float", "bool"};
  reading *r = context;
  (void)field;
  for (int i = 1; i < 4; ++i)
    if (strcmp(yaml_text(value), names[i]) == 0) {
      r->made->cast = (bind_cast)i;
      return ASSAY_OK;
    }
  return yaml_fail(value, error, "as: found '%.60s', allowed int, float, bool", yaml_text(value));
}

static assay_status take_slice(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  char *end = NULL;
  const long index = strtol(yaml_text(value), &end, 10);
  (void)field;
  if (end == yaml_text(value) || *end != '\0' || index < 0 || index > 4095)
    return yaml_fail(value, error, "slice: found '%.60s', allowed 0 to 4095", yaml_text(value));
  ((reading *)context)->made->slice = (int32_t)index;
  return ASSAY_OK;
}

static assay_status take_columns(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  int32_t *columns = ((reading *)context)->made->columns;
  (void)field;
  for (int32_t i = 0; i < 2 && i < yaml_count(value); ++i) {
    const yaml_node at = yaml_item(value, i);
    char *end = NULL;
    const long column = yaml_kind(at) == NODE_SCALAR ? strtol(yaml_text(at), &end, 10) : -1;
    if (end == NULL || end == yaml_text(at) || *end != '\0' || column < 0 || column > 1 << 20)
      return yaml_fail(at, error, "columns: found '%.60s', allowed 0 to %d",
                       yaml_kind(at) == NODE_SCALAR ? yaml_text(at) : "", 1 << 20);
    columns[i] = (int32_t)column;
  }
  if (yaml_count(value) == 2 && columns[0] < columns[1]) return ASSAY_OK;
  return yaml_fail(value, error, "columns: found %d numbers from %d to %d, allowed two that rise", yaml_count(value),
                   columns[0], columns[1]);
}

static assay_status take_else(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  return bind_argument(((reading *)context)->b, value, field->key, &((reading *)context)->made->instead, error);
}

static assay_status take_from(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  return bind_argument(((reading *)context)->b, value, field->key, &((reading *)context)->made->from, error);
}

static assay_status take_base(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  (void)field;
  ((reading *)context)->made->base2 = true;
  if (strcmp(yaml_text(value), "2") == 0) return ASSAY_OK;
  return yaml_fail(value, error, "base: found '%.60s', allowed 2", yaml_text(value));
}

static assay_status take_spare(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  (void)field;
  ((reading *)context)->made->spare = true;
  if (strcmp(yaml_text(value), "true") == 0) return ASSAY_OK;
  return yaml_fail(value, error, "spare: found '%.60s', allowed true", yaml_text(value));
}

static assay_status take_place(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  (void)field;
  return bind_place(value, &((reading *)context)->made->host, error);
}

static const yaml_field fields[] = {
    {"tensor", NODE_SCALAR, false, take_tensor, NULL},   {"param", NODE_SCALAR, false, take_param, NULL},
    {"adapter", NODE_SCALAR, false, take_adapter, NULL}, {"float", NODE_SCALAR, false, take_float, NULL},
    {"empty", NODE_SCALAR, false, take_tensor, NULL},    {"as", NODE_SCALAR, false, take_as, NULL},
    {"slice", NODE_SCALAR, false, take_slice, NULL},     {"columns", NODE_LIST, false, take_columns, NULL},
    {"else", NODE_SCALAR, false, take_else, NULL},       {"from", NODE_SCALAR, false, take_from, NULL},
    {"base", NODE_SCALAR, false, take_base, NULL},       {"spare", NODE_SCALAR, false, take_spare, NULL},
    {"place", NODE_SCALAR, false, take_place, NULL}};

/* Refuses keys that do not belong together, and bases of what holds no f32. */
static assay_status check_map(const reading *r, yaml_node map, assay_error *error) {
  const bind_arg *made = r->made;
  const assay_arg *about = r->of_tensor ? &r->b->op->args[made->index] : NULL;
  if (r->kinds != 1)
    return yaml_fail(map, error, "args: found %d of tensor, param, adapter, float, empty, allowed one", r->kinds);
  if (!r->of_tensor &&
      (made->slice >= 0 || made->columns[1] > 0 || made->instead >= 0 || made->from >= 0 || made->base2 || made->spare))
    return yaml_fail(map, error, "args: found slice, columns, else, from, base or spare, allowed with tensor");
  if (!r->of_param && made->cast != CAST_OWN) return yaml_fail(map, error, "as: found one, allowed with param");
  if (made->host && (!r->of_adapter || made->index >= ADAPT_SCALARS || made->index == ADAPT_COS_SIN))
    return yaml_fail(map, error, "place: found host, allowed with adapters of i32");
  if (made->base2 && strcmp(about->dtypes, "f32") != 0)
    return yaml_fail(map, error, "base: found one for %s, allowed for arguments of f32 alone", about->name);
  if (made->from >= 0 && about->role == ASSAY_IN)
    return yaml_fail(map, error, "from: found one for %s, allowed for outputs", about->name);
  if (made->spare && about->role != ASSAY_OUT)
    return yaml_fail(map, error, "spare: found one for %s, allowed for outputs", about->name);
  if (made->from >= 0 && made->base2) return yaml_fail(map, error, "base: found one beside from, allowed without");
  return ASSAY_OK;
}

/* ---- one argument as a word -------------------------------------------------------------------------- */

static bool take_number(const char *text, bind_arg *made) {
  char *end = NULL;
  const char *digits = text + (text[0] == '-' || text[0] == '+');
  if (*digits == '\0' || strpbrk(digits, "0123456789") == NULL) return false;
  if (strspn(digits, "0123456789") == strlen(digits)) {
    made->kind = BIND_WHOLE;
    errno = 0;
    made->whole = strtoll(text, &end, 10);
    return *end == '\0' && errno == 0;
  }
  made->kind = BIND_REAL;
  made->real = strtod(text, &end);
  return *end == '\0' && isfinite(made->real);
}

static assay_status read_word(const binding *b, yaml_node value, bind_arg *made, assay_error *error) {
  const char *text = yaml_text(value);
  char more[512];
  if (!yaml_is_plain(value)) {
    made->kind = BIND_WORDS;
    if (strlen(text) >= sizeof made->words)
      return yaml_fail(value, error, "args: found a text of %zu characters, allowed up to %zu", strlen(text),
                       sizeof made->words - 1);
    (void)snprintf(made->words, sizeof made->words, "%s", text);
    return ASSAY_OK;
  }
  const struct {
    bind_kind kind;
    int32_t index;
  } found[] = {{BIND_TENSOR, bind_arg_index(b->op, text)},
               {BIND_PARAM, bind_param_index(b->op, text)},
               {BIND_DIM, bind_dim_index(b->op, text)},
               {BIND_SCRATCHED, scratch_index(b, text)}};
  for (size_t i = 0; i < sizeof found / sizeof *found; ++i)
    if (found[i].index >= 0) {
      made->kind = found[i].kind;
      made->index = found[i].index;
      return ASSAY_OK;
    }
  if (adapt_find(text) >= 0) return set_adapter(b, made, value, error);
  made->whole = strcmp(text, "true") == 0;
  made->kind = strcmp(text, "none") == 0 ? BIND_NONE : strcmp(text, "planned") == 0 ? BIND_PLANNED : BIND_FLAG;
  if (made->kind != BIND_FLAG || made->whole != 0 || strcmp(text, "false") == 0) return ASSAY_OK;
  if (take_number(text, made)) return ASSAY_OK;
  (void)snprintf(more, sizeof more, ", none, true, false, planned, numbers, texts in quotes, %s%s", adapt_names(),
                 b->scratches > 0 ? ", and the names of scratch" : "");
  return bind_unknown(b, value, "args", more, error);
}

assay_status bind_args(const binding *b, bind_call *call, yaml_node list, assay_error *error) {
  assay_status status = ASSAY_OK;
  for (int32_t i = 0; i < yaml_count(list) && status == ASSAY_OK; ++i) {
    const yaml_node value = yaml_item(list, i);
    if (call->count == BIND_ARGS)
      return yaml_fail(value, error, "args: found more than %d, allowed %d", BIND_ARGS, BIND_ARGS);
    bind_arg *made = &call->arg[call->count++];
    *made = (bind_arg){.index = -1, .slice = -1, .instead = -1, .from = -1};
    if (yaml_kind(value) == NODE_LIST) return yaml_fail(value, error, "args: found a list, allowed a word or a map");
    if (yaml_kind(value) == NODE_SCALAR) {
      status = read_word(b, value, made, error);
      continue;
    }
    reading r = {.b = b, .made = made};
    status = yaml_walk(value, fields, sizeof fields / sizeof *fields, &r, error);
    if (status == ASSAY_OK) status = check_map(&r, value, error);
  }
  return status;
}

/* ---- what is passed ---------------------------------------------------------------------------------- */

static bool call_passes(const binding *b, const bind_call *call, int32_t arg) {
  const char *name = b->op->args[arg].name;
  for (int32_t i = 0; i < call->count; ++i) {
    const bind_arg *a = &call->arg[i];
    if (a->kind == BIND_TENSOR && (a->index == arg || a->instead == arg || a->from == arg)) return true;
    if (a->kind == BIND_ADAPTER && adapt_uses(a->index, name)) return true;
  }
  return false;
}

bool bind_passes(const binding *b, int32_t arg) {
  return arg == b->returns || call_passes(b, &b->call, arg) || call_passes(b, &b->plan, arg);
}

static bool call_passes_param(const binding *b, const bind_call *call, int32_t param) {
  for (int32_t i = 0; i < call->count; ++i) {
    const bind_arg *a = &call->arg[i];
    if (a->kind == BIND_PARAM && a->index == param) return true;
    if (a->kind == BIND_ADAPTER && adapt_uses(a->index, b->op->params[param].name)) return true;
  }
  return false;
}

bool bind_passes_param(const binding *b, int32_t param) {
  return call_passes_param(b, &b->call, param) || call_passes_param(b, &b->plan, param);
}
