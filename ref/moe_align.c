/* moe_align: sorts the slots of a batch by expert, each expert's segment padded to a multiple of `align` rows. Slot
 * f = t · k + j is the j-th expert of token t. It belongs to local expert e = map(ids_tj), or has no expert
 * if the id or its map is -1. Without expert_map, map(e) = e. With A = align:
 *
 *   counts_e = number of its slots          offsets_0 = 0,  offsets_{e+1} = offsets_e + A · ceil(counts_e / A)
 *
 * Segment e lists its slots in ascending order, from row offsets_e on. For a slot f in row p: order_p = f,
 * row_expert_p = e, pos_tj = p. All other rows up to P are padding: row_expert -1, and order -1, or T k with
 * padding = slots. pos of a slot without an expert is -1. A token may name an expert twice.
 *
 * Input errors: an id outside [-1, E); a map outside [-1, E_l) or given twice; P < T k + min(E_l, T k) · (A - 1).
 * Source: docs/definitions.md, section 10. */
#include <stdlib.h>

#include "core/rng.h"
#include "ref/lib/plain.h"

enum { ARG_IDS, ARG_EXPERT_MAP, ARG_COUNTS, ARG_OFFSETS, ARG_ORDER, ARG_ROW_EXPERT, ARG_POS, ARG_COUNT };
enum { OUT_COUNTS, OUT_OFFSETS, OUT_ORDER, OUT_ROW_EXPERT, OUT_POS, OUTPUTS };
enum { PARAM_ALIGN, PARAM_PADDING, PARAM_COUNT };
enum { PADDING_MINUS_ONE, PADDING_SLOTS };

const assay_op *assay_op_moe_align(void);

typedef enum align_spoil {
  SPOIL_NONE = -1,
  SPOIL_MINUS_ONE_READ,      /* the id -1 means the last expert */
  SPOIL_PADDING_EXPERT_ZERO, /* padding rows belong to expert 0 */
  SPOIL_UNSTABLE_ORDER,      /* segments list their slots in descending order */
  SPOIL_LAST_TOKEN_DROPPED,  /* the slots of the last token have no expert */
  SPOIL_TAIL_NAMED,          /* rows after the last segment belong to the last expert */
  SPOIL_EMPTY_EXPERT_PADDED  /* an expert without slots gets `align` rows of padding */
} align_spoil;

/* ---- the definition ---------------------------------------------------------------------------------- */

typedef struct alignment {
  int64_t T, k, E_l, P, A, mark; /* mark: what order holds in padding rows */
  const int64_t *local;          /* [T k] local expert of each slot, -1: none */
  int64_t *counts, *offsets;     /* [E_l], [E_l + 1] */
  int64_t *order, *row_expert;   /* [P] */
  int64_t *pos;                  /* [T k] */
  int64_t *next;                 /* [E_l] row of each expert's next slot */
} alignment;

static void moe_align(alignment *a) {
  for (int64_t p = 0; p < a->P; ++p) {
    a->order[p] = a->mark;
    a->row_expert[p] = -1;
  }
  for (int64_t e = 0; e < a->E_l; ++e)
    a->counts[e] = 0;
  for (int64_t f = 0; f < a->T * a->k; ++f)
    if (a->local[f] >= 0) ++a->counts[a->local[f]];
  a->offsets[0] = 0;
  for (int64_t e = 0; e < a->E_l; ++e) {
    a->offsets[e + 1] = a->offsets[e] + (a->counts[e] + a->A - 1) / a->A * a->A;
    a->next[e] = a->offsets[e];
  }
  for (int64_t f = 0; f < a->T * a->k; ++f) {
    const int64_t e = a->local[f];
    a->pos[f] = e >= 0 ? a->next[e]++ : -1;
    if (e < 0) continue;
    a->order[a->pos[f]] = f;
    a->row_expert[a->pos[f]] = e;
  }
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

/* Returns the least P that holds every batch of these sizes. */
static int64_t capacity(int64_t slots, int64_t experts, int64_t align) {
  return slots + (experts < slots ? experts : slots) * (align - 1);
}

static assay_status check(const assay_call *call, assay_error *error) {
  const assay_status status = plain_check_call(call, error);
  if (status != ASSAY_OK) return status;
  const assay_tensor *ids = &call->arg[ARG_IDS];
  const int64_t slots = ids->shape[0] * ids->shape[1], P = call->arg[ARG_ORDER].shape[0];
  const int64_t least = capacity(slots, call->arg[ARG_COUNTS].shape[0], (int64_t)call->param[PARAM_ALIGN]);
  if (P >= least) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "P: found %lld, allowed from %lld on: T k + min(E_l, T k) (align - 1)",
                    (long long)P, (long long)least);
}

