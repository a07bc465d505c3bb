/* grouped.c: products in which each row has the weights of its group. For a live row r of group g and channel n:
 *
 *   c_rn <- round(sum_k a_rk b_gnk + bias_gn)
 *
 * Source: docs/definitions.md, section 10. */
#include "ref/lib/grouped.h"

#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "ref/lib/error_model.h"
#include "ref/lib/gemm.h"
#include "ref/lib/lattice.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"

int64_t grouped_offset(const assay_tensor *t, int64_t row) {
  const int64_t outer = t->rank == 3 ? row / t->shape[1] : row, inner = t->rank == 3 ? row % t->shape[1] : 0;
  const int64_t apart = t->shape[0] > 1 ? t->stride[0] : 0;
  return outer * apart + (t->rank == 3 ? inner * t->shape[2] : 0);
}

/* ---- the error model --------------------------------------------------------------------------------- */

/* Returns the variance of an element: that of its sum, of the addition of the bias, and of storing. A sum that starts
 * from the bias adds it nowhere else. */
static double variance(const gemm_sum *s, const grouped_run *run, const double *a, const double *b, int64_t K,
                       double bias) {
  const assay_dtype in = run->call->arg[GROUPED_B].dtype, out = run->call->arg[GROUPED_C].dtype;
  const double y = s->sum + bias, added = bias != 0 && s->start == 0 ? storing_variance(y, ASSAY_F32) : 0;
  return gemm_variance(s, run->contract, a, b, K, in) + added + storing_variance(y, out);
}

