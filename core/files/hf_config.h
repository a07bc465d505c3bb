/* hf_config.h: the configuration that the transformers library writes beside a model's weights (config.json). */
#ifndef ASSAY_CORE_FILES_HF_CONFIG_H
#define ASSAY_CORE_FILES_HF_CONFIG_H

#include "assay/model.h"
#include "core/json.h"

/* The architectures that are read, by model_type. */
typedef enum hf_kind {
  HF_LLAMA,
  HF_QWEN3,
  HF_QWEN3_MOE,
  HF_MIXTRAL,
  HF_GPT_OSS,
  HF_GEMMA2,
  HF_DEEPSEEK_V3,
  HF_QWEN3_NEXT,
  HF_KINDS
} hf_kind;

/* Reads a configuration. The types of weights, activations and cache are left to the weights' file. Fails with
 * ASSAY_ERR_UNSUPPORTED on a model_type that is not read here, and with ASSAY_ERR_INPUT on a field. The message names
 * the field, what was found and what is allowed. */
assay_status hf_config_read(const json_value *root, hf_kind *kind, assay_model_config *config, assay_error *error);

#endif
