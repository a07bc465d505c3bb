/* swiglu: a gated activation. x [N, 2 I] holds the gates of a row, followed by its ups (layout halves), or gate and up
 * of each channel in turn (interleaved). For row n and channel i, with numbers L, alpha, beta of f32:
 *
 *   g = min(gate_ni, L)        u = min(max(up_ni, -L), L)        L = 0: both as they are
 *   y_ni = round(g · sigmoid(alpha · g) · (u + beta) · w_n)      sigmoid(z) = 1 / (1 + exp(-z))
 *
 * With `sigmoid` the factor g is left out: y_ni = round(sigmoid(alpha · g) · (u + beta) · w_n). With a number c
 * (`cubic`) the argument is alpha · (g + c g^3). GELU by tanh is alpha = sqrt(8 / pi), c = 0.044715: g (1 + tanh(z /
 * 2)) / 2 = g · sigmoid(z).
 *
 * The gate has no lower limit. Without w its factor is 1. NaN passes through both limits (choice). A gate of -Inf gives
 * 0 (choice: the limit of the formula). With every parameter at its default and no w it may give NaN too. Source:
 * docs/definitions.md, section 5. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/error_model.h"
#include "ref/lib/gated.h"
#include "ref/lib/lattice.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"

const assay_op *assay_op_swiglu(void);

enum { ARG_X, ARG_W, ARG_Y, ARG_COUNT };
enum { PARAM_LIMIT, PARAM_ALPHA, PARAM_BETA, PARAM_LAYOUT, PARAM_SIGMOID, PARAM_CUBIC, PARAM_COUNT };
enum { HALVES, INTERLEAVED };
enum {
  SIGMOID_LOST = SPOIL_OWN,
  GATE_LOST,
  CLAMP_SYMMETRIC,        /* gates below -L become -L */
  LIMIT_LOST,             /* L = 0 */
  BETA_LOST,              /* beta = 0 */
  ALPHA_LOST,             /* alpha = 1 */
  HALVES_FOR_INTERLEAVED, /* gates are read as the first half */
  WEIGHT_OF_ROW_BEFORE,
  GATE_KEPT, /* with `sigmoid`: g is a factor too */
  CUBIC_LOST /* c = 0 */
};

/* Holds the numbers that all elements of a call share. */
typedef struct form {
  double limit, alpha, beta, cubic;
  int64_t I;
  bool interleaved, weighted, sigmoid; /* sigmoid: g itself is no factor */
} form;

/* ---- the definition ---------------------------------------------------------------------------------- */

static double sigmoid(double z) {
  return 1 / (1 + exp(-z));
}

/* Return the gate and the up within the limit. Comparisons with NaN are false, so that NaN passes. */
static double limited_gate(const form *f, double gate) {
  return f->limit > 0 && gate > f->limit ? f->limit : gate;
}

static double limited_up(const form *f, double up) {
  if (f->limit > 0 && up > f->limit) return f->limit;
  return f->limit > 0 && up < -f->limit ? -f->limit : up;
}

/* Returns the argument of the sigmoid. An infinite gate has an infinite argument, c = 0 or not. */
static double argument_of(const form *f, double g) {
  return f->cubic != 0 ? f->alpha * (g + f->cubic * g * g * g) : f->alpha * g;
}

static double swiglu(const form *f, double gate, double up, double w) {
  const double g = limited_gate(f, gate), u = limited_up(f, up);
  const double weighted = g == -(double)INFINITY ? 0 : (f->sigmoid ? 1 : g) * sigmoid(argument_of(f, g));
  return weighted * (u + f->beta) * w;
}

/* ---- the error model --------------------------------------------------------------------------------- */

/* Returns the relative variance of rounding `value` to the contract's `partial`. */
static double partial_variance(double value, const assay_contract *contract) {
  if (contract->partial == ASSAY_NONE || value == 0) return 0;
  return storing_variance(value, contract->partial) / (value * value);
}

/* Returns the variance. Relative to the result, exp(-alpha g) and its argument count by d ln s / d ln exp = s - 1. An
 * infinite argument is exact. With c the argument has five roundings more, of terms of one sign. 1 + exp, its inverse,
 * g s and the product with u are four roundings, or three without g; the inverse has the contract's bound. u + beta and
 * the product with w are one each. A sigmoid below f32's smallest normal may come out as 0, because exp is infinite
 * from 88.73 on. Under `partial` every step is rounded to that type too. */
