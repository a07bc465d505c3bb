/* model_file.h: a model read from files (docs/models.md): a llama2.c checkpoint, or a flat manifest with its data. */
#ifndef ASSAY_CORE_FILES_MODEL_FILE_H
#define ASSAY_CORE_FILES_MODEL_FILE_H

#include "assay/model.h"
#include "tensor_file.h"

enum { MODEL_FILE_PARTS = 512 };

typedef struct model_file {
  assay_model_config config;
  assay_model_weights weights;
  tensor_file file; /* flat: holds the weights */
  /* model_type of a folder of the transformers library */
  char type[32];
} model_file;

/* Reads version 0 of the checkpoint: seven int32, then f32. Its size must be what its header says. */
assay_status model_file_llama2c(const char *path, model_file *model, assay_error *error);
/* Reads a flat manifest. Its "config" has our own fields and its tensors have the names of assay/model.h. With
 * model_type "gpt-nano" or a similar one, both are in minGPT's fields and names. */
assay_status model_file_flat(const char *path, model_file *model, assay_error *error);
/* Reads a folder as the transformers library writes it: config.json, and model.safetensors or the files of
 * model.safetensors.index.json (docs/models.md). Fails with ASSAY_ERR_UNSUPPORTED on a model_type that is not read
 * here. */
assay_status model_file_hf(const char *folder, model_file *model, assay_error *error);
/* Writes model.json and model.bin into a folder, in the flat format. model_file_flat reads the same configuration and
 * the same bits. Fails with ASSAY_ERR_IO if a file cannot be written. */
assay_status model_file_write(const char *folder, const assay_model_config *config, const assay_model_weights *weights,
                              assay_error *error);
void model_file_free(model_file *model);

#endif