static assay_status check_ids(const assay_call *call, assay_error *error) {
  const assay_tensor *ids = &call->arg[ARG_IDS], *map = &call->arg[ARG_EXPERT_MAP];
  const int64_t E = map->data != NULL ? map->shape[0] : call->arg[ARG_COUNTS].shape[0];
  for (int64_t f = 0; f < ids->shape[0] * ids->shape[1]; ++f) {
    const int64_t found = plain_integer(ids, f);
    if (found < -1 || found >= E)
      return assay_fail(error, ASSAY_ERR_INPUT, "ids: found %lld in slot %lld, allowed -1 to %lld", (long long)found,
                        (long long)f, (long long)(E - 1));
  }
  return ASSAY_OK;
}

static assay_status check_map(const assay_call *call, assay_error *error) {
  const assay_tensor *map = &call->arg[ARG_EXPERT_MAP];
  const int64_t E_l = call->arg[ARG_COUNTS].shape[0];
  if (map->data == NULL) return ASSAY_OK;
  unsigned char *given = calloc((size_t)E_l + 1, 1);
  assay_status status = ASSAY_OK;
  if (given == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "moe_align reference: out of memory");
  for (int64_t e = 0; e < map->shape[0] && status == ASSAY_OK; ++e) {
    const int64_t found = plain_integer(map, e);
    if (found < -1 || found >= E_l)
      status = assay_fail(error, ASSAY_ERR_INPUT, "expert_map: found %lld for expert %lld, allowed -1 to %lld",
                          (long long)found, (long long)e, (long long)(E_l - 1));
    else if (found >= 0 && given[found]++ != 0)
      status = assay_fail(error, ASSAY_ERR_INPUT, "expert_map: found %lld for expert %lld again, allowed once",
                          (long long)found, (long long)e);
  }
  free(given);
  return status;
}

/* Returns the local expert of a slot, with a planted error. */
static int64_t local_of(const assay_call *call, int64_t slot, align_spoil spoil) {
  const assay_tensor *ids = &call->arg[ARG_IDS], *map = &call->arg[ARG_EXPERT_MAP];
  const int64_t E = map->data != NULL ? map->shape[0] : call->arg[ARG_COUNTS].shape[0];
  int64_t id = plain_integer(ids, slot);
  if (spoil == SPOIL_LAST_TOKEN_DROPPED && slot / ids->shape[1] == ids->shape[0] - 1) return -1;
  if (id < 0 && spoil == SPOIL_MINUS_ONE_READ) id = E - 1;
  return id < 0 || map->data == NULL ? id : plain_integer(map, id);
}

/* Turns the segments of a correct result round. */
static void turn(alignment *a) {
  for (int64_t e = 0; e < a->E_l; ++e)
    for (int64_t i = 0; i < a->counts[e] / 2; ++i) {
      const int64_t p = a->offsets[e] + i, q = a->offsets[e] + a->counts[e] - 1 - i, f = a->order[p];
      a->order[p] = a->order[q];
      a->order[q] = f;
      a->pos[a->order[p]] = p;
      a->pos[f] = q;
    }
}

/* Moves every segment by the padding that empty experts before it get. Rows beyond P are lost. */
static void pad_empty(alignment *a) {
  int64_t moved = 0;
  for (int64_t e = 0; e < a->E_l; ++e)
    moved += a->counts[e] == 0 ? a->A : 0;
  for (int64_t e = a->E_l; e-- > 0;) {
    a->offsets[e + 1] += moved;
    moved -= a->counts[e] == 0 ? a->A : 0;
    for (int64_t i = a->counts[e]; i-- > 0 && moved > 0;) {
      const int64_t from = a->offsets[e] + i, to = from + moved, f = a->order[from];
      a->pos[f] = to;
      a->order[from] = a->mark;
      a->row_expert[from] = -1;
      if (to >= a->P) continue;
      a->order[to] = f;
      a->row_expert[to] = e;
    }
  }
}

