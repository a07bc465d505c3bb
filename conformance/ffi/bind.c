/* bind.c: reads a bind file. */
#include "bind.h"

#include <stdlib.h>

#include "bind_args.h"
#include "conformance/case/case.h"
#include "conformance/text/text.h"
#include "core/registry.h"

/* ---- plain values ------------------------------------------------------------------------------------ */

static assay_status take_text(const yaml_field *field, yaml_node value, char *to, size_t size, assay_error *error) {
  const char *text = yaml_text(value);
  if (text[0] == '\0' || strlen(text) >= size)
    return yaml_fail(value, error, "%s: found %zu characters, allowed 1 to %zu", field->key, strlen(text), size - 1);
  (void)snprintf(to, size, "%s", text);
  return ASSAY_OK;
}

static assay_status take_operator(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  binding *b = context;
  (void)field;
  b->op = assay_op_find(yaml_text(value));
  if (b->op != NULL) return ASSAY_OK;
  char names[1024], near[64];
  case_op_list(names, sizeof names);
  const char *guess = word_nearest(yaml_text(value), names, near, sizeof near);
  return yaml_fail(value, error, "operator: found '%.60s'%s%s%s, allowed: %s", yaml_text(value),
                   guess != NULL ? " (nearest: " : "", guess != NULL ? guess : "", guess != NULL ? ")" : "", names);
}

static assay_status take_variant(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  binding *b = context;
  const char *allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@.-";
  if (strspn(yaml_text(value), allowed) != strlen(yaml_text(value)))
    return yaml_fail(value, error, "variant: found '%.60s', allowed letters, digits and _@.-", yaml_text(value));
  return take_text(field, value, b->variant, sizeof b->variant, error);
}

static assay_status take_why(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  return take_text(field, value, ((binding *)context)->why, sizeof((binding *)context)->why, error);
}

static assay_status take_versions(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  return take_text(field, value, ((binding *)context)->versions, sizeof((binding *)context)->versions, error);
}

static assay_status take_symbol(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  return take_text(field, value, ((binding *)context)->call.symbol, sizeof((binding *)context)->call.symbol, error);
}

static assay_status one_device(binding *b, yaml_node value, assay_error *error) {
  if (yaml_kind(value) != NODE_SCALAR) return yaml_fail(value, error, "device: found no word, allowed simt, cuda");
  const bool simt = strcmp(yaml_text(value), "simt") == 0;
  if (!simt && strcmp(yaml_text(value), "cuda") != 0)
    return yaml_fail(value, error, "device: found '%.60s', allowed simt, cuda", yaml_text(value));
  b->simt = b->simt || simt;
  b->cuda = b->cuda || !simt;
  return ASSAY_OK;
}

static assay_status take_device(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  assay_status status = ASSAY_OK;
  (void)field;
  if (yaml_kind(value) == NODE_SCALAR) return one_device(context, value, error);
  for (int32_t i = 0; i < yaml_count(value) && status == ASSAY_OK; ++i)
    status = one_device(context, yaml_item(value, i), error);
  if (status == ASSAY_OK && yaml_count(value) == 0)
    return yaml_fail(value, error, "device: found none, allowed simt, cuda");
  return status;
}

/* One list of words for each axis of the operator, with '|' between them, as variants have it. */
static assay_status take_claims(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  binding *b = context;
  const char *usual = b->op->form == ASSAY_PAGED ? "dtype,kv_dtype,layout,mode" : "dtype";
  const char *axes = b->op->axes != NULL ? b->op->axes : usual;
  int32_t wanted = 1, found = 1;
  for (const char *at = axes; *at != '\0'; ++at)
    wanted += *at == ',';
  for (const char *at = yaml_text(value); *at != '\0'; ++at)
    found += *at == '|';
  if (found != wanted || strpbrk(yaml_text(value), " \t") != NULL)
    return yaml_fail(value, error, "claims: found %d lists, allowed %d without blanks, with | between them: %s", found,
                     wanted, axes);
  return take_text(field, value, b->claims, sizeof b->claims, error);
}

static assay_status take_contract(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  binding *b = context;
  assay_status status = ASSAY_OK;
  (void)field;
  for (int32_t i = 0; i < yaml_count(value) && status == ASSAY_OK; ++i) {
    const yaml_node key = yaml_key(value, i), at = yaml_value(value, i);
    assay_error inner = {""};
    status = contract_set(&b->contract, yaml_kind(key) == NODE_SCALAR ? yaml_text(key) : "",
                          yaml_kind(at) == NODE_SCALAR ? yaml_text(at) : NULL, &inner);
    if (status != ASSAY_OK) status = yaml_fail_with(key, &inner, status, error);
  }
  return status;
}

