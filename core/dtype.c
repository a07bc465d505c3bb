/* dtype.c: storage types as bits.
 *
 * In a format with m mantissa bits and smallest normal exponent e_min, a value with exponent e has the spacing
 * 2^(max(e, e_min) - m). Rounding adds 1.5·2^52 spacings and subtracts them again. The f64 addition itself rounds to
 * the nearest multiple, ties to even, and the subtraction is exact. Double to float already is one IEEE rounding. */
#include "core/dtype.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/wide.h"

typedef struct format {
  int mantissa, min_exponent, max_exponent;
} format;

static const format f32_format = {23, -126, 127};
static const format f16_format = {10, -14, 15};
static const format bf16_format = {7, -126, 127};
static const format e4m3_format = {3, -6, 8};
static const format e5m2_format = {2, -14, 15};

static const double e4m3_largest = 448, e5m2_largest = 57344;

static inline uint64_t bits_of(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline double double_of(uint64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline bool is_nan(double value) {
  return (bits_of(value) & 0x7FFFFFFFFFFFFFFFu) > 0x7FF0000000000000u;
}

static inline double power_of_two(int exponent) {
  return double_of((uint64_t)(exponent + 1023) << 52);
}

/* Returns the unbiased exponent; -1023 for zero and f64 subnormals, 1024 for Inf and NaN. */
static inline int exponent_of(double value) {
  return (int)(bits_of(value) >> 52 & 0x7FF) - 1023;
}

static inline int spacing_exponent(double value, format f) {
  const int e = exponent_of(value);
  return (e > f.min_exponent ? e : f.min_exponent) - f.mantissa;
}

/* Returns the nearest multiple of the spacing; Inf and NaN pass unchanged. The result may exceed the format's largest
 * value. */
static inline double round_to(double value, format f) {
  if (exponent_of(value) > 1000) return value;
  const double magic = 1.5 * power_of_two(52 + spacing_exponent(value, f));
  const double rounded = (value + magic) - magic;
  return double_of(bits_of(rounded) | (bits_of(value) & 0x8000000000000000u)); /* -tiny is -0 */
}

/* Returns the magnitude bits of a value that the format represents exactly. */
static inline uint32_t magnitude_bits(double value, format f) {
  const uint64_t bits = bits_of(value) & 0x7FFFFFFFFFFFFFFFu;
  if (exponent_of(value) < f.min_exponent)
    return (uint32_t)(double_of(bits) * power_of_two(f.mantissa - f.min_exponent));
  return (uint32_t)((bits >> (52 - f.mantissa)) - ((uint64_t)(1022 + f.min_exponent) << f.mantissa));
}

static inline uint16_t ieee_from_f64(double value, format f) {
  const uint32_t sign = (uint32_t)(bits_of(value) >> 48) & 0x8000u;
  const uint32_t infinity = (uint32_t)(2 * f.max_exponent + 1) << f.mantissa;
  if (is_nan(value)) return (uint16_t)(sign | infinity | 1u << (f.mantissa - 1));
  const double rounded = round_to(value, f);
  if (exponent_of(rounded) > f.max_exponent) return (uint16_t)(sign | infinity);
  return (uint16_t)(sign | magnitude_bits(rounded, f));
}

static inline double saturate(double value, double largest) {
  return value > largest ? largest : value < -largest ? -largest : value;
}

static inline uint8_t fp8_from_f64(double value, format f, double largest) {
  if (is_nan(value)) return 0x7F;
  const uint32_t sign = (uint32_t)(bits_of(value) >> 56) & 0x80u;
  return (uint8_t)(sign | magnitude_bits(saturate(round_to(value, f), largest), f));
}

/* Converts f16 to f32. The field, moved to f32's place, is the value times 2^-112. The multiplication also makes
 * subnormals right. */
static inline float f16_to_f32(uint32_t bits) {
  const uint32_t special = (bits & 0x7C00u) == 0x7C00u ? 0x7F800000u : 0u;
  const float magnitude = float_of((bits & 0x7FFFu) << 13) * 0x1p112f;
  uint32_t out;
  memcpy(&out, &magnitude, sizeof out);
  return float_of(out | special | (bits & 0x8000u) << 16);
}

static inline float bf16_to_f32(uint32_t bits) {
  return float_of(bits << 16);
}

static inline float e4m3_to_f32(uint32_t bits) {
  const uint32_t special = (bits & 0x7Fu) == 0x7Fu ? 0x7FC00000u : 0u;
  const float magnitude = float_of((bits & 0x7Fu) << 20) * 0x1p120f;
  uint32_t out;
  memcpy(&out, &magnitude, sizeof out);
  return float_of(out | special | (bits & 0x80u) << 24);
}

static inline float e5m2_to_f32(uint32_t bits) {
  return f16_to_f32(bits << 8);
}

float assay_f16_to_f32(uint16_t bits) {
  return f16_to_f32(bits);
}
float assay_bf16_to_f32(uint16_t bits) {
  return bf16_to_f32(bits);
}
float assay_e4m3_to_f32(uint8_t bits) {
  return e4m3_to_f32(bits);
}
float assay_e5m2_to_f32(uint8_t bits) {
  return e5m2_to_f32(bits);
}
static inline uint16_t f16_from_f64(double value) {
  return ieee_from_f64(value, f16_format);
}
static inline uint16_t bf16_from_f64(double value) {
  return ieee_from_f64(value, bf16_format);
}
static inline uint8_t e4m3_from_f64(double value) {
  return fp8_from_f64(value, e4m3_format, e4m3_largest);
}
static inline uint8_t e5m2_from_f64(double value) {
  return fp8_from_f64(value, e5m2_format, e5m2_largest);
}

uint16_t assay_f16_from_f64(double value) {
  return f16_from_f64(value);
}
uint16_t assay_bf16_from_f64(double value) {
  return bf16_from_f64(value);
}
uint8_t assay_e4m3_from_f64(double value) {
  return e4m3_from_f64(value);
}
uint8_t assay_e5m2_from_f64(double value) {
  return e5m2_from_f64(value);
}

/* Truncates. Values outside the type's range and NaN give its smallest number. */
static inline int32_t i32_from_f64(double value) {
  return value >= -0x1p31 && value < 0x1p31 ? (int32_t)value : INT32_MIN;
}
static inline int64_t i64_from_f64(double value) {
  return value >= -0x1p63 && value < 0x1p63 ? (int64_t)value : INT64_MIN;
}

/* Defines one loop for each type, so that the type is decided once per row. */
#define LOAD_ROW(type, convert)                                                                                        \
  do {                                                                                                                 \
    const type *const from = (const type *)data + index;                                                               \
    if (stride == 1)                                                                                                   \
      for (int64_t i = 0; i < count; ++i)                                                                              \
        value[i] = (double)convert(from[i]);                                                                           \
    else                                                                                                               \
      for (int64_t i = 0; i < count; ++i)                                                                              \
        value[i] = (double)convert(from[i * stride]);                                                                  \
  } while (0)

#define STORE_ROW(type, convert)                                                                                       \
  do {                                                                                                                 \
    type *const to = (type *)data + index;                                                                             \
    for (int64_t i = 0; i < count; ++i)                                                                                \
      to[i * stride] = convert(value[i]);                                                                              \
  } while (0)

/* ---- many normal values at once ------------------------------------------------------------------------ */

/* Conversion from f64 to a 16-bit type in 32-bit lanes, for values that are 0 or among the type's normal numbers. The
 * upper word has the sign, the exponent and 20 mantissa bits. The lower word only decides whether a half is exact. */
enum { LANES = 64 };

/* Stores LANES values. Returns false if one of them is neither 0 nor normal; the caller then rounds all one by one. */
ASSAY_INLINE bool store_16(const double *value, format f, uint16_t *to) {
  uint32_t word[2 * LANES], outside = 0;
  const uint32_t drop = (uint32_t)(20 - f.mantissa), half = (1u << (drop - 1)) - 1;
  const uint32_t least = (uint32_t)(f.min_exponent + 1023) << 20, most = (uint32_t)(f.max_exponent + 1023) << 20;
  const uint32_t bias = (uint32_t)(f.min_exponent + 1022) << f.mantissa;
  memcpy(word, value, sizeof word);
  for (int i = 0; i < LANES; ++i) {
    const uint32_t low = word[2 * i], high = word[2 * i + 1], size = high & 0x7FFFFFFFu;
    const uint32_t zero = (size | low) == 0 ? 0xFFFFFFFFu : 0, sticky = size | (low != 0 ? 1u : 0u);
    const uint32_t code = ((sticky + half + (size >> drop & 1)) >> drop) - bias;
    outside |= ~zero & (size - least >= most - least ? 1u : 0u);
    to[i] = (uint16_t)((code & ~zero) | (high >> 16 & 0x8000u));
  }
  return outside == 0;
}

ASSAY_WIDE static void store_16_row(uint16_t *to, assay_dtype dtype, int64_t count, const double *value) {
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) {
    if (dtype == ASSAY_BF16 ? store_16(value + i, bf16_format, to + i) : store_16(value + i, f16_format, to + i))
      continue;
    for (int64_t j = i; j < i + LANES; ++j)
      to[j] = dtype == ASSAY_BF16 ? bf16_from_f64(value[j]) : f16_from_f64(value[j]);
  }
  for (; i < count; ++i)
    to[i] = dtype == ASSAY_BF16 ? bf16_from_f64(value[i]) : f16_from_f64(value[i]);
}

ASSAY_WIDE void assay_load_f64_row(const void *data, assay_dtype dtype, int64_t index, int64_t stride, int64_t count,
                                   double *value) {
  switch (dtype) {
  case ASSAY_F32:
    LOAD_ROW(float, );
    return;
  case ASSAY_F16:
    LOAD_ROW(uint16_t, f16_to_f32);
    return;
  case ASSAY_BF16:
    LOAD_ROW(uint16_t, bf16_to_f32);
    return;
  case ASSAY_E4M3:
    LOAD_ROW(uint8_t, e4m3_to_f32);
    return;
  case ASSAY_E5M2:
    LOAD_ROW(uint8_t, e5m2_to_f32);
    return;
  case ASSAY_I32:
    LOAD_ROW(int32_t, );
    return;
  case ASSAY_I64:
    LOAD_ROW(int64_t, );
    return;
  case ASSAY_NONE:
  case ASSAY_DTYPE_COUNT:
    break;
  }
  for (int64_t i = 0; i < count; ++i)
    value[i] = double_of(0x7FF8000000000000u); /* not a value type */
}

void assay_store_f64_row(void *data, assay_dtype dtype, int64_t index, int64_t stride, int64_t count,
                         const double *value) {
  if (stride == 1 && (dtype == ASSAY_BF16 || dtype == ASSAY_F16)) {
    store_16_row((uint16_t *)data + index, dtype, count, value);
    return;
  }
  switch (dtype) {
  case ASSAY_F32:
    STORE_ROW(float, (float));
    return;
  case ASSAY_F16:
    STORE_ROW(uint16_t, f16_from_f64);
    return;
  case ASSAY_BF16:
    STORE_ROW(uint16_t, bf16_from_f64);
    return;
  case ASSAY_E4M3:
    STORE_ROW(uint8_t, e4m3_from_f64);
    return;
  case ASSAY_E5M2:
    STORE_ROW(uint8_t, e5m2_from_f64);
    return;
  case ASSAY_I32:
    STORE_ROW(int32_t, i32_from_f64);
    return;
  case ASSAY_I64:
    STORE_ROW(int64_t, i64_from_f64);
    return;
  case ASSAY_NONE:
  case ASSAY_DTYPE_COUNT:
    break;
  }
}

double assay_load_f64(const void *data, assay_dtype dtype, int64_t index) {
  double value;
  assay_load_f64_row(data, dtype, index, 1, 1, &value);
  return value;
}

void assay_store_f64(void *data, assay_dtype dtype, int64_t index, double value) {
  assay_store_f64_row(data, dtype, index, 1, 1, &value);
}

double assay_round_f64(double value, assay_dtype dtype) {
  switch (dtype) {
  case ASSAY_F32:
    return (double)(float)value;
  case ASSAY_F16:
    return (double)f16_to_f32(assay_f16_from_f64(value));
  case ASSAY_BF16:
    return (double)bf16_to_f32(assay_bf16_from_f64(value));
  case ASSAY_E4M3:
    return (double)e4m3_to_f32(assay_e4m3_from_f64(value));
  case ASSAY_E5M2:
    return (double)e5m2_to_f32(assay_e5m2_from_f64(value));
  case ASSAY_I32:
  case ASSAY_I64:
  case ASSAY_NONE:
  case ASSAY_DTYPE_COUNT:
    break;
  }
  return value;
}

static inline double spacing(double value, format f) {
  const int e = exponent_of(value);
  const int held = e > f.max_exponent ? f.max_exponent : e < f.min_exponent ? f.min_exponent : e;
  return power_of_two(held - f.mantissa);
}

double assay_ulp(double value, assay_dtype dtype) {
  switch (dtype) {
  case ASSAY_F32:
    return spacing(value, f32_format);
  case ASSAY_F16:
    return spacing(value, f16_format);
  case ASSAY_BF16:
    return spacing(value, bf16_format);
  case ASSAY_E4M3:
    return spacing(value, e4m3_format);
  case ASSAY_E5M2:
    return spacing(value, e5m2_format);
  case ASSAY_I32:
  case ASSAY_I64:
    return 1;
  case ASSAY_NONE:
  case ASSAY_DTYPE_COUNT:
    break;
  }
  return 0;
}

int assay_is_nan(double value) {
  return is_nan(value);
}
int assay_is_finite(double value) {
  return (bits_of(value) & 0x7FF0000000000000u) != 0x7FF0000000000000u;
}

const char *assay_shortest(double value, char text[32]) {
  for (int digits = 1; digits <= 17; ++digits) {
    (void)snprintf(text, 32, "%.*g", digits, value);
    const double back = strtod(text, NULL);
    if (memcmp(&back, &value, sizeof back) == 0) break;
  }
  return text;
}
