/* sums.h: one step of Hopper's tensor cores in integers, and chains of steps (docs/last-bit.md). Sums are f32 bits. */
#ifndef ASSAY_REF_SUMS_H
#define ASSAY_REF_SUMS_H

#include <stdbool.h>

#include "assay/sums.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SUM_NAN = 0x7FFFFFFF }; /* the NaN of tensor cores and of f32 arithmetic on the device */

/* Factors, taken apart. The value of one is significand · 2^(exponent - fraction). */
typedef struct sum_factors {
  int16_t *significand; /* signed; 0 for 0, ±Inf and NaN */
  int16_t *exponent;    /* a subnormal factor has the least normal exponent; far below all others for 0, ±Inf, NaN */
  uint8_t *kind;        /* FACTOR_FINITE and so on */
  int fraction;         /* bits after the leading one */
  bool special;         /* one of them may be ±Inf or NaN */
} sum_factors;

enum { FACTOR_FINITE, FACTOR_INFINITE, FACTOR_MINUS_INFINITE, FACTOR_NAN };

/* Takes `count` factors apart, `stride` elements apart. as_f16: fp8 factors as they are after a conversion to f16. f32
 * factors are taken as tf32. The arrays are the caller's. */
void sum_factors_take(sum_factors *factors, const void *data, assay_dtype dtype, bool as_f16, int64_t stride,
                      int64_t count);
/* Returns the factors from number `first` on. */
sum_factors sum_factors_from(const sum_factors *factors, int64_t first);

/* Tells whether the unit's sums are f16. Their values are held as f32. */
static inline bool sum_is_f16(assay_sum_unit unit) {
  return unit == ASSAY_SUM_WGMMA_16_F16 || unit == ASSAY_SUM_MMA_16_F16;
}

/* Tells whether the unit's factors are tf32. They are held as f32. */
static inline bool sum_is_tf32(assay_sum_unit unit) {
  return unit == ASSAY_SUM_WGMMA_TF32 || unit == ASSAY_SUM_MMA_TF32;
}

/* Returns the sum after `count` products were added to c by tensor cores (not FMA), in steps; the last may be short. */
uint32_t sum_chain(assay_sum_unit unit, const sum_factors *a, const sum_factors *b, int64_t count, uint32_t c);

/* Do f32 arithmetic on bits; every NaN becomes SUM_NAN. */
uint32_t sum_add(uint32_t x, uint32_t y);
uint32_t sum_multiply(uint32_t x, uint32_t y);
uint32_t sum_fma(uint32_t x, uint32_t y, uint32_t z);

#ifdef __cplusplus
}
#endif
#endif
