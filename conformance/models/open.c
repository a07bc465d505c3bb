/* open.c: files and folders to models, names to backends. */
#include "open.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/files/model_config.h"
#include "conformance/text/text.h"

/* ---- a configuration in YAML: one map of fields, and the seed of the weights --------------------------- */

static assay_status take_scalar(assay_model_config *config, yaml_node key, yaml_node value, uint64_t *seed,
                                assay_error *error) {
  assay_error inner = {""};
  const char *name = yaml_text(key);
  if (yaml_kind(value) != NODE_SCALAR)
    return yaml_fail(value, error, "%.40s: found a list or map, allowed a scalar", name);
  if (strcmp(name, "arch") == 0) return ASSAY_OK;
  if (strcmp(name, "seed") == 0) {
    char *end = NULL;
    const char *text = yaml_text(value);
    *seed = strtoull(text, &end, 10);
    if (end == text || *end != '\0' || text[0] == '-')
      return yaml_fail(value, error, "seed: found '%.40s', allowed a whole number from 0 on", text);
    return ASSAY_OK;
  }
  const assay_status status = model_config_set(config, name, yaml_text(value), &inner);
  return status == ASSAY_OK ? ASSAY_OK : yaml_fail_with(value, &inner, status, error);
}

assay_status model_open_map(yaml_node root, assay_model_config *config, uint64_t *seed, assay_error *error) {
  assay_error inner = {""};
  assay_status status = ASSAY_OK;
  const char *arch = NULL;
  *seed = 1;
  if (yaml_kind(root) != NODE_MAP) status = yaml_fail(root, error, "found no map, allowed arch and the model's fields");
  for (int32_t i = 0; status == ASSAY_OK && i < yaml_count(root); ++i) {
    const yaml_node key = yaml_key(root, i), value = yaml_value(root, i);
    if (strcmp(yaml_text(key), "arch") == 0 && yaml_kind(value) == NODE_SCALAR) arch = yaml_text(value);
  }
  if (status == ASSAY_OK && arch == NULL)
    status = yaml_fail(root, error, "arch: found none, allowed gpt2, qwen3, asynct, qwen3_moe, gpt_oss, gemma2");
  if (status == ASSAY_OK && model_config_start(config, arch, &inner) != ASSAY_OK)
    status = yaml_fail_with(root, &inner, ASSAY_ERR_INPUT, error);
  for (int32_t i = 0; status == ASSAY_OK && i < yaml_count(root); ++i)
    status = take_scalar(config, yaml_key(root, i), yaml_value(root, i), seed, error);
  if (status == ASSAY_OK && assay_model_check(config, &inner) != ASSAY_OK)
    status = yaml_fail_with(root, &inner, ASSAY_ERR_INPUT, error);
  return status;
}

assay_status model_open_config(const char *path, assay_model_config *config, uint64_t *seed, assay_error *error) {
  yaml_file *file = NULL;
  *seed = 1;
  assay_status status = yaml_open(path, &file, error);
  if (status != ASSAY_OK) return status;
  status = model_open_map(yaml_root(file), config, seed, error);
  yaml_close(file);
  return status;
}

static assay_status open_yaml(const char *path, model_file *file, assay_error *error) {
  uint64_t seed = 1;
  memset(file, 0, sizeof *file);
  assay_status status = model_open_config(path, &file->config, &seed, error);
  if (status == ASSAY_OK) status = assay_model_weights_alloc(&file->config, &file->weights, error);
  if (status == ASSAY_OK) status = assay_model_seed(&file->config, seed, &file->weights, error);
  if (status != ASSAY_OK) model_file_free(file);
  return status;
}

assay_status model_open(const char *path, model_file *file, assay_error *error) {
  const char *dot = strrchr(path, '.');
  struct stat about;
  if (stat(path, &about) == 0 && S_ISDIR(about.st_mode)) return model_file_hf(path, file, error);
  if (dot != NULL && strcmp(dot, ".json") == 0) return model_file_flat(path, file, error);
  if (dot != NULL && (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0)) return open_yaml(path, file, error);
  return model_file_llama2c(path, file, error);
}

assay_status model_open_narrow(model_file *file, assay_error *error) {
  assay_model_config config;
  assay_model_weights narrow;
  if (file->config.fp8_weights) return ASSAY_OK;
  const assay_status status = assay_model_narrow(&file->config, &file->weights, &config, &narrow, error);
  if (status != ASSAY_OK) return status;
  assay_model_weights_free(&file->weights);
  file->config = config;
  file->weights = narrow;
  return ASSAY_OK;
}

/* ---- backends ---------------------------------------------------------------------------------------- */

typedef const assay_model_backend *(*backend_row)(void);
static const backend_row backends[] = {assay_model_ref, assay_model_simt, assay_model_cuda};

const assay_model_backend *model_backend(const char *name, assay_error *error) {
  char names[200] = "";
  for (size_t i = 0; i < sizeof backends / sizeof *backends; ++i) {
    const assay_model_backend *backend = backends[i]();
    if (strcmp(backend->name, name) == 0) return backend;
    const size_t used = strlen(names);
    (void)snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "", backend->name);
  }
  (void)assay_fail(error, ASSAY_ERR_INPUT, "--device: found '%s', allowed: %s", name, names);
  return NULL;
}
