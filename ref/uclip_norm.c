/* uclip_norm: a norm without a reduction, after dynamic hard-tanh. For row n and channel c:
 *
 *   y_nc = gamma_c clip(alpha_c x_nc, -1, 1) + beta_c
 *
 * alpha and gamma are one number for all channels, or one per channel. beta may be absent. Source: docs/definitions.md,
 * section 3. The formula and its error model are in ref/lib/norm.c. */
#include "ref/lib/norm_rows.h"
#include "ref/lib/norm_tables.h"

const assay_op *assay_op_uclip_norm(void);

static const assay_dim dims[] = {NORM_UCLIP_DIMS};

static const assay_arg args[] = {NORM_X, NORM_UCLIP_WEIGHTS, NORM_Y};

static const assay_op op = {
    .name = "uclip_norm",
    .title = "a clipped line in place of a norm",
    .source = "docs/definitions.md, section 3",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = (int32_t)(sizeof args / sizeof args[0]),
    .laws = "run_to_run,dead_bytes,permutation",
    .spoils = NORM_UCLIP_SPOILS,
    .kappa_element = 3.2,
    .form = ASSAY_PLAIN,
    .row_dim = "N",
    .confirmed_by =
        "a piecewise form with the edges divided by alpha, saturated rows and values by hand (ref_norm_test)",
    .largest = 0x1p126,
    .check = norm_rows_check,
    .reference = norm_uclip_reference,
    .cost = norm_uclip_cost,
    .fill = norm_fill,
    .spoil = norm_uclip_spoil,
};

const assay_op *assay_op_uclip_norm(void) {
  return &op;
}
