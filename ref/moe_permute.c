/* moe_permute: gathers the rows of tokens into the order of their experts. Slot f = t · k + j is the j-th expert of
 * token t. For row p of the result:
 *
 *   order_p = f >= 0:  y_p = x[floor(f / k)], sy_p = sx[floor(f / k)]     bit for bit
 *   order_p = -1:      zeros, or (pad = untouched) the bits that y_p and sy_p had
 *
 * An entry of order outside [-1, T k) is an input error. Source: docs/definitions.md, section 10. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"

enum { ARG_X, ARG_SX, ARG_ORDER, ARG_Y, ARG_SY, ARG_COUNT };
enum { PARAM_K, PARAM_PAD, PARAM_COUNT };
enum { PAD_ZERO, PAD_UNTOUCHED };

const assay_op *assay_op_moe_permute(void);

typedef enum permute_spoil {
  SPOIL_NONE = -1,
  SPOIL_SLOT_FOR_TOKEN,        /* the slot's number is taken as the token's */
  SPOIL_SCALE_OF_ROW_BEFORE,   /* scales of the token before */
  SPOIL_SCALES_FORGOTTEN,      /* scales stay 1 */
  SPOIL_PADDING_STALE,         /* a padding row holds token 0 */
  SPOIL_LAST_CHANNELS_DROPPED, /* the channels that fill no vector of 8 (else the last one) are 0 */
  SPOIL_ROW_SWAPPED            /* neighbouring rows change places */
} permute_spoil;

/* ---- the definition ---------------------------------------------------------------------------------- */

/* Returns the token whose row goes to a place with this entry of order; -1 for padding. */
static int64_t token_of(int64_t slot, int64_t k) {
  return slot >= 0 ? slot / k : -1;
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

static assay_status check(const assay_call *call, assay_error *error) {
  const assay_status status = plain_check_call(call, error);
  if (status != ASSAY_OK) return status;
  const bool from = call->arg[ARG_SX].data != NULL, to = call->arg[ARG_SY].data != NULL;
  const double slots = (double)call->arg[ARG_X].shape[0] * call->param[PARAM_K];
  if (slots > 0x1.fffffffcp30)
    return assay_fail(error, ASSAY_ERR_INPUT, "k: found %.0f slots of all tokens, allowed fewer than 2^31", slots);
  if (from == to) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: found no data (NULL), allowed a tensor, since there is %s",
                    from ? "sy" : "sx", from ? "sx" : "sy");
}

static assay_status check_contents(const assay_call *call, assay_error *error) {
  const assay_tensor *order = &call->arg[ARG_ORDER];
  const int64_t slots = call->arg[ARG_X].shape[0] * (int64_t)call->param[PARAM_K];
  for (int64_t p = 0; p < order->shape[0]; ++p) {
    const int64_t found = plain_integer(order, p);
    if (found < -1 || found >= slots)
      return assay_fail(error, ASSAY_ERR_INPUT, "order: found %lld in row %lld, allowed -1 to %lld", (long long)found,
                        (long long)p, (long long)(slots - 1));
  }
  return ASSAY_OK;
}

/* Returns the token that row p shows, with a planted error. */
static int64_t shown(const assay_call *call, int64_t p, permute_spoil spoil) {
  const assay_tensor *order = &call->arg[ARG_ORDER];
  const int64_t P = order->shape[0], T = call->arg[ARG_X].shape[0], k = (int64_t)call->param[PARAM_K];
  const int64_t slot = plain_integer(order, spoil == SPOIL_ROW_SWAPPED && (p ^ 1) < P ? p ^ 1 : p);
  if (spoil == SPOIL_SLOT_FOR_TOKEN && slot >= 0) return slot % T;
  if (spoil == SPOIL_PADDING_STALE && slot < 0) return 0;
  return token_of(slot, k);
}

/* Writes one row of a result: that of `token`, zeros, or what the row keeps. A row that keeps its bits by the
 * definition, and gets others by a planted error, has the values of `token`. */
