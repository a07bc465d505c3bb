/* sums_predict.c: the bits of a whole product whose sums are declared: parts of K, promotion, scales, output. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "ref/lib/sums.h"

static const char *const unit_names[ASSAY_SUM_UNITS] = {"none",       "wgmma_16", "wgmma_8",      "mma_16",
                                                        "mma_8",      "fma",      "wgmma_16_f16", "mma_16_f16",
                                                        "wgmma_tf32", "mma_tf32", "multiply_add"};

const char *assay_sum_unit_name(assay_sum_unit unit) {
  return unit_names[(unsigned)unit < ASSAY_SUM_UNITS ? unit : ASSAY_SUM_NONE];
}

/* ---- the call ------------------------------------------------------------------------------------------ */

/* Tells whether the unit is f32 arithmetic, not a tensor core. */
static bool unit_is_f32(assay_sum_unit unit) {
  return unit == ASSAY_SUM_FMA || unit == ASSAY_SUM_MULTIPLY_ADD;
}

/* Tells whether the unit multiplies factors of the type. */
static bool unit_takes(assay_sum_unit unit, assay_dtype dtype) {
  const bool eight = dtype == ASSAY_E4M3 || dtype == ASSAY_E5M2, sixteen = dtype == ASSAY_F16 || dtype == ASSAY_BF16;
  if (unit == ASSAY_SUM_WGMMA_8 || unit == ASSAY_SUM_MMA_8) return eight;
  if (sum_is_f16(unit)) return dtype == ASSAY_F16;
  if (sum_is_tf32(unit)) return dtype == ASSAY_F32;
  return sixteen || (unit_is_f32(unit) && (eight || dtype == ASSAY_F32));
}

static const char *types_of(assay_sum_unit unit) {
  if (unit_is_f32(unit)) return "f32, f16, bf16, e4m3, e5m2";
  if (unit == ASSAY_SUM_WGMMA_8 || unit == ASSAY_SUM_MMA_8) return "e4m3, e5m2";
  if (sum_is_tf32(unit)) return "f32";
  return sum_is_f16(unit) ? "f16" : "f16, bf16";
}

static assay_status refuse(assay_error *error, const char *what, int64_t found, const char *allowed) {
  return assay_fail(error, ASSAY_ERR_INPUT, "sums: %s: found %" PRId64 ", allowed: %s", what, found, allowed);
}

static assay_status check_types(const assay_sums *s, const assay_product *p, assay_error *error) {
  if ((unsigned)s->unit >= ASSAY_SUM_UNITS || s->unit == ASSAY_SUM_NONE)
    return refuse(
        error, "unit", s->unit,
        "wgmma_16, wgmma_8, mma_16, mma_8, fma, wgmma_16_f16, mma_16_f16, wgmma_tf32, mma_tf32, multiply_add");
  const assay_tensor *const factor[2] = {&p->a, &p->b};
  for (int i = 0; i < 2; ++i) {
    if (factor[i]->data == NULL || factor[i]->rank != 2)
      return refuse(error, i == 0 ? "a, its rank" : "b, its rank", factor[i]->data == NULL ? 0 : factor[i]->rank, "2");
    if (!unit_takes(s->unit, factor[i]->dtype))
      return assay_fail(error, ASSAY_ERR_INPUT, "sums: %c: found %s, allowed with %s: %s", "ab"[i],
                        assay_dtype_name(factor[i]->dtype), assay_sum_unit_name(s->unit), types_of(s->unit));
  }
  if (!unit_is_f32(s->unit) && assay_dtype_size(p->a.dtype) == 2 && p->a.dtype != p->b.dtype)
    return assay_fail(error, ASSAY_ERR_INPUT, "sums: b: found %s, allowed: the type of a, %s",
                      assay_dtype_name(p->b.dtype), assay_dtype_name(p->a.dtype));
  if (p->a.shape[0] < 0) return refuse(error, "M", p->a.shape[0], "0 and more");
  if (p->b.shape[0] < 0) return refuse(error, "N", p->b.shape[0], "0 and more");
  if (p->b.shape[1] != p->a.shape[1]) return refuse(error, "K of b", p->b.shape[1], "K of a");
  if (s->output != ASSAY_NONE && s->output != ASSAY_F32 && s->output != ASSAY_F16 && s->output != ASSAY_BF16)
    return assay_fail(error, ASSAY_ERR_INPUT, "sums: output: found %s, allowed: f32, f16, bf16",
                      assay_dtype_name(s->output));
  return ASSAY_OK;
}

