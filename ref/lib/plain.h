/* plain.h: shared parts of the references of plain operators. They are the check of a call against the operator's own
 * table, its dimensions by name, and rows in f64. */
#ifndef ASSAY_REF_PLAIN_H
#define ASSAY_REF_PLAIN_H

#include "assay/op.h"

/* Checks range and kind of every parameter of the table. */
assay_status check_params(const assay_call *call, assay_error *error);

/* Checks shape and strides of an argument: the offset of every element, in bytes, must fit into 63 bits. */
assay_status check_reach(const assay_call *call, int32_t arg, assay_error *error);

/* The dimensions of one call, in the order of the operator's table. */
typedef struct plain_dims {
  int64_t dim[ASSAY_MAX_DIMS];
} plain_dims;

/* Checks every argument against its row of the table: presence, alignment, type, rank, shape, strides. Checks every
 * dimension and parameter against its range. Contents are not read. Refusals name the argument, dimension or
 * parameter. */
assay_status plain_check(const assay_call *call, plain_dims *dims, assay_error *error);
/* Does plain_check alone, for the operator's table. */
assay_status plain_check_call(const assay_call *call, assay_error *error);

/* Returns a dimension of a checked call by name. */
int64_t plain_dim(const assay_call *call, const plain_dims *dims, const char *name);

/* Loads row `row` (axis 0) of a tensor whose other axes are dense, in f64: all elements of the row. */
void plain_load_row(const assay_tensor *tensor, int64_t row, double *value);
int64_t plain_row_elements(const assay_tensor *tensor);
/* Returns integer element `index` of a dense i32 or i64 tensor. */
int64_t plain_integer(const assay_tensor *tensor, int64_t index);

/* Return the number of rows to compute, and the row at place i of the subset. */
static inline int64_t plain_row(const assay_rows *rows, int64_t i) {
  return rows->index != NULL ? rows->index[i] : i;
}

/* Fills values of the distribution that the case asks for: `count` numbers of the stream `stream` (usually an
 * argument's index). Lattice: multiples of 2^-3, at most 4 in size. */
void plain_fill(const assay_fill *fill, uint64_t stream, double *value, int64_t count);
/* Brings finite numbers below 2^-8 in size, and keeps NaN and infinities: what replaces one of these cannot hide. */
void plain_make_small(double *value, int64_t count);
/* Fills uniform integers in [0, bound). */
void plain_fill_integers(const assay_fill *fill, uint64_t stream, int64_t bound, double *value, int64_t count);
/* Returns a flag of an argument in which every number except 0 means yes: 0, or 1, or another number of 32 bits. Low
 * and high bytes of some are 0, and some are negative. */
double plain_flag(const assay_fill *fill, uint64_t stream, int64_t i, bool yes);
/* Returns the place of index i in an order of [0, count) that the seed draws. No two indices share a place. */
int64_t plain_place(const assay_fill *fill, uint64_t stream, int64_t i, int64_t count);

#endif
