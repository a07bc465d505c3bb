/* swiglu: a gated activation. x [N, 2 I] holds the gates g of a row, followed by its ups u. For row n and channel i:
 *
 *   y_ni = g_ni · sigmoid(g_ni) · u_ni          sigmoid(g) = 1 / (1 + exp(-g))
 *
 * Source: docs/definitions.md, section 5. */
#include <math.h>

#include "ref/lib/error_model.h"
#include "ref/lib/gated.h"
#include "ref/lib/plain.h"

const assay_op *assay_op_swiglu(void);

/* ---- the definition ---------------------------------------------------------------------------------- */

static double sigmoid(double g) {
  return 1 / (1 + exp(-g));
}

static double swiglu(double g, double u) {
  return g * sigmoid(g) * u;
}

/* ---- the error model --------------------------------------------------------------------------------- */

/* Returns what rounding a first product below the normal numbers adds after the second product. */
static double below_normal(double first, double second) {
  return first != 0 && fabs(first) < 0x1p-126 ? second * second * storing_variance(0, ASSAY_F32) : 0;
}

/* Returns the variance. Relative to the result, exp counts by d ln s / d ln exp(-g) = s - 1. 1 + exp(-g), its inverse,
 * g s and the product with u are four roundings; the inverse has the contract's bound. A sigmoid below f32's smallest
 * normal may come out as 0, because exp(-g) is infinite from 88.73 on. */
static double variance(double g, double u, const assay_contract *contract, assay_dtype out) {
  const double s = sigmoid(g), y = g * s * u, function = function_variance(contract->exp_ulp);
  if (y == 0) return 0;
  double relative = (1 - s) * (1 - s) * function + function + 3 * f32_variance;
  if (s < 0x1p-126) relative += 1;
  return y * y * relative + below_normal(g * s, u) + below_normal(s * u, g) + below_normal(g * u, s) +
         storing_variance(y, out);
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

enum { SIGMOID_LOST, GATE_LOST };

static double spoil_value(double g, double u, int32_t spoil) {
  return spoil == SIGMOID_LOST ? g * u : sigmoid(g) * u;
}

static const gated activation = {swiglu, variance, spoil_value};

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)seen;
  return gated_compute(call, &activation, contract, rows, exact, SPOIL_NONE, expected, error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  assay_expected values = {expected->value, NULL};
  return gated_compute(call, &activation, contract, rows, false, index, &values, error);
}

/* Counts exp, addition, division and two products; exp counts as one. */
static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  return gated_cost(call, 5);
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_op op = {
    .name = "swiglu",
    .title = "gated activation, g sigmoid(g) u",
    .source = "docs/definitions.md, section 5",
    .dims = gated_dims,
    .dim_count = 2,
    .args = gated_args,
    .arg_count = GATED_ARGS,
    .laws = "run_to_run,dead_bytes,permutation",
    .spoils = GATED_SPOILS ",sigmoid_lost,gate_lost",
    .kappa_element = 7,
    .form = ASSAY_PLAIN,
    .row_dim = "N",
    .inexact = true,
    .confirmed_by = "swiglu(g, u) - swiglu(-g, u) = g u and swiglu(g, u) + swiglu(-g, u) = g tanh(g / 2) u; linearity "
                    "in u (ref_linear_test)",
    .largest = 0x1p126,
    .check = plain_check_call,
    .reference = reference,
    .cost = cost,
    .fill = gated_fill,
    .spoil = spoil,
};

const assay_op *assay_op_swiglu(void) {
  return &op;
}
