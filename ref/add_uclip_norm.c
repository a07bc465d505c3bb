/* add_uclip_norm: the residual stream takes a sublayer's output, and its uclip_norm is the next one's input. For row n
 * and channel c:
 *
 *   s_nc = round(x_nc + res_nc)                 what res, or res_out, holds afterwards
 *   y_nc = gamma_c clip(alpha_c s_nc, -1, 1) + beta_c
 *
 * The rounding of s is part of it. In place, or into res_out: the same bits. Source: the operator definitions of this
 * project, section 3. The formula and its error model are in ref/lib/norm.c. */
#include "ref/lib/norm_rows.h"

const assay_op *assay_op_add_uclip_norm(void);

static const assay_dim dims[] = {
    {"N", 1, 1 << 20, 4, 1, "rows"},
    {"C", 1, 16384, 64, 1, "channels"},
    {"alpha_n", 1, 16384, 1, 1, "elements of alpha: 1 or C"},
    {"gamma_n", 1, 16384, 1, 1, "elements of gamma: 1 or C"},
};

static const assay_arg args[] = {
    {"x", ASSAY_IN, ASSAY_VALUES, false, "f32,f16,bf16", "N,C", "what is added; the row stride is free", true},
    {"res", ASSAY_INOUT, ASSAY_VALUES, false, "=x", "N,C", "residual; becomes the rounded sum, unless res_out is there",
     true},
    {"alpha", ASSAY_IN, ASSAY_VALUES, false, "=x", "alpha_n", "slope before the clip, one or one a channel", false},
    {"gamma", ASSAY_IN, ASSAY_VALUES, false, "=x", "gamma_n", "factor behind the clip, one or one a channel", false},
    {"beta", ASSAY_IN, ASSAY_VALUES, true, "=x", "C", "offset", false},
    {"y", ASSAY_OUT, ASSAY_RESULT, false, "=x", "N,C", "the norm", true},
    {"res_out", ASSAY_OUT, ASSAY_RESULT, true, "=x", "N,C", "the rounded sum; res keeps its bits", true},
};

static const assay_op op = {
    .name = "add_uclip_norm",
    .title = "residual addition, then uclip_norm of the rounded sum",
    .source = "operator definitions, section 3",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = (int32_t)(sizeof args / sizeof args[0]),
    .laws = "run_to_run,dead_bytes,permutation,in_place",
    .spoils = "weight_lost,bias_lost,alpha_lost,neighbour_weight,alpha_of_first,clip_lost,clip_one_sided,row_swapped,"
              "last_channel_dropped,residual_lost,sum_not_rounded",
    .kappa_element = 3.2,
    .form = ASSAY_PLAIN,
    .row_dim = "N",
    .confirmed_by = "uclip_norm of the rounded sum, bit for bit, in place and out of place (ref_norm_test)",
    .check = norm_rows_check,
    .reference = norm_rows_reference,
    .cost = norm_rows_cost,
    .fill = norm_fill,
    .spoil = norm_rows_spoil,
};

const assay_op *assay_op_add_uclip_norm(void) {
  return &op;
}
