/* products.h: the arithmetic of Hopper's tensor cores: f16 and bf16 with f32 sums. mma and wgmma share it. */
#ifndef ASSAY_SIMT_PRODUCTS_H
#define ASSAY_SIMT_PRODUCTS_H

#include <stdint.h>

namespace assay_simt_host {

constexpr int64_t product_depth = 16; /* products that an instruction adds to a sum */

/* Computes d[rows][n] += a[rows][16] · b[16][n]. The values are those of f16 if half, else of bf16, widened. n: up to
 * 256. */
void tensor_products(int64_t rows, int64_t n, const float *a, const float *b, bool half, float *d);

} /* namespace assay_simt_host */

#endif
