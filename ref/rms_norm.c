/* rms_norm: divides every row by its root mean square. For row n and channel c:
 *
 *   r_n = sqrt(sum_c x_nc^2 / C + eps)     y_nc = round(x_nc / r_n) g_c
 *
 * round is to the type of x, as Llama and Qwen3 define it, or nothing (round_inner off). The formula and its error
 * model are in ref/lib/norm.c. The forms below add a gate z, groups of channels and a weight of 1 + g:
 *
 *   v_nc = x_nc, or x_nc silu(z_nc) (gate before)          silu(z) = z / (1 + exp(-z))
 *   r = sqrt(mean of v^2 over the channel's group + eps)    group channels, or all C (group 0)
 *   y_nc = round(v_nc / r) · (g_c, or 1 + g_c with plus_one) · (silu(z_nc), gate after)
 *
 * 1 + g is f32. g has the type of x, or f32. plus_one with round_inner is refused (choice: no model has both). Source:
 * docs/definitions.md, section 3. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/error_model.h"
#include "ref/lib/norm_rows.h"
#include "ref/lib/norm_tables.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"

const assay_op *assay_op_rms_norm(void);

enum { ARG_X, ARG_G, ARG_Z, ARG_Y, ARG_COUNT };
enum { PARAM_EPS, PARAM_ROUND_INNER, PARAM_PLUS_ONE, PARAM_GATE, PARAM_GROUP, PARAM_COUNT };
enum { GATE_AFTER, GATE_BEFORE };

/* Planted errors of the forms. Their names follow those of NORM_RMS_SPOILS. */
typedef enum form_spoil {
  FORM_RIGHT = -1,
  WEIGHT_LOST,
  NEIGHBOUR_WEIGHT,
  EPS_LOST,
  INNER_ROUNDING_LOST,
  SUM_FOR_MEAN,
  FACTOR_OF_ROW_BEFORE,
  ROW_SWAPPED,
  LAST_CHANNEL_DROPPED,
  PLUS_ONE_LOST,         /* the weight is g */
  PLUS_ONE_IN_BF16,      /* 1 + g is rounded to bf16 */
  WEIGHT_READ_AS_BF16,   /* the bytes of an f32 weight are read as bf16 */
  GATE_BEFORE_FOR_AFTER, /* the gate multiplies at the other place */
  GATE_LOST,             /* silu(z) is 1 */
  GROUP_IS_ROW           /* one mean for the whole row */
} form_spoil;

/* A call with any of the forms. */
typedef struct form {
  const assay_call *call;
  int64_t N, C, group;
  double eps;
  bool plus_one, round_inner, before, after;
  assay_dtype dtype;
  form_spoil spoil;
  double *weight;      /* [C] g, or 1 + g */
  double *z, *v;       /* [C] a row */
  double *other;       /* [C] v of the row before */
  double *n, *n_sigma; /* [C] v / r in f32 */
} form;

/* ---- the definition ---------------------------------------------------------------------------------- */

static double silu(double z) {
  return z / (1 + exp(-z));
}

/* Returns 1 / r of the group that starts at channel `first`. */
static double factor_of(const form *f, const double *v, int64_t first, int64_t channels) {
  double square = 0;
  for (int64_t c = first; c < first + channels; ++c)
    square += v[c] * v[c];
  return 1 / sqrt(square / (double)channels + f->eps);
}

static double result(const form *f, int64_t c, double n) {
  return n * f->weight[c] * (f->after ? silu(f->z[c]) : 1);
}

/* ---- the error model --------------------------------------------------------------------------------- */

/* Returns the relative variance of x silu(z) or n silu(z): exp, 1 + exp, the quotient and the product. Where sigmoid is
 * below the normal numbers of f32, it may be 0. */
static double gate_variance(const assay_contract *contract, double z) {
  const double s = 1 / (1 + exp(-z)), function = function_variance(contract->exp_ulp);
  return (1 - s) * (1 - s) * function + function + 3 * f32_variance + (s < 0x1p-126 ? 1 : 0);
}

/* Expects channel c from n and its deviation, which includes the last rounding of n to f32. Under `partial` n · g is
 * rounded to that type. */
