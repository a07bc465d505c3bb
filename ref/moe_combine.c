/* moe_combine: adds the results of a token's experts. pos_tj is the row of z that holds the result of slot j of token
 * t, -1 where there is none. For token t and channel c:
 *
 *   y_tc = round(sum_j w_tj · z[pos_tj, c] + shared_tc)       over the slots with pos_tj >= 0, j ascending
 *
 * Without w every weight is 1; without shared nothing is added. A slot with pos -1 is not read, whatever its weight. A
 * token without slots, and without shared, gives 0. A weight of 0 multiplies: NaN in z shows. An entry of pos outside
 * [-1, P) is an input error. Source: docs/definitions.md, section 10. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/error_model.h"
#include "ref/lib/lattice.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"

enum { ARG_Z, ARG_POS, ARG_W, ARG_SHARED, ARG_Y, ARG_COUNT };
enum { MOST_SLOTS = 32 };

const assay_op *assay_op_moe_combine(void);

typedef enum combine_spoil {
  SPOIL_NONE = -1,
  SPOIL_PADDING_ADDED,       /* a slot without a place adds row 0 of z */
  SPOIL_WEIGHT_LOST,         /* every weight is 1 */
  SPOIL_WEIGHT_OF_NEXT_SLOT, /* slots take each other's weights */
  SPOIL_LAST_SLOT_DROPPED,   /* k - 1 slots are added */
  SPOIL_SHARED_LOST,         /* shared is not added */
  SPOIL_ROUNDED_BETWEEN      /* the running sum is stored in the result's type */
} combine_spoil;

/* One token: its terms and, in `place`, the rows of z that they come from. */
typedef struct token {
  int64_t count, C;
  int64_t place[MOST_SLOTS];
  double weight[MOST_SLOTS];
  double *z;            /* [count, C] */
  const double *shared; /* [C], or NULL */
  bool repeats;         /* two slots name the same row of z */
  void *slots;          /* room for equal_terms */
} token;

/* ---- the definition ---------------------------------------------------------------------------------- */

static double combine(const token *t, int64_t c) {
  double y = 0;
  for (int64_t j = 0; j < t->count; ++j)
    y += t->weight[j] * t->z[j * t->C + c];
  return t->shared != NULL ? y + t->shared[c] : y;
}

/* ---- the error model --------------------------------------------------------------------------------- */

/* Returns the terms of an element: the products, then shared. */
static int32_t terms_of(const token *t, int64_t c, double *term) {
  int32_t n = 0;
  for (int64_t j = 0; j < t->count; ++j)
    term[n++] = t->weight[j] * t->z[j * t->C + c];
  if (t->shared != NULL) term[n++] = t->shared[c];
  return n;
}

/* Tells whether every product and every running sum is exact in `type`, whatever the order. */
static bool is_exact(const double *term, int32_t count, assay_dtype type) {
  double size = 0;
  for (int32_t i = 0; i < count; ++i)
    size += fabs(term[i]);
  return lattice_admits(size, lattice_low_row(term, count), lattice_width(type)) != 0;
}

/* Returns what equal terms add to the variance of an element: the roundings of products are the same, and those of
 * running sums are alike. */
static double equal_variance(const token *t, const double *term, int32_t n, const assay_contract *contract) {
  equal_terms equal;
  double sum = 0;
  if (!t->repeats) return 0;
  equal_terms_start(&equal, MOST_SLOTS + 1, t->slots);
  for (int32_t i = 0; i < n; ++i) {
    sum += term[i];
    equal_terms_add(&equal, fabs(term[i]), fabs(sum));
  }
  const double wider = contract->partial == ASSAY_NONE ? 1 : ldexp(1, 2 * (24 - lattice_width(contract->partial)));
  return wider * (equal_terms_additions(&equal) + f32_variance * equal_terms_shared(&equal));
}

/* Returns the variance of the running sums: those of the terms as they are listed, or with the last one first. */
static double running_variance(const double *term, int32_t n, bool last_first, assay_dtype partial) {
  double sum = last_first ? term[n - 1] : term[0], variance = 0;
  for (int32_t i = last_first ? 0 : 1; i < (last_first ? n - 1 : n); ++i) {
    sum += term[i];
    variance += storing_variance(sum, ASSAY_F32);
    if (partial != ASSAY_NONE) variance += storing_variance(sum, partial);
  }
  return variance;
}

