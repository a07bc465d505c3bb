/* add_rms_norm: adds a sublayer's output to the residual stream; its rms_norm is the input of the next sublayer. For
 * row n and channel c:
 *
 *   s_nc = round(x_nc + res_nc)                 the value of res, or res_out, afterwards
 *   r_n = sqrt(sum_c s_nc^2 / C + eps)           y_nc = round(s_nc / r_n) g_c
 *
 * The roundings of s and of s / r (round_inner) belong to the definition. Written in place or into res_out, the bits
 * are the same. Source: docs/definitions.md, section 3. The formula and its error model are in ref/lib/norm.c. */
#include "ref/lib/norm_rows.h"
#include "ref/lib/norm_tables.h"

const assay_op *assay_op_add_rms_norm(void);

static const assay_dim dims[] = {NORM_DIMS};

static const assay_arg args[] = {NORM_ADDED, NORM_RES, NORM_RMS_WEIGHTS, NORM_Y, NORM_RES_OUT};

static const assay_param params[] = {NORM_RMS_PARAMS};

static const assay_op op = {
    .name = "add_rms_norm",
    .title = "residual addition, then rms_norm of the rounded sum",
    .source = "docs/definitions.md, section 3",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = (int32_t)(sizeof args / sizeof args[0]),
    .params = params,
    .param_count = (int32_t)(sizeof params / sizeof params[0]),
    .laws = "run_to_run,dead_bytes,permutation,in_place",
    .spoils = NORM_RMS_SPOILS NORM_ADD_SPOILS,
    .kappa_element = 7,
    .form = ASSAY_PLAIN,
    .row_dim = "N",
    .inexact = true,
    .confirmed_by = "rms_norm of the rounded sum, bit for bit, in place and out of place (ref_norm_test)",
    .largest = 0x1p126,
    .check = norm_rows_check,
    .reference = norm_rms_reference,
    .cost = norm_rms_cost,
    .fill = norm_fill,
    .accepts = norm_rms_accepts,
    .spoil = norm_rms_spoil,
};

const assay_op *assay_op_add_rms_norm(void) {
  return &op;
}
