/* attention_append: one decode step of attention that also writes the step's keys and values to their slots. It equals
 * kv_append of (k_new, v_new, slots), followed by gate_attention or softmax_attention over the resulting cache. The new
 * token is thus seen in its stored (rounded, quantised) form. Each request has one row, at position L - 1; L counts the
 * new token. A pad row has L = 0 and slot -1: nothing is written, out is 0. Source: docs/definitions.md, sections 1, 2,
 * 2.5. */
#include <stdlib.h>

#include "core/dtype.h"
#include "ref/lib/append.h"
#include "ref/lib/paged_check.h"
#include "ref/lib/paged_tables.h"
#include "ref/lib/plain.h"

enum {
  ARG_Q,
  ARG_K_NEW,
  ARG_V_NEW,
  ARG_SLOTS,
  ARG_K_CACHE,
  ARG_V_CACHE,
  ARG_K_SCALE,
  ARG_V_SCALE,
  ARG_TABLE,
  ARG_KV_LEN,
  ARG_TAPS,
  ARG_GAMMA,
  ARG_OUT,
  ARG_COUNT
};
enum { OUT_K, OUT_V, OUT_OUT };

const assay_op *assay_op_attention_append(void);

/* Planted errors of the append. Those of the attention have the attention's own names. */
typedef enum append_spoil {
  SPOIL_NONE,
  SPOIL_ROWS_SWAPPED, /* new keys and values of two neighbouring rows are exchanged */
  SPOIL_V_IS_K,       /* the V cache receives keys */
  SPOIL_SCALE_LOST,   /* fp8: written without the division */
  SPOIL_COUNT
} append_spoil;

static const char *const error_names[SPOIL_COUNT] = {"", "rows_exchanged", "v_is_k", "store_scale_lost"};

/* ---- the definition ---------------------------------------------------------------------------------- */

/* Makes the stored form of the new keys (which 0) or values (which 1) of row n, head h. */
static void stored_row(const assay_call *call, int which, int64_t n, int64_t h, append_spoil spoil, double *stored) {
  const assay_tensor *x = &call->arg[which == 0 || spoil == SPOIL_V_IS_K ? ARG_K_NEW : ARG_V_NEW];
  const assay_tensor *cache = &call->arg[which == 0 ? ARG_K_CACHE : ARG_V_CACHE];
  const float own = append_scale(&call->arg[which == 0 ? ARG_K_SCALE : ARG_V_SCALE], h);
  const float scale = spoil == SPOIL_SCALE_LOST ? 1.0f : own;
  const int64_t D = x->shape[2];
  assay_load_f64_row(x->data, x->dtype, n * x->stride[0] + h * D, 1, D, stored);
  for (int64_t d = 0; d < D; ++d)
    stored[d] = append_stored(stored[d], scale, cache->dtype);
}

/* Writes the new token of every row, in its stored form, to the cache and to the expected outputs. */
static assay_status append(const assay_call *call, append_cache *cache, append_spoil spoil, assay_expected *expected,
                           assay_error *error) {
  const assay_tensor *slots = &call->arg[ARG_SLOTS], *q = &call->arg[ARG_Q];
  const int64_t H_kv = cache->H_kv, D = cache->D;
  double *stored = malloc((size_t)D * sizeof *stored);
  if (stored == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "attention_append reference: out of memory");
  for (int64_t i = 0; i < cache->count; ++i) {
    const int64_t n = append_cache_row(cache, i), slot = append_slot(slots, n);
    for (int64_t h = 0; h < cache->H; ++h) {
      assay_load_f64_row(q->data, q->dtype, n * q->stride[0] + h * D, 1, D, stored);
      append_cache_put_q(cache, i, h, stored);
    }
    for (int64_t h = 0; h < H_kv; ++h)
      for (int which = 0; which < 2; ++which) {
        const int64_t other = n % 2 == 0 ? n + 1 : n - 1;
        const bool exchanged = spoil == SPOIL_ROWS_SWAPPED && other < slots->shape[0] && append_slot(slots, other) >= 0;
        const int64_t at = (i * H_kv + h) * D;
        for (int64_t d = 0; d < D; ++d)
          stored[d] = 0;
        if (slot >= 0) stored_row(call, which, exchanged ? other : n, h, spoil, stored);
        for (int64_t d = 0; d < D; ++d)
          expected[which].value[at + d] = stored[d];
        if (expected[which].sigma != NULL)
          for (int64_t d = 0; d < D; ++d)
            expected[which].sigma[at + d] = 0;
        (which == 0 ? append_cache_put_k : append_cache_put_v)(cache, i, h, stored);
      }
  }
  free(stored);
  return ASSAY_OK;
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  append_cache cache = {0};
  assay_status status = append_check_contents(call, error);
  if (status == ASSAY_OK) status = append_cache_make(call, rows, call->arg[ARG_Q].dtype, &cache, error);
  if (status == ASSAY_OK) status = append(call, &cache, SPOIL_NONE, expected, error);
  if (status == ASSAY_OK) status = append_cache_reference(&cache, contract, exact, -1, &expected[OUT_OUT], seen, error);
  append_cache_free(&cache);
  return status;
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  char name[64];
  append_spoil_name(call->op->spoils, index, name, sizeof name);
  append_spoil spoil = SPOIL_NONE;
  for (int i = 1; i < SPOIL_COUNT; ++i)
    if (strcmp(name, error_names[i]) == 0) spoil = (append_spoil)i;
  assay_expected values[3] = {{expected[0].value, NULL}, {expected[1].value, NULL}, {expected[2].value, NULL}};
  bool known = false;
  append_cache cache = {0};
  assay_status status = append_cache_make(call, rows, call->arg[ARG_Q].dtype, &cache, error);
  if (status == ASSAY_OK) status = append(call, &cache, spoil, values, error);
  if (status == ASSAY_OK && spoil == SPOIL_NONE)
    status = append_cache_spoil(&cache, contract, name, &values[OUT_OUT], &known, error);
  if (status == ASSAY_OK && !known)
    status = append_cache_reference(&cache, contract, false, -1, &values[OUT_OUT], NULL, error);
  append_cache_free(&cache);
  return status;
}

