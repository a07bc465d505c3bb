/* rms_gemm: a product of rows whose rms_norm is deferred. a has rows times the norm's weight, and `squares` the sum of
 * squares of each eight channels, as gemm_residual stores them. b [N, K] holds weights as they are stored. For row m
 * and channel n:
 *
 *   f_m  = 1 / sqrt(sum_j squares_mj / K + eps)
 *   c_mn = round(f_m sum_k a_mk b_nk + bias_n)
 *
 * Source: docs/definitions.md, section 3. The factor and its error model are in ref/lib/deferred.c. */
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

enum { ARG_A, ARG_B, ARG_SQUARES, ARG_BIAS, ARG_C, ARG_COUNT };
enum { PARAM_EPS, PARAM_COUNT };

typedef enum rms_gemm_spoil {
  SPOIL_NONE = -1,
  SPOIL_FACTOR, /* the first of the factor's own errors, which come in the order of deferred_spoil */
  SPOIL_BIAS_SCALED = SPOIL_FACTOR + DEFERRED_FACTOR_LOST, /* the bias is added before the factor */
  SPOIL_BIAS_LOST,
  SPOIL_NEIGHBOURS_WEIGHTS,
  SPOIL_ROW_SWAPPED, /* the neighbouring row of a, with the factor of its own */
  SPOIL_LAST_K_DROPPED
} rms_gemm_spoil;

const assay_op *assay_op_rms_gemm(void);

/* The inputs of one element. a, b: [K]. */
typedef struct element {
  const double *a, *b;
  int64_t K;
  double factor, bias;
} element;

/* ---- the definition ---------------------------------------------------------------------------------- */

static double rms_gemm(const element *e) {
  return e->factor * gemm_dot(e->a, e->b, e->K) + e->bias;
}

/* ---- the error model --------------------------------------------------------------------------------- */

/* Returns the variance of an element whose sum has the variance `of_sum`, and whose factor that of `f`. */
static double variance(const element *e, double sum, double of_sum, deferred_factor f, bool biased, assay_dtype type) {
  const double z = e->factor * sum, c = z + e->bias;
  double found = e->factor * e->factor * of_sum + z * z * (f.variance + f32_variance);
  if (fabs(z) < 0x1p-126) found += storing_variance(0, ASSAY_F32);
  if (biased) found += storing_variance(c, ASSAY_F32);
  return type == ASSAY_F32 ? found : found + storing_variance(c, type);
}

/* ---- the exact tier ---------------------------------------------------------------------------------- */

