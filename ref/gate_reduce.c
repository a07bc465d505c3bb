/* gate_reduce: adds the partial sums of a split gate_attention. For row n, head h, channel d:
 *
 *   out[n][h][d] = sum_{s < splits} partial[s][n][h][d]
 *
 * Nothing is weighted or normalised. Source: docs/definitions.md, section 2.3. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "ref/lib/error_model.h"
#include "ref/lib/lattice.h"
#include "ref/lib/plain.h"

enum { ARG_PARTIAL, ARG_OUT, ARG_COUNT };

const assay_op *assay_op_gate_reduce(void);

typedef enum reduce_spoil {
  SPOIL_LAST_SPLIT_DROPPED,
  SPOIL_FIRST_SPLIT_DOUBLED,
  SPOIL_AVERAGED,
  SPOIL_NEIGHBOUR_HEAD, /* the last split's partial sum is that of the neighbouring head */
  SPOIL_ROW_SWAPPED,    /* the result of the next row, or of the first row in the last one */
  SPOIL_NARROW_SUM,     /* the running sum is rounded to 8 bits after every addition */
  SPOIL_COUNT,
  SPOIL_NONE
} reduce_spoil;

/* ---- the definition ---------------------------------------------------------------------------------- */

static double gate_reduce(const double *partial, int64_t splits) {
  double sum = 0;
  for (int64_t s = 0; s < splits; ++s)
    sum += partial[s];
  return sum;
}

/* ---- the error model --------------------------------------------------------------------------------- */

/* Returns the variance of the additions: every one except the first rounds a running sum. It is computed in the order
 * of the splits, with the ulp of each sum. It is also computed as the mean over all orders, sum_k E[S_k^2] with
 * E[S_k^2] = k (k - 1) / (n (n - 1)) (S^2 - Q) + k / n Q. The larger one counts. On several lanes it is the bound of an
 * accumulation. */
static double reduce_variance(const double *partial, int64_t splits, int32_t lanes) {
  double running = 0, walk = 0, square = 0, size = 0, shuffled = 0;
  const double n = (double)splits;
  for (int64_t s = 0; s < splits; ++s) {
    const double x = partial[s];
    running += x;
    if (s > 0) walk += storing_variance(running, ASSAY_F32);
    square += x * x;
    size += fabs(x);
  }
  if (splits < 2) return 0;
  if (lanes > 1) return outlier_variance(size, square, n, lanes) * size * size;
  for (double k = 2; k <= n; ++k)
    shuffled += k * (k - 1) / (n * (n - 1)) * (running * running - square) + k / n * square;
  shuffled *= f32_variance;
  return walk > shuffled ? walk : shuffled;
}

/* ---- the exact tier ---------------------------------------------------------------------------------- */

static assay_status admit(const double *partial, int64_t splits, int64_t row, assay_error *error) {
  int low = LATTICE_ZERO;
  double size = 0;
  for (int64_t s = 0; s < splits; ++s) {
    const double x = partial[s];
    size += fabs(x);
    const int own = x == 0 ? LATTICE_ZERO : lattice_low(x);
    if (own < low) low = own;
  }
  if (lattice_admits(size, low, 24)) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "exact tier: row %lld: sum |partial|: found %.17g, allowed %.17g",
                    (long long)row, size, ldexp(1, 24 + low));
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

/* Loads the partial sums of row n, element e, into column [splits]. */
static void load(const assay_tensor *partial, int64_t n, int64_t e, double *column) {
  const int64_t width = partial->shape[2] * partial->shape[3], apart = partial->shape[1] * width;
  assay_load_f64_row(partial->data, partial->dtype, n * width + e, apart, partial->shape[0], column);
}

static double reduce_wrong(const assay_tensor *partial, int64_t n, int64_t e, reduce_spoil spoil, double *column) {
  const int64_t splits = partial->shape[0], N = partial->shape[1], D = partial->shape[3];
  const int64_t width = partial->shape[2] * D;
  if (spoil == SPOIL_ROW_SWAPPED) n = (n + 1) % N;
  load(partial, n, (e + D) % width, column);
  const double neighbour = column[splits - 1];
  load(partial, n, e, column);
  const double sum = gate_reduce(column, splits), last = column[splits - 1];
  switch (spoil) {
  case SPOIL_LAST_SPLIT_DROPPED:
    return splits > 1 ? sum - last : sum;
  case SPOIL_FIRST_SPLIT_DOUBLED:
    return splits > 1 ? sum + column[0] : sum;
  case SPOIL_AVERAGED:
    return sum / (double)splits;
  case SPOIL_NEIGHBOUR_HEAD:
    return sum - last + neighbour;
  case SPOIL_NARROW_SUM: {
    double running = 0;
    for (int64_t s = 0; s < splits; ++s)
      running = assay_round_f64(running + column[s], ASSAY_BF16);
    return splits > 3 ? running : sum;
  }
  default:
    return sum;
  }
}

