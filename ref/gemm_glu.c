/* gemm_glu: the first product of a gated MLP, with its activation. b [2 I, K] has a row of gate weights for each
 * channel, then a row of up weights for each. For row m and channel i:
 *
 *   g = sum_k a_mk b_ik        u = sum_k a_mk b_(I+i)k        y_mi = round(act(g) · u)
 *
 * act(g) is g · sigmoid(g) (swiglu), or max(g, 0) (reglu). g and u are not rounded to a storage type, unless the
 * contract has `partial`: then they are rounded to it. With `squares` the rms_norm of row m is deferred, as for
 * rms_gemm: both sums are multiplied by the row's factor f_m (ref/lib/deferred.h). Source: docs/definitions.md,
 * section 5. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/deferred.h"
#include "ref/lib/error_model.h"
#include "ref/lib/gemm.h"
#include "ref/lib/lattice.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"

enum { ARG_A, ARG_B, ARG_Y, ARG_SQUARES, ARG_COUNT };
enum { PARAM_ACT, PARAM_EPS, PARAM_COUNT };
enum { SWIGLU, REGLU };

typedef enum glu_spoil {
  SPOIL_NONE = -1,
  SPOIL_GATE_UP_SWAPPED,
  SPOIL_NEIGHBOURS_GATE,    /* the gate of the channel after */
  SPOIL_WEIGHTS_IN_TURN,    /* b is read as gate and up of each channel in turn */
  SPOIL_ROW_SWAPPED,        /* the neighbouring row of a */
  SPOIL_LAST_K_DROPPED,     /* in both sums */
  SPOIL_LAST_K_OF_UP,       /* in u alone */
  SPOIL_ACTIVATED_IN_PARTS, /* act(g) u of each half of k, added */
  SPOIL_ACTIVATION_LOST,    /* g u */
  SPOIL_OTHER_ACTIVATION,
  SPOIL_FACTOR /* the first of the factor's own errors, which come in the order of deferred_spoil */
} glu_spoil;

const assay_op *assay_op_gemm_glu(void);

/* The inputs of one element of the result. a, gate, up: [K]. factor: of the row's norm, or 1. */
typedef struct element {
  const double *a, *gate, *up;
  int64_t K;
  bool reglu;
  double factor;
} element;

/* ---- the definition ---------------------------------------------------------------------------------- */

static double sigmoid(double z) {
  return 1 / (1 + exp(-z));
}

static double act(bool reglu, double g) {
  if (reglu) return g > 0 ? g : 0;
  return g * sigmoid(g);
}

static double gemm_glu(const element *e) {
  return act(e->reglu, e->factor * gemm_dot(e->a, e->gate, e->K)) * (e->factor * gemm_dot(e->a, e->up, e->K));
}

/* ---- the error model --------------------------------------------------------------------------------- */

/* Returns the largest |act'| at g and at five sigmas of g on either side. reglu has an edge at 0. */
static double slope(bool reglu, double g, double sigma) {
  double largest = 0;
  for (int side = -1; side <= 1; ++side) {
    const double at = g + 5 * side * sigma, s = sigmoid(at);
    largest = fmax(largest, reglu ? (at > 0 ? 1 : 0) : fabs(s * (1 + at * (1 - s))));
  }
  return largest;
}

/* Returns the variance of act(g) u in f32, for exact g and u. Relative to y, exp counts by d ln s / d ln exp = s - 1.
 * 1 + exp, its inverse, g s and the product with u are four roundings; the inverse has the contract's bound. A sigmoid
 * below f32's least normal number may come out as 0. */
static double activation_variance(bool reglu, double g, double u, const assay_contract *contract) {
  const double s = sigmoid(g), y = act(reglu, g) * u, function = function_variance(contract->exp_ulp);
  if (reglu) return rounding_variance(y, ASSAY_F32);
  if (y == 0) return 0;
  double relative = (1 - s) * (1 - s) * function + function + 3 * f32_variance;
  if (s < 0x1p-126) relative += 1;
  return y * y * relative + below_normal_variance((const double[3]){g, s, u}, 3, contract->ftz);
}

