/* gemm_post_pre_uclip: the last product of a sublayer in a peri-norm layer, with the seam after it. b [N, K] holds
 * weights as they are stored. For row m and channel n:
 *
 *   s      = sum_k a_mk b_nk
 *   r_mn   = round(post_gamma_n clip(post_alpha_n s, -1, 1) + post_beta_n + res_mn)        the value of res afterwards
 *   out_mn = round(pre_gamma_n clip(pre_alpha_n r_mn, -1, 1) + pre_beta_n)
 *
 * Neither s nor the first norm is rounded to a storage type. The rounding of r belongs to the definition. alpha and
 * gamma are one number, or one per channel. beta may be absent. Source: docs/definitions.md, section 3. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/error_model.h"
#include "ref/lib/gemm.h"
#include "ref/lib/lattice.h"
#include "ref/lib/norm_rows.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"

enum {
  ARG_A,
  ARG_B,
  ARG_RES,
  ARG_POST_ALPHA,
  ARG_POST_GAMMA,
  ARG_POST_BETA,
  ARG_PRE_ALPHA,
  ARG_PRE_GAMMA,
  ARG_PRE_BETA,
  ARG_OUT,
  ARG_COUNT
};

typedef enum seam_spoil {
  SPOIL_NONE = -1,
  SPOIL_SUM_NOT_ROUNDED, /* the second norm is of r before its rounding */
  SPOIL_NORMS_EXCHANGED,
  SPOIL_POST_LOST,
  SPOIL_PRE_LOST,
  SPOIL_RESIDUAL_LOST,
  SPOIL_RESIDUAL_TWICE,
  SPOIL_POST_OF_SUM,        /* the residual is added before the first norm */
  SPOIL_POST_IN_PARTS,      /* the first norm is of each half of k, and the two are added */
  SPOIL_NEIGHBOURS_WEIGHTS, /* the row of b after */
  SPOIL_ROW_SWAPPED,        /* the neighbouring row of a */
  SPOIL_LAST_K_DROPPED
} seam_spoil;

const assay_op *assay_op_gemm_post_pre_uclip(void);

static const double kappa_element = 7;

typedef struct seam {
  norm post, pre;
  assay_dtype dtype;
} seam;

/* The inputs of one element of the result. a, b: [K]. */
typedef struct element {
  const double *a, *b;
  int64_t K, n;
  double res;
} element;

/* The two numbers that an element becomes. */
typedef struct results {
  double r, out;
} results;

/* ---- the definition ---------------------------------------------------------------------------------- */

/* Rounds to a 16-bit type. In f32, r has a rounding like every other step. */
static double round_middle(const seam *s, double value) {
  return s->dtype == ASSAY_F32 ? value : assay_round_f64(value, s->dtype);
}

static results gemm_post_pre_uclip(const seam *s, const element *e) {
  const double r = round_middle(s, norm_uclip(&s->post, e->n, gemm_dot(e->a, e->b, e->K)) + e->res);
  return (results){r, norm_uclip(&s->pre, e->n, r)};
}

/* ---- the error model --------------------------------------------------------------------------------- */

/* Expects the results of an element with the sum `sum`, whose variance is `of_sum`. t is r before its rounding. It has
 * the errors of the sum, of the norm and of the addition. In 16 bits they seldom carry t over a boundary between two
 * numbers. r is then one number, or one of two, and out follows from these. Elsewhere the error of r reaches out by the
 * slope of the second norm. */
static void expect(const seam *s, const element *e, double sum, double of_sum, results *value, results *sigma) {
  const int64_t n = e->n;
  const double y = norm_uclip(&s->post, n, sum), t = y + e->res;
  const double steep = norm_uclip_slope(&s->post, n, sum, sqrt(of_sum));
  const double arithmetic = norm_uclip_variance(&s->post, n, sum) + storing_variance(y, ASSAY_F32);
  const double variance = steep * steep * of_sum + arithmetic;
  norm_store(t, variance, s->dtype, kappa_element, &value->r, &sigma->r);
  const double reach = kappa_element * sqrt(variance + storing_variance(t, ASSAY_F32));
  const double ends[2] = {round_middle(s, t - reach), round_middle(s, t + reach)};
  const bool settled = s->dtype != ASSAY_F32 && ends[1] - ends[0] <= assay_ulp(value->r, s->dtype);
  if (!settled) {
    const double slope = norm_uclip_slope(&s->pre, n, t, sigma->r);
    norm_store(norm_uclip(&s->pre, n, t), slope * slope * sigma->r * sigma->r + norm_uclip_variance(&s->pre, n, t),
               s->dtype, kappa_element, &value->out, &sigma->out);
    return;
  }
  norm_store(norm_uclip(&s->pre, n, value->r), norm_uclip_variance(&s->pre, n, value->r), s->dtype, kappa_element,
             &value->out, &sigma->out);
  for (int i = 0; i < 2; ++i)
    sigma->out = fmax(sigma->out, fabs(round_middle(s, norm_uclip(&s->pre, n, ends[i])) - value->out));
}