static void put_row(const assay_tensor *from, int64_t token, bool keeps, int64_t width, double *value, double *sigma) {
  if (token >= 0) plain_load_row(from, token, value);
  for (int64_t c = 0; c < width; ++c) {
    if (token < 0) value[c] = 0;
    if (sigma != NULL) sigma[c] = keeps ? ASSAY_UNCHANGED : 0;
  }
}

static void spoil_channels(permute_spoil spoil, int64_t C, double *y) {
  if (spoil != SPOIL_LAST_CHANNELS_DROPPED) return;
  for (int64_t c = C % 8 != 0 ? C - C % 8 : C - 1; c < C; ++c)
    y[c] = 0;
}

static assay_status compute(const assay_call *call, const assay_rows *rows, permute_spoil spoil,
                            assay_expected *expected, assay_error *error) {
  const assay_tensor *x = &call->arg[ARG_X], *sx = &call->arg[ARG_SX], *order = &call->arg[ARG_ORDER];
  const int64_t T = x->shape[0], C = x->shape[1], S = sx->data != NULL ? sx->shape[1] : 0;
  const bool untouched = call->param[PARAM_PAD] == PAD_UNTOUCHED;
  const assay_status status = check_contents(call, error);
  const int64_t count = rowwise_count(rows, order->shape[0]);
  for (int64_t i = 0; i < count && status == ASSAY_OK; ++i) {
    const int64_t p = rowwise_index(rows, i), token = shown(call, p, spoil);
    const bool keeps = untouched && plain_integer(order, p) < 0;
    put_row(x, token, keeps, C, expected[0].value + i * C,
            expected[0].sigma != NULL ? expected[0].sigma + i * C : NULL);
    if (token >= 0) spoil_channels(spoil, C, expected[0].value + i * C);
    if (sx->data == NULL) continue;
    const int64_t scale = spoil == SPOIL_SCALE_OF_ROW_BEFORE && token >= 0 ? (token + T - 1) % T : token;
    put_row(sx, scale, keeps, S, expected[1].value + i * S,
            expected[1].sigma != NULL ? expected[1].sigma + i * S : NULL);
    for (int64_t s = 0; s < S && spoil == SPOIL_SCALES_FORGOTTEN && token >= 0; ++s)
      expected[1].value[i * S + s] = 1;
  }
  return status;
}

/* Computes the expectation. Bits are moved, so results are exact on any inputs. */
static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)contract;
  (void)exact;
  (void)seen;
  return compute(call, rows, SPOIL_NONE, expected, error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  (void)contract;
  assay_expected values[2] = {{expected[0].value, NULL}, {NULL, NULL}};
  if (call->arg[ARG_SX].data != NULL) values[1].value = expected[1].value;
  return compute(call, rows, (permute_spoil)index, values, error);
}

static bool copies(const assay_call *call, int32_t output, int64_t element) {
  (void)call;
  (void)output;
  (void)element;
  return true;
}

/* Counts each row of x as read once, and each row of y as written. */
static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *x = &call->arg[ARG_X], *sx = &call->arg[ARG_SX];
  const double rows = (double)(x->shape[0] + call->arg[ARG_ORDER].shape[0]);
  const double scales = sx->data != NULL ? 4 * (double)sx->shape[1] : 0;
  return (assay_cost){.bytes = rows * ((double)(x->shape[1] * assay_dtype_size(x->dtype)) + scales) +
                               4 * (double)call->arg[ARG_ORDER].shape[0]};
}

/* ---- values for the generator ------------------------------------------------------------------------ */

/* Draws the entry of order in row p. With as many rows as slots each slot has one row, as moe_align makes them.
 * Else one row of five is padding, and the others have any slot. */
