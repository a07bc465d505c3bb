/* norm_rows.c: y = norm(x) and y = norm(res <- round(x + res)) over rows [N, C]. */
#include "ref/lib/norm_rows.h"

#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/error_model.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"

/* ---- a call ------------------------------------------------------------------------------------------ */

static const assay_tensor *tensor_of(const assay_call *call, const char *name) {
  return assay_find_arg(call, name);
}

static int32_t arg_index(const assay_call *call, const char *name) {
  for (int32_t i = 0; i < call->op->arg_count; ++i)
    if (strcmp(call->op->args[i].name, name) == 0) return i;
  return -1;
}

const double *norm_load_weight(const assay_call *call, const char *name, double *memory, int64_t *step) {
  const assay_tensor *t = tensor_of(call, name);
  *step = 0;
  if (t == NULL) return NULL;
  *step = t->shape[0] > 1;
  assay_load_f64_row(t->data, t->dtype, 0, 1, t->shape[0], memory);
  return memory;
}

/* Returns the norm of a call; `memory` has room for 3 C numbers. */
static norm norm_of(const assay_call *call, norm_kind kind, int64_t C, double *memory) {
  const bool uclip = kind == NORM_UCLIP;
  int64_t bias_step;
  norm f = {.kind = kind, .C = C, .dtype = tensor_of(call, "x")->dtype, .kappa = call->op->kappa_element};
  f.weight = norm_load_weight(call, uclip ? "gamma" : "g", memory, &f.weight_step);
  f.bias = norm_load_weight(call, uclip ? "beta" : "b", memory + C, &bias_step);
  f.alpha = norm_load_weight(call, "alpha", memory + 2 * C, &f.alpha_step);
  if (!uclip) f.eps = (double)(float)assay_find_param(call, "eps");
  if (kind == NORM_RMS) f.round_inner = assay_find_param(call, "round_inner") != 0;
  return f;
}

/* ---- one row ----------------------------------------------------------------------------------------- */

typedef struct rows_run {
  const assay_call *call;
  const assay_contract *contract;
  const assay_tensor *x, *res; /* res: NULL if no residual is added */
  norm f, right;               /* right: f without the planted error */
  norm_spoil spoil;
  bool exact;
  int64_t N, C;
  double *row, *before, *sum, *sigma; /* [C] each */
  double *scratch;                    /* [2, C] */
} rows_run;

/* Loads the normalised values of row n: x, or round(x + res). One f32 addition gives round(x + res) exactly. Where that
 * addition rounds at all, the second rounding, to 16 bits, finds no tie that the first one made. */
static void load_row(const rows_run *run, int64_t n, double *x) {
  plain_load_row(run->x, n, x);
  if (run->res == NULL || run->spoil == NORM_RESIDUAL_LOST) return;
  plain_load_row(run->res, n, run->sum);
  const bool rounds = run->spoil != NORM_SUM_NOT_ROUNDED || run->f.dtype == ASSAY_F32;
  for (int64_t c = 0; c < run->C; ++c) {
    const double sum = x[c] + run->sum[c];
    x[c] = rounds ? assay_round_f64(sum, run->f.dtype) : sum;
  }
}

static assay_status admit_row(const rows_run *run, int64_t n, const double *x, assay_error *error) {
  for (int64_t c = 0; c < run->C; ++c) {
    double sum;
    if (!norm_uclip_exact(&run->f, c, x[c], &sum))
      return rowwise_refuse(run->call, n, c, "alpha x gamma, or its sum with beta, which f32 must hold", sum, 0x1p24,
                            error);
  }
  return ASSAY_OK;
}

