/* fp8_grouped_gemm: a product of e4m3 matrices in which every row names the weights that it meets. Pieces of 1 x 128 of
 * a and of 128 x 128 of each group's weights have a scale. For row m with group_m = g, channel n, and κ a piece of 128
 * of K, the last of which may be short:
 *
 *   g >= 0:   C_mn <- round(sum_κ sfa_{m κ} · sfb_{g floor(n / 128) κ} · (sum_{i in κ} A_mi · B_gni) + bias_gn)
 *   g = -1:   the row is dead: C_mn <- 0, or (pad = untouched) it keeps its bits
 *
 * A sum over a piece is scaled, then added in f32. The result is rounded once. Exactly one of sfa [M, ceil(K/128)] and
 * sfa_t, its transpose, is present. bias may be absent. Rows of one group need not be neighbours (choice). Dead rows of
 * a and of its scales are not read, and neither are weights and scales of groups without rows. A group outside [-1, E)
 * is an input error. Source: docs/definitions.md, section 13. */
#include <stdlib.h>

#include "ref/lib/block_grouped.h"
#include "ref/lib/error_model.h"
#include "ref/lib/grouped.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"

enum { PAD_ZERO, PAD_UNTOUCHED };

const assay_op *assay_op_fp8_grouped_gemm(void);

typedef enum rows_spoil {
  SPOIL_NONE = -1,
  SPOIL_LAST_PIECE_DROPPED,
  SPOIL_SCALE_OF_PIECE_BEFORE,
  SPOIL_SCALE_TRANSPOSED,
  SPOIL_N_BLOCK_OF_64,
  SPOIL_NO_PROMOTION,
  SPOIL_SCALE_OF_ROW_BEFORE,   /* sfa of the live row before */
  SPOIL_SCALE_OF_GROUP_BEFORE, /* sfb of the group before, of those that have rows */
  SPOIL_GROUP_OF_ROW_BEFORE,
  SPOIL_BIAS_OF_GROUP_BEFORE,
  SPOIL_EMPTY_GROUP_SHIFTS, /* weights are counted without groups that have no rows */
  SPOIL_MINUS_ONE_READ,     /* dead rows have the group of the first live row */
  SPOIL_DEAD_ROW_WRITTEN    /* dead rows have the product of the first live row */
} rows_spoil;

/* ---- the definition's rows --------------------------------------------------------------------------- */

static int64_t group_of(const assay_call *call, int64_t row) {
  return plain_integer(&call->arg[BLOCK_GROUPED_INDEX], row);
}

static assay_status check_groups(const assay_call *call, assay_error *error) {
  const int64_t M = call->arg[BLOCK_GROUPED_INDEX].shape[0], G = call->arg[BLOCK_GROUPED_B].shape[0];
  for (int64_t m = 0; m < M; ++m) {
    const int64_t found = group_of(call, m);
    if (found < -1 || found >= G)
      return assay_fail(error, ASSAY_ERR_INPUT, "group: found %lld in row %lld, allowed -1 to %lld", (long long)found,
                        (long long)m, (long long)(G - 1));
  }
  return ASSAY_OK;
}

/* ---- planted errors ---------------------------------------------------------------------------------- */

/* The planted errors need these numbers of a call: its first live row, and for each group the one before and its rank.
 * Only groups with rows count. */
typedef struct lookup {
  int64_t first_live;
  int64_t *before, *rank; /* [G] */
} lookup;

