/* post_attn_pre_mlp_uclip: the seam of a peri-norm layer between attention and MLP. For row n and channel c:
 *
 *   y_nc   = round(post_gamma_c clip(post_alpha_c a_nc, -1, 1) + post_beta_c)
 *   r_nc   = round(y_nc + res_nc)                         the value of res, or res_out, afterwards
 *   out_nc = pre_gamma_c clip(pre_alpha_c r_nc, -1, 1) + pre_beta_c
 *
 * Both roundings in the middle belong to the definition. alpha and gamma are one number, or one per channel. beta may
 * be absent. Source: docs/definitions.md, section 3. uclip and its error are in ref/lib/norm.c. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "ref/lib/error_model.h"
#include "ref/lib/norm_rows.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"

enum {
  ARG_A,
  ARG_RES,
  ARG_POST_ALPHA,
  ARG_POST_GAMMA,
  ARG_POST_BETA,
  ARG_PRE_ALPHA,
  ARG_PRE_GAMMA,
  ARG_PRE_BETA,
  ARG_OUT,
  ARG_RES_OUT,
  ARG_COUNT
};
enum {
  SPOIL_NONE = -1,
  SPOIL_INNER_ROUNDING_LOST,
  SPOIL_SUM_NOT_ROUNDED,
  SPOIL_NORMS_EXCHANGED,
  SPOIL_POST_LOST,
  SPOIL_PRE_LOST,
  SPOIL_RESIDUAL_LOST,
  SPOIL_POST_OF_SUM, /* the residual is added before the first norm */
  SPOIL_ROW_SWAPPED,
  SPOIL_LAST_CHANNEL_DROPPED
};

const assay_op *assay_op_post_attn_pre_mlp_uclip(void);

/* There are seven roundings that may be alike: none of their sums exceeds sqrt(3 · 7) deviations. */
static const double kappa_element = 4.6;

typedef struct seam {
  norm post, pre;
  assay_dtype dtype;
} seam;

/* ---- the definition ---------------------------------------------------------------------------------- */

/* Rounds to a 16-bit type. f32 rounds like every step of the arithmetic; only 16-bit roundings belong to the
 * definition. */
static double round_middle(const seam *s, double value) {
  return s->dtype == ASSAY_F32 ? value : assay_round_f64(value, s->dtype);
}

static void post_attn_pre_mlp_uclip(const seam *s, int64_t c, double a, double res, double *r, double *out) {
  const double y = round_middle(s, norm_uclip(&s->post, c, a));
  *r = round_middle(s, y + res);
  *out = norm_uclip(&s->pre, c, *r);
}

/* ---- the error model --------------------------------------------------------------------------------- */

/* A number, and the farthest numbers that an implementation may have in its place. */
typedef struct range {
  double low, middle, high;
} range;

static double reach_of(range x) {
  return fmax(x.high - x.middle, x.middle - x.low);
}

/* Expects 16-bit results. The error of y's arithmetic may push it over a boundary, and then r. */
static void expect_narrow(const seam *s, int64_t c, double a, double res, assay_expected *r, assay_expected *out,
                          int64_t at) {
  const double y = norm_uclip(&s->post, c, a), variance = norm_uclip_variance(&s->post, c, a);
  const double last = variance > 0 ? storing_variance(y, ASSAY_F32) : rounding_variance(y, ASSAY_F32);
  const double reach = kappa_element * sqrt(variance + last);
  const range sum = {round_middle(s, round_middle(s, y - reach) + res), round_middle(s, round_middle(s, y) + res),
                     round_middle(s, round_middle(s, y + reach) + res)};
  r->value[at] = sum.middle;
  r->sigma[at] = reach_of(sum);
  norm_store(norm_uclip(&s->pre, c, sum.middle), norm_uclip_variance(&s->pre, c, sum.middle), s->dtype, kappa_element,
             &out->value[at], &out->sigma[at]);
  if (r->sigma[at] == 0) return;
  const double ends[2] = {sum.low, sum.high};
  for (int i = 0; i < 2; ++i) {
    const double other = fabs(round_middle(s, norm_uclip(&s->pre, c, ends[i])) - out->value[at]);
    if (other > out->sigma[at]) out->sigma[at] = other;
  }
}

