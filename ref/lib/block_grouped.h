/* block_grouped.h: products of e4m3 matrices with scales, in which each row has the weights of its group, for
 * fp8_grouped_gemm and fp8_grouped_gemm_masked. The two differ in how a call says which rows are live and of which
 * group they are. ref/lib/block_gemm.h has one element. */
#ifndef ASSAY_REF_BLOCK_GROUPED_H
#define ASSAY_REF_BLOCK_GROUPED_H

#include "assay/op.h"

/* The arguments of both operators, in this order. */
enum {
  BLOCK_GROUPED_C,
  BLOCK_GROUPED_A,
  BLOCK_GROUPED_SFA,
  BLOCK_GROUPED_SFA_T,
  BLOCK_GROUPED_B,
  BLOCK_GROUPED_SFB,
  BLOCK_GROUPED_BIAS,
  BLOCK_GROUPED_INDEX,
  BLOCK_GROUPED_ARGS
};

/* One row of a call. */
typedef struct block_grouped_row {
  int64_t a, sfa; /* rows of a and of its scales */
  int64_t group;  /* weights, -1: the row is dead */
  int64_t sfb;    /* group whose scales the weights have */
  int64_t bias;   /* group whose bias is added */
} block_grouped_row;

/* Planted errors that both operators have. The operator's own ones change its rows instead. */
typedef enum block_grouped_spoil {
  BLOCK_GROUPED_RIGHT,
  BLOCK_GROUPED_LAST_PIECE_DROPPED,
  BLOCK_GROUPED_SCALE_OF_PIECE_BEFORE, /* sfa of the piece before */
  BLOCK_GROUPED_SCALE_TRANSPOSED,      /* the scales of a group's weights are read as their transpose */
  BLOCK_GROUPED_N_BLOCK_OF_64,         /* sfb has a row for 64 columns */
  BLOCK_GROUPED_NO_PROMOTION           /* the scaled running sum is cut to 14 bits after each piece */
} block_grouped_spoil;

/* The products to compute: `count` rows, in the order of the result. */
typedef struct block_grouped_run {
  const assay_call *call;
  const assay_contract *contract;
  const block_grouped_row *row;
  const int64_t *number; /* row of c; NULL: i */
  int64_t count;
  bool exact, untouched; /* untouched: dead rows of c keep their bits; else they are 0 */
  block_grouped_spoil spoil;
} block_grouped_run;

assay_status block_grouped_compute(const block_grouped_run *run, const assay_expected *expected, assay_error *error);

/* Checks the call against its table, and that exactly one of sfa and sfa_t is present. */
assay_status block_grouped_check(const assay_call *call, assay_error *error);

/* Counts a product and its bytes for `live` rows of `groups` groups. */
assay_cost block_grouped_cost(const assay_call *call, double live, double groups);

/* Describes row `row` of group `group` as a product; -1 is none. */
void block_grouped_product(const assay_call *call, int64_t row, int64_t group, assay_product *p);

/* Fills values, and NaN where nothing may be read: rows of a without a group, and weights and biases of groups without
 * rows. Their scales are NaN too. group: of each of `rows` rows, -1 for none. */
assay_status block_grouped_fill(const assay_fill *fill, int32_t arg, const int32_t *group, int64_t rows, double *value,
                                int64_t count, assay_error *error);

#endif
