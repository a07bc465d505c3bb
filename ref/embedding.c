/* embedding: rows of a table. For token n and channel c:
 *
 *   y_nc = table[ids_n, c]                                    bit for bit, or, with learned positions,
 *   y_nc = round(table[ids_n, c] + position_table[positions_n, c])
 *
 * An id outside [0, V), or a position outside [0, max_pos), is an input error. Source: docs/definitions.md, section 5;
 * for learned positions section 7, gpt2. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "ref/lib/lattice.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"

enum { ARG_TABLE, ARG_IDS, ARG_POSITION_TABLE, ARG_POSITIONS, ARG_Y, ARG_COUNT };
enum {
  SPOIL_NONE = -1,
  SPOIL_ID_ONE_OFF,
  SPOIL_ROW_SWAPPED,
  SPOIL_NEIGHBOURS_CHANNEL,
  SPOIL_LAST_CHANNEL_DROPPED,
  SPOIL_POSITION_ONE_OFF,
  SPOIL_POSITION_LOST,
  SPOIL_ROW_FOR_POSITION
};

const assay_op *assay_op_embedding(void);

/* ---- the definition ---------------------------------------------------------------------------------- */

/* Writes y [C] from token [C] and position [C]; position NULL: there is none. */
static void embedding(const double *token, const double *position, int64_t C, double *y) {
  for (int64_t c = 0; c < C; ++c)
    y[c] = position != NULL ? token[c] + position[c] : token[c];
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

static assay_status check(const assay_call *call, assay_error *error) {
  const assay_status status = plain_check_call(call, error);
  if (status != ASSAY_OK) return status;
  const bool table = call->arg[ARG_POSITION_TABLE].data != NULL, positions = call->arg[ARG_POSITIONS].data != NULL;
  if (table == positions) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found no data (NULL), allowed a tensor, since there is %s",
                    table ? "positions" : "position_table", table ? "position_table" : "positions");
}

/* Checks that every index of the tensor is in [0, bound). */
static assay_status check_contents(const assay_call *call, int32_t arg, int64_t bound, assay_error *error) {
  for (int64_t n = 0; n < call->arg[arg].shape[0]; ++n) {
    const int64_t found = plain_integer(&call->arg[arg], n);
    if (found < 0 || found >= bound)
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: found %lld in row %lld, allowed 0 to %lld",
                        call->op->args[arg].name, (long long)found, (long long)n, (long long)(bound - 1));
  }
  return ASSAY_OK;
}

static void spoil_row(int32_t spoil, const double *token, const double *position, int64_t C, double *y) {
  for (int64_t c = 0; c < C; ++c) {
    if (spoil == SPOIL_NEIGHBOURS_CHANNEL) y[c] = token[c + 1 < C ? c + 1 : c] + (position != NULL ? position[c] : 0);
    if (spoil == SPOIL_POSITION_LOST) y[c] = token[c];
  }
  if (spoil == SPOIL_LAST_CHANNEL_DROPPED) y[C - 1] = 0;
}

typedef struct where {
  int64_t id, position;
} where;

/* Returns what row n looks up. With a planted error it is another index in range. */
static where look_up(const assay_call *call, int64_t n, int32_t spoil) {
  const assay_tensor *ids = &call->arg[ARG_IDS], *positions = &call->arg[ARG_POSITIONS];
  const int64_t N = ids->shape[0], V = call->arg[ARG_TABLE].shape[0], from = (n ^ 1) < N ? n ^ 1 : n;
  where at = {plain_integer(ids, spoil == SPOIL_ROW_SWAPPED ? from : n), 0};
  if (spoil == SPOIL_ID_ONE_OFF) at.id = (at.id + 1) % V;
  if (positions->data == NULL) return at;
  const int64_t P = call->arg[ARG_POSITION_TABLE].shape[0];
  at.position = plain_integer(positions, n);
  if (spoil == SPOIL_POSITION_ONE_OFF) at.position = (at.position + 1) % P;
  if (spoil == SPOIL_ROW_FOR_POSITION) at.position = n % P;
  return at;
}

