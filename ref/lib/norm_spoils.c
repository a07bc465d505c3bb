/* norm_spoils.c: planted errors of the norms. */
#include <math.h>

#include "ref/lib/norm_rows.h"

static const char *const name_of[] = {
    [NORM_WEIGHT_LOST] = "weight_lost",
    [NORM_BIAS_LOST] = "bias_lost",
    [NORM_ALPHA_LOST] = "alpha_lost",
    [NORM_NEIGHBOUR_WEIGHT] = "neighbour_weight",
    [NORM_ALPHA_OF_FIRST] = "alpha_of_first",
    [NORM_EPS_LOST] = "eps_lost",
    [NORM_INNER_ROUNDING_LOST] = "inner_rounding_lost",
    [NORM_SUM_FOR_MEAN] = "sum_for_mean",
    [NORM_MEAN_LOST] = "mean_lost",
    [NORM_UNBIASED_VARIANCE] = "unbiased_variance",
    [NORM_FACTOR_OF_ROW_BEFORE] = "factor_of_row_before",
    [NORM_CLIP_LOST] = "clip_lost",
    [NORM_CLIP_ONE_SIDED] = "clip_one_sided",
    [NORM_ROW_SWAPPED] = "row_swapped",
    [NORM_LAST_CHANNEL_DROPPED] = "last_channel_dropped",
    [NORM_RESIDUAL_LOST] = "residual_lost",
    [NORM_SUM_NOT_ROUNDED] = "sum_not_rounded",
};

const char *norm_spoil_name(const assay_op *op, int32_t index, size_t *size) {
  const char *at = op->spoils;
  for (; index > 0 && *at != '\0'; --index) {
    at += strcspn(at, ",");
    at += *at == ',';
  }
  *size = strcspn(at, ",");
  return *size > 0 ? at : NULL;
}

norm_spoil norm_spoil_of(const assay_op *op, int32_t index) {
  size_t size = 0;
  const char *name = norm_spoil_name(op, index, &size);
  for (int i = 1; name != NULL && i < (int)(sizeof name_of / sizeof name_of[0]); ++i)
    if (strlen(name_of[i]) == size && memcmp(name_of[i], name, size) == 0) return (norm_spoil)i;
  return NORM_RIGHT;
}

void norm_spoil_weights(norm_spoil spoil, norm *f, double *shifted) {
  if (spoil == NORM_WEIGHT_LOST) f->weight = NULL;
  if (spoil == NORM_BIAS_LOST) f->bias = NULL;
  if (spoil == NORM_ALPHA_LOST) f->alpha = NULL;
  if (spoil == NORM_ALPHA_OF_FIRST) f->alpha_step = 0;
  if (spoil == NORM_INNER_ROUNDING_LOST) f->round_inner = false;
  if (spoil == NORM_NEIGHBOUR_WEIGHT && f->weight != NULL && f->weight_step != 0) {
    for (int64_t c = 0; c < f->C; ++c)
      shifted[c] = f->weight[c + 1 < f->C ? c + 1 : 0];
    f->weight = shifted;
  }
}

norm_moments norm_spoil_moments(norm_spoil spoil, const norm *f, const double *x, const double *row_before) {
  const norm_moments right = norm_measure(f, x);
  norm_moments m = right;
  if (f->kind == NORM_UCLIP) return m;
  const double C = (double)f->C, root = 1 / (m.factor * m.factor), square = root - f->eps; /* mean square */
  if (spoil == NORM_EPS_LOST && square > 0 && f->eps >= square / 8) m.factor = 1 / sqrt(square);
  if (spoil == NORM_SUM_FOR_MEAN) m.factor = 1 / sqrt(square * C + f->eps);
  if (spoil == NORM_UNBIASED_VARIANCE && f->C > 1 && f->C <= 32) m.factor = 1 / sqrt(square * C / (C - 1) + f->eps);
  if (spoil == NORM_FACTOR_OF_ROW_BEFORE && row_before != NULL) m.factor = norm_measure(f, row_before).factor;
  if (spoil == NORM_MEAN_LOST && f->kind == NORM_LAYER)
    m = (norm_moments){0, 1 / sqrt(square + m.mean * m.mean + f->eps)};
  return m;
}

void norm_spoil_result(norm_spoil spoil, const norm *f, const double *x, double *value) {
  if (spoil == NORM_LAST_CHANNEL_DROPPED) value[f->C - 1] = 0;
  if (f->kind != NORM_UCLIP || (spoil != NORM_CLIP_LOST && spoil != NORM_CLIP_ONE_SIDED)) return;
  for (int64_t c = 0; c < f->C; ++c) {
    const double a = (f->alpha != NULL ? f->alpha[c * f->alpha_step] : 1) * x[c];
    const double gamma = f->weight != NULL ? f->weight[c * f->weight_step] : 1;
    if (spoil == NORM_CLIP_ONE_SIDED ? a < -1 : fabs(a) > 1) value[c] = gamma * a + (f->bias != NULL ? f->bias[c] : 0);
  }
}

void norm_spoil_rounding(norm_spoil spoil, const norm *right, const assay_contract *contract, const double *x,
                         double *scratch, double *value) {
  if (spoil != NORM_INNER_ROUNDING_LOST && spoil != NORM_SUM_NOT_ROUNDED) return;
  norm_expect(right, contract, norm_measure(right, x), x, scratch, scratch + right->C);
  for (int64_t c = 0; c < right->C; ++c)
    if (scratch[right->C + c] > 0) value[c] = scratch[c];
}