/* Returns the variance of an element: each product is rounded (or fused), each addition is, and the result is stored.
 * shared may be the first term or the last. Under `partial` each term and running sum is rounded to that type too. */
static double variance(const token *t, int64_t c, const assay_contract *contract, assay_dtype out) {
  double term[MOST_SLOTS + 1], sum = 0, inner = 0;
  const int32_t n = terms_of(t, c, term);
  for (int32_t i = 0; i < n; ++i)
    sum += term[i];
  if (is_exact(term, n, contract->partial)) return rounding_variance(sum, out);
  const double stored = storing_variance(sum, out);
  for (int32_t i = 0; i < n; ++i) {
    if (i < t->count) inner += rounding_variance(term[i], ASSAY_F32);
    if (contract->partial != ASSAY_NONE) inner += storing_variance(term[i], contract->partial);
  }
  const double after = running_variance(term, n, false, contract->partial);
  inner += t->shared != NULL ? fmax(after, running_variance(term, n, true, contract->partial)) : after;
  return inner + equal_variance(t, term, n, contract) + stored;
}

/* ---- the exact tier ---------------------------------------------------------------------------------- */

/* Admits an element whose terms are multiples of one power of two. The sum of their sizes fits 24 bits, or the bits of
 * the type `partial`. */
static assay_status admit(const assay_call *call, const token *t, int64_t row, int64_t c,
                          const assay_contract *contract, assay_error *error) {
  double term[MOST_SLOTS + 1], size = 0;
  const int32_t n = terms_of(t, c, term);
  if (is_exact(term, n, contract->partial)) return ASSAY_OK;
  for (int32_t i = 0; i < n; ++i)
    size += fabs(term[i]);
  const int low = lattice_low_row(term, n), bits = lattice_width(contract->partial);
  return rowwise_refuse(call, row, c, "sum of |term|, which the sum's type must hold", size, ldexp(1, low + bits),
                        error);
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

static assay_status check_contents(const assay_call *call, assay_error *error) {
  const assay_tensor *pos = &call->arg[ARG_POS];
  const int64_t P = call->arg[ARG_Z].shape[0];
  for (int64_t i = 0; i < pos->shape[0] * pos->shape[1]; ++i) {
    const int64_t found = plain_integer(pos, i);
    if (found < -1 || found >= P)
      return assay_fail(error, ASSAY_ERR_INPUT, "pos: found %lld for slot %lld of token %lld, allowed -1 to %lld",
                        (long long)found, (long long)(i % pos->shape[1]), (long long)(i / pos->shape[1]),
                        (long long)(P - 1));
  }
  return ASSAY_OK;
}

/* Reads the slots of a token, with a planted error. */
static void read_token(const assay_call *call, int64_t row, combine_spoil spoil, token *t) {
  const assay_tensor *pos = &call->arg[ARG_POS], *w = &call->arg[ARG_W];
  const int64_t k = pos->shape[1], slots = spoil == SPOIL_LAST_SLOT_DROPPED ? k - 1 : k;
  double weight[MOST_SLOTS];
  if (w->data != NULL) plain_load_row(w, row, weight);
  t->count = 0;
  t->repeats = false;
  for (int64_t j = 0; j < slots; ++j) {
    int64_t place = plain_integer(pos, row * k + j);
    if (place < 0 && spoil == SPOIL_PADDING_ADDED) place = 0;
    if (place < 0) continue;
    const int64_t from = spoil == SPOIL_WEIGHT_OF_NEXT_SLOT ? (j + 1) % k : j;
    for (int64_t i = 0; i < t->count; ++i)
      t->repeats = t->repeats || t->place[i] == place;
    t->place[t->count] = place;
    t->weight[t->count] = w->data != NULL && spoil != SPOIL_WEIGHT_LOST ? weight[from] : 1;
    plain_load_row(&call->arg[ARG_Z], place, t->z + t->count * t->C);
    ++t->count;
  }
}

/* Returns the sum whose running value is stored in `type` before the next term comes. In f32 that is no error. */
static double rounded_between(const token *t, int64_t c, assay_dtype type) {
  double term[MOST_SLOTS + 1], sum = 0;
  const int32_t n = terms_of(t, c, term);
  for (int32_t i = 0; i < n; ++i)
    sum = (type == ASSAY_F32 ? sum : assay_round_f64(sum, type)) + term[i];
  return sum;
}

static assay_status compute(const assay_call *call, const assay_contract *contract, const assay_rows *rows, bool exact,
                            combine_spoil spoil, assay_expected *expected, assay_error *error) {
  const assay_tensor *y = &call->arg[ARG_Y], *shared = &call->arg[ARG_SHARED];
  const int64_t T = y->shape[0], C = y->shape[1], count = rowwise_count(rows, T);
  double *memory = NULL;
  assay_status status = check_contents(call, error);
  if (status == ASSAY_OK) status = rowwise_reserve(call, (MOST_SLOTS + 1) * C, &memory, error);
  const bool added = shared->data != NULL && spoil != SPOIL_SHARED_LOST;
  token t = {.C = C, .z = memory, .shared = added && memory != NULL ? memory + MOST_SLOTS * C : NULL};
  t.slots = malloc((size_t)equal_terms_room(MOST_SLOTS + 1));
  if (t.slots == NULL && status == ASSAY_OK) status = assay_fail(error, ASSAY_ERR_MEMORY, "moe_combine: out of memory");
  for (int64_t i = 0; i < count && status == ASSAY_OK; ++i) {
    const int64_t row = rowwise_index(rows, i);
    read_token(call, row, spoil, &t);
    if (added) plain_load_row(shared, row, memory + MOST_SLOTS * C);
    for (int64_t c = 0; c < C && status == ASSAY_OK; ++c) {
      const int64_t at = i * C + c;
      expected->value[at] = spoil == SPOIL_ROUNDED_BETWEEN ? rounded_between(&t, c, y->dtype) : combine(&t, c);
      if (expected->sigma != NULL) expected->sigma[at] = sqrt(variance(&t, c, contract, y->dtype));
      if (exact) status = admit(call, &t, row, c, contract, error);
    }
  }
  free(t.slots);
  free(memory);
  return status;
}

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)seen;
  return compute(call, contract, rows, exact, SPOIL_NONE, expected, error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  assay_expected values = {expected->value, NULL};
  return compute(call, contract, rows, false, (combine_spoil)index, &values, error);
}

