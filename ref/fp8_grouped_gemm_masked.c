/* fp8_grouped_gemm_masked: a product of e4m3 matrices for each group, of as many rows as the device says. Pieces of
 * 1 x 128 of a and of 128 x 128 of each group's weights have a scale. Group g has room for R rows of a and C, of which
 * the first rows_g are live. For g, r < rows_g, channel n, and κ a piece of 128 of K, the last of which may be short:
 *
 *   C_grn <- round(sum_κ sfa_{g r κ} · sfb_{g floor(n / 128) κ} · (sum_{i in κ} A_gri · B_gni) + bias_gn)
 *
 * Rows from rows_g on are dead: neither they nor their scales are read, and they keep their bits in C (choice). A sum
 * over a piece is scaled, then added in f32. The result is rounded once. Exactly one of sfa [E, R, ceil(K/128)] and
 * sfa_t [E, ceil(K/128), R] is present. bias may be absent. rows_g outside [0, R] is an input error. Source:
 * docs/definitions.md, section 13. */
#include <stdlib.h>

#include "ref/lib/block_grouped.h"
#include "ref/lib/error_model.h"
#include "ref/lib/grouped.h"
#include "ref/lib/plain.h"

enum { TILE = 16 };

const assay_op *assay_op_fp8_grouped_gemm_masked(void);

typedef enum masked_spoil {
  SPOIL_NONE = -1,
  SPOIL_LAST_PIECE_DROPPED,
  SPOIL_SCALE_OF_PIECE_BEFORE,
  SPOIL_SCALE_TRANSPOSED,
  SPOIL_N_BLOCK_OF_64,
  SPOIL_NO_PROMOTION,
  SPOIL_SCALE_OF_ROW_BEFORE,   /* sfa of the row before in the group */
  SPOIL_SCALE_OF_GROUP_BEFORE, /* sfb of the group before, if it has rows */
  SPOIL_WEIGHTS_OF_GROUP_BEFORE,
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
  return plain_integer(&call->arg[BLOCK_GROUPED_INDEX], g);
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

static block_grouped_row row_of(const masked *v, int64_t g, int64_t r) {
  const int64_t live = rows_of(v->call, g), before = g > 0 ? g - 1 : 0, rest = v->R % TILE, at = g * v->R + r;
  block_grouped_row row = {at, at, r < live ? g : -1, g, g};
  const bool last_tile = rest != 0 && rows_of(v->call, before) > v->R - rest;
  const bool other = g > 0 && rows_of(v->call, before) > 0 && r < live;
  if (v->spoil == SPOIL_MASKED_WRITES_PAST && g > 0 && last_tile && r < TILE - rest && r < live) row.group = before;
  if (v->spoil == SPOIL_DEAD_ROW_WRITTEN && r == live && live > 0)
    row = (block_grouped_row){g * v->R, g * v->R, g, g, g};
  if (v->spoil == SPOIL_LAST_ROW_DROPPED && r == live - 1) row.group = -1;
  if (v->spoil == SPOIL_WEIGHTS_OF_GROUP_BEFORE && other) row.group = before;
  if (v->spoil == SPOIL_SCALE_OF_GROUP_BEFORE && other) row.sfb = before;
  if (v->spoil == SPOIL_SCALE_OF_ROW_BEFORE && r > 0 && r < live) row.sfa = at - 1;
  return row;
}

static assay_status compute(const assay_call *call, const assay_contract *contract, bool exact, masked_spoil spoil,
                            const assay_expected *expected, assay_error *error) {
  const assay_tensor *A = &call->arg[BLOCK_GROUPED_A];
  const masked v = {call, A->shape[0], A->shape[1], spoil};
  const int64_t count = v.G * v.R;
  assay_status status = check_rows(&v, error);
  if (status != ASSAY_OK) return status;
  block_grouped_row *const row = malloc((size_t)(count + 1) * sizeof *row);
  if (row == NULL)
    return assay_fail(error, ASSAY_ERR_MEMORY, "%s: %lld rows do not fit in memory", call->op->name, (long long)count);
  for (int64_t i = 0; i < count; ++i)
    row[i] = row_of(&v, i / v.R, i % v.R);
  const block_grouped_run run = {.call = call,
                                 .contract = contract != NULL ? contract : &default_contract,
                                 .row = row,
                                 .count = count,
                                 .exact = exact,
                                 .untouched = true,
                                 .spoil = spoil >= 0 && spoil <= SPOIL_NO_PROMOTION ? (block_grouped_spoil)(spoil + 1)
                                                                                    : BLOCK_GROUPED_RIGHT};
  status = block_grouped_compute(&run, expected, error);
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

/* Describes a live row by its own values and its group's weights. A dead row is no product. */
static void product(const assay_call *call, int64_t row, assay_product *p) {
  const int64_t R = call->arg[BLOCK_GROUPED_A].shape[1], g = row / R;
  block_grouped_product(call, row, row % R < rows_of(call, g) ? g : -1, p);
}

/* Counts every row as live. */
static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *A = &call->arg[BLOCK_GROUPED_A];
  return block_grouped_cost(call, (double)(A->shape[0] * A->shape[1]), (double)A->shape[0]);
}

static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  const assay_tensor *A = &from->call->arg[BLOCK_GROUPED_A];
  const int64_t G = A->shape[0], R = A->shape[1];
  for (int64_t g = 0; g < G && arg == BLOCK_GROUPED_INDEX; ++g)
    value[g] = (double)grouped_draw_live(from, G, R, g);
  if (arg == BLOCK_GROUPED_INDEX) return ASSAY_OK;
  int32_t *const group = malloc((size_t)(G * R + 1) * sizeof *group);
  if (group == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", from->call->op->name);
  for (int64_t i = 0; i < G * R; ++i)
    group[i] = i % R < grouped_draw_live(from, G, R, i / R) ? (int32_t)(i / R) : -1;
  const assay_status status = block_grouped_fill(from, arg, group, G * R, value, count, error);
  free(group);
  return status;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"E", 1, 65536, 4, 1, "groups"},
    {"R", 1, 1 << 20, 8, 1, "rows that a group has room for"},
    {"N", 1, 1 << 20, 64, 1, "output channels"},
    {"K", 1, 65536, 256, 1, "input channels: terms of each sum"},
};

