/* token_bitmask: bans tokens. Mask row m names logits row r(m): rows_m, or m itself without `rows`. For v < V_m, bit
 * v mod 32 of word floor(v / 32) of mask row m decides:
 *
 *   bit 0:  logits[r(m), v] = -Inf           bit 1:  logits[r(m), v] keeps its bits, NaN too
 *
 * For v >= V_m the logits stay, or become -Inf with tail = banned. Logits rows that no mask row names stay. rows_m = -1
 * skips the mask row. Bits from V_m on are dead. V_m = 0 stands for V. A row outside [-1, N), or named twice, is an
 * input error. Source: docs/definitions.md, section 11. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"

enum { ARG_LOGITS, ARG_MASK, ARG_ROWS, ARG_LOGITS_OUT, ARG_COUNT };
enum { PARAM_V_M, PARAM_TAIL, PARAM_COUNT };
enum { TAIL_UNCHANGED, TAIL_BANNED };

const assay_op *assay_op_token_bitmask(void);

typedef enum bitmask_spoil {
  SPOIL_NONE = -1,
  SPOIL_TAIL_UNMASKED,        /* the bits of the last, partial word are not applied */
  SPOIL_MASK_STRIDE_OF_VOCAB, /* mask rows lie ceil(V_m / 32) words apart */
  SPOIL_BIT_ORDER_TURNED,     /* bit 31 comes first */
  SPOIL_ROW_LIST_IGNORED,     /* mask row m bans tokens of logits row m */
  SPOIL_WORD_OF_ROW_BEFORE    /* the mask row before decides */
} bitmask_spoil;

/* ---- the definition ---------------------------------------------------------------------------------- */