int64_t assay_sums_padded(const assay_sums *sums, int64_t K) {
  return sums->pad > 1 ? (K + sums->pad - 1) / sums->pad * sums->pad : K;
}

static int64_t parts_of(const assay_sums *s) {
  return s->parts > 1 ? s->parts : 1;
}

/* Returns where a part of K ends. */
static int64_t end_of(const assay_sums *s, int64_t part, int64_t K) {
  if (s->ends != NULL) return s->ends[part];
  const int64_t parts = parts_of(s);
  if (s->tile == 0) return K / parts * (part + 1);
  const int64_t tiles = (K + s->tile - 1) / s->tile, end = (tiles + parts - 1) / parts * s->tile * (part + 1);
  return end < K ? end : K;
}

static assay_status check_parts(const assay_sums *s, int64_t K, assay_error *error) {
  const int64_t parts = parts_of(s);
  if (K < 0) return refuse(error, "K", K, "0 and more");
  if (s->pad < 0) return refuse(error, "pad", s->pad, "0 and more");
  if (s->parts < 0 || (s->parts > K && s->parts > 1 && s->tile == 0)) return refuse(error, "parts", s->parts, "0 to K");
  if (s->tile < 0) return refuse(error, "tile", s->tile, "0 and more");
  if (s->ends == NULL && s->tile == 0 && K % parts != 0)
    return refuse(error, "parts", s->parts, "a divisor of K, or a tile beside it");
  for (int64_t i = 0; s->ends != NULL && i < parts; ++i) {
    const int64_t before = i == 0 ? 0 : s->ends[i - 1];
    if (s->ends[i] < before || s->ends[i] > K) return refuse(error, "ends", s->ends[i], "ascending, at most K");
    if (i == parts - 1 && s->ends[i] != K) return refuse(error, "ends, the last", s->ends[i], "K");
  }
  if ((unsigned)s->join >= ASSAY_JOINS) return refuse(error, "join", s->join, "ascending, descending, pairwise");
  if (s->promote < 0 || s->promote % assay_sum_step(s->unit) != 0)
    return refuse(error, "promote", s->promote, "0, or a multiple of the unit's step");
  for (int64_t i = 0; s->order != NULL && i < K; ++i)
    if (s->order(i, K) < 0 || s->order(i, K) >= K) return refuse(error, "order", s->order(i, K), "0 to K - 1");
  return ASSAY_OK;
}

/* Checks an optional f32 tensor of [rows, columns]. */
static assay_status check_f32(const assay_tensor *t, const char *name, bool wanted, int64_t rows, int64_t columns,
                              assay_error *error) {
  if ((t->data != NULL) != wanted)
    return assay_fail(error, ASSAY_ERR_INPUT, "sums: %s: found %s, allowed: %s", name,
                      t->data != NULL ? "a tensor" : "none", wanted ? "a tensor" : "none, without a scale");
  if (!wanted) return ASSAY_OK;
  if (t->dtype != ASSAY_F32)
    return assay_fail(error, ASSAY_ERR_INPUT, "sums: %s: found %s, allowed: f32", name, assay_dtype_name(t->dtype));
  if (t->rank != 2 || t->shape[0] != rows || t->shape[1] != columns)
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "sums: %s: found [%" PRId64 ", %" PRId64 "], allowed: [%" PRId64 ", %" PRId64 "]", name,
                      t->shape[0], t->shape[1], rows, columns);
  return ASSAY_OK;
}

/* Returns how many columns of c share a row of scale_b. */
static int64_t columns_of(const assay_product *p) {
  return p->scale_b_columns > 1 ? p->scale_b_columns : 1;
}

