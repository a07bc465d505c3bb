/* gemm_residual: the last product of a sublayer, the residual addition, and what the next rms_norm needs of a row. b
 * [N, K] holds weights as they are stored. For row m, channel n, and part j of eight channels:
 *
 *   r_mn       = round(sum_k a_mk b_nk + res_mn)              the value of res afterwards
 *   out_mn     = round(r_mn g_n)
 *   squares_mj = sum of r_mn^2 over n = 8 j .. 8 j + 7        in f32; the last part may have fewer channels
 *
 * The norm's division is deferred to the product that reads out (rms_gemm, gemm_glu). The sum is not rounded to a
 * storage type before the addition. Source: docs/definitions.md, section 3. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/error_model.h"
#include "ref/lib/gemm.h"
#include "ref/lib/lattice.h"
#include "ref/lib/norm.h"
#include "ref/lib/norm_rows.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"

enum { ARG_A, ARG_B, ARG_RES, ARG_G, ARG_OUT, ARG_SQUARES, ARG_COUNT };
enum { PART = 8 }; /* channels of a part */

typedef enum residual_spoil {
  SPOIL_NONE = -1,
  SPOIL_SUM_NOT_ROUNDED, /* out and squares are of r before its rounding */
  SPOIL_RESIDUAL_LOST,
  SPOIL_RESIDUAL_TWICE,
  SPOIL_FACTOR_LOST,
  SPOIL_NEIGHBOURS_FACTOR,
  SPOIL_SQUARES_BEFORE_RESIDUAL, /* squares are of the product alone */
  SPOIL_SQUARES_OF_OUT,
  SPOIL_PART_OF_OTHER_ROW, /* the part that the neighbouring row has */
  SPOIL_LAST_PART_LOST,
  SPOIL_LAST_OF_PART_LOST, /* a part lacks its last channel */
  SPOIL_NEIGHBOURS_WEIGHTS,
  SPOIL_ROW_SWAPPED, /* the neighbouring row of a among those computed */
  SPOIL_LAST_K_DROPPED
} residual_spoil;

const assay_op *assay_op_gemm_residual(void);

static const double kappa_element = 7;

/* The inputs of one element. a, b: [K]. */
typedef struct element {
  const double *a, *b;
  int64_t K;
  double res, g;
} element;

/* The numbers that an element becomes. square: what its part of the row adds. */
typedef struct results {
  double r, out, square;
} results;

/* ---- the definition ---------------------------------------------------------------------------------- */

/* Rounds to a 16-bit type. In f32, r has a rounding like every other step. */
static double round_middle(double value, assay_dtype dtype) {
  return dtype == ASSAY_F32 ? value : assay_round_f64(value, dtype);
}

static results gemm_residual(const element *e, assay_dtype dtype) {
  const double r = round_middle(gemm_dot(e->a, e->b, e->K) + e->res, dtype);
  return (results){r, r * e->g, r * r};
}

/* ---- the error model --------------------------------------------------------------------------------- */

/* Expects out and the square where r is Inf, or where it `may` be finite. The judge knows where Inf begins. Inf times a
 * weight of 0 is NaN. If r may be finite there, out is NaN or 0, and no expectation has both. */
static void expect_infinite(double t, double g, bool may, results *value, results *sigma) {
  const double beyond = 0x1p200;
  value->square = beyond;
  sigma->square = may ? 2 * beyond : 0;
  value->out = g == 0 ? (double)NAN : copysign(beyond, t * g);
  sigma->out = g == 0 && may ? (double)INFINITY : sigma->square;
}

/* Expects r and out of an element with the sum `sum`, whose variance is `of_sum`. In 16 bits r is one number, or one of
 * two where the errors of the sum may carry it over a boundary. out then follows from these. Elsewhere the error of r
 * reaches out by g. A square has the error 2 r times that of r. */
