/* bias_residual: the end of a sublayer. For row n and channel c:
 *
 *   res_nc <- round(res_nc + y_nc + b_c)
 *
 * There is one rounding, to the type in which res is stored. b may be absent. It writes in place, or into res_out.
 * Source: docs/definitions.md, section 5. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/lattice.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"

enum { ARG_RES, ARG_Y, ARG_B, ARG_RES_OUT, ARG_COUNT };
enum {
  SPOIL_NONE = -1,
  SPOIL_BIAS_LOST,
  SPOIL_RESIDUAL_LOST,
  SPOIL_BRANCH_LOST,
  SPOIL_NEIGHBOURS_BIAS,
  SPOIL_ROW_SWAPPED,
  SPOIL_ROUNDED_BETWEEN,
  SPOIL_LAST_CHANNEL_DROPPED
};

const assay_op *assay_op_bias_residual(void);

/* ---- the definition ---------------------------------------------------------------------------------- */

/* Writes out [C] from res and y [C]; b [C] holds zeros if there is no bias. */
static void bias_residual(const double *res, const double *y, const double *b, int64_t C, double *out) {
  for (int64_t c = 0; c < C; ++c)
    out[c] = res[c] + y[c] + b[c];
}

/* ---- the error model --------------------------------------------------------------------------------- */

static void bounds(const double *res, const double *y, const double *b, int64_t C, assay_dtype dtype, double *sigma) {
  for (int64_t c = 0; c < C; ++c) {
    const double term[3] = {res[c], y[c], b[c]};
    sigma[c] = sqrt(few_terms_variance(term, b[c] != 0 ? 3 : 2, dtype));
  }
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

static void spoil_row(int32_t spoil, const double *res, const double *y, const double *b, int64_t C, assay_dtype dtype,
                      double *out) {
  for (int64_t c = 0; c < C; ++c) {
    if (spoil == SPOIL_BIAS_LOST) out[c] = res[c] + y[c];
    if (spoil == SPOIL_RESIDUAL_LOST) out[c] = y[c] + b[c];
    if (spoil == SPOIL_BRANCH_LOST) out[c] = res[c] + b[c];
    if (spoil == SPOIL_NEIGHBOURS_BIAS) out[c] = res[c] + y[c] + b[c + 1 < C ? c + 1 : c];
    /* Without a bias there is no value in between. In f32 every implementation rounds there. */
    if (spoil == SPOIL_ROUNDED_BETWEEN && b[c] != 0 && dtype != ASSAY_F32)
      out[c] = assay_round_f64(res[c] + y[c], dtype) + b[c];
  }
  if (spoil == SPOIL_LAST_CHANNEL_DROPPED) out[C - 1] = res[C - 1];
}

static assay_status compute(const assay_call *call, const assay_rows *rows, bool exact, int32_t spoil,
                            assay_expected *expected, assay_error *error) {
  const assay_tensor *res = &call->arg[ARG_RES], *y = &call->arg[ARG_Y], *b = &call->arg[ARG_B];
  const int64_t N = res->shape[0], C = res->shape[1], count = rowwise_count(rows, N);
  const bool apart = call->arg[ARG_RES_OUT].data != NULL;
  assay_expected *to = &expected[apart ? rowwise_output(call, ARG_RES_OUT) : 0];
  double *memory;
  assay_status status = rowwise_reserve(call, 3 * C, &memory, error);
  if (status != ASSAY_OK) return status;
  double *res_row = memory, *y_row = memory + C, *bias = memory + 2 * C;
  for (int64_t c = 0; c < C; ++c)
    bias[c] = 0;
  if (b->data != NULL) assay_load_f64_row(b->data, b->dtype, 0, 1, C, bias);

  for (int64_t i = 0; i < count && status == ASSAY_OK; ++i) {
    const int64_t n = rowwise_index(rows, i), other = (n ^ 1) < N ? n ^ 1 : n;
    double *value = to->value + i * C;
    plain_load_row(res, n, res_row);
    plain_load_row(y, spoil == SPOIL_ROW_SWAPPED ? other : n, y_row);
    bias_residual(res_row, y_row, bias, C, value);
    if (spoil != SPOIL_NONE) spoil_row(spoil, res_row, y_row, bias, C, res->dtype, value);
    if (to->sigma != NULL) bounds(res_row, y_row, bias, C, res->dtype, to->sigma + i * C);
    for (int64_t c = 0; exact && c < C && status == ASSAY_OK; ++c) {
      const double term[3] = {res_row[c], y_row[c], bias[c]};
      if (!few_terms_exact(term, 3))
        status = rowwise_refuse(call, n, c, "res + y + b, which f32 must hold", fabs(value[c]), 0x1p24, error);
    }
  }
  if (apart) rowwise_unchanged(res, rows, &expected[0]);
  free(memory);
  return status;
}

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)contract;
  (void)seen;
  return compute(call, rows, exact, SPOIL_NONE, expected, error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  (void)contract;
  const bool apart = call->arg[ARG_RES_OUT].data != NULL;
  assay_expected values[2] = {{expected[0].value, NULL}, {apart ? expected[1].value : NULL, NULL}};
  return compute(call, rows, false, index, values, error);
}

