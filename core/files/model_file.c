/* model_file.c: two formats, read strictly. Nothing is returned that the file's own sizes do not confirm. */
#include "model_file.h"

#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "model_config.h"

typedef long long ll; /* for messages */

void model_file_free(model_file *model) {
  assay_model_weights_free(&model->weights);
  tensor_file_free(&model->file);
  memset(model, 0, sizeof *model);
}

/* Puts the file's name before the message of `inner`. */
static assay_status in_file(const char *path, assay_status status, const assay_error *inner, assay_error *error) {
  return status == ASSAY_OK ? ASSAY_OK : assay_fail(error, status, "%s: %.1800s", path, inner->text);
}

/* ---- llama2.c ---------------------------------------------------------------------------------------- */

enum { HEADER = 7 };

/* Sizes of the checkpoint, by its own names and in the order of its header. */
typedef struct checkpoint {
  int64_t dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len;
  bool shared; /* vocab_size above 0: the head is the embedding */
} checkpoint;

static assay_status read_header(const unsigned char *bytes, int64_t size, checkpoint *c, assay_error *error) {
  int32_t word[HEADER];
  if (size < (int64_t)sizeof word)
    return assay_fail(error, ASSAY_ERR_INPUT, "header: found %lld bytes, allowed %zu and more", (ll)size, sizeof word);
  memcpy(word, bytes, sizeof word);
  c->shared = word[5] > 0;
  const struct {
    const char *name;
    int64_t *to, value, most;
  } field[HEADER] = {{"dim", &c->dim, word[0], 65536},
                     {"hidden_dim", &c->hidden_dim, word[1], 262144},
                     {"n_layers", &c->n_layers, word[2], 1024},
                     {"n_heads", &c->n_heads, word[3], 1024},
                     {"n_kv_heads", &c->n_kv_heads, word[4], 1024},
                     {"vocab_size", &c->vocab_size, c->shared ? word[5] : -(int64_t)word[5], 1048576},
                     {"seq_len", &c->seq_len, word[6], 1048576}};
  for (int i = 0; i < HEADER; ++i) {
    *field[i].to = field[i].value;
    if (field[i].value < 1 || field[i].value > field[i].most)
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %d, allowed 1 to %lld", field[i].name, word[i],
                        (ll)field[i].most);
  }
  if (c->dim % c->n_heads != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "dim: found %lld, allowed multiples of n_heads = %lld", (ll)c->dim,
                      (ll)c->n_heads);
  return ASSAY_OK;
}

static assay_model_config checkpoint_config(const checkpoint *c) {
  assay_model_config config = assay_model_production(ASSAY_QWEN3);
  config.layers = c->n_layers;
  config.hidden = c->dim;
  config.heads = c->n_heads;
  config.kv_heads = c->n_kv_heads;
  config.head_size = config.rotated = c->dim / c->n_heads;
  config.intermediate = c->hidden_dim;
  config.vocab = c->vocab_size;
  config.max_pos = c->seq_len;
  config.eps = 1e-5;
  config.rope_style = ASSAY_ROPE_INTERLEAVED;
  config.rope_base = 1e4;
  config.qk_norm = false;
  config.tied_head = c->shared;
  config.weight_dtype = config.act_dtype = config.kv_dtype = ASSAY_F32;
  return config;
}

/* One of our weights, model from one of theirs: for every layer, `rows` rows of [width], stored from our row `first`
 * on. */
typedef struct piece {
  const char *name; /* begins with a dot: belongs to a layer */
  int64_t layers, first, rows, width;
} piece;

static void copy_piece(const model_file *model, const piece *p, const unsigned char **at) {
  const size_t bytes = (size_t)(p->rows * p->width) * sizeof(float);
  for (int64_t l = 0; l < p->layers; ++l, *at += bytes) {
    char name[ASSAY_MODEL_NAME];
    if (p->name[0] == '.')
      (void)snprintf(name, sizeof name, "layers.%d%s", (int)l, p->name);
    else
      (void)snprintf(name, sizeof name, "%s", p->name);
    const int32_t i = assay_model_weight_index(&model->config, name);
    if (i >= 0) memcpy((float *)model->weights.tensor[i].data + p->first * p->width, *at, bytes);
  }
}