static assay_status make_row(const rows_run *run, int64_t n, double *value, double *sigma, double *stored,
                             double *stored_sigma, assay_error *error) {
  const int64_t other = run->spoil == NORM_ROW_SWAPPED && (n ^ 1) < run->N ? n ^ 1 : n;
  load_row(run, other, run->row);
  const bool needs_before = run->spoil == NORM_FACTOR_OF_ROW_BEFORE && n > 0;
  if (needs_before) load_row(run, n - 1, run->before);
  const norm_moments m = norm_spoil_moments(run->spoil, &run->f, run->row, needs_before ? run->before : NULL);
  if (run->exact) {
    const assay_status status = admit_row(run, n, run->row, error);
    if (status != ASSAY_OK) return status;
  }
  norm_expect(&run->f, run->contract, m, run->row, value, sigma != NULL ? sigma : run->sigma);
  norm_spoil_result(run->spoil, &run->f, run->row, value);
  for (int64_t c = 0; c < run->C; ++c)
    run->row[c] = assay_round_f64(run->row[c], run->f.dtype);
  norm_spoil_rounding(run->spoil, &run->right, run->contract, run->row, run->scratch, value);
  for (int64_t c = 0; stored != NULL && c < run->C; ++c) {
    stored[c] = run->row[c];
    if (stored_sigma != NULL) stored_sigma[c] = 0;
  }
  return ASSAY_OK;
}

/* ---- callbacks --------------------------------------------------------------------------------------- */

static assay_status compute(norm_kind kind, const assay_call *call, const assay_contract *contract,
                            const assay_rows *rows, bool exact, norm_spoil spoil, assay_expected *expected,
                            assay_error *error) {
  const assay_tensor *x = tensor_of(call, "x"), *res = tensor_of(call, "res");
  const int64_t N = x->shape[0], C = x->shape[1], count = rowwise_count(rows, N);
  if (exact && kind != NORM_UCLIP)
    return assay_fail(error, ASSAY_ERR_INPUT, "exact tier: %s: a root is seldom exact", call->op->name);
  double *memory;
  assay_status status = rowwise_reserve(call, 10 * C, &memory, error);
  if (status != ASSAY_OK) return status;
  rows_run run = {.call = call, .contract = contract != NULL ? contract : &default_contract, .x = x, .res = res};
  run.f = run.right = norm_of(call, kind, C, memory);
  norm_spoil_weights(spoil, &run.f, memory + 3 * C);
  run.spoil = spoil;
  run.exact = exact;
  run.N = N;
  run.C = C;
  run.row = memory + 4 * C;
  run.before = memory + 5 * C;
  run.sum = memory + 6 * C;
  run.sigma = memory + 7 * C;
  run.scratch = memory + 8 * C;

  const assay_expected *y = &expected[rowwise_output(call, arg_index(call, "y"))];
  const bool apart = tensor_of(call, "res_out") != NULL;
  assay_expected *in_out = res != NULL ? &expected[rowwise_output(call, arg_index(call, "res"))] : NULL;
  const assay_expected *to = apart ? &expected[rowwise_output(call, arg_index(call, "res_out"))] : in_out;
  for (int64_t i = 0; i < count && status == ASSAY_OK; ++i)
    status = make_row(&run, rowwise_index(rows, i), y->value + i * C, y->sigma != NULL ? y->sigma + i * C : NULL,
                      to != NULL ? to->value + i * C : NULL, to != NULL && to->sigma != NULL ? to->sigma + i * C : NULL,
                      error);
  if (apart && status == ASSAY_OK) rowwise_unchanged(res, rows, in_out);
  free(memory);
  return status;
}

static assay_status compute_spoilt(norm_kind kind, const assay_call *call, const assay_contract *contract,
                                   const assay_rows *rows, int32_t index, assay_expected *expected,
                                   assay_error *error) {
  assay_expected values[ASSAY_MAX_OUTPUTS] = {{NULL, NULL}};
  int32_t outputs = 0;
  for (int32_t i = 0; i < call->op->arg_count; ++i)
    if (call->op->args[i].role != ASSAY_IN && call->arg[i].data != NULL) ++outputs;
  for (int32_t i = 0; i < outputs; ++i)
    values[i].value = expected[i].value;
  return compute(kind, call, contract, rows, false, norm_spoil_of(call->op, index), values, error);
}