static assay_status take_sums(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  binding *b = context;
  assay_status status = ASSAY_OK;
  (void)field;
  if (b->op->product == NULL)
    return yaml_fail(value, error, "sums: found with %s, allowed with products of matrices", b->op->name);
  for (int32_t i = 0; i < yaml_count(value) && status == ASSAY_OK; ++i) {
    const yaml_node key = yaml_key(value, i), at = yaml_value(value, i);
    assay_error inner = {""};
    status = sums_set(&b->sums, yaml_kind(key) == NODE_SCALAR ? yaml_text(key) : "",
                      yaml_kind(at) == NODE_SCALAR ? yaml_text(at) : NULL, &inner);
    if (status != ASSAY_OK) status = yaml_fail_with(key, &inner, status, error);
  }
  if (status == ASSAY_OK && b->sums.unit == ASSAY_SUM_NONE)
    return yaml_fail(value, error, "sums: unit: found none, allowed the instruction that sums");
  return status;
}

/* ---- buffers and conditions -------------------------------------------------------------------------- */

static assay_status take_bytes(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  char *end = NULL;
  const long long bytes = strtoll(yaml_text(value), &end, 10);
  (void)field;
  if (end == yaml_text(value) || *end != '\0' || bytes < 1 || bytes > (1LL << 40))
    return yaml_fail(value, error, "bytes: found '%.60s', allowed 1 to 2^40", yaml_text(value));
  ((bind_scratch *)context)->bytes = bytes;
  return ASSAY_OK;
}

static assay_status take_place(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  (void)field;
  return bind_place(value, &((bind_scratch *)context)->host, error);
}

static assay_status take_scratch(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  static const yaml_field fields[] = {{"bytes", NODE_SCALAR, true, take_bytes, NULL},
                                      {"place", NODE_SCALAR, false, take_place, NULL}};
  binding *b = context;
  (void)field;
  for (int32_t i = 0; i < yaml_count(value); ++i) {
    const yaml_node key = yaml_key(value, i);
    if (b->scratches == BIND_SCRATCH)
      return yaml_fail(key, error, "scratch: found more than %d buffers, allowed %d", BIND_SCRATCH, BIND_SCRATCH);
    bind_scratch *made = &b->scratch[b->scratches++];
    const char *name = yaml_kind(key) == NODE_SCALAR ? yaml_text(key) : "";
    if (name[0] == '\0' || strlen(name) >= sizeof made->name || bind_known_word(b, name, false))
      return yaml_fail(key, error, "scratch: found '%.60s', allowed a name of its own, 1 to %zu characters", name,
                       sizeof made->name - 1);
    (void)snprintf(made->name, sizeof made->name, "%s", name);
    const assay_status status = yaml_walk(yaml_value(value, i), fields, 2, made, error);
    if (status != ASSAY_OK) return status;
  }
  return ASSAY_OK;
}

/* Reads one value that an entry of `only` allows. */
static assay_status only_value(const binding *b, bind_only *only, const char *key, yaml_node at, assay_error *error) {
  const char *text = yaml_kind(at) == NODE_SCALAR ? yaml_text(at) : "";
  char *end = NULL;
  double number = strtod(text, &end);
  bool fine = end != text && *end == '\0' && number == number;
  if (only->kind == ONLY_ARG) {
    fine = false;
    for (int d = ASSAY_F32; d < ASSAY_DTYPE_COUNT && !fine; ++d) {
      fine = strcmp(assay_dtype_name((assay_dtype)d), text) == 0;
      number = d;
    }
  } else if (only->kind == ONLY_PARAM && b->op->params[only->index].kind == ASSAY_BOOL) {
    fine = strcmp(text, "true") == 0 || strcmp(text, "false") == 0;
    number = text[0] == 't';
  } else if (only->kind == ONLY_PARAM && b->op->params[only->index].kind == ASSAY_ENUM) {
    fine = bind_enum_find(b->op->params[only->index].names, text, &number);
  }
  if (!fine || only->count == BIND_VALUES)
    return yaml_fail(at, error, "only: %.60s: found '%.60s', allowed up to %d %s", key, text, BIND_VALUES,
                     only->kind == ONLY_ARG                          ? "types"
                     : only->kind == ONLY_DIM                        ? "numbers"
                     : b->op->params[only->index].kind == ASSAY_ENUM ? b->op->params[only->index].names
                     : b->op->params[only->index].kind == ASSAY_BOOL ? "of true, false"
                                                                     : "numbers");
  only->value[only->count++] = number;
  return ASSAY_OK;
}