static assay_status compute(const assay_call *call, const assay_rows *rows, bool exact, int32_t spoil,
                            assay_expected *expected, assay_error *error) {
  const assay_tensor *table = &call->arg[ARG_TABLE], *position_table = &call->arg[ARG_POSITION_TABLE];
  const int64_t N = call->arg[ARG_IDS].shape[0], V = table->shape[0], C = table->shape[1];
  const bool learned = position_table->data != NULL;
  double *memory = NULL;
  assay_status status = check_contents(call, ARG_IDS, V, error);
  if (status == ASSAY_OK && learned) status = check_contents(call, ARG_POSITIONS, position_table->shape[0], error);
  if (status == ASSAY_OK) status = rowwise_reserve(call, 2 * C, &memory, error);
  const int64_t count = rowwise_count(rows, N);
  for (int64_t i = 0; i < count && status == ASSAY_OK; ++i) {
    const int64_t n = rowwise_index(rows, i);
    const where at = look_up(call, n, spoil);
    double *token = memory, *position = learned ? memory + C : NULL, *y = expected->value + i * C;
    double *sigma = expected->sigma != NULL ? expected->sigma + i * C : NULL;
    plain_load_row(table, at.id, token);
    if (learned) plain_load_row(position_table, at.position, position);
    embedding(token, position, C, y);
    if (spoil != SPOIL_NONE) spoil_row(spoil, token, position, C, y);
    for (int64_t c = 0; c < C && status == ASSAY_OK; ++c) {
      const double term[2] = {token[c], learned ? position[c] : 0};
      if (sigma != NULL) sigma[c] = learned ? sqrt(few_terms_variance(term, 2, table->dtype)) : 0;
      if (exact && learned && !few_terms_exact(term, 2))
        status = rowwise_refuse(call, n, c, "token + position, which f32 must hold", fabs(y[c]), 0x1p24, error);
    }
  }
  free(memory);
  return status;
}

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)contract;
  (void)seen;
  return compute(call, rows, exact, SPOIL_NONE, expected, error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  (void)contract;
  assay_expected values = {expected->value, NULL};
  return compute(call, rows, false, index, &values, error);
}

/* Counts one row of the table per token (two with positions), read and written. */
/* Without positions a row is copied. */
static bool copies(const assay_call *call, int32_t output, int64_t element) {
  (void)output;
  (void)element;
  return call->arg[ARG_POSITIONS].data == NULL;
}

static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *y = &call->arg[ARG_Y];
  const double N = (double)y->shape[0], C = (double)y->shape[1], size = (double)assay_dtype_size(y->dtype);
  const bool learned = call->arg[ARG_POSITIONS].data != NULL;
  return (assay_cost){learned ? N * C : 0, (learned ? 3 : 2) * N * C * size + (learned ? 8 : 4) * N};
}

static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  (void)error;
  const assay_tensor *at = from->call->arg;
  if (arg == ARG_IDS)
    plain_fill_integers(from, (uint64_t)arg, at[ARG_TABLE].shape[0], value, count);
  else if (arg == ARG_POSITIONS)
    plain_fill_integers(from, (uint64_t)arg, at[ARG_POSITION_TABLE].shape[0], value, count);
  else
    plain_fill(from, (uint64_t)arg, value, count);
  return ASSAY_OK;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"N", 1, 1 << 20, 4, 1, "tokens"},
    {"V", 1, 1 << 20, 512, 1, "rows of the table"},
    {"C", 1, 65536, 64, 1, "channels"},
    {"max_pos", 1, 1 << 20, 64, 1, "rows of the table of positions"},
};

static const assay_arg args[ARG_COUNT] = {
    {"table", ASSAY_IN, ASSAY_VALUES, false, "f32,f16,bf16", "V,C", "one row per token id", false},
    {"ids", ASSAY_IN, ASSAY_VALUES, false, "i32", "N", "token ids, 0 to V - 1", false},
    {"position_table", ASSAY_IN, ASSAY_VALUES, true, "=table", "max_pos,C", "learned positions; with positions", false},
    {"positions", ASSAY_IN, ASSAY_VALUES, true, "i32", "N", "0 to max_pos - 1; with position_table", false},
    {"y", ASSAY_OUT, ASSAY_RESULT, false, "=table", "N,C", "the result", false},
};

static const assay_op op = {
    .name = "embedding",
    .title = "rows of a table by token id, with or without learned positions",
    .source = "docs/definitions.md, sections 5 and 7",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .laws = "run_to_run,dead_bytes,permutation",
    .spoils = "id_one_off,row_swapped,neighbours_channel,last_channel_dropped,position_one_off,position_lost,"
              "row_for_position",
    .kappa_element = 3.2,
    .form = ASSAY_PLAIN,
    .row_dim = "N",
    .takes_special = true,
    .confirmed_by = "the product of the one-hot matrix of the ids with the table (ref_linear_test)",
    .largest = 0x1.fffffep127,
    .check = check,
    .reference = reference,
    .cost = cost,
    .fill = fill,
    .spoil = spoil,
    .copies = copies,
};

const assay_op *assay_op_embedding(void) {
  return &op;
}
