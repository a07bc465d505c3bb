/* suite.c: reads the file of models and of the cases that are made of them. */
#define _POSIX_C_SOURCE 200809L
#include "suite.h"

#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "open.h"
#include "conformance/text/text.h"
#include "core/hash.h"

enum { MOST_MODELS = 32, MOST_WORDS = 16 };

static const char *const ways[WAYS] = {"prefill", "decode", "chunked", "batched",   "shared",
                                       "eager",   "graph",  "lengths", "invariant", "traffic"};

const char *model_way_name(model_way way) {
  return ways[way];
}

typedef struct named_model {
  char name[32];
  assay_model_config config;
  uint64_t seed;
} named_model;

typedef struct words {
  char item[MOST_WORDS][48];
  int32_t count;
} words;

/* One item of `check`. */
typedef struct model_item {
  words name, model, dtype, run, form, devices;
  int64_t batch, steps, judged, prompt, short_tail;
  bool nightly, invariant;
} model_item;

typedef struct model_file_reader {
  named_model model[MOST_MODELS];
  int32_t models;
  model_cases *cases;
} model_file_reader;

/* ---- scalars and lists ------------------------------------------------------------------------------------ */

static assay_status take_words(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  words *w = (words *)(void *)((char *)context + *(const size_t *)field->about);
  const bool list = yaml_kind(value) == NODE_LIST;
  for (int32_t i = 0; i < (list ? yaml_count(value) : 1); ++i) {
    const yaml_node node = list ? yaml_item(value, i) : value;
    if (yaml_kind(node) != NODE_SCALAR || w->count == MOST_WORDS || strlen(yaml_text(node)) >= sizeof w->item[0])
      return yaml_fail(node, error, "%s: allowed up to %d words of up to %zu characters", field->key, MOST_WORDS,
                       sizeof w->item[0] - 1);
    (void)snprintf(w->item[w->count++], sizeof w->item[0], "%s", yaml_text(node));
  }
  return ASSAY_OK;
}

static assay_status take_number(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  char *end = NULL;
  const long long number = strtoll(yaml_text(value), &end, 10);
  if (*end != '\0' || end == yaml_text(value) || number < 1 || number > 4096)
    return yaml_fail(value, error, "%s: found '%.40s', allowed 1 to 4096", field->key, yaml_text(value));
  *(int64_t *)(void *)((char *)context + *(const size_t *)field->about) = number;
  return ASSAY_OK;
}

static assay_status take_flag(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  if (strcmp(yaml_text(value), "true") != 0 && strcmp(yaml_text(value), "false") != 0)
    return yaml_fail(value, error, "%s: found '%.40s', allowed true, false", field->key, yaml_text(value));
  *(bool *)(void *)((char *)context + *(const size_t *)field->about) = strcmp(yaml_text(value), "true") == 0;
  return ASSAY_OK;
}

/* ---- models ------------------------------------------------------------------------------------------------ */

static assay_status take_models(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  model_file_reader *f = context;
  (void)field;
  for (int32_t i = 0; i < yaml_count(value); ++i) {
    named_model *model = &f->model[f->models];
    const char *name = yaml_text(yaml_key(value, i));
    if (f->models == MOST_MODELS || strlen(name) >= sizeof model->name)
      return yaml_fail(yaml_key(value, i), error, "models: allowed up to %d of names up to %zu characters", MOST_MODELS,
                       sizeof model->name - 1);
    (void)snprintf(model->name, sizeof model->name, "%s", name);
    const assay_status status = model_open_map(yaml_value(value, i), &model->config, &model->seed, error);
    if (status != ASSAY_OK) return status;
    ++f->models;
  }
  return ASSAY_OK;
}

/* ---- cases ------------------------------------------------------------------------------------------------- */