/* ---- the exact tier ---------------------------------------------------------------------------------- */

/* Admits an element: the sum, both norms, and the addition of the residual. */
static assay_status admit(const assay_call *call, const seam *s, int64_t m, const element *e, const gemm_sum *sum,
                          const assay_contract *contract, int low_a, assay_error *error) {
  const int low_b = lattice_low_row(e->b, e->K), width = lattice_width(contract->partial);
  const double y = norm_uclip(&s->post, e->n, sum->sum), beta = s->post.bias != NULL ? s->post.bias[e->n] : 0;
  const double term[3] = {y - beta, beta, e->res};
  double found = 0;
  if (!gemm_admits(sum, contract, low_a, low_b))
    return rowwise_refuse(call, m, e->n, "sum |a b|", sum->abs, ldexp(1, width + low_a + low_b), error);
  if (norm_uclip_exact(&s->post, e->n, sum->sum, &found) && few_terms_exact(term, 3) &&
      norm_uclip_exact(&s->pre, e->n, round_middle(s, y + e->res), &found))
    return ASSAY_OK;
  return rowwise_refuse(call, m, e->n, "a norm, or the sum of the first with res, which f32 must hold", found, 0x1p24,
                        error);
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

typedef struct seam_run {
  const assay_call *call;
  const assay_contract *contract;
  const assay_rows *rows;
  bool exact;
  seam_spoil spoil;
  seam s;
  int64_t N, K, count;
  double *a, *b, *low_a; /* [count, K], [K], [count] */
  assay_expected r, out;
} seam_run;

/* Returns the norm of alpha, gamma and beta, from argument `first` on; memory: [3, N]. */
static norm norm_of(const assay_call *call, int32_t first, int64_t N, double *memory) {
  norm f = {.kind = NORM_UCLIP, .C = N, .dtype = call->arg[ARG_A].dtype, .kappa = kappa_element};
  int64_t step;
  f.alpha = norm_load_weight(call, call->op->args[first].name, memory, &f.alpha_step);
  f.weight = norm_load_weight(call, call->op->args[first + 1].name, memory + N, &f.weight_step);
  f.bias = norm_load_weight(call, call->op->args[first + 2].name, memory + 2 * N, &step);
  return f;
}

/* Returns the element as an implementation with a planted error computes it. */
static results spoiled(const seam *s, const element *e, seam_spoil spoil) {
  const seam exchanged = {s->pre, s->post, s->dtype}, *used = spoil == SPOIL_NORMS_EXCHANGED ? &exchanged : s;
  const int64_t n = e->n, K = spoil == SPOIL_LAST_K_DROPPED ? e->K - 1 : e->K, half = K / 2;
  const double sum = gemm_dot(e->a, e->b, K);
  double t = norm_uclip(&used->post, n, sum) + e->res, unused;
  if (spoil == SPOIL_POST_LOST) t = sum + e->res;
  if (spoil == SPOIL_RESIDUAL_LOST) t -= e->res;
  if (spoil == SPOIL_RESIDUAL_TWICE) t += e->res;
  if (spoil == SPOIL_POST_OF_SUM) t = norm_uclip(&s->post, n, sum + e->res);
  if (spoil == SPOIL_POST_IN_PARTS)
    t = norm_uclip(&s->post, n, gemm_dot(e->a, e->b, half)) +
        norm_uclip(&s->post, n, gemm_dot(e->a + half, e->b + half, K - half)) + e->res;
  results found = {round_middle(s, t), 0};
  const double in = spoil == SPOIL_SUM_NOT_ROUNDED ? t : found.r;
  norm_store(norm_uclip(&used->pre, n, in), 0, s->dtype, kappa_element, &found.out, &unused);
  if (spoil == SPOIL_PRE_LOST) found.out = found.r;
  return found;
}

/* Computes channel n of both results for all rows, so that its weights are read once. */
static assay_status channel(const seam_run *run, int64_t n, assay_error *error) {
  const assay_tensor *res = &run->call->arg[ARG_RES];
  const int64_t next = n + 1 < run->N ? n + 1 : n, apart = res->shape[0] > 1 ? res->stride[0] : 0;
  plain_load_row(&run->call->arg[ARG_B], run->spoil == SPOIL_NEIGHBOURS_WEIGHTS ? next : n, run->b);
  for (int64_t i = 0; i < run->count; ++i) {
    const int64_t m = rowwise_index(run->rows, i), at = i * run->N + n;
    const element e = {run->a + i * run->K, run->b, run->K, n, assay_load_f64(res->data, res->dtype, m * apart + n)};
    results value = {0, 0}, sigma = {0, 0};
    if (run->spoil != SPOIL_NONE) {
      value = spoiled(&run->s, &e, run->spoil);
    } else {
      const gemm_sum sum = gemm_walk(e.a, e.b, run->K);
      const double of_sum = gemm_variance(&sum, run->contract, e.a, e.b, run->K, run->s.dtype);
      expect(&run->s, &e, sum.sum, of_sum, &value, &sigma);
      if (run->exact) {
        const assay_status status = admit(run->call, &run->s, m, &e, &sum, run->contract, (int)run->low_a[i], error);
        if (status != ASSAY_OK) return status;
        value = gemm_post_pre_uclip(&run->s, &e);
        value.out = round_middle(&run->s, value.out);
      }
    }
    run->r.value[at] = value.r;
    run->out.value[at] = value.out;
    if (run->r.sigma != NULL) run->r.sigma[at] = sigma.r;
    if (run->out.sigma != NULL) run->out.sigma[at] = sigma.out;
  }
  return ASSAY_OK;
}

static assay_status compute(const assay_call *call, const assay_contract *contract, const assay_rows *rows, bool exact,
                            seam_spoil spoil, const assay_expected *expected, assay_error *error) {
  const assay_tensor *A = &call->arg[ARG_A];
  const int64_t M = A->shape[0], N = call->arg[ARG_OUT].shape[1];
  seam_run run = {.call = call,
                  .contract = contract != NULL ? contract : &default_contract,
                  .rows = rows,
                  .exact = exact,
                  .spoil = spoil,
                  .N = N,
                  .K = A->shape[1],
                  .count = rowwise_count(rows, M),
                  .r = expected[rowwise_output(call, ARG_RES)],
                  .out = expected[rowwise_output(call, ARG_OUT)]};
  double *memory;
  assay_status status = rowwise_reserve(call, 6 * N + (run.count + 1) * run.K + run.count, &memory, error);
  if (status != ASSAY_OK) return status;
  run.s = (seam){norm_of(call, ARG_POST_ALPHA, N, memory), norm_of(call, ARG_PRE_ALPHA, N, memory + 3 * N), A->dtype};
  run.a = memory + 6 * N;
  run.b = run.a + run.count * run.K;
  run.low_a = run.b + run.K;
  for (int64_t i = 0; i < run.count; ++i) {
    const int64_t m = rowwise_index(rows, i), other = (m ^ 1) < M ? m ^ 1 : m;
    plain_load_row(A, spoil == SPOIL_ROW_SWAPPED ? other : m, run.a + i * run.K);
    run.low_a[i] = exact ? lattice_low_row(run.a + i * run.K, run.K) : 0;
  }
  for (int64_t n = 0; n < N && status == ASSAY_OK; ++n)
    status = channel(&run, n, error);
  free(memory);
  return status;
}

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)seen;
  return compute(call, contract, rows, exact, SPOIL_NONE, expected, error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  const assay_expected values[2] = {{expected[0].value, NULL}, {expected[1].value, NULL}};
  return compute(call, contract, rows, false, (seam_spoil)index, values, error);
}