static assay_status take_only(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  binding *b = context;
  (void)field;
  for (int32_t i = 0; i < yaml_count(value); ++i) {
    const yaml_node key = yaml_key(value, i), list = yaml_value(value, i);
    const char *name = yaml_kind(key) == NODE_SCALAR ? yaml_text(key) : "";
    const int32_t arg = bind_arg_index(b->op, name), param = bind_param_index(b->op, name),
                  dim = bind_dim_index(b->op, name);
    const bool group = strcmp(name, "group") == 0 && bind_dim_index(b->op, "H_kv") >= 0;
    if (arg < 0 && param < 0 && dim < 0 && !group) return bind_unknown(b, key, "only", ", group", error);
    if (b->onlys == BIND_ONLY)
      return yaml_fail(key, error, "only: found more than %d keys, allowed %d", BIND_ONLY, BIND_ONLY);
    bind_only *only = &b->only[b->onlys++];
    only->kind = arg >= 0 ? ONLY_ARG : param >= 0 ? ONLY_PARAM : dim >= 0 ? ONLY_DIM : ONLY_GROUP;
    only->index = arg >= 0 ? arg : param >= 0 ? param : dim;
    if (yaml_kind(list) == NODE_MAP)
      return yaml_fail(list, error, "only: %.60s: found a map, allowed a value or a list", name);
    const int32_t count = yaml_kind(list) == NODE_LIST ? yaml_count(list) : 1;
    for (int32_t v = 0; v < count; ++v) {
      const yaml_node at = yaml_kind(list) == NODE_LIST ? yaml_item(list, v) : list;
      const assay_status status = only_value(b, only, name, at, error);
      if (status != ASSAY_OK) return status;
    }
  }
  return ASSAY_OK;
}

static assay_status take_needs(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  binding *b = context;
  (void)field;
  for (int32_t i = 0; i < yaml_count(value); ++i) {
    int32_t arg = -1;
    const assay_status status = bind_argument(b, yaml_item(value, i), "needs", &arg, error);
    if (status != ASSAY_OK) return status;
    if (b->need_count < ASSAY_MAX_ARGS) b->needs[b->need_count++] = arg;
  }
  return ASSAY_OK;
}

/* Reads a list of arguments as bits. */
static assay_status take_bits(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  binding *b = context;
  uint32_t *to = strcmp(field->key, "ignores") == 0      ? &b->ignores
                 : strcmp(field->key, "dense") == 0      ? &b->dense
                 : strcmp(field->key, "same_types") == 0 ? &b->same_types
                                                         : &b->alike;
  for (int32_t i = 0; i < yaml_count(value); ++i) {
    int32_t arg = -1;
    const assay_status status = bind_argument(b, yaml_item(value, i), field->key, &arg, error);
    if (status != ASSAY_OK) return status;
    *to |= 1u << arg;
  }
  return ASSAY_OK;
}

static assay_status take_multiples(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  binding *b = context;
  (void)field;
  for (int32_t i = 0; i < yaml_count(value); ++i) {
    const yaml_node key = yaml_key(value, i), at = yaml_value(value, i);
    const char *name = yaml_kind(key) == NODE_SCALAR ? yaml_text(key) : "";
    const char *text = yaml_kind(at) == NODE_SCALAR ? yaml_text(at) : "";
    const int32_t dim = bind_dim_index(b->op, name);
    char *end = NULL;
    const long of = strtol(text, &end, 10);
    if (dim < 0) return yaml_fail(key, error, "multiples: found '%.60s', allowed a dimension of %s", name, b->op->name);
    if (end == text || *end != '\0' || of < 1 || of > 65536)
      return yaml_fail(at, error, "multiples: %.60s: found '%.60s', allowed a number from 1 to 65536", name, text);
    if (b->multiples == BIND_ONLY)
      return yaml_fail(key, error, "multiples: found more than %d keys, allowed %d", BIND_ONLY, BIND_ONLY);
    b->multiple[b->multiples++] = (bind_multiple){.dim = dim, .of = of};
  }
  return ASSAY_OK;
}

static assay_status take_aligned(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  char *end = NULL;
  const long bytes = strtol(yaml_text(value), &end, 10);
  (void)field;
  if (end == yaml_text(value) || *end != '\0' || bytes < 1 || bytes > 256 || (bytes & (bytes - 1)) != 0)
    return yaml_fail(value, error, "aligned: found '%.60s', allowed a power of two up to 256", yaml_text(value));
  ((binding *)context)->aligned = (int32_t)bytes;
  return ASSAY_OK;
}

static assay_status take_returns(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  binding *b = context;
  (void)field;
  const assay_status status = bind_argument(b, value, "returns", &b->returns, error);
  if (status != ASSAY_OK) return status;
  if (b->op->args[b->returns].role == ASSAY_OUT) return ASSAY_OK;
  return yaml_fail(value, error, "returns: found '%.60s', which is no pure output", yaml_text(value));
}

/* ---- the file ---------------------------------------------------------------------------------------- */

static assay_status take_args(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  (void)field;
  return bind_args(context, &((binding *)context)->call, value, error);
}

