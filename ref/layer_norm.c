/* layer_norm: shifts every row to mean 0 and scales it to variance 1. For row n and channel c:
 *
 *   m_n = sum_c x_nc / C      v_n = sum_c (x_nc - m_n)^2 / C      y_nc = (x_nc - m_n) / sqrt(v_n + eps) g_c + b_c
 *
 * The variance is the biased one. b may be absent. Source: docs/definitions.md, section 3. The formula and its error
 * model are in ref/lib/norm.c. */
#include "ref/lib/norm_rows.h"
#include "ref/lib/norm_tables.h"

const assay_op *assay_op_layer_norm(void);

static const assay_dim dims[] = {NORM_DIMS};

static const assay_arg args[] = {NORM_X, NORM_LAYER_WEIGHTS, NORM_Y};

static const assay_param params[] = {NORM_LAYER_PARAMS};

static const assay_op op = {
    .name = "layer_norm",
    .title = "mean 0 and variance 1 in every row",
    .source = "docs/definitions.md, section 3",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = (int32_t)(sizeof args / sizeof args[0]),
    .params = params,
    .param_count = (int32_t)(sizeof params / sizeof params[0]),
    .laws = "run_to_run,dead_bytes,permutation",
    .spoils = NORM_LAYER_SPOILS,
    .kappa_element = 7,
    .form = ASSAY_PLAIN,
    .row_dim = "N",
    .inexact = true,
    .confirmed_by = "constant rows, shifted and scaled rows, the variance as a difference of moments and values by "
                    "hand (ref_norm_test)",
    .largest = 0x1p126,
    .check = norm_rows_check,
    .reference = norm_layer_reference,
    .cost = norm_layer_cost,
    .fill = norm_fill_with_mean,
    .accepts = norm_layer_accepts,
    .spoil = norm_layer_spoil,
};

const assay_op *assay_op_layer_norm(void) {
  return &op;
}
