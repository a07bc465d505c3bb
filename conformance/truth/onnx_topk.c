/* onnx_topk.c: asks the sampler for ONNX TopK. Its order ("larger, then lower id") shows in greedy choices, one after
 * the other, with the ids chosen before banned. Its top-k shows in draws at a high temperature, which must hit every
 * one of the k ids and no other. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "onnx.h"

enum { DRAWS = 256, MOST_K = 16, MOST_V = 4096 };

typedef struct topk {
  const onnx_tensor *values, *indices;
  int64_t rows, V, k;
  double sign;   /* -1: the smallest values are wanted */
  double *logit; /* [rows, V] */
  double *value; /* [rows, V] */
} topk;

/* Returns the place of (row, j) in a tensor whose axis has `length` entries. */
static int64_t element_of(const onnx_tensor *t, int64_t axis, int64_t row, int64_t j) {
  int64_t inner = 1;
  for (int64_t a = axis + 1; a < t->rank; ++a)
    inner *= t->shape[a];
  return (row / inner * t->shape[axis] + j) * inner + row % inner;
}

/* Calls the sampler with rows of logits and the same parameters for every row. */
static assay_status call_sampler(foreign_call *f, const double *logits, int64_t B, int64_t V, double temperature,
                                 int64_t top_k, assay_error *error) {
  const int64_t shape[2] = {B, V};
  double *numbers = calloc((size_t)(4 * B) + 1, sizeof *numbers);
  double *zeros = numbers, *steps = numbers + B, *warm = numbers + 2 * B, *kept = numbers + 3 * B;
  if (numbers == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "out of memory");
  for (int64_t b = 0; b < B; ++b) {
    steps[b] = (double)b;
    warm[b] = temperature;
    kept[b] = (double)top_k;
  }
  assay_status status = foreign_begin(f, "sampler", error);
  if (status == ASSAY_OK) status = foreign_values(f, "logits", ASSAY_F32, 2, shape, logits, error);
  if (status == ASSAY_OK) status = foreign_values(f, "seed", ASSAY_I64, 1, &B, zeros, error);
  if (status == ASSAY_OK) status = foreign_values(f, "step", ASSAY_I32, 1, &B, steps, error);
  if (status == ASSAY_OK) status = foreign_values(f, "request", ASSAY_I64, 1, &B, zeros, error);
  if (status == ASSAY_OK) status = foreign_values(f, "temperature", ASSAY_F32, 1, &B, warm, error);
  if (status == ASSAY_OK) status = foreign_values(f, "top_k", ASSAY_I32, 1, &B, kept, error);
  if (status == ASSAY_OK) status = foreign_tensor(f, "token", ASSAY_I32, 1, &B, NULL, error);
  if (status == ASSAY_OK) status = foreign_tensor(f, "status", ASSAY_I32, 1, &B, NULL, error);
  if (status == ASSAY_OK) status = foreign_reference(f, error);
  free(numbers);
  return status;
}

static void differ(truth_report *r, int64_t row, int64_t j, const char *what, double got, double expected) {
  if (!r->failed)
    (void)snprintf(r->message, sizeof r->message, "sampler: row %lld, place %lld: %s: got %.9g, expected %.9g",
                   (long long)row, (long long)j, what, expected, got);
  r->failed = true;
}

static assay_status judge_order(const topk *t, int64_t axis, truth_report *r, assay_error *error) {
  assay_status status = ASSAY_OK;
  for (int64_t j = 0; j < t->k && status == ASSAY_OK; ++j) {
    foreign_call f = {0};
    status = call_sampler(&f, t->logit, t->rows, t->V, 0, 0, error);
    const int32_t o = status == ASSAY_OK ? foreign_output(&f, "token") : -1;
    for (int64_t row = 0; row < t->rows && o >= 0; ++row) {
      const double id = f.expected[o].value[row];
      const int64_t at = element_of(t->indices, axis, row, j);
      if (id != t->indices->value[at]) differ(r, row, j, "index", t->indices->value[at], id);
      if (!(id >= 0 && id < (double)t->V)) continue;
      const double value = t->value[row * t->V + (int64_t)id];
      if (value != t->values->value[at]) differ(r, row, j, "value", t->values->value[at], value);
      t->logit[row * t->V + (int64_t)id] = -(double)INFINITY;
      r->elements += 2;
    }
    foreign_free(&f);
  }
  ++r->covered;
  return status;
}

