/* rowwise.h: what references share that make one row of a plain operator's result after the other. */
#ifndef ASSAY_REF_ROWWISE_H
#define ASSAY_REF_ROWWISE_H

#include "assay/op.h"

/* Rows to compute: those of the subset, or all N. */
int64_t rowwise_count(const assay_rows *rows, int64_t N);
/* The i-th of them. */
int64_t rowwise_index(const assay_rows *rows, int64_t i);

/* Where output argument `arg` stands among those present, in expected[]. */
int32_t rowwise_output(const assay_call *call, int32_t arg);

/* Says of an in-out tensor whose result goes elsewhere that it keeps its bits. */
void rowwise_unchanged(const assay_tensor *tensor, const assay_rows *rows, assay_expected *expected);

/* `elements` doubles, or ASSAY_ERR_MEMORY. */
assay_status rowwise_reserve(const assay_call *call, int64_t elements, double **memory, assay_error *error);

/* The exact tier's refusal: `found` at an element of the result, where no more than `most` is allowed. */
assay_status rowwise_refuse(const assay_call *call, int64_t row, int64_t channel, const char *what, double found,
                            double most, assay_error *error);

/* σ² of a sum of a few terms, added in f32 in any order and stored in `out`. 0 where the sum is exact in f32 whatever
 * the order, and in the type. */
double few_terms_variance(const double *term, int32_t count, assay_dtype out);

/* Is a sum of a few terms exact in f32 whatever the order? */
bool few_terms_exact(const double *term, int32_t count);

#endif
