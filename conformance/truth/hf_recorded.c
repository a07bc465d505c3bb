/* hf_recorded.c: reads a model's folder with prompts, greedy ids, streams, routers and logits. */
#include "hf_recorded.h"

#include <stdlib.h>
#include <string.h>

#include "core/files/bytes.h"
#include "core/json.h"

typedef long long ll; /* for messages */

void hf_recorded_free(hf_recorded *g) {
  for (int64_t i = 0; i < HF_PROMPTS; ++i) {
    free(g->prompt[i].ids);
    free(g->prompt[i].greedy);
  }
  for (int64_t i = 0; i < g->files; ++i)
    npy_free(&g->file[i]);
  free(g->file);
  free(g->stage);
  model_file_free(&g->model);
  free(g);
}

static assay_status read_ids(const char *path, const char *key, int64_t number, const json_value *list, int64_t V,
                             int32_t **ids, int64_t *count, assay_error *error) {
  int64_t n = 0;
  for (const json_value *at = list != NULL && list->kind == JSON_ARRAY ? list->child : NULL; at != NULL; at = at->next)
    ++n;
  if (n == 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: %s: %lld: found no list of ids, allowed one", path, key, (ll)number);
  *ids = malloc((size_t)n * sizeof **ids);
  *count = 0;
  if (*ids == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", path);
  for (const json_value *at = list->child; at != NULL; at = at->next) {
    int64_t id = 0;
    if (!json_whole(at, &id) || id < 0 || id >= V)
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: %s: %lld: found '%.30s' at place %lld, allowed ids from 0 to %lld",
                        path, key, (ll)number, at->text != NULL ? at->text : "no number", (ll)*count, (ll)(V - 1));
    (*ids)[(*count)++] = (int32_t)id;
  }
  return ASSAY_OK;
}

static assay_status read_prompts(const char *folder, hf_recorded *g, assay_error *error) {
  char path[4096];
  unsigned char *text = NULL;
  int64_t size = 0;
  const json_value *root = NULL;
  assay_error inner = {""};
  json_reader *reader = json_open();
  (void)snprintf(path, sizeof path, "%.3000s/golden.json", folder);
  assay_status status = reader != NULL ? file_bytes(path, (int64_t)1 << 28, &text, &size, error)
                                       : assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", path);
  if (status == ASSAY_OK && json_parse(reader, (const char *)text, (size_t)size, &root, &inner) != ASSAY_OK)
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: JSON: %s", path, inner.text);
  const json_value *prompts = json_member(root, "prompts"), *greedy = json_member(root, "greedy");
  const bool lists = prompts != NULL && prompts->kind == JSON_ARRAY && greedy != NULL && greedy->kind == JSON_ARRAY;
  if (status == ASSAY_OK && !lists)
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: prompts, greedy: found none, allowed two lists", path);
  const json_value *p = lists ? prompts->child : NULL, *s = lists ? greedy->child : NULL;
  const int64_t V = g->model.config.vocab;
  for (; p != NULL && status == ASSAY_OK; p = p->next, s = s != NULL ? s->next : NULL) {
    hf_prompt *to = &g->prompt[g->prompts];
    if (g->prompts == HF_PROMPTS)
      status = assay_fail(error, ASSAY_ERR_INPUT, "%s: prompts: found more than %d, allowed up to %d", path, HF_PROMPTS,
                          HF_PROMPTS);
    else
      status = read_ids(path, "prompts", g->prompts, p, V, &to->ids, &to->count, error);
    if (status == ASSAY_OK) status = read_ids(path, "greedy", g->prompts++, s, V, &to->greedy, &to->steps, error);
  }
  if (status == ASSAY_OK && g->prompts == 0)
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: prompts: found none, allowed 1 to %d", path, HF_PROMPTS);
  free(text);
  json_close(reader);
  return status;
}

/* Reads a file of `count` numbers, whose type is f64, or i64 for ids. */
static assay_status read_file(const char *folder, const char *name, int type, int64_t count, hf_recorded *g,
                              assay_error *error) {
  char path[4096];
  npy_tensor *t = &g->file[g->files];
  (void)snprintf(path, sizeof path, "%.3000s/%.200s", folder, name);
  const assay_status status = npy_read(path, NULL, NULL, t, error);
  if (status != ASSAY_OK) return status;
  ++g->files;
  if (t->type == type && t->count == count) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %lld elements of %s, allowed %lld of %s", path, (ll)t->count,
                    npy_type_name(t->type), (ll)count, npy_type_name(type));
}