static double variance(const form *f, double gate, double up, double w, const assay_contract *contract,
                       assay_dtype out) {
  const double g = limited_gate(f, gate), v = limited_up(f, up) + f->beta, z = argument_of(f, g);
  const double s = sigmoid(z), y = swiglu(f, gate, up, w), function = function_variance(contract->exp_ulp);
  if (y == 0) return 0;
  double argument =
      f->alpha != 1 && isfinite(z) ? storing_variance(z, ASSAY_F32) + z * z * partial_variance(z, contract) : 0;
  if (f->cubic != 0 && isfinite(z)) argument += 5 * z * z * f32_variance;
  const double factor = f->sigmoid ? 1 : g;
  double relative = (1 - s) * (1 - s) * (function + argument) + function + (f->sigmoid ? 2 : 3) * f32_variance;
  if (f->beta != 0) relative += f32_variance + partial_variance(v, contract);
  if (f->weighted) relative += f32_variance + partial_variance(factor * s * v, contract);
  if (s < 0x1p-126) relative += 1;
  relative += partial_variance(s, contract) + (f->sigmoid ? 0 : partial_variance(g * s, contract));
  return y * y * relative + below_normal_variance((const double[4]){factor, s, v, w}, 4, contract->ftz) +
         storing_variance(y, out);
}

/* ---- the exact tier ---------------------------------------------------------------------------------- */

/* Admits an element whose gate is 0, or alpha g <= -500, where sigmoid is 0 in f32. Also admits alpha g >= 200, where
 * sigmoid is 1 and g, u + beta and w have so few bits that every product of them is exact. With `sigmoid` a gate of 0
 * gives 1/2, and g has no bits. */