/* Returns the variance of a sum times the factor. The product with a factor of 1 is exact. */
static double scaled_variance(const element *e, const gemm_sum *s, double of_sum, bool deferred) {
  const double scaled = e->factor * s->sum;
  if (!deferred) return of_sum;
  return e->factor * e->factor * of_sum + scaled * scaled * f32_variance +
         (fabs(scaled) < 0x1p-126 ? storing_variance(0, ASSAY_F32) : 0);
}

/* Returns the variance of the element. Errors of g reach y by the slope of act, errors of u by act itself. Those of the
 * factor, of relative variance `of_factor` (negative: there is none), reach it by both at once. */
static double variance(const element *e, const gemm_sum *gate, const gemm_sum *up, const assay_contract *contract,
                       double of_factor, assay_dtype type) {
  const double g = e->factor * gate->sum, u = e->factor * up->sum, h = act(e->reglu, g);
  const double of_g =
      scaled_variance(e, gate, gemm_variance(gate, contract, e->a, e->gate, e->K, type), of_factor >= 0);
  const double of_u = scaled_variance(e, up, gemm_variance(up, contract, e->a, e->up, e->K, type), of_factor >= 0);
  const double steep = slope(e->reglu, g, sqrt(of_g)), common = (steep * fabs(g) + fabs(h)) * fabs(u);
  return steep * steep * of_g * (u * u + of_u) + h * h * of_u + common * common * fmax(of_factor, 0) +
         activation_variance(e->reglu, g, u, contract) + storing_variance(h * u, type);
}

/* ---- the exact tier ---------------------------------------------------------------------------------- */

/* Admits an element: both sums, and their product in f32. With swiglu, g is 0, or at most -200, where sigmoid is 0 in
 * f32, or at least 200, where it is 1. */