static assay_status admit(const assay_call *call, int64_t m, int64_t n, const element *e, const gemm_sum *sum,
                          const assay_contract *contract, int low_a, assay_error *error) {
  const int low_b = lattice_low_row(e->b, e->K), width = lattice_width(contract->partial);
  const double term[2] = {e->factor * sum->sum, e->bias};
  if (!gemm_admits(sum, contract, low_a, low_b))
    return rowwise_refuse(call, m, n, "sum |a b|", sum->abs, ldexp(1, width + low_a + low_b), error);
  if (few_terms_exact(term, 2)) return ASSAY_OK;
  return rowwise_refuse(call, m, n, "the sum with the bias, which f32 must hold", term[0] + term[1], 0x1p24, error);
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

typedef struct rms_gemm_run {
  const assay_call *call;
  const assay_contract *contract;
  const assay_rows *rows;
  bool exact, biased;
  rms_gemm_spoil spoil;
  int64_t N, K, count;
  double *a, *b, *low_a, *factor, *relative; /* [count, K], [K], [count], [count], [count]: the factor's variance */
  double *value, *sigma;                     /* [count, N] */
} rms_gemm_run;

/* Returns the element as an implementation with a planted error computes it. */
static double spoiled(const element *right, rms_gemm_spoil spoil) {
  element e = *right;
  if (spoil == SPOIL_BIAS_LOST) e.bias = 0;
  if (spoil == SPOIL_LAST_K_DROPPED) --e.K;
  if (spoil == SPOIL_BIAS_SCALED) e.bias *= e.factor;
  return rms_gemm(&e);
}

/* Computes channel n of the result for all rows, so that its weights are read once. */
static assay_status channel(const rms_gemm_run *run, int64_t n, assay_error *error) {
  const assay_tensor *bias = &run->call->arg[ARG_BIAS];
  const assay_dtype type = run->call->arg[ARG_C].dtype;
  const int64_t next = n + 1 < run->N ? n + 1 : n;
  plain_load_row(&run->call->arg[ARG_B], run->spoil == SPOIL_NEIGHBOURS_WEIGHTS ? next : n, run->b);
  for (int64_t i = 0; i < run->count; ++i) {
    const double added = run->biased ? assay_load_f64(bias->data, bias->dtype, n) : 0;
    const element e = {run->a + i * run->K, run->b, run->K, run->factor[i], added};
    run->value[i * run->N + n] = run->spoil == SPOIL_NONE ? rms_gemm(&e) : spoiled(&e, run->spoil);
    if (run->sigma == NULL && !run->exact) continue;
    const gemm_sum sum = gemm_walk(e.a, e.b, run->K);
    const deferred_factor f = {run->factor[i], run->relative[i]};
    const double of_sum = gemm_variance(&sum, run->contract, e.a, e.b, run->K, run->call->arg[ARG_A].dtype);
    if (run->sigma != NULL) run->sigma[i * run->N + n] = sqrt(variance(&e, sum.sum, of_sum, f, run->biased, type));
    if (!run->exact) continue;
    const int64_t m = rowwise_index(run->rows, i);
    const assay_status status = admit(run->call, m, n, &e, &sum, run->contract, (int)run->low_a[i], error);
    if (status != ASSAY_OK) return status;
  }
  return ASSAY_OK;
}

/* Loads row m of a, and measures its factor. */
static assay_status load_row(rms_gemm_run *run, int64_t i, assay_error *error) {
  const assay_tensor *A = &run->call->arg[ARG_A], *squares = &run->call->arg[ARG_SQUARES];
  const int64_t m = rowwise_index(run->rows, i), other = (m ^ 1) < A->shape[0] ? m ^ 1 : m;
  const double eps = (double)(float)run->call->param[PARAM_EPS];
  const deferred_factor f = deferred_measure(squares, m, run->K, eps, run->contract);
  plain_load_row(A, run->spoil == SPOIL_ROW_SWAPPED ? other : m, run->a + i * run->K);
  run->factor[i] = f.value;
  run->relative[i] = f.variance;
  if (run->spoil >= SPOIL_FACTOR && run->spoil < SPOIL_BIAS_SCALED)
    run->factor[i] =
        deferred_spoiled(squares, m, run->K, eps, (deferred_spoil)(DEFERRED_ROW_BEFORE + run->spoil - SPOIL_FACTOR));
  if (!run->exact) return ASSAY_OK;
  run->low_a[i] = lattice_low_row(run->a + i * run->K, run->K);
  return deferred_admit(run->call, squares, m, run->K, eps, &run->factor[i], error);
}

static assay_status compute(const assay_call *call, const assay_contract *contract, const assay_rows *rows, bool exact,
                            rms_gemm_spoil spoil, const assay_expected *expected, assay_error *error) {
  const assay_tensor *A = &call->arg[ARG_A];
  rms_gemm_run run = {.call = call,
                      .contract = contract != NULL ? contract : &default_contract,
                      .rows = rows,
                      .exact = exact,
                      .biased = call->arg[ARG_BIAS].data != NULL,
                      .spoil = spoil,
                      .N = call->arg[ARG_C].shape[1],
                      .K = A->shape[1],
                      .count = rowwise_count(rows, A->shape[0]),
                      .value = expected->value,
                      .sigma = expected->sigma};
  assay_status status = rowwise_reserve(call, (run.count + 1) * run.K + 3 * run.count, &run.a, error);
  if (status != ASSAY_OK) return status;
  run.b = run.a + run.count * run.K;
  run.low_a = run.b + run.K;
  run.factor = run.low_a + run.count;
  run.relative = run.factor + run.count;
  for (int64_t i = 0; i < run.count && status == ASSAY_OK; ++i)
    status = load_row(&run, i, error);
  for (int64_t n = 0; n < run.N && status == ASSAY_OK; ++n)
    status = channel(&run, n, error);
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
  return compute(call, contract, rows, false, (rms_gemm_spoil)index, &values, error);
}

static void product(const assay_call *call, int64_t row, assay_product *p) {
  const assay_tensor *bias = &call->arg[ARG_BIAS];
  *p = (assay_product){.a = rowwise_row(&call->arg[ARG_A], row), .b = call->arg[ARG_B], .alpha = 1};
  if (bias->data != NULL)
    p->bias = (assay_tensor){
        .data = bias->data, .dtype = bias->dtype, .rank = 2, .shape = {1, bias->shape[0]}, .stride = {0, 1}};
}

static float product_factor(const assay_call *call, int64_t row, int64_t lanes) {
  return deferred_by_lanes(&call->arg[ARG_SQUARES], row, call->arg[ARG_A].shape[1], call->param[PARAM_EPS], lanes);
}

/* Counts the products, the factor and the bias of each element, and the sum of a row's parts. */
static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *A = &call->arg[ARG_A], *c = &call->arg[ARG_C];
  const double M = (double)A->shape[0], K = (double)A->shape[1], N = (double)c->shape[1];
  const double parts = (double)call->arg[ARG_SQUARES].shape[1], bias = call->arg[ARG_BIAS].data != NULL ? 1 : 0;
  return (assay_cost){2 * M * N * K + (1 + bias) * M * N + M * parts,
                      (M * K + N * K + bias * N + M * N) * (double)assay_dtype_size(A->dtype) + 4 * M * parts};
}