static const assay_arg args[BLOCK_GROUPED_ARGS] = {
    {"c", ASSAY_INOUT, ASSAY_VALUES, false, "f32,f16,bf16", "E,R,N", "the result; groups may lie apart", true},
    {"a", ASSAY_IN, ASSAY_VALUES, false, "e4m3", "E,R,K", "activations; groups may lie apart", true},
    {"sfa", ASSAY_IN, ASSAY_VALUES, true, "f32", "E,R,K^128", "scales of 128 channels of a row of a", true},
    {"sfa_t", ASSAY_IN, ASSAY_VALUES, true, "f32", "E,K^128,R", "the same, a row for each 128 channels", true},
    {"b", ASSAY_IN, ASSAY_VALUES, false, "e4m3", "E,N,K", "weights of each group, one row an output channel", false},
    {"sfb", ASSAY_IN, ASSAY_VALUES, false, "f32", "E,N^128,K^128", "scales of 128 x 128 weights", false},
    {"bias", ASSAY_IN, ASSAY_VALUES, true, "=c", "E,N", "one for each group and output channel", false},
    {"rows", ASSAY_IN, ASSAY_VALUES, false, "i32", "E", "live rows of each group", false},
};

static const assay_op op = {
    .name = "fp8_grouped_gemm_masked",
    .title = "an e4m3 product with scales for each group, of as many rows as the device says",
    .source = "docs/definitions.md, section 13",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = BLOCK_GROUPED_ARGS,
    .laws = "run_to_run,dead_bytes",
    .spoils = "last_piece_dropped,scale_of_piece_before,scale_transposed,n_block_of_64,no_promotion,"
              "scale_of_row_before,scale_of_group_before,weights_of_group_before,last_row_dropped,dead_row_written,"
              "masked_writes_past",
    .kappa_element = 7, /* sums of many cuts, close to normal: docs/decisions/0016-kappa-of-combined-slots.md */
    .form = ASSAY_PLAIN,
    .confirmed_by = "fp8_block_gemm of each group alone (ref_block_grouped_test)",
    .extreme_args = "bias",
    .largest = 0x1p88,
    .check = block_grouped_check,
    .reference = reference,
    .cost = cost,
    .fill = fill,
    .spoil = spoil,
    .product = product,
};

const assay_op *assay_op_fp8_grouped_gemm_masked(void) {
  return &op;
}
