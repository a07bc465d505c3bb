/* adapt.h: adapters: values that other engines take instead of ours, made from a call. Private to this folder. */
#ifndef ASSAY_CONFORMANCE_FFI_ADAPT_H
#define ASSAY_CONFORMANCE_FFI_ADAPT_H

#include <stdbool.h>
#include <stdint.h>

#include "assay/op.h"

/* Adapters. Those before ADAPT_SCALARS are tensors. All but ADAPT_COS_SIN hold i32, and are made by the plan. */
typedef enum adapter {
  ADAPT_CSR_INDPTR,  /* first place of each request in csr_indices */
  ADAPT_CSR_INDICES, /* its pages, one after the other */
  ADAPT_LAST_PAGE,   /* tokens in the last page of each request */
  ADAPT_LENGTHS,     /* kv_len */
  ADAPT_Q_INDPTR,    /* first row of each request; decode: 0, 1, 2 ... */
  ADAPT_ROW_NUMBERS, /* appends, each row as a request of one page: 0, 1, 2 ... */
  ADAPT_ROW_INDPTR,  /* 0, 1, 2 ... and the number of rows */
  ADAPT_ROW_PAGES,   /* page of each row's slot */
  ADAPT_ROW_OFFSETS, /* place in that page */
  ADAPT_ROW_LENGTHS, /* that place, plus 1 */
  ADAPT_COS_SIN,     /* cos and sin side by side in each row, f32 */
  ADAPT_SCALARS,
  ADAPT_WINDOW_LEFT = ADAPT_SCALARS, /* window - 1; without a window -1 */
  ADAPT_LAYOUT_CODE,                 /* nhd 0, hnd 1 */
  ADAPT_SCALE,                       /* scale; where it is 0, 1/sqrt(D) */
  ADAPTERS
} adapter;

/* Returns the adapter of a name, or -1. The others return its name, and all names with commas. */
int32_t adapt_find(const char *name);
const char *adapt_name(int32_t which);
const char *adapt_names(void);
/* Tells whether the operator has what the adapter is made from. `missing` is set to the name that it lacks. */
bool adapt_fits(int32_t which, const assay_op *op, const char **missing);
/* Tells whether the adapter is made from this argument or parameter. */
bool adapt_uses(int32_t which, const char *name);

/* Writes a scalar adapter. Fails with ASSAY_ERR_UNSUPPORTED where the call has no such value. */
assay_status adapt_scalar(int32_t which, const assay_call *call, double *value, assay_error *error);
/* Returns the most numbers that a tensor adapter of i32 has; they follow from shapes alone. */
int64_t adapt_room(int32_t which, const assay_call *call);
/* Fills a tensor adapter from host copies of the arguments: `host[i]` holds argument i. Returns how many numbers are
 * used. Fails with ASSAY_ERR_UNSUPPORTED where a row has no place. */
assay_status adapt_fill(int32_t which, const assay_call *call, void *const *host, int32_t *to, int64_t *used,
                        assay_error *error);
/* Writes the type and the dense shape that an absent output would have. Fails with ASSAY_ERR_UNSUPPORTED where its type
 * is not fixed, or no other tensor shows a dimension. */
assay_status adapt_shape(const assay_call *call, int32_t arg, assay_tensor *made, assay_error *error);
/* Returns the dimension's value in a call, or -1 where no tensor shows it. "group" is H / H_kv. */
int64_t adapt_dim(const assay_call *call, const char *name);

#endif
