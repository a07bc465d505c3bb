/* plain.h: what the references of plain operators share: a call checked against the operator's own table, its
 * dimensions by name, and rows in f64. */
#ifndef ASSAY_REF_PLAIN_H
#define ASSAY_REF_PLAIN_H

#include "assay/op.h"

/* Range and kind of every parameter of the table. */
assay_status check_params(const assay_call *call, assay_error *error);

/* Shape and strides of an argument: the offset of every element, in bytes, must fit into 63 bits. */
assay_status check_reach(const assay_call *call, int32_t arg, assay_error *error);

/* The dimensions of one call, in the order of the operator's table. */
typedef struct plain_dims {
  int64_t dim[ASSAY_MAX_DIMS];
} plain_dims;

/* Every argument against its row of the table: presence, alignment, type, rank, shape, strides, and every dimension
 * and parameter against its range. Contents are not looked at. Refusals name the argument, dimension or parameter. */
assay_status plain_check(const assay_call *call, plain_dims *dims, assay_error *error);
/* plain_check alone, for the operator's table. */
assay_status plain_check_call(const assay_call *call, assay_error *error);

/* A dimension of a checked call by name. */
int64_t plain_dim(const assay_call *call, const plain_dims *dims, const char *name);

/* Row `row` (axis 0) of a tensor whose other axes are dense, in f64: all elements of the row. */
void plain_load_row(const assay_tensor *tensor, int64_t row, double *value);
int64_t plain_row_elements(const assay_tensor *tensor);
/* Integer element `index` of a dense i32 or i64 tensor. */
int64_t plain_integer(const assay_tensor *tensor, int64_t index);

/* Number of rows to compute and the row at place i of the subset. */
static inline int64_t plain_row(const assay_rows *rows, int64_t i) {
  return rows->index != NULL ? rows->index[i] : i;
}

/* fill() for values of any distribution the case asks for: `count` numbers of the stream `stream` (an argument's
 * index, usually). Lattice: multiples of 2^-3, at most 4 in size. */
void plain_fill(const assay_fill *fill, uint64_t stream, double *value, int64_t count);
/* Uniform integers in [0, bound). */
void plain_fill_integers(const assay_fill *fill, uint64_t stream, int64_t bound, double *value, int64_t count);

#endif
