/* grouped.h: products in which each row has the weights of its group, for grouped_gemm and grouped_gemm_masked. The
 * two differ in how a call says which rows are live and of which group they are. */
#ifndef ASSAY_REF_GROUPED_H
#define ASSAY_REF_GROUPED_H

#include "assay/op.h"

/* The arguments of both operators, in this order. */
enum { GROUPED_A, GROUPED_B, GROUPED_BIAS, GROUPED_INDEX, GROUPED_C, GROUPED_ARGS };

/* One row of a call. */
typedef struct grouped_row {
  int64_t a;     /* row of a whose values it has */
  int64_t group; /* weights, -1: the row is dead */
  int64_t bias;  /* group whose bias is added */
} grouped_row;

/* Planted errors that both operators have. The operator's own ones change its rows instead. */
typedef enum grouped_spoil {
  GROUPED_RIGHT,
  GROUPED_LAST_K_DROPPED,
  GROUPED_NEIGHBOURS_WEIGHTS, /* channel n has the weights of channel n + 1 */
  GROUPED_BIAS_LOST
} grouped_spoil;

/* The products to compute: `count` rows, in the order of the result. */
typedef struct grouped_run {
  const assay_call *call;
  const assay_contract *contract;
  const grouped_row *row;
  const int64_t *number; /* row of c; NULL: i */
  int64_t count;
  bool exact, untouched; /* untouched: dead rows of c keep their bits; else they are 0 */
  grouped_spoil spoil;
} grouped_run;

assay_status grouped_compute(const grouped_run *run, const assay_expected *expected, assay_error *error);

/* Returns the first element of row `row` of a or c: [M, width], or [G, R, width] with rows numbered across groups. */
int64_t grouped_offset(const assay_tensor *t, int64_t row);

/* Counts a product and its bytes for `live` rows of `groups` groups. */
assay_cost grouped_cost(const assay_call *call, double live, double groups);

/* Fill values, and NaN where nothing may be read: rows of a without a group, weights and biases of groups without rows.
 * group: of each row, -1 for none. */
void grouped_fill(const assay_fill *fill, int32_t arg, const int32_t *group, int64_t rows, double *value,
                  int64_t count);

/* Draws the groups of M rows, and returns memory that the caller frees. Most calls have them sorted, as moe_align does,
 * with dead rows at the ends of groups. Large calls have no dead rows. */
assay_status grouped_draw_groups(const assay_fill *fill, int64_t M, int64_t G, int32_t **groups, assay_error *error);

/* Draws the live rows of group g: none in one of four, all R in one of four, else any number. In one call of four a
 * single group has rows. */
int64_t grouped_draw_live(const assay_fill *fill, int64_t G, int64_t R, int64_t g);

#endif
