/* magnitude.h: the numbers that the key `magnitude` puts in place of a case's usual values. They are subnormal numbers
 * and their neighbours, the largest ones, and zeros of both signs. */
#ifndef ASSAY_CONFORMANCE_GENERATE_MAGNITUDE_H
#define ASSAY_CONFORMANCE_GENERATE_MAGNITUDE_H

#include "conformance/case/case.h"

/* The tensors of paged operators that take magnitudes. */
enum { MAGNITUDE_Q = 64, MAGNITUDE_K, MAGNITUDE_V };

/* Tells whether the case gives argument `arg` numbers of another magnitude. */
bool magnitude_takes(const assay_case *one, int32_t arg);
/* Changes `count` numbers of an argument of a plain operator, rows of `row` numbers each, stored in `dtype`. Numbers
 * that are not finite stay. */
void magnitude_apply(const assay_case *one, int32_t arg, assay_dtype dtype, int64_t row, double *value, int64_t count);
/* Changes one vector of q, k or v. `identity` tells vectors apart. */
void magnitude_vector(const assay_case *one, int32_t tensor, uint64_t identity, assay_dtype dtype, double *value,
                      int64_t count);

#endif
