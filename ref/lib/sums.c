/* sums.c: one step of Hopper's tensor cores in integers, written from docs/last-bit.md alone.
 *
 * A step adds n products to the sum c. e is the largest exponent among c and the products. Every term is cut towards
 * zero at 2^(e - kept), so that it is a whole number of quanta. The sum of these whole numbers is exact. It is cut
 * towards zero to `bits` significant bits. If sums are f16, it is rounded to the nearest f16 number instead. */
#include "ref/lib/sums.h"

#include <math.h>
#include <string.h>

#include "core/wide.h"

/* ---- factors ------------------------------------------------------------------------------------------- */

typedef struct factor_format {
  int exponent_bits, fraction, bias;
  bool infinity; /* the largest exponent is for ±Inf and NaN; without it: one NaN, all bits set */
} factor_format;

enum { TF32_DROPPED = 13 };
enum { ABSENT = -8192 }; /* exponent of a factor whose product has none; two of them fit 16 bits */

static factor_format format_of(assay_dtype dtype) {
  switch (dtype) {
  case ASSAY_F16:
    return (factor_format){5, 10, 15, true};
  case ASSAY_F32: /* tf32: the low 13 bits are dropped */
    return (factor_format){8, 10, 127, true};
  case ASSAY_BF16:
    return (factor_format){8, 7, 127, true};
  case ASSAY_E5M2:
    return (factor_format){5, 2, 15, true};
  default:
    return (factor_format){4, 3, 7, false}; /* e4m3 */
  }
}

static uint8_t kind_of(const factor_format *f, int field, int fraction, bool negative) {
  if (field != (1 << f->exponent_bits) - 1) return FACTOR_FINITE;
  if (!f->infinity) return fraction == (1 << f->fraction) - 1 ? FACTOR_NAN : FACTOR_FINITE;
  if (fraction != 0) return FACTOR_NAN;
  return negative ? FACTOR_MINUS_INFINITE : FACTOR_INFINITE;
}

void sum_factors_take(sum_factors *factors, const void *data, assay_dtype dtype, bool as_f16, int64_t stride,
                      int64_t count) {
  const factor_format f = format_of(dtype);
  const int64_t size = assay_dtype_size(dtype);
  const int least = as_f16 ? 1 - format_of(ASSAY_F16).bias : 1 - f.bias;
  factors->fraction = f.fraction;
  factors->special = false;
  for (int64_t i = 0; i < count; ++i) {
    const int code = size == 4   ? (int)(((const uint32_t *)data)[i * stride] >> TF32_DROPPED)
                     : size == 2 ? ((const uint16_t *)data)[i * stride]
                                 : ((const uint8_t *)data)[i * stride];
    const int field = code >> f.fraction & ((1 << f.exponent_bits) - 1), fraction = code & ((1 << f.fraction) - 1);
    const bool negative = (code >> (f.fraction + f.exponent_bits) & 1) != 0;
    int significand = field == 0 ? fraction : fraction | 1 << f.fraction;
    int exponent = (field == 0 ? 1 : field) - f.bias;
    factors->kind[i] = kind_of(&f, field, fraction, negative);
    if (factors->kind[i] != FACTOR_FINITE) significand = 0;
    if (significand == 0)
      exponent = ABSENT;
    else /* a subnormal number of e4m3 is a normal one of f16 */
      for (; significand < 1 << f.fraction && exponent > least; --exponent)
        significand *= 2;
    factors->significand[i] = (int16_t)(negative ? -significand : significand);
    factors->exponent[i] = (int16_t)exponent;
    factors->special |= factors->kind[i] != FACTOR_FINITE;
  }
}

sum_factors sum_factors_from(const sum_factors *factors, int64_t first) {
  sum_factors from = *factors;
  from.significand += first;
  from.exponent += first;
  from.kind += first;
  return from;
}

/* ---- f32 ----------------------------------------------------------------------------------------------- */

