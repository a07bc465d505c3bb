/* model_config.h: a model's configuration by the names of its fields, for any file that gives them. */
#ifndef ASSAY_CORE_FILES_MODEL_CONFIG_H
#define ASSAY_CORE_FILES_MODEL_CONFIG_H

#include <stdio.h>

#include "assay/model.h"

/* Sets one field from its text: "qwen3", "1024", "1e-6", "true", "bf16". The message names the field. */
assay_status model_config_set(assay_model_config *config, const char *field, const char *text, assay_error *error);
/* Returns the name of field `index` that a file with weights must give; NULL past the last one. */
const char *model_config_required(int32_t index);
/* Starts a configuration from the production width of a family. */
assay_status model_config_start(assay_model_config *config, const char *arch, assay_error *error);
/* Writes all fields as the members of a JSON object, "arch" first, without the braces. */
void model_config_write(FILE *to, const assay_model_config *config);

#endif
