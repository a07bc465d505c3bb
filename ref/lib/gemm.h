/* gemm.h: dot products of rows, for the operators that are products with a weight matrix: what one sum is, how far an
 * f32 accumulation of it may be off, and the proof that it is exact. */
#ifndef ASSAY_REF_GEMM_H
#define ASSAY_REF_GEMM_H

#include "assay/op.h"

/* sum_k a_k b_k */
double gemm_dot(const double *a, const double *b, int64_t K);

/* The sum, and what its error hangs on: with terms x_k = a_k b_k and S_k = x_0 + .. + x_k. */
typedef struct gemm_sum {
  double sum, abs;        /* S, sum |x| */
  double walk;            /* sum_k 2^(2 e_k), e_k the exponent of S_k */
  double square, largest; /* sum x^2, max x^2 */
  double rounded;         /* sum x^2 over the products that f32 does not hold */
} gemm_sum;

gemm_sum gemm_walk(const double *a, const double *b, int64_t K);

/* Variance of an f32 accumulation of the K terms on contract->lanes running sums, in the order as they stand or any
 * other; a contract's `partial` rounds the sums of splits, its `cut` all of them where a and b, of which s is the sum,
 * are stored in 16 bits. */
double gemm_variance(const gemm_sum *s, const assay_contract *contract, const double *a, const double *b, int64_t K,
                     assay_dtype dtype);

/* Is every partial sum exact? low_a, low_b: lattice_low_row of the two rows. */
bool gemm_admits(const gemm_sum *s, const assay_contract *contract, int low_a, int low_b);

#endif
