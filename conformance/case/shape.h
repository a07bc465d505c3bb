/* shape.h: sizes by an operator's own shape strings (op.h). */
#ifndef ASSAY_CONFORMANCE_CASE_SHAPE_H
#define ASSAY_CONFORMANCE_CASE_SHAPE_H

#include "types.h"

/* Returns the dimension named by the first `size` characters of `name`, derived ones included. */
typedef int64_t (*shape_dim)(const void *context, const char *name, size_t size);

/* Returns the extent of one axis, `size` characters long. It is a sum of NAME, k*NAME, NAME/k, NAME/x, x and whole
 * numbers; x = 16 / element. */
int64_t shape_axis(const char *term, size_t size, int64_t element, shape_dim dim, const void *context);
/* Returns the elements of a plain operator's arguments; optional ones count if `present` has their bit. `pad` elements
 * lie between the rows of the first argument whose rows may lie apart, twice as many for the second, and so on. */
double shape_elements(const assay_op *op, uint32_t present, int64_t pad, shape_dim dim, const void *context);
/* Returns the elements of one argument of a case. Dimensions that follow from its requests count as 1. */
double shape_arg_elements(const assay_case *one, int32_t arg);
/* Returns the elements of all arguments of a plain case. */
double shape_case_elements(const assay_case *one);

#endif
