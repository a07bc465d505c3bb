/* onnx_rows.c: ONNX cases whose rows are independent of each other: norms, rotation, GELU, softmax, top-k. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "onnx.h"

/* A tensor with an axis in the middle: [outer, length, inner]. */
typedef struct split {
  int64_t outer, length, inner;
} split;

static split split_at(const onnx_tensor *t, int64_t axis) {
  split s = {1, 1, 1};
  for (int32_t a = 0; a < t->rank; ++a) {
    if (a < axis) s.outer *= t->shape[a];
    if (a == axis) s.length = t->shape[a];
    if (a > axis) s.inner *= t->shape[a];
  }
  return s;
}

static assay_status needs(const onnx_case *c, const char *name, int64_t count, const onnx_tensor **t,
                          assay_error *error) {
  *t = onnx_find(c, name);
  if (*t == NULL) return assay_fail(error, ASSAY_ERR_INPUT, "%s: found no such tensor", name);
  if (count >= 0 && (*t)->count != count)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: dims: found %lld elements, allowed %lld", name,
                      (long long)(*t)->count, (long long)count);
  return ASSAY_OK;
}

/* Notes a size that the operator does not take: it is no difference. */
static bool too_small(const foreign_call *f, const char *dim, int64_t value, truth_report *r) {
  for (int32_t i = 0; i < f->op->dim_count; ++i) {
    const assay_dim *d = &f->op->dims[i];
    if (strcmp(d->name, dim) != 0 || (value >= d->min && value <= d->max && value % d->multiple == 0)) continue;
    (void)snprintf(r->reason, sizeof r->reason, "%s = %lld, %s takes %lld to %lld, multiples of %lld", dim,
                   (long long)value, f->op->name, (long long)d->min, (long long)d->max, (long long)d->multiple);
    return true;
  }
  return false;
}

/* ---- RMSNormalization, LayerNormalization ------------------------------------------------------------ */

assay_status onnx_norm(const onnx_case *c, truth_report *r, assay_error *error) {
  const bool layer = strcmp(c->op, "LayerNormalization") == 0;
  const onnx_tensor *x, *w, *b = onnx_find(c, "B"), *y;
  foreign_call f = {0};
  assay_status status = needs(c, "X", -1, &x, error);
  if (status != ASSAY_OK) return status;
  const int64_t axis = onnx_axis(c, x, -1);
  int64_t C = 1;
  for (int64_t a = axis; a >= 0 && a < x->rank; ++a)
    C *= x->shape[a];
  const int64_t shape[2] = {x->count / C, C};
  status = needs(c, "W", C, &w, error);
  if (status == ASSAY_OK) status = needs(c, "Y", x->count, &y, error);
  if (status == ASSAY_OK && b != NULL) status = needs(c, "B", C, &b, error);
  if (status == ASSAY_OK) status = foreign_begin(&f, layer ? "layer_norm" : "rms_norm", error);
  if (status == ASSAY_OK && too_small(&f, "C", C, r)) {
    foreign_free(&f);
    return ASSAY_OK;
  }
  if (status == ASSAY_OK) status = foreign_values(&f, "x", x->dtype, 2, shape, x->value, error);
  if (status == ASSAY_OK) status = foreign_values(&f, "g", x->dtype, 1, &C, w->value, error);
  if (status == ASSAY_OK && b != NULL) status = foreign_values(&f, "b", x->dtype, 1, &C, b->value, error);
  if (status == ASSAY_OK) status = foreign_tensor(&f, "y", x->dtype, 2, shape, NULL, error);
  if (status == ASSAY_OK) status = foreign_set(&f, "eps", onnx_float(c, "epsilon", 1e-5), error);
  if (status == ASSAY_OK) status = onnx_reference(&f, r, error);
  if (status == ASSAY_OK) truth_compare(r, &f, "y", y->value);
  onnx_leave(r, c, "Mean", "no output of the operator");
  onnx_leave(r, c, "InvStdDev", "no output of the operator");
  foreign_free(&f);
  return status;
}

/* ---- RotaryEmbedding --------------------------------------------------------------------------------- */

/* Copies [B, H, S, D] or [B, S, H · D] to rows [B · S, H, D]. */
static void to_rows(const onnx_tensor *t, int64_t H, int64_t S, int64_t D, double *rows) {
  for (int64_t i = 0; i < t->count; ++i) {
    const int64_t d = i % D, h = t->rank == 4 ? i / D / S % H : i / D % H;
    const int64_t s = t->rank == 4 ? i / D % S : i / D / H % S, b = i / (D * S * H);
    rows[((b * S + s) * H + h) * D + d] = t->value[i];
  }
}

