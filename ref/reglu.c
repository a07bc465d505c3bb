/* reglu: a gated activation. x [N, 2 I] holds the gates g of a row, followed by its ups u. For row n and channel i:
 *
 *   y_ni = max(g_ni, 0) · u_ni
 *
 * Source: docs/definitions.md, section 5. */
#include "ref/lib/error_model.h"
#include "ref/lib/gated.h"
#include "ref/lib/plain.h"

const assay_op *assay_op_reglu(void);

/* ---- the definition ---------------------------------------------------------------------------------- */

static double reglu(double g, double u) {
  return g > 0 ? g * u : 0;
}

/* ---- the error model --------------------------------------------------------------------------------- */

/* Returns the variance of the product in f32 (exact for factors of 16 bits, except underflow) and of the type. */
static double variance(double g, double u, const assay_contract *contract, assay_dtype out) {
  (void)contract;
  const double y = reglu(g, u), product = rounding_variance(y, ASSAY_F32);
  if (out == ASSAY_F32) return product;
  return product > 0 ? product + storing_variance(y, out) : rounding_variance(y, out);
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

static double spoil_value(double g, double u, int32_t spoil) {
  (void)spoil; /* relu_lost is the only one */
  return g * u;
}

static const gated activation = {reglu, variance, spoil_value};

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

static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  return gated_cost(call, 2);
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_op op = {
    .name = "reglu",
    .title = "gated activation, rectified",
    .source = "docs/definitions.md, section 5",
    .dims = gated_dims,
    .dim_count = 2,
    .args = gated_args,
    .arg_count = GATED_ARGS,
    .laws = "run_to_run,dead_bytes,permutation",
    .spoils = GATED_SPOILS ",relu_lost",
    .kappa_element = 2.5,
    .form = ASSAY_PLAIN,
    .row_dim = "N",
    .confirmed_by = "reglu(g, u) - reglu(-g, u) = g u and reglu(g, u) + reglu(-g, u) = |g| u; linearity in u "
                    "(ref_linear_test)",
    .largest = 0x1p126,
    .check = plain_check_call,
    .reference = reference,
    .cost = cost,
    .fill = gated_fill,
    .spoil = spoil,
};

const assay_op *assay_op_reglu(void) {
  return &op;
}