static assay_status check_scales(const assay_sums *s, const assay_product *p, assay_error *error) {
  const int64_t K = p->a.shape[1];
  if ((unsigned)s->scale >= ASSAY_SCALES)
    return refuse(error, "scale", s->scale, "none, fma_product, product_then_add, after, product_then_fma");
  const bool scaled = s->scale != ASSAY_SCALE_NONE, grouped = scaled && s->scale != ASSAY_SCALE_AFTER;
  if (grouped && s->promote == 0)
    return refuse(error, "promote", 0, "promoted sums, where the scale is of each promoted sum");
  for (int64_t part = 0; grouped && part + 1 < parts_of(s); ++part)
    if (end_of(s, part, assay_sums_padded(s, K)) % s->promote != 0)
      return refuse(error, "parts", s->parts, "whole promoted sums in each part, where each of them has a scale");
  const int64_t columns = grouped ? (K + s->promote - 1) / s->promote : 1;
  assay_status status = check_f32(&p->scale_a, "scale_a", scaled, p->a.shape[0], columns, error);
  const int64_t shared = columns_of(p), rows_b = (p->b.shape[0] + shared - 1) / shared;
  if (status == ASSAY_OK) status = check_f32(&p->scale_b, "scale_b", scaled, rows_b, columns, error);
  if (status == ASSAY_OK)
    status = check_f32(&p->start, "start", p->start.data != NULL, p->a.shape[0], p->b.shape[0], error);
  return status;
}

/* Checks that the contract names each term of the call once. */
static assay_status check_after(const assay_sums *s, const assay_product *p, assay_error *error) {
  int count[ASSAY_AFTERS] = {0};
  for (int i = 0; i < ASSAY_SUM_MOST_AFTER && s->after[i] != ASSAY_AFTER_NONE; ++i) {
    if ((unsigned)s->after[i] >= ASSAY_AFTERS)
      return refuse(error, "after", s->after[i], "alpha, old, old_add, bias, round, factor, rectified");
    ++count[s->after[i]];
  }
  const int old = count[ASSAY_AFTER_OLD] + count[ASSAY_AFTER_OLD_ADD];
  if (count[ASSAY_AFTER_ALPHA] > 1) return refuse(error, "after, alpha", count[ASSAY_AFTER_ALPHA], "once");
  if (count[ASSAY_AFTER_ALPHA] == 0 && p->alpha != 0 && p->alpha != 1)
    return assay_fail(error, ASSAY_ERR_INPUT, "sums: after: found no alpha, allowed with alpha 1, found %g",
                      (double)p->alpha);
  if ((old > 1) || (old == 0 && p->beta != 0))
    return refuse(error, "after, old and old_add", old, p->beta != 0 ? "one of them, with beta" : "one of them");
  if (p->beta != 0 && (p->old.data == NULL || p->old.rank != 2))
    return refuse(error, "old, its rank", p->old.rank, "2");
  const int bias = count[ASSAY_AFTER_BIAS];
  if (bias > 1 || (bias == 0 && p->bias.data != NULL))
    return refuse(error, "after, bias", bias, bias > 1 ? "once" : "once, with a bias");
  const int factor = count[ASSAY_AFTER_FACTOR], second = count[ASSAY_AFTER_RECTIFIED];
  if (factor > 1 || (factor == 0 && p->factor.data != NULL))
    return refuse(error, "after, factor", factor, factor > 1 ? "once" : "once, with a factor");
  if (second != (p->second.data != NULL ? 1 : 0))
    return refuse(error, "after, rectified", second, p->second.data != NULL ? "once, with second weights" : "none");
  if (second > 0 && (p->second.rank != 2 || p->second.dtype != p->b.dtype || p->second.shape[0] != p->b.shape[0] ||
                     p->second.shape[1] != p->b.shape[1]))
    return assay_fail(error, ASSAY_ERR_INPUT, "sums: second: found other extents or another type, allowed those of b");
  return p->factor.data != NULL ? check_f32(&p->factor, "factor", true, p->a.shape[0], 1, error) : ASSAY_OK;
}

