/* onnx_node.c: tensors and attributes of one ONNX node case, by name, and what of them is known. */
#include <stdio.h>
#include <string.h>

#include "onnx.h"

const onnx_tensor *onnx_find(const onnx_case *c, const char *name) {
  for (int32_t i = 0; i < c->count; ++i)
    if (strcmp(c->tensor[i].name, name) == 0) return &c->tensor[i];
  return NULL;
}

int64_t onnx_int(const onnx_case *c, const char *attribute, int64_t fallback) {
  return json_integer(json_member(c->attributes, attribute), "i", fallback);
}

double onnx_float(const onnx_case *c, const char *attribute, double fallback) {
  return json_number(json_member(c->attributes, attribute), "f", fallback);
}

int64_t onnx_axis(const onnx_case *c, const onnx_tensor *t, int64_t fallback) {
  const int64_t axis = onnx_int(c, "axis", fallback);
  return axis < 0 ? axis + t->rank : axis;
}

void onnx_leave(truth_report *r, const onnx_case *c, const char *output, const char *why) {
  if (onnx_find(c, output) == NULL) return;
  const size_t used = strlen(r->left);
  (void)snprintf(r->left + used, sizeof r->left - used, "; %s not covered: %s", output, why);
}

/* ---- what is known ------------------------------------------------------------------------------------ */

/* An operator of ONNX, as its reader here takes it: opsets, tensors with commas, attributes with the kind of their
 * value (i, f, s). `half`: it may be asked in f16; the others round inside, in ways that no contract names. */
typedef struct known_row {
  const char *op;
  int64_t first, last;
  const char *tensors, *attributes;
  bool half;
} known_row;

enum { LAST = 24 };

static const known_row known[] = {
    {"Attention", 23, LAST, "Q,K,V,attn_mask,past_key,past_value,Y,present_key,present_value,qk_matmul_output",
     "i:is_causal,i:kv_num_heads,i:q_num_heads,i:qk_matmul_output_mode,i:softmax_precision,f:scale,f:softcap", true},
    {"RMSNormalization", 23, LAST, "X,W,Y", "i:axis,f:epsilon,i:stash_type", false},
    {"LayerNormalization", 17, LAST, "X,W,B,Y,Mean,InvStdDev", "i:axis,f:epsilon,i:stash_type", false},
    {"RotaryEmbedding", 23, LAST, "input,cos_cache,sin_cache,position_ids,output",
     "i:interleaved,i:num_heads,i:rotary_embedding_dim", false},
    {"Gelu", 20, LAST, "x,y", "s:approximate", false},
    {"Softmax", 13, LAST, "x,y", "i:axis", false},
    {"TopK", 11, LAST, "x,k,values,indices", "i:axis,i:largest,i:sorted", true},
};

/* Returns the place of `word` in a list with commas, after a prefix of `skip` characters in each item; NULL: none. */
static const char *listed(const char *list, size_t skip, const char *word) {
  const size_t size = strlen(word);
  for (const char *at = list; *at != '\0'; at += strcspn(at, ","), at += *at == ',')
    if (strcspn(at, ",") == skip + size && memcmp(at + skip, word, size) == 0) return at;
  return NULL;
}

/* Attributes whose value has limits of its own. */
static const struct {
  const char *name;
  int64_t least, most;
} limits[] = {{"is_causal", 0, 1},       {"interleaved", 0, 1},
              {"largest", 0, 1},         {"sorted", 1, 1},
              {"stash_type", 1, 1},      /* f32 */ {"qk_matmul_output_mode", 0, 3},
              {"q_num_heads", 1, 65536}, {"kv_num_heads", 1, 65536},
              {"num_heads", 0, 65536},   {"rotary_embedding_dim", 0, 65536}};

/* Tells whether the value of an attribute, which an integer is, fits the tensors of the node. */
static bool fits(const onnx_case *c, const char *name, int64_t value) {
  const onnx_tensor *const upper = onnx_find(c, "X"), *const lower = onnx_find(c, "x");
  const onnx_tensor *const x = upper != NULL ? upper : lower, *const rows = onnx_find(c, "input");
  const onnx_tensor *const table = onnx_find(c, "cos_cache");
  const onnx_tensor *const q = onnx_find(c, "Q"), *const k = onnx_find(c, "K");
  if (strcmp(name, "axis") == 0) return x != NULL && value >= -x->rank && value < x->rank;
  if (strcmp(name, "num_heads") == 0 && rows != NULL && rows->rank == 4) return value == 0 || value == rows->shape[1];
  if (strcmp(name, "q_num_heads") == 0 && q != NULL && q->rank > 0) return q->shape[q->rank - 1] % value == 0;
  if (strcmp(name, "kv_num_heads") == 0 && k != NULL && k->rank > 0) return k->shape[k->rank - 1] % value == 0;
  if (strcmp(name, "rotary_embedding_dim") == 0 && table != NULL)
    return value == 0 || value == 2 * table->shape[table->rank - 1];
  return true;
}