static assay_status check(const assay_call *call, assay_error *error) {
  assay_status status = check_params(call, error);
  if (status != ASSAY_OK) return status;
  append_attention inner;
  append_attention_of(call, &inner);
  status = inner.op->check(&inner.call, error);
  if (status != ASSAY_OK) return status;
  const assay_tensor *q = &call->arg[ARG_Q], *k = &call->arg[ARG_K_CACHE];
  const int64_t N = q->shape[0], D = q->shape[2];
  const int64_t H_kv = k->shape[(int)assay_find_param(call, "layout") == LAYOUT_NHD ? 2 : 1];
  status = append_check_rows(call, "k_new", q->dtype, N, H_kv, D, error);
  if (status == ASSAY_OK) status = append_check_rows(call, "v_new", q->dtype, N, H_kv, D, error);
  if (status == ASSAY_OK) status = append_check_slots(call, N, error);
  return status;
}

/* Returns the attention's cost, plus one more reading of the new tokens. They are written to the cache, not read from
 * it. */
static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  append_attention inner;
  append_attention_of(call, &inner);
  assay_cost total = inner.op->cost(&inner.call, seen);
  const assay_tensor *k = &call->arg[ARG_K_NEW];
  total.bytes +=
      2 * (double)(k->shape[0] * k->shape[1] * k->shape[2] * assay_dtype_size(k->dtype)) + 8 * (double)k->shape[0];
  return total;
}

/* ---- values for the generator: those of the attention -------------------------------------------------- */

static void fill_q(const assay_fill *fill, int64_t request, int64_t position, int64_t head, double *value) {
  append_attention inner;
  assay_fill own = *fill;
  append_attention_of(fill->call, &inner);
  own.call = &inner.call;
  inner.op->fill_q(&own, request, position, head, value);
}

static void fill_k(const assay_fill *fill, int64_t content, int64_t kv_head, double *value) {
  append_attention inner;
  assay_fill own = *fill;
  append_attention_of(fill->call, &inner);
  own.call = &inner.call;
  inner.op->fill_k(&own, content, kv_head, value);
}

static void fill_v(const assay_fill *fill, int64_t content, int64_t kv_head, double *value) {
  append_attention inner;
  assay_fill own = *fill;
  append_attention_of(fill->call, &inner);
  own.call = &inner.call;
  inner.op->fill_v(&own, content, kv_head, value);
}

static bool visible(const assay_call *call, int64_t request, int64_t length, int64_t first_position, int64_t token) {
  append_attention inner;
  append_attention_of(call, &inner);
  return inner.op->visible(&inner.call, request, length, first_position, token);
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    PAGED_B,
    PAGED_N("rows: one per request"),
    PAGED_HEADS,
    PAGED_BLOCK_SIZE(""),
    PAGED_NUM_BLOCKS(""),
    PAGED_MAX_BLOCKS,
    PAGED_KV_SCALES,
    GATE_F,
};

static const assay_arg args[ARG_COUNT] = {
    PAGED_Q,
    {"k_new", ASSAY_IN, ASSAY_K_NEW, false, "=q", "N,H_kv,D", "keys of the step; the row stride is free", true},
    {"v_new", ASSAY_IN, ASSAY_V_NEW, false, "=q", "N,H_kv,D", "values of the step; the row stride is free", true},
    PAGED_SLOTS("a pad row"),
    PAGED_CACHE(ASSAY_INOUT, "=q,e4m3,e5m2"),
    APPEND_ATTENTION_ARGS("=q"),
};

static const assay_param params[] = {
    PAGED_LAYOUT(""),
    PAGED_KIND,
    PAGED_ATTENTION_PARAMS,
    GATE_PARAMS("gate: "),
};

static const assay_op op = {
    .name = "attention_append",
    .title = "a decode step of attention that writes the step's keys and values to the cache",
    .source = "docs/definitions.md, section 2.5",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .params = params,
    .param_count = (int32_t)(sizeof params / sizeof params[0]),
    .laws = "run_to_run,dead_bytes,renumbering,permutation",
    .spoils = "rows_exchanged,v_is_k,store_scale_lost,last_key_dropped,wrong_kv_head,"
              "neighbour_block,scale_lost,k_scale_lost,v_scale_lost,head_scale_lost,row_swapped,window_one_short,"
              "filter_across_rows,relu_lost,clip_lost,taps_reversed,gamma_lost",
    .kappa_element = 7,
    .confirmed_by =
        "kv_append, then gate_attention or softmax_attention over a cache with the new tokens (ref_append_test)",
    .extreme_args = "",
    .check = check,
    .reference = reference,
    .cost = cost,
    .fill_q = fill_q,
    .fill_k = fill_k,
    .fill_v = fill_v,
    .visible = visible,
    .spoil = spoil,
};

const assay_op *assay_op_attention_append(void) {
  return &op;
}