/* ---- operands ------------------------------------------------------------------------------------------ */

/* All rows of one operand in the order of summation: taken apart, or as f32 for FMA. */
typedef struct operand {
  sum_factors factors;
  uint32_t *values; /* f32 bits */
  bool *special;    /* [rows] */
  int64_t K;
} operand;

static void operand_free(operand *o) {
  free(o->factors.significand);
  free(o->factors.exponent);
  free(o->factors.kind);
  free(o->values);
  free(o->special);
}

static sum_factors operand_row(const operand *o, int64_t row) {
  sum_factors factors = sum_factors_from(&o->factors, row * o->K);
  factors.special = o->special[row];
  return factors;
}

/* Copies a row to `row` in the order of summation, with zeros in the padding. */
static void gather(const assay_sums *s, const assay_tensor *t, int64_t at, unsigned char *row) {
  const int64_t K = t->shape[1], padded = assay_sums_padded(s, K), size = assay_dtype_size(t->dtype);
  const unsigned char *const from = (const unsigned char *)t->data + at * t->stride[0] * size;
  for (int64_t i = 0; i < padded; ++i) {
    const int64_t place = s->order != NULL ? s->order(i, padded) : i;
    if (place < K)
      memcpy(row + i * size, from + place * t->stride[1] * size, (size_t)size);
    else
      memset(row + i * size, 0, (size_t)size);
  }
}

static assay_status operand_take(const assay_sums *s, const assay_tensor *t, operand *o, assay_error *error) {
  const int64_t rows = t->shape[0], K = assay_sums_padded(s, t->shape[1]), size = assay_dtype_size(t->dtype);
  const size_t count = (size_t)(rows * K) + 1;
  const bool fma = unit_is_f32(s->unit);
  o->K = K;
  o->special = calloc((size_t)rows + 1, sizeof *o->special);
  unsigned char *const row = malloc((size_t)(K * size) + 1);
  if (fma)
    o->values = malloc(count * sizeof *o->values);
  else {
    o->factors.significand = malloc(count * sizeof(int16_t));
    o->factors.exponent = malloc(count * sizeof(int16_t));
    o->factors.kind = malloc(count);
  }
  const bool have = o->special != NULL && row != NULL &&
                    (fma ? o->values != NULL
                         : o->factors.significand != NULL && o->factors.exponent != NULL && o->factors.kind != NULL);
  for (int64_t i = 0; have && i < rows; ++i) {
    gather(s, t, i, row);
    for (int64_t k = 0; fma && k < K; ++k) {
      const float value = (float)assay_load_f64(row, t->dtype, k);
      memcpy(&o->values[i * K + k], &value, sizeof value);
    }
    if (fma) continue;
    sum_factors into = sum_factors_from(&o->factors, i * K);
    sum_factors_take(&into, row, t->dtype, s->unit == ASSAY_SUM_MMA_8, 1, K);
    o->special[i] = into.special;
    o->factors.fraction = into.fraction;
  }
  free(row);
  return have ? ASSAY_OK : assay_fail(error, ASSAY_ERR_MEMORY, "sums: no memory for %zu factors", count);
}

/* ---- sums ---------------------------------------------------------------------------------------------- */

typedef struct sum_call {
  const assay_sums *sums;
  const assay_product *product;
  operand a, b, second;
} sum_call;

static uint32_t bits_at(const assay_tensor *t, int64_t row, int64_t column) {
  uint32_t bits;
  memcpy(&bits, (const float *)t->data + row * t->stride[0] + column * t->stride[1], sizeof bits);
  return bits;
}

