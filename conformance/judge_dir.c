/* judge_dir.c: manifest.json to calls, calls to verdicts. */
#include "judge_dir.h"

#include <stdlib.h>
#include <string.h>

#include "core/files/bytes.h"
#include "core/json.h"
#include "core/registry.h"
#include "foreign.h"
#include "npy.h"

typedef long long ll; /* for messages */

enum { PATH_ROOM = 4096 };

typedef struct result_file {
  int32_t arg;
  npy_tensor tensor;
} result_file;

/* One entry of the manifest, with all its files read. */
typedef struct folder_case {
  char name[120];
  foreign_call call;
  result_file result[ASSAY_MAX_OUTPUTS];
  int32_t results;
} folder_case;

/* ---- what a call is made of -------------------------------------------------------------------------- */

static assay_status take_params(foreign_call *f, const json_value *params, assay_error *error) {
  assay_status status = ASSAY_OK;
  if (params == NULL) return ASSAY_OK;
  if (params->kind != JSON_OBJECT) return assay_fail(error, ASSAY_ERR_INPUT, "params: found no object, allowed one");
  for (const json_value *at = params->child; at != NULL && status == ASSAY_OK; at = at->next) {
    if (at->kind == JSON_NUMBER || at->kind == JSON_BOOL)
      status = foreign_set(f, at->key, at->number, error);
    else if (at->kind == JSON_STRING)
      status = foreign_set_text(f, at->key, at->text, error);
    else
      status =
          assay_fail(error, ASSAY_ERR_INPUT, "params: %.60s: found no number, boolean or name, allowed one", at->key);
  }
  return status;
}

static assay_status take_dtype(const json_value *value, assay_dtype *to, assay_error *error) {
  const char *text = value->kind == JSON_STRING ? value->text : "";
  for (int d = ASSAY_NONE; d <= ASSAY_E5M2; ++d)
    if (strcmp(assay_dtype_name((assay_dtype)d), text) == 0) {
      *to = (assay_dtype)d;
      return ASSAY_OK;
    }
  return assay_fail(error, ASSAY_ERR_INPUT, "contract: %.60s: found '%.40s', allowed none, f32, f16, bf16, e4m3, e5m2",
                    value->key, text);
}

static assay_status take_count(const json_value *value, int32_t *to, assay_error *error) {
  int64_t whole = 0;
  if (!json_whole(value, &whole) || whole < 0 || whole > INT32_MAX)
    return assay_fail(error, ASSAY_ERR_INPUT, "contract: %.60s: found '%.40s', allowed a whole number from 0 on",
                      value->key, value->text != NULL ? value->text : "no number");
  *to = (int32_t)whole;
  return ASSAY_OK;
}

static assay_status take_real(const json_value *value, double *to, assay_error *error) {
  if (value->kind != JSON_NUMBER || !(value->number >= 0 && value->number <= 1e6))
    return assay_fail(error, ASSAY_ERR_INPUT, "contract: %.60s: found '%.40s', allowed a number from 0 to 1e6",
                      value->key, value->text != NULL ? value->text : "no number");
  *to = value->number;
  return ASSAY_OK;
}

static assay_status take_contract(assay_contract *c, const json_value *contract, assay_error *error) {
  const struct {
    const char *name;
    assay_dtype *dtype;
    int32_t *count;
    double *real;
  } rows[] = {{"k", &c->k, NULL, NULL},
              {"v", &c->v, NULL, NULL},
              {"score", &c->score, NULL, NULL},
              {"p", &c->p, NULL, NULL},
              {"partial", &c->partial, NULL, NULL},
              {"rotated", &c->rotated, NULL, NULL},
              {"exp_ulp", NULL, NULL, &c->exp_ulp},
              {"qk_lanes", NULL, &c->qk_lanes, NULL},
              {"pv_lanes", NULL, &c->pv_lanes, NULL},
              {"lanes", NULL, &c->lanes, NULL},
              {"keys_per_split", NULL, &c->keys_per_split, NULL},
              {"denominator_add", NULL, NULL, &c->denominator_add}};
  enum { ROWS = sizeof rows / sizeof *rows };
  if (contract == NULL) return ASSAY_OK;
  if (contract->kind != JSON_OBJECT)
    return assay_fail(error, ASSAY_ERR_INPUT, "contract: found no object, allowed one");
  for (const json_value *at = contract->child; at != NULL; at = at->next) {
    size_t i = 0;
    while (i < ROWS && strcmp(rows[i].name, at->key) != 0)
      ++i;
    if (i == ROWS)
      return assay_fail(error, ASSAY_ERR_INPUT,
                        "contract: found '%.60s', allowed: k, v, score, p, partial, rotated, exp_ulp, qk_lanes, "
                        "pv_lanes, lanes, keys_per_split, denominator_add",
                        at->key);
    const assay_status status = rows[i].dtype != NULL   ? take_dtype(at, rows[i].dtype, error)
                                : rows[i].count != NULL ? take_count(at, rows[i].count, error)
                                                        : take_real(at, rows[i].real, error);
    if (status != ASSAY_OK) return status;
  }
  return ASSAY_OK;
}

