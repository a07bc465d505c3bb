/* lm_head: logits of selected rows. For selected row r and token id v:
 *
 *   logits_rv = sum_c x[row_index_r, c] W_vc
 *
 * It is summed in f32 and rounded once. With softcap = c > 0, c · tanh(logit / c) is rounded instead. The other rows of
 * x are not read. A row_index outside [0, T) is an input error. Source: docs/definitions.md, section 5. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "ref/lib/error_model.h"
#include "ref/lib/gemm.h"
#include "ref/lib/lattice.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"
#include "ref/lib/selected.h"

enum { ARG_X, ARG_W, ARG_ROW_INDEX, ARG_LOGITS, ARG_COUNT };
enum { PARAM_SOFTCAP, PARAM_COUNT };
enum {
  SPOIL_NONE = -1,
  SPOIL_LAST_CHANNEL_DROPPED,
  SPOIL_ROWS_NOT_SELECTED,
  SPOIL_INDEX_ONE_OFF,
  SPOIL_ROW_SWAPPED,
  SPOIL_NEIGHBOURS_WEIGHTS,
  SPOIL_CAP_LOST, /* softcap = 0 */
  SPOIL_CAP_CUTS  /* logits beyond the cap become the cap */
};

const assay_op *assay_op_lm_head(void);

/* ---- the definition ---------------------------------------------------------------------------------- */

/* Returns the logit of x [C], the selected row, and w [C], the weights of one token id. */
static double logit(const double *x, const double *w, int64_t C) {
  return gemm_dot(x, w, C);
}

/* Returns a logit below the cap; 0: there is none. */
static double capped(double logit, double cap) {
  return cap > 0 ? cap * tanh(logit / cap) : logit;
}

/* ---- the error model of the cap ------------------------------------------------------------------------ */

/* Returns the variance of rounding x to f32. Below the normal numbers of f32 the step no longer shrinks with x. */
static double step_variance(double x) {
  return fmax(f32_variance * x * x, storing_variance(x, ASSAY_F32));
}

/* Returns the variance of the capped logit from that of the sum. The sum moves it by 1 - tanh^2. Sum and quotient are
 * rounded before tanh, and tanh and its product with the cap after it. A cap far above the logits makes quotient and
 * tanh subnormal: each errs by half a step of 2^-149, times the cap. */