static assay_status admit(const assay_call *call, const form *f, double gate, double up, double w, int64_t row,
                          int64_t channel, const assay_contract *contract, assay_error *error) {
  const double g = limited_gate(f, gate), v = limited_up(f, up) + f->beta, z = argument_of(f, g);
  const int most = lattice_width(contract->partial);
  const int bits = (f->sigmoid ? 0 : lattice_bits(g)) + lattice_bits(v) + lattice_bits(w);
  if (lattice_bits(v) > most)
    return rowwise_refuse(call, row, channel, "bits of u + beta", lattice_bits(v), most, error);
  if ((g == 0 && !f->sigmoid) || z <= -500) return ASSAY_OK;
  if (g != 0 && !(z >= 200)) return rowwise_refuse(call, row, channel, "alpha g between -500 and 200", z, 0, error);
  if (bits > most) return rowwise_refuse(call, row, channel, "bits of g, u + beta and w", bits, most, error);
  return ASSAY_OK;
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

/* Returns what all elements share. gcc 12 -O3 leaves out the rounding of neighbouring casts to float. */
static form form_of(const assay_call *call) {
  return (form){.limit = assay_round_f64(call->param[PARAM_LIMIT], ASSAY_F32),
                .alpha = assay_round_f64(call->param[PARAM_ALPHA], ASSAY_F32),
                .beta = assay_round_f64(call->param[PARAM_BETA], ASSAY_F32),
                .I = call->arg[ARG_Y].shape[1],
                .interleaved = call->param[PARAM_LAYOUT] == INTERLEAVED,
                .weighted = call->arg[ARG_W].data != NULL,
                .sigmoid = call->param[PARAM_SIGMOID] != 0,
                .cubic = assay_round_f64(call->param[PARAM_CUBIC], ASSAY_F32)};
}

static form spoiled_form(const assay_call *call, int32_t spoil) {
  form f = form_of(call);
  if (spoil == LIMIT_LOST) f.limit = 0;
  if (spoil == BETA_LOST) f.beta = 0;
  if (spoil == ALPHA_LOST) f.alpha = 1;
  if (spoil == CUBIC_LOST) f.cubic = 0;
  if (spoil == HALVES_FOR_INTERLEAVED) f.interleaved = false;
  if (spoil == SPOIL_INTERLEAVED_HALVES) f.interleaved = true;
  return f;
}

/* Return the places of a channel's gate and up in a row of x. */
static int64_t gate_place(const form *f, int64_t i) {
  return f->interleaved ? 2 * i : i;
}

static int64_t up_place(const form *f, int64_t i) {
  return f->interleaved ? 2 * i + 1 : f->I + i;
}

/* Returns 0 for what is 0 in f32. Sigmoid is never 0 in f64. A larger number below half the least one of the output may
 * be near its border: the next result is right too. */
static double stored(double value) {
  return fabs(value) < 0.5 * assay_ulp(0, ASSAY_F32) ? 0 : value;
}

/* Computes an element with a planted error. */
static double spoiled(const form *f, const double *row, int64_t i, double w, int32_t spoil) {
  const int64_t other = spoil == SPOIL_NEIGHBOURS_UP && i + 1 < f->I ? i + 1 : i;
  const double gate = row[gate_place(f, i)], up = row[up_place(f, other)];
  const double g = limited_gate(f, gate), v = limited_up(f, up) + f->beta;
  switch (spoil) {
  case SPOIL_GATE_UP_SWAPPED:
    return swiglu(f, up, gate, w);
  case SPOIL_LAST_CHANNEL_DROPPED:
    return i + 1 < f->I ? swiglu(f, gate, up, w) : 0;
  case SIGMOID_LOST:
    return g * v * w;
  case GATE_KEPT:
    return g == -(double)INFINITY ? 0 : g * sigmoid(argument_of(f, g)) * v * w;
  case GATE_LOST:
    return sigmoid(argument_of(f, g)) * v * w;
  case CLAMP_SYMMETRIC:
    return swiglu(f, f->limit > 0 && gate < -f->limit ? -f->limit : gate, up, w);
  default:
    return swiglu(f, gate, up, w);
  }
}

static assay_status compute(const assay_call *call, const assay_contract *contract, const assay_rows *rows, bool exact,
                            int32_t spoil, assay_expected *expected, assay_error *error) {
  const assay_tensor *x = &call->arg[ARG_X], *y = &call->arg[ARG_Y], *weights = &call->arg[ARG_W];
  const form f = spoiled_form(call, spoil);
  const int64_t N = x->shape[0], count = rowwise_count(rows, N);
  const assay_contract *c = contract != NULL ? contract : &default_contract;
  double *row;
  assay_status status = rowwise_reserve(call, 2 * f.I, &row, error);
  for (int64_t r = 0; r < count && status == ASSAY_OK; ++r) {
    const int64_t n = rowwise_index(rows, r), other = (n ^ 1) < N ? n ^ 1 : n;
    double w = 1;
    if (f.weighted) plain_load_row(weights, spoil == WEIGHT_OF_ROW_BEFORE && n > 0 ? n - 1 : n, &w);
    plain_load_row(x, spoil == SPOIL_ROW_SWAPPED ? other : n, row);
    for (int64_t i = 0; i < f.I && status == ASSAY_OK; ++i) {
      const double gate = row[gate_place(&f, i)], up = row[up_place(&f, i)];
      const double value = spoil == SPOIL_NONE ? swiglu(&f, gate, up, w) : spoiled(&f, row, i, w, spoil);
      expected->value[r * f.I + i] = stored(value);
      if (expected->sigma != NULL) expected->sigma[r * f.I + i] = sqrt(variance(&f, gate, up, w, c, y->dtype));
      if (exact) status = admit(call, &f, gate, up, w, n, i, c, error);
    }
  }
  free(row);
  return status;
}

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)seen;
  return compute(call, contract, rows, exact, SPOIL_NONE, expected, error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  assay_expected values = {expected->value, NULL};
  return compute(call, contract, rows, false, index, &values, error);
}

/* Tells whether `got` is what an infinite product times w gives, where finite numbers make a product beyond f32. No
 * weight makes it finite again: its sign stays, and a weight of 0 makes NaN of it. */
static bool overflowed(const form *f, double gate, double up, double w, double got) {
  const double product = swiglu(f, gate, up, 1);
  if (!isfinite(product) || !isfinite(w) || fabs(product) < 0x1p128) return false;
  return w == 0 ? isnan(got) : got == copysign(INFINITY, product) * w;
}

/* Tells whether `got` may stand for the expected value. NaN may for a gate of -Inf, where every parameter has its
 * default. Where the row has a weight, an overflowed product may. */