/* ---- files ------------------------------------------------------------------------------------------- */

/* "q.bf16.npy", or {"file": …, "dtype": …, "shape": [...], "first_block": N}. */
static assay_status read_file(const char *folder, const json_value *value, npy_tensor *made, assay_error *error) {
  static const char *const known[] = {"file", "dtype", "shape", "first_block"};
  const char *name = value->kind == JSON_STRING ? value->text : json_text(value, "file", NULL);
  const char *dtype = json_text(value, "dtype", NULL);
  const json_value *axes = json_member(value, "shape");
  char path[PATH_ROOM], shape[200] = "";
  for (const json_value *at = value->kind == JSON_OBJECT ? value->child : NULL; at != NULL; at = at->next) {
    bool is = false;
    for (size_t i = 0; i < sizeof known / sizeof *known; ++i)
      is = is || strcmp(known[i], at->key) == 0;
    if (!is)
      return assay_fail(error, ASSAY_ERR_INPUT, "found key '%.60s', allowed: file, dtype, shape, first_block", at->key);
  }
  if (name == NULL || name[0] == '\0' || name[0] == '/' || strstr(name, "..") != NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "file: found '%.100s', allowed the name of a file in the folder",
                      name != NULL ? name : "nothing");
  if (axes != NULL && axes->kind != JSON_ARRAY)
    return assay_fail(error, ASSAY_ERR_INPUT, "shape: found no list, allowed one");
  for (const json_value *at = axes != NULL ? axes->child : NULL; at != NULL; at = at->next) {
    int64_t length = 0;
    const size_t used = strlen(shape);
    if (!json_whole(at, &length) || length < 0 || used > sizeof shape - 32)
      return assay_fail(error, ASSAY_ERR_INPUT, "shape: found '%.40s', allowed lengths from 0 on",
                        at->text != NULL ? at->text : "no number");
    (void)snprintf(shape + used, sizeof shape - used, "%s%lld", used > 0 ? "," : "", (ll)length);
  }
  const char *dot = strrchr(name, '.');
  if ((dot == NULL || strcmp(dot, ".npy") != 0) && (dtype == NULL || axes == NULL))
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: %.100s: found none, raw bytes need dtype and shape",
                      dtype == NULL ? "dtype" : "shape", name);
  if (dtype != NULL && npy_type_find(dtype) < 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "dtype: found '%.40s', allowed f32, f16, bf16, e4m3, e5m2, i32, i64",
                      dtype);
  (void)snprintf(path, sizeof path, "%.3000s/%.1000s", folder, name);
  return npy_read(path, dtype, axes != NULL ? shape : NULL, made, error);
}

static assay_status named(const char *what, const char *key, assay_status status, const assay_error *inner,
                          assay_error *error) {
  return status == ASSAY_OK ? ASSAY_OK : assay_fail(error, status, "%s: %.60s: %.1500s", what, key, inner->text);
}

static int32_t arg_index(const assay_op *op, const char *name) {
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (strcmp(op->args[i].name, name) == 0) return i;
  return -1;
}

static assay_status take_inputs(const char *folder, foreign_call *f, const json_value *inputs, assay_error *error) {
  if (inputs == NULL || inputs->kind != JSON_OBJECT)
    return assay_fail(error, ASSAY_ERR_INPUT, "inputs: found no object, allowed argument names with their files");
  for (const json_value *at = inputs->child; at != NULL; at = at->next) {
    npy_tensor t = {0};
    assay_error inner = {""};
    int64_t first = 0;
    const json_value *block = json_member(at, "first_block");
    const int32_t arg = arg_index(f->op, at->key);
    if (arg >= 0 && f->op->args[arg].role == ASSAY_OUT)
      return assay_fail(error, ASSAY_ERR_INPUT, "inputs: found '%.60s', which is an output", at->key);
    if (arg >= 0 && f->arg[arg].data != NULL)
      return assay_fail(error, ASSAY_ERR_INPUT, "inputs: found '%.60s' twice, allowed once", at->key);
    assay_status status = read_file(folder, at, &t, &inner);
    if (status == ASSAY_OK && t.type >= ASSAY_DTYPE_COUNT)
      status = assay_fail(&inner, ASSAY_ERR_INPUT, "dtype: found %s, allowed a type that operators take: name it",
                          npy_type_name(t.type));
    if (status == ASSAY_OK) status = foreign_tensor(f, at->key, (assay_dtype)t.type, t.rank, t.shape, t.data, &inner);
    npy_free(&t);
    if (status == ASSAY_OK && block != NULL && !json_whole(block, &first))
      status = assay_fail(&inner, ASSAY_ERR_INPUT, "first_block: found no whole number, allowed one from 0 on");
    if (status == ASSAY_OK && block != NULL) status = foreign_first_block(f, at->key, first, &inner);
    if (status != ASSAY_OK) return named("inputs", at->key, status, &inner, error);
  }
  return ASSAY_OK;
}

