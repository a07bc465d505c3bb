/* lattice.h: proof that a sum is exact in f32 whatever its order (verification.md, tier 1): if every term is a
 * multiple of 2^e and sum |term| <= 2^(24 + e), then so is every partial sum, and all of them fit 24 bits. */
#ifndef ASSAY_REF_LATTICE_H
#define ASSAY_REF_LATTICE_H

#include "assay/tensor.h"

enum { LATTICE_ZERO = 1 << 20 }; /* zero is a multiple of everything */

/* Exponent of the lowest set bit: the largest e with value a multiple of 2^e. NaN and Inf: -LATTICE_ZERO. */
int lattice_low(double value);
/* The smallest lattice_low of `count` values. */
int lattice_low_row(const double *value, int64_t count);
/* Bits from the highest to the lowest one that is set; 0 for zero. */
int lattice_bits(double value);
/* Is every partial sum of multiples of 2^low with sum |term| = `sum` exact in `bits` significant bits? */
int lattice_admits(double sum, int low, int bits);
/* Significant bits of a storage type; 24 for ASSAY_NONE (f32 accumulation). */
int lattice_width(assay_dtype dtype);

#endif
