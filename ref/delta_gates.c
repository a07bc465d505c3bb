/* delta_gates: the gates of a gated delta rule. For row n and value head h:
 *
 *   g_nh    = -exp(A_log_h) · ln(1 + exp(a_nh + dt_bias_h))      the logarithm of the decay, never above 0
 *   beta_nh = 1 / (1 + exp(-b_nh))                               the share of an update
 *
 * Both are f32. ln(1 + exp(x)) is max(x, 0) + ln(1 + exp(-|x|)), which does not overflow. Source: docs/definitions.md,
 * section 12. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/error_model.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"

enum { ARG_A, ARG_B, ARG_A_LOG, ARG_DT_BIAS, ARG_G, ARG_BETA, ARG_COUNT };
enum { OUT_G, OUT_BETA };

const assay_op *assay_op_delta_gates(void);

typedef enum gates_spoil {
  SPOIL_NONE = -1,
  SPOIL_SIGN_LOST, /* g is not negated */
  SPOIL_EXP_LOST,  /* A_log stands for its exponential */
  SPOIL_DT_BIAS_LOST,
  SPOIL_SOFTPLUS_NAIVE, /* exp overflows above 88 */
  SPOIL_PARTS_SWAPPED,  /* a and b change places */
  SPOIL_SIGMOID_LOST,   /* beta is b */
  SPOIL_HEAD_BEFORE     /* A_log and dt_bias are those of the head before */
} gates_spoil;

typedef struct gates {
  double g, beta;
} gates;

/* ---- the definition ---------------------------------------------------------------------------------- */

static double softplus(double x) {
  return (x > 0 ? x : 0) + log1p(exp(-fabs(x)));
}

static double sigmoid(double x) {
  return 1 / (1 + exp(-x));
}

static gates gates_of(double a, double b, double A_log, double dt_bias) {
  return (gates){-exp(A_log) * softplus(a + dt_bias), sigmoid(b)};
}

static gates spoiled(double a, double b, double A_log, double dt_bias, gates_spoil spoil) {
  gates to = gates_of(a, b, A_log, dt_bias);
  if (spoil == SPOIL_SIGN_LOST) to.g = -to.g;
  if (spoil == SPOIL_EXP_LOST) to.g = -A_log * softplus(a + dt_bias);
  if (spoil == SPOIL_DT_BIAS_LOST) to.g = -exp(A_log) * softplus(a);
  if (spoil == SPOIL_SOFTPLUS_NAIVE && a + dt_bias > 88.8) to.g = -(double)INFINITY;
  if (spoil == SPOIL_PARTS_SWAPPED) to = gates_of(b, a, A_log, dt_bias);
  if (spoil == SPOIL_SIGMOID_LOST) to.beta = b;
  return to;
}

/* ---- the error model --------------------------------------------------------------------------------- */

/* Returns the variance of g: of the sum a + dt_bias, of softplus, of exp(A_log), and of their product. A tail below the
 * least normal f32 may be lost. */
static double g_variance(double a, double A_log, double dt_bias, double function) {
  const double x = a + dt_bias, tail = log1p(exp(-fabs(x))), sum = softplus(x), factor = exp(A_log);
  double inner = sigmoid(x) * sigmoid(x) * rounding_variance(x, ASSAY_F32);
  inner += tail * tail * (tail < 0x1p-126 ? 1 : 3 * function) + f32_variance * sum * sum;
  return factor * factor * (inner + (A_log == 0 ? 0 : function) * sum * sum) +
         storing_variance(factor * sum, ASSAY_F32);
}

static double beta_variance(double b, double function) {
  const double s = sigmoid(b);
  return s * s * ((1 - s) * (1 - s) * function + function + 2 * f32_variance + (s < 0x1p-126 ? 1 : 0));
}

/* Admits gates that every correct implementation computes without an error: exp(A_log) = 1, softplus(x) = x or 0,
 * sigmoid(b) = 0, 1/2 or 1. */