static int64_t draw_slot(const assay_fill *fill, int64_t p) {
  const int64_t slots = fill->call->arg[ARG_X].shape[0] * (int64_t)fill->call->param[PARAM_K];
  if (fill->call->arg[ARG_ORDER].shape[0] == slots) return plain_place(fill, ARG_ORDER, p, slots);
  assay_rng rng = {fill->seed, 0x7065726D, 8 * (uint64_t)p};
  return assay_rng_range(&rng, 0, 4) == 0 ? -1 : assay_rng_range(&rng, 0, slots - 1);
}

/* Replaces the rows of tokens that no entry of order names by NaN. Nothing may depend on them. */
static assay_status poison_unnamed(const assay_fill *fill, int64_t width, double *value, assay_error *error) {
  const int64_t T = fill->call->arg[ARG_X].shape[0], P = fill->call->arg[ARG_ORDER].shape[0];
  unsigned char *named = calloc((size_t)T + 1, 1);
  if (named == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "moe_permute: out of memory");
  for (int64_t p = 0; p < P; ++p) {
    const int64_t token = token_of(draw_slot(fill, p), (int64_t)fill->call->param[PARAM_K]);
    if (token >= 0) named[token] = 1;
  }
  for (int64_t t = 0; t < T; ++t)
    for (int64_t c = 0; c < width && named[t] == 0; ++c)
      value[t * width + c] = (double)NAN;
  free(named);
  return ASSAY_OK;
}

static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  if (arg == ARG_ORDER) {
    for (int64_t p = 0; p < count; ++p)
      value[p] = (double)draw_slot(from, p);
    return ASSAY_OK;
  }
  plain_fill(from, (uint64_t)arg, value, count);
  if (arg != ARG_X && arg != ARG_SX) return ASSAY_OK;
  const int64_t T = from->call->arg[arg].shape[0];
  return T > 0 ? poison_unnamed(from, count / T, value, error) : ASSAY_OK;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"T", 1, 1 << 20, 4, 1, "tokens"},
    {"C", 1, 65536, 64, 1, "channels"},
    {"S", 1, 1024, 1, 1, "scales of a token; with sx"},
    {"P", 1, 1 << 24, 8, 1, "rows of the result"},
};

static const assay_arg args[ARG_COUNT] = {
    {"x", ASSAY_IN, ASSAY_VALUES, false, "f32,f16,bf16,e4m3", "T,C", "one row per token", true},
    {"sx", ASSAY_IN, ASSAY_VALUES, true, "f32", "T,S", "scales of each token; with sy", true},
    {"order", ASSAY_IN, ASSAY_VALUES, false, "i32", "P", "the slot of each row, 0 to T k - 1; -1: padding", false},
    {"y", ASSAY_INOUT, ASSAY_VALUES, false, "=x", "P,C", "the rows in order", true},
    {"sy", ASSAY_INOUT, ASSAY_VALUES, true, "f32", "P,S", "their scales; with sx", true},
};

static const assay_param params[PARAM_COUNT] = {
    {"k", ASSAY_INTEGER, 1, 32, 1, NULL, "experts of a token: slots t k to t k + k - 1 are token t's"},
    {"pad", ASSAY_ENUM, 0, 1, 0, "zero,untouched", "what a row without a slot becomes"},
};

static const assay_op op = {
    .name = "moe_permute",
    .title = "rows of tokens in the order of their experts",
    .source = "docs/definitions.md, section 10",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .params = params,
    .param_count = PARAM_COUNT,
    .laws = "run_to_run,dead_bytes,permutation",
    .spoils = "slot_for_token,scale_of_row_before,scales_forgotten,padding_stale,last_channels_dropped,row_swapped",
    .kappa_element = 2.5,
    .form = ASSAY_PLAIN,
    .row_dim = "P",
    .takes_special = true,
    .confirmed_by = "the product of the one-hot matrix of the tokens with x (ref_moe_test)",
    .largest = 0x1.fffffep127,
    .check = check,
    .reference = reference,
    .cost = cost,
    .fill = fill,
    .spoil = spoil,
    .copies = copies,
};

const assay_op *assay_op_moe_permute(void) {
  return &op;
}