/* Admits an element to the exact tier: its sum, and the sum with the bias. */
static assay_status admit(const grouped_run *run, int64_t row, int64_t n, const gemm_sum *s, int low_a, int low_b,
                          double bias, assay_error *error) {
  const int bits = lattice_width(run->contract->partial);
  if (!gemm_admits(s, run->contract, low_a, low_b))
    return rowwise_refuse(run->call, row, n, "sum |a b|", s->abs + fabs(s->start), ldexp(1, bits + low_a + low_b),
                          error);
  const double size = s->abs + fabs(bias);
  int low = s->abs != 0 ? low_a + low_b : LATTICE_ZERO;
  if (lattice_low(bias) < low) low = lattice_low(bias);
  if (!lattice_admits(size, low, 24))
    return rowwise_refuse(run->call, row, n, "sum |a b| + |bias|", size, ldexp(1, 24 + low), error);
  return ASSAY_OK;
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

typedef struct buffers {
  double *a, *b, *low; /* [count, K], [K], [count] */
} buffers;

static void dead_row(const grouped_run *run, int64_t i, int64_t N, const assay_expected *to) {
  const assay_tensor *c = &run->call->arg[GROUPED_C];
  const int64_t number = run->number != NULL ? run->number[i] : i, at = grouped_offset(c, number);
  for (int64_t n = 0; n < N; ++n) {
    to->value[i * N + n] = run->untouched ? assay_load_f64(c->data, c->dtype, at + n) : 0;
    if (to->sigma != NULL) to->sigma[i * N + n] = run->untouched ? ASSAY_UNCHANGED : 0;
  }
}

static double bias_of(const grouped_run *run, int64_t group, int64_t n) {
  const assay_tensor *bias = &run->call->arg[GROUPED_BIAS];
  if (bias->data == NULL || run->spoil == GROUPED_BIAS_LOST) return 0;
  return assay_load_f64(bias->data, bias->dtype, group * bias->shape[1] + n);
}

/* Computes channel n of all rows of one group, so that its weights are read once. */
static assay_status channel(const grouped_run *run, const buffers *at, int64_t g, int64_t n, const assay_expected *to,
                            assay_error *error) {
  const assay_tensor *B = &run->call->arg[GROUPED_B];
  const int64_t N = B->shape[1], K = B->shape[2], next = n + 1 < N ? n + 1 : n;
  const int64_t from = run->spoil == GROUPED_NEIGHBOURS_WEIGHTS ? next : n;
  const int64_t terms = run->spoil == GROUPED_LAST_K_DROPPED ? K - 1 : K;
  assay_load_f64_row(B->data, B->dtype, (g * N + from) * K, 1, K, at->b);
  const int low_b = run->exact ? lattice_low_row(at->b, K) : 0;
  for (int64_t i = 0; i < run->count; ++i) {
    if (run->row[i].group != g) continue;
    const double *a = at->a + i * K, bias = bias_of(run, run->row[i].bias, n);
    to->value[i * N + n] = gemm_dot(a, at->b, terms) + bias;
    if (to->sigma == NULL && !run->exact) continue;
    const gemm_sum s = gemm_walk_from(gemm_start(run->contract, 1, bias), a, at->b, K);
    if (to->sigma != NULL) to->sigma[i * N + n] = sqrt(variance(&s, run, a, at->b, K, bias));
    if (!run->exact) continue;
    const assay_status status = admit(run, i, n, &s, (int)at->low[i], low_b, bias, error);
    if (status != ASSAY_OK) return status;
  }
  return ASSAY_OK;
}

assay_status grouped_compute(const grouped_run *run, const assay_expected *expected, assay_error *error) {
  const assay_tensor *A = &run->call->arg[GROUPED_A], *B = &run->call->arg[GROUPED_B];
  const int64_t G = B->shape[0], N = B->shape[1], K = B->shape[2];
  double *memory;
  unsigned char *const live = calloc((size_t)G + 1, 1);
  if (live == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", run->call->op->name);
  assay_status status = rowwise_reserve(run->call, (run->count + 1) * K + run->count, &memory, error);
  if (status != ASSAY_OK) {
    free(live);
    return status;
  }
  const buffers at = {memory, memory + run->count * K, memory + (run->count + 1) * K};
  for (int64_t i = 0; i < run->count; ++i) {
    if (run->row[i].group < 0) {
      dead_row(run, i, N, expected);
      continue;
    }
    live[run->row[i].group] = 1;
    assay_load_f64_row(A->data, A->dtype, grouped_offset(A, run->row[i].a), 1, K, at.a + i * K);
    at.low[i] = run->exact ? lattice_low_row(at.a + i * K, K) : 0;
  }
  for (int64_t g = 0; g < G; ++g)
    for (int64_t n = 0; n < N && live[g] != 0 && status == ASSAY_OK; ++n)
      status = channel(run, &at, g, n, expected, error);
  free(memory);
  free(live);
  return status;
}

assay_cost grouped_cost(const assay_call *call, double live, double groups) {
  const assay_tensor *B = &call->arg[GROUPED_B], *C = &call->arg[GROUPED_C];
  const double N = (double)B->shape[1], K = (double)B->shape[2], bias = call->arg[GROUPED_BIAS].data != NULL;
  const double in = (double)assay_dtype_size(B->dtype), out = (double)assay_dtype_size(C->dtype);
  return (assay_cost){2 * live * N * K + bias * live * N, (live * K + groups * N * (K + bias)) * in + live * N * out};
}

void grouped_fill(const assay_fill *fill, int32_t arg, const int32_t *group, int64_t rows, double *value,
                  int64_t count) {
  const int64_t G = fill->call->arg[GROUPED_B].shape[0], width = count / (arg == GROUPED_A ? rows : G);
  plain_fill(fill, (uint64_t)arg, value, count);
  if (arg == GROUPED_A) {
    for (int64_t i = 0; i < count; ++i)
      if (group[i / width] < 0) value[i] = (double)NAN;
    return;
  }
  unsigned char *const live = calloc((size_t)G + 1, 1);
  if (live == NULL || (arg != GROUPED_B && arg != GROUPED_BIAS)) {
    free(live);
    return;
  }
  for (int64_t r = 0; r < rows; ++r)
    if (group[r] >= 0) live[group[r]] = 1;
  for (int64_t i = 0; i < count; ++i)
    if (live[i / width] == 0) value[i] = (double)NAN;
  free(live);
}
