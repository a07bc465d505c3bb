/* rowwise.c: shared parts of references that compute a plain operator's result row by row. */
#include "ref/lib/rowwise.h"

#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "ref/lib/error_model.h"
#include "ref/lib/lattice.h"
#include "ref/lib/plain.h"

int64_t rowwise_count(const assay_rows *rows, int64_t N) {
  return rows != NULL && rows->index != NULL ? rows->count : N;
}

int64_t rowwise_index(const assay_rows *rows, int64_t i) {
  return rows != NULL ? plain_row(rows, i) : i;
}

int32_t rowwise_output(const assay_call *call, int32_t arg) {
  int32_t place = 0;
  for (int32_t i = 0; i < arg; ++i)
    place += call->op->args[i].role != ASSAY_IN && call->arg[i].data != NULL;
  return place;
}

assay_tensor rowwise_row(const assay_tensor *t, int64_t row) {
  assay_tensor made = *t;
  made.data = (unsigned char *)t->data + row * t->stride[0] * assay_dtype_size(t->dtype);
  made.shape[0] = 1;
  return made;
}

void rowwise_unchanged(const assay_tensor *tensor, const assay_rows *rows, assay_expected *expected) {
  const int64_t width = plain_row_elements(tensor), count = rowwise_count(rows, tensor->shape[0]);
  for (int64_t i = 0; i < count; ++i)
    plain_load_row(tensor, rowwise_index(rows, i), expected->value + i * width);
  for (int64_t i = 0; expected->sigma != NULL && i < count * width; ++i)
    expected->sigma[i] = ASSAY_UNCHANGED;
}

assay_status rowwise_reserve(const assay_call *call, int64_t elements, double **memory, assay_error *error) {
  *memory = malloc((size_t)(elements > 0 ? elements : 1) * sizeof **memory);
  if (*memory != NULL) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_MEMORY, "%s reference: %lld numbers do not fit in memory", call->op->name,
                    (long long)elements);
}

assay_status rowwise_refuse(const assay_call *call, int64_t row, int64_t channel, const char *what, double found,
                            double most, assay_error *error) {
  return assay_fail(error, ASSAY_ERR_INPUT, "exact tier: %s row %lld, channel %lld: %s: found %.17g, allowed %.17g",
                    call->op->name, (long long)row, (long long)channel, what, found, most);
}

bool few_terms_exact(const double *term, int32_t count) {
  double size = 0;
  for (int32_t i = 0; i < count; ++i)
    size += fabs(term[i]);
  return lattice_admits(size, lattice_low_row(term, count), 24);
}

/* Returns σ² of the sum. Each sum of some of the terms may be formed and rounded. The largest such variance stands for
 * all roundings except the last. */
double few_terms_variance(const double *term, int32_t count, assay_dtype out) {
  double sum = 0, partial = 0;
  for (int32_t i = 0; i < count; ++i)
    sum += term[i];
  if (few_terms_exact(term, count)) return rounding_variance(sum, out);
  for (int32_t i = 0; i < count && count > 2; ++i) {
    const double own = rounding_variance(sum - term[i], ASSAY_F32);
    if (own > partial) partial = own;
  }
  const double inner = count > 2 ? (count - 2) * partial : 0;
  if (out == ASSAY_F32) return inner + storing_variance(sum, out);
  return inner + rounding_variance(sum, ASSAY_F32) + storing_variance(sum, out);
}