/* Returns c and the products of row m with row n of the weights w in [from, to). */
static uint32_t sum_of(const sum_call *call, const operand *w, int64_t m, int64_t n, int64_t from, int64_t to,
                       uint32_t c) {
  const int64_t K = call->a.K;
  if (!unit_is_f32(call->sums->unit)) {
    const sum_factors row_a = operand_row(&call->a, m), row_b = operand_row(w, n);
    const sum_factors a = sum_factors_from(&row_a, from), b = sum_factors_from(&row_b, from);
    return sum_chain(call->sums->unit, &a, &b, to - from, c);
  }
  const uint32_t *const a = call->a.values + m * K, *const b = w->values + n * K;
  const bool fused = call->sums->unit == ASSAY_SUM_FMA;
  for (int64_t k = from; k < to; ++k)
    c = fused ? sum_fma(a[k], b[k], c) : sum_add(c, sum_multiply(a[k], b[k]));
  return c;
}

/* Returns the sum of one part: as a chain, or promoted. */
static uint32_t part_of(const sum_call *call, const operand *w, int64_t m, int64_t n, int64_t from, int64_t to,
                        uint32_t start) {
  const assay_sums *const s = call->sums;
  if (s->promote == 0) return sum_of(call, w, m, n, from, to, start);
  uint32_t whole = start;
  for (int64_t k = from; k < to; k += s->promote) {
    const uint32_t sum = sum_of(call, w, m, n, k, to - k < s->promote ? to : k + s->promote, 0);
    if (s->scale == ASSAY_SCALE_NONE || s->scale == ASSAY_SCALE_AFTER) {
      whole = sum_add(whole, sum);
      continue;
    }
    const int64_t group = k / s->promote;
    const uint32_t scale_a = bits_at(&call->product->scale_a, m, group);
    const uint32_t scale_b = bits_at(&call->product->scale_b, n / columns_of(call->product), group);
    if (s->scale == ASSAY_SCALE_PRODUCT_THEN_FMA) {
      whole = sum_fma(sum_multiply(sum, scale_a), scale_b, whole);
      continue;
    }
    const uint32_t scale = sum_multiply(scale_a, scale_b);
    whole = s->scale == ASSAY_SCALE_FMA_PRODUCT ? sum_fma(sum, scale, whole) : sum_add(whole, sum_multiply(sum, scale));
  }
  return whole;
}

/* Joins sums[parts] to one. */
static uint32_t join_of(assay_sum_join join, uint32_t *sum, int64_t parts) {
  if (join == ASSAY_JOIN_PAIRWISE) {
    for (int64_t left = parts; left > 1; left = (left + 1) / 2)
      for (int64_t i = 0; i < (left + 1) / 2; ++i)
        sum[i] = 2 * i + 1 < left ? sum_add(sum[2 * i], sum[2 * i + 1]) : sum[2 * i];
    return sum[0];
  }
  const bool down = join == ASSAY_JOIN_DESCENDING;
  uint32_t whole = sum[down ? parts - 1 : 0];
  for (int64_t i = 1; i < parts; ++i)
    whole = sum_add(whole, sum[down ? parts - 1 - i : i]);
  return whole;
}

/* ---- after the sum ------------------------------------------------------------------------------------- */

static uint32_t f32_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

/* Returns an element of an f32, f16 or bf16 tensor as f32 bits. */
static uint32_t number_at(const assay_tensor *t, int64_t row, int64_t column) {
  return f32_bits((float)assay_load_f64(t->data, t->dtype, row * t->stride[0] + column * t->stride[1]));
}

/* Returns the bits of x after rounding to the type, in that type's width. */
static uint32_t rounded_to(assay_dtype dtype, uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  if (dtype != ASSAY_F16 && dtype != ASSAY_BF16) return bits;
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FFF;
  return dtype == ASSAY_F16 ? assay_f16_from_f64((double)value) : assay_bf16_from_f64((double)value);
}