static assay_status judge_draws(const topk *t, int64_t axis, truth_report *r, assay_error *error) {
  double *many = malloc((size_t)(DRAWS * t->V) * sizeof *many);
  int64_t *hits = malloc((size_t)t->V * sizeof *hits);
  assay_status status = many != NULL && hits != NULL ? ASSAY_OK : assay_fail(error, ASSAY_ERR_MEMORY, "out of memory");
  for (int64_t row = 0; row < t->rows && status == ASSAY_OK; ++row) {
    foreign_call f = {0};
    for (int64_t i = 0; i < DRAWS * t->V; ++i)
      many[i] = t->sign * t->value[row * t->V + i % t->V];
    memset(hits, 0, (size_t)t->V * sizeof *hits);
    status = call_sampler(&f, many, DRAWS, t->V, 1e5, t->k, error);
    const int32_t o = status == ASSAY_OK ? foreign_output(&f, "token") : -1;
    for (int64_t i = 0; i < DRAWS && o >= 0; ++i) {
      const double id = f.expected[o].value[i];
      if (id >= 0 && id < (double)t->V) ++hits[(int64_t)id];
      if (!(id >= 0 && id < (double)t->V)) differ(r, row, i, "draw", 0, id);
    }
    for (int64_t id = 0; id < t->V && o >= 0; ++id) {
      bool kept = false;
      for (int64_t j = 0; j < t->k; ++j)
        kept = kept || t->indices->value[element_of(t->indices, axis, row, j)] == (double)id;
      if (kept != (hits[id] > 0)) differ(r, row, id, "draws of this id", kept ? 1 : 0, (double)hits[id]);
      ++r->elements;
    }
    foreign_free(&f);
  }
  free(many);
  free(hits);
  return status;
}

assay_status onnx_topk(const onnx_case *c, truth_report *r, assay_error *error) {
  const onnx_tensor *x = onnx_find(c, "x"), *k = onnx_find(c, "k");
  topk t = {.values = onnx_find(c, "values"), .indices = onnx_find(c, "indices")};
  if (x == NULL || k == NULL || t.values == NULL || t.indices == NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "x, k, values, indices: found not all of them");
  const int64_t axis = onnx_axis(c, x, -1);
  if (axis < 0 || axis >= x->rank || t.values->rank != x->rank || t.indices->rank != x->rank || k->count != 1)
    return assay_fail(error, ASSAY_ERR_INPUT, "axis, k: found %lld and %lld numbers, allowed an axis of x and one",
                      (long long)axis, (long long)k->count);
  t.V = x->shape[axis];
  for (int32_t a = 0; a < x->rank; ++a)
    if (a != axis && (t.values->shape[a] != x->shape[a] || t.indices->shape[a] != x->shape[a]))
      return assay_fail(error, ASSAY_ERR_INPUT, "values, indices: dims: found others than those of x");
  t.k = k->value[0] >= 1 && k->value[0] <= (double)t.V ? (int64_t)k->value[0] : 0;
  t.rows = x->count / t.V;
  t.sign = onnx_int(c, "largest", 1) != 0 ? 1 : -1;
  if (!(k->value[0] >= 1 && k->value[0] <= (double)t.V) || t.values->count != t.rows * t.k ||
      t.indices->count != t.rows * t.k || t.values->shape[axis] != t.k || t.indices->shape[axis] != t.k)
    return assay_fail(error, ASSAY_ERR_INPUT, "k: found %g, which does not fit x, values, indices", k->value[0]);
  if (t.k > MOST_K || t.V > MOST_V) {
    (void)snprintf(r->reason, sizeof r->reason, "k = %lld of %lld, %d draws would not show all: up to %d of %d",
                   (long long)t.k, (long long)t.V, DRAWS, MOST_K, MOST_V);
    return ASSAY_OK;
  }
  for (int64_t i = 0; i < x->count; ++i)
    if (assay_round_f64(x->value[i], ASSAY_F32) != x->value[i]) {
      (void)snprintf(r->reason, sizeof r->reason, "x holds %.17g, which is no f32", x->value[i]);
      return ASSAY_OK;
    }
  t.logit = malloc((size_t)(2 * x->count) * sizeof *t.logit);
  if (t.logit == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "out of memory");
  t.value = t.logit + x->count;
  for (int64_t row = 0; row < t.rows; ++row)
    for (int64_t i = 0; i < t.V; ++i) {
      t.value[row * t.V + i] = x->value[element_of(x, axis, row, i)];
      t.logit[row * t.V + i] = t.sign * t.value[row * t.V + i];
    }
  assay_status status = judge_order(&t, axis, r, error);
  if (status == ASSAY_OK) status = judge_draws(&t, axis, r, error);
  free(t.logit);
  return status;
}