/* Fills an argument. On the lattice a is a multiple of 128, so that results are whole numbers or halves of them. */
static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  (void)error;
  assay_rng rng = {from->seed, 0x726D736700 + (uint64_t)arg, 0};
  if (arg == ARG_SQUARES) {
    deferred_fill(from, arg, from->call->arg[ARG_A].shape[1], value, count);
    return ASSAY_OK;
  }
  if (from->values != ASSAY_LATTICE) {
    plain_fill(from, (uint64_t)arg, value, count);
    return ASSAY_OK;
  }
  const int64_t most = arg == ARG_BIAS ? 8 : 2;
  const double unit = arg == ARG_A ? 128 : arg == ARG_B ? 64 : 1;
  for (int64_t i = 0; i < count; ++i)
    value[i] = unit * (double)assay_rng_range(&rng, -most, most);
  return ASSAY_OK;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"M", 1, 1 << 20, 4, 1, "rows"},
    {"N", 1, 1 << 20, 64, 1, "output channels"},
    {"K", 1, 1 << 20, 64, 1, "input channels: terms of each sum"},
};

static const assay_arg args[ARG_COUNT] = {
    {"a", ASSAY_IN, ASSAY_VALUES, false, "f32,f16,bf16", "M,K", "rows times the norm's weight; the row stride is free",
     true},
    {"b", ASSAY_IN, ASSAY_VALUES, false, "=a", "N,K", "weights, one row an output channel", false},
    {"squares", ASSAY_IN, ASSAY_VALUES, false, "f32", "M,K^8", "sum of squares of each eight channels of a row", false},
    {"bias", ASSAY_IN, ASSAY_VALUES, true, "=a", "N", "one for each output channel", false},
    {"c", ASSAY_OUT, ASSAY_RESULT, false, "=a", "M,N", "the result", true},
};

static const assay_param params[PARAM_COUNT] = {
    {"eps", ASSAY_REAL, 1e-12, 1, 1e-6, NULL, "added to the mean square, as f32"},
};

static const assay_op op = {
    .name = "rms_gemm",
    .title = "product of rows whose rms_norm is deferred",
    .source = "docs/definitions.md, section 3",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .params = params,
    .param_count = PARAM_COUNT,
    .laws = "run_to_run,dead_bytes,permutation",
    .spoils = DEFERRED_SPOILS ",bias_scaled,bias_lost,neighbours_weights,row_swapped,last_k_dropped",
    .kappa_element = 7,
    .form = ASSAY_PLAIN,
    .row_dim = "M",
    .confirmed_by = "the product of another library, with each row divided by its root; the references of add_rms_norm "
                    "and gemm; and the kernels of gemm, times the factor, bit for bit (ref_gemm_norm_test)",
    .extreme_args = "a,b",
    .largest = 0x1p40,
    .check = plain_check_call,
    .reference = reference,
    .cost = cost,
    .fill = fill,
    .spoil = spoil,
    .product = product,
    .product_factor = product_factor,
};

const assay_op *assay_op_rms_gemm(void) {
  return &op;
}
