/* dtype.h: storage types as bits. Rounding is to nearest even. f16 overflows to Inf; fp8 saturates and keeps NaN as
 * 0x7F (sign dropped). Subnormals are kept. */
#ifndef ASSAY_CORE_DTYPE_H
#define ASSAY_CORE_DTYPE_H

#include <stdint.h>
#include <string.h>

#include "assay/tensor.h"

float assay_f16_to_f32(uint16_t bits);
float assay_bf16_to_f32(uint16_t bits);
float assay_e4m3_to_f32(uint8_t bits);
float assay_e5m2_to_f32(uint8_t bits);
/* Convert from f64 with one rounding. */
uint16_t assay_f16_from_f64(double value);
uint16_t assay_bf16_from_f64(double value);
uint8_t assay_e4m3_from_f64(double value);
uint8_t assay_e5m2_from_f64(double value);

/* Returns element `index` of a packed array. Integers are exact up to 2^53. */
double assay_load_f64(const void *data, assay_dtype dtype, int64_t index);
void assay_store_f64(void *data, assay_dtype dtype, int64_t index, double value);
/* Loads `count` elements from `index` on, `stride` elements apart. The type is decided once. */
void assay_load_f64_row(const void *data, assay_dtype dtype, int64_t index, int64_t stride, int64_t count,
                        double *value);
void assay_store_f64_row(void *data, assay_dtype dtype, int64_t index, int64_t stride, int64_t count,
                         const double *value);
/* Returns the value rounded to the type, as f64; ASSAY_NONE returns it unchanged. */
double assay_round_f64(double value, assay_dtype dtype);
/* Returns the distance between neighbours at |value| in the type, subnormals included. Above the largest binade it is
 * that binade's distance. ASSAY_NONE gives 0. */
double assay_ulp(double value, assay_dtype dtype);
/* Writes the shortest decimal number that is read back as the value ("1e-12"), for messages; returns `text`. */
const char *assay_shortest(double value, char text[32]);
/* Test the value's bits. */
int assay_is_nan(double value);
int assay_is_finite(double value);

#endif