static void expect(const element *e, assay_dtype dtype, double sum, double of_sum, results *value, results *sigma) {
  const double t = sum + e->res, reach = kappa_element * sqrt(of_sum + storing_variance(t, ASSAY_F32));
  const double ends[2] = {round_middle(t - reach, dtype), round_middle(t + reach, dtype)};
  double unused;
  norm_store(t, of_sum, dtype, kappa_element, &value->r, &sigma->r);
  if (!assay_is_finite(ends[0]) || !assay_is_finite(ends[1])) {
    expect_infinite(t, e->g, assay_is_finite(ends[0]) || assay_is_finite(ends[1]), value, sigma);
    return;
  }
  value->square = value->r * value->r;
  sigma->square = sqrt(4 * value->square + sigma->r * sigma->r) * sigma->r;
  const bool settled = dtype != ASSAY_F32 && ends[1] - ends[0] <= assay_ulp(value->r, dtype);
  if (!settled) {
    norm_store(t * e->g, e->g * e->g * sigma->r * sigma->r, dtype, kappa_element, &value->out, &sigma->out);
    return;
  }
  norm_store(value->r * e->g, 0, dtype, kappa_element, &value->out, &sigma->out);
  for (int i = 0; i < 2; ++i) {
    double end;
    norm_store(ends[i] * e->g, 0, dtype, kappa_element, &end, &unused);
    sigma->out = fmax(sigma->out, fabs(end - value->out));
  }
}

/* Returns the variance of a part: those of its squares, their roundings and their sum in any order. */
static double part_variance(const double *square, const double *sigma, int64_t count) {
  double size = 0, fourth = 0, variance = 0;
  for (int64_t c = 0; c < count; ++c) {
    size += square[c];
    fourth += square[c] * square[c];
    variance += sigma[c] * sigma[c] + rounding_variance(square[c], ASSAY_F32);
  }
  /* Below the normal numbers each step rounds at the same spacing. */
  if (size < 0x1p-120) variance += 2 * PART * storing_variance(0, ASSAY_F32);
  return variance + size * size * outlier_variance(size, fourth, PART, 1) + rounding_variance(size, ASSAY_F32);
}

/* ---- the exact tier ---------------------------------------------------------------------------------- */

static assay_status admit(const assay_call *call, int64_t m, int64_t n, const element *e, const gemm_sum *sum,
                          const assay_contract *contract, int low_a, assay_error *error) {
  const int low_b = lattice_low_row(e->b, e->K), width = lattice_width(contract->partial);
  const double term[2] = {sum->sum, e->res};
  if (!gemm_admits(sum, contract, low_a, low_b))
    return rowwise_refuse(call, m, n, "sum |a b|", sum->abs, ldexp(1, width + low_a + low_b), error);
  if (!few_terms_exact(term, 2))
    return rowwise_refuse(call, m, n, "the sum with res, which f32 must hold", sum->sum + e->res, 0x1p24, error);
  const double r = round_middle(sum->sum + e->res, call->arg[ARG_A].dtype);
  const int bits = lattice_bits(r) + lattice_bits(e->g);
  if (bits > 24) return rowwise_refuse(call, m, n, "bits of r and g", bits, 24, error);
  return ASSAY_OK;
}