static assay_status admit(const assay_call *call, int64_t m, int64_t i, const element *e, const gemm_sum *gate,
                          const gemm_sum *up, const assay_contract *contract, int low_a, assay_error *error) {
  const double g = e->factor * gate->sum, u = e->factor * up->sum;
  const int low_gate = lattice_low_row(e->gate, e->K), low_up = lattice_low_row(e->up, e->K);
  const int width = lattice_width(contract->partial), bits = lattice_bits(g) + lattice_bits(u);
  if (!gemm_admits(gate, contract, low_a, low_gate))
    return rowwise_refuse(call, m, i, "sum |a b| of the gate", gate->abs, ldexp(1, width + low_a + low_gate), error);
  if (!gemm_admits(up, contract, low_a, low_up))
    return rowwise_refuse(call, m, i, "sum |a b| of the up", up->abs, ldexp(1, width + low_a + low_up), error);
  if (g == 0 || (e->reglu ? g < 0 : g <= -200)) return ASSAY_OK;
  if (!e->reglu && !(g >= 200)) return rowwise_refuse(call, m, i, "g between -200 and 200", g, 0, error);
  if (bits > 24) return rowwise_refuse(call, m, i, "bits of g and u", bits, 24, error);
  return ASSAY_OK;
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

typedef struct glu_run {
  const assay_call *call;
  const assay_contract *contract;
  const assay_rows *rows;
  bool exact, reglu;
  glu_spoil spoil;
  int64_t I, K, count;
  double *a, *gate, *up, *low_a; /* [count, K], [K], [K], [count] */
  double *factor, *of_factor;    /* [count]: the factor, and its variance relative to its square; -1: none */
  double *value, *sigma;         /* [count, I] */
} glu_run;

/* Returns 0 for what is 0 in f32. Sigmoid is seldom 0 in f64. A larger number below half the least one of the output
 * may be near its border: the next result is right too. */
static double stored(double value) {
  return fabs(value) < 0.5 * assay_ulp(0, ASSAY_F32) ? 0 : value;
}

/* Returns the element as an implementation with a planted error computes it. */
static double spoiled(const element *right, glu_spoil spoil) {
  element e = *right;
  const int64_t half = e.K / 2;
  if (spoil == SPOIL_OTHER_ACTIVATION) e.reglu = !e.reglu;
  if (spoil == SPOIL_LAST_K_DROPPED) --e.K;
  if (spoil == SPOIL_LAST_K_OF_UP)
    return act(e.reglu, e.factor * gemm_dot(e.a, e.gate, e.K)) * (e.factor * gemm_dot(e.a, e.up, e.K - 1));
  if (spoil == SPOIL_ACTIVATION_LOST)
    return e.factor * gemm_dot(e.a, e.gate, e.K) * (e.factor * gemm_dot(e.a, e.up, e.K));
  if (spoil == SPOIL_ACTIVATED_IN_PARTS) {
    const element first = {e.a, e.gate, e.up, half, e.reglu, e.factor};
    const element second = {e.a + half, e.gate + half, e.up + half, e.K - half, e.reglu, e.factor};
    return gemm_glu(&first) + gemm_glu(&second);
  }
  return gemm_glu(&e);
}

/* Loads the weights of channel i: those of its gate and of its up. */
static void load_weights(const glu_run *run, int64_t i) {
  const assay_tensor *B = &run->call->arg[ARG_B];
  int64_t gate = i, up = run->I + i;
  if (run->spoil == SPOIL_GATE_UP_SWAPPED) gate = run->I + i, up = i;
  if (run->spoil == SPOIL_NEIGHBOURS_GATE) gate = i + 1 < run->I ? i + 1 : i;
  if (run->spoil == SPOIL_WEIGHTS_IN_TURN) gate = 2 * i, up = 2 * i + 1;
  plain_load_row(B, gate, run->gate);
  plain_load_row(B, up, run->up);
}

/* Computes channel i of the result for all rows, so that its weights are read once. */
static assay_status channel(const glu_run *run, int64_t i, assay_error *error) {
  const assay_dtype type = run->call->arg[ARG_Y].dtype;
  load_weights(run, i);
  for (int64_t r = 0; r < run->count; ++r) {
    const element e = {run->a + r * run->K, run->gate, run->up, run->K, run->reglu, run->factor[r]};
    const double value = run->spoil == SPOIL_NONE ? gemm_glu(&e) : spoiled(&e, run->spoil);
    run->value[r * run->I + i] = stored(value);
    if (run->sigma == NULL && !run->exact) continue;
    const gemm_sum gate = gemm_walk(e.a, e.gate, run->K), up = gemm_walk(e.a, e.up, run->K);
    if (run->sigma != NULL)
      run->sigma[r * run->I + i] = sqrt(variance(&e, &gate, &up, run->contract, run->of_factor[r], type));
    if (!run->exact) continue;
    const int64_t m = rowwise_index(run->rows, r);
    const assay_status status = admit(run->call, m, i, &e, &gate, &up, run->contract, (int)run->low_a[r], error);
    if (status != ASSAY_OK) return status;
  }
  return ASSAY_OK;
}

/* Loads row r of those computed, and measures its factor. */
static assay_status load_row(glu_run *run, int64_t r, assay_error *error) {
  const assay_tensor *A = &run->call->arg[ARG_A], *squares = &run->call->arg[ARG_SQUARES];
  const int64_t m = rowwise_index(run->rows, r), other = (m ^ 1) < A->shape[0] ? m ^ 1 : m;
  const double eps = (double)(float)run->call->param[PARAM_EPS];
  plain_load_row(A, run->spoil == SPOIL_ROW_SWAPPED ? other : m, run->a + r * run->K);
  run->low_a[r] = run->exact ? lattice_low_row(run->a + r * run->K, run->K) : 0;
  run->factor[r] = 1;
  run->of_factor[r] = -1;
  if (squares->data == NULL) return ASSAY_OK;
  const deferred_factor f = deferred_measure(squares, m, run->K, eps, run->contract);
  run->factor[r] = f.value;
  run->of_factor[r] = f.variance;
  if (run->spoil >= SPOIL_FACTOR)
    run->factor[r] =
        deferred_spoiled(squares, m, run->K, eps, (deferred_spoil)(DEFERRED_ROW_BEFORE + run->spoil - SPOIL_FACTOR));
  return run->exact ? deferred_admit(run->call, squares, m, run->K, eps, &run->factor[r], error) : ASSAY_OK;
}

static assay_status compute(const assay_call *call, const assay_contract *contract, const assay_rows *rows, bool exact,
                            glu_spoil spoil, const assay_expected *expected, assay_error *error) {
  const assay_tensor *A = &call->arg[ARG_A];
  glu_run run = {.call = call,
                 .contract = contract != NULL ? contract : &default_contract,
                 .rows = rows,
                 .exact = exact,
                 .reglu = call->param[PARAM_ACT] == REGLU,
                 .spoil = spoil,
                 .I = call->arg[ARG_Y].shape[1],
                 .K = A->shape[1],
                 .count = rowwise_count(rows, A->shape[0]),
                 .value = expected->value,
                 .sigma = expected->sigma};
  assay_status status = rowwise_reserve(call, (run.count + 2) * run.K + 3 * run.count, &run.a, error);
  if (status != ASSAY_OK) return status;
  run.gate = run.a + run.count * run.K;
  run.up = run.gate + run.K;
  run.low_a = run.up + run.K;
  run.factor = run.low_a + run.count;
  run.of_factor = run.factor + run.count;
  for (int64_t r = 0; r < run.count && status == ASSAY_OK; ++r)
    status = load_row(&run, r, error);
  for (int64_t i = 0; i < run.I && status == ASSAY_OK; ++i)
    status = channel(&run, i, error);
  free(run.a);
  return status;
}

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)seen;
  return compute(call, contract, rows, exact, SPOIL_NONE, expected, error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  const assay_expected values = {expected->value, NULL};
  return compute(call, contract, rows, false, (glu_spoil)index, &values, error);
}