assay_status onnx_rotary(const onnx_case *c, truth_report *r, assay_error *error) {
  const onnx_tensor *x, *y, *cosine, *sine, *ids = onnx_find(c, "position_ids");
  foreign_call f = {0};
  assay_status status = needs(c, "input", -1, &x, error);
  if (status == ASSAY_OK) status = needs(c, "output", x->count, &y, error);
  if (status == ASSAY_OK) status = needs(c, "cos_cache", -1, &cosine, error);
  if (status == ASSAY_OK) status = needs(c, "sin_cache", cosine->count, &sine, error);
  if (status != ASSAY_OK) return status;
  const int64_t H = x->rank == 4 ? x->shape[1] : onnx_int(c, "num_heads", 0);
  if (x->rank < 3 || x->rank > 4 || H < 1 || H > x->count)
    return assay_fail(error, ASSAY_ERR_INPUT, "input, num_heads: found %d axes and %lld heads, allowed 3 or 4 axes",
                      x->rank, (long long)H);
  const int64_t B = x->shape[0], S = x->rank == 4 ? x->shape[2] : x->shape[1];
  const int64_t D = x->shape[x->rank - 1] / (x->rank == 4 ? 1 : H), N = B * S, half = cosine->shape[cosine->rank - 1];
  const int64_t table[2] = {cosine->count / half, half}, shape[3] = {N, H, D};
  if (N * H * D != x->count || (ids != NULL ? ids->count : table[0]) != N || y->rank != x->rank)
    return assay_fail(error, ASSAY_ERR_INPUT, "input, position_ids, output: found shapes that do not fit");
  double *rows = malloc((size_t)(2 * x->count) * sizeof *rows), *expected = rows + x->count;
  int64_t *positions = malloc((size_t)N * sizeof *positions);
  if (rows == NULL || positions == NULL) status = assay_fail(error, ASSAY_ERR_MEMORY, "out of memory");
  for (int64_t n = 0; n < N && status == ASSAY_OK; ++n)
    positions[n] = ids != NULL ? (int64_t)ids->value[n] : n; /* without ids the table has one row per token */
  if (status == ASSAY_OK) {
    to_rows(x, H, S, D, rows);
    to_rows(y, H, S, D, expected);
    status = foreign_begin(&f, "rope", error);
  }
  if (status == ASSAY_OK) status = foreign_values(&f, "q", x->dtype, 3, shape, rows, error);
  if (status == ASSAY_OK) status = foreign_values(&f, "k", x->dtype, 3, shape, rows, error);
  if (status == ASSAY_OK) status = foreign_values(&f, "cos", ASSAY_F32, 2, table, cosine->value, error);
  if (status == ASSAY_OK) status = foreign_values(&f, "sin", ASSAY_F32, 2, table, sine->value, error);
  if (status == ASSAY_OK) status = foreign_tensor(&f, "positions", ASSAY_I64, 1, &N, positions, error);
  if (status == ASSAY_OK)
    status = foreign_set_text(&f, "style", onnx_int(c, "interleaved", 0) != 0 ? "interleaved" : "neox", error);
  if (status == ASSAY_OK) status = onnx_reference(&f, r, error);
  if (status == ASSAY_OK) truth_compare(r, &f, "q", expected);
  if (status == ASSAY_OK) truth_compare(r, &f, "k", expected);
  foreign_free(&f);
  free(rows);
  free(positions);
  return status;
}

/* ---- Gelu, tanh -------------------------------------------------------------------------------------- */

assay_status onnx_gelu(const onnx_case *c, truth_report *r, assay_error *error) {
  const onnx_tensor *x, *y;
  foreign_call f = {0};
  assay_status status = needs(c, "x", -1, &x, error);
  if (status == ASSAY_OK) status = needs(c, "y", x->count, &y, error);
  if (status != ASSAY_OK) return status;
  if (strcmp(json_text(json_member(c->attributes, "approximate"), "s", "none"), "tanh") != 0) {
    (void)snprintf(r->reason, sizeof r->reason, "approximate: the operator is the tanh form");
    return ASSAY_OK;
  }
  const int64_t C = x->rank > 0 ? x->shape[x->rank - 1] : 1, shape[2] = {x->count / C, C};
  status = foreign_begin(&f, "bias_gelu_new", error);
  if (status == ASSAY_OK) status = foreign_values(&f, "x", x->dtype, 2, shape, x->value, error);
  if (status == ASSAY_OK) status = foreign_tensor(&f, "b", x->dtype, 1, &C, NULL, error);
  if (status == ASSAY_OK) status = onnx_reference(&f, r, error);
  if (status == ASSAY_OK) truth_compare(r, &f, "x", y->value);
  foreign_free(&f);
  return status;
}