static void expect_channel(const form *f, const assay_contract *contract, int64_t c, double *value, double *sigma) {
  const double w = f->weight[c], t = f->after ? silu(f->z[c]) : 1, kappa = f->call->op->kappa_element;
  const bool rounds = f->round_inner && f->dtype != ASSAY_F32;
  const double reach = kappa * f->n_sigma[c], n = rounds ? assay_round_f64(f->n[c], f->dtype) : f->n[c];
  const double y = result(f, c, n);
  double variance = rounds ? 0 : f->n_sigma[c] * f->n_sigma[c] * w * w * t * t;
  if (f->plus_one) variance += n * n * t * t * rounding_variance(w, ASSAY_F32);
  if (f->after) variance += y * y * (gate_variance(contract, f->z[c]) + f32_variance);
  if (f->after && contract->partial != ASSAY_NONE) variance += t * t * storing_variance(n * w, contract->partial);
  variance += below_normal_variance((const double[3]){n, w, t}, 3, contract->ftz);
  norm_store(y, variance, f->dtype, kappa, value, sigma);
  if (!rounds) return;
  const double low = assay_round_f64(f->n[c] - reach, f->dtype), high = assay_round_f64(f->n[c] + reach, f->dtype);
  if (low == high) return;
  /* Either neighbour of n is right, and so is what is stored for it. */
  const double from_low = fabs(norm_stored(result(f, c, low), f->dtype) - *value);
  *sigma += fmax(from_low, fabs(norm_stored(result(f, c, high), f->dtype) - *value));
}

/* Expects n = v / r of a group. A gate before it adds its own error to v. Through the sum of squares it adds as much
 * again to r, where all gates are alike. */
static void expect_group(const form *f, const assay_contract *contract, int64_t first, double factor) {
  const norm plain = {
      .kind = NORM_RMS, .C = f->group, .eps = f->eps, .dtype = ASSAY_F32, .kappa = f->call->op->kappa_element};
  norm_expect(&plain, contract, (norm_moments){0, factor}, f->v + first, f->n + first, f->n_sigma + first);
  if (!f->before) return;
  const double shared = 2 * function_variance(contract->exp_ulp) + 3 * f32_variance;
  for (int64_t c = first; c < first + f->group; ++c) {
    const double gate = gate_variance(contract, f->z[c]) + shared, n = f->n[c];
    const double below = f->v[c] != 0 && fabs(f->v[c]) < 0x1p-126 ? storing_variance(0, ASSAY_F32) : 0;
    f->n_sigma[c] = sqrt(f->n_sigma[c] * f->n_sigma[c] + n * n * gate + factor * factor * below);
  }
}

/* ---- planted errors ---------------------------------------------------------------------------------- */

static double as_bf16(const assay_tensor *g, int64_t c) {
  uint16_t half;
  memcpy(&half, (const char *)g->data + 2 * c, sizeof half);
  return assay_load_f64(&half, ASSAY_BF16, 0);
}

static void load_weights(form *f) {
  const assay_tensor *g = &f->call->arg[ARG_G];
  for (int64_t c = 0; c < f->C; ++c) {
    const int64_t from = f->spoil == NEIGHBOUR_WEIGHT ? (c + 1) % f->C : c;
    const bool bytes = f->spoil == WEIGHT_READ_AS_BF16 && g->dtype == ASSAY_F32;
    double w = bytes ? as_bf16(g, from) : assay_load_f64(g->data, g->dtype, from);
    if (f->plus_one && f->spoil != PLUS_ONE_LOST) w += 1;
    if (f->plus_one && f->spoil == PLUS_ONE_IN_BF16) w = assay_round_f64(w, ASSAY_BF16);
    f->weight[c] = f->spoil == WEIGHT_LOST ? 1 : w;
  }
}

