/* onnx_attention.c: asks softmax_attention for ONNX Attention. ONNX has one more axis of freedom than our definition:
 * no mask, an upper-left causal mask, an added mask. Every query row therefore becomes a request of its own, with the
 * keys that the row may see. A mask of finite numbers is added to the scores by two more channels of K, which q meets
 * with 1. Head sizes that are no multiple of 8 are filled up with zeros. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/registry.h"
#include "onnx.h"

enum { BLOCK = 8, MOST_ELEMENTS = 1 << 24 };
static const double hidden = -30000; /* exp gives 0, and f16 holds it */

typedef struct shape {
  const onnx_case *c;
  const onnx_tensor *q, *k, *v, *mask, *past_k, *past_v;
  int64_t B, H, H_kv, T, S, P, D, D_v; /* P: keys of the past, S new ones */
  double scale, softcap;
  bool causal;
} shape;

/* Returns element (batch, head, token, channel) of [B, H, T, D] or [B, T, H · D]. */
static double at(const onnx_tensor *t, int64_t heads, int64_t b, int64_t h, int64_t n, int64_t d) {
  if (t->rank == 4) return t->value[((b * t->shape[1] + h) * t->shape[2] + n) * t->shape[3] + d];
  const int64_t D = t->shape[2] / heads;
  return t->value[(b * t->shape[1] + n) * t->shape[2] + h * D + d];
}

static double k_at(const shape *s, int64_t b, int64_t h, int64_t t, int64_t d) {
  return t < s->P ? at(s->past_k, s->H_kv, b, h, t, d) : at(s->k, s->H_kv, b, h, t - s->P, d);
}
static double value_at(const shape *s, int64_t b, int64_t h, int64_t t, int64_t d) {
  return t < s->P ? at(s->past_v, s->H_kv, b, h, t, d) : at(s->v, s->H_kv, b, h, t - s->P, d);
}

/* Returns the number that the mask adds to the score. Axes of length 1 and missing axes are broadcast. */
static double mask_at(const shape *s, int64_t b, int64_t h, int64_t n, int64_t t) {
  const int64_t index[4] = {b, h, n, t};
  if (s->causal && t > s->P + n) return -(double)INFINITY;
  if (s->mask == NULL) return 0;
  int64_t place = 0;
  for (int32_t a = 0; a < s->mask->rank; ++a) {
    const int64_t length = s->mask->shape[a], i = index[4 - s->mask->rank + a];
    place = place * length + (length == 1 ? 0 : i);
  }
  const double value = s->mask->value[place];
  if (s->mask->dtype == ASSAY_NONE) return value != 0 ? 0 : -(double)INFINITY;
  return value;
}

static int64_t axis(const onnx_tensor *t, int which, int64_t heads) {
  if (t->rank == 4) return t->shape[which];
  return which == 0 ? t->shape[0] : which == 1 ? heads : which == 2 ? t->shape[1] : t->shape[2] / heads;
}

/* Tells whether the tensor is [B, H, T, D] or [B, T, H · D]. */
static bool has_axes(const onnx_tensor *t, int64_t B, int64_t H, int64_t T, int64_t D) {
  if (t->rank == 4) return t->shape[0] == B && t->shape[1] == H && t->shape[2] == T && t->shape[3] == D;
  return t->rank == 3 && t->shape[0] == B && t->shape[1] == T && t->shape[2] == H * D;
}