/* What the engine wrote. An output of the call has its type and shape from here. */
static assay_status take_outputs(const char *folder, folder_case *c, const json_value *outputs, assay_error *error) {
  foreign_call *f = &c->call;
  if (outputs == NULL || outputs->kind != JSON_OBJECT || outputs->child == NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "outputs: found none, allowed argument names with their files");
  for (const json_value *at = outputs->child; at != NULL; at = at->next) {
    assay_error inner = {""};
    const int32_t arg = arg_index(f->op, at->key);
    if (arg >= 0 && f->op->args[arg].role == ASSAY_IN)
      return assay_fail(error, ASSAY_ERR_INPUT, "outputs: found '%.60s', which is an input", at->key);
    for (int32_t r = 0; r < c->results; ++r)
      if (c->result[r].arg == arg)
        return assay_fail(error, ASSAY_ERR_INPUT, "outputs: found '%.60s' twice, allowed once", at->key);
    if (c->results == ASSAY_MAX_OUTPUTS)
      return assay_fail(error, ASSAY_ERR_INPUT, "outputs: found more than %d", ASSAY_MAX_OUTPUTS);
    result_file *one = &c->result[c->results++];
    one->arg = arg;
    assay_status status = read_file(folder, at, &one->tensor, &inner);
    const npy_tensor *t = &one->tensor;
    if (status == ASSAY_OK && t->type >= ASSAY_DTYPE_COUNT)
      status = assay_fail(&inner, ASSAY_ERR_INPUT, "dtype: found %s, allowed a type that operators give: name it",
                          npy_type_name(t->type));
    if (status == ASSAY_OK && (arg < 0 || f->op->args[arg].role == ASSAY_OUT))
      status = foreign_tensor(f, at->key, (assay_dtype)t->type, t->rank, t->shape, NULL, &inner);
    if (status == ASSAY_OK && f->arg[arg].data == NULL)
      status = assay_fail(&inner, ASSAY_ERR_INPUT, "found the result of what is not among the inputs");
    if (status == ASSAY_OK && (assay_dtype)t->type != f->arg[arg].dtype)
      status = assay_fail(&inner, ASSAY_ERR_INPUT, "dtype: found %s, allowed %s, that of the input",
                          npy_type_name(t->type), assay_dtype_name(f->arg[arg].dtype));
    if (status != ASSAY_OK) return named("outputs", at->key, status, &inner, error);
  }
  return ASSAY_OK;
}

/* ---- one case ---------------------------------------------------------------------------------------- */

static void free_case(folder_case *c) {
  foreign_free(&c->call);
  for (int32_t r = 0; r < ASSAY_MAX_OUTPUTS; ++r)
    npy_free(&c->result[r].tensor);
}

static assay_status read_case(const char *folder, const json_value *entry, int64_t number, folder_case *c,
                              assay_error *error) {
  static const char *const known[] = {"name",     "case",   "operator", "tier",  "params",
                                      "contract", "inputs", "outputs",  "format"};
  memset(c, 0, sizeof *c);
  (void)snprintf(c->name, sizeof c->name, "case %lld", (ll)number);
  if (entry->kind != JSON_OBJECT)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found no object, allowed one", c->name);
  for (const json_value *at = entry->child; at != NULL; at = at->next) {
    bool is = false;
    for (size_t i = 0; i < sizeof known / sizeof *known; ++i)
      is = is || strcmp(known[i], at->key) == 0;
    if (!is)
      return assay_fail(error, ASSAY_ERR_INPUT,
                        "%s: found key '%.60s', allowed: name, case, operator, tier, params, contract, inputs, outputs",
                        c->name, at->key);
  }
  (void)snprintf(c->name, sizeof c->name, "%.100s", json_text(entry, "name", json_text(entry, "operator", c->name)));
  const char *op = json_text(entry, "operator", NULL), *tier = json_text(entry, "tier", "calibrated");
  assay_error inner = {""};
  assay_status status = op != NULL ? foreign_begin(&c->call, op, &inner)
                                   : assay_fail(&inner, ASSAY_ERR_INPUT, "operator: found none, allowed a name");
  if (status == ASSAY_OK && strcmp(tier, "exact") != 0 && strcmp(tier, "calibrated") != 0)
    status = assay_fail(&inner, ASSAY_ERR_INPUT, "tier: found '%.40s', allowed exact, calibrated", tier);
  c->call.exact = strcmp(tier, "exact") == 0;
  if (status == ASSAY_OK) status = take_params(&c->call, json_member(entry, "params"), &inner);
  if (status == ASSAY_OK) status = take_contract(&c->call.contract, json_member(entry, "contract"), &inner);
  if (status == ASSAY_OK) status = take_inputs(folder, &c->call, json_member(entry, "inputs"), &inner);
  if (status == ASSAY_OK) status = take_outputs(folder, c, json_member(entry, "outputs"), &inner);
  if (status == ASSAY_OK) status = foreign_reference(&c->call, &inner);
  if (status != ASSAY_OK) return assay_fail(error, status, "%s: %.1800s", c->name, inner.text);
  return ASSAY_OK;
}