/* Describes the product with the gates; the ups are the second weights. */
static void product(const assay_call *call, int64_t row, assay_product *p) {
  const int64_t I = call->arg[ARG_Y].shape[1];
  *p = (assay_product){
      .a = rowwise_row(&call->arg[ARG_A], row), .b = call->arg[ARG_B], .alpha = 1, .second = call->arg[ARG_B]};
  p->b.shape[0] = p->second.shape[0] = I;
  p->second.data = (unsigned char *)p->b.data + I * p->b.stride[0] * assay_dtype_size(p->b.dtype);
}

static float product_factor(const assay_call *call, int64_t row, int64_t lanes) {
  const assay_tensor *squares = &call->arg[ARG_SQUARES];
  return deferred_by_lanes(squares, row, call->arg[ARG_A].shape[1], call->param[PARAM_EPS], lanes);
}

/* Counts the products; of the activation, five for swiglu (exp counts as one) or two for reglu. A deferred norm adds
 * the sum of a row's parts, and two products for each element. */
static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *A = &call->arg[ARG_A], *y = &call->arg[ARG_Y];
  const double M = (double)A->shape[0], K = (double)A->shape[1], I = (double)y->shape[1];
  const double size = (double)assay_dtype_size(A->dtype), own = call->param[PARAM_ACT] == REGLU ? 2 : 5;
  const bool deferred = call->arg[ARG_SQUARES].data != NULL;
  const double parts = deferred ? (double)deferred_parts(A->shape[1]) : 0;
  return (assay_cost){4 * M * I * K + (own + (deferred ? 2 : 0)) * M * I + M * parts,
                      (M * K + 2 * I * K + M * I) * size + 4 * M * parts};
}

/* ---- values for the generator ------------------------------------------------------------------------ */

/* Draws the weights of one channel of the exact tier. Gates of swiglu have two weights of 256 and -256 among K, so that
 * g is a multiple of 256 for whole a. Ups, and gates of reglu, are small whole numbers. With many terms some FULL of
 * them are not 0, the last one among them, so that sums have 8 bits at most. */
static void exact_weights(assay_rng *rng, bool sparse, int64_t K, double *value) {
  enum { FULL = 80 };
  for (int64_t k = 0; k < K; ++k) {
    value[k] = sparse ? 0 : (double)assay_rng_range(rng, -2, 2);
    if (!sparse && K > FULL && k + 1 < K && assay_rng_range(rng, 1, K) > FULL) value[k] = 0;
  }
  for (int each = 0; sparse && each < 2; ++each)
    value[assay_rng_range(rng, 0, K - 1)] = assay_rng_range(rng, 0, 1) == 0 ? 256 : -256;
}