static assay_status look_up(const assay_call *call, lookup *of, assay_error *error) {
  const int64_t M = call->arg[BLOCK_GROUPED_INDEX].shape[0], G = call->arg[BLOCK_GROUPED_B].shape[0];
  *of = (lookup){.first_live = -1, .before = calloc(2 * (size_t)G + 1, sizeof(int64_t))};
  if (of->before == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", call->op->name);
  of->rank = of->before + G;
  for (int64_t m = M - 1; m >= 0; --m)
    if (group_of(call, m) >= 0) {
      of->first_live = m;
      of->before[group_of(call, m)] = 1;
    }
  int64_t rank = 0, last = -1;
  for (int64_t g = 0; g < G; ++g) {
    const bool live = of->before[g] != 0;
    of->rank[g] = rank;
    of->before[g] = last >= 0 ? last : g;
    if (!live) continue;
    ++rank;
    last = g;
  }
  return ASSAY_OK;
}

static block_grouped_row row_of(const assay_call *call, int64_t m, const lookup *of, rows_spoil spoil) {
  const int64_t own = group_of(call, m), before = m > 0 ? group_of(call, m - 1) : -1;
  block_grouped_row row = {m, m, own, own, own};
  if (own < 0) {
    if (of->first_live < 0 || (spoil != SPOIL_MINUS_ONE_READ && spoil != SPOIL_DEAD_ROW_WRITTEN)) return row;
    row.group = row.sfb = row.bias = group_of(call, of->first_live);
    if (spoil == SPOIL_DEAD_ROW_WRITTEN) row.a = row.sfa = of->first_live;
    return row;
  }
  if (spoil == SPOIL_SCALE_OF_ROW_BEFORE && before >= 0) row.sfa = m - 1;
  if (spoil == SPOIL_SCALE_OF_GROUP_BEFORE) row.sfb = of->before[own];
  if (spoil == SPOIL_GROUP_OF_ROW_BEFORE && before >= 0) row.group = row.sfb = row.bias = before;
  if (spoil == SPOIL_BIAS_OF_GROUP_BEFORE) row.bias = of->before[own];
  if (spoil == SPOIL_EMPTY_GROUP_SHIFTS) row.group = of->rank[own];
  return row;
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

static assay_status compute(const assay_call *call, const assay_contract *contract, const assay_rows *rows, bool exact,
                            rows_spoil spoil, const assay_expected *expected, assay_error *error) {
  const int64_t count = rowwise_count(rows, call->arg[BLOCK_GROUPED_INDEX].shape[0]);
  lookup of;
  assay_status status = check_groups(call, error);
  if (status == ASSAY_OK) status = look_up(call, &of, error);
  if (status != ASSAY_OK) return status;
  block_grouped_row *const row = malloc((size_t)(count + 1) * sizeof *row);
  int64_t *const number = malloc((size_t)(count + 1) * sizeof *number);
  if (row == NULL || number == NULL)
    status = assay_fail(error, ASSAY_ERR_MEMORY, "fp8_grouped_gemm: %lld rows do not fit in memory", (long long)count);
  for (int64_t i = 0; i < count && status == ASSAY_OK; ++i) {
    number[i] = rowwise_index(rows, i);
    row[i] = row_of(call, number[i], &of, spoil);
  }
  const block_grouped_run run = {.call = call,
                                 .contract = contract != NULL ? contract : &default_contract,
                                 .row = row,
                                 .number = number,
                                 .count = count,
                                 .exact = exact,
                                 .untouched = call->param[0] == PAD_UNTOUCHED,
                                 .spoil = spoil >= 0 && spoil <= SPOIL_NO_PROMOTION ? (block_grouped_spoil)(spoil + 1)
                                                                                    : BLOCK_GROUPED_RIGHT};
  if (status == ASSAY_OK) status = block_grouped_compute(&run, expected, error);
  free(row);
  free(number);
  free(of.before);
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
  block_grouped_product(call, row, group_of(call, row), p);
}

static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const double M = (double)call->arg[BLOCK_GROUPED_INDEX].shape[0], G = (double)call->arg[BLOCK_GROUPED_B].shape[0];
  return block_grouped_cost(call, M, M < G ? M : G);
}

static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  const int64_t M = from->call->arg[BLOCK_GROUPED_INDEX].shape[0], G = from->call->arg[BLOCK_GROUPED_B].shape[0];
  int32_t *group;
  assay_status status = grouped_draw_groups(from, M, G, &group, error);
  if (status != ASSAY_OK) return status;
  for (int64_t i = 0; i < count && arg == BLOCK_GROUPED_INDEX; ++i)
    value[i] = group[i];
  if (arg != BLOCK_GROUPED_INDEX) status = block_grouped_fill(from, arg, group, M, value, count, error);
  free(group);
  return status;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"M", 1, 1 << 20, 8, 1, "rows"},
    {"E", 1, 65536, 4, 1, "groups"},
    {"N", 1, 1 << 20, 64, 1, "output channels"},
    {"K", 1, 65536, 256, 1, "input channels: terms of each sum"},
};

static const assay_arg args[BLOCK_GROUPED_ARGS] = {
    {"c", ASSAY_INOUT, ASSAY_VALUES, false, "f32,f16,bf16", "M,N", "the result", true},
    {"a", ASSAY_IN, ASSAY_VALUES, false, "e4m3", "M,K", "activations; the row stride is free", true},
    {"sfa", ASSAY_IN, ASSAY_VALUES, true, "f32", "M,K^128", "scales of 128 channels of a row of a", true},
    {"sfa_t", ASSAY_IN, ASSAY_VALUES, true, "f32", "K^128,M", "the same, a row for each 128 channels", true},
    {"b", ASSAY_IN, ASSAY_VALUES, false, "e4m3", "E,N,K", "weights of each group, one row an output channel", false},
    {"sfb", ASSAY_IN, ASSAY_VALUES, false, "f32", "E,N^128,K^128", "scales of 128 x 128 weights", false},
    {"bias", ASSAY_IN, ASSAY_VALUES, true, "=c", "E,N", "one for each group and output channel", false},
    {"group", ASSAY_IN, ASSAY_VALUES, false, "i32", "M", "the group of each row; -1: none", false},
};

static const assay_param params[] = {
    {"pad", ASSAY_ENUM, 0, 1, 0, "zero,untouched", "what a row without a group becomes"},
};

static const assay_op op = {
    .name = "fp8_grouped_gemm",
    .title = "e4m3 products with scales, in which each row has the weights of its group",
    .source = "docs/definitions.md, section 13",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = BLOCK_GROUPED_ARGS,
    .params = params,
    .param_count = (int32_t)(sizeof params / sizeof params[0]),
    .laws = "run_to_run,dead_bytes,permutation",
    .spoils = "last_piece_dropped,scale_of_piece_before,scale_transposed,n_block_of_64,no_promotion,"
              "scale_of_row_before,scale_of_group_before,group_of_row_before,bias_of_group_before,"
              "empty_group_shifts,minus_one_read,dead_row_written",
    .kappa_element = 7, /* sums of many cuts, close to normal: docs/decisions/0016-kappa-of-combined-slots.md */
    .form = ASSAY_PLAIN,
    .row_dim = "M",
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

const assay_op *assay_op_fp8_grouped_gemm(void) {
  return &op;
}