assay_status model_file_llama2c(const char *path, model_file *model, assay_error *error) {
  unsigned char *bytes = NULL;
  int64_t size = 0;
  checkpoint c;
  assay_error inner = {""};
  memset(model, 0, sizeof *model);
  memset(&c, 0, sizeof c);
  assay_status status = file_bytes(path, (int64_t)1 << 40, &bytes, &size, error);
  if (status != ASSAY_OK) return status;
  status = read_header(bytes, size, &c, &inner);
  if (status == ASSAY_OK) {
    model->config = checkpoint_config(&c);
    status = assay_model_check(&model->config, &inner);
  }
  const int64_t L = c.n_layers, D = model->config.head_size, kv = c.n_kv_heads * D, q = c.dim;
  const piece pieces[] = {{"embed.w", 1, 0, c.vocab_size, c.dim},
                          {".attn.pre.g", L, 0, 1, c.dim},
                          {".attn.qkv.w", L, 0, q, c.dim},
                          {".attn.qkv.w", L, q, kv, c.dim},
                          {".attn.qkv.w", L, q + kv, kv, c.dim},
                          {".attn.proj.w", L, 0, c.dim, q},
                          {".mlp.pre.g", L, 0, 1, c.dim},
                          {".mlp.up.w", L, 0, c.hidden_dim, c.dim},
                          {".mlp.down.w", L, 0, c.dim, c.hidden_dim},
                          {".mlp.up.w", L, c.hidden_dim, c.hidden_dim, c.dim},
                          {"final.g", 1, 0, 1, c.dim},
                          {"", 1, 0, c.seq_len, D}, /* two tables of angles, not used */
                          {"head.w", c.shared ? 0 : 1, 0, c.vocab_size, c.dim}};
  enum { PIECES = sizeof pieces / sizeof *pieces };
  int64_t floats = 0;
  for (int i = 0; i < PIECES && status == ASSAY_OK; ++i)
    floats += pieces[i].layers * pieces[i].rows * pieces[i].width;
  const int64_t wanted = (int64_t)sizeof(float) * (HEADER + floats);
  if (status == ASSAY_OK && size != wanted)
    status = assay_fail(&inner, ASSAY_ERR_INPUT, "size: found %lld bytes, allowed %lld, what its header says", (ll)size,
                        (ll)wanted);
  if (status == ASSAY_OK) status = assay_model_weights_alloc(&model->config, &model->weights, &inner);
  const unsigned char *at = bytes;
  if (status == ASSAY_OK) at += HEADER * sizeof(float);
  for (int i = 0; i < PIECES && status == ASSAY_OK; ++i)
    copy_piece(model, &pieces[i], &at);
  free(bytes);
  if (status != ASSAY_OK) model_file_free(model);
  return in_file(path, status, &inner, error);
}

/* ---- the flat format --------------------------------------------------------------------------------- */

/* Returns a JSON scalar as the text of a field; NULL if the value is no scalar. */
static const char *scalar_text(const json_value *value) {
  if (value->kind == JSON_BOOL) return value->number != 0 ? "true" : "false";
  return value->kind == JSON_NUMBER || value->kind == JSON_STRING ? value->text : NULL;
}

static assay_status own_config(const json_value *config, assay_model_config *result, assay_error *error) {
  const char *arch = json_text(config, "arch", NULL);
  if (arch == NULL)
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "config: arch: found none, allowed gpt2, qwen3, asynct, qwen3_moe, gpt_oss, gemma2");
  assay_status status = model_config_start(result, arch, error);
  const char *name;
  for (int32_t i = 0; status == ASSAY_OK && (name = model_config_required(i)) != NULL; ++i)
    if (json_member(config, name) == NULL)
      status = assay_fail(error, ASSAY_ERR_INPUT, "config: %s: found none, allowed a number", name);
  for (const json_value *at = config->child; at != NULL && status == ASSAY_OK; at = at->next) {
    const char *text = scalar_text(at);
    if (strcmp(at->key, "arch") == 0) continue;
    if (text == NULL)
      return assay_fail(error, ASSAY_ERR_INPUT, "config: %.60s: found no number, word or boolean, allowed one",
                        at->key);
    status = model_config_set(result, at->key, text, error);
  }
  return status;
}

/* Converts minGPT's configuration, whose sizes have minGPT's own names. D = n_embd / n_head, a separate head, biases
 * everywhere, an MLP of width 4×. */
static assay_status mingpt_config(const json_value *config, const json_value *manifest, assay_model_config *result,
                                  assay_error *error) {
  static const char *const names[] = {"n_layer", "n_head", "n_embd", "vocab_size", "block_size"};
  int64_t value[5];
  for (int i = 0; i < 5; ++i)
    if (!json_whole(json_member(config, names[i]), &value[i]) || value[i] < 1 || value[i] > 1048576)
      return assay_fail(error, ASSAY_ERR_INPUT, "config: %s: found no whole number from 1 to 1048576, allowed one",
                        names[i]);
  if (value[2] % value[1] != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "config: n_embd: found %lld, allowed multiples of n_head = %lld",
                      (ll)value[2], (ll)value[1]);
  *result = assay_model_production(ASSAY_GPT2);
  result->layers = value[0];
  result->heads = result->kv_heads = value[1];
  result->hidden = value[2];
  result->head_size = value[2] / value[1];
  result->intermediate = 4 * value[2];
  result->vocab = value[3];
  result->max_pos = value[4];
  result->eps = json_number(manifest, "layernorm_eps", 1e-5);
  result->tied_head = false;
  result->weight_dtype = result->act_dtype = result->kv_dtype = ASSAY_F32;
  return ASSAY_OK;
}