static float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (bits & 0x7FFFFFFFu) > 0x7F800000u ? (uint32_t)SUM_NAN : bits;
}

uint32_t sum_add(uint32_t x, uint32_t y) {
  return bits_of(float_of(x) + float_of(y));
}

uint32_t sum_multiply(uint32_t x, uint32_t y) {
  return bits_of(float_of(x) * float_of(y));
}

uint32_t sum_fma(uint32_t x, uint32_t y, uint32_t z) {
  return bits_of(fmaf(float_of(x), float_of(y), float_of(z)));
}

enum { F32_FRACTION = 23, F32_LEAST = -126, F32_INFINITY = 0x7F800000 };

/* Returns total · 2^place, cut towards zero to `bits` significant bits, or at the least subnormal number. */
ASSAY_INLINE uint32_t cut_to_f32(int64_t total, int place, int bits) {
  const uint32_t sign = total < 0 ? 0x80000000u : 0;
  uint64_t size = total < 0 ? 0 - (uint64_t)total : (uint64_t)total;
  if (size == 0) return 0;
  const int top = 63 - __builtin_clzll(size), exponent = place + top;
  if (exponent > 127) return sign | (uint32_t)F32_INFINITY;
  const int least = F32_LEAST - F32_FRACTION - place, last = top - (bits - 1);
  const int cut = last > least ? last : least;
  if (cut > top) return 0;
  if (cut > 0) size = size >> cut << cut;
  const uint32_t significand =
      (uint32_t)(top > F32_FRACTION ? size >> (top - F32_FRACTION) : size << (F32_FRACTION - top));
  if (exponent < F32_LEAST) return sign | significand >> (F32_LEAST - exponent);
  return sign | (uint32_t)(exponent + 127) << F32_FRACTION | (significand & 0x7FFFFF);
}

enum { F16_FRACTION = 10, F16_LEAST = -14 };

/* Returns total · 2^place, rounded to the nearest f16 number, ties to even. */
static uint32_t round_to_f16(int64_t total, int place) {
  if (total == 0) return 0;
  const uint64_t size = total < 0 ? 0 - (uint64_t)total : (uint64_t)total;
  const int top = 63 - __builtin_clzll(size), least = F16_LEAST - F16_FRACTION - place, last = top - F16_FRACTION;
  const int cut = last > least ? last : least;
  if (cut > top + 1) return 0;
  const uint64_t half = cut > 0 ? (1ull << (cut - 1)) - 1 + (size >> cut & 1) : 0;
  const int64_t kept = (int64_t)(cut > 0 ? (size + half) >> cut << cut : size);
  const uint32_t rounded = cut_to_f32(total < 0 ? -kept : kept, place, F32_FRACTION + 1);
  if ((rounded & 0x7FFFFFFFu) < 0x47800000u) return rounded; /* 2^16 */
  return (rounded & 0x80000000u) | (uint32_t)F32_INFINITY;
}

/* ---- one step ------------------------------------------------------------------------------------------ */

typedef struct step_rule {
  int products, kept, bits;
} step_rule;

/* A sum of 0 counts with this exponent: that of the least subnormal number of bf16. It is the largest only where all
 * products are smaller still, which products of bf16 alone can be. f16 sums have an exponent of their own for it. */
enum { EXPONENT_OF_ZERO = -133, F16_EXPONENT_OF_ZERO = -21 };

static const step_rule rule_16 = {16, 25, 24};
static const step_rule rule_8 = {32, 13, 14};
static const step_rule rule_tf32 = {8, 25, 24};
static const step_rule rule_16_f16 = {16, 25, 0}; /* bits: rounded to f16 */

