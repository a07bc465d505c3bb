/* rms_norm: divides every row by its root mean square. For row n and channel c:
 *
 *   r_n = sqrt(sum_c x_nc^2 / C + eps)     y_nc = round(x_nc / r_n) g_c
 *
 * round is to the type of x, as Llama and Qwen3 define it, or nothing (round_inner off). Source: docs/definitions.md,
 * section 3. The formula and its error model are in ref/lib/norm.c. */
#include "ref/lib/norm_rows.h"
#include "ref/lib/norm_tables.h"

const assay_op *assay_op_rms_norm(void);

static const assay_dim dims[] = {NORM_DIMS};

static const assay_arg args[] = {NORM_X, NORM_RMS_WEIGHTS, NORM_Y};

static const assay_param params[] = {NORM_RMS_PARAMS};

static const assay_op op = {
    .name = "rms_norm",
    .title = "division by the root mean square",
    .source = "docs/definitions.md, section 3",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = (int32_t)(sizeof args / sizeof args[0]),
    .params = params,
    .param_count = (int32_t)(sizeof params / sizeof params[0]),
    .laws = "run_to_run,dead_bytes,permutation",
    .spoils = NORM_RMS_SPOILS,
    .kappa_element = 7,
    .form = ASSAY_PLAIN,
    .row_dim = "N",
    .inexact = true,
    .confirmed_by = "constant rows, scaled rows, sums in another order and values by hand (ref_norm_test)",
    .largest = 0x1p126,
    .check = norm_rows_check,
    .reference = norm_rms_reference,
    .cost = norm_rms_cost,
    .fill = norm_fill,
    .accepts = norm_rms_accepts,
    .spoil = norm_rms_spoil,
};

const assay_op *assay_op_rms_norm(void) {
  return &op;
}