/* Accepts what overflow leaves of a row, from implementations that do not rescale. */
static bool accepts(norm_kind kind, const assay_call *call, const assay_contract *contract, int32_t output,
                    int64_t element, double got) {
  const assay_tensor *x = tensor_of(call, "x");
  const int64_t C = x->shape[1];
  double *memory;
  if (contract->rescales || output != rowwise_output(call, arg_index(call, "y"))) return false;
  if (rowwise_reserve(call, 6 * C, &memory, NULL) != ASSAY_OK) return false;
  rows_run run = {.call = call, .x = x, .res = tensor_of(call, "res"), .N = x->shape[0], .C = C};
  run.f = norm_of(call, kind, C, memory);
  run.row = memory + 3 * C;
  run.sum = memory + 4 * C;
  load_row(&run, element / C, run.row);
  const bool good =
      norm_overflows(&run.f, norm_measure(&run.f, run.row), run.row) && norm_overflow_accepts(&run.f, element % C, got);
  free(memory);
  return good;
}

assay_status norm_check_vector(const assay_call *call, const char *name, int64_t channels, assay_error *error) {
  const assay_tensor *t = tensor_of(call, name);
  if (t == NULL || t->shape[0] == 1 || t->shape[0] == channels) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %lld elements, allowed 1 or %lld", name, (long long)t->shape[0],
                    (long long)channels);
}

assay_status norm_rows_check(const assay_call *call, assay_error *error) {
  plain_dims dims;
  assay_status status = plain_check(call, &dims, error);
  const int64_t C = status == ASSAY_OK ? plain_dim(call, &dims, "C") : 0;
  if (status == ASSAY_OK) status = norm_check_vector(call, "alpha", C, error);
  if (status == ASSAY_OK) status = norm_check_vector(call, "gamma", C, error);
  return status;
}

/* Returns the cost. rms: square, add, two products. layer: twice over the row, and the bias. uclip: product, clip,
 * product, sum. */
static assay_cost cost_of(norm_kind kind, const assay_call *call) {
  static const double flops[] = {[NORM_RMS] = 4, [NORM_LAYER] = 7, [NORM_UCLIP] = 5};
  double elements = 0, x_elements = 0;
  for (int32_t i = 0; i < call->op->arg_count; ++i) {
    const assay_tensor *t = &call->arg[i];
    if (t->data == NULL) continue;
    const double size = (double)t->shape[0] * (t->rank > 1 ? (double)t->shape[1] : 1);
    if (strcmp(call->op->args[i].name, "x") == 0) x_elements = size;
    const bool twice = call->op->args[i].role == ASSAY_INOUT && tensor_of(call, "res_out") == NULL;
    elements += twice ? 2 * size : size;
  }
  const assay_tensor *x = tensor_of(call, "x");
  const double own = flops[kind] + (tensor_of(call, "res") != NULL ? 1 : 0);
  return (assay_cost){own * x_elements, elements * (double)assay_dtype_size(x->dtype)};
}

/* Defines the callbacks that know the kind of norm. */
#define CALLBACKS(name, kind)                                                                                          \
  assay_status norm_##name##_reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows, \
                                       bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {   \
    (void)seen;                                                                                                        \
    return compute(kind, call, contract, rows, exact, NORM_RIGHT, expected, error);                                    \
  }                                                                                                                    \
  assay_status norm_##name##_spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows,     \
                                   int32_t index, assay_expected *expected, assay_error *error) {                      \
    return compute_spoilt(kind, call, contract, rows, index, expected, error);                                         \
  }                                                                                                                    \
  bool norm_##name##_accepts(const assay_call *call, const assay_contract *contract, int32_t output, int64_t element,  \
                             double got) {                                                                             \
    return accepts(kind, call, contract, output, element, got);                                                        \
  }                                                                                                                    \
  assay_cost norm_##name##_cost(const assay_call *call, const assay_seen *seen) {                                      \
    (void)seen;                                                                                                        \
    return cost_of(kind, call);                                                                                        \
  }

CALLBACKS(rms, NORM_RMS)
CALLBACKS(layer, NORM_LAYER)
CALLBACKS(uclip, NORM_UCLIP)