static assay_status add_case(model_file_reader *f, yaml_node at, const model_item *item, const named_model *model,
                             const char *dtype, model_way way, const char *form, assay_error *error) {
  model_cases *m = f->cases;
  model_case *grown = realloc(m->list, (size_t)(m->count + 1) * sizeof *grown);
  if (grown == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "suite: out of memory");
  m->list = grown;
  model_case *mc = &m->list[m->count++];
  *mc = (model_case){.config = model->config,
                     .seed = model->seed,
                     .way = way,
                     .devices = item->devices.count == 0 ? CASE_ON_ANY : 0,
                     .nightly = item->nightly,
                     .invariant = item->invariant,
                     .batch = item->batch,
                     .steps = item->steps,
                     .judged = item->judged,
                     .prompt = item->prompt,
                     .short_tail = (int32_t)item->short_tail};
  (void)snprintf(mc->model, sizeof mc->model, "%s", model->name);
  (void)snprintf(mc->form, sizeof mc->form, "%s", form);
  (void)snprintf(mc->name, sizeof mc->name, "%.16s_%s_%s%s%.24s", item->name.item[0], ways[way], dtype,
                 form[0] != '\0' ? "_" : "", form);
  for (int32_t i = 0; i < item->devices.count; ++i)
    mc->devices |= strcmp(item->devices.item[i], "cuda") == 0 ? CASE_ON_CUDA : CASE_ON_SIMT;
  assay_dtype type = ASSAY_NONE;
  for (int t = ASSAY_F32; t <= ASSAY_BF16; ++t)
    if (strcmp(assay_dtype_name((assay_dtype)t), dtype) == 0) type = (assay_dtype)t;
  if (type != ASSAY_F32 && type != ASSAY_F16 && type != ASSAY_BF16)
    return yaml_fail(at, error, "dtype: found '%.40s', allowed f32, f16, bf16", dtype);
  /* A cache of 8 bits keeps its type. */
  if (mc->config.kv_dtype == mc->config.act_dtype) mc->config.kv_dtype = type;
  mc->config.act_dtype = mc->config.weight_dtype = type;
  assay_error inner = {""};
  if (assay_model_check(&mc->config, &inner) != ASSAY_OK) return yaml_fail_with(at, &inner, ASSAY_ERR_INPUT, error);
  return ASSAY_OK;
}

static assay_status find_word(yaml_node at, const char *key, const char *word, const char *const *known, int32_t count,
                              int32_t *found, assay_error *error) {
  char list[400] = "";
  for (*found = 0; *found < count; ++*found) {
    if (strcmp(known[*found], word) == 0) return ASSAY_OK;
    const size_t used = strlen(list);
    (void)snprintf(list + used, sizeof list - used, "%s%s", used > 0 ? ", " : "", known[*found]);
  }
  return yaml_fail(at, error, "%s: found '%.40s', allowed %s", key, word, list);
}

static assay_status expand_item(model_file_reader *f, yaml_node at, const model_item *item, assay_error *error) {
  static const char *const devices[] = {"simt", "cuda"};
  const char *known[MOST_MODELS];
  assay_status status = ASSAY_OK;
  int32_t model = 0, way = 0, device = 0;
  for (int32_t i = 0; i < f->models; ++i)
    known[i] = f->model[i].name;
  for (int32_t i = 0; i < item->devices.count && status == ASSAY_OK; ++i)
    status = find_word(at, "devices", item->devices.item[i], devices, 2, &device, error);
  for (int32_t i = 0; i < item->model.count; ++i)
    for (int32_t d = 0; d < item->dtype.count; ++d)
      for (int32_t r = 0; r < item->run.count; ++r)
        for (int32_t o = 0; o < (item->form.count > 0 ? item->form.count : 1) && status == ASSAY_OK; ++o) {
          status = find_word(at, "model", item->model.item[i], known, f->models, &model, error);
          if (status == ASSAY_OK) status = find_word(at, "run", item->run.item[r], ways, WAYS, &way, error);
          if (status == ASSAY_OK)
            status = add_case(f, at, item, &f->model[model], item->dtype.item[d], (model_way)way,
                              item->form.count > 0 ? item->form.item[o] : "", error);
        }
  return status;
}