/* Expects f32 results: independent roundings, through the slope of the second norm. */
static void expect_wide(const seam *s, int64_t c, double a, double res, assay_expected *r, assay_expected *out,
                        int64_t at) {
  double y, y_sigma, value;
  norm_store(norm_uclip(&s->post, c, a), norm_uclip_variance(&s->post, c, a), ASSAY_F32, kappa_element, &y, &y_sigma);
  post_attn_pre_mlp_uclip(s, c, a, res, &r->value[at], &value);
  const double sum = y_sigma > 0 ? storing_variance(y + res, ASSAY_F32) : rounding_variance(y + res, ASSAY_F32);
  r->sigma[at] = sqrt(y_sigma * y_sigma + sum);
  const double slope = norm_uclip_slope(&s->pre, c, r->value[at], r->sigma[at]);
  const double carried = slope * slope * r->sigma[at] * r->sigma[at];
  norm_store(value, carried + norm_uclip_variance(&s->pre, c, r->value[at]), ASSAY_F32, kappa_element, &out->value[at],
             &out->sigma[at]);
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

/* Returns the norm of alpha, gamma and beta, from argument `first` on; memory: [3, C]. */
static norm norm_of(const assay_call *call, int32_t first, int64_t C, double *memory) {
  norm f = {.kind = NORM_UCLIP, .C = C, .dtype = call->arg[ARG_A].dtype, .kappa = kappa_element};
  int64_t step;
  f.alpha = norm_load_weight(call, call->op->args[first].name, memory, &f.alpha_step);
  f.weight = norm_load_weight(call, call->op->args[first + 1].name, memory + C, &f.weight_step);
  f.bias = norm_load_weight(call, call->op->args[first + 2].name, memory + 2 * C, &step);
  return f;
}

static void spoil_channel(const seam *s, int32_t spoil, int64_t c, double a, double res, double *r, double *out) {
  const seam exchanged = {s->pre, s->post, s->dtype}, *used = spoil == SPOIL_NORMS_EXCHANGED ? &exchanged : s;
  double y = norm_uclip(&used->post, c, a), unused;
  if (spoil == SPOIL_POST_LOST) y = a;
  if (spoil == SPOIL_POST_OF_SUM) y = norm_uclip(&s->post, c, round_middle(s, a + res));
  if (spoil != SPOIL_INNER_ROUNDING_LOST) y = round_middle(s, y);
  const double sum = spoil == SPOIL_RESIDUAL_LOST || spoil == SPOIL_POST_OF_SUM ? y : y + res;
  *r = round_middle(s, sum);
  const double in = spoil == SPOIL_SUM_NOT_ROUNDED ? sum : *r;
  norm_store(norm_uclip(&used->pre, c, in), norm_uclip_variance(&used->pre, c, in), s->dtype, kappa_element, out,
             &unused);
  if (spoil == SPOIL_PRE_LOST) *out = *r;
}

static assay_status admit(const assay_call *call, const seam *s, int64_t n, int64_t c, double a, double r,
                          assay_error *error) {
  double sum;
  if (norm_uclip_exact(&s->post, c, a, &sum) && norm_uclip_exact(&s->pre, c, r, &sum)) return ASSAY_OK;
  return rowwise_refuse(call, n, c, "alpha x gamma, or its sum with beta, which f32 must hold", sum, 0x1p24, error);
}

typedef struct seam_run {
  const assay_call *call;
  seam s;
  bool exact;
  int32_t spoil;
  int64_t N, C;
  double *a, *res; /* [C] */
  double *scratch; /* [2, C] sigma if the caller wants none */
} seam_run;

static assay_status make_row(const seam_run *run, int64_t n, int64_t i, const assay_expected *r,
                             const assay_expected *out, assay_error *error) {
  const int64_t C = run->C, other = (n ^ 1) < run->N ? n ^ 1 : n, from = run->spoil == SPOIL_ROW_SWAPPED ? other : n;
  const seam *s = &run->s;
  plain_load_row(&run->call->arg[ARG_A], from, run->a);
  plain_load_row(&run->call->arg[ARG_RES], from, run->res);
  assay_expected sum = {r->value + i * C, r->sigma != NULL ? r->sigma + i * C : run->scratch};
  assay_expected result = {out->value + i * C, out->sigma != NULL ? out->sigma + i * C : run->scratch + C};
  assay_status status = ASSAY_OK;
  for (int64_t c = 0; c < C && status == ASSAY_OK; ++c) {
    if (s->dtype == ASSAY_F32)
      expect_wide(s, c, run->a[c], run->res[c], &sum, &result, c);
    else
      expect_narrow(s, c, run->a[c], run->res[c], &sum, &result, c);
    if (run->exact) status = admit(run->call, s, n, c, run->a[c], sum.value[c], error);
    if (run->spoil != SPOIL_NONE)
      spoil_channel(s, run->spoil, c, run->a[c], run->res[c], &sum.value[c], &result.value[c]);
  }
  if (run->spoil == SPOIL_LAST_CHANNEL_DROPPED) result.value[C - 1] = 0;
  return status;
}

static assay_status compute(const assay_call *call, const assay_rows *rows, bool exact, int32_t spoil,
                            assay_expected *expected, assay_error *error) {
  const assay_tensor *a = &call->arg[ARG_A], *res = &call->arg[ARG_RES];
  const int64_t N = a->shape[0], C = a->shape[1], count = rowwise_count(rows, N);
  const bool apart = call->arg[ARG_RES_OUT].data != NULL;
  double *memory;
  assay_status status = rowwise_reserve(call, 10 * C, &memory, error);
  if (status != ASSAY_OK) return status;
  seam_run run = {.call = call, .exact = exact, .spoil = spoil, .N = N, .C = C};
  run.s = (seam){norm_of(call, ARG_POST_ALPHA, C, memory), norm_of(call, ARG_PRE_ALPHA, C, memory + 3 * C), a->dtype};
  run.a = memory + 6 * C;
  run.res = memory + 7 * C;
  run.scratch = memory + 8 * C;
  const assay_expected *r = &expected[rowwise_output(call, apart ? ARG_RES_OUT : ARG_RES)];
  const assay_expected *out = &expected[rowwise_output(call, ARG_OUT)];
  for (int64_t i = 0; i < count && status == ASSAY_OK; ++i)
    status = make_row(&run, rowwise_index(rows, i), i, r, out, error);
  if (apart && status == ASSAY_OK) rowwise_unchanged(res, rows, &expected[rowwise_output(call, ARG_RES)]);
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
  assay_expected values[ASSAY_MAX_OUTPUTS] = {{NULL, NULL}};
  const int32_t outputs = call->arg[ARG_RES_OUT].data != NULL ? 3 : 2;
  for (int32_t i = 0; i < outputs; ++i)
    values[i].value = expected[i].value;
  return compute(call, rows, false, index, values, error);
}

static assay_status check(const assay_call *call, assay_error *error) {
  static const int32_t vectors[] = {ARG_POST_ALPHA, ARG_POST_GAMMA, ARG_PRE_ALPHA, ARG_PRE_GAMMA};
  plain_dims dims;
  assay_status status = plain_check(call, &dims, error);
  for (int i = 0; i < 4 && status == ASSAY_OK; ++i)
    status = norm_check_vector(call, call->op->args[vectors[i]].name, call->arg[ARG_A].shape[1], error);
  return status;
}

static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *a = &call->arg[ARG_A];
  const double elements = (double)a->shape[0] * (double)a->shape[1];
  double weights = 0;
  for (int32_t i = ARG_POST_ALPHA; i <= ARG_PRE_BETA; ++i)
    if (call->arg[i].data != NULL) weights += (double)call->arg[i].shape[0];
  return (assay_cost){11 * elements, (4 * elements + weights) * (double)assay_dtype_size(a->dtype)};
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"N", 1, 1 << 20, 4, 1, "rows"},
    {"C", 1, 16384, 64, 1, "channels"},
    {"alpha_n", 1, 16384, 1, 1, "elements of post_alpha and pre_alpha: 1 or C"},
    {"gamma_n", 1, 16384, 1, 1, "elements of post_gamma and pre_gamma: 1 or C"},
};

