/* dtype.h: storage types as bits. Round to nearest even; f16 overflows to Inf; fp8 saturates and keeps NaN
 * as 0x7F (sign dropped). Subnormals are kept. */
#ifndef ASSAY_CORE_DTYPE_H
#define ASSAY_CORE_DTYPE_H

#include <stdint.h>
#include <string.h>

#include "assay/tensor.h"

float assay_f16_to_f32(uint16_t bits);
float assay_bf16_to_f32(uint16_t bits);
float assay_e4m3_to_f32(uint8_t bits);
float assay_e5m2_to_f32(uint8_t bits);
/* From f64, one rounding. */
uint16_t assay_f16_from_f64(double value);
uint16_t assay_bf16_from_f64(double value);
uint8_t assay_e4m3_from_f64(double value);
uint8_t assay_e5m2_from_f64(double value);

/* Element `index` of a packed array. Integers are exact up to 2^53. */
double assay_load_f64(const void *data, assay_dtype dtype, int64_t index);
void assay_store_f64(void *data, assay_dtype dtype, int64_t index, double value);
/* `count` elements from `index`, `stride` elements apart; the type is decided once. */
void assay_load_f64_row(const void *data, assay_dtype dtype, int64_t index, int64_t stride, int64_t count,
                        double *value);
void assay_store_f64_row(void *data, assay_dtype dtype, int64_t index, int64_t stride, int64_t count,
                         const double *value);
/* The value rounded to the type, as f64; ASSAY_NONE returns it unchanged. */
double assay_round_f64(double value, assay_dtype dtype);
/* Distance between neighbours at |value| in the type (subnormals included; that of the largest binade above
 * it); 0 for ASSAY_NONE. */
double assay_ulp(double value, assay_dtype dtype);
/* Decided from bits. */
int assay_is_nan(double value);
int assay_is_finite(double value);

#endif