static assay_status check(const assay_call *call, assay_error *error) {
  static const int32_t vectors[] = {ARG_POST_ALPHA, ARG_POST_GAMMA, ARG_PRE_ALPHA, ARG_PRE_GAMMA};
  plain_dims dims;
  assay_status status = plain_check(call, &dims, error);
  for (int i = 0; i < 4 && status == ASSAY_OK; ++i)
    status = norm_check_vector(call, call->op->args[vectors[i]].name, call->arg[ARG_RES].shape[1], error);
  return status;
}

static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *A = &call->arg[ARG_A];
  const double M = (double)A->shape[0], K = (double)A->shape[1], N = (double)call->arg[ARG_OUT].shape[1];
  double weights = N * K;
  for (int32_t i = ARG_POST_ALPHA; i <= ARG_PRE_BETA; ++i)
    if (call->arg[i].data != NULL) weights += (double)call->arg[i].shape[0];
  return (assay_cost){2 * M * N * K + 11 * M * N, (M * K + weights + 3 * M * N) * (double)assay_dtype_size(A->dtype)};
}

/* Fills an argument. Weights are as small as K asks, so that sums lie on both sides of the clip. On the lattice a is a
 * whole number, and b and res are multiples of 1/16. */
static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  if (arg > ARG_RES) return norm_fill(from, arg, value, count, error);
  const double K = (double)from->call->arg[ARG_A].shape[1];
  assay_rng rng = {from->seed, 0x7365616D00 + (uint64_t)arg, 0};
  plain_fill(from, (uint64_t)arg, value, count);
  for (int64_t i = 0; i < count; ++i)
    if (from->values == ASSAY_LATTICE)
      value[i] = arg == ARG_A   ? (double)assay_rng_range(&rng, -1, 1)
                 : arg == ARG_B ? 0.0625 * (double)assay_rng_range(&rng, -2, 2)
                                : 0.0625 * (double)assay_rng_range(&rng, -31, 31);
    else if (arg == ARG_B)
      value[i] /= sqrt(K);
  return ASSAY_OK;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"M", 1, 1 << 20, 4, 1, "rows"},
    {"N", 1, 16384, 64, 1, "output channels"},
    {"K", 1, 1 << 20, 64, 1, "input channels: terms of each sum"},
    {"alpha_n", 1, 16384, 1, 1, "elements of post_alpha and pre_alpha: 1 or N"},
    {"gamma_n", 1, 16384, 1, 1, "elements of post_gamma and pre_gamma: 1 or N"},
};

