/* add_uclip_norm: adds a sublayer's output to the residual stream; its uclip_norm is the input of the next sublayer.
 * For row n and channel c:
 *
 *   s_nc = round(x_nc + res_nc)                 the value of res, or res_out, afterwards
 *   y_nc = gamma_c clip(alpha_c s_nc, -1, 1) + beta_c
 *
 * The rounding of s belongs to the definition. Written in place or into res_out, the bits are the same. Source:
 * docs/definitions.md, section 3. The formula and its error model are in ref/lib/norm.c. */
#include "ref/lib/norm_rows.h"
#include "ref/lib/norm_tables.h"

const assay_op *assay_op_add_uclip_norm(void);

static const assay_dim dims[] = {NORM_UCLIP_DIMS};

static const assay_arg args[] = {NORM_ADDED, NORM_RES, NORM_UCLIP_WEIGHTS, NORM_Y, NORM_RES_OUT};

static const assay_op op = {
    .name = "add_uclip_norm",
    .title = "residual addition, then uclip_norm of the rounded sum",
    .source = "docs/definitions.md, section 3",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = (int32_t)(sizeof args / sizeof args[0]),
    .laws = "run_to_run,dead_bytes,permutation,in_place",
    .spoils = NORM_UCLIP_SPOILS NORM_ADD_SPOILS,
    .kappa_element = 3.2,
    .form = ASSAY_PLAIN,
    .row_dim = "N",
    .confirmed_by = "uclip_norm of the rounded sum, bit for bit, in place and out of place (ref_norm_test)",
    .largest = 0x1p126,
    .check = norm_rows_check,
    .reference = norm_uclip_reference,
    .cost = norm_uclip_cost,
    .fill = norm_fill,
    .spoil = norm_uclip_spoil,
};

const assay_op *assay_op_add_uclip_norm(void) {
  return &op;
}