static double capped_variance(double sum, double variance, double cap, const assay_contract *c) {
  const double z = sum / cap, t = tanh(z), slope = 1 - t * t;
  const double before =
      variance + storing_variance(sum, ASSAY_F32) + f32_variance * sum * sum + cap * cap * step_variance(z);
  return slope * slope * before +
         cap * cap * (t * t * (function_variance(c->exp_ulp) + f32_variance) + step_variance(t));
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

/* Returns the row of x for selected row r. With a planted error it is another row. */
static int64_t selected(const assay_call *call, int64_t r, int32_t spoil) {
  const selected_spoil kind = spoil == SPOIL_ROWS_NOT_SELECTED ? SELECTED_NOT
                              : spoil == SPOIL_INDEX_ONE_OFF   ? SELECTED_ONE_OFF
                              : spoil == SPOIL_ROW_SWAPPED     ? SELECTED_EXCHANGED
                                                               : SELECTED_RIGHT;
  return selected_row(&call->arg[ARG_X], &call->arg[ARG_ROW_INDEX], r, kind);
}

static assay_status compute(const assay_call *call, const assay_contract *contract, const assay_rows *rows, bool exact,
                            int32_t spoil, const assay_expected *expected, assay_error *error) {
  const assay_tensor *X = &call->arg[ARG_X], *W = &call->arg[ARG_W];
  const assay_dtype out = call->arg[ARG_LOGITS].dtype;
  const int64_t R = call->arg[ARG_ROW_INDEX].shape[0], V = W->shape[0], C = X->shape[1];
  const double given = assay_round_f64(call->param[PARAM_SOFTCAP], ASSAY_F32);
  const double cap = spoil == SPOIL_CAP_LOST || spoil == SPOIL_CAP_CUTS ? 0 : given;
  const int64_t count = rowwise_count(rows, R), terms = spoil == SPOIL_LAST_CHANNEL_DROPPED ? C - 1 : C;
  const assay_contract *c = contract != NULL ? contract : &default_contract;
  double *x = NULL;
  assay_status status = selected_check(X, &call->arg[ARG_ROW_INDEX], error);
  if (status == ASSAY_OK) status = rowwise_reserve(call, (count + 1) * C, &x, error);
  if (status != ASSAY_OK) return status;
  double *w = x + count * C;
  for (int64_t i = 0; i < count; ++i)
    plain_load_row(X, selected(call, rowwise_index(rows, i), spoil), x + i * C);

  for (int64_t v = 0; v < V && status == ASSAY_OK; ++v) {
    plain_load_row(W, spoil == SPOIL_NEIGHBOURS_WEIGHTS && v + 1 < V ? v + 1 : v, w);
    for (int64_t i = 0; i < count && status == ASSAY_OK; ++i) {
      const double *row = x + i * C;
      double *const value = &expected->value[i * V + v];
      *value = capped(logit(row, w, terms), cap);
      if (spoil == SPOIL_CAP_CUTS && given > 0) *value = fmin(fmax(*value, -given), given);
      if (expected->sigma == NULL && !exact) continue;
      const gemm_sum s = gemm_walk(row, w, C);
      double found = gemm_variance(&s, c, row, w, C, W->dtype);
      if (cap > 0) found = capped_variance(s.sum, found, cap, c);
      if (expected->sigma != NULL) expected->sigma[i * V + v] = sqrt(found + storing_variance(*value, out));
      if (exact && cap > 0 && s.sum != 0)
        status =
            rowwise_refuse(call, rowwise_index(rows, i), v, "a logit under softcap, which must be 0", s.sum, 0, error);
      const int low_x = exact ? lattice_low_row(row, C) : 0, low_w = exact ? lattice_low_row(w, C) : 0;
      if (exact && status == ASSAY_OK && !gemm_admits(&s, c, low_x, low_w))
        status = rowwise_refuse(call, rowwise_index(rows, i), v, "sum |x w|", s.abs,
                                ldexp(1, lattice_width(c->partial) + low_x + low_w), error);
    }
  }
  free(x);
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
  const assay_tensor *X = &call->arg[ARG_X];
  const int64_t from = selected(call, row, SPOIL_NONE);
  *p = (assay_product){.a = *X, .b = call->arg[ARG_W], .alpha = 1};
  if (call->param[PARAM_SOFTCAP] > 0) p->b.data = NULL; /* tanh follows the sum */
  p->a.shape[0] = 1;
  p->a.data = (unsigned char *)X->data + from * X->stride[0] * assay_dtype_size(X->dtype);
}

static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *W = &call->arg[ARG_W], *logits = &call->arg[ARG_LOGITS];
  const double R = (double)logits->shape[0], V = (double)W->shape[0], C = (double)W->shape[1];
  return (assay_cost){2 * R * V * C, (R * C + V * C) * (double)assay_dtype_size(W->dtype) +
                                         R * V * (double)assay_dtype_size(logits->dtype) + 4 * R};
}

static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  (void)error;
  if (arg == ARG_ROW_INDEX)
    plain_fill_integers(from, (uint64_t)arg, from->call->arg[ARG_X].shape[0], value, count);
  else
    plain_fill(from, (uint64_t)arg, value, count);
  return ASSAY_OK;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"T", 1, 1 << 20, 8, 1, "rows of x"},
    {"R", 1, 1 << 20, 4, 1, "selected rows"},
    {"V", 1, 1 << 20, 64, 1, "token ids"},
    {"C", 1, 65536, 64, 1, "channels: terms of each sum"},
};

static const assay_arg args[ARG_COUNT] = {
    {"x", ASSAY_IN, ASSAY_VALUES, false, "f32,f16,bf16", "T,C", "activations of every token; the row stride is free",
     true},
    {"w", ASSAY_IN, ASSAY_VALUES, false, "=x", "V,C", "weights, one row per token id", false},
    {"row_index", ASSAY_IN, ASSAY_VALUES, false, "i32", "R", "rows of x that want logits, 0 to T - 1", false},
    {"logits", ASSAY_OUT, ASSAY_RESULT, false, "=x,f32", "R,V", "the result", false},
};

static const assay_param params[PARAM_COUNT] = {
    {"softcap", ASSAY_REAL, 0, 1e6, 0, NULL, "cap · tanh(logit / cap); 0: off"},
};

static const assay_op op = {
    .name = "lm_head",
    .title = "logits of selected rows",
    .source = "docs/definitions.md, section 5",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .params = params,
    .param_count = PARAM_COUNT,
    .laws = "run_to_run,dead_bytes,permutation",
    .spoils = "last_channel_dropped,rows_not_selected,index_one_off,row_swapped,neighbours_weights,cap_lost,cap_cuts",
    .kappa_element = 7,
    .form = ASSAY_PLAIN,
    .row_dim = "R",
    .confirmed_by = "dgemm of another library over all rows, then the selected ones; one-hot rows; a cap by the "
                    "continued fraction of tanh (ref_linear_test)",
    .largest = 0x1p88,
    .check = plain_check_call,
    .reference = reference,
    .cost = cost,
    .fill = fill,
    .spoil = spoil,
    .product = product,
};

const assay_op *assay_op_lm_head(void) {
  return &op;
}
