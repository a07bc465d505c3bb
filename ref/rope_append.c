/* rope_append: rotary position embedding of q and k, and storing of k and v in their slots of the paged cache. It is
 * rope, then kv_append, in one call. For row n at p = positions_n with slot s, each pair (a, b) of the first R channels
 * as in rope:
 *
 *   q <- turn(q, p)                                 in place, or into q_out; of every row, whatever its slot
 *   k' = turn(k, p), rounded to the type of k       k stays as it is; k' into k_out, where that is present
 *   K[slot s] = store(k', k_scale_h),  V[slot s] = store(v, v_scale_h)     nothing where s = -1
 *
 * turn is that of rope (ref/lib/rope.c), store that of kv_append (ref/lib/append.c). Every other bit of the pool stays.
 * A position outside [0, max_pos) is an input error. Source: docs/definitions.md, sections 1 and 4. */
#include <math.h>

#include "core/dtype.h"
#include "ref/lib/append.h"
#include "ref/lib/paged_tables.h"
#include "ref/lib/plain.h"
#include "ref/lib/rope.h"
#include "ref/lib/rope_append.h"
#include "ref/lib/rowwise.h"

enum {
  ARG_Q,
  ARG_K,
  ARG_V,
  ARG_COS,
  ARG_SIN,
  ARG_POSITIONS,
  ARG_SLOTS,
  ARG_K_CACHE,
  ARG_V_CACHE,
  ARG_K_SCALE,
  ARG_V_SCALE,
  ARG_Q_OUT,
  ARG_K_OUT,
  ARG_COUNT
};
enum { PARAM_LAYOUT, PARAM_STYLE, PARAM_SCALE_PER_HEAD, PARAM_COUNT };
enum { INTERLEAVED = 1 };

const assay_op *assay_op_rope_append(void);

/* ---- planted errors ---------------------------------------------------------------------------------- */

typedef enum planted {
  SPOIL_POSITION_ONE_OFF, /* the position after the row's own */
  SPOIL_OTHER_STYLE,      /* the other way of pairing channels */
  SPOIL_TURNED_BACK,      /* rotated in the opposite direction */
  SPOIL_Q_NOT_ROTATED,
  SPOIL_K_NOT_ROTATED,
  SPOIL_V_ROTATED,
  SPOIL_PAD_Q_NOT_ROTATED, /* a row without a slot is left unchanged altogether */
  SPOIL_REST_DROPPED,      /* channels from R on of the stored k are 0 */
  SPOIL_ROWS_EXCHANGED,    /* slots of two neighbouring rows are exchanged */
  SPOIL_V_IS_K,            /* the V cache receives keys */
  SPOIL_SCALE_LOST,        /* fp8: not divided */
  SPOIL_HEAD_SCALE_LOST,   /* fp8: every head takes the factor of head 0 */
  SPOIL_K_NOT_ROUNDED,     /* fp8: quantised before it is rounded to the type of k */
  SPOIL_COUNT,
  SPOIL_NONE
} planted;

/* ---- one head ---------------------------------------------------------------------------------------- */

/* A head of a row with its angles. */
typedef struct turned {
  double x[PAGED_MAX_D], cosine[PAGED_MAX_D / 2], sine[PAGED_MAX_D / 2];
  rope_head head; /* points into this struct */
} turned;

static void load_head(const assay_call *call, int32_t arg, int64_t n, int64_t h, planted spoil, turned *t) {
  const assay_tensor *x = &call->arg[arg], *cosine = &call->arg[ARG_COS];
  const int64_t max_pos = cosine->shape[0], half = cosine->shape[1], D = x->shape[2];
  int64_t position = plain_integer(&call->arg[ARG_POSITIONS], n);
  if (spoil == SPOIL_POSITION_ONE_OFF) position = (position + 1) % max_pos;
  const int64_t row = x->shape[0] > 1 ? n * x->stride[0] : 0;
  assay_load_f64_row(x->data, x->dtype, row + h * D, 1, D, t->x);
  assay_load_f64_row(cosine->data, ASSAY_F32, position * half, 1, half, t->cosine);
  assay_load_f64_row(call->arg[ARG_SIN].data, ASSAY_F32, position * half, 1, half, t->sine);
  for (int64_t i = 0; i < half && spoil == SPOIL_TURNED_BACK; ++i)
    t->sine[i] = -t->sine[i];
  const bool interleaved = call->param[PARAM_STYLE] == INTERLEAVED;
  t->head = (rope_head){t->x, t->cosine, t->sine, 2 * half, D, spoil == SPOIL_OTHER_STYLE ? !interleaved : interleaved};
}

/* Writes y [D]: the head after its rotation; turns false: the head unchanged. */
static void turn(const turned *t, bool turns, double *y) {
  const rope_head *h = &t->head;
  rope_rotate(h->x, h->cosine, h->sine, turns ? h->R : 0, h->D, h->interleaved, y);
}

