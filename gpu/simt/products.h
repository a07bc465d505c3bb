/* products.h: the arithmetic of Hopper's tensor cores with f32 sums. mma and wgmma of f16 and bf16 share it; those of
 * e4m3 and e5m2 do not. */
#ifndef ASSAY_SIMT_PRODUCTS_H
#define ASSAY_SIMT_PRODUCTS_H

#include <stdint.h>

namespace assay_simt_host {

constexpr int64_t product_depth = 16;       /* products that an instruction adds to a sum */
constexpr int64_t product_depth_eight = 32; /* the same for factors of 8 bits */

/* Computes d[rows][n] += a[rows][16] · b[16][n]. The values are those of f16 if half, else of bf16, widened. n: up to
 * 256. */
void tensor_products(int64_t rows, int64_t n, const float *a, const float *b, bool half, float *d);

/* Computes d[rows][n] += a[rows][32] · b[32][n] as wgmma of 8-bit factors does. least_a and least_b: the exponents of
 * the types' least normal numbers. */
void tensor_products_eight(int64_t rows, int64_t n, const float *a, const float *b, int32_t least_a, int32_t least_b,
                           float *d);

/* Computes d[16][8] += a[16][32] · b[32][8] as mma.sync of 8-bit factors does, which is two steps of f16. */
void tensor_products_eight_by_f16(const float *a, const float *b, float *d);

} /* namespace assay_simt_host */

#endif
