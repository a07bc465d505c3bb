/* rowwise.h: shared parts of references that compute a plain operator's result row by row. */
#ifndef ASSAY_REF_ROWWISE_H
#define ASSAY_REF_ROWWISE_H

#include "assay/op.h"

/* Returns the number of rows to compute: those of the subset, or all N. */
int64_t rowwise_count(const assay_rows *rows, int64_t N);
/* Returns the i-th of these rows. */
int64_t rowwise_index(const assay_rows *rows, int64_t i);

/* Returns the place of output argument `arg` among those present, in expected[]. */
int32_t rowwise_output(const assay_call *call, int32_t arg);

/* Returns row `row` of a [rows, K] tensor as a tensor of one row. */
assay_tensor rowwise_row(const assay_tensor *t, int64_t row);

/* Expects that an in-out tensor whose result goes elsewhere keeps its bits. */
void rowwise_unchanged(const assay_tensor *tensor, const assay_rows *rows, assay_expected *expected);

/* Allocates `elements` doubles, which the caller frees, or returns ASSAY_ERR_MEMORY. */
assay_status rowwise_reserve(const assay_call *call, int64_t elements, double **memory, assay_error *error);

/* Refuses the exact tier: `found` is at an element of the result where no more than `most` is allowed. */
assay_status rowwise_refuse(const assay_call *call, int64_t row, int64_t channel, const char *what, double found,
                            double most, assay_error *error);

/* Returns σ² of a sum of a few terms, added in f32 in any order and stored in `out`. It is 0 if the sum is exact in f32
 * whatever the order, and in the type. */
double few_terms_variance(const double *term, int32_t count, assay_dtype out);

/* Tells whether a sum of a few terms is exact in f32 whatever the order. */
bool few_terms_exact(const double *term, int32_t count);

#endif
