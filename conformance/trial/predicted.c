/* predicted.c: samples a product, predicts its bits under the declared contract, and compares. */
#include "predicted.h"

#include <inttypes.h>
#include <math.h>
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

/* The sampled rows and columns, gathered into dense tensors. Rows of one product share b, its scales and the bias.
 * Where each row has weights of its own (`apart`), they lie row by row. */
typedef struct sample {
  int64_t M, N, K;
  bool apart;
  int64_t *row, *column; /* their numbers in the result */
  unsigned char *a, *b, *second, *old, *bias, *scale_a, *scale_b, *factor;
  bool *is_product; /* [M] false: the row is no product, and is not compared */
  assay_product product;
  unsigned char *wanted; /* [M, N] of the output's type */
} sample;

static void sample_free(sample *s) {
  free(s->row);
  free(s->column);
  free(s->is_product);
  free(s->a);
  free(s->b);
  free(s->second);
  free(s->factor);
  free(s->old);
  free(s->bias);
  free(s->scale_a);
  free(s->scale_b);
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

/* Copies the scales of one row. An operator may give words of i32 with a stride for each four scales. Their bytes, from
 * the lowest on, are exponents e of 2^(e - 127), and 255 is NaN. */
static void copy_scales(const assay_tensor *t, int64_t row, unsigned char *to) {
  const int64_t groups = t->shape[1];
  if (t->dtype != ASSAY_I32) {
    copy_row(t, row, NULL, groups, to);
    return;
  }
  const int32_t *const words = (const int32_t *)t->data + row * t->stride[0];
  for (int64_t i = 0; i < groups; ++i) {
    const uint32_t e = (uint32_t)words[i / 4 * t->stride[1]] >> (8 * (i % 4)) & 255u;
    const float scale = e == 255 ? (float)NAN : (float)ldexp(1, (int)e - 127);
    memcpy(to + (size_t)i * sizeof scale, &scale, sizeof scale);
  }
}

/* Makes room for the scales of the sampled rows and columns. */
static bool reserve_scales(sample *s, const assay_product *p) {
  const int64_t groups = p->scale_a.shape[1], copies = s->apart ? s->M : 1;
  if (p->scale_a.data == NULL) return true;
  s->scale_a = calloc((size_t)(s->M * groups) + 1, sizeof(float));
  s->scale_b = malloc((size_t)(copies * s->N * groups) * sizeof(float) + 1);
  if (s->scale_a == NULL || s->scale_b == NULL) return false;
  s->product.scale_a = dense(s->scale_a, ASSAY_F32, s->M, groups);
  s->product.scale_b = dense(s->scale_b, ASSAY_F32, s->N, groups);
  s->product.scale_b_columns = 0;
  return true;
}

/* Tells whether rows of the call have different weights. */
static bool weights_apart(const assay_call *call, const sample *s) {
  assay_product first, p;
  call->op->product(call, s->row[0], &first);
  for (int64_t m = 0; m < s->M; ++m) {
    call->op->product(call, s->row[m], &p);
    if (p.b.data != first.b.data || p.b.data == NULL) return true;
  }
  return false;
}

static bool sample_reserve(sample *s, size_t in) {
  const int64_t copies = s->apart ? s->M : 1;
  s->is_product = malloc((size_t)(s->M + 1) * sizeof *s->is_product);
  s->a = calloc((size_t)(s->M * s->K) + 1, in);
  s->b = malloc((size_t)(copies * s->N * s->K) * in + 1);
  s->second = malloc((size_t)(copies * s->N * s->K) * in + 1);
  s->factor = calloc((size_t)s->M + 1, sizeof(float));
  s->old = malloc((size_t)(s->M * s->N) * sizeof(float) + 1);
  s->bias = malloc((size_t)(copies * s->N) * sizeof(float) + 1);
  s->wanted = malloc((size_t)(s->M * s->N) * sizeof(float) + 1);
  return s->is_product != NULL && s->a != NULL && s->b != NULL && s->second != NULL && s->factor != NULL &&
         s->old != NULL && s->bias != NULL && s->wanted != NULL;
}

/* Copies the weights with their scales and the bias that a row of the sample meets, as number `copy`. */
static void take_weights(sample *s, const assay_call *call, const assay_product *p, int64_t copy) {
  const int64_t in = assay_dtype_size(p->b.dtype), shared = p->scale_b_columns > 1 ? p->scale_b_columns : 1;
  const int64_t groups = p->scale_b.shape[1];
  for (int64_t n = 0; n < s->N && p->scale_b.data != NULL; ++n)
    copy_scales(&p->scale_b, s->column[n] / shared, s->scale_b + (size_t)((copy * s->N + n) * groups) * sizeof(float));
  for (int64_t n = 0; n < s->N && p->b.data != NULL; ++n) {
    unsigned char *const to = s->b + (copy * s->N + n) * s->K * in;
    if (call->op->product_weights != NULL)
      call->op->product_weights(call, s->column[n], to);
    else
      copy_row(&p->b, s->column[n], NULL, s->K, to);
    if (p->second.data != NULL)
      copy_row(&p->second, s->column[n], NULL, s->K, s->second + (copy * s->N + n) * s->K * in);
  }
  if (p->bias.data == NULL) return;
  copy_row(&p->bias, 0, s->column, s->N, s->bias + copy * s->N * assay_dtype_size(p->bias.dtype));
  s->product.bias = dense(s->bias, p->bias.dtype, 1, s->N);
}

static bool sample_take(sample *s, const assay_call *call, int64_t lanes, const assay_rows *rows, uint64_t seed) {
  assay_product p;
  call->op->product(call, 0, &p);
  const int64_t K = s->K = p.a.shape[1], N = p.b.shape[0], terms = K > 0 ? K : 1;
  s->M = clamp(MOST_PRODUCTS / terms / (N > 0 ? N : 1), LEAST_ROWS, rows->count);
  s->N = clamp(MOST_PRODUCTS / terms / (s->M > 0 ? s->M : 1), LEAST_COLUMNS, N);
  const size_t in = (size_t)assay_dtype_size(p.a.dtype);
  s->row = malloc((size_t)(s->M + 1) * sizeof *s->row);
  s->column = malloc((size_t)(s->N + 1) * sizeof *s->column);
  if (s->row == NULL || s->column == NULL) return false;
  choose(seed, s->M, rows->count, s->row);
  choose(seed + 1, s->N, N, s->column);
  for (int64_t m = 0; m < s->M && rows->index != NULL; ++m)
    s->row[m] = rows->index[s->row[m]];
  s->apart = weights_apart(call, s);
  if (!sample_reserve(s, in)) return false;
  s->product = p;
  s->product.bias.data = NULL;
  s->product.a = dense(s->a, p.a.dtype, s->M, K);
  s->product.b = dense(s->b, p.b.dtype, s->N, K);
  if (p.second.data != NULL) s->product.second = dense(s->second, p.b.dtype, s->N, K);
  if (lanes > 0) s->product.factor = dense(s->factor, ASSAY_F32, s->M, 1);
  if (!reserve_scales(s, &p)) return false;
  for (int64_t m = 0; m < s->M; ++m) {
    call->op->product(call, s->row[m], &p);
    s->is_product[m] = p.b.data != NULL;
    if (s->apart || m == 0) take_weights(s, call, &p, m);
    const float factor = lanes > 0 ? call->op->product_factor(call, s->row[m], lanes) : 0;
    memcpy(s->factor + (size_t)m * sizeof factor, &factor, sizeof factor);
    if (p.a.data != NULL) copy_row(&p.a, 0, NULL, K, s->a + (size_t)(m * K) * in);
    const int64_t groups = p.scale_a.shape[1];
    if (p.scale_a.data != NULL) copy_scales(&p.scale_a, 0, s->scale_a + (size_t)(m * groups) * sizeof(float));
    if (p.old.data == NULL) continue;
    copy_row(&p.old, 0, s->column, s->N, s->old + m * s->N * assay_dtype_size(p.old.dtype));
    s->product.old = dense(s->old, p.old.dtype, s->M, s->N);
  }
  return true;
}

/* Returns row m of the sample as a product of its own. */
static assay_product one_row(const sample *s, int64_t m) {
  assay_product p = s->product;
  const int64_t in = assay_dtype_size(p.a.dtype), copy = s->apart ? m : 0;
  p.a = dense(s->a + m * s->K * in, p.a.dtype, 1, s->K);
  p.b = dense(s->b + copy * s->N * s->K * in, p.b.dtype, s->N, s->K);
  if (p.second.data != NULL) p.second = dense(s->second + copy * s->N * s->K * in, p.b.dtype, s->N, s->K);
  if (p.factor.data != NULL) p.factor = dense(s->factor + (size_t)m * sizeof(float), ASSAY_F32, 1, 1);
  if (p.bias.data != NULL)
    p.bias = dense(s->bias + copy * s->N * assay_dtype_size(p.bias.dtype), p.bias.dtype, 1, s->N);
  if (p.old.data != NULL) p.old = dense(s->old + m * s->N * assay_dtype_size(p.old.dtype), p.old.dtype, 1, s->N);
  if (p.scale_a.data != NULL) {
    const int64_t groups = p.scale_a.shape[1];
    p.scale_a = dense(s->scale_a + (size_t)(m * groups) * sizeof(float), ASSAY_F32, 1, groups);
    p.scale_b = dense(s->scale_b + (size_t)(copy * s->N * groups) * sizeof(float), ASSAY_F32, s->N, groups);
  }
  return p;
}

/* Predicts the sample: all rows at once, or row by row. */
static assay_status predict(const sample *s, const assay_sums *sums, assay_error *error) {
  if (!s->apart) return assay_sums_predict(sums, &s->product, s->wanted, error);
  assay_status status = ASSAY_OK;
  for (int64_t m = 0; m < s->M && status == ASSAY_OK; ++m) {
    if (!s->is_product[m]) continue;
    const assay_product p = one_row(s, m);
    status = assay_sums_predict(sums, &p, s->wanted + m * s->N * assay_dtype_size(sums->output), error);
  }
  return status;
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
 * right, where there are so many. Rows with weights of their own are asked about the first that differs alone. */
static void describe(const sample *s, const assay_sums *sums, const void *got, int64_t N, predicted_finding *found) {
  neighbour_element element[NEIGHBOUR_MOST];
  uint32_t first_wanted = 0, first_got = 0;
  int32_t wrong = 0, right = 0;
  char why[160];
  int64_t first = 0, rows = s->M;
  while (s->apart && first + 1 < s->M && s->row[first] != found->row)
    ++first;
  if (s->apart) rows = 1;
  for (int64_t i = first * s->N; i < (first + rows) * s->N; ++i) {
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
    element[wrong + right] = (neighbour_element){m - first, n, bits};
    ++*count;
  }
  const assay_product asked = s->apart ? one_row(s, first) : s->product;
  neighbours_explain(sums, &asked, element, wrong + right, why, sizeof why);
  const int digits = 2 * (int)assay_dtype_size(sums->output);
  (void)snprintf(found->message, sizeof found->message,
                 "bits 0x%0*X (%.9g), predicted 0x%0*X (%.9g); %lld of %lld compared elements differ%s%s", digits,
                 first_got, assay_load_f64(&first_got, sums->output, 0), digits, first_wanted,
                 assay_load_f64(&first_wanted, sums->output, 0), (long long)found->differ, (long long)found->compared,
                 why[0] != '\0' ? "; " : "", why);
}

/* Returns the rows of products. A result without a row dimension is judged whole, and each line of it is a row. */
static assay_rows rows_of(const assay_call *call, const assay_rows *rows) {
  int32_t out = 0;
  if (call->op->row_dim != NULL) return *rows;
  while (out < call->op->arg_count && (call->op->args[out].role == ASSAY_IN || call->arg[out].data == NULL))
    ++out;
  assay_rows all = {.count = out < call->op->arg_count};
  for (int32_t a = 0; all.count > 0 && a + 1 < call->arg[out].rank; ++a)
    all.count *= call->arg[out].shape[a];
  return all;
}

assay_status predicted_compare(const assay_call *call, const assay_sums *sums, const assay_rows *asked,
                               assay_dtype output, const void *got, uint64_t seed, predicted_finding *found,
                               assay_error *error) {
  const assay_rows lines = rows_of(call, asked), *const rows = &lines;
  sample s = {.M = 0};
  assay_sums own = *sums;
  *found = (predicted_finding){.wrong = false};
  own.output = output;
  if (rows->count == 0) return ASSAY_OK;
  if (sums->factor_lanes > 0 && call->op->product_factor == NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "sums: factor_lanes: found %" PRId64 ", allowed 0: %s has no factor",
                      sums->factor_lanes, call->op->name);
  assay_status status = sample_take(&s, call, sums->factor_lanes, rows, seed)
                            ? ASSAY_OK
                            : assay_fail(error, ASSAY_ERR_MEMORY, "predicted: out of memory");
  if (status == ASSAY_OK) status = predict(&s, &own, error);
  assay_product p;
  call->op->product(call, 0, &p);
  const int64_t N = p.b.shape[0];
  for (int64_t i = 0; i < s.M * s.N && status == ASSAY_OK; ++i) {
    const int64_t m = i / s.N, n = i % s.N;
    if (!s.is_product[m]) continue;
    ++found->compared;
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
