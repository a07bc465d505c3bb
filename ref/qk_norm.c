/* qk_norm: the norm of every head of q and of k, before their rotation. For row n, head h and channel d of q [N, H, D],
 * and of k [N, H_kv, D] likewise with its own weights:
 *
 *   rms     y_nhd = round(q_nhd / sqrt(sum_d q_nhd^2 / D + eps)) gamma_d
 *   uclip   y_nhd = gamma_d clip(alpha_d q_nhd, -1, 1) + beta_d
 *
 * gamma and alpha are one number, or one per channel. If absent they are 1, and beta is 0. round is as in rms_norm.
 * Written in place, or into q_out and k_out, the bits are the same. Source: docs/definitions.md, section 3. The
 * formulas and their error model are in ref/lib/norm.c. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "ref/lib/error_model.h"
#include "ref/lib/norm_rows.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"

enum {
  ARG_Q,
  ARG_K,
  ARG_Q_GAMMA,
  ARG_K_GAMMA,
  ARG_Q_ALPHA,
  ARG_K_ALPHA,
  ARG_Q_BETA,
  ARG_K_BETA,
  ARG_Q_OUT,
  ARG_K_OUT,
  ARG_COUNT
};
enum { PARAM_KIND, PARAM_EPS, PARAM_ROUND_INNER, PARAM_COUNT };
enum { KIND_RMS, KIND_UCLIP };

const assay_op *assay_op_qk_norm(void);

/* ---- planted errors ---------------------------------------------------------------------------------- */

/* Planted errors besides those of all norms (factor_of_row_before is the factor of the head before):
 *   weights_of_q_for_k  k takes the weights of q
 *   k_left              k stays as it was
 *   head_swapped        the heads 2 i and 2 i + 1 of q are exchanged
 *   norm_over_the_row   rms: one mean square for all heads of a row */
typedef enum own_spoil { OWN_NONE, OWN_WEIGHTS_OF_Q, OWN_K_LEFT, OWN_HEAD_SWAPPED, OWN_OVER_THE_ROW } own_spoil;

static own_spoil own_spoil_of(const assay_op *op, int32_t index) {
  static const char *const names[] = {"", "weights_of_q_for_k", "k_left", "head_swapped", "norm_over_the_row"};
  size_t size = 0;
  const char *name = norm_spoil_name(op, index, &size);
  for (int i = 1; name != NULL && i < (int)(sizeof names / sizeof names[0]); ++i)
    if (strlen(names[i]) == size && memcmp(names[i], name, size) == 0) return (own_spoil)i;
  return OWN_NONE;
}

/* ---- one of the two tensors -------------------------------------------------------------------------- */

typedef struct heads_run {
  const assay_call *call;
  const assay_contract *contract;
  const assay_tensor *in;
  norm f, right; /* right: f without the planted error */
  norm_spoil spoil;
  own_spoil own;
  bool exact, is_q;
  int64_t N, heads, D;
  double *row, *sigma; /* [heads, D] */
  double *scratch;     /* [2, D] */
} heads_run;

/* Returns the norm of q or k; memory: [3, D]. */
static norm norm_of(const assay_call *call, bool q, int64_t D, double *memory) {
  const bool uclip = call->param[PARAM_KIND] == KIND_UCLIP;
  int64_t step;
  norm f = {.kind = uclip ? NORM_UCLIP : NORM_RMS, .C = D, .dtype = call->arg[ARG_Q].dtype};
  f.kappa = call->op->kappa_element;
  f.eps = (double)(float)call->param[PARAM_EPS];
  f.round_inner = call->param[PARAM_ROUND_INNER] != 0;
  f.weight = norm_load_weight(call, q ? "q_gamma" : "k_gamma", memory, &f.weight_step);
  f.alpha = norm_load_weight(call, q ? "q_alpha" : "k_alpha", memory + D, &f.alpha_step);
  f.bias = norm_load_weight(call, q ? "q_beta" : "k_beta", memory + 2 * D, &step);
  return f;
}

/* Returns 1 / sqrt of the mean square over all heads. */
static double factor_of_row(const heads_run *run) {
  double square = 0;
  for (int64_t i = 0; i < run->heads * run->D; ++i)
    square += run->row[i] * run->row[i];
  return 1 / sqrt(square / (double)(run->heads * run->D) + run->f.eps);
}

static assay_status make_head(const heads_run *run, int64_t n, int64_t h, double *value, double *sigma,
                              assay_error *error) {
  const bool swaps = run->own == OWN_HEAD_SWAPPED && run->is_q && (h ^ 1) < run->heads;
  const double *x = run->row + (swaps ? h ^ 1 : h) * run->D;
  for (int64_t d = 0; run->exact && d < run->D; ++d) {
    double sum;
    if (!norm_uclip_exact(&run->f, d, x[d], &sum))
      return rowwise_refuse(run->call, n, h * run->D + d, "alpha x gamma, or its sum with beta, which f32 must hold",
                            sum, 0x1p24, error);
  }
  norm_moments m = norm_spoil_moments(run->spoil, &run->f, x, h > 0 ? x - run->D : NULL);
  if (run->own == OWN_OVER_THE_ROW && run->f.kind == NORM_RMS) m.factor = factor_of_row(run);
  norm_expect(&run->f, run->contract, m, x, value, sigma);
  norm_spoil_result(run->spoil, &run->f, x, value);
  norm_spoil_rounding(run->spoil, &run->right, run->contract, x, run->scratch, value);
  for (int64_t d = 0; run->own == OWN_K_LEFT && !run->is_q && d < run->D; ++d)
    value[d] = x[d];
  return ASSAY_OK;
}

