/* onnx.c: judges index.json and packed.bin (docs/truth.md), case by case. */
#include "onnx.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/files/bytes.h"
#include "core/registry.h"

typedef long long ll; /* for messages */

/* ---- the files --------------------------------------------------------------------------------------- */

typedef struct packed {
  const char *path;
  const unsigned char *bytes;
  int64_t size;
} packed;

typedef struct type_row {
  const char *name;
  int64_t size;
  assay_dtype dtype;
} type_row;

static const type_row types[] = {{"float32", 4, ASSAY_F32},
                                 {"float16", 2, ASSAY_F16},
                                 {"int64", 8, ASSAY_I64},
                                 {"uint64", 8, ASSAY_NONE},
                                 {"bool", 1, ASSAY_NONE}};

static double number_of(const type_row *type, const unsigned char *data, int64_t i) {
  uint64_t u64 = 0;
  if (type->size == 1) return data[i] != 0;
  if (type->size != 8) return assay_load_f64(data, type->dtype, i);
  for (int b = 0; b < 8; ++b)
    u64 |= (uint64_t)data[8 * i + b] << (8 * b);
  return type->dtype == ASSAY_I64 ? (double)(int64_t)u64 : (double)u64;
}

/* Reads a tensor. Notes in `left` a type, a number of axes or a size 0 that this program does not take; the case is
 * then not asked. Refuses a tensor that contradicts itself. */
static assay_status read_tensor(const packed *data, const char *who, const json_value *about, onnx_tensor *t,
                                char left[200], assay_error *error) {
  const char *dtype = json_text(about, "dtype", "");
  const json_value *dims = json_member(about, "dims");
  const type_row *type = NULL;
  static const char known[] = " name dtype dims n raw_nbytes packed_offset ";
  t->name = json_text(about, "name", NULL);
  for (size_t i = 0; i < sizeof types / sizeof *types; ++i)
    if (strcmp(types[i].name, dtype) == 0) type = &types[i];
  if (t->name == NULL) return assay_fail(error, ASSAY_ERR_INPUT, "%s: name: found none, allowed a text", who);
  if (type == NULL) {
    if (dtype[0] == '\0')
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: %s: dtype: found none, allowed a text", who, t->name);
    (void)snprintf(left, 200, "%.60s in %.40s (known: float32, float16, int64, uint64, bool)", t->name, dtype);
    return ASSAY_OK;
  }
  if (dims == NULL || dims->kind != JSON_ARRAY)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: %s: dims: found no list, allowed one", who, t->name);
  t->dtype = type->dtype;
  t->count = 1;
  for (const json_value *at = dims->child; at != NULL; at = at->next) {
    int64_t length = 0;
    if (!json_whole(at, &length) || length < 0 || length > (data->size + 1) / t->count)
      return assay_fail(error, ASSAY_ERR_INPUT,
                        "%s: %s: dims: found '%.40s' at axis %d, allowed lengths from 0 on that fit packed.bin", who,
                        t->name, at->text != NULL ? at->text : "no number", t->rank);
    if (t->rank == ASSAY_MAX_RANK || length == 0) {
      (void)snprintf(left, 200, length == 0 ? "%.60s without elements" : "%.60s with more than %d axes", t->name,
                     ASSAY_MAX_RANK);
      t->rank = 0;
      t->count = 1;
      return ASSAY_OK;
    }
    t->shape[t->rank++] = length;
    t->count *= length;
  }
  int64_t offset = 0, bytes = 0;
  if (!json_whole(json_member(about, "raw_nbytes"), &bytes) || bytes != t->count * type->size)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: %s: raw_nbytes: found %lld, allowed %lld", who, t->name, (ll)bytes,
                      (ll)(t->count * type->size));
  if (!json_whole(json_member(about, "packed_offset"), &offset) || offset < 0 || offset > data->size ||
      bytes > data->size - offset)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: %s: packed_offset: found %lld with %lld bytes, %s has %lld", who,
                      t->name, (ll)offset, (ll)bytes, data->path, (ll)data->size);
  for (const json_value *at = about->child; at != NULL; at = at->next) {
    char key[64];
    (void)snprintf(key, sizeof key, " %.60s ", at->key);
    if (strstr(known, key) == NULL) (void)snprintf(left, 200, "%.60s with key %.60s", t->name, at->key);
  }
  if (left[0] != '\0') return ASSAY_OK;
  t->value = malloc((size_t)t->count * sizeof *t->value);
  if (t->value == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", who);
  unsigned char aligned[8];
  const unsigned char *from = data->bytes + offset;
  for (int64_t i = 0; i < t->count; ++i) {
    memcpy(aligned, from + i * type->size, (size_t)type->size);
    t->value[i] = number_of(type, aligned, 0);
  }
  return ASSAY_OK;
}

static void free_case(onnx_case *c) {
  for (int32_t i = 0; i < ONNX_TENSORS; ++i)
    free(c->tensor[i].value);
}