static assay_status read_shape(const onnx_case *c, shape *s, assay_error *error) {
  *s = (shape){.c = c, .q = onnx_find(c, "Q"), .k = onnx_find(c, "K"), .v = onnx_find(c, "V")};
  s->mask = onnx_find(c, "attn_mask");
  s->past_k = onnx_find(c, "past_key");
  s->past_v = onnx_find(c, "past_value");
  const onnx_tensor *of[] = {s->q, s->k, s->v, s->past_k, s->past_v};
  for (int i = 0; i < 5; ++i)
    if ((i < 3 && of[i] == NULL) || (of[i] != NULL && (of[i]->rank < 3 || of[i]->rank > 4)))
      return assay_fail(error, ASSAY_ERR_INPUT, "Q, K, V: found one with neither 3 nor 4 axes, allowed these");
  s->H = s->q->rank == 4 ? s->q->shape[1] : onnx_int(c, "q_num_heads", 0);
  s->H_kv = s->k->rank == 4 ? s->k->shape[1] : onnx_int(c, "kv_num_heads", 0);
  if (s->H < 1 || s->H_kv < 1 || s->H > 1024 || s->H_kv > 1024)
    return assay_fail(error, ASSAY_ERR_INPUT, "q_num_heads, kv_num_heads: found %lld and %lld, allowed 1 to 1024",
                      (long long)s->H, (long long)s->H_kv);
  s->B = axis(s->q, 0, s->H);
  s->T = axis(s->q, 2, s->H);
  s->D = axis(s->q, 3, s->H);
  s->S = axis(s->k, 2, s->H_kv);
  s->D_v = axis(s->v, 3, s->H_kv);
  s->P = s->past_k != NULL ? axis(s->past_k, 2, s->H_kv) : 0;
  s->scale = onnx_float(c, "scale", 1 / sqrt((double)s->D));
  s->softcap = onnx_float(c, "softcap", 0);
  s->causal = onnx_int(c, "is_causal", 0) != 0;
  const int64_t total = s->P + s->S, full[4] = {s->B, s->H, s->T, total};
  bool fits = has_axes(s->q, s->B, s->H, s->T, s->D) && has_axes(s->k, s->B, s->H_kv, s->S, s->D) &&
              has_axes(s->v, s->B, s->H_kv, s->S, s->D_v);
  if (s->past_k != NULL)
    fits = fits && s->past_v != NULL && has_axes(s->past_k, s->B, s->H_kv, s->P, s->D) &&
           has_axes(s->past_v, s->B, s->H_kv, s->P, s->D_v);
  for (int32_t a = 0; s->mask != NULL && a < s->mask->rank && fits; ++a)
    fits = s->mask->rank <= 4 && (s->mask->shape[a] == 1 || s->mask->shape[a] == full[4 - s->mask->rank + a]);
  return fits ? ASSAY_OK
              : assay_fail(error, ASSAY_ERR_INPUT,
                           "Q, K, V, attn_mask, past: found shapes that do not fit, allowed those of the standard");
}

/* ---- one call ---------------------------------------------------------------------------------------- */

/* The paged cache in memory while it is filled. */
typedef struct builder {
  const shape *s;
  bool ragged;  /* one request per batch entry, causal; else one per query row */
  bool one_hot; /* V of key t is 1 in channel t: the output is p */
  bool added;   /* the mask goes into two channels */
  bool half;
  double root, scale; /* half: q and k are multiplied by the root of the scale, and rounded; the scale is then 1 */
  int64_t D, D_v;     /* channels of the call; channels of its values that have a meaning */
  int64_t requests, blocks; /* blocks: per request */
  double *q, *k, *v, *expected;
  int32_t *table, *length, *cu_q;
} builder;

/* Tells whether the row's request leaves the key out. */
static bool left_out(const builder *b, int64_t batch, int64_t n, int64_t t) {
  const shape *s = b->s;
  if (b->ragged) return t >= s->P + s->T;
  for (int64_t h = 0; h < s->H; ++h)
    if (mask_at(s, batch, h, n, t) > -(double)INFINITY) return false;
  return true;
}

static double scaled(const builder *b, double value) {
  return b->half ? assay_round_f64(value * b->root, ASSAY_F16) : value;
}

static void put_key(const builder *b, int64_t request, int64_t place, int64_t batch, int64_t n, int64_t t) {
  const shape *s = b->s;
  const int64_t slot = (request * b->blocks + place / BLOCK) * BLOCK + place % BLOCK;
  for (int64_t h = 0; h < s->H_kv; ++h) {
    double *k = b->k + (slot * s->H_kv + h) * b->D, *v = b->v + (slot * s->H_kv + h) * b->D;
    for (int64_t d = 0; d < s->D; ++d)
      k[d] = scaled(b, k_at(s, batch, h, t, d));
    for (int64_t d = 0; d < b->D_v; ++d)
      v[d] = b->one_hot ? (d == t ? 1 : 0) : value_at(s, batch, h, t, d);
    if (!b->added) continue;
    const double mask = mask_at(s, batch, h * (s->H / s->H_kv), n, t);
    const double channel = (mask > hidden ? mask : hidden) / b->scale;
    k[s->D] = assay_round_f64(channel, s->q->dtype);
    k[s->D + 1] = channel - k[s->D];
  }
}

static void put_row(const builder *b, int64_t batch, int64_t n) {
  const shape *s = b->s;
  const int64_t row = batch * s->T + n, total = s->P + s->S;
  for (int64_t h = 0; h < s->H; ++h) {
    double *q = b->q + (row * s->H + h) * b->D;
    for (int64_t d = 0; d < s->D; ++d)
      q[d] = scaled(b, at(s->q, s->H, batch, h, n, d));
    if (b->added) q[s->D] = q[s->D + 1] = 1;
  }
  if (b->ragged && n > 0) return;
  const int64_t request = b->ragged ? batch : row;
  int64_t place = 0;
  for (int64_t t = 0; t < total; ++t)
    if (!left_out(b, batch, n, t)) put_key(b, request, place++, batch, n, t);
  b->length[request] = (int32_t)place;
  for (int64_t j = 0; j < b->blocks; ++j)
    b->table[request * b->blocks + j] = (int32_t)(request * b->blocks + j);
}