static uint32_t after_step(const sum_call *call, assay_sum_after step, int64_t m, int64_t n, uint32_t x) {
  const assay_product *const p = call->product;
  const uint32_t beta = f32_bits(p->beta);
  if (step == ASSAY_AFTER_ALPHA) return sum_multiply(f32_bits(p->alpha), x);
  if (step == ASSAY_AFTER_OLD && p->beta != 0) return sum_fma(beta, number_at(&p->old, m, n), x);
  if (step == ASSAY_AFTER_OLD_ADD && p->beta != 0) return sum_add(x, sum_multiply(beta, number_at(&p->old, m, n)));
  if (step == ASSAY_AFTER_BIAS && p->bias.data != NULL) return sum_add(x, number_at(&p->bias, 0, n));
  if (step == ASSAY_AFTER_FACTOR && p->factor.data != NULL) return sum_multiply(x, bits_at(&p->factor, m, 0));
  const assay_dtype to = call->sums->output;
  if (step != ASSAY_AFTER_ROUND || (to != ASSAY_F16 && to != ASSAY_BF16)) return x;
  const uint16_t narrow = (uint16_t)rounded_to(to, x);
  return f32_bits((float)assay_load_f64(&narrow, to, 0));
}

/* Returns the bits of max(x, 0), +0 where x is NaN or -0. */
static uint32_t rectified(uint32_t x) {
  return x > 0x7F800000u ? 0 : x;
}

/* Returns the f32 bits of element (m, n) with the weights w, after the first `steps` steps. room: [parts]. */
static uint32_t element_of(const sum_call *call, const operand *w, int64_t m, int64_t n, int steps, uint32_t *room) {
  const assay_sums *const s = call->sums;
  const assay_product *const p = call->product;
  const int64_t parts = parts_of(s);
  int64_t from = 0;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t to = end_of(s, part, call->a.K);
    const bool starts = part == 0 && p->start.data != NULL;
    room[part] = part_of(call, w, m, n, from, to, starts ? bits_at(&p->start, m, n) : 0);
    from = to;
  }
  uint32_t sum = join_of(s->join, room, parts);
  if (s->scale == ASSAY_SCALE_AFTER)
    sum = sum_multiply(sum_multiply(sum, bits_at(&p->scale_a, m, 0)), bits_at(&p->scale_b, n / columns_of(p), 0));
  for (int i = 0; i < steps && s->after[i] != ASSAY_AFTER_NONE; ++i)
    sum = s->after[i] == ASSAY_AFTER_RECTIFIED
              ? sum_multiply(rectified(sum), element_of(call, &call->second, m, n, i, room))
              : after_step(call, s->after[i], m, n, sum);
  return sum;
}

static void store(void *out, assay_dtype dtype, int64_t index, uint32_t bits) {
  if (dtype == ASSAY_F16 || dtype == ASSAY_BF16)
    ((uint16_t *)out)[index] = (uint16_t)rounded_to(dtype, bits);
  else
    ((uint32_t *)out)[index] = bits;
}

assay_status assay_sums_predict(const assay_sums *sums, const assay_product *product, void *out, assay_error *error) {
  assay_status status = check_types(sums, product, error);
  if (status == ASSAY_OK) status = check_parts(sums, assay_sums_padded(sums, product->a.shape[1]), error);
  if (status == ASSAY_OK) status = check_scales(sums, product, error);
  if (status == ASSAY_OK) status = check_after(sums, product, error);
  if (status != ASSAY_OK) return status;
  sum_call call = {.sums = sums, .product = product};
  uint32_t *const room = malloc((size_t)parts_of(sums) * sizeof *room);
  status = room != NULL ? ASSAY_OK : assay_fail(error, ASSAY_ERR_MEMORY, "sums: no memory for the sums of parts");
  if (status == ASSAY_OK) status = operand_take(sums, &product->a, &call.a, error);
  if (status == ASSAY_OK) status = operand_take(sums, &product->b, &call.b, error);
  if (status == ASSAY_OK && product->second.data != NULL)
    status = operand_take(sums, &product->second, &call.second, error);
  const int64_t M = product->a.shape[0], N = product->b.shape[0];
  for (int64_t m = 0; status == ASSAY_OK && m < M; ++m)
    for (int64_t n = 0; n < N; ++n)
      store(out, sums->output, m * N + n, element_of(&call, &call.b, m, n, ASSAY_SUM_MOST_AFTER, room));
  operand_free(&call.a);
  operand_free(&call.b);
  operand_free(&call.second);
  free(room);
  return status;
}