/* Admits a part: its squares, and their sum in any order. */
static assay_status admit_part(const assay_call *call, int64_t m, int64_t n, const double *square, int64_t count,
                               assay_error *error) {
  if (few_terms_exact(square, (int32_t)count)) return ASSAY_OK;
  return rowwise_refuse(call, m, n, "the squares of a part, whose sum f32 must hold", square[0], 0x1p24, error);
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

typedef struct residual_run {
  const assay_call *call;
  const assay_contract *contract;
  const assay_rows *rows;
  bool exact;
  residual_spoil spoil;
  assay_dtype dtype;
  int64_t M, N, K, count;
  double *a, *b, *next, *g, *low_a; /* [count, K], [K], [K]: the weights after b, [N], [count] */
  double *square, *sigma;           /* [count, N] */
  assay_expected r, out, squares;
} residual_run;

/* Returns the element as an implementation with a planted error computes it. */
static results spoiled(const element *e, assay_dtype dtype, residual_spoil spoil) {
  const double sum = gemm_dot(e->a, e->b, spoil == SPOIL_LAST_K_DROPPED ? e->K - 1 : e->K);
  double t = sum + e->res;
  if (spoil == SPOIL_RESIDUAL_LOST) t = sum;
  if (spoil == SPOIL_RESIDUAL_TWICE) t += e->res;
  const double r = round_middle(t, dtype), from = spoil == SPOIL_SUM_NOT_ROUNDED ? t : r;
  const double out = spoil == SPOIL_FACTOR_LOST ? from : from * e->g;
  double squared = from;
  if (spoil == SPOIL_SQUARES_BEFORE_RESIDUAL) squared = sum;
  if (spoil == SPOIL_SQUARES_OF_OUT) squared = round_middle(out, dtype);
  return (results){r, out, squared * squared};
}

/* Puts what an implementation with the planted error has, from `wrong`, where it differs from what `right` gives. */
static void plant(const residual_run *run, const element *wrong, const element *right, results *value) {
  const results found = spoiled(wrong, run->dtype, run->spoil), usual = gemm_residual(right, run->dtype);
  if (found.r != usual.r) value->r = found.r;
  if (found.out != usual.out) value->out = norm_stored(found.out, run->dtype);
  if (found.square != usual.square) value->square = found.square;
}

/* Computes channel n of r and out for all rows, so that its weights are read once, and keeps the squares. */
static assay_status channel(const residual_run *run, int64_t n, assay_error *error) {
  const assay_tensor *res = &run->call->arg[ARG_RES];
  const int64_t next = n + 1 < run->N ? n + 1 : n, apart = res->shape[0] > 1 ? res->stride[0] : 0;
  plain_load_row(&run->call->arg[ARG_B], n, run->b);
  if (run->spoil == SPOIL_NEIGHBOURS_WEIGHTS) plain_load_row(&run->call->arg[ARG_B], next, run->next);
  for (int64_t i = 0; i < run->count; ++i) {
    const int64_t m = rowwise_index(run->rows, i), at = i * run->N + n;
    const double *row = run->a + i * run->K, own = assay_load_f64(res->data, res->dtype, m * apart + n);
    const element e = {row, run->b, run->K, own, run->g[n]};
    const element wrong = {run->spoil == SPOIL_ROW_SWAPPED ? run->a + ((i ^ 1) < run->count ? i ^ 1 : i) * run->K : row,
                           run->spoil == SPOIL_NEIGHBOURS_WEIGHTS ? run->next : run->b, run->K, own,
                           run->g[run->spoil == SPOIL_NEIGHBOURS_FACTOR ? next : n]};
    const gemm_sum sum = gemm_walk(e.a, e.b, run->K);
    const double of_sum = gemm_variance(&sum, run->contract, e.a, e.b, run->K, run->dtype);
    results value = {0, 0, 0}, sigma = {0, 0, 0};
    expect(&e, run->dtype, sum.sum, of_sum, &value, &sigma);
    if (run->exact) {
      const assay_status status = admit(run->call, m, n, &e, &sum, run->contract, (int)run->low_a[i], error);
      if (status != ASSAY_OK) return status;
      value = gemm_residual(&e, run->dtype);
      value.out = round_middle(value.out, run->dtype);
    }
    if (run->spoil != SPOIL_NONE) plant(run, &wrong, &e, &value);
    run->r.value[at] = value.r;
    run->out.value[at] = value.out;
    run->square[at] = value.square;
    run->sigma[at] = sigma.square;
    if (run->r.sigma != NULL) run->r.sigma[at] = sigma.r;
    if (run->out.sigma != NULL) run->out.sigma[at] = sigma.out;
  }
  return ASSAY_OK;
}

/* Adds the squares of each part of row i. */
static assay_status add_parts(const residual_run *run, int64_t i, assay_error *error) {
  const int64_t parts = (run->N + PART - 1) / PART, m = rowwise_index(run->rows, i);
  int64_t from = i;
  if (run->spoil == SPOIL_PART_OF_OTHER_ROW) from = (i ^ 1) < run->count ? i ^ 1 : i;
  for (int64_t j = 0; j < parts; ++j) {
    const int64_t first = from * run->N + j * PART, left = run->N - j * PART, count = left < PART ? left : PART;
    const int64_t used = run->spoil == SPOIL_LAST_OF_PART_LOST ? count - 1 : count;
    double sum = 0;
    for (int64_t c = 0; c < used; ++c)
      sum += run->square[first + c];
    if (run->spoil == SPOIL_LAST_PART_LOST && j + 1 == parts) sum = 0;
    run->squares.value[i * parts + j] = sum;
    if (run->squares.sigma != NULL)
      run->squares.sigma[i * parts + j] = sqrt(part_variance(run->square + first, run->sigma + first, count));
    if (!run->exact) continue;
    const assay_status status = admit_part(run->call, m, j * PART, run->square + first, count, error);
    if (status != ASSAY_OK) return status;
  }
  return ASSAY_OK;
}

static assay_status compute(const assay_call *call, const assay_contract *contract, const assay_rows *rows, bool exact,
                            residual_spoil spoil, const assay_expected *expected, assay_error *error) {
  const assay_tensor *A = &call->arg[ARG_A], *g = &call->arg[ARG_G];
  residual_run run = {.call = call,
                      .contract = contract != NULL ? contract : &default_contract,
                      .rows = rows,
                      .exact = exact,
                      .spoil = spoil,
                      .dtype = A->dtype,
                      .M = A->shape[0],
                      .N = call->arg[ARG_OUT].shape[1],
                      .K = A->shape[1],
                      .count = rowwise_count(rows, A->shape[0]),
                      .r = expected[rowwise_output(call, ARG_RES)],
                      .out = expected[rowwise_output(call, ARG_OUT)],
                      .squares = expected[rowwise_output(call, ARG_SQUARES)]};
  const int64_t results_size = run.count * run.N;
  assay_status status =
      rowwise_reserve(call, (run.count + 2) * run.K + run.N + run.count + 2 * results_size, &run.a, error);
  if (status != ASSAY_OK) return status;
  run.b = run.a + run.count * run.K;
  run.next = run.b + run.K;
  run.g = run.next + run.K;
  run.low_a = run.g + run.N;
  run.square = run.low_a + run.count;
  run.sigma = run.square + results_size;
  assay_load_f64_row(g->data, g->dtype, 0, 1, run.N, run.g);
  for (int64_t i = 0; i < run.count; ++i) {
    plain_load_row(A, rowwise_index(rows, i), run.a + i * run.K);
    run.low_a[i] = exact ? lattice_low_row(run.a + i * run.K, run.K) : 0;
  }
  for (int64_t n = 0; n < run.N && status == ASSAY_OK; ++n)
    status = channel(&run, n, error);
  for (int64_t i = 0; i < run.count && status == ASSAY_OK; ++i)
    status = add_parts(&run, i, error);
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
  assay_expected values[3] = {{NULL, NULL}};
  for (int i = 0; i < 3; ++i)
    values[i].value = expected[i].value;
  return compute(call, contract, rows, false, (residual_spoil)index, values, error);
}

/* Describes res, output number 0: the product with what res held added. out and squares follow from its bits. */
static void product(const assay_call *call, int64_t row, assay_product *p) {
  *p = (assay_product){.a = rowwise_row(&call->arg[ARG_A], row),
                       .b = call->arg[ARG_B],
                       .alpha = 1,
                       .beta = 1,
                       .old = rowwise_row(&call->arg[ARG_RES], row)};
}

/* Counts the products, the addition, the product with g, and a square that is added. */
static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *A = &call->arg[ARG_A];
  const double M = (double)A->shape[0], K = (double)A->shape[1], N = (double)call->arg[ARG_OUT].shape[1];
  const double parts = (double)call->arg[ARG_SQUARES].shape[1];
  return (assay_cost){2 * M * N * K + 4 * M * N,
                      (M * K + N * K + N + 3 * M * N) * (double)assay_dtype_size(A->dtype) + 4 * M * parts};
}

