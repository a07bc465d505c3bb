/* judge_dir.c: reads manifest.json into calls, and judges them. */
#include "truth.h"

#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/files/bytes.h"
#include "core/files/tensor_file.h"
#include "core/json.h"
#include "core/registry.h"
#include "conformance/case/case.h"
#include "conformance/trial/trial.h"
#include "conformance/text/text.h"
#include "truth_internal.h"

typedef long long ll; /* for messages */

enum { PATH_ROOM = 4096 };

typedef struct result_file {
  int32_t arg;
  npy_tensor tensor;
} result_file;

/* The folder, and the file of tensors in it that was read last: one file often has all. */
typedef struct folder_files {
  const char *folder;
  char path[PATH_ROOM]; /* the path of `open`; "": none */
  tensor_file open;
} folder_files;

/* One entry of the manifest, with all its files read. */
typedef struct folder_case {
  char name[120];
  int64_t line; /* the line of the entry or member that is read, for messages */
  foreign_call call;
  result_file result[ASSAY_MAX_OUTPUTS];
  int32_t results;
} folder_case;

/* Refuses a member of one of these names that is no text. `list`: the names, with blanks between them. */
static assay_status check_texts(const json_value *object, const char *list, assay_error *error) {
  for (const json_value *at = object->kind == JSON_OBJECT ? object->child : NULL; at != NULL; at = at->next) {
    const size_t size = strlen(at->key);
    bool is = false;
    for (const char *w = list; *w != '\0' && !is; w += strcspn(w, " "), w += *w == ' ')
      is = strcspn(w, " ") == size && strncmp(w, at->key, size) == 0;
    if (is && at->kind != JSON_STRING)
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %s, allowed a text", at->key,
                        at->kind == JSON_NUMBER  ? "a number"
                        : at->kind == JSON_ARRAY ? "a list"
                        : at->kind == JSON_NULL  ? "null"
                                                 : "another value");
  }
  return ASSAY_OK;
}

static int32_t param_index(const assay_op *op, const char *name) {
  for (int32_t i = 0; i < op->param_count; ++i)
    if (strcmp(op->params[i].name, name) == 0) return i;
  return -1;
}

/* ---- what a call is made of -------------------------------------------------------------------------- */

static assay_status take_params(foreign_call *f, const json_value *params, assay_error *error) {
  assay_status status = ASSAY_OK;
  if (params == NULL) return ASSAY_OK;
  if (params->kind != JSON_OBJECT) return assay_fail(error, ASSAY_ERR_INPUT, "params: found no object, allowed one");
  for (const json_value *at = params->child; at != NULL && status == ASSAY_OK; at = at->next) {
    const int32_t param = param_index(f->op, at->key);
    if (at->kind == JSON_BOOL && param >= 0 && f->op->params[param].kind == ASSAY_REAL)
      status = assay_fail(error, ASSAY_ERR_INPUT, "params: %.60s: found %s, allowed a number", at->key,
                          at->number != 0 ? "true" : "false");
    else if (at->kind == JSON_NUMBER || at->kind == JSON_BOOL)
      status = foreign_set(f, at->key, at->number, error);
    else if (at->kind == JSON_STRING)
      status = foreign_set_text(f, at->key, at->text, error);
    else
      status =
          assay_fail(error, ASSAY_ERR_INPUT, "params: %.60s: found no number, boolean or name, allowed one", at->key);
  }
  return status;
}

static assay_status take_contract(assay_contract *c, const json_value *contract, assay_error *error) {
  if (contract == NULL) return ASSAY_OK;
  if (contract->kind != JSON_OBJECT)
    return assay_fail(error, ASSAY_ERR_INPUT, "contract: found no object, allowed one");
  for (const json_value *at = contract->child; at != NULL; at = at->next) {
    const bool written = at->kind == JSON_NUMBER || at->kind == JSON_STRING;
    const char *flag = at->kind == JSON_BOOL ? (at->number != 0 ? "true" : "false") : NULL;
    const assay_status status = contract_set(c, at->key, written ? at->text : flag, error);
    if (status != ASSAY_OK) return status;
  }
  return ASSAY_OK;
}