static bool accepts(const assay_call *call, const assay_contract *contract, int32_t output, int64_t element,
                    double got) {
  (void)contract;
  (void)output;
  const form f = form_of(call);
  const assay_tensor *x = &call->arg[ARG_X];
  const int64_t row = element / f.I * (x->shape[0] > 1 ? x->stride[0] : 0), channel = element % f.I;
  const double gate = assay_load_f64(x->data, x->dtype, row + gate_place(&f, channel));
  if (f.weighted) {
    double w;
    plain_load_row(&call->arg[ARG_W], element / f.I, &w);
    return overflowed(&f, gate, assay_load_f64(x->data, x->dtype, row + up_place(&f, channel)), w, got);
  }
  return isnan(got) && f.limit == 0 && f.alpha == 1 && f.beta == 0 && !f.interleaved && !f.sigmoid && f.cubic == 0 &&
         gate == -(double)INFINITY;
}

/* Counts exp, addition, division and two products, and what the parameters add; exp counts as one. */
static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const form f = form_of(call);
  const assay_tensor *y = &call->arg[ARG_Y];
  const double rows = (double)y->shape[0], elements = rows * (double)y->shape[1];
  const double more = (f.limit > 0 ? 3 : 0) + (f.alpha != 1) + (f.beta != 0) + f.weighted + (f.cubic != 0 ? 4 : 0);
  return (assay_cost){(5 + more) * elements,
                      3 * elements * (double)assay_dtype_size(y->dtype) + (f.weighted ? 4 * rows : 0)};
}

/* ---- values for the generator ------------------------------------------------------------------------ */

/* Draws a number of four bits at or above `least`, up to twice as large. */
static double short_number(assay_rng *rng, double least) {
  int exponent;
  (void)frexp(least, &exponent);
  const double step = ldexp(1, exponent - 3), first = ceil(least / step);
  return step * (first + (double)assay_rng_range(rng, 0, 7));
}

/* Draws a gate of the exact tier: 0, far below, or far above 0 where the limit allows it. */
static double exact_gate(const form *f, double largest, assay_rng *rng) {
  const int64_t level = assay_rng_range(rng, 0, 3);
  const double low = -short_number(rng, 500 / f->alpha), high = short_number(rng, 200 / f->alpha);
  if (level == 0) return -low <= largest ? low : 0;
  return level > 1 && high <= largest && f->alpha * limited_gate(f, high) >= 200 ? high : 0;
}

/* Draws a number with a meaning of its own among the others. Infinite factors meet no factor that is 0 in f32 alone:
 * only a limit lets ups be infinite. */
static double special(const form *f, bool is_gate, double value, assay_rng *rng) {
  switch (assay_rng_range(rng, 0, 9)) {
  case 0:
    return (double)NAN;
  case 1:
    return is_gate || f->limit > 0 ? (double)INFINITY : value;
  case 2:
    return is_gate || f->limit > 0 ? -(double)INFINITY : value;
  case 3:
    return -0.0;
  case 4:
    return 0;
  default:
    return value;
  }
}

/* With a limit, a third of the gates lies above it and a third below its negative; ups lie on both sides of both. */
static double around_limit(const form *f, bool is_gate, double largest, double value, assay_rng *rng) {
  const int64_t place = assay_rng_range(rng, 0, is_gate ? 2 : 3);
  const double far = fmin(f->limit * (1.25 + assay_rng_unit(rng)), largest);
  return place == 0 ? far : place == 1 ? -far : value;
}

static void fill_x(const assay_fill *fill, double *value, int64_t count) {
  const form f = form_of(fill->call);
  const double largest = fill->call->arg[ARG_X].dtype == ASSAY_F16 ? 65504 : 0x1p100;
  plain_fill(fill, ARG_X, value, count);
  for (int64_t at = 0; at < count; ++at) {
    const int64_t place = at % (2 * f.I);
    const bool is_gate = f.interleaved ? place % 2 == 0 : place < f.I;
    assay_rng rng = {fill->seed, 0x67617465, 16 * (uint64_t)at};
    if (fill->values == ASSAY_LATTICE && is_gate)
      value[at] = exact_gate(&f, largest, &rng);
    else if (fill->values == ASSAY_SPECIAL)
      value[at] = special(&f, is_gate, 0.125 * (double)assay_rng_range(&rng, -64, 64), &rng);
    else if (f.limit > 0)
      value[at] = around_limit(&f, is_gate, largest, value[at], &rng);
  }
}