/* Puts the expected output of ONNX into our layout [rows, H, D]; more channels are 0. */
static void put_expected(const builder *b, const onnx_tensor *y) {
  const shape *s = b->s;
  for (int64_t batch = 0; batch < s->B; ++batch)
    for (int64_t n = 0; n < s->T; ++n)
      for (int64_t h = 0; h < s->H; ++h)
        for (int64_t d = 0; d < b->D_v; ++d)
          b->expected[((batch * s->T + n) * s->H + h) * b->D + d] = at(y, s->H, batch, h, n, d);
}

/* ONNX computes f16 in f16: scores and p are rounded to it. The difference to the largest score, its exp, the sum and
 * the quotient are rounded too. Each of the four is off by up to 2^12 ulp of f32. Twice their sum is allowed, because a
 * whole row shares the rounding of the sum. For the same reason only elements are judged. */
static void round_inside(foreign_call *f, assay_dtype dtype) {
  if (dtype != ASSAY_F16) return;
  f->contract.k = f->contract.score = f->contract.p = ASSAY_F16;
  f->contract.exp_ulp = 0x1p15;
}

static assay_status ask(const builder *b, foreign_call *f, truth_report *r, assay_error *error) {
  const shape *s = b->s;
  const assay_dtype dtype = s->q->dtype;
  const int64_t rows = s->B * s->T, q[3] = {rows, s->H, b->D}, table[2] = {b->requests, b->blocks};
  const int64_t pool[4] = {b->requests * b->blocks, BLOCK, s->H_kv, b->D}, bounds = b->requests + 1;
  assay_status status = foreign_begin(f, "softmax_attention", error);
  if (status == ASSAY_OK) status = foreign_values(f, "q", dtype, 3, q, b->q, error);
  if (status == ASSAY_OK) status = foreign_values(f, "k_cache", dtype, 4, pool, b->k, error);
  if (status == ASSAY_OK) status = foreign_values(f, "v_cache", dtype, 4, pool, b->v, error);
  if (status == ASSAY_OK) status = foreign_tensor(f, "block_table", ASSAY_I32, 2, table, b->table, error);
  if (status == ASSAY_OK) status = foreign_tensor(f, "kv_len", ASSAY_I32, 1, &b->requests, b->length, error);
  if (status == ASSAY_OK && b->ragged) status = foreign_tensor(f, "cu_q", ASSAY_I32, 1, &bounds, b->cu_q, error);
  if (status == ASSAY_OK) status = foreign_tensor(f, "out", dtype, 3, q, NULL, error);
  if (status == ASSAY_OK) status = foreign_set(f, "scale", b->scale, error);
  if (status == ASSAY_OK) status = foreign_set(f, "softcap", s->softcap, error);
  if (status == ASSAY_OK) round_inside(f, dtype);
  if (status == ASSAY_OK) status = onnx_reference(f, r, error);
  return status;
}