/* Reads the engine's sum contract, which its product is held to. */
static assay_status take_sums(foreign_call *f, const json_value *sums, assay_error *error) {
  if (sums == NULL) return ASSAY_OK;
  if (sums->kind != JSON_OBJECT) return assay_fail(error, ASSAY_ERR_INPUT, "sums: found no object, allowed one");
  if (f->op->product == NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "sums: found with %s, allowed with products of matrices", f->op->name);
  for (const json_value *at = sums->child; at != NULL; at = at->next) {
    const bool written = at->kind == JSON_NUMBER || at->kind == JSON_STRING;
    const assay_status status = sums_set(&f->sums, at->key, written ? at->text : NULL, error);
    if (status != ASSAY_OK) return status;
  }
  if (f->sums.unit != ASSAY_SUM_NONE) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "sums: unit: found none, allowed the instruction that sums");
}

/* ---- files ------------------------------------------------------------------------------------------- */

static bool ends_with(const char *text, const char *end) {
  const size_t n = strlen(text), m = strlen(end);
  return n >= m && strcmp(text + n - m, end) == 0;
}

/* Reads "[2, 3]" as "2,3". */
static assay_status read_shape(const json_value *axes, char *shape, size_t size, assay_error *error) {
  if (axes->kind != JSON_ARRAY) return assay_fail(error, ASSAY_ERR_INPUT, "shape: found no list, allowed one");
  for (const json_value *at = axes->child; at != NULL; at = at->next) {
    int64_t length = 0;
    const size_t used = strlen(shape);
    if (!json_whole(at, &length) || length < 0 || used > size - 32)
      return assay_fail(error, ASSAY_ERR_INPUT, "shape: found '%.40s', allowed lengths from 0 on",
                        at->text != NULL ? at->text : "no number");
    (void)snprintf(shape + used, size - used, "%s%lld", used > 0 ? "," : "", (ll)length);
  }
  return ASSAY_OK;
}

/* Takes one tensor of a .safetensors file by its name. */
static assay_status read_member(folder_files *files, const char *path, const char *name, npy_tensor *tensor,
                                assay_error *error) {
  const file_tensor *t = NULL;
  assay_error inner = {""};
  if (strcmp(files->path, path) != 0) {
    tensor_file_free(&files->open);
    files->path[0] = '\0';
    const assay_status status = tensor_file_safetensors(path, &files->open, error);
    if (status != ASSAY_OK) return status;
    (void)snprintf(files->path, sizeof files->path, "%s", path);
  }
  const file_tensor *any = tensor_file_find(&files->open, name);
  const assay_status status = any == NULL
                                  ? tensor_file_get(&files->open, name, ASSAY_NONE, 0, NULL, &t, &inner)
                                  : tensor_file_get(&files->open, name, ASSAY_NONE, any->rank, any->shape, &t, &inner);
  if (status != ASSAY_OK) return assay_fail(error, status, "%s: %s", path, inner.text);
  const size_t bytes = (size_t)(t->count * assay_dtype_size(t->dtype));
  *tensor = (npy_tensor){.type = (int)t->dtype, .rank = t->rank, .count = t->count, .data = malloc(bytes + 1)};
  if (tensor->data == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "%s: %s: out of memory", path, name);
  memcpy(tensor->shape, t->shape, sizeof tensor->shape);
  memcpy(tensor->data, t->data, bytes);
  return ASSAY_OK;
}

/* f64 is refused in the same words, whatever a name says: a name changes no number. */
static assay_status check_type(const char *path, const npy_tensor *t, assay_error *error) {
  if (t->type == NPY_F64)
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "dtype: found f64 in %s, allowed f32 and narrower: no operator takes f64, save the tensor as f32",
                      path);
  return ASSAY_OK;
}

