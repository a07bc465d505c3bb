/* grouped_gemm: a matrix product in which every row names the weights that it meets, as the rows of a mixture of
 * experts do. For row m with group_m = g and channel n:
 *
 *   g >= 0:   C_mn <- round(sum_k A_mk B_gnk + bias_gn)
 *   g = -1:   the row is dead: C_mn <- 0, or (pad = untouched) it keeps its bits
 *
 * It is summed in f32 and rounded once to C's type. bias may be absent. Rows of one group need not be neighbours
 * (choice). Dead rows of A are not read, and neither are weights of groups without rows. A group outside [-1, E) is an
 * input error. Source: docs/definitions.md, section 10. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "ref/lib/error_model.h"
#include "ref/lib/grouped.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"

enum { PAD_ZERO, PAD_UNTOUCHED };
enum { TILE = 16 };

const assay_op *assay_op_grouped_gemm(void);

typedef enum rows_spoil {
  SPOIL_NONE = -1,
  SPOIL_LAST_K_DROPPED,
  SPOIL_NEIGHBOURS_WEIGHTS,
  SPOIL_BIAS_LOST,
  SPOIL_BIAS_OF_GROUP_0,
  SPOIL_GROUP_OF_ROW_BEFORE,
  SPOIL_TILE_OF_ONE_GROUP,  /* rows of 16 neighbours have the group of the first */
  SPOIL_EMPTY_GROUP_SHIFTS, /* groups are counted without those that have no rows */
  SPOIL_MINUS_ONE_READ,     /* dead rows have the last group */
  SPOIL_DEAD_ROW_WRITTEN    /* dead rows have the product of the first live row */
} rows_spoil;

/* ---- the definition's rows --------------------------------------------------------------------------- */

static int64_t group_of(const assay_call *call, int64_t row) {
  return plain_integer(&call->arg[GROUPED_INDEX], row);
}

static assay_status check_groups(const assay_call *call, assay_error *error) {
  const int64_t M = call->arg[GROUPED_INDEX].shape[0], G = call->arg[GROUPED_B].shape[0];
  for (int64_t m = 0; m < M; ++m) {
    const int64_t found = group_of(call, m);
    if (found < -1 || found >= G)
      return assay_fail(error, ASSAY_ERR_INPUT, "group: found %lld in row %lld, allowed -1 to %lld", (long long)found,
                        (long long)m, (long long)(G - 1));
  }
  return ASSAY_OK;
}

/* ---- planted errors ---------------------------------------------------------------------------------- */

/* Returns the group of the first live row from `from` on, before `end`; -1 if there is none. */
static int64_t first_live(const assay_call *call, int64_t from, int64_t end) {
  for (int64_t m = from; m < end; ++m)
    if (group_of(call, m) >= 0) return m;
  return -1;
}

/* Returns the number of groups below g that have rows. */
static int64_t rank_of(const assay_call *call, int64_t g) {
  const int64_t M = call->arg[GROUPED_INDEX].shape[0];
  int64_t rank = 0;
  for (int64_t below = 0; below < g; ++below)
    for (int64_t m = 0; m < M; ++m)
      if (group_of(call, m) == below) {
        ++rank;
        break;
      }
  return rank;
}