static double spoilt_factor(const form *f, int64_t first, bool has_before) {
  const double right = factor_of(f, f->v, first, f->group), square = 1 / (right * right) - f->eps;
  if (f->spoil == EPS_LOST && square > 0 && f->eps >= square / 8) return 1 / sqrt(square);
  if (f->spoil == SUM_FOR_MEAN) return 1 / sqrt(square * (double)f->group + f->eps);
  if (f->spoil == FACTOR_OF_ROW_BEFORE && has_before) return factor_of(f, f->other, first, f->group);
  if (f->spoil == GROUP_IS_ROW) return factor_of(f, f->v, 0, f->C);
  return right;
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

static bool has_form(const assay_call *call) {
  return call->arg[ARG_Z].data != NULL || call->param[PARAM_PLUS_ONE] != 0 || call->param[PARAM_GROUP] != 0 ||
         call->arg[ARG_G].dtype != call->arg[ARG_X].dtype;
}

static form form_of(const assay_call *call, form_spoil spoil) {
  const bool gated = call->arg[ARG_Z].data != NULL && spoil != GATE_LOST;
  const bool before = (call->param[PARAM_GATE] == GATE_BEFORE) != (spoil == GATE_BEFORE_FOR_AFTER);
  const int64_t C = call->arg[ARG_X].shape[1], group = (int64_t)call->param[PARAM_GROUP];
  return (form){.call = call,
                .N = call->arg[ARG_X].shape[0],
                .C = C,
                .group = group > 0 ? group : C,
                .eps = assay_round_f64(call->param[PARAM_EPS], ASSAY_F32),
                .plus_one = call->param[PARAM_PLUS_ONE] != 0,
                .round_inner = call->param[PARAM_ROUND_INNER] != 0 && spoil != INNER_ROUNDING_LOST,
                .before = gated && before,
                .after = gated && !before,
                .dtype = call->arg[ARG_X].dtype,
                .spoil = spoil};
}

/* Loads v of a row, and its z. */
static void load_row(const form *f, int64_t row, double *v) {
  plain_load_row(&f->call->arg[ARG_X], row, v);
  if (f->before || f->after) plain_load_row(&f->call->arg[ARG_Z], row, f->z);
  for (int64_t c = 0; f->before && c < f->C; ++c)
    v[c] *= silu(f->z[c]);
}

static void make_row(const form *f, const assay_contract *contract, int64_t row, double *value, double *sigma) {
  const int64_t other = f->spoil == ROW_SWAPPED && (row ^ 1) < f->N ? row ^ 1 : row;
  if (f->spoil == FACTOR_OF_ROW_BEFORE && row > 0) load_row(f, row - 1, f->other);
  load_row(f, other, f->v);
  for (int64_t first = 0; first < f->C; first += f->group)
    expect_group(f, contract, first, spoilt_factor(f, first, row > 0));
  for (int64_t c = 0; c < f->C; ++c) {
    double right;
    expect_channel(f, contract, c, &value[c], sigma != NULL ? &sigma[c] : &right);
  }
  if (f->spoil == LAST_CHANNEL_DROPPED) value[f->C - 1] = 0;
}

/* Where round(n) may fall on either side anyway, no implementation that leaves the rounding out can be told. */
static void keep_undecided(form *f, const assay_contract *contract, double *value) {
  f->round_inner = true;
  for (int64_t c = 0; c < f->C; ++c) {
    double right, sigma;
    expect_channel(f, contract, c, &right, &sigma);
    if (sigma > 0) value[c] = right;
  }
  f->round_inner = false;
}

static assay_status compute(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                            form_spoil spoil, assay_expected *expected, assay_error *error) {
  const assay_contract *c = contract != NULL ? contract : &default_contract;
  form f = form_of(call, spoil);
  const int64_t count = rowwise_count(rows, f.N), C = f.C;
  double *memory;
  assay_status status = rowwise_reserve(call, 6 * C, &memory, error);
  if (status != ASSAY_OK) return status;
  f.weight = memory;
  f.z = memory + C;
  f.v = memory + 2 * C;
  f.other = memory + 3 * C;
  f.n = memory + 4 * C;
  f.n_sigma = memory + 5 * C;
  load_weights(&f);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = rowwise_index(rows, i);
    double *value = expected->value + i * C;
    make_row(&f, c, row, value, expected->sigma != NULL ? expected->sigma + i * C : NULL);
    if (spoil == INNER_ROUNDING_LOST && call->param[PARAM_ROUND_INNER] != 0) keep_undecided(&f, c, value);
  }
  free(memory);
  return ASSAY_OK;
}

static assay_status check(const assay_call *call, assay_error *error) {
  const assay_status status = norm_rows_check(call, error);
  if (status != ASSAY_OK) return status;
  const long long C = call->arg[ARG_X].shape[1], group = (long long)call->param[PARAM_GROUP];
  if (group > 0 && C % group != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "group: found %lld, allowed 0 and divisors of C = %lld", group, C);
  if (call->param[PARAM_PLUS_ONE] != 0 && call->param[PARAM_ROUND_INNER] != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "plus_one: found true with round_inner, allowed without it");
  return ASSAY_OK;
}

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  if (exact || !has_form(call)) return norm_rms_reference(call, contract, rows, exact, expected, seen, error);
  return compute(call, contract, rows, FORM_RIGHT, expected, error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  assay_expected values = {expected->value, NULL};
  if (!has_form(call)) return norm_rms_spoil(call, contract, rows, index, expected, error);
  return compute(call, contract, rows, (form_spoil)index, &values, error);
}

