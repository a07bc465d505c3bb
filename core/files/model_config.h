/* model_config.h: a model's configuration by the names of its fields, for whatever file they stand in. */
#ifndef ASSAY_CORE_FILES_MODEL_CONFIG_H
#define ASSAY_CORE_FILES_MODEL_CONFIG_H

#include "assay/model.h"

/* One field from its text: "qwen3", "1024", "1e-6", "true", "bf16". The message names the field. */
assay_status model_config_set(assay_model_config *config, const char *field, const char *text, assay_error *error);
/* Fields that a file with weights must name: number `index`; NULL behind the last. */
const char *model_config_required(int32_t index);
/* The family, whose production width is where a configuration starts. */
assay_status model_config_start(assay_model_config *config, const char *arch, assay_error *error);

#endif