static grouped_row row_of(const assay_call *call, int64_t m, rows_spoil spoil) {
  const int64_t M = call->arg[GROUPED_INDEX].shape[0], G = call->arg[GROUPED_B].shape[0], own = group_of(call, m);
  grouped_row row = {m, own, own};
  if (own < 0) {
    const int64_t live = first_live(call, 0, M);
    if (spoil == SPOIL_MINUS_ONE_READ) row.group = G - 1;
    if (spoil == SPOIL_DEAD_ROW_WRITTEN && live >= 0) row = (grouped_row){live, group_of(call, live), 0};
    row.bias = row.group;
    return row;
  }
  const int64_t tile = m / TILE * TILE, before = m > 0 ? group_of(call, m - 1) : -1;
  if (spoil == SPOIL_GROUP_OF_ROW_BEFORE && before >= 0) row.group = before;
  if (spoil == SPOIL_TILE_OF_ONE_GROUP) row.group = group_of(call, first_live(call, tile, m + 1));
  if (spoil == SPOIL_EMPTY_GROUP_SHIFTS) row.group = rank_of(call, own);
  row.bias = spoil == SPOIL_BIAS_OF_GROUP_0 ? 0 : row.group;
  return row;
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

static assay_status compute(const assay_call *call, const assay_contract *contract, const assay_rows *rows, bool exact,
                            rows_spoil spoil, const assay_expected *expected, assay_error *error) {
  const int64_t count = rowwise_count(rows, call->arg[GROUPED_INDEX].shape[0]);
  assay_status status = check_groups(call, error);
  if (status != ASSAY_OK) return status;
  grouped_row *const row = malloc((size_t)(count + 1) * sizeof *row);
  int64_t *const number = malloc((size_t)(count + 1) * sizeof *number);
  if (row == NULL || number == NULL)
    status = assay_fail(error, ASSAY_ERR_MEMORY, "grouped_gemm: %lld rows do not fit in memory", (long long)count);
  for (int64_t i = 0; i < count && status == ASSAY_OK; ++i) {
    number[i] = rowwise_index(rows, i);
    row[i] = row_of(call, number[i], spoil);
  }
  const grouped_run run = {.call = call,
                           .contract = contract != NULL ? contract : &default_contract,
                           .row = row,
                           .number = number,
                           .count = count,
                           .exact = exact,
                           .untouched = call->param[0] == PAD_UNTOUCHED,
                           .spoil = spoil == SPOIL_LAST_K_DROPPED       ? GROUPED_LAST_K_DROPPED
                                    : spoil == SPOIL_NEIGHBOURS_WEIGHTS ? GROUPED_NEIGHBOURS_WEIGHTS
                                    : spoil == SPOIL_BIAS_LOST          ? GROUPED_BIAS_LOST
                                                                        : GROUPED_RIGHT};
  if (status == ASSAY_OK) status = grouped_compute(&run, expected, error);
  free(row);
  free(number);
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
  return compute(call, contract, rows, false, (rows_spoil)index, &values, error);
}

/* Describes a live row by its own values and its group's weights. A dead row is no product. */
static void product(const assay_call *call, int64_t row, assay_product *p) {
  const assay_tensor *A = &call->arg[GROUPED_A], *B = &call->arg[GROUPED_B], *bias = &call->arg[GROUPED_BIAS];
  const int64_t g = group_of(call, row), N = B->shape[1], K = B->shape[2], size = assay_dtype_size(B->dtype);
  *p = (assay_product){.a = *A, .b = *B, .alpha = 1};
  p->a.data = (unsigned char *)A->data + grouped_offset(A, row) * size;
  p->a.shape[0] = 1;
  p->b.data = g >= 0 ? (unsigned char *)B->data + g * N * K * size : NULL;
  p->b.rank = 2;
  p->b.shape[0] = N;
  p->b.shape[1] = K;
  p->b.stride[0] = K;
  p->b.stride[1] = 1;
  if (bias->data != NULL && g >= 0)
    p->bias = (assay_tensor){.data = (unsigned char *)bias->data + g * N * size,
                             .dtype = bias->dtype,
                             .rank = 2,
                             .shape = {1, N},
                             .stride = {0, 1}};
}

static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *group = &call->arg[GROUPED_INDEX];
  const double M = (double)group->shape[0], G = (double)call->arg[GROUPED_B].shape[0];
  return grouped_cost(call, M, M < G ? M : G);
}

/* ---- values for the generator ------------------------------------------------------------------------ */

static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  const int64_t M = from->call->arg[GROUPED_INDEX].shape[0], G = from->call->arg[GROUPED_B].shape[0];
  int32_t *group;
  const assay_status status = grouped_draw_groups(from, M, G, &group, error);
  if (status != ASSAY_OK) return status;
  for (int64_t i = 0; i < count && arg == GROUPED_INDEX; ++i)
    value[i] = group[i];
  if (arg != GROUPED_INDEX) grouped_fill(from, arg, group, M, value, count);
  free(group);
  return ASSAY_OK;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"M", 1, 1 << 20, 8, 1, "rows"},
    {"E", 1, 65536, 4, 1, "groups"},
    {"N", 1, 1 << 20, 64, 1, "output channels"},
    {"K", 1, 1 << 20, 64, 1, "input channels: terms of each sum"},
};

static const assay_arg args[GROUPED_ARGS] = {
    {"a", ASSAY_IN, ASSAY_VALUES, false, "f32,f16,bf16", "M,K", "activations; the row stride is free", true},
    {"b", ASSAY_IN, ASSAY_VALUES, false, "=a", "E,N,K", "weights of each group, one row an output channel", false},
    {"bias", ASSAY_IN, ASSAY_VALUES, true, "=a", "E,N", "one for each group and output channel", false},
    {"group", ASSAY_IN, ASSAY_VALUES, false, "i32", "M", "the group of each row; -1: none", false},
    {"c", ASSAY_INOUT, ASSAY_VALUES, false, "=a,f32", "M,N", "the result", true},
};

static const assay_param params[] = {
    {"pad", ASSAY_ENUM, 0, 1, 0, "zero,untouched", "what a row without a group becomes"},
};

static const assay_op op = {
    .name = "grouped_gemm",
    .title = "matrix products in which each row has the weights of its group",
    .source = "docs/definitions.md, section 10",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = GROUPED_ARGS,
    .params = params,
    .param_count = (int32_t)(sizeof params / sizeof params[0]),
    .laws = "run_to_run,dead_bytes,permutation",
    .spoils = "last_k_dropped,neighbours_weights,bias_lost,bias_of_group_0,group_of_row_before,tile_of_one_group,"
              "empty_group_shifts,minus_one_read,dead_row_written",
    .kappa_element = 7,
    .form = ASSAY_PLAIN,
    .row_dim = "M",
    .confirmed_by = "gemm of each group alone (ref_grouped_test)",
    .extreme_args = "a,b,bias",
    .largest = 0x1p60,
    .check = plain_check_call,
    .reference = reference,
    .cost = cost,
    .fill = fill,
    .spoil = spoil,
    .product = product,
};

const assay_op *assay_op_grouped_gemm(void) {
  return &op;
}
