/* linear_fixture.h: calls of plain operators for tests of their references: tensors by name, and what the reference
 * says of each output. */
#ifndef ASSAY_SELFTEST_LINEAR_FIXTURE_H
#define ASSAY_SELFTEST_LINEAR_FIXTURE_H

#include "assay/op.h"

typedef struct linear_call {
  const assay_op *op;
  assay_call call;
  assay_tensor arg[ASSAY_MAX_ARGS];
  double param[ASSAY_MAX_PARAMS];
  assay_expected expected[ASSAY_MAX_ARGS]; /* by argument; value NULL: no output, or not run */
} linear_call;

/* No argument given, parameters at their defaults. */
void linear_open(linear_call *c, const assay_op *op);
void linear_close(linear_call *c);

/* Gives an argument memory, all zero, with `pad` elements between rows. Sizes that are not used are 0. */
void linear_tensor(linear_call *c, const char *name, assay_dtype dtype, int64_t pad, int64_t n0, int64_t n1,
                   int64_t n2);
void linear_param(linear_call *c, const char *name, double value);
assay_tensor *linear_arg(linear_call *c, const char *name);
int64_t linear_count(const assay_tensor *t);
/* Element `index`, counted densely. */
void linear_set(linear_call *c, const char *name, int64_t index, double value);
double linear_get(linear_call *c, const char *name, int64_t index);
/* Fill with normal values, with whole numbers in [-most, most], or with one number everywhere. */
void linear_normals(linear_call *c, const char *name, uint64_t seed);
void linear_integers(linear_call *c, const char *name, uint64_t seed, int64_t most);
void linear_all(linear_call *c, const char *name, double value);

/* check() and reference() over all rows; values and sigma of every output are there afterwards. */
assay_status linear_try(linear_call *c, const assay_contract *contract, bool exact, assay_error *error);
/* The same, which must succeed. */
void linear_run(linear_call *c, const assay_contract *contract, bool exact);
const assay_expected *linear_result(linear_call *c, const char *name);

bool linear_close_to(double a, double b);

#endif