/* Draws weights of a router, and one in eight below 0. On the lattice they are multiples of 2^-4. Beside numbers of
 * other magnitudes they are 1 or 2, so that no product leaves the range of f32 and comes back. Beside special values
 * one in eight is 0, which does not hide NaN or Inf. */
static void fill_weights(const assay_fill *fill, double *value, int64_t count) {
  assay_rng rng = {fill->seed, 0x77656967, 0}, own = {fill->seed, 0x7369676E, 0};
  for (int64_t i = 0; i < count; ++i) {
    const int64_t sixteenths = assay_rng_range(&rng, 0, 32);
    const double unit = assay_rng_unit(&rng);
    const bool usual = fill->magnitude == ASSAY_USUAL && fill->values != ASSAY_SPECIAL;
    value[i] = !usual                          ? (double)(1 + sixteenths % 2)
               : fill->values == ASSAY_LATTICE ? 0x1p-4 * (double)sixteenths
                                               : unit;
    const int64_t other = assay_rng_range(&own, 0, 7);
    if (other == 0) value[i] = -value[i];
    if (other == 1 && fill->values == ASSAY_SPECIAL) value[i] = 0;
  }
}

static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  (void)error;
  if (arg == ARG_W)
    fill_weights(from, value, count);
  else
    fill_x(from, value, count);
  return ASSAY_OK;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_arg args[ARG_COUNT] = {
    {"x", ASSAY_IN, ASSAY_VALUES, false, "f32,f16,bf16", "N,2*I", "gates, then ups; the row stride is free", true},
    {"w", ASSAY_IN, ASSAY_VALUES, true, "f32", "N", "a factor per row; absent: 1", false},
    {"y", ASSAY_OUT, ASSAY_RESULT, false, "=x", "N,I", "the result", false},
};

static const assay_param params[PARAM_COUNT] = {
    {"limit", ASSAY_REAL, 0, 65536, 0, NULL, "L: the largest gate, and the largest size of an up; 0: none"},
    {"alpha", ASSAY_REAL, 0x1p-6, 64, 1, NULL, "factor of the gate inside sigmoid"},
    {"beta", ASSAY_REAL, -64, 64, 0, NULL, "added to the up"},
    {"layout", ASSAY_ENUM, 0, 1, HALVES, "halves,interleaved", "gates before ups, or gate and up in turn"},
    {"sigmoid", ASSAY_BOOL, 0, 1, 0, NULL, "the gate's factor is sigmoid(alpha g) alone, without g"},
    {"cubic", ASSAY_REAL, 0, 1, 0, NULL, "c: the argument of the sigmoid is alpha (g + c g^3); 0.044715 for GELU"},
};

static const assay_op op = {
    .name = "swiglu",
    .title = "gated activation, g sigmoid(alpha g) (u + beta) w",
    .source = "docs/definitions.md, section 5",
    .dims = gated_dims,
    .dim_count = 2,
    .args = args,
    .arg_count = ARG_COUNT,
    .params = params,
    .param_count = PARAM_COUNT,
    .laws = "run_to_run,dead_bytes,permutation",
    .spoils = GATED_SPOILS ",sigmoid_lost,gate_lost,clamp_symmetric,limit_lost,beta_lost,alpha_lost,"
                           "halves_for_interleaved,weight_of_row_before,gate_kept,cubic_lost",
    .kappa_element = 3.2,
    .form = ASSAY_PLAIN,
    .row_dim = "N",
    .takes_special = true,
    .confirmed_by = "swiglu(g, u) - swiglu(-g, u) = g u and swiglu(g, u) + swiglu(-g, u) = g tanh(g / 2) u; linearity "
                    "in u; the parameters by the plain form of changed inputs (ref_linear_test)",
    .extreme_args = "x",
    .largest = 0x1p126,
    .check = plain_check_call,
    .reference = reference,
    .cost = cost,
    .fill = fill,
    .accepts = accepts,
    .spoil = spoil,
};

const assay_op *assay_op_swiglu(void) {
  return &op;
}