/* Of a cache, the new rows alone? Everything else has the argument's own shape. */
static assay_status check_shape(const foreign_call *f, int32_t output, const npy_tensor *t, bool *new_rows,
                                assay_error *error) {
  const assay_tensor *about = &f->arg[f->output[output]];
  const int64_t rows = foreign_rows(f, output), width = foreign_width(f, output);
  bool same = t->rank == about->rank;
  for (int32_t a = 0; a < t->rank && same; ++a)
    same = t->shape[a] == about->shape[a] - (a == 0 ? f->first_block[f->output[output]] : 0);
  *new_rows = !same && foreign_is_cache(f, output) && t->rank == 3 && t->shape[0] == rows && t->count == rows * width;
  if (same || *new_rows) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "outputs: %s: shape: found %lld elements on %d axes, allowed [%s]",
                    f->op->args[f->output[output]].name, (ll)t->count, t->rank, f->op->args[f->output[output]].shape);
}

static assay_status judge_case(const folder_case *c, bool shapes_only, truth_log *log, assay_error *error) {
  const foreign_call *f = &c->call;
  for (int32_t r = 0; r < c->results; ++r) {
    char name[200];
    foreign_verdict v;
    assay_error inner = {""};
    bool new_rows = false;
    const char *arg = f->op->args[c->result[r].arg].name;
    const int32_t o = foreign_output(f, arg);
    assay_status status = check_shape(f, o, &c->result[r].tensor, &new_rows, &inner);
    if (status == ASSAY_OK && shapes_only) continue;
    if (status == ASSAY_OK) status = foreign_judge(f, o, c->result[r].tensor.data, new_rows, &v, &inner);
    if (status != ASSAY_OK) return assay_fail(error, status, "%s: %.1800s", c->name, inner.text);
    (void)snprintf(name, sizeof name, "%s, %s", c->name, arg);
    if (v.wrong)
      truth_fail(log, name, "%s; %lld of %lld elements", v.message, (ll)v.wrong_elements, (ll)v.elements);
    else
      truth_pass(log, name, "%lld elements; of the allowed: element %.3f, row %.3f, request %.3f", (ll)v.elements,
                 v.ratio_element, v.ratio_row, v.ratio_request);
  }
  return ASSAY_OK;
}

assay_status judge_dir(const char *folder, truth_log *log, assay_error *error) {
  char path[PATH_ROOM];
  unsigned char *text = NULL;
  int64_t size = 0;
  const json_value *root = NULL;
  assay_error inner = {""};
  json_reader *reader = json_open();
  (void)snprintf(path, sizeof path, "%.4000s/%s", folder, JUDGE_DIR_MANIFEST);
  assay_status status = reader != NULL ? file_bytes(path, (int64_t)1 << 28, &text, &size, error)
                                       : assay_fail(error, ASSAY_ERR_MEMORY, "judge: out of memory");
  if (status == ASSAY_OK && json_parse(reader, (const char *)text, (size_t)size, &root, &inner) != ASSAY_OK)
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: JSON: %s", path, inner.text);
  const json_value *list = status == ASSAY_OK ? json_member(root, "cases") : NULL;
  if (list != NULL && list->kind != JSON_ARRAY)
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: cases: found no list, allowed one", path);
  /* Every file is looked at before the first line. */
  for (int pass = 0; pass < 2 && status == ASSAY_OK; ++pass) {
    int64_t number = 0;
    const json_value *at = list != NULL ? list->child : root;
    for (; at != NULL && status == ASSAY_OK; at = list != NULL ? at->next : NULL, ++number) {
      static folder_case one;
      inner = (assay_error){""};
      status = read_case(folder, at, number, &one, &inner);
      if (status == ASSAY_OK) status = judge_case(&one, pass == 0, log, &inner);
      if (status != ASSAY_OK) (void)assay_fail(error, status, "%s: %.1900s", path, inner.text);
      free_case(&one);
    }
  }
  free(text);
  json_close(reader);
  return status;
}