static assay_status read_case(const packed *data, const json_value *about, onnx_case *c, assay_error *error) {
  const json_value *files = json_member(about, "files");
  memset(c, 0, sizeof *c);
  c->name = json_text(about, "case", NULL);
  c->op = json_text(about, "op", NULL);
  c->attributes = json_member(about, "attributes");
  if (c->name == NULL || c->op == NULL || files == NULL || files->kind != JSON_ARRAY)
    return assay_fail(error, ASSAY_ERR_INPUT, "a case without case, op or files, allowed with all three");
  if (c->attributes != NULL && c->attributes->kind != JSON_OBJECT)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: attributes: found no object, allowed one", c->name);
  assay_status status = ASSAY_OK;
  for (const json_value *at = files->child; at != NULL && status == ASSAY_OK; at = at->next) {
    if (c->count == ONNX_TENSORS) {
      (void)snprintf(c->left, sizeof c->left, "more than %d tensors", ONNX_TENSORS);
      break;
    }
    status = read_tensor(data, c->name, at, &c->tensor[c->count++], c->left, error);
    for (int32_t i = 0; i + 1 < c->count && status == ASSAY_OK; ++i)
      if (strcmp(c->tensor[i].name, c->tensor[c->count - 1].name) == 0)
        status = assay_fail(error, ASSAY_ERR_INPUT, "%s: files: found '%.60s' twice, allowed once", c->name,
                            c->tensor[i].name);
  }
  return status;
}

/* ---- one line per case ------------------------------------------------------------------------------- */

typedef struct operator_row {
  const char *onnx, *ours;
  assay_status (*ask)(const onnx_case *c, truth_report *r, assay_error *error);
} operator_row;

static const operator_row operators[] = {
    {"Attention", "softmax_attention", onnx_attention},
    {"RMSNormalization", "rms_norm", onnx_norm},
    {"LayerNormalization", "layer_norm", onnx_norm},
    {"RotaryEmbedding", "rope", onnx_rotary},
    {"Gelu", "bias_gelu_new", onnx_gelu},
    {"Softmax", "softmax_attention", onnx_softmax},
    {"TopK", "sampler", onnx_topk},
};

static void judge_case(const onnx_case *c, truth_log *log) {
  const operator_row *row = NULL;
  truth_report report;
  assay_error error = {""};
  memset(&report, 0, sizeof report);
  for (size_t i = 0; i < sizeof operators / sizeof *operators; ++i)
    if (strcmp(operators[i].onnx, c->op) == 0) row = &operators[i];
  if (row == NULL || c->left[0] != '\0') {
    truth_uncovered(log, c->name, "%s", c->left);
    return;
  }
  if (assay_op_find(row->ours) == NULL) {
    truth_fail(log, c->name, "operator missing: %s", row->ours);
    return;
  }
  const assay_status asked = row->ask(c, &report, &error);
  if (asked != ASSAY_OK && asked != ASSAY_ERR_UNSUPPORTED) truth_failed(&report, &error);
  truth_line(log, c->name, &report);
}

assay_status truth_onnx(const char *folder, truth_log *log, assay_error *error) {
  char index[4096], data[4096];
  unsigned char *text = NULL, *bytes = NULL;
  int64_t size = 0;
  const json_value *list = NULL;
  packed from = {"packed.bin", NULL, 0};
  json_reader *reader = json_open();
  if (reader == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "truth: out of memory");
  (void)snprintf(index, sizeof index, "%.4000s/index.json", folder);
  (void)snprintf(data, sizeof data, "%.4000s/packed.bin", folder);
  assay_status status = file_bytes(index, (int64_t)1 << 28, &text, &size, error);
  if (status == ASSAY_OK) status = file_bytes(data, (int64_t)1 << 32, &bytes, &from.size, error);
  from.bytes = bytes;
  if (status == ASSAY_OK) {
    assay_error inner = {""};
    if (json_parse(reader, (const char *)text, (size_t)size, &list, &inner) != ASSAY_OK)
      status = assay_fail(error, ASSAY_ERR_INPUT, "%s: JSON: %s", index, inner.text);
    else if (list->kind != JSON_ARRAY)
      status = assay_fail(error, ASSAY_ERR_INPUT, "%s: JSON: found no list of cases, allowed one", index);
    else if (list->child == NULL)
      status = assay_fail(error, ASSAY_ERR_INPUT, "%s: found no case, allowed one or more", index);
  }
  /* All cases are read before the first is judged, so that a broken index prints nothing else. */
  for (int pass = 0; pass < 2; ++pass)
    for (const json_value *at = status == ASSAY_OK ? list->child : NULL; at != NULL && status == ASSAY_OK;
         at = at->next) {
      onnx_case oc;
      assay_error inner = {""};
      status = read_case(&from, at, &oc, &inner);
      if (status != ASSAY_OK) (void)assay_fail(error, status, "%s:%lld: %.1900s", index, (ll)at->line, inner.text);
      if (status == ASSAY_OK && pass == 1) (void)onnx_is_known(&oc, at);
      if (status == ASSAY_OK && pass == 1) judge_case(&oc, log);
      free_case(&oc);
    }
  free(text);
  free(bytes);
  json_close(reader);
  return status;
}
