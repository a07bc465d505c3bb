/* tensor_file.h: named tensors in files (docs/models.md): a JSON manifest beside one file of data, and safetensors.
 * Every offset and size is held against the bytes that are there before anything is handed out. */
#ifndef ASSAY_CORE_TENSOR_FILE_H
#define ASSAY_CORE_TENSOR_FILE_H

#include "assay/status.h"
#include "assay/tensor.h"
#include "core/json.h"

enum { TENSOR_FILE_NAME = 192, TENSOR_FILE_MOST = 1 << 14 };

typedef struct file_tensor {
  char name[TENSOR_FILE_NAME];
  assay_dtype dtype;
  int32_t rank;
  int64_t shape[ASSAY_MAX_RANK], count;
  unsigned char *data; /* dense, row-major, little endian, aligned to its element; inside tensor_file.bytes */
} file_tensor;

typedef struct tensor_file {
  file_tensor *tensor;
  int32_t count;
  unsigned char *bytes;
  int64_t size;
  json_reader *reader;        /* owns the manifest */
  const json_value *manifest; /* the whole of it, for what else it says */
} tensor_file;

/* `data`: the file of data; NULL: what the manifest's key "data" names, beside the manifest. */
assay_status tensor_file_flat(const char *manifest, const char *data, tensor_file *made, assay_error *error);
assay_status tensor_file_safetensors(const char *path, tensor_file *made, assay_error *error);
void tensor_file_free(tensor_file *file);

const file_tensor *tensor_file_find(const tensor_file *file, const char *name); /* NULL: no such tensor */
/* One of this name, type and shape; the message names what is missing or different. dtype ASSAY_NONE: any. */
assay_status tensor_file_get(const tensor_file *file, const char *name, assay_dtype dtype, int32_t rank,
                             const int64_t *shape, const file_tensor **found, assay_error *error);
/* "[2, 3]" */
void tensor_file_shape(int32_t rank, const int64_t *shape, char *text, size_t size);

#endif
