/* norm_rows.h: one adapter for all operators y = norm(x) and y = norm(res <- round(x + res)) over rows [N, C]. The
 * names of the callbacks tell the norm. Arguments are found by their names: x, res, res_out, y; g, b (rms, layer);
 * alpha, gamma, beta (uclip). */
#ifndef ASSAY_REF_NORM_ROWS_H
#define ASSAY_REF_NORM_ROWS_H

#include "assay/op.h"
#include "ref/lib/norm.h"

/* Planted errors, by their names in an operator's list:
 *
 *   weight_lost, bias_lost, alpha_lost   g or gamma is 1, b or beta 0, alpha 1
 *   neighbour_weight   every channel takes the weight of the next one
 *   alpha_of_first     every channel takes alpha of channel 0
 *   eps_lost           eps is 0, in rows where it is an eighth of the mean square or more
 *   inner_rounding_lost   rms: n is not rounded to the type
 *   sum_for_mean       the sum of squares is not divided by C
 *   mean_lost          layer: the mean counts as 0
 *   unbiased_variance  layer: divided by C - 1, where C is at most 32
 *   factor_of_row_before   1 / sqrt(...) of row n - 1
 *   clip_lost, clip_one_sided   uclip: no clip; none from below
 *   row_swapped        the rows 2 i and 2 i + 1 are exchanged
 *   last_channel_dropped   y of the last channel is 0
 *   residual_lost      add: x alone is normalised, and stored as the sum
 *   sum_not_rounded    add: the normalised sum has not been rounded (16-bit types) */
typedef enum norm_spoil {
  NORM_RIGHT,
  NORM_WEIGHT_LOST,
  NORM_BIAS_LOST,
  NORM_ALPHA_LOST,
  NORM_NEIGHBOUR_WEIGHT,
  NORM_ALPHA_OF_FIRST,
  NORM_EPS_LOST,
  NORM_INNER_ROUNDING_LOST,
  NORM_SUM_FOR_MEAN,
  NORM_MEAN_LOST,
  NORM_UNBIASED_VARIANCE,
  NORM_FACTOR_OF_ROW_BEFORE,
  NORM_CLIP_LOST,
  NORM_CLIP_ONE_SIDED,
  NORM_ROW_SWAPPED,
  NORM_LAST_CHANNEL_DROPPED,
  NORM_RESIDUAL_LOST,
  NORM_SUM_NOT_ROUNDED
} norm_spoil;

/* Returns number `index` of the operator's list; NORM_RIGHT for names that are not above. */
norm_spoil norm_spoil_of(const assay_op *op, int32_t index);
/* Returns the name at that place; NULL past the last one. *size gets its length. */
const char *norm_spoil_name(const assay_op *op, int32_t index, size_t *size);

/* Change a norm, the moments of a row whose x is given, or the row's result as the planted error does. `shifted` [C] is
 * scratch for weights. */
void norm_spoil_weights(norm_spoil spoil, norm *f, double *shifted);
norm_moments norm_spoil_moments(norm_spoil spoil, const norm *f, const double *x, const double *row_before);
void norm_spoil_result(norm_spoil spoil, const norm *f, const double *x, double *value);

/* Leaves out roundings (inner_rounding_lost, sum_not_rounded). Where the right result may fall on either side of a
 * boundary anyway, no difference can be told, and the value is the right one. right: the norm without the planted
 * error, and its x; scratch [2, C]. */
void norm_spoil_rounding(norm_spoil spoil, const norm *right, const assay_contract *contract, const double *x,
                         double *scratch, double *value);

/* Loads a weight by name, as f64; NULL if it is absent. `memory` has room for C numbers. */
const double *norm_load_weight(const assay_call *call, const char *name, double *memory, int64_t *step);

/* ---- the operator's callbacks ------------------------------------------------------------------------ */

assay_status norm_rows_check(const assay_call *call, assay_error *error);

/* Declares norm_<name>_reference, _spoil and _cost: the callbacks for one kind of norm. */
#define NORM_ROWS_CALLBACKS(name)                                                                                      \
  assay_status norm_##name##_reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows, \
                                       bool exact, assay_expected *expected, assay_seen *seen, assay_error *error);    \
  assay_status norm_##name##_spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows,     \
                                   int32_t index, assay_expected *expected, assay_error *error);                       \
  bool norm_##name##_accepts(const assay_call *call, const assay_contract *contract, int32_t output, int64_t element,  \
                             double got);                                                                              \
  assay_cost norm_##name##_cost(const assay_call *call, const assay_seen *seen)

NORM_ROWS_CALLBACKS(rms);
NORM_ROWS_CALLBACKS(layer);
NORM_ROWS_CALLBACKS(uclip);

/* Refuses vectors whose dimension `name` is neither 1 nor `channels`. */
assay_status norm_check_vector(const assay_call *call, const char *name, int64_t channels, assay_error *error);

/* Fill values by the argument's name. Weights keep away from 1, so that losing them shows. Rows have scales of 1/2, 1
 * and 4 in turn; norm_fill_with_mean, for layer_norm, gives them a mean that is not small. Lattice: multiples of 1/8.
 */
assay_status norm_fill(const assay_fill *fill, int32_t arg, double *value, int64_t count, assay_error *error);
assay_status norm_fill_with_mean(const assay_fill *fill, int32_t arg, double *value, int64_t count, assay_error *error);

#endif
