/* npy.h: dense tensors in files: NumPy's .npy (versions 1 to 3 are read, 1 is written), or raw bytes. Types without a
 * NumPy name are written as unsigned integers of their size. The file's name says the type then: out.bf16.npy,
 * k_cache.e4m3.npy. */
#ifndef ASSAY_CONFORMANCE_TEXT_NPY_H
#define ASSAY_CONFORMANCE_TEXT_NPY_H

#include <stdbool.h>
#include <stdint.h>

#include "assay/status.h"
#include "assay/tensor.h"

/* The types that only files hold; they continue assay_dtype. */
typedef enum npy_type { NPY_F64 = ASSAY_DTYPE_COUNT, NPY_U8, NPY_U16, NPY_I8, NPY_I16, NPY_U32, NPY_U64 } npy_type;

/* A dense tensor. */
typedef struct npy_tensor {
  int type; /* assay_dtype or npy_type */
  int32_t rank;
  int64_t shape[ASSAY_MAX_RANK], count;
  unsigned char *data; /* dense, row-major; owned */
} npy_tensor;

/* Returns the bytes of an element; 0 for no type. */
int64_t npy_size(int type);
/* Returns "bf16" for ASSAY_BF16 and so on; "?" for no type. */
const char *npy_type_name(int type);
/* Returns the type of a name ("bf16"), or -1. */
int npy_type_find(const char *name);

/* Writes dense data of a known type, whole or not at all. Fails with ASSAY_ERR_INPUT (path) or ASSAY_ERR_IO. */
assay_status npy_write(const char *path, int type, int32_t rank, const int64_t *shape, const void *data,
                       assay_error *error);
/* Reads a file into `tensor`, which the caller frees; after a failure it holds nothing. `dtype` NULL means the type of
 * the file, or the type in its name if that has the same size. `shape` NULL means the shape of the file. Raw bytes need
 * both; a shape is written "2,3,4". Big-endian files and Fortran order are read; `data` is little endian and row-major.
 * A shape of more than 2^36 elements is refused. */
assay_status npy_read(const char *path, const char *dtype, const char *shape, npy_tensor *tensor, assay_error *error);
/* Gives the elements another type of the same size, by its name; `path` is for the message. */
assay_status npy_rename(npy_tensor *tensor, const char *path, const char *dtype, assay_error *error);
void npy_free(npy_tensor *t);
/* Returns an element as f64. */
double npy_load(const npy_tensor *t, int64_t index);

#endif
