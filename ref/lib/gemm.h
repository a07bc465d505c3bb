/* gemm.h: dot products of rows, for the operators that are products with a weight matrix. It has one sum, the error of
 * its f32 accumulation, and the proof that it is exact. */
#ifndef ASSAY_REF_GEMM_H
#define ASSAY_REF_GEMM_H

#include "assay/op.h"

/* Returns sum_k a_k b_k. */
double gemm_dot(const double *a, const double *b, int64_t K);

/* The sum, and the numbers on which its error depends, with terms x_k = a_k b_k and S_k = x_0 + .. + x_k. */
typedef struct gemm_sum {
  double sum, abs;        /* S, sum |x| */
  double walk;            /* sum_k 2^(2 e_k), e_k the exponent of S_k */
  double drift;           /* sum_k +-2^e_k, with the sign of S_k */
  double square, largest; /* sum x^2, max x^2 */
  double rounded;         /* sum x^2 over the products that f32 does not hold exactly */
  double start;           /* where a running sum starts: S_k of walk and drift have it, the other numbers do not */
} gemm_sum;

gemm_sum gemm_walk(const double *a, const double *b, int64_t K);
/* Walks with S_k = start + x_0 + .. + x_k. */
gemm_sum gemm_walk_from(double start, const double *a, const double *b, int64_t K);

/* Returns where the running sums of a product with factor alpha start: at `added` = beta c + bias if the contract says
 * so, else at 0. With another alpha than 1 they would start from added / alpha, which no contract means. */
double gemm_start(const assay_contract *contract, double alpha, double added);

/* Returns the variance of an f32 accumulation of the K terms on contract->lanes running sums, in their order or any
 * other. One of the sums starts from s->start, which no addition follows then. A contract's `partial` rounds the sums
 * of splits. Its `cut` rounds all of them where a and b, of which s is the sum, are stored in 16 bits. */
double gemm_variance(const gemm_sum *s, const assay_contract *contract, const double *a, const double *b, int64_t K,
                     assay_dtype dtype);

/* Tells whether every partial sum is exact. low_a, low_b: lattice_low_row of the two rows. */
bool gemm_admits(const gemm_sum *s, const assay_contract *contract, int low_a, int low_b);

#endif