static assay_status compare(const shape *s, bool ragged, bool one_hot, bool added, const onnx_tensor *y,
                            truth_report *r, assay_error *error) {
  builder b = {.s = s, .ragged = ragged, .one_hot = one_hot, .added = added};
  foreign_call f = {0};
  const int64_t total = s->P + s->S, rows = s->B * s->T;
  b.half = s->q->dtype == ASSAY_F16 && s->scale > 0;
  b.scale = b.half ? 1 : s->scale;
  b.root = b.half ? assay_round_f64(sqrt(s->scale), ASSAY_F16) : 1;
  b.D_v = one_hot ? total : s->D_v;
  b.D = s->D + (added ? 2 : 0) > b.D_v ? s->D + (added ? 2 : 0) : b.D_v;
  b.D = (b.D + 7) / 8 * 8;
  b.requests = ragged ? s->B : rows;
  b.blocks = (total + BLOCK - 1) / BLOCK;
  if (!has_axes(y, s->B, s->H, s->T, b.D_v))
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: dims: found others than those of Q, K and V give", y->name);
  if ((double)b.requests * (double)(b.blocks * BLOCK) * (double)(s->H_kv * b.D) > MOST_ELEMENTS) {
    (void)snprintf(r->reason, sizeof r->reason, "more than %d elements of keys, each row having its own",
                   MOST_ELEMENTS);
    return ASSAY_OK;
  }
  const size_t pool = (size_t)(b.requests * b.blocks * BLOCK * s->H_kv * b.D), queries = (size_t)(rows * s->H * b.D);
  double *memory = calloc(2 * pool + 2 * queries + 1, sizeof *memory);
  int32_t *integers = calloc((size_t)(b.requests * b.blocks + 2 * b.requests + 2), sizeof *integers);
  assay_status status = ASSAY_OK;
  if (memory == NULL || integers == NULL) {
    status = assay_fail(error, ASSAY_ERR_MEMORY, "out of memory");
  } else {
    b.k = memory;
    b.v = memory + pool;
    b.q = memory + 2 * pool;
    b.expected = b.q + queries;
    b.table = integers;
    b.length = b.table + b.requests * b.blocks;
    b.cu_q = b.length + b.requests;
    for (int64_t batch = 0; batch < s->B; ++batch)
      for (int64_t n = 0; n < s->T; ++n)
        put_row(&b, batch, n);
    for (int64_t i = 0; i <= b.requests; ++i)
      b.cu_q[i] = (int32_t)(i * s->T);
    put_expected(&b, y);
    status = ask(&b, &f, r, error);
    r->elements_only = b.half;
    if (status == ASSAY_OK) truth_compare(r, &f, "out", b.expected);
    r->elements_only = false;
  }
  foreign_free(&f);
  free(memory);
  free(integers);
  return status;
}

/* ---- what the mask allows ---------------------------------------------------------------------------- */

/* Tells whether the mask can be expressed. Finite numbers other than 0, or keys that only some heads do not see, need
 * two channels. Returns NULL if it can, else the reason why not. */
static const char *mask_kind(const shape *s, bool *added) {
  const int64_t G = s->H / s->H_kv;
  for (int64_t b = 0; b < s->B; ++b)
    for (int64_t n = 0; n < s->T; ++n)
      for (int64_t t = 0; t < s->P + s->S; ++t) {
        int64_t away = 0;
        for (int64_t h = 0; h < s->H; ++h) {
          const double mask = mask_at(s, b, h, n, t);
          if (!(mask == mask_at(s, b, h / G * G, n, t))) return "the mask differs between heads of one kv head";
          if (mask > -(double)INFINITY && (mask < hidden || mask > -hidden))
            return "the mask is too large for a channel";
          away += !(mask > -(double)INFINITY);
          *added = *added || (mask != 0 && mask > -(double)INFINITY);
        }
        *added = *added || (away > 0 && away < s->H);
      }
  return *added && s->softcap > 0 ? "a mask that is added behind the soft cap is no part of the operator" : NULL;
}

/* Compares present with the past and new rows: kv_append on a pool that holds the past, one request per batch entry. */
static assay_status compare_present(const shape *s, truth_report *r, assay_error *error);

assay_status onnx_attention(const onnx_case *c, truth_report *r, assay_error *error) {
  shape s;
  bool added = false;
  assay_status status = read_shape(c, &s, error);
  if (status != ASSAY_OK) return status;
  if (s.q->dtype == ASSAY_NONE || s.q->dtype == ASSAY_I64 || s.H % s.H_kv != 0) {
    (void)snprintf(r->reason, sizeof r->reason, "type or heads that no operator takes");
    return ASSAY_OK;
  }
  const char *why = mask_kind(&s, &added);
  const onnx_tensor *y = onnx_find(c, "Y"), *scores = onnx_find(c, "qk_matmul_output");
  if (y == NULL) return assay_fail(error, ASSAY_ERR_INPUT, "Y: found no such tensor");
  if (why == NULL) {
    status = compare(&s, false, false, added, y, r, error);
    if (status == ASSAY_OK && s.causal && s.mask == NULL && s.S >= s.T)
      status = compare(&s, true, false, false, y, r, error);
    if (status == ASSAY_OK && scores != NULL && onnx_int(c, "qk_matmul_output_mode", 0) == 3)
      status = compare(&s, false, true, added, scores, r, error);
  } else {
    (void)snprintf(r->reason, sizeof r->reason, "%s", why);
    onnx_leave(r, c, "Y", why);
  }
  if (onnx_int(c, "qk_matmul_output_mode", 0) != 3 || why != NULL)
    onnx_leave(r, c, "qk_matmul_output", "scores are no output of the operator");
  if (status != ASSAY_OK || onnx_find(c, "present_key") == NULL) return status;
  if (s.D > 256 || s.D_v > 256) {
    onnx_leave(r, c, "present_key", "more than 256 channels");
    return ASSAY_OK;
  }
  if (assay_op_find("kv_append") == NULL)
    return assay_fail(error, ASSAY_ERR_INPUT, "present_key: operator missing: kv_append");
  status = compare_present(&s, r, error);
  return status;
}

