/* grouped_gemm_masked: a matrix product for each group, of as many rows as the device says. Group g has room for R rows
 * of A and C, of which the first rows_g are live. For g, r < rows_g and channel n:
 *
 *   C_grn <- round(sum_k A_grk B_gnk + bias_gn)
 *
 * Rows from rows_g on are dead: they are not read, and keep their bits in C (choice). It is summed in f32 and rounded
 * once to C's type. bias may be absent. rows_g outside [0, R] is an input error. Source: docs/definitions.md,
 * section 10. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "ref/lib/error_model.h"
#include "ref/lib/grouped.h"
#include "ref/lib/plain.h"

enum { TILE = 16 };

const assay_op *assay_op_grouped_gemm_masked(void);

typedef enum masked_spoil {
  SPOIL_NONE = -1,
  SPOIL_LAST_K_DROPPED,
  SPOIL_NEIGHBOURS_WEIGHTS,
  SPOIL_BIAS_LOST,
  SPOIL_BIAS_OF_GROUP_0,
  SPOIL_GROUP_BEFORE,       /* each group has the weights of the one before */
  SPOIL_EMPTY_GROUP_SHIFTS, /* groups are counted without those that have no rows */
  SPOIL_LAST_ROW_DROPPED,
  SPOIL_DEAD_ROW_WRITTEN,  /* the first dead row of a group has the product of the group's first row */
  SPOIL_MASKED_WRITES_PAST /* a tile of 16 rows goes on over the first rows of the next group */
} masked_spoil;

typedef struct masked {
  const assay_call *call;
  int64_t G, R;
  masked_spoil spoil;
} masked;

static int64_t rows_of(const assay_call *call, int64_t g) {
  return plain_integer(&call->arg[GROUPED_INDEX], g);
}

static assay_status check_rows(const masked *v, assay_error *error) {
  for (int64_t g = 0; g < v->G; ++g) {
    const int64_t found = rows_of(v->call, g);
    if (found < 0 || found > v->R)
      return assay_fail(error, ASSAY_ERR_INPUT, "rows: found %lld at [%lld], allowed 0 to %lld", (long long)found,
                        (long long)g, (long long)v->R);
  }
  return ASSAY_OK;
}

/* Returns the number of groups below g that have rows. */
static int64_t rank_of(const masked *v, int64_t g) {
  int64_t rank = 0;
  for (int64_t below = 0; below < g; ++below)
    rank += rows_of(v->call, below) > 0;
  return rank;
}

static grouped_row row_of(const masked *v, int64_t g, int64_t r) {
  const int64_t live = rows_of(v->call, g), before = g > 0 ? g - 1 : 0, rest = v->R % TILE;
  grouped_row row = {g * v->R + r, r < live ? g : -1, g};
  const bool last_tile = rest != 0 && rows_of(v->call, before) > v->R - rest;
  if (v->spoil == SPOIL_MASKED_WRITES_PAST && g > 0 && last_tile && r < TILE - rest && r < live) row.group = before;
  if (v->spoil == SPOIL_DEAD_ROW_WRITTEN && r == live && live > 0) row = (grouped_row){g * v->R, g, g};
  if (v->spoil == SPOIL_LAST_ROW_DROPPED && r == live - 1) row.group = -1;
  if (v->spoil == SPOIL_GROUP_BEFORE && r < live && g > 0 && rows_of(v->call, before) > 0) row.group = before;
  if (v->spoil == SPOIL_EMPTY_GROUP_SHIFTS && r < live) row.group = rank_of(v, g);
  if (row.group >= 0) row.bias = v->spoil == SPOIL_BIAS_OF_GROUP_0 ? 0 : row.group;
  return row;
}

static assay_status compute(const assay_call *call, const assay_contract *contract, bool exact, masked_spoil spoil,
                            const assay_expected *expected, assay_error *error) {
  const masked v = {call, call->arg[GROUPED_A].shape[0], call->arg[GROUPED_A].shape[1], spoil};
  const int64_t count = v.G * v.R;
  assay_status status = check_rows(&v, error);
  if (status != ASSAY_OK) return status;
  grouped_row *const row = malloc((size_t)(count + 1) * sizeof *row);
  if (row == NULL)
    return assay_fail(error, ASSAY_ERR_MEMORY, "grouped_gemm_masked: %lld rows do not fit in memory", (long long)count);
  for (int64_t i = 0; i < count; ++i)
    row[i] = row_of(&v, i / v.R, i % v.R);
  const grouped_run run = {.call = call,
                           .contract = contract != NULL ? contract : &default_contract,
                           .row = row,
                           .count = count,
                           .exact = exact,
                           .untouched = true,
                           .spoil = spoil == SPOIL_LAST_K_DROPPED       ? GROUPED_LAST_K_DROPPED
                                    : spoil == SPOIL_NEIGHBOURS_WEIGHTS ? GROUPED_NEIGHBOURS_WEIGHTS
                                    : spoil == SPOIL_BIAS_LOST          ? GROUPED_BIAS_LOST
                                                                        : GROUPED_RIGHT};
  status = grouped_compute(&run, expected, error);
  free(row);
  return status;
}

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)rows; /* the output is computed whole */
  (void)seen;
  return compute(call, contract, exact, SPOIL_NONE, expected, error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  (void)rows;
  const assay_expected values = {expected->value, NULL};
  return compute(call, contract, false, (masked_spoil)index, &values, error);
}