static assay_status make_rows(const heads_run *run, const assay_rows *rows, const assay_expected *to,
                              assay_error *error) {
  const int64_t count = rowwise_count(rows, run->N), width = run->heads * run->D;
  assay_status status = ASSAY_OK;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t n = rowwise_index(rows, i), other = (n ^ 1) < run->N ? n ^ 1 : n;
    plain_load_row(run->in, run->spoil == NORM_ROW_SWAPPED ? other : n, run->row);
    for (int64_t h = 0; h < run->heads && status == ASSAY_OK; ++h) {
      double *sigma = to->sigma != NULL ? to->sigma + i * width : run->sigma;
      status = make_head(run, n, h, to->value + i * width + h * run->D, sigma + h * run->D, error);
    }
  }
  return status;
}

/* ---- callbacks --------------------------------------------------------------------------------------- */

static assay_status compute(const assay_call *call, const assay_contract *contract, const assay_rows *rows, bool exact,
                            int32_t spoil, assay_expected *expected, assay_error *error) {
  if (exact && call->param[PARAM_KIND] != KIND_UCLIP)
    return assay_fail(error, ASSAY_ERR_INPUT, "exact tier: kind: found rms, allowed uclip: a root is seldom exact");
  assay_status status = ASSAY_OK;
  for (int k = 0; k < 2 && status == ASSAY_OK; ++k) {
    const int32_t in = k != 0 ? ARG_K : ARG_Q, out = k != 0 ? ARG_K_OUT : ARG_Q_OUT;
    const assay_tensor *t = &call->arg[in];
    const int64_t heads = t->shape[1], D = t->shape[2];
    double *memory;
    status = rowwise_reserve(call, 6 * D + 2 * heads * D, &memory, error);
    if (status != ASSAY_OK) break;
    heads_run run = {.call = call, .in = t, .exact = exact, .is_q = k == 0, .heads = heads, .D = D, .N = t->shape[0]};
    run.contract = contract != NULL ? contract : &default_contract;
    run.own = spoil >= 0 ? own_spoil_of(call->op, spoil) : OWN_NONE;
    run.spoil = spoil >= 0 ? norm_spoil_of(call->op, spoil) : NORM_RIGHT;
    run.f = run.right = norm_of(call, k == 0 || run.own == OWN_WEIGHTS_OF_Q, D, memory);
    norm_spoil_weights(run.spoil, &run.f, memory + 3 * D);
    run.scratch = memory + 4 * D;
    run.row = memory + 6 * D;
    run.sigma = run.row + heads * D;
    const bool apart = call->arg[out].data != NULL;
    status = make_rows(&run, rows, &expected[rowwise_output(call, apart ? out : in)], error);
    if (apart && status == ASSAY_OK) rowwise_unchanged(t, rows, &expected[rowwise_output(call, in)]);
    free(memory);
  }
  return status;
}

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)seen;
  return compute(call, contract, rows, exact, -1, expected, error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  assay_expected values[ASSAY_MAX_OUTPUTS] = {{NULL, NULL}};
  const int32_t outputs = 2 + (call->arg[ARG_Q_OUT].data != NULL) + (call->arg[ARG_K_OUT].data != NULL);
  for (int32_t i = 0; i < outputs; ++i)
    values[i].value = expected[i].value;
  return compute(call, contract, rows, false, index, values, error);
}

/* Accepts what overflow leaves of a head, from implementations that do not rescale. */
static bool accepts(const assay_call *call, const assay_contract *contract, int32_t output, int64_t element,
                    double got) {
  if (contract->rescales || call->param[PARAM_KIND] != KIND_RMS) return false;
  for (int k = 0; k < 2; ++k) {
    const int32_t in = k != 0 ? ARG_K : ARG_Q, out = k != 0 ? ARG_K_OUT : ARG_Q_OUT;
    const assay_tensor *t = &call->arg[in];
    const int64_t D = t->shape[2], width = t->shape[1] * D;
    if (output != rowwise_output(call, call->arg[out].data != NULL ? out : in)) continue;
    double *memory;
    if (rowwise_reserve(call, 3 * D + width, &memory, NULL) != ASSAY_OK) return false;
    const norm f = norm_of(call, k == 0, D, memory);
    plain_load_row(t, element / width, memory + 3 * D);
    const double *x = memory + 3 * D + element % width / D * D;
    const bool good = norm_overflows(&f, norm_measure(&f, x), x) && norm_overflow_accepts(&f, element % D, got);
    free(memory);
    return good;
  }
  return false;
}