/* ---- values for the generator ------------------------------------------------------------------------ */

enum { STREAM_WEIGHTS = 0x6E6F726D, STREAM_ROWS = 0x6E6F726E, STREAM_SIGNS = 0x7369676E };

/* Draws from 1/2 to 3/4 or 5/4 to 2; lattice: eighths of the same ranges. */
static double away_from_one(assay_rng *rng, bool lattice) {
  const bool low = (assay_rng_u64(rng) & 1) != 0;
  if (lattice) return (double)(low ? assay_rng_range(rng, 2, 6) : assay_rng_range(rng, 10, 15)) * 0.125;
  const double u = assay_rng_unit(rng);
  return low ? 0.5 + 0.25 * u : 1.25 + 0.75 * u;
}

static double bias_value(assay_rng *rng, bool lattice) {
  return lattice ? (double)assay_rng_range(rng, 1, 8) * 0.125 : 0.25 + 0.75 * assay_rng_unit(rng);
}

/* Returns the part of the argument's name after the last '_'. */
static const char *weight_name(const char *name) {
  const char *bar = strrchr(name, '_');
  return bar != NULL ? bar + 1 : name;
}

static void fill_rows(const assay_fill *fill, int32_t arg, bool with_mean, double *value, int64_t count) {
  plain_fill(fill, (uint64_t)arg, value, count);
  if (fill->values == ASSAY_LATTICE) return;
  static const double scales[] = {0.5, 1, 4};
  const assay_tensor *t = &fill->call->arg[arg];
  const int64_t C = t->shape[t->rank - 1];
  assay_rng rng = {fill->seed, STREAM_ROWS + ((uint64_t)arg << 32), 0};
  for (int64_t i = 0; i < count; i += C) {
    const int64_t row = i / C;
    const double scale = scales[row % 3], offset = (row % 2 != 0 ? 1 : -1) * (0.5 + assay_rng_unit(&rng));
    for (int64_t c = 0; c < C; ++c)
      value[i + c] = scale * (value[i + c] + (with_mean ? offset : 0));
  }
}

static void fill_arg(const assay_fill *fill, int32_t arg, bool with_mean, double *value, int64_t count) {
  const char *name = weight_name(fill->call->op->args[arg].name);
  const bool lattice = fill->values == ASSAY_LATTICE;
  assay_rng rng = {fill->seed, STREAM_WEIGHTS + ((uint64_t)arg << 32), 0};
  if (strcmp(name, "alpha") == 0) {
    assay_rng sign = {fill->seed, STREAM_SIGNS + ((uint64_t)arg << 32), 0};
    for (int64_t i = 0; i < count; ++i)
      value[i] = away_from_one(&rng, lattice) * (assay_rng_u64(&sign) % 8 == 0 ? -1 : 1);
  } else if (strcmp(name, "g") == 0 || strcmp(name, "gamma") == 0) {
    for (int64_t i = 0; i < count; ++i) {
      const bool negative = assay_rng_u64(&rng) % 8 == 0;
      value[i] = away_from_one(&rng, lattice) * (negative ? -1 : 1);
    }
  } else if (strcmp(name, "b") == 0 || strcmp(name, "beta") == 0) {
    for (int64_t i = 0; i < count; ++i) {
      const bool negative = (assay_rng_u64(&rng) & 1) != 0;
      value[i] = bias_value(&rng, lattice) * (negative ? -1 : 1);
    }
  } else {
    fill_rows(fill, arg, with_mean, value, count);
  }
}

assay_status norm_fill(const assay_fill *fill, int32_t arg, double *value, int64_t count, assay_error *error) {
  (void)error;
  fill_arg(fill, arg, false, value, count);
  return ASSAY_OK;
}

assay_status norm_fill_with_mean(const assay_fill *fill, int32_t arg, double *value, int64_t count,
                                 assay_error *error) {
  (void)error;
  fill_arg(fill, arg, true, value, count);
  return ASSAY_OK;
}
