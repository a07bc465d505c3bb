/* linear_fixture.c: calls of plain operators for tests of their references. */
#include "linear_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "core/rng.h"

void linear_open(linear_call *c, const assay_op *op) {
  memset(c, 0, sizeof *c);
  c->op = op;
  c->call = (assay_call){op, c->arg, c->param};
  for (int32_t i = 0; i < op->param_count; ++i)
    c->param[i] = op->params[i].fallback;
}

void linear_close(linear_call *c) {
  for (int32_t i = 0; i < c->op->arg_count; ++i) {
    free(c->arg[i].data);
    free(c->expected[i].value);
    free(c->expected[i].sigma);
  }
}

static int32_t index_of(const linear_call *c, const char *name) {
  for (int32_t i = 0; i < c->op->arg_count; ++i)
    if (strcmp(c->op->args[i].name, name) == 0) return i;
  cr_assert_fail("%s has no argument %s", c->op->name, name);
  return -1;
}

assay_tensor *linear_arg(linear_call *c, const char *name) {
  return &c->arg[index_of(c, name)];
}

void linear_tensor(linear_call *c, const char *name, assay_dtype dtype, int64_t pad, int64_t n0, int64_t n1,
                   int64_t n2) {
  assay_tensor *t = linear_arg(c, name);
  free(t->data);
  *t = (assay_tensor){.dtype = dtype, .rank = n2 > 0 ? 3 : n1 > 0 ? 2 : 1, .shape = {n0, n1, n2}};
  int64_t stride = 1;
  for (int32_t a = t->rank - 1; a >= 0; --a) {
    t->stride[a] = a == 0 && t->rank > 1 ? stride + pad : stride;
    stride *= t->shape[a];
  }
  t->data = calloc((size_t)(n0 * t->stride[0]), (size_t)assay_dtype_size(dtype));
  cr_assert_not_null(t->data);
}

void linear_param(linear_call *c, const char *name, double value) {
  for (int32_t i = 0; i < c->op->param_count; ++i)
    if (strcmp(c->op->params[i].name, name) == 0) {
      c->param[i] = value;
      return;
    }
  cr_assert_fail("%s has no parameter %s", c->op->name, name);
}

int64_t linear_count(const assay_tensor *t) {
  int64_t count = 1;
  for (int32_t a = 0; a < t->rank; ++a)
    count *= t->shape[a];
  return count;
}

static int64_t offset_of(const assay_tensor *t, int64_t index) {
  const int64_t width = linear_count(t) / t->shape[0];
  return index / width * t->stride[0] + index % width;
}

void linear_set(linear_call *c, const char *name, int64_t index, double value) {
  const assay_tensor *t = linear_arg(c, name);
  const int64_t at = offset_of(t, index);
  if (t->dtype == ASSAY_I32)
    ((int32_t *)t->data)[at] = (int32_t)value;
  else if (t->dtype == ASSAY_I64)
    ((int64_t *)t->data)[at] = (int64_t)value;
  else
    assay_store_f64(t->data, t->dtype, at, value);
}

double linear_get(linear_call *c, const char *name, int64_t index) {
  const assay_tensor *t = linear_arg(c, name);
  return assay_load_f64(t->data, t->dtype, offset_of(t, index));
}

void linear_normals(linear_call *c, const char *name, uint64_t seed) {
  const int64_t count = linear_count(linear_arg(c, name));
  double *value = malloc((size_t)count * sizeof *value);
  cr_assert_not_null(value);
  assay_rng_normals(seed, (uint64_t)index_of(c, name), value, count);
  for (int64_t i = 0; i < count; ++i)
    linear_set(c, name, i, value[i]);
  free(value);
}

void linear_integers(linear_call *c, const char *name, uint64_t seed, int64_t most) {
  assay_rng rng = {seed, (uint64_t)index_of(c, name), 0};
  for (int64_t i = 0; i < linear_count(linear_arg(c, name)); ++i)
    linear_set(c, name, i, (double)assay_rng_range(&rng, -most, most));
}

void linear_all(linear_call *c, const char *name, double value) {
  for (int64_t i = 0; i < linear_count(linear_arg(c, name)); ++i)
    linear_set(c, name, i, value);
}

assay_status linear_try(linear_call *c, const assay_contract *contract, bool exact, assay_error *error) {
  assay_expected dense[ASSAY_MAX_ARGS];
  int32_t outputs = 0;
  error->text[0] = '\0'; /* the first message stays */
  for (int32_t i = 0; i < c->op->arg_count; ++i) {
    if (c->op->args[i].role == ASSAY_IN || c->arg[i].data == NULL) continue;
    const size_t bytes = (size_t)linear_count(&c->arg[i]) * sizeof(double);
    free(c->expected[i].value);
    free(c->expected[i].sigma);
    dense[outputs++] = c->expected[i] = (assay_expected){malloc(bytes), malloc(bytes)};
    cr_assert(c->expected[i].value != NULL && c->expected[i].sigma != NULL);
  }
  const assay_status status = c->op->check(&c->call, error);
  if (status != ASSAY_OK) return status;
  const assay_rows rows = {c->arg[0].shape[0], NULL};
  return c->op->reference(&c->call, contract, &rows, exact, dense, NULL, error);
}

void linear_run(linear_call *c, const assay_contract *contract, bool exact) {
  assay_error error = {""};
  const assay_status status = linear_try(c, contract, exact, &error);
  cr_assert(status == ASSAY_OK, "%s: %s", c->op->name, error.text);
}

const assay_expected *linear_result(linear_call *c, const char *name) {
  return &c->expected[index_of(c, name)];
}

bool linear_close_to(double a, double b) {
  return a == b || fabs(a - b) <= 1e-12 * (1 + fabs(a) + fabs(b));
}
