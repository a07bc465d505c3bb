/* model_open.h: a model from whatever names it: a checkpoint, a manifest, or a configuration with a seed. */
#ifndef ASSAY_CONFORMANCE_MODEL_OPEN_H
#define ASSAY_CONFORMANCE_MODEL_OPEN_H

#include "core/files/model_file.h"
#include "yaml.h"

/* F.json: a flat manifest; F.yaml, F.yml: a configuration, weights from its seed; else a llama2.c checkpoint. */
assay_status model_open(const char *path, model_file *made, assay_error *error);

/* A configuration in YAML and the seed of its weights, without any. */
assay_status model_open_config(const char *path, assay_model_config *config, uint64_t *seed, assay_error *error);

/* The same of a map within a file. */
assay_status model_open_map(yaml_node map, assay_model_config *config, uint64_t *seed, assay_error *error);

/* NULL: this build has no such backend; the message says which there are. */
const assay_model_backend *model_backend(const char *name, assay_error *error);

#endif
