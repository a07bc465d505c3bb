/* npy.h: dense tensors in files: NumPy's .npy (versions 1 and 2 read, 1 written), or raw bytes.
 * Types NumPy has no name for are written as unsigned integers of their size, and named in the file's name:
 * out.bf16.npy, k_cache.e4m3.npy. */
#ifndef ASSAY_CONFORMANCE_NPY_H
#define ASSAY_CONFORMANCE_NPY_H

#include <stdbool.h>
#include <stdint.h>

#include "assay/status.h"
#include "assay/tensor.h"

/* assay_dtype, and what only files hold. */
typedef enum npy_type { NPY_F64 = ASSAY_DTYPE_COUNT, NPY_U8, NPY_U16 } npy_type;

typedef struct npy_tensor {
  int type; /* assay_dtype or npy_type */
  int32_t rank;
  int64_t shape[ASSAY_MAX_RANK], count;
  unsigned char *data; /* dense, row-major; owned */
} npy_tensor;

enum { NPY_MAX_BYTES_LOG2 = 36 };

int64_t npy_size(int type);
const char *npy_type_name(int type);
/* "bf16" → its type; -1: no such type. */
int npy_type_find(const char *name);

assay_status npy_write(const char *path, int type, int32_t rank, const int64_t *shape, const void *data,
                       assay_error *error);
/* dtype: NULL: that of the file (of its name, if that names one of the same size). shape: NULL: that of the file;
 * "2,3,4" is needed for raw bytes, as is the dtype. Fortran order and big-endian files are refused. */
assay_status npy_read(const char *path, const char *dtype, const char *shape, npy_tensor *made, assay_error *error);
void npy_free(npy_tensor *t);
double npy_load(const npy_tensor *t, int64_t index);

#endif