/* Describes a row of [G · R] by its own values and its group's weights. A dead row is no product. */
static void product(const assay_call *call, int64_t row, assay_product *p) {
  const assay_tensor *A = &call->arg[GROUPED_A], *B = &call->arg[GROUPED_B], *bias = &call->arg[GROUPED_BIAS];
  const int64_t R = A->shape[1], K = A->shape[2], N = B->shape[1], g = row / R, size = assay_dtype_size(B->dtype);
  const bool live = row % R < rows_of(call, g);
  *p = (assay_product){.alpha = 1};
  p->a = (assay_tensor){.data = (unsigned char *)A->data + grouped_offset(A, row) * size,
                        .dtype = A->dtype,
                        .rank = 2,
                        .shape = {1, K},
                        .stride = {K, 1}};
  p->b = (assay_tensor){.data = live ? (unsigned char *)B->data + g * N * K * size : NULL,
                        .dtype = B->dtype,
                        .rank = 2,
                        .shape = {N, K},
                        .stride = {K, 1}};
  if (bias->data != NULL && live)
    p->bias = (assay_tensor){.data = (unsigned char *)bias->data + g * N * size,
                             .dtype = bias->dtype,
                             .rank = 2,
                             .shape = {1, N},
                             .stride = {0, 1}};
}

/* Counts every row as live. */
static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *A = &call->arg[GROUPED_A];
  return grouped_cost(call, (double)(A->shape[0] * A->shape[1]), (double)A->shape[0]);
}

/* ---- values for the generator ------------------------------------------------------------------------ */

static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  const int64_t G = from->call->arg[GROUPED_A].shape[0], R = from->call->arg[GROUPED_A].shape[1];
  for (int64_t g = 0; g < G && arg == GROUPED_INDEX; ++g)
    value[g] = (double)grouped_draw_live(from, G, R, g);
  if (arg == GROUPED_INDEX) return ASSAY_OK;
  int32_t *const group = malloc((size_t)(G * R + 1) * sizeof *group);
  if (group == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "grouped_gemm_masked: out of memory");
  for (int64_t i = 0; i < G * R; ++i)
    group[i] = i % R < grouped_draw_live(from, G, R, i / R) ? (int32_t)(i / R) : -1;
  grouped_fill(from, arg, group, G * R, value, count);
  free(group);
  return ASSAY_OK;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"E", 1, 65536, 4, 1, "groups"},
    {"R", 1, 1 << 20, 8, 1, "rows that a group has room for"},
    {"N", 1, 1 << 20, 64, 1, "output channels"},
    {"K", 1, 1 << 20, 64, 1, "input channels: terms of each sum"},
};

static const assay_arg args[GROUPED_ARGS] = {
    {"a", ASSAY_IN, ASSAY_VALUES, false, "f32,f16,bf16", "E,R,K", "activations; groups may lie apart", true},
    {"b", ASSAY_IN, ASSAY_VALUES, false, "=a", "E,N,K", "weights of each group, one row an output channel", false},
    {"bias", ASSAY_IN, ASSAY_VALUES, true, "=a", "E,N", "one for each group and output channel", false},
    {"rows", ASSAY_IN, ASSAY_VALUES, false, "i32", "E", "live rows of each group", false},
    {"c", ASSAY_INOUT, ASSAY_VALUES, false, "=a,f32", "E,R,N", "the result; groups may lie apart", true},
};

static const assay_op op = {
    .name = "grouped_gemm_masked",
    .title = "a matrix product for each group, of as many rows as the device says",
    .source = "docs/definitions.md, section 10",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = GROUPED_ARGS,
    .laws = "run_to_run,dead_bytes",
    .spoils = "last_k_dropped,neighbours_weights,bias_lost,bias_of_group_0,group_before,empty_group_shifts,"
              "last_row_dropped,dead_row_written,masked_writes_past",
    .kappa_element = 7,
    .form = ASSAY_PLAIN,
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

const assay_op *assay_op_grouped_gemm_masked(void) {
  return &op;
}