static assay_status admit(const assay_call *call, int64_t n, int64_t h, double a, double b, double A_log,
                          double dt_bias, assay_error *error) {
  const double x = a + dt_bias;
  if (A_log != 0) return rowwise_refuse(call, n, h, "A_log", A_log, 0, error);
  if (!(x >= 200 || x <= -200)) return rowwise_refuse(call, n, h, "a + dt_bias between -200 and 200", x, 0, error);
  if (b != 0 && !(b >= 200 || b <= -200)) return rowwise_refuse(call, n, h, "b between -200 and 200", b, 0, error);
  return ASSAY_OK;
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

static assay_status compute(const assay_call *call, const assay_contract *contract, const assay_rows *rows, bool exact,
                            gates_spoil spoil, assay_expected *expected, assay_error *error) {
  const assay_tensor *arg = call->arg;
  const int64_t N = arg[ARG_A].shape[0], H = arg[ARG_A].shape[1], count = rowwise_count(rows, N);
  const double function = function_variance((contract != NULL ? contract : &default_contract)->exp_ulp) + f32_variance;
  double *a;
  assay_status status = rowwise_reserve(call, 4 * H, &a, error);
  if (status != ASSAY_OK) return status;
  double *b = a + H, *A_log = b + H, *dt_bias = A_log + H;
  assay_load_f64_row(arg[ARG_A_LOG].data, arg[ARG_A_LOG].dtype, 0, 1, H, A_log);
  assay_load_f64_row(arg[ARG_DT_BIAS].data, arg[ARG_DT_BIAS].dtype, 0, 1, H, dt_bias);
  for (int64_t i = 0; i < count && status == ASSAY_OK; ++i) {
    const int64_t n = rowwise_index(rows, i);
    plain_load_row(&arg[ARG_A], n, a);
    plain_load_row(&arg[ARG_B], n, b);
    for (int64_t h = 0; h < H && status == ASSAY_OK; ++h) {
      const int64_t from = spoil == SPOIL_HEAD_BEFORE && h > 0 ? h - 1 : h;
      const gates to = spoiled(a[h], b[h], A_log[from], dt_bias[from], spoil);
      expected[OUT_G].value[i * H + h] = to.g;
      expected[OUT_BETA].value[i * H + h] = to.beta;
      if (expected[OUT_G].sigma != NULL)
        expected[OUT_G].sigma[i * H + h] = sqrt(g_variance(a[h], A_log[h], dt_bias[h], function));
      if (expected[OUT_BETA].sigma != NULL) expected[OUT_BETA].sigma[i * H + h] = sqrt(beta_variance(b[h], function));
      if (exact) status = admit(call, n, h, a[h], b[h], A_log[h], dt_bias[h], error);
    }
  }
  free(a);
  return status;
}

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)seen;
  return compute(call, contract, rows, exact, SPOIL_NONE, expected, error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  assay_expected values[2] = {{expected[OUT_G].value, NULL}, {expected[OUT_BETA].value, NULL}};
  return compute(call, contract, rows, false, (gates_spoil)index, values, error);
}

static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *a = &call->arg[ARG_A];
  const double elements = (double)a->shape[0] * (double)a->shape[1];
  return (assay_cost){10 * elements, elements * (2 * (double)assay_dtype_size(a->dtype) + 8)};
}

/* ---- values for the generator ------------------------------------------------------------------------ */

/* Numbers of the exact tier: a sum of a and dt_bias is at least 232 or at most -232. */
static double exact_number(int32_t arg, assay_rng *rng) {
  if (arg == ARG_A_LOG) return 0;
  if (arg == ARG_DT_BIAS) return (double)assay_rng_range(rng, -8, 8);
  if (arg == ARG_A) return (assay_rng_range(rng, 0, 1) != 0 ? 1 : -1) * (double)(240 + 16 * assay_rng_range(rng, 0, 9));
  return (double)assay_rng_range(rng, -1, 1) * 512;
}

/* A_log is near ln of 1 to 16, where models begin, and for one head of eight anywhere from -40 to 40. dt_bias differs
 * from head to head. */
static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  (void)error;
  plain_fill(from, (uint64_t)arg, value, count);
  assay_rng rng = {from->seed, 0x64656C74 + ((uint64_t)arg << 32), 0};
  for (int64_t i = 0; i < count; ++i) {
    if (from->values == ASSAY_LATTICE)
      value[i] = exact_number(arg, &rng);
    else if (arg == ARG_A_LOG)
      value[i] = assay_rng_range(&rng, 0, 7) == 0 ? 80 * assay_rng_unit(&rng) - 40 : 2.75 * assay_rng_unit(&rng);
    else if (arg == ARG_DT_BIAS)
      value[i] = 4 * assay_rng_unit(&rng) - 5;
  }
  return ASSAY_OK;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"N", 1, 1 << 20, 8, 1, "rows"},
    {"H", 1, 4096, 4, 1, "value heads"},
};

static const assay_arg args[ARG_COUNT] = {
    {"a", ASSAY_IN, ASSAY_VALUES, false, "f32,f16,bf16", "N,H", "logits of the decay", true},
    {"b", ASSAY_IN, ASSAY_VALUES, false, "=a", "N,H", "logits of the share", true},
    {"A_log", ASSAY_IN, ASSAY_VALUES, false, "f32", "H", "logarithm of the decay's rate", false},
    {"dt_bias", ASSAY_IN, ASSAY_VALUES, false, "f32", "H", "added to a", false},
    {"g", ASSAY_OUT, ASSAY_RESULT, false, "f32", "N,H", "logarithm of the decay", true},
    {"beta", ASSAY_OUT, ASSAY_RESULT, false, "f32", "N,H", "share of an update", true},
};

static const assay_op op = {
    .name = "delta_gates",
    .title = "the gates of a gated delta rule",
    .source = "docs/definitions.md, section 12",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .laws = "run_to_run,dead_bytes,permutation",
    .spoils = "sign_lost,exp_lost,dt_bias_lost,softplus_naive,parts_swapped,sigmoid_lost,head_before",
    .kappa_element = 3.2,
    .form = ASSAY_PLAIN,
    .row_dim = "N",
    .confirmed_by = "softplus(x) - softplus(-x) = x and sigmoid(x) + sigmoid(-x) = 1 (ref_delta_test)",
    .extreme_args = "b",
    .check = plain_check_call,
    .reference = reference,
    .cost = cost,
    .fill = fill,
    .spoil = spoil,
};

const assay_op *assay_op_delta_gates(void) {
  return &op;
}
