/* dtype_test.c: every code of every storage type against ldexp of its fields; rounding at, just below and just above
 * every midpoint between neighbours; f16 besides against the compiler's own type. */
#include <criterion/criterion.h>
#include <math.h>

#include "core/dtype.h"

typedef struct type {
  assay_dtype dtype;
  int bits, mantissa, bias, codes; /* codes: non-negative codes 0 .. codes - 1 are finite */
  int saturates;
} type;

static const type types[] = {
    {ASSAY_F16, 16, 10, 15, 0x7C00, 0},
    {ASSAY_BF16, 16, 7, 127, 0x7F80, 0},
    {ASSAY_E4M3, 8, 3, 7, 0x7F, 1},
    {ASSAY_E5M2, 8, 2, 15, 0x7C, 1},
};
enum { TYPES = sizeof types / sizeof types[0] };

/* The fields by their definition: (-1)^s · 2^(e - bias) · 1.m, subnormal where e = 0. */
static double by_fields(const type *t, uint32_t code) {
  const int sign = (int)(code >> (t->bits - 1)) & 1;
  const int exponent = (int)(code >> t->mantissa) & ((1 << (t->bits - 1 - t->mantissa)) - 1);
  const int fraction = (int)code & ((1 << t->mantissa) - 1);
  const double size = exponent == 0 ? ldexp(fraction, 1 - t->bias - t->mantissa)
                                    : ldexp((1 << t->mantissa) + fraction, exponent - t->bias - t->mantissa);
  return sign ? -size : size;
}

static double to_f64(const type *t, uint32_t code) {
  if (t->dtype == ASSAY_F16) return (double)assay_f16_to_f32((uint16_t)code);
  if (t->dtype == ASSAY_BF16) return (double)assay_bf16_to_f32((uint16_t)code);
  if (t->dtype == ASSAY_E4M3) return (double)assay_e4m3_to_f32((uint8_t)code);
  return (double)assay_e5m2_to_f32((uint8_t)code);
}

static uint32_t from_f64(const type *t, double value) {
  if (t->dtype == ASSAY_F16) return assay_f16_from_f64(value);
  if (t->dtype == ASSAY_BF16) return assay_bf16_from_f64(value);
  if (t->dtype == ASSAY_E4M3) return assay_e4m3_from_f64(value);
  return assay_e5m2_from_f64(value);
}

Test(dtype, every_code_by_its_fields) {
  for (int i = 0; i < TYPES; ++i) {
    const type *t = &types[i];
    for (uint32_t code = 0; code < 1u << t->bits; ++code) {
      const uint32_t magnitude = code & ((1u << (t->bits - 1)) - 1), sign = code >> (t->bits - 1) << (t->bits - 1);
      const double value = to_f64(t, code);
      if (magnitude < (uint32_t)t->codes) {
        cr_assert(value == by_fields(t, code) && !signbit(value) == !sign, "%s code %x: %g", assay_dtype_name(t->dtype),
                  code, value);
        cr_assert(from_f64(t, value) == code, "%s code %x comes back as %x", assay_dtype_name(t->dtype), code,
                  from_f64(t, value));
        cr_assert(assay_round_f64(value, t->dtype) == value);
      } else if (magnitude == (uint32_t)t->codes && t->dtype != ASSAY_E4M3) {
        cr_assert(isinf(value) && !signbit(value) == !sign);
      } else {
        cr_assert(isnan(value), "%s code %x", assay_dtype_name(t->dtype), code);
        cr_assert(isnan(to_f64(t, from_f64(t, value))));
      }
    }
  }
}

Test(dtype, rounding_at_every_midpoint) {
  for (int i = 0; i < TYPES; ++i) {
    const type *t = &types[i];
    for (uint32_t code = 0; code + 1 < (uint32_t)t->codes; ++code) {
      const double low = by_fields(t, code), high = by_fields(t, code + 1), middle = low + (high - low) / 2;
      const uint32_t even = code & 1 ? code + 1 : code, sign = 1u << (t->bits - 1);
      cr_assert(from_f64(t, middle) == even, "%s: midpoint above %x", assay_dtype_name(t->dtype), code);
      cr_assert(from_f64(t, -middle) == (even | sign));
      cr_assert(from_f64(t, nextafter(middle, 0)) == code);
      cr_assert(from_f64(t, nextafter(middle, INFINITY)) == code + 1);
      cr_assert(from_f64(t, -nextafter(middle, INFINITY)) == ((code + 1) | sign));
      cr_assert(assay_ulp(low, t->dtype) == high - low, "%s: spacing at %x", assay_dtype_name(t->dtype), code);
      cr_assert(assay_ulp(-nextafter(high, 0), t->dtype) == high - low);
    }
  }
}