static assay_status take_plan_symbol(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  return take_text(field, value, ((binding *)context)->plan.symbol, sizeof((binding *)context)->plan.symbol, error);
}

static assay_status take_plan_args(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  (void)field;
  return bind_args(context, &((binding *)context)->plan, value, error);
}

static assay_status take_plan(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  static const yaml_field fields[] = {{"symbol", NODE_SCALAR, true, take_plan_symbol, NULL},
                                      {"args", NODE_LIST, true, take_plan_args, NULL}};
  (void)field;
  return yaml_walk(value, fields, 2, context, error);
}

/* The operator comes first: the other keys are read by its tables. */
static const yaml_field fields[] = {{"operator", NODE_SCALAR, true, take_operator, NULL},
                                    {"variant", NODE_SCALAR, true, take_variant, NULL},
                                    {"why", NODE_SCALAR, false, take_why, NULL},
                                    {"versions", NODE_SCALAR, false, take_versions, NULL},
                                    {"device", NODE_SCALAR | NODE_LIST, true, take_device, NULL},
                                    {"symbol", NODE_SCALAR, true, take_symbol, NULL},
                                    {"scratch", NODE_MAP, false, take_scratch, NULL},
                                    {"plan", NODE_MAP, false, take_plan, NULL},
                                    {"args", NODE_LIST, true, take_args, NULL},
                                    {"returns", NODE_SCALAR, false, take_returns, NULL},
                                    {"claims", NODE_SCALAR, true, take_claims, NULL},
                                    {"contract", NODE_MAP, false, take_contract, NULL},
                                    {"sums", NODE_MAP, false, take_sums, NULL},
                                    {"only", NODE_MAP, false, take_only, NULL},
                                    {"needs", NODE_LIST, false, take_needs, NULL},
                                    {"ignores", NODE_LIST, false, take_bits, NULL},
                                    {"dense", NODE_LIST, false, take_bits, NULL},
                                    {"same_strides", NODE_LIST, false, take_bits, NULL},
                                    {"same_types", NODE_LIST, false, take_bits, NULL},
                                    {"multiples", NODE_MAP, false, take_multiples, NULL},
                                    {"aligned", NODE_SCALAR, false, take_aligned, NULL}};

/* Refuses a file that uses the plan's result without a plan, or passes too little. */
static assay_status check_whole(const binding *b, yaml_node root, assay_error *error) {
  bool planned = false;
  for (int32_t i = 0; i < b->call.count; ++i)
    planned = planned || b->call.arg[i].kind == BIND_PLANNED;
  if (planned && b->plan.symbol[0] == '\0')
    return yaml_fail(root, error, "args: found planned, allowed with the key plan");
  for (int32_t i = 0; i < b->plan.count; ++i)
    if (b->plan.arg[i].kind == BIND_PLANNED)
      return yaml_fail(root, error, "plan: args: found planned, which the plan returns, allowed in args");
  for (int32_t i = 0; b->returns >= 0 && i < b->call.count; ++i)
    if (b->call.arg[i].kind == BIND_TENSOR && b->call.arg[i].index == b->returns)
      return yaml_fail(root, error, "returns: found '%s', which is among args, allowed in one of both",
                       b->op->args[b->returns].name);
  for (int32_t i = 0; i < b->op->arg_count; ++i) {
    const bool ignored = (b->ignores >> i & 1) != 0 && b->op->args[i].role == ASSAY_IN;
    if (!b->op->args[i].optional && !bind_passes(b, i) && !ignored)
      return yaml_fail(root, error, "args: found no '%s', which %s has: allowed in args, %s", b->op->args[i].name,
                       b->op->name, b->op->args[i].role == ASSAY_IN ? "or among ignores" : "or as returns");
  }
  return ASSAY_OK;
}

assay_status bind_read(const char *path, binding *made, assay_error *error) {
  yaml_file *file = NULL;
  *made = (binding){.returns = -1, .contract = contract_usual};
  (void)snprintf(made->path, sizeof made->path, "%s", path);
  (void)snprintf(made->why, sizeof made->why, "through tvm-ffi");
  assay_status status = yaml_open(path, &file, error);
  if (status != ASSAY_OK) return status;
  status = yaml_walk(yaml_root(file), fields, sizeof fields / sizeof *fields, made, error);
  if (status == ASSAY_OK) status = check_whole(made, yaml_root(file), error);
  for (int32_t i = 0; i < ASSAY_MAX_ARGS && status == ASSAY_OK && i < made->op->arg_count; ++i)
    made->passes_arg[i] = bind_passes(made, i);
  for (int32_t i = 0; i < ASSAY_MAX_PARAMS && status == ASSAY_OK && i < made->op->param_count; ++i)
    made->passes_param[i] = bind_passes_param(made, i);
  yaml_close(file);
  return status;
}