/* Accepts what overflow leaves of a group, from implementations that do not rescale: a factor of 0, or NaN. */
static bool accepts(const assay_call *call, const assay_contract *contract, int32_t output, int64_t element,
                    double got) {
  double *memory, square = 0;
  if (!has_form(call)) return norm_rms_accepts(call, contract, output, element, got);
  form f = form_of(call, FORM_RIGHT);
  if (contract->rescales || rowwise_reserve(call, 2 * f.C, &memory, NULL) != ASSAY_OK) return false;
  f.z = memory + f.C;
  load_row(&f, element / f.C, memory);
  const int64_t first = element % f.C / f.group * f.group;
  for (int64_t c = first; c < first + f.group; ++c)
    square += memory[c] * memory[c];
  free(memory);
  return square >= 0x1p128 * (1 - 0x1p-10) && (isnan(got) || got == 0);
}

/* Counts the plain norm, 1 + g, and a gate as five; z is read once. */
static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  const assay_tensor *x = &call->arg[ARG_X], *g = &call->arg[ARG_G];
  const double C = (double)x->shape[1], elements = (double)x->shape[0] * C, size = (double)assay_dtype_size(x->dtype);
  assay_cost plain = norm_rms_cost(call, seen); /* counts every tensor in the type of x */
  plain.bytes += C * ((double)assay_dtype_size(g->dtype) - size);
  plain.flops += (call->param[PARAM_PLUS_ONE] != 0 ? C : 0) + (call->arg[ARG_Z].data != NULL ? 6 * elements : 0);
  return plain;
}

/* Gates are normal numbers of twice the usual size. Beside rows of other magnitudes silu is at most 1. */
static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  if (arg != ARG_Z) return norm_fill(from, arg, value, count, error);
  assay_rng rng = {from->seed, 0x67617465, 0};
  plain_fill(from, (uint64_t)arg, value, count);
  for (int64_t i = 0; i < count; ++i)
    value[i] = from->magnitude == ASSAY_USUAL ? 2 * value[i] : 2 * assay_rng_unit(&rng) - 1;
  return ASSAY_OK;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {NORM_DIMS};

static const assay_arg args[ARG_COUNT] = {
    NORM_X,
    {"g", ASSAY_IN, ASSAY_VALUES, false, "=x,f32", "C", "weight", false},
    {"z", ASSAY_IN, ASSAY_VALUES, true, "=x", "N,C", "gate: silu(z) is a factor", true},
    NORM_Y,
};

static const assay_param params[PARAM_COUNT] = {
    NORM_RMS_PARAMS,
    {"plus_one", ASSAY_BOOL, 0, 1, 0, NULL, "the weight is 1 + g, in f32; not with round_inner"},
    {"gate", ASSAY_ENUM, 0, 1, GATE_AFTER, "after,before", "where silu(z) multiplies: the result, or x"},
    {"group", ASSAY_INTEGER, 0, 16384, 0, NULL, "channels of one mean, a divisor of C; 0: C"},
};

static const assay_op op = {
    .name = "rms_norm",
    .title = "division by the root mean square",
    .source = "docs/definitions.md, section 3",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .params = params,
    .param_count = PARAM_COUNT,
    .laws = "run_to_run,dead_bytes,permutation",
    .spoils = NORM_RMS_SPOILS ",plus_one_lost,plus_one_in_bf16,weight_read_as_bf16,gate_before_for_after,gate_lost,"
                              "group_is_row",
    .kappa_element = 7,
    .form = ASSAY_PLAIN,
    .row_dim = "N",
    .inexact = true,
    .confirmed_by = "constant rows, scaled rows, sums in another order and values by hand; the forms by the plain norm "
                    "of changed inputs (ref_norm_test)",
    .extreme_args = "x,g",
    .largest = 0x1p126,
    .check = check,
    .reference = reference,
    .cost = cost,
    .fill = fill,
    .accepts = accepts,
    .spoil = spoil,
};

const assay_op *assay_op_rms_norm(void) {
  return &op;
}
