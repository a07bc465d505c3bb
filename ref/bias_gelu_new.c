/* bias_gelu_new: bias and activation of GPT-2's MLP. For row n and channel c, with v = x_nc + b_c:
 *
 *   x_nc <- v/2 · (1 + tanh(u))          u = sqrt(2/pi) · (v + 0.044715 v^3)
 *
 * It writes in place, or into x_out. Source: docs/definitions.md, section 5. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "ref/lib/error_model.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"

enum { ARG_X, ARG_B, ARG_X_OUT, ARG_COUNT };
enum {
  SPOIL_NONE = -1,
  SPOIL_BIAS_LOST,
  SPOIL_NEIGHBOURS_BIAS,
  SPOIL_CUBE_LOST,
  SPOIL_ACTIVATION_LOST,
  SPOIL_RECTIFIED,
  SPOIL_ROW_SWAPPED,
  SPOIL_LAST_CHANNEL_DROPPED
};

const assay_op *assay_op_bias_gelu_new(void);

static const double root = 0.79788456080286535588; /* sqrt(2/pi) */
static const double cubic = 0.044715;

/* ---- the definition ---------------------------------------------------------------------------------- */

/* Uses tanh u = 1 - 2 / (1 + exp(2 u)). The factor is then 2 / (1 + exp(-2 u)), in which nothing cancels. */
static double gelu_new(double v) {
  return v / (1 + exp(-2 * root * (v + cubic * v * v * v)));
}

/* Writes out [C] from x [C] and b [C]. */
static void bias_gelu_new(const double *x, const double *b, int64_t C, double *out) {
  for (int64_t c = 0; c < C; ++c)
    out[c] = gelu_new(x[c] + b[c]);
}

/* ---- the error model --------------------------------------------------------------------------------- */

/* Counts the roundings of the definition as written: v; the polynomial (four roundings in the cube, three in the sum
 * and both constants); tanh within the contract's bound; 1 + tanh; two products; the type. */
static double variance(double x, double b, const assay_contract *contract, assay_dtype out) {
  const double v = x + b, y = gelu_new(v), cube = root * cubic * v * v * v, u = root * v + cube, t = tanh(u);
  const double slope = (1 + t) / 2 + v / 2 * (1 - t * t) * root * (1 + 3 * cubic * v * v);
  const double of_u = f32_variance * (4 * cube * cube + 3 * u * u);
  const double of_t = (1 - t * t) * (1 - t * t) * of_u + t * t * function_variance(contract->exp_ulp);
  const double of_factor = v * v / 4 * (of_t + f32_variance * (1 + t) * (1 + t));
  return slope * slope * rounding_variance(v, ASSAY_F32) + of_factor + 2 * f32_variance * y * y +
         storing_variance(y, out);
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

static void spoil_row(int32_t spoil, const double *x, const double *b, int64_t C, double *out) {
  for (int64_t c = 0; c < C; ++c) {
    const double v = x[c] + b[c];
    if (spoil == SPOIL_BIAS_LOST) out[c] = gelu_new(x[c]);
    if (spoil == SPOIL_NEIGHBOURS_BIAS) out[c] = gelu_new(x[c] + b[c + 1 < C ? c + 1 : c]);
    if (spoil == SPOIL_CUBE_LOST) out[c] = v / (1 + exp(-2 * root * v));
    if (spoil == SPOIL_ACTIVATION_LOST) out[c] = v;
    if (spoil == SPOIL_RECTIFIED) out[c] = v > 0 ? v : 0;
  }
  if (spoil == SPOIL_LAST_CHANNEL_DROPPED) out[C - 1] = x[C - 1];
}

static assay_status compute(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                            int32_t spoil, assay_expected *expected, assay_error *error) {
  const assay_tensor *x = &call->arg[ARG_X], *b = &call->arg[ARG_B];
  const int64_t N = x->shape[0], C = x->shape[1], count = rowwise_count(rows, N);
  const assay_contract *c = contract != NULL ? contract : &default_contract;
  const bool apart = call->arg[ARG_X_OUT].data != NULL;
  assay_expected *to = &expected[apart ? rowwise_output(call, ARG_X_OUT) : 0];
  double *memory;
  const assay_status status = rowwise_reserve(call, 2 * C, &memory, error);
  if (status != ASSAY_OK) return status;
  double *row = memory, *bias = memory + C;
  assay_load_f64_row(b->data, b->dtype, 0, 1, C, bias);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t n = rowwise_index(rows, i), other = (n ^ 1) < N ? n ^ 1 : n;
    double *value = to->value + i * C;
    plain_load_row(x, spoil == SPOIL_ROW_SWAPPED ? other : n, row);
    bias_gelu_new(row, bias, C, value);
    if (spoil != SPOIL_NONE) spoil_row(spoil, row, bias, C, value);
    for (int64_t k = 0; to->sigma != NULL && k < C; ++k)
      to->sigma[i * C + k] = sqrt(variance(row[k], bias[k], c, x->dtype));
  }
  if (apart) rowwise_unchanged(x, rows, &expected[0]);
  free(memory);
  return ASSAY_OK;
}

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)seen;
  if (exact) return assay_fail(error, ASSAY_ERR_INPUT, "exact tier: bias_gelu_new: tanh is exact nowhere but at 0");
  return compute(call, contract, rows, SPOIL_NONE, expected, error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  const bool apart = call->arg[ARG_X_OUT].data != NULL;
  assay_expected values[2] = {{expected[0].value, NULL}, {apart ? expected[1].value : NULL, NULL}};
  return compute(call, contract, rows, index, values, error);
}

/* Counts 10 operations: an addition for v; two products for v^3; a product, an addition and a product for u; tanh; an
 * addition and two products for the result. */
static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *x = &call->arg[ARG_X];
  const double N = (double)x->shape[0], C = (double)x->shape[1], size = (double)assay_dtype_size(x->dtype);
  return (assay_cost){10 * N * C, (2 * N * C + C) * size};
}

static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  (void)error;
  plain_fill(from, (uint64_t)arg, value, count);
  return ASSAY_OK;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"N", 1, 1 << 20, 4, 1, "rows"},
    {"C", 1, 65536, 64, 1, "channels"},
};

static const assay_arg args[ARG_COUNT] = {
    {"x", ASSAY_INOUT, ASSAY_VALUES, false, "f32,f16,bf16", "N,C", "the result, unless x_out is present", true},
    {"b", ASSAY_IN, ASSAY_VALUES, false, "=x", "C", "bias", false},
    {"x_out", ASSAY_OUT, ASSAY_RESULT, true, "=x", "N,C", "the result; x keeps its bits", false},
};

static const assay_op op = {
    .name = "bias_gelu_new",
    .title = "bias and the tanh form of GELU",
    .source = "docs/definitions.md, section 5",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .laws = "run_to_run,dead_bytes,permutation,in_place",
    .spoils = "bias_lost,neighbours_bias,cube_lost,activation_lost,rectified,row_swapped,last_channel_dropped",
    .kappa_element = 7,
    .form = ASSAY_PLAIN,
    .row_dim = "N",
    .inexact = true,
    .confirmed_by =
        "gelu_new(v) - gelu_new(-v) = v and gelu_new(v) + gelu_new(-v) = v tanh(u), tanh from its continued "
        "fraction; ONNX node cases (Gelu, tanh) (ref_linear_test)",
    .check = plain_check_call,
    .reference = reference,
    .cost = cost,
    .fill = fill,
    .spoil = spoil,
};

const assay_op *assay_op_bias_gelu_new(void) {
  return &op;
}