/* Returns the sum if a term is ±Inf or NaN: infinities of one sign stay, all else is NaN. */
static uint32_t step_special(const sum_factors *a, const sum_factors *b, int count, uint32_t c) {
  bool plus = c == F32_INFINITY, minus = c == (0x80000000u | F32_INFINITY);
  bool nan = (c & 0x7FFFFFFFu) > F32_INFINITY;
  for (int i = 0; i < count; ++i) {
    const uint8_t x = a->kind[i], y = b->kind[i];
    if (x == FACTOR_FINITE && y == FACTOR_FINITE) continue;
    nan |= x == FACTOR_NAN || y == FACTOR_NAN;
    nan |= (x == FACTOR_FINITE && a->significand[i] == 0) || (y == FACTOR_FINITE && b->significand[i] == 0);
    const bool x_minus = x == FACTOR_MINUS_INFINITE || a->significand[i] < 0;
    const bool y_minus = y == FACTOR_MINUS_INFINITE || b->significand[i] < 0;
    *(x_minus != y_minus ? &minus : &plus) = true;
  }
  if (nan || (plus && minus)) return (uint32_t)SUM_NAN;
  return minus ? 0x80000000u | (uint32_t)F32_INFINITY : (uint32_t)F32_INFINITY;
}

/* Tells whether one of the terms is ±Inf or NaN. */
static bool step_is_special(const sum_factors *a, const sum_factors *b, int count, uint32_t c) {
  bool special = (c & 0x7FFFFFFFu) >= F32_INFINITY;
  for (int i = 0; i < count; ++i)
    special |= a->kind[i] != FACTOR_FINITE || b->kind[i] != FACTOR_FINITE;
  return special;
}

/* Adds `count` products of finite factors to a finite c. `places`: bits after the leading one of a product. A product
 * that counts has at most 22 bits and is shifted left by at most kept - places; sixteen of them fit 32 bits. */
ASSAY_INLINE uint32_t step_finite(const int16_t *restrict sa, const int16_t *restrict ea, const int16_t *restrict sb,
                                  const int16_t *restrict eb, int count, int places, step_rule rule, uint32_t c) {
  const int field = (int)(c >> F32_FRACTION & 0xFF);
  const int64_t c_size = field == 0 ? c & 0x7FFFFF : (c & 0x7FFFFF) | 0x800000;
  const int c_exponent = c_size == 0 ? EXPONENT_OF_ZERO : (field == 0 ? 1 : field) - 127;
  int e = c_exponent;
  if (rule.bits == 0) e = c_size == 0 ? F16_EXPONENT_OF_ZERO : c_exponent > F16_LEAST ? c_exponent : F16_LEAST;
  for (int i = 0; i < count; ++i) {
    const int exponent = ea[i] + eb[i];
    e = exponent > e ? exponent : e;
  }
  const int up = rule.kept - places;
  int32_t products = 0;
  for (int i = 0; i < count; ++i) {
    const int32_t product = sa[i] * sb[i];
    const int below = e - (ea[i] + eb[i]);
    const int32_t size = product < 0 ? -product : product;
    const int32_t cut = size << up >> (below < 31 ? below : 31);
    products += product < 0 ? -cut : cut;
  }
  const int down = e - c_exponent + F32_FRACTION - rule.kept;
  const int64_t c_cut = down < 0 ? c_size << -down : c_size >> (down < 63 ? down : 63);
  const int64_t total = products + ((c & 0x80000000u) != 0 ? -c_cut : c_cut);
  return rule.bits == 0 ? round_to_f16(total, e - rule.kept) : cut_to_f32(total, e - rule.kept, rule.bits);
}

/* ---- chains -------------------------------------------------------------------------------------------- */

/* Adds `count` finite products in whole steps. */
ASSAY_WIDE static uint32_t whole_steps_16(const sum_factors *a, const sum_factors *b, int64_t count, uint32_t c) {
  for (int64_t i = 0; i < count && (c & 0x7FFFFFFFu) < F32_INFINITY; i += 16)
    c = step_finite(a->significand + i, a->exponent + i, b->significand + i, b->exponent + i, 16,
                    a->fraction + b->fraction, rule_16, c);
  return c;
}