static void spoil_result(alignment *a, align_spoil spoil) {
  if (spoil == SPOIL_UNSTABLE_ORDER) turn(a);
  if (spoil == SPOIL_EMPTY_EXPERT_PADDED) pad_empty(a);
  for (int64_t p = 0; p < a->P; ++p) {
    if (a->row_expert[p] >= 0) continue;
    if (spoil == SPOIL_PADDING_EXPERT_ZERO) a->row_expert[p] = 0;
    if (spoil == SPOIL_TAIL_NAMED && p >= a->offsets[a->E_l]) a->row_expert[p] = a->E_l - 1;
  }
}

static void give(const int64_t *from, int64_t count, assay_expected *to) {
  for (int64_t i = 0; i < count; ++i) {
    to->value[i] = (double)from[i];
    if (to->sigma != NULL) to->sigma[i] = 0;
  }
}

static assay_status compute(const assay_call *call, align_spoil spoil, assay_expected *expected, assay_error *error) {
  const int64_t T = call->arg[ARG_IDS].shape[0], k = call->arg[ARG_IDS].shape[1];
  const int64_t E_l = call->arg[ARG_COUNTS].shape[0], P = call->arg[ARG_ORDER].shape[0];
  assay_status status = check_map(call, error);
  if (status == ASSAY_OK) status = check_ids(call, error);
  if (status != ASSAY_OK) return status;
  int64_t *memory = malloc((size_t)(2 * T * k + 2 * P + 3 * E_l + 1) * sizeof *memory), *at = memory;
  if (memory == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "moe_align reference: out of memory");
  alignment a = {.T = T, .k = k, .E_l = E_l, .P = P, .A = (int64_t)call->param[PARAM_ALIGN], .local = at};
  a.mark = call->param[PARAM_PADDING] == PADDING_SLOTS ? T * k : -1;
  for (int64_t f = 0; f < T * k; ++f)
    *at++ = local_of(call, f, spoil);
  a.pos = at;
  a.counts = a.pos + T * k;
  a.offsets = a.counts + E_l;
  a.order = a.offsets + E_l + 1;
  a.row_expert = a.order + P;
  a.next = a.row_expert + P;
  moe_align(&a);
  spoil_result(&a, spoil);
  give(a.counts, E_l, &expected[OUT_COUNTS]);
  give(a.offsets, E_l + 1, &expected[OUT_OFFSETS]);
  give(a.order, P, &expected[OUT_ORDER]);
  give(a.row_expert, P, &expected[OUT_ROW_EXPERT]);
  give(a.pos, T * k, &expected[OUT_POS]);
  free(memory);
  return ASSAY_OK;
}

/* Computes the expectation: integers, which every tier judges exactly. */
static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)contract;
  (void)rows;
  (void)exact;
  (void)seen;
  return compute(call, SPOIL_NONE, expected, error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  (void)contract;
  (void)rows;
  assay_expected values[OUTPUTS] = {{0}};
  for (int32_t i = 0; i < OUTPUTS; ++i)
    values[i].value = expected[i].value;
  return compute(call, (align_spoil)index, values, error);
}

static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const double slots = (double)(call->arg[ARG_IDS].shape[0] * call->arg[ARG_IDS].shape[1]);
  const double rows = (double)call->arg[ARG_ORDER].shape[0], experts = (double)call->arg[ARG_COUNTS].shape[0];
  return (assay_cost){.bytes = 4 * (2 * slots + 2 * rows + 2 * experts + 1)};
}

/* ---- values for the generator ------------------------------------------------------------------------ */

/* Draws a map whose first min(E, E_l) experts of a random order are here, in a random order of places. */
static void fill_map(const assay_fill *fill, double *value, int64_t E) {
  const int64_t E_l = fill->call->arg[ARG_COUNTS].shape[0];
  assay_rng rng = {fill->seed, 0x6D617073, 0};
  for (int64_t e = 0; e < E; ++e) {
    const int64_t other = assay_rng_range(&rng, 0, e);
    value[e] = value[other];
    value[other] = e < E_l ? (double)e : -1;
  }
}