/* Reads "q.bf16.npy", or {"file", "tensor", "dtype", "shape", "first_block"}. `arg`: the argument that it is for. */
static assay_status read_file(folder_files *files, const char *arg, const json_value *value, npy_tensor *loaded,
                              assay_error *error) {
  static const char *const known[] = {"file", "tensor", "dtype", "shape", "first_block"};
  const char *name = value->kind == JSON_STRING ? value->text : json_text(value, "file", NULL);
  const char *dtype = json_text(value, "dtype", NULL), *tensor = json_text(value, "tensor", NULL);
  const json_value *axes = json_member(value, "shape");
  char path[PATH_ROOM], shape[200] = "";
  assay_status status = check_texts(value, "file tensor dtype", error);
  if (status != ASSAY_OK) return status;
  for (const json_value *at = value->kind == JSON_OBJECT ? value->child : NULL; at != NULL; at = at->next) {
    bool is = false;
    for (size_t i = 0; i < sizeof known / sizeof *known; ++i)
      is = is || strcmp(known[i], at->key) == 0;
    if (!is)
      return assay_fail(error, ASSAY_ERR_INPUT, "found key '%.60s', allowed: file, tensor, dtype, shape, first_block",
                        at->key);
  }
  if (name == NULL || name[0] == '\0' || name[0] == '/' || strstr(name, "..") != NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "file: found '%.100s', allowed the name of a file in the folder",
                      name != NULL ? name : "nothing");
  status = axes != NULL ? read_shape(axes, shape, sizeof shape, error) : ASSAY_OK;
  if (status != ASSAY_OK) return status;
  (void)snprintf(path, sizeof path, "%.3000s/%.1000s", files->folder, name);
  const bool npy = ends_with(name, ".npy"), safe = ends_with(name, ".safetensors");
  if (safe && (dtype != NULL || axes != NULL))
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: %.100s: found one, allowed with .npy and raw files",
                      dtype != NULL ? "dtype" : "shape", name);
  if (!safe && tensor != NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "tensor: %.100s: found one, allowed with .safetensors", name);
  if (!safe && !npy && (dtype == NULL || axes == NULL))
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: %.100s: found none, raw bytes need dtype and shape",
                      dtype == NULL ? "dtype" : "shape", name);
  if (dtype != NULL && npy_type_find(dtype) < 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "dtype: found '%.40s', allowed f32, f16, bf16, e4m3, e5m2, i32, i64",
                      dtype);
  if (safe) return read_member(files, path, tensor != NULL ? tensor : arg, loaded, error);
  status = npy_read(path, npy ? NULL : dtype, axes != NULL ? shape : NULL, loaded, error);
  if (status == ASSAY_OK) status = check_type(path, loaded, error);
  if (status == ASSAY_OK && npy && dtype != NULL) status = npy_rename(loaded, path, dtype, error);
  return status;
}

static assay_status named(const char *what, const char *key, assay_status status, const assay_error *inner,
                          assay_error *error) {
  /* The reader of .npy names its options as `assay diff` has them. */
  const char *text = inner->text + (strncmp(inner->text, "--", 2) == 0 ? 2 : 0);
  return status == ASSAY_OK ? ASSAY_OK : assay_fail(error, status, "%s: %.60s: %.1500s", what, key, text);
}

static int32_t arg_index(const assay_op *op, const char *name) {
  for (int32_t i = 0; i < op->arg_count; ++i)
    if (strcmp(op->args[i].name, name) == 0) return i;
  return -1;
}

/* Lists the arguments that are not of this role; `needed`: without those that a call may leave out. */
static const char *list_args(const assay_op *op, assay_role other, bool needed, char *text, size_t size) {
  size_t used = 0;
  text[0] = '\0';
  for (int32_t i = 0; i < op->arg_count && used < size; ++i)
    if (op->args[i].role != other && !(needed && op->args[i].optional))
      used += (size_t)snprintf(text + used, size - used, "%s%s", used > 0 ? ", " : "", op->args[i].name);
  return text;
}

/* Refuses a name that is no argument, or one on the wrong side. */
static assay_status check_name(const assay_op *op, const char *side, const char *key, assay_role other,
                               assay_error *error) {
  char list[512];
  const int32_t arg = arg_index(op, key);
  if (arg >= 0 && op->args[arg].role != other) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%.60s'%s, allowed for %s: %s", side, key,
                    arg < 0              ? ""
                    : other == ASSAY_OUT ? ", which is an output"
                                         : ", which is an input",
                    op->name, list_args(op, other, false, list, sizeof list));
}