/* Translates our name of a weight to minGPT's. */
static void mingpt_name(const char *ours, char *theirs, size_t size) {
  static const struct {
    const char *ours, *theirs;
  } rows[] = {{"embed.w", "wte.weight"},           {"embed_pos.w", "wpe.weight"},
              {"final.g", "ln_f.weight"},          {"final.b", "ln_f.bias"},
              {"head.w", "lm_head.weight"},        {"attn.pre.g", "ln_1.weight"},
              {"attn.pre.b", "ln_1.bias"},         {"attn.qkv.w", "attn.c_attn.weight"},
              {"attn.qkv.b", "attn.c_attn.bias"},  {"attn.proj.w", "attn.c_proj.weight"},
              {"attn.proj.b", "attn.c_proj.bias"}, {"mlp.pre.g", "ln_2.weight"},
              {"mlp.pre.b", "ln_2.bias"},          {"mlp.up.w", "mlp.c_fc.weight"},
              {"mlp.up.b", "mlp.c_fc.bias"},       {"mlp.down.w", "mlp.c_proj.weight"},
              {"mlp.down.b", "mlp.c_proj.bias"}};
  char *end = NULL;
  const bool layer = strncmp(ours, "layers.", 7) == 0;
  const long number = layer ? strtol(ours + 7, &end, 10) : 0;
  const char *rest = layer ? end + 1 : ours, *found = rest;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i)
    if (strcmp(rows[i].ours, rest) == 0) found = rows[i].theirs;
  if (layer)
    (void)snprintf(theirs, size, "h.%ld.%s", number, found);
  else
    (void)snprintf(theirs, size, "%s", found);
}

/* Uses the weights in place, as they lie in the file. */
static assay_status flat_weights(model_file *model, bool mingpt, assay_error *error) {
  assay_weight_spec spec;
  const int32_t count = assay_model_weight_count(&model->config);
  model->weights.tensor = calloc((size_t)count + 1, sizeof *model->weights.tensor);
  if (model->weights.tensor == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "out of memory");
  model->weights.count = count;
  for (int32_t i = 0; assay_model_weight_spec(&model->config, i, &spec); ++i) {
    char name[TENSOR_FILE_NAME];
    const file_tensor *t = NULL;
    (void)snprintf(name, sizeof name, "%s", spec.name);
    if (mingpt) mingpt_name(spec.name, name, sizeof name);
    const assay_status status = tensor_file_get(&model->file, name, spec.dtype, spec.rank, spec.shape, &t, error);
    if (status != ASSAY_OK) return status;
    assay_tensor *to = &model->weights.tensor[i];
    *to = (assay_tensor){.data = t->data, .dtype = t->dtype, .rank = t->rank};
    for (int32_t a = t->rank - 1; a >= 0; --a) {
      to->shape[a] = t->shape[a];
      to->stride[a] = a == t->rank - 1 ? 1 : to->stride[a + 1] * to->shape[a + 1];
    }
  }
  if (count != model->file.count)
    return assay_fail(error, ASSAY_ERR_INPUT, "tensors: found %d, allowed the %d of the configuration",
                      model->file.count, count);
  return assay_model_weights_check(&model->config, &model->weights, error);
}

assay_status model_file_flat(const char *path, model_file *model, assay_error *error) {
  assay_error inner = {""};
  memset(model, 0, sizeof *model);
  assay_status status = tensor_file_flat(path, NULL, &model->file, error);
  if (status != ASSAY_OK) return status;
  const json_value *config = json_member(model->file.manifest, "config");
  const bool mingpt = strncmp(json_text(config, "model_type", ""), "gpt", 3) == 0;
  if (config == NULL || config->kind != JSON_OBJECT)
    status = assay_fail(&inner, ASSAY_ERR_INPUT, "config: found none, allowed an object");
  else
    status = mingpt ? mingpt_config(config, model->file.manifest, &model->config, &inner)
                    : own_config(config, &model->config, &inner);
  if (status == ASSAY_OK) status = assay_model_check(&model->config, &inner);
  if (status == ASSAY_OK) status = flat_weights(model, mingpt, &inner);
  if (status != ASSAY_OK) model_file_free(model);
  return in_file(path, status, &inner, error);
}
