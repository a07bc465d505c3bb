/* block_gemm.h: one element of a product of e4m3 matrices with scales of 128 channels, for fp8_block_gemm and
 * fp8_grouped_gemm. With κ a piece of 128 of K, the last of which may be short:
 *
 *   y = sum_κ sfa_κ · sfb_κ · (sum_{i in κ} a_i · b_i) + bias
 *
 * Source: docs/definitions.md, section 13. */
#ifndef ASSAY_REF_BLOCK_GEMM_H
#define ASSAY_REF_BLOCK_GEMM_H

#include "assay/op.h"

enum { BLOCK_PIECE = 128 }; /* channels of K, and columns of b, that share a scale */

/* The inputs of one element. a, b: [K]; sfa, sfb: one for each piece. */
typedef struct block_element {
  const double *a, *b, *sfa, *sfb;
  int64_t K;
  double bias;
} block_element;

int64_t block_pieces(int64_t K);

double block_gemm(const block_element *e);

/* Returns the variance of an element that is stored as `out`. The sum over pieces starts from the bias if the contract
 * says so; the sum of a piece never does. */
double block_variance(const block_element *e, const assay_contract *contract, assay_dtype out);

/* Admits element (m, n): the sum of each piece in 14 bits if tensor cores add it, and all scaled sums with the bias. */
assay_status block_admit(const assay_call *call, int64_t m, int64_t n, const block_element *e,
                         const assay_contract *contract, assay_error *error);

/* Returns the sum whose running value loses what is below 14 bits, as if it stayed in the tensor core. The exact tier
 * shows it from three whole pieces on. */
double block_without_promotion(const block_element *e);

/* Returns the least power of two that is not below a scale, or the scale if it is not positive. */
double block_power_of_two(double scale);

/* ---- values for the generator ------------------------------------------------------------------------ */

/* Fill codes of a or of b, in rows of K: on the lattice 0, ±1, ±2, ±4, else 64 times what plain_fill gives. Rows are
 * counted through all groups. */
void block_fill_codes(const assay_fill *fill, int32_t arg, bool of_a, int64_t K, double *value, int64_t count);

/* Returns the scale in row `row`, piece `piece`, of sfa or sfb: a power of two in the exact tier. Rows are counted
 * through all groups. */
double block_fill_scale(const assay_fill *fill, bool of_a, int64_t row, int64_t piece, int64_t K);

#endif