static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *res = &call->arg[ARG_RES];
  const double N = (double)res->shape[0], C = (double)res->shape[1], size = (double)assay_dtype_size(res->dtype);
  const bool bias = call->arg[ARG_B].data != NULL;
  return (assay_cost){(bias ? 2 : 1) * N * C, (3 * N * C + (bias ? C : 0)) * size};
}

/* Fills an argument. Lattice: the stream has full width in eighths. Branches have smaller parts than the type keeps
 * beside the stream, so that a rounding between the two additions shows. */
static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  (void)error;
  if (from->values != ASSAY_LATTICE) {
    plain_fill(from, (uint64_t)arg, value, count);
    return ASSAY_OK;
  }
  const int width = lattice_width(from->call->arg[ARG_RES].dtype), bits = width < 11 ? width : 11;
  const int64_t most = arg == ARG_RES ? ((int64_t)1 << bits) - 1 : 63;
  assay_rng rng = {from->seed, (uint64_t)(0x726573 + arg), 0};
  for (int64_t i = 0; i < count; ++i)
    value[i] = (double)assay_rng_range(&rng, -most, most) * (arg == ARG_RES ? 0x1p-3 : 0x1p-6);
  return ASSAY_OK;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"N", 1, 1 << 20, 4, 1, "rows"},
    {"C", 1, 65536, 64, 1, "channels"},
};

static const assay_arg args[ARG_COUNT] = {
    {"res", ASSAY_INOUT, ASSAY_VALUES, false, "f32,f16,bf16", "N,C",
     "residual stream; the result, unless res_out is present", true},
    {"y", ASSAY_IN, ASSAY_VALUES, false, "=res", "N,C", "output of the sublayer", true},
    {"b", ASSAY_IN, ASSAY_VALUES, true, "=res", "C", "bias", false},
    {"res_out", ASSAY_OUT, ASSAY_RESULT, true, "=res", "N,C", "the result; res keeps its bits", false},
};

static const assay_op op = {
    .name = "bias_residual",
    .title = "residual addition of a sublayer's output and its bias",
    .source = "docs/definitions.md, section 5",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .laws = "run_to_run,dead_bytes,permutation,in_place",
    .spoils = "bias_lost,residual_lost,branch_lost,neighbours_bias,row_swapped,rounded_between,last_channel_dropped",
    .kappa_element = 3.2,
    .form = ASSAY_PLAIN,
    .row_dim = "N",
    .confirmed_by = "sums of integers, which f32 holds exactly; the commuted and the in-place form (ref_linear_test)",
    .extreme_args = "res,y",
    .largest = 0x1.fffffep127,
    .check = plain_check_call,
    .reference = reference,
    .cost = cost,
    .fill = fill,
    .spoil = spoil,
};

const assay_op *assay_op_bias_residual(void) {
  return &op;
}