static const assay_arg args[ARG_COUNT] = {
    {"a", ASSAY_IN, ASSAY_VALUES, false, "f32,f16,bf16", "N,C", "output of attention; the row stride is free", true},
    {"res", ASSAY_INOUT, ASSAY_VALUES, false, "=a", "N,C",
     "residual; becomes the rounded sum, unless res_out is present", true},
    {"post_alpha", ASSAY_IN, ASSAY_VALUES, false, "=a", "alpha_n", "first norm: slope before the clip", false},
    {"post_gamma", ASSAY_IN, ASSAY_VALUES, false, "=a", "gamma_n", "first norm: factor after the clip", false},
    {"post_beta", ASSAY_IN, ASSAY_VALUES, true, "=a", "C", "first norm: offset", false},
    {"pre_alpha", ASSAY_IN, ASSAY_VALUES, false, "=a", "alpha_n", "second norm: slope before the clip", false},
    {"pre_gamma", ASSAY_IN, ASSAY_VALUES, false, "=a", "gamma_n", "second norm: factor after the clip", false},
    {"pre_beta", ASSAY_IN, ASSAY_VALUES, true, "=a", "C", "second norm: offset", false},
    {"out", ASSAY_OUT, ASSAY_RESULT, false, "=a", "N,C", "the second norm", true},
    {"res_out", ASSAY_OUT, ASSAY_RESULT, true, "=a", "N,C", "the rounded sum; res keeps its bits", true},
};

static const assay_op op = {
    .name = "post_attn_pre_mlp_uclip",
    .title = "uclip_norm after attention, residual addition, uclip_norm before the MLP",
    .source = "docs/definitions.md, section 3",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .laws = "run_to_run,dead_bytes,permutation,in_place",
    .spoils = "inner_rounding_lost,sum_not_rounded,norms_exchanged,post_lost,pre_lost,residual_lost,post_of_sum,"
              "row_swapped,last_channel_dropped",
    .kappa_element = 4.6,
    .form = ASSAY_PLAIN,
    .row_dim = "N",
    .confirmed_by = "uclip_norm, addition and uclip_norm one after the other, bit for bit (ref_norm_test)",
    .check = check,
    .reference = reference,
    .cost = cost,
    .fill = norm_fill,
    .spoil = spoil,
};

const assay_op *assay_op_post_attn_pre_mlp_uclip(void) {
  return &op;
}