/* Counts the rows of z that some slot names. A row that several slots name must move only once. Where pos is not known,
 * each slot counts, as far as z has rows. */
static double rows_named(const assay_call *call) {
  const assay_tensor *z = &call->arg[ARG_Z], *pos = &call->arg[ARG_POS];
  const int64_t P = z->shape[0], slots = pos->shape[0] * pos->shape[1];
  unsigned char *named = pos->data != NULL ? calloc((size_t)P + 1, 1) : NULL;
  if (named == NULL) return (double)(slots < P ? slots : P);
  double rows = 0;
  for (int64_t i = 0; i < slots; ++i) {
    const int64_t place = plain_integer(pos, i);
    if (place < 0 || place >= P || named[place] != 0) continue;
    named[place] = 1;
    ++rows;
  }
  free(named);
  return rows;
}

/* Counts each row of z that is named, and each row of shared, as read. Each row of y is written. */
static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *y = &call->arg[ARG_Y];
  const double T = (double)y->shape[0], k = (double)call->arg[ARG_POS].shape[1], C = (double)y->shape[1];
  const double rows = rows_named(call) + T * (call->arg[ARG_SHARED].data != NULL ? 2 : 1);
  const double index = call->arg[ARG_W].data != NULL ? 8 : 4;
  return (assay_cost){2 * T * k * C, rows * C * (double)assay_dtype_size(y->dtype) + T * k * index};
}

/* ---- values for the generator ------------------------------------------------------------------------ */

/* Draws the place of a slot. With as many rows of z as slots each slot has a row of its own, as moe_align makes them.
 * Else one slot of five has none, and the others have any row. */