/* ---- present ----------------------------------------------------------------------------------------- */

static const char *arg_of(const foreign_call *f, assay_content content) {
  for (int32_t i = 0; i < f->op->arg_count; ++i)
    if (f->op->args[i].content == content) return f->op->args[i].name;
  return "";
}

/* Fills K (or V) rows [count, H_kv, D] of tokens [first, first + per) of every batch entry. */
static void fill_rows(const shape *s, bool key, int64_t first, int64_t per, int64_t D, int64_t places, double *rows) {
  const int64_t own = key ? s->D : s->D_v;
  for (int64_t b = 0; b < s->B; ++b)
    for (int64_t t = 0; t < per; ++t)
      for (int64_t h = 0; h < s->H_kv; ++h)
        for (int64_t d = 0; d < own; ++d)
          rows[((b * places + t) * s->H_kv + h) * D + d] =
              key ? k_at(s, b, h, first + t, d) : value_at(s, b, h, first + t, d);
}

static assay_status compare_present(const shape *s, truth_report *r, assay_error *error) {
  foreign_call f;
  const int64_t total = s->P + s->S, blocks = (total + BLOCK - 1) / BLOCK, places = blocks * BLOCK;
  const int64_t most = s->D > s->D_v ? s->D : s->D_v, D = (most + 7) / 8 * 8, N = s->B * s->S;
  const int64_t pool[4] = {s->B * blocks, BLOCK, s->H_kv, D}, fresh[3] = {N, s->H_kv, D};
  const size_t pool_count = (size_t)(s->B * places * s->H_kv * D), fresh_count = (size_t)(N * s->H_kv * D);
  const assay_dtype dtype = s->q->dtype;
  double *memory = calloc(pool_count + fresh_count + 1, sizeof *memory), *rows = memory + pool_count;
  int64_t *slots = calloc((size_t)N + 1, sizeof *slots);
  assay_status status = memory == NULL || slots == NULL ? assay_fail(error, ASSAY_ERR_MEMORY, "out of memory")
                                                        : foreign_begin(&f, "kv_append", error);
  if (status != ASSAY_OK) {
    free(memory);
    free(slots);
    return status;
  }
  for (int64_t n = 0; n < N; ++n)
    slots[n] = n / s->S * places + s->P + n % s->S;
  for (int key = 1; key >= 0 && status == ASSAY_OK; --key) {
    memset(memory, 0, (pool_count + fresh_count) * sizeof *memory);
    fill_rows(s, key, 0, s->P, D, places, memory);
    status = foreign_values(&f, arg_of(&f, key ? ASSAY_K_CACHE : ASSAY_V_CACHE), dtype, 4, pool, memory, error);
    fill_rows(s, key, s->P, s->S, D, s->S, rows);
    if (status == ASSAY_OK)
      status = foreign_values(&f, arg_of(&f, key ? ASSAY_K_NEW : ASSAY_V_NEW), dtype, 3, fresh, rows, error);
  }
  if (status == ASSAY_OK) status = foreign_tensor(&f, arg_of(&f, ASSAY_SLOTS), ASSAY_I64, 1, &N, slots, error);
  if (status == ASSAY_OK) status = onnx_reference(&f, r, error);
  for (int key = 1; key >= 0 && status == ASSAY_OK; --key) {
    const onnx_tensor *present = onnx_find(s->c, key ? "present_key" : "present_value");
    const int64_t own = key ? s->D : s->D_v;
    if (present == NULL) continue;
    if (!has_axes(present, s->B, s->H_kv, total, own)) {
      status = assay_fail(error, ASSAY_ERR_INPUT, "%s: dims: found others than past and new together", present->name);
      break;
    }
    memset(memory, 0, pool_count * sizeof *memory);
    for (int64_t b = 0; b < s->B; ++b)
      for (int64_t h = 0; h < s->H_kv; ++h)
        for (int64_t t = 0; t < total; ++t)
          for (int64_t d = 0; d < own; ++d)
            memory[((b * places + t) * s->H_kv + h) * D + d] = at(present, s->H_kv, b, h, t, d);
    truth_compare(r, &f, arg_of(&f, key ? ASSAY_K_CACHE : ASSAY_V_CACHE), memory);
  }
  foreign_free(&f);
  free(memory);
  free(slots);
  return status;
}