static assay_status check(const assay_call *call, assay_error *error) {
  plain_dims dims;
  assay_status status = plain_check(call, &dims, error);
  const int64_t D = status == ASSAY_OK ? plain_dim(call, &dims, "D") : 0;
  for (int32_t i = ARG_Q_GAMMA; i <= ARG_K_BETA && status == ASSAY_OK; ++i) {
    const char *name = call->op->args[i].name;
    if (i >= ARG_Q_ALPHA && call->param[PARAM_KIND] == KIND_RMS && call->arg[i].data != NULL)
      status = assay_fail(error, ASSAY_ERR_INPUT, "%s: found a tensor, allowed none with kind rms", name);
    if (status == ASSAY_OK && i < ARG_Q_BETA) status = norm_check_vector(call, name, D, error);
  }
  return status;
}

static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *q = &call->arg[ARG_Q], *k = &call->arg[ARG_K];
  const double heads = (double)(q->shape[1] + k->shape[1]);
  const double elements = (double)q->shape[0] * heads * (double)q->shape[2];
  double weights = 0;
  for (int32_t i = ARG_Q_GAMMA; i <= ARG_K_BETA; ++i)
    if (call->arg[i].data != NULL) weights += (double)call->arg[i].shape[0];
  const double flops = call->param[PARAM_KIND] == KIND_RMS ? 4 : 5;
  return (assay_cost){flops * elements, (2 * elements + weights) * (double)assay_dtype_size(q->dtype)};
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"N", 1, 1 << 20, 4, 1, "rows"},
    {"H", 1, 256, 8, 1, "query heads"},
    {"H_kv", 1, 256, 4, 1, "key heads"},
    {"D", 8, 256, 128, 8, "channels of a head"},
    {"alpha_n", 1, 256, 1, 1, "elements of q_alpha and k_alpha: 1 or D"},
    {"gamma_n", 1, 256, 1, 1, "elements of q_gamma and k_gamma: 1 or D"},
};

static const assay_arg args[ARG_COUNT] = {
    {"q", ASSAY_INOUT, ASSAY_VALUES, false, "f32,f16,bf16", "N,H,D", "queries; the row stride is free", true},
    {"k", ASSAY_INOUT, ASSAY_VALUES, false, "=q", "N,H_kv,D", "keys; the row stride is free", true},
    {"q_gamma", ASSAY_IN, ASSAY_VALUES, true, "=q", "gamma_n", "weight of q", false},
    {"k_gamma", ASSAY_IN, ASSAY_VALUES, true, "=q", "gamma_n", "weight of k", false},
    {"q_alpha", ASSAY_IN, ASSAY_VALUES, true, "=q", "alpha_n", "uclip: slope of q before the clip", false},
    {"k_alpha", ASSAY_IN, ASSAY_VALUES, true, "=q", "alpha_n", "uclip: slope of k before the clip", false},
    {"q_beta", ASSAY_IN, ASSAY_VALUES, true, "=q", "D", "uclip: offset of q", false},
    {"k_beta", ASSAY_IN, ASSAY_VALUES, true, "=q", "D", "uclip: offset of k", false},
    {"q_out", ASSAY_OUT, ASSAY_RESULT, true, "=q", "N,H,D", "the result; q keeps its bits", true},
    {"k_out", ASSAY_OUT, ASSAY_RESULT, true, "=q", "N,H_kv,D", "the result; k keeps its bits", true},
};

static const assay_param params[PARAM_COUNT] = {
    {"kind", ASSAY_ENUM, 0, 1, 0, "rms,uclip", "which norm"},
    {"eps", ASSAY_REAL, 1e-12, 1, 1e-6, NULL, "rms: added to the mean square, as f32"},
    {"round_inner", ASSAY_BOOL, 0, 1, 1, NULL, "rms: rounded to the type of q before the weight"},
};

static const assay_op op = {
    .name = "qk_norm",
    .title = "norm of every head of q and k",
    .source = "docs/definitions.md, section 3",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .params = params,
    .param_count = PARAM_COUNT,
    .laws = "run_to_run,dead_bytes,permutation,in_place",
    .spoils = "weight_lost,alpha_lost,bias_lost,neighbour_weight,alpha_of_first,eps_lost,inner_rounding_lost,"
              "sum_for_mean,factor_of_row_before,clip_lost,row_swapped,last_channel_dropped,weights_of_q_for_k,k_left,"
              "head_swapped,norm_over_the_row",
    .kappa_element = 7,
    .form = ASSAY_PLAIN,
    .row_dim = "N",
    .exact_with = "kind=uclip",
    .confirmed_by =
        "rms_norm and uclip_norm of every head alone, bit for bit, in place and out of place (ref_norm_test)",
    .largest = 0x1p126,
    .check = check,
    .reference = reference,
    .cost = cost,
    .fill = norm_fill,
    .accepts = accepts,
    .spoil = spoil,
};

const assay_op *assay_op_qk_norm(void) {
  return &op;
}
