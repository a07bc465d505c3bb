/* tensor_file.h: named tensors in files (docs/models.md): a JSON manifest beside one file of data, and safetensors.
 * Every offset and size is checked against the file's bytes before anything is returned. */
#ifndef ASSAY_CORE_TENSOR_FILE_H
#define ASSAY_CORE_TENSOR_FILE_H

#include "assay/status.h"
#include "assay/tensor.h"
#include "core/json.h"

enum { TENSOR_FILE_NAME = 192, TENSOR_FILE_MOST = 1 << 14 };

typedef struct file_tensor {
  const char *name; /* has any length; lives as long as the file */
  assay_dtype dtype;
  int32_t rank;
  int64_t shape[ASSAY_MAX_RANK], count;
  unsigned char *data; /* dense, row-major, little endian, aligned to its element */
  int64_t begin;       /* its first byte in the data of the file */
  unsigned char *copy; /* owns the data, where the file has them at an odd place; else NULL */
  /* safetensors: the reason why the tensor cannot be read, such as "dtype BOOL"; dtype is then ASSAY_NONE, and there
   * are no data. "": it can. */
  char unread[48];
} file_tensor;

typedef struct tensor_file {
  file_tensor *tensor;
  int32_t count;
  unsigned char *bytes;
  int64_t size;
  json_reader *reader;        /* owns the manifest */
  const json_value *manifest; /* the whole manifest, for other entries */
} tensor_file;

/* Reads a flat manifest. `data` is the file of data; NULL: the file that the manifest's key "data" names, beside the
 * manifest. */
assay_status tensor_file_flat(const char *manifest, const char *data, tensor_file *file, assay_error *error);
/* Reads safetensors. Lists a tensor whose type or axes nothing here takes, with the reason (`unread`), and reads the
 * others. Refuses tensors that share bytes. */
assay_status tensor_file_safetensors(const char *path, tensor_file *file, assay_error *error);
void tensor_file_free(tensor_file *file);

const file_tensor *tensor_file_find(const tensor_file *file, const char *name); /* NULL: no such tensor */
/* Returns the tensor with this name, type and shape. The message names what is missing or different. dtype ASSAY_NONE:
 * any that can be read. */
assay_status tensor_file_get(const tensor_file *file, const char *name, assay_dtype dtype, int32_t rank,
                             const int64_t *shape, const file_tensor **found, assay_error *error);
/* Writes a shape as "[2, 3]". */
void tensor_file_shape(int32_t rank, const int64_t *shape, char *text, size_t size);

#endif
