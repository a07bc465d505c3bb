/* open.h: opens a model by a checkpoint, a manifest, or a configuration with a seed. */
#ifndef ASSAY_CONFORMANCE_MODELS_OPEN_H
#define ASSAY_CONFORMANCE_MODELS_OPEN_H

#include "core/files/model_file.h"
#include "conformance/text/text.h"

/* Opens a model, which the caller frees. The ending of the name decides: F.json is a flat manifest; F.yaml and F.yml
 * are a configuration, with weights from its seed; a folder is one of the transformers library. Any other file is a
 * llama2.c checkpoint. Fails with ASSAY_ERR_INPUT, or ASSAY_ERR_UNSUPPORTED on a folder's model_type. */
assay_status model_open(const char *path, model_file *file, assay_error *error);

/* Makes the weights of products e4m3, with a scale for every 128 x 128, unless they are already. Fails as
 * assay_model_narrow does. */
assay_status model_open_narrow(model_file *file, assay_error *error);

/* Reads a configuration in YAML and the seed of its weights, but makes no weights. */
assay_status model_open_config(const char *path, assay_model_config *config, uint64_t *seed, assay_error *error);

/* Does the same with a map within a file. */
assay_status model_open_map(yaml_node map, assay_model_config *config, uint64_t *seed, assay_error *error);

/* Returns a backend by name. NULL: this build has no such backend, and the message lists those it has. */
const assay_model_backend *model_backend(const char *name, assay_error *error);

#endif