Test(dtype, beyond_the_largest) {
  for (int i = 0; i < TYPES; ++i) {
    const type *t = &types[i];
    const double largest = by_fields(t, (uint32_t)t->codes - 1), ulp = assay_ulp(largest, t->dtype);
    const double edge = largest + ulp / 2, inside = nextafter(edge, 0);
    const uint32_t sign = 1u << (t->bits - 1), top = (uint32_t)t->codes - 1;
    const uint32_t over = t->saturates ? top : (uint32_t)t->codes;
    cr_assert(from_f64(t, inside) == top && from_f64(t, -inside) == (top | sign));
    cr_assert(from_f64(t, edge) == over && from_f64(t, -edge) == (over | sign));
    cr_assert(from_f64(t, 1e300) == over && from_f64(t, -1e300) == (over | sign));
    cr_assert(from_f64(t, INFINITY) == over && from_f64(t, -INFINITY) == (over | sign));
    cr_assert(assay_ulp(1e300, t->dtype) == ulp);
    cr_assert(from_f64(t, 0x1p-1074) == 0 && from_f64(t, -0x1p-1074) == sign, "tiny values keep their sign");
  }
  cr_assert(assay_e4m3_from_f64(NAN) == 0x7F && assay_e4m3_from_f64(-NAN) == 0x7F);
  cr_assert(assay_e5m2_from_f64(NAN) == 0x7F && assay_e5m2_from_f64(-NAN) == 0x7F);
  cr_assert(assay_e4m3_to_f32(0x7E) == 448.0F && assay_e5m2_to_f32(0x7B) == 57344.0F);
}

#if defined(__FLT16_MANT_DIG__) && !defined(__clang__)
__extension__ typedef _Float16 half;

Test(dtype, f16_against_the_compiler) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const uint16_t bits = (uint16_t)code;
    half h;
    memcpy(&h, &bits, sizeof h);
    const float ours = assay_f16_to_f32(bits), theirs = (float)h;
    cr_assert(ours == theirs || (isnan(ours) && isnan(theirs)), "code %x", code);
  }
  for (uint32_t step = 0; step < 0x7F800000u; step += 4099) { /* floats all over the range, one rounding each */
    float value;
    memcpy(&value, &step, sizeof value);
    const half h = (half)value;
    uint16_t theirs;
    memcpy(&theirs, &h, sizeof theirs);
    cr_assert(assay_f16_from_f64((double)value) == theirs, "%a", (double)value);
  }
}
#endif

Test(dtype, rows_equal_elements) {
  static const assay_dtype all[] = {ASSAY_F32, ASSAY_F16, ASSAY_BF16, ASSAY_E4M3, ASSAY_E5M2};
  double value[24], back[24], strided[8];
  for (int i = 0; i < 24; ++i)
    value[i] = (i - 11) * 0.37;
  for (int i = 0; i < 5; ++i) {
    unsigned char memory[96] = {0};
    assay_store_f64_row(memory, all[i], 0, 1, 24, value);
    assay_load_f64_row(memory, all[i], 0, 1, 24, back);
    assay_load_f64_row(memory, all[i], 1, 3, 8, strided);
    for (int j = 0; j < 24; ++j) {
      cr_assert(back[j] == assay_round_f64(value[j], all[i]) && back[j] == assay_load_f64(memory, all[i], j));
      if (j % 3 == 1) cr_assert(strided[j / 3] == back[j]);
    }
    assay_store_f64(memory, all[i], 5, 1.5);
    cr_assert(assay_load_f64(memory, all[i], 5) == 1.5);
  }
  cr_assert(assay_round_f64(0.1, ASSAY_NONE) == 0.1 && assay_ulp(0.1, ASSAY_NONE) == 0);
  cr_assert(assay_ulp(1, ASSAY_F32) == 0x1p-23 && assay_ulp(0, ASSAY_F32) == 0x1p-149);
}

Test(dtype, non_finite_from_bits) {
  cr_assert(assay_is_nan(NAN) && !assay_is_nan(INFINITY) && !assay_is_nan(0));
  cr_assert(assay_is_finite(1e308) && !assay_is_finite(INFINITY) && !assay_is_finite(NAN));
}

/* Messages have the shortest number that is read back as the value. */
Test(dtype, shortest) {
  static const struct {
    double value;
    const char *text;
  } rows[] = {{1e-12, "1e-12"}, {1e-6, "1e-06"},   {0.1, "0.1"},      {1.0 / 3, "0.3333333333333333"},
              {0, "0"},         {65504, "65504"},  {1e6, "1e+06"},    {5e-324, "5e-324"},
              {-2.5, "-2.5"},   {INFINITY, "inf"}, {123456, "123456"}};
  char text[32];
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i)
    cr_expect_str_eq(assay_shortest(rows[i].value, text), rows[i].text);
}