ASSAY_WIDE static uint32_t whole_steps_8(const sum_factors *a, const sum_factors *b, int64_t count, uint32_t c) {
  for (int64_t i = 0; i < count && (c & 0x7FFFFFFFu) < F32_INFINITY; i += 32)
    c = step_finite(a->significand + i, a->exponent + i, b->significand + i, b->exponent + i, 32,
                    a->fraction + b->fraction, rule_8, c);
  return c;
}

static uint32_t any_step(const sum_factors *a, const sum_factors *b, int count, step_rule rule, uint32_t c) {
  if (step_is_special(a, b, count, c)) return step_special(a, b, count, c);
  return step_finite(a->significand, a->exponent, b->significand, b->exponent, count, a->fraction + b->fraction, rule,
                     c);
}

/* Adds up to 32 fp8 products as mma.sync does: two steps of f16 from zero, then one f32 addition to c. The first step
 * has the products with k mod 4 below 2. */
static uint32_t step_mma_8(const sum_factors *a, const sum_factors *b, int count, uint32_t c) {
  uint32_t sum = 0;
  for (int half = 0; half < 2; ++half) {
    int16_t significand[2][16] = {{0}}, exponent[2][16] = {{0}};
    uint8_t kind[2][16] = {{0}};
    int n = 0;
    for (int k = 0; k < count; ++k) {
      if (k % 4 / 2 != half) continue;
      significand[0][n] = a->significand[k];
      significand[1][n] = b->significand[k];
      exponent[0][n] = a->exponent[k];
      exponent[1][n] = b->exponent[k];
      kind[0][n] = a->kind[k];
      kind[1][n++] = b->kind[k];
    }
    const sum_factors x = {significand[0], exponent[0], kind[0], a->fraction, false};
    const sum_factors y = {significand[1], exponent[1], kind[1], b->fraction, false};
    sum = any_step(&x, &y, n, rule_16, sum);
  }
  return sum_add(c, sum);
}

int64_t assay_sum_step(assay_sum_unit unit) {
  switch (unit) {
  case ASSAY_SUM_WGMMA_16:
  case ASSAY_SUM_MMA_16:
  case ASSAY_SUM_WGMMA_16_F16:
  case ASSAY_SUM_MMA_16_F16:
    return rule_16.products;
  case ASSAY_SUM_WGMMA_8:
  case ASSAY_SUM_MMA_8:
    return rule_8.products;
  case ASSAY_SUM_WGMMA_TF32:
  case ASSAY_SUM_MMA_TF32:
    return rule_tf32.products;
  case ASSAY_SUM_FMA:
  case ASSAY_SUM_MULTIPLY_ADD:
    return 1;
  case ASSAY_SUM_NONE:
  case ASSAY_SUM_UNITS:
    break;
  }
  return 0;
}

uint32_t sum_chain(assay_sum_unit unit, const sum_factors *a, const sum_factors *b, int64_t count, uint32_t c) {
  const int step = (int)assay_sum_step(unit);
  const bool eight = unit == ASSAY_SUM_WGMMA_8, wide = unit == ASSAY_SUM_WGMMA_16 || unit == ASSAY_SUM_MMA_16;
  const step_rule rule = eight ? rule_8 : wide ? rule_16 : sum_is_tf32(unit) ? rule_tf32 : rule_16_f16;
  int64_t i = 0;
  if ((eight || wide) && !a->special && !b->special && (c & 0x7FFFFFFFu) < F32_INFINITY) {
    i = count / step * step;
    c = eight ? whole_steps_8(a, b, i, c) : whole_steps_16(a, b, i, c);
  }
  for (; i < count; i += step) {
    const sum_factors x = sum_factors_from(a, i), y = sum_factors_from(b, i);
    const int n = count - i < step ? (int)(count - i) : step;
    c = unit == ASSAY_SUM_MMA_8 ? step_mma_8(&x, &y, n, c) : any_step(&x, &y, n, rule, c);
  }
  return c;
}