/* Fills an argument. In the calibrated tier, gate weights are as small as K asks, so that g is where act is not flat.
 * In the exact tier, rows and weights make up for the factor of a deferred norm, which is 2^-13 or 2^-12. */
static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  (void)error;
  const bool deferred = from->call->arg[ARG_SQUARES].data != NULL;
  const int64_t K = from->call->arg[ARG_A].shape[1], gates = from->call->arg[ARG_Y].shape[1] * K;
  const bool reglu = from->call->param[PARAM_ACT] == REGLU;
  assay_rng rng = {from->seed, 0x676C7500 + (uint64_t)arg, 0};
  if (arg == ARG_SQUARES) {
    deferred_fill(from, arg, K, value, count);
    return ASSAY_OK;
  }
  if (from->values == ASSAY_LATTICE && arg == ARG_A) {
    for (int64_t i = 0; i < count; ++i)
      value[i] = (deferred ? 128 : 1) * (double)assay_rng_range(&rng, -2, 2);
    return ASSAY_OK;
  }
  if (from->values == ASSAY_LATTICE) {
    for (int64_t i = 0; i < count; i += K)
      exact_weights(&rng, i < gates && !reglu, K, value + i);
    for (int64_t i = 0; i < count && deferred; ++i)
      value[i] *= 64;
    return ASSAY_OK;
  }
  plain_fill(from, (uint64_t)arg, value, count);
  for (int64_t i = 0; arg == ARG_B && i < gates; ++i)
    value[i] *= 2 / sqrt((double)K);
  return ASSAY_OK;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"M", 1, 1 << 20, 4, 1, "rows"},
    {"I", 1, 65536, 64, 1, "channels of the result"},
    {"K", 1, 1 << 20, 64, 1, "input channels: terms of each sum"},
};

static const assay_arg args[ARG_COUNT] = {
    {"a", ASSAY_IN, ASSAY_VALUES, false, "f32,f16,bf16", "M,K", "activations; the row stride is free", true},
    {"b", ASSAY_IN, ASSAY_VALUES, false, "=a", "2*I,K", "weights: a row for each gate, then one for each up", false},
    {"y", ASSAY_OUT, ASSAY_RESULT, false, "=a", "M,I", "the result", false},
    {"squares", ASSAY_IN, ASSAY_VALUES, true, "f32", "M,K^8",
     "of a deferred norm: sum of squares of each eight channels", false},
};

static const assay_param params[PARAM_COUNT] = {
    {"act", ASSAY_ENUM, 0, 1, SWIGLU, "swiglu,reglu", "the activation of the gate"},
    {"eps", ASSAY_REAL, 1e-12, 1, 1e-6, NULL, "of a deferred norm: added to the mean square, as f32"},
};

static const assay_op op = {
    .name = "gemm_glu",
    .title = "product with gates and ups, and the gated activation",
    .source = "docs/definitions.md, section 5",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .params = params,
    .param_count = PARAM_COUNT,
    .laws = "run_to_run,dead_bytes,permutation",
    .spoils = "gate_up_swapped,neighbours_gate,weights_in_turn,row_swapped,last_k_dropped,last_k_of_up,"
              "activated_in_parts,activation_lost,other_activation," DEFERRED_SPOILS,
    .kappa_element = 7,
    .form = ASSAY_PLAIN,
    .row_dim = "M",
    .axes = "dtype,act",
    .confirmed_by = "dgemm of another library, then swiglu or reglu; gemm's and the activation's references, and their "
                    "kernels (ref_gemm_glu_test)",
    .extreme_args = "a,b",
    .largest = 0x1p50,
    .check = plain_check_call,
    .reference = reference,
    .cost = cost,
    .fill = fill,
    .spoil = spoil,
    .product = product,
    .product_factor = product_factor,
};

const assay_op *assay_op_gemm_glu(void) {
  return &op;
}