static const rope_append_loss exactly = {0};

static rope_append_loss loss_of(planted spoil) {
  return (rope_append_loss){.scale = spoil == SPOIL_SCALE_LOST,
                            .head_scale = spoil == SPOIL_HEAD_SCALE_LOST,
                            .rounding = spoil == SPOIL_K_NOT_ROUNDED};
}

static assay_status admit(const assay_call *call, int64_t n, const rope_head *h, assay_error *error) {
  int64_t channel = 0;
  double bits = 0;
  if (rope_exact(h, &channel, &bits)) return ASSAY_OK;
  return rowwise_refuse(call, n, channel, "significant bits of x_a cos and x_b sin, and of their sum", bits, 24, error);
}

/* ---- rows -------------------------------------------------------------------------------------------- */

typedef struct run {
  const assay_call *call;
  bool exact;
  planted spoil;
  rope_append_results to;
} run;

/* Computes head h of row n of q into the result from element `at` on. */
static assay_status q_head(const void *of, int64_t n, int64_t h, int64_t at, assay_error *error) {
  const run *r = of;
  turned t;
  load_head(r->call, ARG_Q, n, h, r->spoil, &t);
  const bool left = r->spoil == SPOIL_Q_NOT_ROTATED || (r->spoil == SPOIL_PAD_Q_NOT_ROTATED && r->to.slot < 0);
  turn(&t, !left, r->to.q->value + at);
  if (r->to.q->sigma != NULL) rope_sigma(&t.head, r->call->arg[ARG_Q].dtype, r->to.q->sigma + at);
  return r->exact ? admit(r->call, n, &t.head, error) : ASSAY_OK;
}

/* Computes a head of k likewise. An f32 cache takes the result of the arithmetic. Any other cache takes the rounded
 * number, and accepts() says which other numbers rounding may give. */
static assay_status k_head(const void *of, int64_t n, int64_t h, int64_t at, assay_error *error) {
  const run *r = of;
  turned t;
  double y[PAGED_MAX_D], sigma[PAGED_MAX_D];
  const assay_dtype dtype = r->call->arg[ARG_K].dtype, cache = r->call->arg[ARG_K_CACHE].dtype;
  load_head(r->call, ARG_K, n, h, r->spoil, &t);
  turn(&t, r->spoil != SPOIL_K_NOT_ROTATED, y);
  rope_sigma(&t.head, dtype, sigma);
  for (int64_t d = 0; d < t.head.D; ++d) {
    const assay_expected *out = r->to.k_out, *to = r->to.cache[0];
    if (out != NULL && r->spoil != SPOIL_ROWS_EXCHANGED) out->value[at + d] = y[d];
    if (out != NULL && out->sigma != NULL) out->sigma[at + d] = sigma[d];
    const bool dropped = r->spoil == SPOIL_REST_DROPPED && d >= t.head.R;
    to->value[at + d] = r->to.slot < 0 || dropped ? 0 : rope_append_expected_k(r->call, h, y[d], loss_of(r->spoil));
    if (to->sigma != NULL) to->sigma[at + d] = cache == ASSAY_F32 && r->to.slot >= 0 ? sigma[d] : 0;
  }
  return r->exact ? admit(r->call, n, &t.head, error) : ASSAY_OK;
}

/* Computes v of row n. Nothing is read of a pad row. */
static void v_head(const void *of, int64_t n, int64_t h, int64_t at) {
  const run *r = of;
  turned t;
  double y[PAGED_MAX_D];
  const int64_t D = r->call->arg[ARG_V].shape[2];
  if (r->to.slot >= 0) {
    load_head(r->call, r->spoil == SPOIL_V_IS_K ? ARG_K : ARG_V, n, h, r->spoil, &t);
    turn(&t, r->spoil == SPOIL_V_ROTATED, y);
  }
  for (int64_t d = 0; d < D; ++d) {
    r->to.cache[1]->value[at + d] = r->to.slot < 0 ? 0 : rope_append_stored_v(r->call, h, y[d], loss_of(r->spoil));
    if (r->to.cache[1]->sigma != NULL) r->to.cache[1]->sigma[at + d] = 0;
  }
}

static const rope_append_heads of_row = {q_head, k_head, v_head};

static assay_status compute(const assay_call *call, const assay_rows *rows, bool exact, planted spoil,
                            assay_expected *expected, assay_error *error) {
  run r = {.call = call, .exact = exact, .spoil = spoil};
  return rope_append_rows(call, rows, &of_row, &r, &r.to, spoil == SPOIL_ROWS_EXCHANGED, expected, error);
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)contract;
  if (seen != NULL) seen->visible_keys = seen->live_keys = 0;
  return compute(call, rows, exact, SPOIL_NONE, expected, error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  (void)contract;
  assay_expected values[ASSAY_MAX_OUTPUTS];
  rope_append_values(call, expected, values);
  return compute(call, rows, false, (planted)index, values, error);
}