/* A tensor without axes is one of one element where the argument has one axis. */
static void take_scalar(const assay_op *op, int32_t arg, npy_tensor *t) {
  if (t->rank != 0 || op->args[arg].shape[0] == '\0' || strpbrk(op->args[arg].shape, ",|") != NULL) return;
  t->rank = 1;
  t->shape[0] = 1;
}

static assay_status take_inputs(folder_files *files, folder_case *c, const json_value *inputs, assay_error *error) {
  foreign_call *f = &c->call;
  char needed[512];
  if (inputs == NULL || inputs->kind != JSON_OBJECT)
    return assay_fail(error, ASSAY_ERR_INPUT, "inputs: found no object, allowed argument names with their files");
  for (const json_value *at = inputs->child; at != NULL; at = at->next) {
    npy_tensor t = {0};
    assay_error inner = {""};
    int64_t first = 0;
    const json_value *block = json_member(at, "first_block");
    c->line = at->line;
    if (check_name(f->op, "inputs", at->key, ASSAY_OUT, error) != ASSAY_OK) return ASSAY_ERR_INPUT;
    const int32_t arg = arg_index(f->op, at->key);
    if (f->arg[arg].data != NULL)
      return assay_fail(error, ASSAY_ERR_INPUT, "inputs: found '%.60s' twice, allowed once", at->key);
    assay_status status = read_file(files, at->key, at, &t, &inner);
    if (status == ASSAY_OK) take_scalar(f->op, arg, &t);
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
  c->line = inputs->line;
  for (int32_t i = 0; i < f->op->arg_count; ++i)
    if (f->op->args[i].role != ASSAY_OUT && !f->op->args[i].optional && f->arg[i].data == NULL)
      return assay_fail(error, ASSAY_ERR_INPUT, "inputs: %s: missing, %s needs %s", f->op->args[i].name, f->op->name,
                        list_args(f->op, ASSAY_OUT, true, needed, sizeof needed));
  return ASSAY_OK;
}

/* Reads the engine's outputs. They give the call's outputs their type and shape. */
static assay_status take_outputs(folder_files *files, folder_case *c, const json_value *list, assay_error *error) {
  foreign_call *f = &c->call;
  if (list == NULL || list->kind != JSON_OBJECT || list->child == NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "outputs: found none, allowed argument names with their files");
  for (const json_value *at = list->child; at != NULL; at = at->next) {
    assay_error inner = {""};
    c->line = at->line;
    if (check_name(f->op, "outputs", at->key, ASSAY_IN, error) != ASSAY_OK) return ASSAY_ERR_INPUT;
    const int32_t arg = arg_index(f->op, at->key);
    for (int32_t r = 0; r < c->results; ++r)
      if (c->result[r].arg == arg)
        return assay_fail(error, ASSAY_ERR_INPUT, "outputs: found '%.60s' twice, allowed once", at->key);
    if (c->results == ASSAY_MAX_OUTPUTS)
      return assay_fail(error, ASSAY_ERR_INPUT, "outputs: found more than %d", ASSAY_MAX_OUTPUTS);
    result_file *result = &c->result[c->results++];
    result->arg = arg;
    assay_status status = read_file(files, at->key, at, &result->tensor, &inner);
    if (status == ASSAY_OK) take_scalar(f->op, arg, &result->tensor);
    const npy_tensor *t = &result->tensor;
    if (status == ASSAY_OK && t->type >= ASSAY_DTYPE_COUNT)
      status = assay_fail(&inner, ASSAY_ERR_INPUT, "dtype: found %s, allowed a type that operators give: name it",
                          npy_type_name(t->type));
    if (status == ASSAY_OK && f->op->args[arg].role == ASSAY_OUT)
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

/* Reads "requests": the rows of each request, where no argument tells them. */
static assay_status take_requests(foreign_call *f, const json_value *list, assay_error *error) {
  int64_t count = 0, row = 0;
  if (list == NULL) return ASSAY_OK;
  for (const json_value *at = list->kind == JSON_ARRAY ? list->child : NULL; at != NULL; at = at->next)
    ++count;
  if (count == 0 || f->op->form != ASSAY_PAGED)
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "requests: found %s, allowed the rows of each request of a paged operator",
                      count == 0 ? "no list" : "a list");
  f->request_end = malloc((size_t)count * sizeof *f->request_end);
  if (f->request_end == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "judge: out of memory");
  for (const json_value *at = list->child; at != NULL; at = at->next) {
    int64_t rows = 0;
    if (!json_whole(at, &rows) || rows < 0 || rows > INT32_MAX)
      return assay_fail(error, ASSAY_ERR_INPUT, "requests: found '%.40s', allowed whole numbers from 0 on",
                        at->text != NULL ? at->text : "no number");
    row += rows;
    f->request_end[f->requests++] = row;
  }
  return ASSAY_OK;
}

static assay_status check_requests(const foreign_call *f, assay_error *error) {
  const assay_tensor *length = assay_find_arg(&(assay_call){f->op, f->arg, f->param}, "kv_len");
  if (f->requests > 0 && length != NULL && length->rank == 1 && length->shape[0] != f->requests)
    return assay_fail(error, ASSAY_ERR_INPUT, "requests: found %lld, allowed %lld, those of kv_len", (ll)f->requests,
                      (ll)length->shape[0]);
  const int64_t given = f->requests > 0 ? f->request_end[f->requests - 1] : 0;
  for (int32_t o = 0; f->requests > 0 && o < f->count; ++o)
    if (foreign_rows(f, o) != given)
      return assay_fail(error, ASSAY_ERR_INPUT, "requests: found %lld rows in all, allowed %lld, those of %s",
                        (ll)given, (ll)foreign_rows(f, o), f->op->args[f->output[o]].name);
  return ASSAY_OK;
}

/* ---- one case ---------------------------------------------------------------------------------------- */

static void free_case(folder_case *c) {
  foreign_free(&c->call);
  for (int32_t r = 0; r < ASSAY_MAX_OUTPUTS; ++r)
    npy_free(&c->result[r].tensor);
}

static assay_status read_case(folder_files *files, const json_value *entry, int64_t number, folder_case *c,
                              assay_error *error) {
  static const char *const known[] = {"name",   "case",    "operator", "tier",     "params", "contract",
                                      "inputs", "outputs", "format",   "requests", "sums"};
  memset(c, 0, sizeof *c);
  c->line = entry->line;
  (void)snprintf(c->name, sizeof c->name, "case %lld", (ll)number);
  if (entry->kind != JSON_OBJECT)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found no object, allowed one", c->name);
  for (const json_value *at = entry->child; at != NULL; at = at->next) {
    bool is = false;
    for (size_t i = 0; i < sizeof known / sizeof *known; ++i)
      is = is || strcmp(known[i], at->key) == 0;
    if (!is)
      return assay_fail(
          error, ASSAY_ERR_INPUT,
          "%s: found key '%.60s', allowed: name, case, operator, tier, params, contract, sums, requests, inputs, "
          "outputs",
          c->name, at->key);
  }
  const char *op = json_text(entry, "operator", NULL), *tier = json_text(entry, "tier", "calibrated");
  const char *name = json_text(entry, "name", op);
  assay_error inner = {""};
  assay_status status = check_texts(entry, "name case operator tier", &inner);
  if (status != ASSAY_OK) return assay_fail(error, status, "%s: %.1800s", c->name, inner.text);
  if (name != NULL) (void)snprintf(c->name, sizeof c->name, "%.100s", name);
  status = op != NULL ? foreign_begin(&c->call, op, &inner)
                      : assay_fail(&inner, ASSAY_ERR_INPUT, "operator: found none, allowed a name");
  if (status == ASSAY_OK && strcmp(tier, "exact") != 0 && strcmp(tier, "calibrated") != 0)
    status = assay_fail(&inner, ASSAY_ERR_INPUT, "tier: found '%.40s', allowed exact, calibrated", tier);
  c->call.exact = strcmp(tier, "exact") == 0;
  const json_value *member[] = {json_member(entry, "params"), json_member(entry, "contract"),
                                json_member(entry, "sums")};
  if (status == ASSAY_OK && member[0] != NULL) c->line = member[0]->line;
  if (status == ASSAY_OK) status = take_params(&c->call, json_member(entry, "params"), &inner);
  if (status == ASSAY_OK && member[1] != NULL) c->line = member[1]->line;
  if (status == ASSAY_OK) status = take_contract(&c->call.contract, json_member(entry, "contract"), &inner);
  if (status == ASSAY_OK && member[2] != NULL) c->line = member[2]->line;
  if (status == ASSAY_OK) status = take_sums(&c->call, member[2], &inner);
  if (status == ASSAY_OK) status = take_requests(&c->call, json_member(entry, "requests"), &inner);
  if (status == ASSAY_OK) status = take_inputs(files, c, json_member(entry, "inputs"), &inner);
  if (status == ASSAY_OK) status = take_outputs(files, c, json_member(entry, "outputs"), &inner);
  if (status == ASSAY_OK) c->line = entry->line;
  if (status == ASSAY_OK) status = foreign_reference(&c->call, &inner);
  if (status == ASSAY_OK) status = check_requests(&c->call, &inner);
  if (status != ASSAY_OK) return assay_fail(error, status, "%s: %.1800s", c->name, inner.text);
  return ASSAY_OK;
}

/* Checks the shape of a file. new_rows receives whether it holds only the new rows of a cache; every other file must
 * have the argument's own shape. */
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

/* Writes f64 numbers in the shape of an output; of a cache they are the new tokens' rows. */
static assay_status write_numbers(const char *folder, int64_t number, const foreign_call *f, int32_t output,
                                  const char *what, const double *value, assay_error *error) {
  const assay_tensor *about = &f->arg[f->output[output]];
  const int64_t rows = foreign_rows(f, output), width = foreign_width(f, output), whole[2] = {rows, width};
  const bool cache = foreign_is_cache(f, output);
  char path[PATH_ROOM + 200], prefix[32] = "";
  if (number > 0) (void)snprintf(prefix, sizeof prefix, "%lld.", (ll)number);
  (void)snprintf(path, sizeof path, "%.4000s/%s%s.%s.f64.npy", folder, prefix, f->op->args[f->output[output]].name,
                 what);
  return npy_write(path, NPY_F64, cache ? 2 : about->rank, cache ? whole : about->shape, value, error);
}

static assay_status write_expected(const char *folder, int64_t number, const folder_case *c, assay_error *error) {
  const foreign_call *f = &c->call;
  assay_status status = ASSAY_OK;
  for (int32_t o = 0; o < f->count && status == ASSAY_OK; ++o) {
    status = write_numbers(folder, number, f, o, "expected", f->expected[o].value, error);
    if (status == ASSAY_OK) status = write_numbers(folder, number, f, o, "sigma", f->expected[o].sigma, error);
  }
  return status;
}

static assay_status judge_case(const folder_case *c, bool shapes_only, truth_log *log, assay_error *error) {
  const foreign_call *f = &c->call;
  const void *got[ASSAY_MAX_OUTPUTS] = {NULL};
  bool all_right = !shapes_only;
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
    log->figures = &v;
    log->output = arg;
    predicted_finding p = {.wrong = false};
    if (!v.wrong && f->sums.unit != ASSAY_SUM_NONE)
      status = predicted_compare(&(assay_call){f->op, f->arg, f->param}, &f->sums, &f->rows, f->arg[f->output[o]].dtype,
                                 c->result[r].tensor.data, 0, &p, &inner);
    if (status == ASSAY_ERR_MEMORY) return assay_fail(error, status, "%s: %.1800s", c->name, inner.text);
    got[o] = c->result[r].tensor.data;
    all_right = all_right && !v.wrong;
    if (v.wrong)
      truth_fail(log, name, "%s; %lld of %lld elements", v.message, (ll)v.wrong_elements, (ll)v.elements);
    else if (status != ASSAY_OK)
      truth_fail(log, name, "predicted: the contract does not fit the call: %s", inner.text);
    else if (p.wrong)
      truth_fail(log, name, "predicted: element [%lld, %lld]: %s", (ll)p.row, (ll)p.column, p.message);
    else if (p.compared > 0)
      truth_pass(log, name,
                 "%lld elements; of the allowed: element %.3f, row %.3f, request %.3f; %lld have the bits of "
                 "the sum contract",
                 (ll)v.elements, v.ratio_element, v.ratio_row, v.ratio_request, (ll)p.compared);
    else
      truth_pass(log, name, "%lld elements; of the allowed: element %.3f, row %.3f, request %.3f", (ll)v.elements,
                 v.ratio_element, v.ratio_row, v.ratio_request);
    log->figures = NULL;
  }
  char why[400];
  bool fits = true;
  const assay_status status = all_right ? foreign_fits(f, got, &fits, why, sizeof why, error) : ASSAY_OK;
  if (status == ASSAY_OK && !fits) truth_fail(log, c->name, "%s", why);
  return status;
}

/* Reads the cases of a folder and, unless shapes_only, judges them. */
static assay_status walk_folder(const char *folder, bool shapes_only, truth_log *log, assay_error *error) {
  static folder_case from_folder;
  static folder_files files;
  char path[PATH_ROOM];
  unsigned char *text = NULL;
  int64_t size = 0, number = 0;
  const json_value *root = NULL;
  assay_error inner = {""};
  if (folder[0] == '\0') return assay_fail(error, ASSAY_ERR_INPUT, "judge: found a folder without a name");
  json_reader *reader = json_open();
  memset(&files, 0, sizeof files);
  files.folder = folder;
  (void)snprintf(path, sizeof path, "%.4000s/%s", folder, DUMP_MANIFEST);
  assay_status status = reader != NULL ? file_bytes(path, (int64_t)1 << 28, &text, &size, error)
                                       : assay_fail(error, ASSAY_ERR_MEMORY, "judge: out of memory");
  if (status == ASSAY_OK && json_parse(reader, (const char *)text, (size_t)size, &root, &inner) != ASSAY_OK)
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: JSON: %s", path, inner.text);
  const json_value *list = status == ASSAY_OK ? json_member(root, "cases") : NULL;
  if (list != NULL && list->kind != JSON_ARRAY)
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s:%lld: cases: found no list, allowed one", path, (ll)list->line);
  for (const json_value *m = list != NULL ? root->child : NULL; m != NULL && status == ASSAY_OK; m = m->next)
    if (m != list && strcmp(m->key, "format") != 0)
      status = assay_fail(error, ASSAY_ERR_INPUT, "%s:%lld: found key '%.60s' beside cases, allowed in a case", path,
                          (ll)m->line, m->key);
  if (status == ASSAY_OK && list != NULL && list->child == NULL)
    status =
        assay_fail(error, ASSAY_ERR_INPUT, "%s:%lld: cases: found none, allowed one or more", path, (ll)list->line);
  const json_value *at = list != NULL ? list->child : root;
  for (; at != NULL && status == ASSAY_OK; at = list != NULL ? at->next : NULL, ++number) {
    inner = (assay_error){""};
    status = read_case(&files, at, number, &from_folder, &inner);
    if (status == ASSAY_OK) status = judge_case(&from_folder, shapes_only, log, &inner);
    if (status == ASSAY_OK && !shapes_only && (log->tolerance[0] > 0 || log->tolerance[1] > 0))
      status = truth_tolerance(&from_folder.call, from_folder.name, log->tolerance, log, &inner);
    if (status == ASSAY_OK && log->expected && !shapes_only)
      status = write_expected(folder, number, &from_folder, &inner);
    if (status != ASSAY_OK) (void)assay_fail(error, status, "%s:%lld: %.1900s", path, (ll)from_folder.line, inner.text);
    free_case(&from_folder);
  }
  tensor_file_free(&files.open);
  free(text);
  json_close(reader);
  return status;
}

assay_status judge_dirs(const char *const *folder, int32_t count, truth_log *log, assay_error *error) {
  assay_status status = ASSAY_OK;
  /* Every file is read before the first line is printed. */
  for (int pass = 0; pass < 2; ++pass)
    for (int32_t i = 0; i < count && status == ASSAY_OK; ++i) {
      log->folder = folder[i];
      log->several = count > 1;
      status = walk_folder(folder[i], pass == 0, log, error);
    }
  log->folder = NULL;
  log->several = false;
  return status;
}

assay_status judge_dir(const char *folder, truth_log *log, assay_error *error) {
  return judge_dirs(&folder, 1, log, error);
}
