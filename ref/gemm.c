/* gemm: a matrix product with weights as they are stored, one row per output channel. For row m and channel n:
 *
 *   C_mn <- alpha · sum_k A_mk B_nk + beta · C_mn + bias_n
 *
 * It is summed in f32 and rounded once to C's type. With beta = 0 the old C is never read. bias may be absent. Source:
 * docs/definitions.md, section 5. */
#include "ref/lib/gemm.h"

#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "ref/lib/error_model.h"
#include "ref/lib/lattice.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"

enum { ARG_A, ARG_B, ARG_BIAS, ARG_C, ARG_COUNT };
enum { PARAM_ALPHA, PARAM_BETA, PARAM_COUNT };
enum {
  SPOIL_NONE = -1,
  SPOIL_LAST_K_DROPPED,
  SPOIL_ROW_SWAPPED,
  SPOIL_NEIGHBOURS_WEIGHTS,
  SPOIL_ALPHA_LOST,
  SPOIL_BETA_LOST,
  SPOIL_BIAS_LOST,
  SPOIL_NEIGHBOURS_BIAS,
  SPOIL_BIAS_SCALED
};

const assay_op *assay_op_gemm(void);

/* The inputs of one element of the result. a, b: [K]. */
typedef struct element {
  const double *a, *b;
  int64_t K;
  double alpha, beta, c, bias; /* c: 0 if beta is 0 */
} element;

/* ---- the definition ---------------------------------------------------------------------------------- */

static double gemm(const element *e) {
  return e->alpha * gemm_dot(e->a, e->b, e->K) + e->beta * e->c + e->bias;
}

/* ---- the error model --------------------------------------------------------------------------------- */

/* Returns what alpha adds where it is multiplied into a factor of each term, as cuBLASLt does in f32. Products of alpha
 * and a factor below the normal numbers are rounded to whole steps there, and so are the sums. */
static double factor_variance(double alpha, const double *factor, const double *other, int64_t K) {
  double variance = 0;
  for (int64_t k = 0; k < K && alpha != 0 && alpha != 1; ++k) {
    const double first = alpha * factor[k], term = first * other[k];
    if (first != 0 && fabs(first) < 0x1p-126) variance += other[k] * other[k] * storing_variance(0, ASSAY_F32);
    if (term != 0 && fabs(term) < 0x1p-126) variance += storing_variance(0, ASSAY_F32);
  }
  return variance;
}

/* Returns the variance of the element. alpha and beta are rounded to f32, and so are their products and the two
 * additions. Nothing is rounded where a factor is a power of two or a term is 0. A sum that starts from both others has
 * one addition before it and none after it. */
static double variance(const element *e, const gemm_sum *s, const assay_contract *contract, assay_dtype in,
                       assay_dtype out) {
  const double product = e->alpha * s->sum, old = e->beta * e->c, y = product + old + e->bias;
  double rounded = 0;
  if (lattice_bits(e->alpha) > 1)
    rounded += rounding_variance(e->alpha, ASSAY_F32) * s->sum * s->sum + storing_variance(product, ASSAY_F32);
  if (old != 0 && lattice_bits(e->beta) > 1)
    rounded += rounding_variance(e->beta, ASSAY_F32) * e->c * e->c + storing_variance(old, ASSAY_F32);
  if (s->start != 0) {
    if (old != 0 && e->bias != 0) rounded += storing_variance(s->start, ASSAY_F32);
  } else if (old != 0 || e->bias != 0) {
    const double first = fmax(fabs(product + old), fmax(fabs(product + e->bias), fabs(old + e->bias)));
    rounded += storing_variance(first, ASSAY_F32) + storing_variance(y, ASSAY_F32);
  }
  rounded += fmax(factor_variance(e->alpha, e->a, e->b, e->K), factor_variance(e->alpha, e->b, e->a, e->K));
  return e->alpha * e->alpha * gemm_variance(s, contract, e->a, e->b, e->K, in) + rounded + storing_variance(y, out);
}

/* ---- the exact tier ---------------------------------------------------------------------------------- */