static bool is_allowed(uint32_t word, int64_t v) {
  return (word >> (v & 31) & 1) != 0;
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

static int64_t masked_tokens(const assay_call *call) {
  const int64_t given = (int64_t)call->param[PARAM_V_M];
  return given > 0 ? given : call->arg[ARG_LOGITS].shape[1];
}

static assay_status check(const assay_call *call, assay_error *error) {
  const assay_status status = plain_check_call(call, error);
  if (status != ASSAY_OK) return status;
  const assay_tensor *logits = &call->arg[ARG_LOGITS], *mask = &call->arg[ARG_MASK];
  const int64_t V_m = masked_tokens(call), words = (V_m + 31) / 32;
  if (V_m > logits->shape[1])
    return assay_fail(error, ASSAY_ERR_INPUT, "V_m: found %lld, allowed up to V = %lld", (long long)V_m,
                      (long long)logits->shape[1]);
  if (mask->shape[1] < words)
    return assay_fail(error, ASSAY_ERR_INPUT, "W: found %lld words, allowed from %lld on", (long long)mask->shape[1],
                      (long long)words);
  if (call->arg[ARG_ROWS].data == NULL && mask->shape[0] > logits->shape[0])
    return assay_fail(error, ASSAY_ERR_INPUT, "M: found %lld, allowed up to N = %lld without rows",
                      (long long)mask->shape[0], (long long)logits->shape[0]);
  return ASSAY_OK;
}

/* Writes to mask_row [N] the mask row of each logits row, -1 for none. */
static assay_status find_rows(const assay_call *call, bool ignored, int64_t *mask_row, assay_error *error) {
  const assay_tensor *rows = &call->arg[ARG_ROWS];
  const int64_t N = call->arg[ARG_LOGITS].shape[0], M = call->arg[ARG_MASK].shape[0];
  for (int64_t n = 0; n < N; ++n)
    mask_row[n] = -1;
  for (int64_t m = 0; m < M; ++m) {
    const int64_t n = rows->data != NULL && !ignored ? plain_integer(rows, m) : m;
    if (n == -1 || (ignored && n >= N)) continue;
    if (n < -1 || n >= N)
      return assay_fail(error, ASSAY_ERR_INPUT, "rows: found %lld in mask row %lld, allowed -1 to %lld", (long long)n,
                        (long long)m, (long long)(N - 1));
    if (mask_row[n] >= 0)
      return assay_fail(error, ASSAY_ERR_INPUT, "rows: found %lld in mask row %lld again, allowed once", (long long)n,
                        (long long)m);
    mask_row[n] = m;
  }
  return ASSAY_OK;
}

/* Tells whether token v of a logits row stays, with a planted error. */
static bool stays(const assay_call *call, int64_t mask_row, int64_t v, bitmask_spoil spoil) {
  const assay_tensor *mask = &call->arg[ARG_MASK];
  const int64_t V_m = masked_tokens(call), apart = mask->shape[0] > 1 ? mask->stride[0] : 0;
  if (mask_row < 0) return true;
  if (v >= V_m) return call->param[PARAM_TAIL] != TAIL_BANNED;
  if (spoil == SPOIL_TAIL_UNMASKED && v >= V_m / 32 * 32) return true;
  int64_t row = mask_row, bit = v, place = row * apart + v / 32;
  if (spoil == SPOIL_WORD_OF_ROW_BEFORE && row > 0) place -= apart;
  if (spoil == SPOIL_MASK_STRIDE_OF_VOCAB) {
    const int64_t word = row * ((V_m + 31) / 32) + v / 32, W = mask->shape[1];
    place = word / W * apart + word % W;
  }
  if (spoil == SPOIL_BIT_ORDER_TURNED) bit = 31 - v % 32;
  return is_allowed((uint32_t)((const int32_t *)mask->data)[place], bit);
}

static assay_status compute(const assay_call *call, const assay_rows *rows, bitmask_spoil spoil,
                            assay_expected *expected, assay_error *error) {
  const assay_tensor *logits = &call->arg[ARG_LOGITS];
  const int64_t N = logits->shape[0], V = logits->shape[1], count = rowwise_count(rows, N);
  const bool apart = call->arg[ARG_LOGITS_OUT].data != NULL;
  const assay_expected *to = &expected[apart ? rowwise_output(call, ARG_LOGITS_OUT) : 0];
  int64_t *mask_row = malloc((size_t)(N > 0 ? N : 1) * sizeof *mask_row);
  if (mask_row == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "token_bitmask reference: out of memory");
  const assay_status status = find_rows(call, spoil == SPOIL_ROW_LIST_IGNORED, mask_row, error);
  for (int64_t i = 0; i < count && status == ASSAY_OK; ++i) {
    const int64_t n = rowwise_index(rows, i);
    plain_load_row(logits, n, to->value + i * V);
    for (int64_t v = 0; v < V; ++v) {
      const bool kept = stays(call, mask_row[n], v, spoil);
      if (!kept) to->value[i * V + v] = -(double)INFINITY;
      if (to->sigma != NULL) to->sigma[i * V + v] = kept && !apart ? ASSAY_UNCHANGED : 0;
    }
  }
  if (apart && status == ASSAY_OK) rowwise_unchanged(logits, rows, &expected[0]);
  free(mask_row);
  return status;
}

/* Computes the expectation. Bits are kept or replaced, so results are exact on any inputs. */
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
  const bool apart = call->arg[ARG_LOGITS_OUT].data != NULL;
  assay_expected values[2] = {{expected[0].value, NULL}, {apart ? expected[1].value : NULL, NULL}};
  return compute(call, rows, (bitmask_spoil)index, values, error);
}

static bool copies(const assay_call *call, int32_t output, int64_t element) {
  (void)call;
  (void)output;
  (void)element;
  return true;
}

/* Counts half of the masked logits as written once, and the mask as read. */
static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *logits = &call->arg[ARG_LOGITS];
  const double size = (double)assay_dtype_size(logits->dtype), V_m = (double)masked_tokens(call);
  const double M = (double)call->arg[ARG_MASK].shape[0], whole = (double)(logits->shape[0] * logits->shape[1]);
  if (call->arg[ARG_LOGITS_OUT].data != NULL) return (assay_cost){.bytes = 2 * whole * size + M * V_m / 8};
  return (assay_cost){.bytes = M * V_m * (0.5 * size + 0.125)};
}

