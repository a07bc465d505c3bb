/* lattice.h: proof that a sum is exact in f32 whatever its order (docs/verification.md, tier 1). If every term is a
 * multiple of 2^e and sum |term| <= 2^(24 + e), then so is every partial sum, and all of them fit 24 bits. */
#ifndef ASSAY_REF_LATTICE_H
#define ASSAY_REF_LATTICE_H

#include "assay/tensor.h"

enum { LATTICE_ZERO = 1 << 20 }; /* zero is a multiple of everything */

/* Returns the exponent of the lowest set bit: the largest e with value a multiple of 2^e. NaN and Inf give
 * -LATTICE_ZERO. */
int lattice_low(double value);
/* Returns the smallest lattice_low of `count` values. */
int lattice_low_row(const double *value, int64_t count);
/* Returns the number of bits from the highest to the lowest set one; 0 for zero. */
int lattice_bits(double value);
/* Tells whether every partial sum of multiples of 2^low with sum |term| = `sum` is exact in `bits` significant bits. */
int lattice_admits(double sum, int low, int bits);
/* Returns the significant bits of a storage type; 24 for ASSAY_NONE (f32 accumulation). */
int lattice_width(assay_dtype dtype);

#endif
