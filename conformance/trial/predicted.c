/* predicted.c: samples a product, predicts its bits under the declared contract, and compares. */
#include "predicted.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "neighbours.h"

enum { MOST_PRODUCTS = 1 << 19, LEAST_ROWS = 2, LEAST_COLUMNS = 4 };

static bool used = true;

void predicted_use(bool on) {
  used = on;
}

bool predicted_used(void) {
  return used;
}

/* The sampled rows and columns, gathered into dense tensors. */
typedef struct sample {
  int64_t M, N;
  int64_t *row, *column; /* their numbers in the result */
  unsigned char *a, *b, *old, *bias;
  assay_product product;
  unsigned char *wanted; /* [M, N] of the output's type */
} sample;

static void sample_free(sample *s) {
  free(s->row);
  free(s->column);
  free(s->a);
  free(s->b);
  free(s->old);
  free(s->bias);
  free(s->wanted);
}

static int64_t clamp(int64_t value, int64_t least, int64_t most) {
  return value < least ? (least < most ? least : most) : value < most ? value : most;
}

/* Chooses `count` of `all` numbers, ascending: the first, the last, and one in each of the other equal shares. */
static void choose(uint64_t seed, int64_t count, int64_t all, int64_t *chosen) {
  assay_rng rng = {seed, (uint64_t)all, 0};
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = all * i / count, end = all * (i + 1) / count;
    chosen[i] = count == all ? i : i == 0 ? 0 : i == count - 1 ? all - 1 : assay_rng_range(&rng, begin, end - 1);
  }
}

static assay_tensor dense(unsigned char *data, assay_dtype dtype, int64_t rows, int64_t columns) {
  return (assay_tensor){.data = data, .dtype = dtype, .rank = 2, .shape = {rows, columns}, .stride = {columns, 1}};
}

/* Copies `count` elements of one row, at the places given or from 0 on. */
static void copy_row(const assay_tensor *t, int64_t row, const int64_t *place, int64_t count, unsigned char *to) {
  const int64_t size = assay_dtype_size(t->dtype);
  const unsigned char *const from = (const unsigned char *)t->data + row * t->stride[0] * size;
  for (int64_t i = 0; i < count; ++i)
    memcpy(to + i * size, from + (place != NULL ? place[i] : i) * t->stride[1] * size, (size_t)size);
}

static bool sample_take(sample *s, const assay_call *call, const assay_rows *rows, uint64_t seed) {
  assay_product p;
  call->op->product(call, 0, &p);
  const int64_t K = p.a.shape[1], N = p.b.shape[0], terms = K > 0 ? K : 1;
  s->M = clamp(MOST_PRODUCTS / terms / (N > 0 ? N : 1), LEAST_ROWS, rows->count);
  s->N = clamp(MOST_PRODUCTS / terms / (s->M > 0 ? s->M : 1), LEAST_COLUMNS, N);
  const size_t in = (size_t)assay_dtype_size(p.a.dtype);
  s->row = malloc((size_t)(s->M + 1) * sizeof *s->row);
  s->column = malloc((size_t)(s->N + 1) * sizeof *s->column);
  s->a = calloc((size_t)(s->M * K) + 1, in);
  s->b = malloc((size_t)(s->N * K) * in + 1);
  s->old = malloc((size_t)(s->M * s->N) * sizeof(float) + 1);
  s->bias = malloc((size_t)s->N * sizeof(float) + 1);
  s->wanted = malloc((size_t)(s->M * s->N) * sizeof(float) + 1);
  if (s->row == NULL || s->column == NULL || s->a == NULL || s->b == NULL || s->old == NULL || s->bias == NULL ||
      s->wanted == NULL)
    return false;
  choose(seed, s->M, rows->count, s->row);
  choose(seed + 1, s->N, N, s->column);
  s->product = p;
  s->product.a = dense(s->a, p.a.dtype, s->M, K);
  s->product.b = dense(s->b, p.b.dtype, s->N, K);
  for (int64_t n = 0; n < s->N; ++n)
    copy_row(&p.b, s->column[n], NULL, K, s->b + (size_t)(n * K) * in);
  if (p.bias.data != NULL) {
    copy_row(&p.bias, 0, s->column, s->N, s->bias);
    s->product.bias = dense(s->bias, p.bias.dtype, 1, s->N);
  }
  for (int64_t m = 0; m < s->M; ++m) {
    if (rows->index != NULL) s->row[m] = rows->index[s->row[m]];
    call->op->product(call, s->row[m], &p);
    if (p.a.data != NULL) copy_row(&p.a, 0, NULL, K, s->a + (size_t)(m * K) * in);
    if (p.old.data == NULL) continue;
    copy_row(&p.old, 0, s->column, s->N, s->old + m * s->N * assay_dtype_size(p.old.dtype));
    s->product.old = dense(s->old, p.old.dtype, s->M, s->N);
  }
  return true;
}