static void add_stage(hf_recorded *g, int64_t prompt, const char *tap, int64_t width, const npy_tensor *file,
                      int64_t first, bool ids) {
  hf_stage *s = &g->stage[g->stages++];
  *s = (hf_stage){.prompt = prompt, .width = width, .file = file, .first = first, .ids = ids};
  (void)snprintf(s->tap, sizeof s->tap, "%s", tap);
}

/* Reads what a sparse layer's router returned: logits, weights, ids. */
static assay_status read_router(const char *folder, hf_recorded *g, int64_t prompt, int64_t layer, assay_error *error) {
  const assay_model_config *c = &g->model.config;
  const int64_t T = g->prompt[prompt].count, width[3] = {c->experts, c->experts_used, c->experts_used};
  static const char *const taps[3] = {"", ".weights", ".ids"};
  static const int order[3] = {0, 2, 1}; /* ids before weights, as in a pass */
  assay_status status = ASSAY_OK;
  for (int i = 0; i < 3 && status == ASSAY_OK; ++i) {
    const int o = order[i];
    char name[200], tap[ASSAY_MODEL_NAME];
    (void)snprintf(name, sizeof name, "model_layers_%lld_mlp_%s_%lld_out%d.%s.npy", (ll)layer,
                   c->arch == ASSAY_GPT_OSS ? "router" : "gate", (ll)prompt, o, o == 2 ? "i64" : "f64");
    (void)snprintf(tap, sizeof tap, "layers.%d.router%s", (int)layer, taps[o]);
    status = read_file(folder, name, o == 2 ? ASSAY_I64 : (int)NPY_F64, T * width[o], g, error);
    if (status != ASSAY_OK) return status;
    add_stage(g, prompt, tap, width[o], &g->file[g->files - 1], 0, o == 2);
    g->stage[g->stages - 1].unordered = o > 0 && c->arch == ASSAY_DEEPSEEK_V3;
  }
  return status;
}

static assay_status read_stages(const char *folder, hf_recorded *g, int64_t prompt, assay_error *error) {
  const assay_model_config *c = &g->model.config;
  const int64_t T = g->prompt[prompt].count, L = c->layers, C = c->hidden;
  char name[200], tap[ASSAY_MODEL_NAME];
  (void)snprintf(name, sizeof name, "hidden_%lld.f64.npy", (ll)prompt);
  assay_status status = read_file(folder, name, (int)NPY_F64, (L + 1) * T * C, g, error);
  const npy_tensor *hidden = &g->file[g->files - 1];
  for (int64_t l = 0; l < L && status == ASSAY_OK; ++l) {
    (void)snprintf(tap, sizeof tap, "layers.%d.mlp.residual", (int)l - 1);
    add_stage(g, prompt, l == 0 ? "embed" : tap, C, hidden, l * T * C, false);
    if (assay_model_is_sparse(c, l)) status = read_router(folder, g, prompt, l, error);
  }
  if (status != ASSAY_OK) return status;
  add_stage(g, prompt, "final", C, hidden, L * T * C, false);
  (void)snprintf(name, sizeof name, "logits_%lld.f64.npy", (ll)prompt);
  status = read_file(folder, name, (int)NPY_F64, T * c->vocab, g, error);
  if (status == ASSAY_OK) add_stage(g, prompt, "logits", c->vocab, &g->file[g->files - 1], 0, false);
  return status;
}

assay_status hf_recorded_read(const char *folder, hf_recorded *g, assay_error *error) {
  assay_status status = model_file_hf(folder, &g->model, error);
  if (status == ASSAY_OK) status = read_prompts(folder, g, error);
  if (status != ASSAY_OK) return status;
  const int64_t most = g->prompts * (2 + 4 * (g->model.config.layers + 1));
  g->file = calloc((size_t)most, sizeof *g->file);
  g->stage = calloc((size_t)most, sizeof *g->stage);
  if (g->file == NULL || g->stage == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", folder);
  for (int64_t i = 0; i < g->prompts && status == ASSAY_OK; ++i)
    status = read_stages(folder, g, i, error);
  return status;
}
