/* gated.h: shared parts of the gated activations. x [N, 2 I] holds the gates of a row, followed by its ups; the result
 * is y_ni = f(x_ni, x_n,I+i). An operator brings f, its error and its planted errors; the rest is here. */
#ifndef ASSAY_REF_GATED_H
#define ASSAY_REF_GATED_H

#include "assay/op.h"

enum { GATED_X, GATED_Y, GATED_ARGS };

/* Planted errors of every gated activation, in this order. The operator's own ones follow. */
#define GATED_SPOILS "gate_up_swapped,neighbours_up,interleaved_halves,row_swapped,last_channel_dropped"
enum {
  SPOIL_NONE = -1,
  SPOIL_GATE_UP_SWAPPED,
  SPOIL_NEIGHBOURS_UP,
  SPOIL_INTERLEAVED_HALVES,
  SPOIL_ROW_SWAPPED,
  SPOIL_LAST_CHANNEL_DROPPED,
  SPOIL_OWN
};

typedef struct gated {
  double (*value)(double g, double u);
  double (*variance)(double g, double u, const assay_contract *contract, assay_dtype out);
  /* Computes with the operator's own planted error number `spoil` - SPOIL_OWN. */
  double (*spoil)(double g, double u, int32_t spoil);
} gated;

/* Computes the rows. exact: the product of g and u must be exact in f32. */
assay_status gated_compute(const assay_call *call, const gated *activation, const assay_contract *contract,
                           const assay_rows *rows, bool exact, int32_t spoil, assay_expected *expected,
                           assay_error *error);
/* Counts `flops` per element; x is read and y written once. */
assay_cost gated_cost(const assay_call *call, double flops);
assay_status gated_fill(const assay_fill *fill, int32_t arg, double *value, int64_t count, assay_error *error);

extern const assay_dim gated_dims[2];
extern const assay_arg gated_args[GATED_ARGS];

#endif