/* ---- Softmax ----------------------------------------------------------------------------------------- */

/* Makes one request per row. q meets keys whose first channel is x, and V of key t is 1 in channel t. The output is
 * therefore p. */
static assay_status softmax_tensors(foreign_call *f, const onnx_tensor *x, const split *s, double *memory,
                                    int32_t *integers, assay_error *error) {
  enum { BLOCK = 8 };
  const int64_t rows = s->outer * s->inner, D = (s->length + 7) / 8 * 8, blocks = D / BLOCK;
  const int64_t q_shape[3] = {rows, 1, D}, pool[4] = {rows * blocks, BLOCK, 1, D}, table[2] = {rows, blocks};
  double *k = memory, *v = k + rows * D * D, *q = v + rows * D * D;
  int32_t *length = integers, *place = integers + rows;
  for (int64_t row = 0; row < rows; ++row) {
    q[row * D] = 1;
    length[row] = (int32_t)s->length;
    for (int64_t j = 0; j < blocks; ++j)
      place[row * blocks + j] = (int32_t)(row * blocks + j);
    for (int64_t t = 0; t < s->length; ++t) {
      k[(row * D + t) * D] = x->value[(row / s->inner * s->length + t) * s->inner + row % s->inner];
      v[(row * D + t) * D + t] = 1;
    }
  }
  assay_status status = foreign_begin(f, "softmax_attention", error);
  if (status == ASSAY_OK) status = foreign_values(f, "q", x->dtype, 3, q_shape, q, error);
  if (status == ASSAY_OK) status = foreign_values(f, "k_cache", x->dtype, 4, pool, k, error);
  if (status == ASSAY_OK) status = foreign_values(f, "v_cache", x->dtype, 4, pool, v, error);
  if (status == ASSAY_OK) status = foreign_tensor(f, "block_table", ASSAY_I32, 2, table, place, error);
  if (status == ASSAY_OK) status = foreign_tensor(f, "kv_len", ASSAY_I32, 1, &rows, length, error);
  if (status == ASSAY_OK) status = foreign_tensor(f, "out", x->dtype, 3, q_shape, NULL, error);
  if (status == ASSAY_OK) status = foreign_set(f, "scale", 1, error);
  return status;
}

assay_status onnx_softmax(const onnx_case *c, truth_report *r, assay_error *error) {
  const onnx_tensor *x, *y;
  foreign_call f = {0};
  assay_status status = needs(c, "x", -1, &x, error);
  if (status == ASSAY_OK) status = needs(c, "y", x->count, &y, error);
  if (status != ASSAY_OK) return status;
  const split s = split_at(x, onnx_axis(c, x, -1));
  const int64_t rows = s.outer * s.inner, D = (s.length + 7) / 8 * 8;
  if (D > 256 || rows * D * D > 1 << 24) {
    (void)snprintf(r->reason, sizeof r->reason, "%lld rows of %lld terms, a head of attention has 256 channels at most",
                   (long long)rows, (long long)s.length);
    return ASSAY_OK;
  }
  double *memory = calloc((size_t)(rows * D * (2 * D + 2)), sizeof *memory), *expected = NULL;
  int32_t *integers = calloc((size_t)(rows * (1 + D / 8)), sizeof *integers);
  if (memory == NULL || integers == NULL) {
    status = assay_fail(error, ASSAY_ERR_MEMORY, "out of memory");
  } else {
    expected = memory + rows * D * (2 * D + 1);
    for (int64_t i = 0; i < x->count; ++i) {
      const int64_t row = i / (s.length * s.inner) * s.inner + i % s.inner;
      expected[row * D + i / s.inner % s.length] = y->value[i];
    }
    status = softmax_tensors(&f, x, &s, memory, integers, error);
  }
  if (status == ASSAY_OK) status = onnx_reference(&f, r, error);
  if (status == ASSAY_OK) truth_compare(r, &f, "out", expected);
  foreign_free(&f);
  free(memory);
  free(integers);
  return status;
}
