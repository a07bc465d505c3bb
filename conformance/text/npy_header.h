/* npy_header.h: the header of a .npy file, a Python dictionary. Private to npy.c. */
#ifndef ASSAY_CONFORMANCE_TEXT_NPY_HEADER_H
#define ASSAY_CONFORMANCE_TEXT_NPY_HEADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "assay/status.h"
#include "assay/tensor.h"

typedef struct npy_header {
  char descr[32]; /* as written */
  char kind;      /* 'f', 'i', 'u', 'b', 'V' */
  int64_t size;   /* bytes of an element: 1, 2, 4, 8 */
  bool big;       /* big endian */
  bool generic;   /* '|': no order of bytes is given */
  bool fortran;   /* the first axis is the fastest */
  int32_t rank;
  int64_t shape[ASSAY_MAX_RANK], count;
} npy_header;

/* A shape of more elements is refused. */
enum { NPY_HEADER_MOST_LOG2 = 36 };

/* Reads a header of `size` bytes. Messages begin with the path and name the field. */
assay_status npy_header_read(const char *path, const char *text, size_t size, npy_header *made, assay_error *error);
/* Adds an axis; refuses too many axes, and more elements than a file may have. */
assay_status npy_header_axis(const char *path, npy_header *made, int64_t length, assay_error *error);

#endif