/* Draws ids in one of five ways: of all experts alike; all of one; of a few; of all but the first and the last; in
 * turn, one after the other. In three batches of four, some slots have no expert: the first, the last, one of eight. */
static void fill_ids(const assay_fill *fill, double *value, int64_t slots) {
  const assay_tensor *map = &fill->call->arg[ARG_EXPERT_MAP];
  const int64_t E = map->data != NULL ? map->shape[0] : fill->call->arg[ARG_COUNTS].shape[0];
  assay_rng rng = {fill->seed, 0x616C676E, 0};
  const int64_t way = assay_rng_range(&rng, 0, 4), one = assay_rng_range(&rng, 0, E - 1);
  const int64_t few = E < 4 ? E : 4, holes = assay_rng_range(&rng, 0, 3);
  for (int64_t f = 0; f < slots; ++f) {
    int64_t id = assay_rng_range(&rng, 0, E - 1);
    if (way == 1) id = one;
    if (way == 2) id = (one + assay_rng_range(&rng, 0, few - 1)) % E;
    if (way == 3 && E > 2) id = assay_rng_range(&rng, 1, E - 2);
    if (way == 4) id = (one + f) % E;
    const bool hole = assay_rng_range(&rng, 0, 7) == 0 || f == 0 || f == slots - 1;
    value[f] = holes != 0 && hole ? -1 : (double)id;
  }
}

static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  (void)error;
  if (arg == ARG_EXPERT_MAP)
    fill_map(from, value, count);
  else
    fill_ids(from, value, count);
  return ASSAY_OK;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"T", 1, 1 << 20, 8, 1, "tokens"},
    {"k", 1, 32, 2, 1, "experts of a token"},
    {"E", 1, 1024, 8, 1, "experts; with expert_map"},
    {"E_l", 1, 1024, 8, 1, "experts here; all of them without expert_map"},
    {"P", 1, 1 << 24, 4096, 1, "rows: at least T k + min(E_l, T k) (align - 1)"},
};

static const assay_arg args[ARG_COUNT] = {
    {"ids", ASSAY_IN, ASSAY_VALUES, false, "i32", "T,k", "experts of each token, 0 to E - 1; -1: none", false},
    {"expert_map", ASSAY_IN, ASSAY_VALUES, true, "i32", "E", "place of each expert here, 0 to E_l - 1; -1: not here",
     false},
    {"counts", ASSAY_OUT, ASSAY_RESULT, false, "i32", "E_l", "slots of each expert", false},
    {"offsets", ASSAY_OUT, ASSAY_RESULT, false, "i32", "E_l+1", "first row of each segment, and the end", false},
    {"order", ASSAY_OUT, ASSAY_RESULT, false, "i32", "P", "slot of each row", false},
    {"row_expert", ASSAY_OUT, ASSAY_RESULT, false, "i32", "P", "expert of each row; -1: padding", false},
    {"pos", ASSAY_OUT, ASSAY_RESULT, false, "i32", "T,k", "row of each slot; -1: none", false},
};

static const assay_param params[PARAM_COUNT] = {
    {"align", ASSAY_INTEGER, 1, 256, 1, NULL, "segments are multiples of so many rows"},
    {"padding", ASSAY_ENUM, 0, 1, 0, "minus_one,slots", "what order holds in padding rows: -1, or T k as vLLM writes"},
};

static const assay_op op = {
    .name = "moe_align",
    .title = "slots sorted by expert, in padded segments",
    .source = "docs/definitions.md, section 10",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .params = params,
    .param_count = PARAM_COUNT,
    .laws = "run_to_run,dead_bytes",
    .spoils = "minus_one_read,padding_expert_zero,unstable_order,last_token_dropped,tail_named,empty_expert_padded",
    .kappa_element = 2.5,
    .form = ASSAY_PLAIN,
    .axes = "padding",
    .confirmed_by = "a stable sort of (expert, slot) pairs by qsort (ref_moe_test)",
    .check = check,
    .reference = reference,
    .cost = cost,
    .fill = fill,
    .spoil = spoil,
};

const assay_op *assay_op_moe_align(void) {
  return &op;
}