static int64_t draw_place(const assay_fill *fill, int64_t slot) {
  const int64_t P = fill->call->arg[ARG_Z].shape[0];
  const assay_tensor *pos = &fill->call->arg[ARG_POS];
  if (P == pos->shape[0] * pos->shape[1]) return plain_place(fill, ARG_POS, slot, P);
  assay_rng rng = {fill->seed, 0x636F6D62, 8 * (uint64_t)slot};
  return assay_rng_range(&rng, 0, 4) == 0 ? -1 : assay_rng_range(&rng, 0, P - 1);
}

/* Replaces the rows of z that no slot names by NaN. Nothing may depend on them. */
static assay_status poison_unnamed(const assay_fill *fill, double *value, assay_error *error) {
  const assay_tensor *z = &fill->call->arg[ARG_Z], *pos = &fill->call->arg[ARG_POS];
  unsigned char *named = calloc((size_t)z->shape[0] + 1, 1);
  if (named == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "moe_combine: out of memory");
  for (int64_t i = 0; i < pos->shape[0] * pos->shape[1]; ++i) {
    const int64_t place = draw_place(fill, i);
    if (place >= 0) named[place] = 1;
  }
  for (int64_t p = 0; p < z->shape[0]; ++p)
    for (int64_t c = 0; c < z->shape[1] && named[p] == 0; ++c)
      value[p * z->shape[1] + c] = (double)NAN;
  free(named);
  return ASSAY_OK;
}

/* Weights are not negative: those of a router. On the lattice they are multiples of 2^-6, at most 2. */
static void fill_weights(const assay_fill *fill, double *value, int64_t count) {
  assay_rng rng = {fill->seed, 0x77656967, 0};
  for (int64_t i = 0; i < count; ++i)
    value[i] = fill->values == ASSAY_LATTICE ? 0x1p-6 * (double)assay_rng_range(&rng, 0, 128) : assay_rng_unit(&rng);
}

static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  if (arg == ARG_POS) {
    for (int64_t i = 0; i < count; ++i)
      value[i] = (double)draw_place(from, i);
    return ASSAY_OK;
  }
  if (arg == ARG_W) {
    fill_weights(from, value, count);
    return ASSAY_OK;
  }
  plain_fill(from, (uint64_t)arg, value, count);
  return arg == ARG_Z ? poison_unnamed(from, value, error) : ASSAY_OK;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"T", 1, 1 << 20, 4, 1, "tokens"},
    {"k", 1, MOST_SLOTS, 2, 1, "experts of a token"},
    {"P", 1, 1 << 24, 16, 1, "rows of z"},
    {"C", 1, 65536, 64, 1, "channels"},
};

static const assay_arg args[ARG_COUNT] = {
    {"z", ASSAY_IN, ASSAY_VALUES, false, "f32,f16,bf16", "P,C", "results of the experts", true},
    {"pos", ASSAY_IN, ASSAY_VALUES, false, "i32", "T,k", "the row of z of each slot, 0 to P - 1; -1: none", false},
    {"w", ASSAY_IN, ASSAY_VALUES, true, "f32", "T,k", "weights; absent: 1", false},
    {"shared", ASSAY_IN, ASSAY_VALUES, true, "=z", "T,C", "the shared expert's result, added", true},
    {"y", ASSAY_OUT, ASSAY_RESULT, false, "=z", "T,C", "the result", true},
};

static const assay_op op = {
    .name = "moe_combine",
    .title = "weighted sum of a token's experts",
    .source = "docs/definitions.md, section 10",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .laws = "run_to_run,dead_bytes,permutation",
    .spoils = "padding_added,weight_lost,weight_of_next_slot,last_slot_dropped,shared_lost,rounded_between",
    .kappa_element = 7, /* sums of up to 63 roundings, close to normal: fixtures/regressions/sums_of_many_slots.yaml */
    .form = ASSAY_PLAIN,
    .row_dim = "T",
    .confirmed_by = "the product of the sparse matrix of the weights with z (ref_moe_test)",
    .largest = 0x1p114, /* times 32 results of up to 2^7, as drawn, it stays below 2^127 */
    .check = plain_check_call,
    .reference = reference,
    .cost = cost,
    .fill = fill,
    .spoil = spoil,
};

const assay_op *assay_op_moe_combine(void) {
  return &op;
}
