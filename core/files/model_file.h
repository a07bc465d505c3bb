/* model_file.h: a model out of files (docs/models.md): a llama2.c checkpoint, or a flat manifest with its data. */
#ifndef ASSAY_CORE_FILES_MODEL_FILE_H
#define ASSAY_CORE_FILES_MODEL_FILE_H

#include "assay/model.h"
#include "tensor_file.h"

typedef struct model_file {
  assay_model_config config;
  assay_model_weights weights;
  tensor_file file; /* flat: where the weights are */
} model_file;

/* Version 0 of the checkpoint: seven int32, then f32. Its size must be what its header says. */
assay_status model_file_llama2c(const char *path, model_file *made, assay_error *error);
/* "config" of the manifest in our own fields, tensors by the names of assay/model.h; or with model_type "gpt-nano" and
 * the like, in minGPT's fields and names. */
assay_status model_file_flat(const char *path, model_file *made, assay_error *error);
void model_file_free(model_file *model);

#endif