/* Fills an argument. Weights are as small as K asks. On the lattice a is a whole number. b is a multiple of 1/16, and
 * more often 0 in long sums. res is a multiple of 1/64; bf16 cannot always hold it once the sum is added. */
static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  if (arg > ARG_RES) return norm_fill(from, arg, value, count, error);
  const int64_t K = from->call->arg[ARG_A].shape[1];
  assay_rng rng = {from->seed, 0x7265736900 + (uint64_t)arg, 0};
  if (from->values != ASSAY_LATTICE) {
    plain_fill(from, (uint64_t)arg, value, count);
    for (int64_t i = 0; arg == ARG_B && i < count; ++i)
      value[i] /= sqrt((double)K);
    return ASSAY_OK;
  }
  for (int64_t i = 0; i < count; ++i) {
    const bool dropped = arg == ARG_B && assay_rng_range(&rng, 0, K) > 128;
    const int64_t most = arg == ARG_A ? 1 : arg == ARG_B ? 2 : 511;
    const double unit = arg == ARG_A ? 1 : arg == ARG_B ? 0.0625 : 0.015625;
    const double drawn = unit * (double)assay_rng_range(&rng, -most, most);
    value[i] = dropped ? 0 : drawn;
  }
  return ASSAY_OK;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"M", 1, 1 << 20, 4, 1, "rows"},
    {"N", 1, 16384, 64, 1, "output channels"},
    {"K", 1, 1 << 20, 64, 1, "input channels: terms of each sum"},
};