/* Admits an element to the exact tier: the sum before and after alpha, and all three terms in any order. */
static assay_status admit(const assay_call *call, int64_t m, int64_t n, const element *e, const gemm_sum *s,
                          const assay_contract *contract, int low_a, int low_b, assay_error *error) {
  if (!gemm_admits(s, contract, low_a, low_b))
    return rowwise_refuse(call, m, n, "sum |a b|", s->abs + fabs(s->start),
                          ldexp(1, lattice_width(contract->partial) + low_a + low_b), error);
  if (assay_round_f64(e->alpha, ASSAY_F32) != e->alpha || assay_round_f64(e->beta, ASSAY_F32) != e->beta)
    return rowwise_refuse(call, m, n, "alpha, beta: significant bits", 53, 24, error);
  const double old = e->beta * e->c, size = fabs(e->alpha) * s->abs + fabs(old) + fabs(e->bias);
  int low = s->abs != 0 && e->alpha != 0 ? lattice_low(e->alpha) + low_a + low_b : LATTICE_ZERO;
  if (lattice_low(old) < low) low = lattice_low(old);
  if (lattice_low(e->bias) < low) low = lattice_low(e->bias);
  if (!lattice_admits(size, low, 24))
    return rowwise_refuse(call, m, n, "|alpha| sum |a b| + |beta c| + |bias|", size, ldexp(1, 24 + low), error);
  return ASSAY_OK;
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

/* Returns the element as an implementation with a planted error computes it. */
static double spoiled(const element *right, int32_t spoil, double neighbours_bias) {
  element e = *right;
  if (spoil == SPOIL_LAST_K_DROPPED) --e.K;
  if (spoil == SPOIL_ALPHA_LOST) e.alpha = 1;
  if (spoil == SPOIL_BETA_LOST) e.beta = 0;
  if (spoil == SPOIL_BIAS_LOST) e.bias = 0;
  if (spoil == SPOIL_NEIGHBOURS_BIAS) e.bias = neighbours_bias;
  if (spoil == SPOIL_BIAS_SCALED) e.bias *= e.alpha;
  return gemm(&e);
}

typedef struct gemm_run {
  const assay_call *call;
  const assay_contract *contract;
  const assay_rows *rows;
  bool exact;
  int32_t spoil;
  int64_t M, N, K, count;
  double alpha, beta;
  double *a, *b, *bias, *low_a; /* [count, K], [K], [N + 1], [count] */
  double *value, *sigma;        /* [count, N] */
} gemm_run;

/* Computes column n of the result for all rows, so that the weights of one channel are read once. */
static assay_status column(const gemm_run *run, int64_t n, assay_error *error) {
  const assay_tensor *B = &run->call->arg[ARG_B], *C = &run->call->arg[ARG_C];
  const int64_t K = run->K, next = n + 1 < run->N ? n + 1 : n;
  plain_load_row(B, run->spoil == SPOIL_NEIGHBOURS_WEIGHTS ? next : n, run->b);
  const int low_b = run->exact ? lattice_low_row(run->b, K) : 0;
  for (int64_t i = 0; i < run->count; ++i) {
    const int64_t m = rowwise_index(run->rows, i);
    const double old = run->beta != 0 ? assay_load_f64(C->data, C->dtype, m * run->N + n) : 0;
    const element e = {run->a + i * K, run->b, K, run->alpha, run->beta, old, run->bias[n]};
    double *value = run->value + i * run->N + n;
    *value = run->spoil == SPOIL_NONE ? gemm(&e) : spoiled(&e, run->spoil, run->bias[next]);
    if (run->sigma == NULL && !run->exact) continue;
    const double start = gemm_start(run->contract, run->alpha, run->beta * old + e.bias);
    const gemm_sum s = gemm_walk_from(start, e.a, e.b, K);
    if (run->sigma != NULL) run->sigma[i * run->N + n] = sqrt(variance(&e, &s, run->contract, B->dtype, C->dtype));
    if (!run->exact) continue;
    const assay_status status = admit(run->call, m, n, &e, &s, run->contract, (int)run->low_a[i], low_b, error);
    if (status != ASSAY_OK) return status;
  }
  return ASSAY_OK;
}

static assay_status compute(const assay_call *call, const assay_contract *contract, const assay_rows *rows, bool exact,
                            int32_t spoil, const assay_expected *expected, assay_error *error) {
  const assay_tensor *A = &call->arg[ARG_A], *bias = &call->arg[ARG_BIAS];
  gemm_run run = {.call = call, .rows = rows, .exact = exact, .spoil = spoil, .value = expected->value};
  run.contract = contract != NULL ? contract : &default_contract;
  run.sigma = expected->sigma;
  run.M = A->shape[0];
  run.K = A->shape[1];
  run.N = call->arg[ARG_B].shape[0];
  run.count = rowwise_count(rows, run.M);
  run.alpha = call->param[PARAM_ALPHA];
  run.beta = call->param[PARAM_BETA];
  assay_status status = rowwise_reserve(call, (run.count + 1) * run.K + run.N + run.count, &run.a, error);
  if (status != ASSAY_OK) return status;
  run.b = run.a + run.count * run.K;
  run.bias = run.b + run.K;
  run.low_a = run.bias + run.N;
  for (int64_t n = 0; n < run.N; ++n)
    run.bias[n] = bias->data != NULL ? assay_load_f64(bias->data, bias->dtype, n) : 0;
  for (int64_t i = 0; i < run.count; ++i) {
    const int64_t m = rowwise_index(rows, i), other = (m ^ 1) < run.M ? m ^ 1 : m;
    plain_load_row(A, spoil == SPOIL_ROW_SWAPPED ? other : m, run.a + i * run.K);
    run.low_a[i] = exact ? lattice_low_row(run.a + i * run.K, run.K) : 0;
  }
  for (int64_t n = 0; n < run.N && status == ASSAY_OK; ++n)
    status = column(&run, n, error);
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
  return compute(call, contract, rows, false, index, &values, error);
}

static void product(const assay_call *call, int64_t row, assay_product *p) {
  const assay_tensor *bias = &call->arg[ARG_BIAS];
  *p = (assay_product){.a = rowwise_row(&call->arg[ARG_A], row),
                       .b = call->arg[ARG_B],
                       .alpha = (float)call->param[PARAM_ALPHA],
                       .beta = (float)call->param[PARAM_BETA]};
  if (p->beta != 0) p->old = rowwise_row(&call->arg[ARG_C], row);
  if (bias->data != NULL)
    p->bias = (assay_tensor){
        .data = bias->data, .dtype = bias->dtype, .rank = 2, .shape = {1, bias->shape[0]}, .stride = {0, 1}};
}

static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *A = &call->arg[ARG_A], *C = &call->arg[ARG_C];
  const double M = (double)A->shape[0], K = (double)A->shape[1], N = (double)C->shape[1];
  const double in = (double)assay_dtype_size(A->dtype), out = (double)assay_dtype_size(C->dtype);
  const bool reads = call->param[PARAM_BETA] != 0, bias = call->arg[ARG_BIAS].data != NULL;
  return (assay_cost){2 * M * N * K + (reads ? 2 : 0) * M * N + (bias ? M * N : 0),
                      (M * K + N * K + (bias ? N : 0)) * in + (reads ? 2 : 1) * M * N * out};
}