/* ---- values for the generator ------------------------------------------------------------------------ */

/* Draws one word of a mask row. Rows allow half of the tokens, a few, all, or none. */
static double draw_word(const assay_fill *fill, int64_t row, int64_t word) {
  assay_rng kind = {fill->seed, 0x626974, (uint64_t)row},
            rng = {fill->seed, 0x6D61736B + ((uint64_t)row << 32), (uint64_t)word};
  const int64_t way = assay_rng_range(&kind, 0, 7);
  uint32_t bits = (uint32_t)assay_rng_u64(&rng);
  if (way == 0) bits &= bits >> 16 & bits >> 8;
  if (way == 1) bits = 0xFFFFFFFFu;
  if (way == 2) bits = 0;
  return (double)(int32_t)bits;
}

/* Draws distinct rows in a random order, and -1 in one mask row of five. */
static void fill_rows(const assay_fill *fill, double *value, int64_t M) {
  const int64_t N = fill->call->arg[ARG_LOGITS].shape[0];
  assay_rng rng = {fill->seed, 0x726F7773, 0};
  for (int64_t m = 0; m < M; ++m)
    value[m] = -1;
  for (int64_t n = 0; n < N; ++n) {
    const int64_t m = assay_rng_range(&rng, 0, M - 1);
    if (value[m] < 0 && assay_rng_range(&rng, 0, 4) != 0) value[m] = (double)n;
  }
}

static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  (void)error;
  const int64_t W = from->call->arg[ARG_MASK].shape[1];
  if (arg == ARG_MASK)
    for (int64_t i = 0; i < count; ++i)
      value[i] = draw_word(from, i / W, i % W);
  else if (arg == ARG_ROWS)
    fill_rows(from, value, count);
  else
    plain_fill(from, (uint64_t)arg, value, count);
  return ASSAY_OK;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"N", 1, 1 << 20, 4, 1, "rows of logits"},
    {"V", 1, 1 << 20, 256, 1, "tokens"},
    {"M", 1, 1 << 20, 4, 1, "mask rows; up to N without rows"},
    {"W", 1, 1 << 16, 8, 1, "words of a mask row: at least ceil(V_m / 32)"},
};

static const assay_arg args[ARG_COUNT] = {
    {"logits", ASSAY_INOUT, ASSAY_VALUES, false, "f32,f16,bf16", "N,V", "the result, unless logits_out is present",
     true},
    {"mask", ASSAY_IN, ASSAY_VALUES, false, "i32", "M,W", "a bit per token, the lowest first; 0: banned", true},
    {"rows", ASSAY_IN, ASSAY_VALUES, true, "i32", "M", "the logits row of each mask row; -1: none", false},
    {"logits_out", ASSAY_OUT, ASSAY_RESULT, true, "=logits", "N,V", "the result; logits keep their bits", false},
};

static const assay_param params[PARAM_COUNT] = {
    {"V_m", ASSAY_INTEGER, 0, 1 << 20, 0, NULL, "tokens that the mask decides about; 0: V"},
    {"tail", ASSAY_ENUM, 0, 1, 0, "unchanged,banned", "tokens from V_m on"},
};

static const assay_op op = {
    .name = "token_bitmask",
    .title = "tokens banned by a bit mask",
    .source = "docs/definitions.md, section 11",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .params = params,
    .param_count = PARAM_COUNT,
    .laws = "run_to_run,dead_bytes,in_place",
    .spoils = "tail_unmasked,mask_stride_of_vocab,bit_order_turned,row_list_ignored,word_of_row_before",
    .kappa_element = 2.5,
    .form = ASSAY_PLAIN,
    .takes_special = true,
    .confirmed_by = "strings of '0' and '1' read from the left, one per mask row (ref_bitmask_test)",
    .largest = 0x1.fffffep127,
    .check = check,
    .reference = reference,
    .cost = cost,
    .fill = fill,
    .spoil = spoil,
    .copies = copies,
};

const assay_op *assay_op_token_bitmask(void) {
  return &op;
}
