/* shape.c: see shape.h. */
#include "shape.h"

#include <stdlib.h>

static bool named(const char *term, size_t size, const char *name) {
  return strlen(name) == size && strncmp(term, name, size) == 0;
}

int64_t shape_axis(const char *term, size_t size, int64_t element, shape_dim dim, const void *context) {
  const int64_t x = element > 0 ? 16 / element : 1;
  const char *const end = term + size;
  int64_t sum = 0;
  while (term < end) {
    int64_t product = 1;
    char *after = NULL;
    if (*term >= '0' && *term <= '9') {
      product = strtoll(term, &after, 10);
      term = *after == '*' ? after + 1 : after;
    }
    size_t name = 0;
    while (term + name < end && strchr("*/^+", term[name]) == NULL)
      ++name;
    if (name > 0) product *= named(term, name, "x") ? x : dim(context, term, name);
    term += name;
    if (term < end && *term == '/') {
      const bool by_x = term[1] == 'x';
      const int64_t divisor = by_x ? x : strtoll(term + 1, &after, 10);
      product /= divisor > 0 ? divisor : 1;
      term = by_x ? term + 2 : after;
    } else if (term < end && *term == '^') {
      const int64_t divisor = strtoll(term + 1, &after, 10);
      product = divisor > 0 ? (product + divisor - 1) / divisor : product;
      term = after;
    }
    sum += product;
    term += term < end && *term == '+';
  }
  return sum;
}

/* Adds the elements of an argument to `sum` and returns its rank. `rows` receives the extent of axis 0. */
static int32_t product_of(const assay_arg *arg, shape_dim dim, const void *context, double *sum, double *rows) {
  double product = 1;
  int32_t rank = 0;
  for (const char *term = arg->shape;; ++rank) {
    const size_t size = strcspn(term, ",|");
    const double extent = (double)shape_axis(term, size, 1, dim, context);
    if (rank == 0) *rows = extent;
    product *= extent;
    term += size + 1;
    if (term[-1] != ',') break;
  }
  *sum += product;
  return rank + 1;
}

double shape_elements(const assay_op *op, uint32_t present, int64_t pad, shape_dim dim, const void *context) {
  double sum = 0;
  int64_t strided = 0;
  for (int32_t i = 0; i < op->arg_count; ++i) {
    const assay_arg *arg = &op->args[i];
    if (arg->optional && (present >> i & 1) == 0) continue;
    double rows = 1;
    const int32_t rank = product_of(arg, dim, context, &sum, &rows);
    if (arg->strided && rank > 1) sum += rows * (double)(pad * ++strided);
  }
  return sum;
}

static int64_t dim_of_case(const void *context, const char *name, size_t size) {
  const assay_case *one = context;
  for (int32_t i = 0; i < one->op->dim_count; ++i)
    if (named(name, size, one->op->dims[i].name)) return one->dim[i];
  return 1;
}

double shape_arg_elements(const assay_case *one, int32_t arg) {
  double sum = 0, rows = 0;
  if (one->op->args[arg].optional && (one->present >> arg & 1) == 0) return 0;
  (void)product_of(&one->op->args[arg], dim_of_case, one, &sum, &rows);
  return sum;
}

double shape_case_elements(const assay_case *one) {
  return shape_elements(one->op, one->present, one->row_pad, dim_of_case, one);
}