static assay_status compute(const assay_call *call, const assay_contract *contract, const assay_rows *rows, bool exact,
                            reduce_spoil spoil, double *column, assay_expected *expected, assay_error *error) {
  const assay_tensor *partial = &call->arg[ARG_PARTIAL];
  const int64_t splits = partial->shape[0], N = partial->shape[1], width = partial->shape[2] * partial->shape[3];
  const int64_t count = rows != NULL && rows->index != NULL ? rows->count : N;
  const int32_t lanes = contract != NULL ? contract->lanes : 0;
  const assay_dtype out = call->arg[ARG_OUT].dtype;
  for (int64_t i = 0; i < count * width; ++i) {
    const int64_t n = rows != NULL && rows->index != NULL ? rows->index[i / width] : i / width, e = i % width;
    if (spoil != SPOIL_NONE) {
      expected->value[i] = reduce_wrong(partial, n, e, spoil, column);
      continue;
    }
    load(partial, n, e, column);
    const double y = gate_reduce(column, splits);
    expected->value[i] = y;
    const assay_status status = exact ? admit(column, splits, n, error) : ASSAY_OK;
    if (status != ASSAY_OK) return status;
    if (expected->sigma == NULL) continue;
    const double variance = reduce_variance(column, splits, lanes);
    const double stored = variance > 0 && out != ASSAY_F32 ? storing_variance(y, out) : rounding_variance(y, out);
    expected->sigma[i] = sqrt(variance + stored);
  }
  return ASSAY_OK;
}

static assay_status run(const assay_call *call, const assay_contract *contract, const assay_rows *rows, bool exact,
                        reduce_spoil spoil, assay_expected *expected, assay_error *error) {
  double *column = malloc((size_t)call->arg[ARG_PARTIAL].shape[0] * sizeof *column);
  if (column == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "gate_reduce reference: out of memory");
  const assay_status status = compute(call, contract, rows, exact, spoil, column, expected, error);
  free(column);
  return status;
}

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)seen;
  return run(call, contract, rows, exact, SPOIL_NONE, expected, error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  if (index < 0 || index >= SPOIL_COUNT)
    return assay_fail(error, ASSAY_ERR_INPUT, "spoil: found number %d, allowed 0 to %d", index, SPOIL_COUNT - 1);
  assay_expected values = {expected->value, NULL};
  return run(call, contract, rows, false, (reduce_spoil)index, &values, error);
}

static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *partial = &call->arg[ARG_PARTIAL];
  const double elements = (double)(partial->shape[1] * partial->shape[2] * partial->shape[3]);
  const double splits = (double)partial->shape[0], size = (double)assay_dtype_size(partial->dtype);
  return (assay_cost){.flops = elements * (splits - 1),
                      .bytes = elements * (size * splits + (double)assay_dtype_size(call->arg[ARG_OUT].dtype))};
}

static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  (void)error;
  plain_fill(from, (uint64_t)arg, value, count);
  return ASSAY_OK;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"splits", 1, 4096, 4, 1, "splits of the key axis"},
    {"N", 1, 1 << 20, 4, 1, "rows"},
    {"H", 1, 256, 8, 1, "query heads"},
    {"D", 8, 256, 128, 8, "channels of a head"},
};

static const assay_arg args[ARG_COUNT] = {
    {"partial", ASSAY_IN, ASSAY_VALUES, false, "f32,f16,bf16", "splits,N,H,D", "partial sums", false},
    {"out", ASSAY_OUT, ASSAY_RESULT, false, "=partial,f32,f16,bf16", "N,H,D", "their sum", false},
};

static const assay_op op = {
    .name = "gate_reduce",
    .title = "partial sums of a split gate_attention, added",
    .source = "docs/definitions.md, section 2.3",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .laws = "run_to_run,dead_bytes,permutation",
    .spoils = "last_split_dropped,first_split_doubled,averaged,neighbour_head,row_swapped,narrow_sum",
    .kappa_element = 7,
    .form = ASSAY_PLAIN,
    .row_dim = "N",
    .axes = "dtype,out_dtype",
    .confirmed_by = "the parts of one attention over all keys, added up; splits in any order (ref_cache_test)",
    .check = plain_check_call,
    .reference = reference,
    .cost = cost,
    .fill = fill,
    .spoil = spoil,
};

const assay_op *assay_op_gate_reduce(void) {
  return &op;
}