static uint32_t bits_at(const void *data, assay_dtype dtype, int64_t index) {
  const size_t size = (size_t)assay_dtype_size(dtype);
  uint32_t bits = 0;
  memcpy(&bits, (const unsigned char *)data + (size_t)index * size, size);
  return bits;
}

static bool same(uint32_t wanted, uint32_t got, assay_dtype dtype) {
  return wanted == got ||
         (assay_is_nan(assay_load_f64(&wanted, dtype, 0)) && assay_is_nan(assay_load_f64(&got, dtype, 0)));
}

/* Says how the first element differs, and which neighbouring contract gives it and others. Half of those asked are
 * right, where there are so many. */
static void describe(const sample *s, const assay_sums *sums, const void *got, int64_t N, predicted_finding *found) {
  neighbour_element element[NEIGHBOUR_MOST];
  uint32_t first_wanted = 0, first_got = 0;
  int32_t wrong = 0, right = 0;
  char why[160];
  for (int64_t i = 0; i < s->M * s->N; ++i) {
    const int64_t m = i / s->N, n = i % s->N;
    const uint32_t wanted = bits_at(s->wanted, sums->output, i);
    const uint32_t bits = bits_at(got, sums->output, s->row[m] * N + s->column[n]);
    const bool agrees = same(wanted, bits, sums->output);
    if (!agrees && wrong == 0) {
      first_wanted = wanted;
      first_got = bits;
    }
    int32_t *const count = agrees ? &right : &wrong;
    if (*count >= NEIGHBOUR_MOST / 2) continue;
    element[wrong + right] = (neighbour_element){m, n, bits};
    ++*count;
  }
  neighbours_explain(sums, &s->product, element, wrong + right, why, sizeof why);
  const int digits = 2 * (int)assay_dtype_size(sums->output);
  (void)snprintf(found->message, sizeof found->message,
                 "bits 0x%0*X (%.9g), predicted 0x%0*X (%.9g); %lld of %lld compared elements differ%s%s", digits,
                 first_got, assay_load_f64(&first_got, sums->output, 0), digits, first_wanted,
                 assay_load_f64(&first_wanted, sums->output, 0), (long long)found->differ, (long long)found->compared,
                 why[0] != '\0' ? "; " : "", why);
}

assay_status predicted_compare(const assay_call *call, const assay_sums *sums, const assay_rows *rows,
                               assay_dtype output, const void *got, uint64_t seed, predicted_finding *found,
                               assay_error *error) {
  sample s = {.M = 0};
  assay_sums own = *sums;
  *found = (predicted_finding){.wrong = false};
  own.output = output;
  if (rows->count == 0) return ASSAY_OK;
  assay_status status =
      sample_take(&s, call, rows, seed) ? ASSAY_OK : assay_fail(error, ASSAY_ERR_MEMORY, "predicted: out of memory");
  if (status == ASSAY_OK) status = assay_sums_predict(&own, &s.product, s.wanted, error);
  assay_product p;
  call->op->product(call, 0, &p);
  const int64_t N = p.b.shape[0];
  found->compared = status == ASSAY_OK ? s.M * s.N : 0;
  for (int64_t i = 0; i < found->compared; ++i) {
    const int64_t m = i / s.N, n = i % s.N;
    const uint32_t bits = bits_at(got, output, s.row[m] * N + s.column[n]);
    if (same(bits_at(s.wanted, output, i), bits, output)) continue;
    if (found->differ++ > 0) continue;
    found->row = s.row[m];
    found->column = s.column[n];
  }
  found->wrong = found->differ > 0;
  if (found->wrong) describe(&s, &own, got, N, found);
  sample_free(&s);
  return status;
}