static assay_status take_check(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
#define AT(member) &(const size_t){offsetof(model_item, member)}
  (void)field;
  const yaml_field fields[] = {{"name", NODE_SCALAR, true, take_words, AT(name)},
                               {"model", NODE_SCALAR | NODE_LIST, true, take_words, AT(model)},
                               {"dtype", NODE_SCALAR | NODE_LIST, true, take_words, AT(dtype)},
                               {"run", NODE_SCALAR | NODE_LIST, true, take_words, AT(run)},
                               {"form", NODE_SCALAR | NODE_LIST, false, take_words, AT(form)},
                               {"devices", NODE_SCALAR | NODE_LIST, false, take_words, AT(devices)},
                               {"batch", NODE_SCALAR, false, take_number, AT(batch)},
                               {"steps", NODE_SCALAR, false, take_number, AT(steps)},
                               {"judged", NODE_SCALAR, false, take_number, AT(judged)},
                               {"prompt", NODE_SCALAR, false, take_number, AT(prompt)},
                               {"short_tail", NODE_SCALAR, false, take_number, AT(short_tail)},
                               {"invariant", NODE_SCALAR, false, take_flag, AT(invariant)},
                               {"nightly", NODE_SCALAR, false, take_flag, AT(nightly)}};
#undef AT
  for (int32_t i = 0; i < yaml_count(value); ++i) {
    model_item item = {.batch = 3, .steps = 12, .judged = 4096, .prompt = 20};
    assay_status status =
        yaml_walk(yaml_item(value, i), fields, (int32_t)(sizeof fields / sizeof *fields), &item, error);
    if (status == ASSAY_OK) status = expand_item(context, yaml_item(value, i), &item, error);
    if (status != ASSAY_OK) return status;
  }
  return ASSAY_OK;
}

/* ---- the file ---------------------------------------------------------------------------------------------- */

assay_status model_suite_read(const char *path, model_cases *cases, assay_error *error) {
  static const yaml_field fields[] = {{"models", NODE_MAP, true, take_models, NULL},
                                      {"check", NODE_LIST, true, take_check, NULL}};
  static model_file_reader f;
  yaml_file *file = NULL;
  f = (model_file_reader){.cases = cases};
  *cases = (model_cases){.list = NULL};
  assay_status status = yaml_open(path, &file, error);
  if (status == ASSAY_OK) status = yaml_walk(yaml_root(file), fields, 2, &f, error);
  if (status == ASSAY_OK && cases->count == 0)
    status = yaml_fail(yaml_root(file), error, "found no case, allowed items in check");
  if (status != ASSAY_OK) model_cases_free(cases);
  yaml_close(file);
  return status;
}

void model_cases_free(model_cases *cases) {
  free(cases->list);
  *cases = (model_cases){.list = NULL};
}

/* ---- for reports ------------------------------------------------------------------------------------------- */

assay_case model_as_case(const model_case *mc, const char *suite, const char *device) {
  static const assay_op op = {.name = "model", .form = ASSAY_PLAIN};
  const char *slash = strrchr(suite, '/'), *stem = slash != NULL ? slash + 1 : suite;
  assay_case c;
  memset(&c, 0, sizeof c);
  c.op = &op;
  c.tier = TIER_CALIBRATED;
  c.dtype = mc->config.act_dtype;
  c.kv_dtype = mc->config.kv_dtype;
  c.devices = mc->devices;
  (void)snprintf(c.suite, sizeof c.suite, "%.*s", (int)strcspn(stem, "."), stem);
  (void)snprintf(c.name, sizeof c.name, "%s", mc->name);
  (void)snprintf(c.variant, sizeof c.variant, "%s", mc->model);
  (void)snprintf(c.device, sizeof c.device, "%s", device);
  c.seed = (hash_text(HASH_START, mc->name) ^ mc->seed) & 0x7FFFFFFFu; /* a number of the case's own */
  return c;
}