static const assay_arg args[ARG_COUNT] = {
    {"a", ASSAY_IN, ASSAY_VALUES, false, "f32,f16,bf16", "M,K", "activations; the row stride is free", true},
    {"b", ASSAY_IN, ASSAY_VALUES, false, "=a", "N,K", "weights, one row an output channel", false},
    {"res", ASSAY_INOUT, ASSAY_VALUES, false, "=a", "M,N", "residual; becomes the rounded sum", true},
    {"g", ASSAY_IN, ASSAY_VALUES, false, "=a", "N", "weight of the norm after it", false},
    {"out", ASSAY_OUT, ASSAY_RESULT, false, "=a", "M,N", "the rounded sum times g", true},
    {"squares", ASSAY_OUT, ASSAY_RESULT, false, "f32", "M,N^8", "sum of squares of each eight channels", false},
};

static const assay_op op = {
    .name = "gemm_residual",
    .title = "product, residual addition, and the weight and squares of a deferred rms_norm",
    .source = "docs/definitions.md, section 3",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .laws = "run_to_run,dead_bytes,permutation",
    .spoils = "sum_not_rounded,residual_lost,residual_twice,factor_lost,neighbours_factor,squares_before_residual,"
              "squares_of_out,part_of_other_row,last_part_lost,last_of_part_lost,neighbours_weights,row_swapped,"
              "last_k_dropped",
    .kappa_element = 7,
    .form = ASSAY_PLAIN,
    .row_dim = "M",
    .confirmed_by = "the product of another library, added, scaled and squared; and the kernels of gemm with beta 1, "
                    "bit for bit (ref_gemm_norm_test)",
    .largest = 0x1p24,
    .check = plain_check_call,
    .reference = reference,
    .cost = cost,
    .fill = fill,
    .spoil = spoil,
    .product = product,
};

const assay_op *assay_op_gemm_residual(void) {
  return &op;
}