static const assay_arg args[ARG_COUNT] = {
    {"a", ASSAY_IN, ASSAY_VALUES, false, "f32,f16,bf16", "M,K", "activations; the row stride is free", true},
    {"b", ASSAY_IN, ASSAY_VALUES, false, "=a", "N,K", "weights, one row an output channel", false},
    {"res", ASSAY_INOUT, ASSAY_VALUES, false, "=a", "M,N", "residual; becomes the rounded sum", true},
    {"post_alpha", ASSAY_IN, ASSAY_VALUES, false, "=a", "alpha_n", "first norm: slope before the clip", false},
    {"post_gamma", ASSAY_IN, ASSAY_VALUES, false, "=a", "gamma_n", "first norm: factor after the clip", false},
    {"post_beta", ASSAY_IN, ASSAY_VALUES, true, "=a", "N", "first norm: offset", false},
    {"pre_alpha", ASSAY_IN, ASSAY_VALUES, false, "=a", "alpha_n", "second norm: slope before the clip", false},
    {"pre_gamma", ASSAY_IN, ASSAY_VALUES, false, "=a", "gamma_n", "second norm: factor after the clip", false},
    {"pre_beta", ASSAY_IN, ASSAY_VALUES, true, "=a", "N", "second norm: offset", false},
    {"out", ASSAY_OUT, ASSAY_RESULT, false, "=a", "M,N", "the second norm", true},
};

static const assay_op op = {
    .name = "gemm_post_pre_uclip",
    .title = "product, then uclip_norm, residual addition and uclip_norm",
    .source = "docs/definitions.md, section 3",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .laws = "run_to_run,dead_bytes,permutation",
    .spoils = "sum_not_rounded,norms_exchanged,post_lost,pre_lost,residual_lost,residual_twice,post_of_sum,"
              "post_in_parts,neighbours_weights,row_swapped,last_k_dropped",
    .kappa_element = 7,
    .form = ASSAY_PLAIN,
    .row_dim = "M",
    .confirmed_by = "the product of another library, clipped, added and clipped again; and the kernels of gemm and "
                    "post_attn_pre_mlp_uclip, one after the other (ref_gemm_seam_test)",
    .largest = 0x1p88,
    .check = check,
    .reference = reference,
    .cost = cost,
    .fill = fill,
    .spoil = spoil,
};

const assay_op *assay_op_gemm_post_pre_uclip(void) {
  return &op;
}