/* Accepts a stored key in another type than f32 if it is the stored form of some number that f32 arithmetic may
 * give. */
static bool accepts(const assay_call *call, const assay_contract *contract, int32_t output, int64_t element,
                    double got) {
  (void)contract;
  const int64_t H_kv = call->arg[ARG_K].shape[1], D = call->arg[ARG_K].shape[2];
  const int64_t n = element / (H_kv * D), h = element / D % H_kv, d = element % D;
  if (output != rowwise_output(call, ARG_K_CACHE) || call->arg[ARG_K_CACHE].dtype == ASSAY_F32) return false;
  if (append_slot(&call->arg[ARG_SLOTS], n) < 0) return false;
  turned t;
  double y[PAGED_MAX_D], bound[PAGED_MAX_D];
  load_head(call, ARG_K, n, h, SPOIL_NONE, &t);
  turn(&t, true, y);
  rope_bound(&t.head, bound);
  return got >= rope_append_stored_k(call, h, y[d] - 1.01 * bound[d], exactly) &&
         got <= rope_append_stored_k(call, h, y[d] + 1.01 * bound[d], exactly);
}

/* ---- values for the generator ------------------------------------------------------------------------ */

/* Fills an argument. fp8: k and v are such that their quotients fill the codes. Special values are those of v's
 * quotient, and k is large enough to saturate. q and k hold no special values, because their products would be special
 * too. */
static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  (void)error;
  assay_fill own = *from;
  if (from->values == ASSAY_SPECIAL) own.values = ASSAY_NORMAL;
  if (!rope_append_fill_angles(from, arg, value, count)) plain_fill(&own, (uint64_t)arg, value, count);
  const double size = arg == ARG_K ? rope_append_key_size(from) : 1;
  for (int64_t i = 0; i < count && size != 1; ++i)
    value[i] *= size;
  return ASSAY_OK;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    PAGED_N("rows: new tokens"),
    PAGED_H,
    PAGED_H_KV(""),
    PAGED_D,
    ROPE_R,
    ROPE_MAX_POS(64, "positions of the table"),
    PAGED_BLOCK_SIZE(""),
    PAGED_NUM_BLOCKS(""),
    PAGED_KV_SCALES,
};

static const assay_arg args[ARG_COUNT] = {
    {"q", ASSAY_INOUT, ASSAY_VALUES, false, "f32,f16,bf16", "N,H,D", "queries; the result, unless q_out is present",
     true},
    {"k", ASSAY_IN, ASSAY_VALUES, false, "=q", "N,H_kv,D", "new keys before rotation; the row stride is free", true},
    {"v", ASSAY_IN, ASSAY_V_NEW, false, "=q", "N,H_kv,D", "new values; the row stride is free", true},
    ROPE_COS,
    ROPE_SIN,
    {"positions", ASSAY_IN, ASSAY_VALUES, false, "i32,i64", "N", "of each row, 0 to max_pos - 1", false},
    PAGED_SLOTS("not written"),
    PAGED_CACHE(ASSAY_INOUT, "=q,e4m3,e5m2"),
    {"q_out", ASSAY_OUT, ASSAY_RESULT, true, "=q", "N,H,D", "the result; q keeps its bits", false},
    {"k_out", ASSAY_OUT, ASSAY_RESULT, true, "=q", "N,H_kv,D", "the rotated keys, as they are before they are stored",
     false},
};

static const assay_param params[PARAM_COUNT] = {
    PAGED_LAYOUT(""),
    ROPE_STYLE,
    PAGED_SCALE_PER_HEAD,
};

static const assay_op op = {
    .name = "rope_append",
    .title = "rotary position embedding of q and k, with k and v written to their slots of a paged cache",
    .source = "docs/definitions.md, sections 1 and 4",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .params = params,
    .param_count = PARAM_COUNT,
    .laws = "run_to_run,dead_bytes,renumbering,permutation,in_place,parts",
    .spoils = "position_one_off,other_style,turned_back,q_not_rotated,k_not_rotated,v_rotated,pad_q_not_rotated,"
              "rest_dropped,rows_exchanged,v_is_k,scale_lost,head_scale_lost,k_not_rounded",
    .kappa_element = 3.2,
    .takes_special = true,
    .confirmed_by = "rotation by complex numbers, a search over all codes; rope, then kv_append (ref_rope_append_test)",
    .extreme_args = "q,k",
    .largest = 0x1p126,
    .check = rope_append_check,
    .reference = reference,
    .cost = rope_append_cost,
    .fill_k = rope_append_fill_k,
    .fill_v = rope_append_fill_v,
    .fill = fill,
    .accepts = accepts,
    .visible = rope_append_visible,
    .spoil = spoil,
    .parts = "rope,kv_append",
};

const assay_op *assay_op_rope_append(void) {
  return &op;
}
