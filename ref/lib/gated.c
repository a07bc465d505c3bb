/* gated.c: shared parts of the gated activations. */
#include "ref/lib/gated.h"

#include <math.h>
#include <stdlib.h>

#include "ref/lib/error_model.h"
#include "ref/lib/lattice.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"

static void spoil_row(const gated *activation, int32_t spoil, const double *x, int64_t I, double *y) {
  const double *g = x, *u = x + I;
  for (int64_t i = 0; i < I; ++i) {
    if (spoil == SPOIL_GATE_UP_SWAPPED) y[i] = activation->value(u[i], g[i]);
    if (spoil == SPOIL_NEIGHBOURS_UP) y[i] = activation->value(g[i], u[i + 1 < I ? i + 1 : i]);
    if (spoil == SPOIL_INTERLEAVED_HALVES) y[i] = activation->value(x[2 * i], x[2 * i + 1]);
    if (spoil >= SPOIL_OWN) y[i] = activation->spoil(g[i], u[i], spoil - SPOIL_OWN);
  }
  if (spoil == SPOIL_LAST_CHANNEL_DROPPED) y[I - 1] = 0;
}

assay_status gated_compute(const assay_call *call, const gated *activation, const assay_contract *contract,
                           const assay_rows *rows, bool exact, int32_t spoil, assay_expected *expected,
                           assay_error *error) {
  const assay_tensor *x = &call->arg[GATED_X], *y = &call->arg[GATED_Y];
  const int64_t N = x->shape[0], I = y->shape[1], count = rowwise_count(rows, N);
  const assay_contract *c = contract != NULL ? contract : &default_contract;
  double *row;
  assay_status status = rowwise_reserve(call, 2 * I, &row, error);
  for (int64_t r = 0; r < count && status == ASSAY_OK; ++r) {
    const int64_t n = rowwise_index(rows, r), other = (n ^ 1) < N ? n ^ 1 : n;
    const double *g = row, *u = row + I;
    double *value = expected->value + r * I, *sigma = expected->sigma != NULL ? expected->sigma + r * I : NULL;
    plain_load_row(x, spoil == SPOIL_ROW_SWAPPED ? other : n, row);
    for (int64_t i = 0; i < I; ++i) {
      value[i] = activation->value(g[i], u[i]);
      if (sigma != NULL) sigma[i] = sqrt(activation->variance(g[i], u[i], c, y->dtype));
    }
    if (spoil != SPOIL_NONE) spoil_row(activation, spoil, row, I, value);
    for (int64_t i = 0; exact && i < I && status == ASSAY_OK; ++i)
      if (!lattice_admits(fabs(g[i] * u[i]), lattice_low(g[i]) + lattice_low(u[i]), 24))
        status = rowwise_refuse(call, n, i, "significant bits of g u", lattice_bits(g[i] * u[i]), 24, error);
  }
  free(row);
  return status;
}

assay_cost gated_cost(const assay_call *call, double flops) {
  const assay_tensor *y = &call->arg[GATED_Y];
  const double elements = (double)y->shape[0] * (double)y->shape[1];
  return (assay_cost){flops * elements, 3 * elements * (double)assay_dtype_size(y->dtype)};
}

assay_status gated_fill(const assay_fill *fill, int32_t arg, double *value, int64_t count, assay_error *error) {
  (void)error;
  plain_fill(fill, (uint64_t)arg, value, count);
  return ASSAY_OK;
}

const assay_dim gated_dims[2] = {
    {"N", 1, 1 << 20, 4, 1, "rows"},
    {"I", 1, 65536, 64, 1, "channels of the result"},
};

const assay_arg gated_args[GATED_ARGS] = {
    {"x", ASSAY_IN, ASSAY_VALUES, false, "f32,f16,bf16", "N,2*I", "gates, then ups; the row stride is free", true},
    {"y", ASSAY_OUT, ASSAY_RESULT, false, "=x", "N,I", "the result", false},
};