/* Fills an argument. With beta = 0 the old C is all NaN, because no implementation may read it. */
static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  (void)error;
  plain_fill(from, (uint64_t)arg, value, count);
  for (int64_t i = 0; arg == ARG_C && from->call->param[PARAM_BETA] == 0 && i < count; ++i)
    value[i] = (double)NAN;
  return ASSAY_OK;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"M", 1, 1 << 20, 4, 1, "rows"},
    {"N", 1, 1 << 20, 64, 1, "output channels"},
    {"K", 1, 1 << 20, 64, 1, "input channels: terms of each sum"},
};

static const assay_arg args[ARG_COUNT] = {
    {"a", ASSAY_IN, ASSAY_VALUES, false, "f32,f16,bf16", "M,K", "activations; the row stride is free", true},
    {"b", ASSAY_IN, ASSAY_VALUES, false, "=a", "N,K", "weights, one row an output channel", false},
    {"bias", ASSAY_IN, ASSAY_VALUES, true, "=a", "N", "one for each output channel", false},
    {"c", ASSAY_INOUT, ASSAY_VALUES, false, "=a,f32", "M,N", "the result; read only with beta", false},
};

static const assay_param params[PARAM_COUNT] = {
    {"alpha", ASSAY_REAL, -1e6, 1e6, 1, NULL, "factor of the product"},
    {"beta", ASSAY_REAL, -1e6, 1e6, 0, NULL, "factor of the old c; 0: c is never read"},
};

static const assay_op op = {
    .name = "gemm",
    .title = "matrix product with weights [out, in]",
    .source = "docs/definitions.md, section 5",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .params = params,
    .param_count = PARAM_COUNT,
    .laws = "run_to_run,dead_bytes,permutation",
    .spoils =
        "last_k_dropped,row_swapped,neighbours_weights,alpha_lost,beta_lost,bias_lost,neighbours_bias,bias_scaled",
    .kappa_element = 7,
    .form = ASSAY_PLAIN,
    .row_dim = "M",
    .confirmed_by = "dgemm of another library; identity matrices; linearity in A; a sum taken backwards "
                    "(ref_linear_test)",
    .largest = 0x1p88,
    .check = plain_check_call,
    .reference = reference,
    .cost = cost,
    .fill = fill,
    .spoil = spoil,
    .product = product,
};

const assay_op *assay_op_gemm(void) {
  return &op;
}