/* Tells whether the value of an attribute is one that the readers take. */
static bool value_is_known(const onnx_case *c, const json_value *attribute, char kind) {
  int64_t whole = 0;
  const char key[2] = {kind, '\0'};
  const json_value *value = json_member(attribute, key);
  if (value == NULL || (kind == 's' ? value->kind != JSON_STRING : value->kind != JSON_NUMBER)) return false;
  if (kind == 'i' && !json_whole(value, &whole)) return false;
  for (size_t i = 0; i < sizeof limits / sizeof *limits; ++i)
    if (strcmp(attribute->key, limits[i].name) == 0 && (whole < limits[i].least || whole > limits[i].most))
      return false;
  if (strcmp(attribute->key, "scale") == 0) return json_number(attribute, "f", 0) != 0; /* 0 stands for 1 / sqrt(D) */
  if (kind == 'i' && !fits(c, attribute->key, whole)) return false;
  if (strcmp(attribute->key, "softmax_precision") == 0)
    return whole == 1 || whole == 10 || whole == 11; /* f32, f16, f64 */
  return true;
}

static bool opset_is_known(onnx_case *c, const known_row *row, const json_value *about) {
  const char *domain = json_text(about, "domain", "");
  const json_value *list = json_member(about, "opset");
  if (domain[0] != '\0' && strcmp(domain, "ai.onnx") != 0) {
    (void)snprintf(c->left, sizeof c->left, "domain %.60s", domain);
    return false;
  }
  bool said = false;
  for (const json_value *at = list != NULL && list->kind == JSON_ARRAY ? list->child : NULL; at != NULL;
       at = at->next) {
    int64_t version = 0;
    const json_value *name = at->kind == JSON_ARRAY ? at->child : NULL;
    if (name == NULL || name->kind != JSON_STRING || (name->text[0] != '\0' && strcmp(name->text, "ai.onnx") != 0))
      continue; /* another domain, which this node does not use */
    said = true;
    if (json_whole(name->next, &version) && version >= row->first && version <= row->last) continue;
    (void)snprintf(c->left, sizeof c->left, "opset %.20s of %s (known: %lld to %lld)",
                   name->next != NULL && name->next->text != NULL ? name->next->text : "without a number", c->op,
                   (long long)row->first, (long long)row->last);
    return false;
  }
  if (!said) (void)snprintf(c->left, sizeof c->left, "no opset of %s: found no [\"\", number] in a list", c->op);
  return said;
}

/* Tells whether every tensor that the node names is among the files. An input that is left out has an empty name. */
static bool names_are_there(onnx_case *c, const json_value *about, const char *side) {
  const json_value *list = json_member(about, side);
  for (const json_value *at = list != NULL && list->kind == JSON_ARRAY ? list->child : NULL; at != NULL;
       at = at->next) {
    if (at->kind == JSON_STRING && (at->text[0] == '\0' || onnx_find(c, at->text) != NULL)) continue;
    (void)snprintf(c->left, sizeof c->left, "no tensor %.60s among the files, which %s has",
                   at->kind == JSON_STRING ? at->text : "(no text)", side);
    return false;
  }
  return true;
}

bool onnx_is_known(onnx_case *c, const json_value *about) {
  const known_row *row = NULL;
  for (size_t i = 0; i < sizeof known / sizeof *known; ++i)
    if (strcmp(known[i].op, c->op) == 0) row = &known[i];
  if (c->left[0] != '\0') return false; /* a tensor of it could not be read */
  if (row == NULL) {
    (void)snprintf(c->left, sizeof c->left, "no operator does %.60s", c->op);
    return false;
  }
  if (!opset_is_known(c, row, about)) return false;
  for (int32_t i = 0; i < c->count; ++i) {
    const onnx_tensor *t = &c->tensor[i];
    if (listed(row->tensors, 0, t->name) == NULL)
      (void)snprintf(c->left, sizeof c->left, "input or output %.60s of %s", t->name, c->op);
    else if (t->dtype == ASSAY_F16 && !row->half)
      (void)snprintf(c->left, sizeof c->left, "%.60s in float16: %s rounds inside, in a way that no contract names",
                     t->name, c->op);
    if (c->left[0] != '\0') return false;
  }
  if (!names_are_there(c, about, "node_inputs") || !names_are_there(c, about, "node_outputs")) return false;
  const bool map = c->attributes != NULL && c->attributes->kind == JSON_OBJECT;
  for (const json_value *at = map ? c->attributes->child : NULL; at != NULL; at = at->next) {
    const char *found = listed(row->attributes, 2, at->key);
    if (found == NULL || !value_is_known(c, at, found[0])) {
      (void)snprintf(c->left, sizeof c->left, "attribute %.60s of %s%s", at->key, c->op,
                     found != NULL ? " with this value" : "");
      return false;
    }
  }
  return true;
}

assay_status onnx_reference(foreign_call *f, truth_report *r, assay_error *error) {
  const assay_call call = {f->op, f->arg, f->param};
  assay_error inner = {""};
  const assay_status status = f->op->check(&call, &inner);
  if (status == ASSAY_OK) return foreign_reference(f, error);
  if (status != ASSAY_ERR_INPUT) return assay_fail(error, status, "%s", inner.text);
  (void)snprintf(r->reason, sizeof r->reason, "%s: %.250s", f->op->name, inner.text);
  return ASSAY_ERR_UNSUPPORTED;
}
