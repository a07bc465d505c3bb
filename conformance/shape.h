/* shape.h: the sizes that an operator's own shape strings (op.h) give. */
#ifndef ASSAY_CONFORMANCE_SHAPE_H
#define ASSAY_CONFORMANCE_SHAPE_H

#include "case.h"

/* A dimension by the first `size` characters of `name`, derived ones included. */
typedef int64_t (*shape_dim)(const void *context, const char *name, size_t size);

/* One axis, `size` characters long: a sum of NAME, k*NAME, NAME/k, NAME/x, x and whole numbers; x = 16 / element. */
int64_t shape_axis(const char *term, size_t size, int64_t element, shape_dim dim, const void *context);
/* Elements of a plain operator's arguments, those it may be given among them where `present` has their bit. `pad`:
 * elements between the rows of the first argument whose rows may lie apart, twice as many for the second, and so on. */
double shape_elements(const assay_op *op, uint32_t present, int64_t pad, shape_dim dim, const void *context);
/* One argument of a case; dimensions that follow from its requests count 1. */
double shape_arg_elements(const assay_case *one, int32_t arg);
/* All of a plain case. */
double shape_case_elements(const assay_case *one);

#endif
