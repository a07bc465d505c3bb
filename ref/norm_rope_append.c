/* norm_rope_append: the norm of every head of q and of k, and their rotary position embedding. k and v are then stored
 * in their slots of the paged cache. It is qk_norm, then rope_append, in one call. For row n at p = positions_n with
 * slot s, head h and channel d, each of q and k with its own weights:
 *
 *   rms     n_hd = round(x_hd / sqrt(sum_d x_hd^2 / D + eps)) gamma_d
 *   uclip   n_hd = gamma_d clip(alpha_d x_hd, -1, 1)
 *
 *   q <- turn(round(n(q)), p)                       in place, or into q_out; of every row, whatever its slot
 *   k' = round(turn(round(n(k)), p))                k stays as it is; k' into k_out, where that is present
 *   K[slot s] = store(k', k_scale_h),  V[slot s] = store(v, v_scale_h)     nothing where s = -1
 *
 * round is to the type of q; rms has its first one only with round_inner. gamma and alpha are one number, or one per
 * channel; an absent alpha is 1. turn is that of rope (ref/lib/rope.c), store that of kv_append (ref/lib/append.c), the
 * norms and their error model are those of qk_norm (ref/lib/norm.c). Every other bit of the pool stays. A position
 * outside [0, max_pos) is an input error. Source: docs/definitions.md, sections 1, 3 and 4. */
#include <math.h>
#include <string.h>

#include "core/dtype.h"
#include "ref/lib/append.h"
#include "ref/lib/error_model.h"
#include "ref/lib/norm_rows.h"
#include "ref/lib/paged_check.h"
#include "ref/lib/paged_tables.h"
#include "ref/lib/plain.h"
#include "ref/lib/rope.h"
#include "ref/lib/rope_append.h"
#include "ref/lib/rowwise.h"

enum {
  ARG_Q,
  ARG_K,
  ARG_V,
  ARG_Q_GAMMA,
  ARG_K_GAMMA,
  ARG_Q_ALPHA,
  ARG_K_ALPHA,
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
enum { PARAM_KIND, PARAM_EPS, PARAM_ROUND_INNER, PARAM_LAYOUT, PARAM_STYLE, PARAM_SCALE_PER_HEAD, PARAM_COUNT };
enum { KIND_RMS, KIND_UCLIP };
enum { INTERLEAVED = 1 };

const assay_op *assay_op_norm_rope_append(void);

/* How many deviations an error of the norm may reach: what qk_norm allows an element. */
static const double norm_kappa = 7;

/* ---- planted errors ---------------------------------------------------------------------------------- */

/* Planted errors besides those of all norms. factor_of_row_before takes the factor of the head before. */
typedef enum planted {
  SPOIL_NONE,
  SPOIL_WEIGHTS_OF_Q_FOR_K,
  SPOIL_NORM_AFTER_ROPE,       /* the head is turned before its norm */
  SPOIL_Q_NOT_NORMED,          /* q is turned as it came */
  SPOIL_K_NOT_NORMED,          /* likewise k */
  SPOIL_V_NORMED,              /* v takes the norm of k */
  SPOIL_REST_NOT_NORMED,       /* channels from R on stay as they came */
  SPOIL_NOT_ROUNDED_BETWEEN,   /* the norm of k has not been rounded to its type */
  SPOIL_POSITION_OF_NEIGHBOUR, /* rows 2 i and 2 i + 1 exchange their positions */
  SPOIL_OTHER_STYLE,           /* the other way of pairing channels */
  SPOIL_Q_NOT_ROTATED,
  SPOIL_K_NOT_ROTATED,
  SPOIL_V_ROTATED,
  SPOIL_PAD_Q_LEFT,     /* q of a row without a slot stays as it came */
  SPOIL_ROWS_EXCHANGED, /* slots of two neighbouring rows are exchanged */
  SPOIL_V_IS_K,         /* the V cache receives keys */
  SPOIL_SCALE_LOST,     /* fp8: not divided */
  SPOIL_K_NOT_ROUNDED   /* fp8: quantised before it is rounded to the type of k */
} planted;

static const char *const planted_names[] = {
    "",
    "weights_of_q_for_k",
    "norm_after_rope",
    "q_not_normed",
    "k_not_normed",
    "v_normed",
    "rest_not_normed",
    "not_rounded_between",
    "position_of_neighbour",
    "other_style",
    "q_not_rotated",
    "k_not_rotated",
    "v_rotated",
    "pad_q_left",
    "rows_exchanged",
    "v_is_k",
    "scale_lost",
    "k_not_rounded",
};

static planted planted_of(const assay_op *op, int32_t index) {
  size_t size = 0;
  const char *name = index >= 0 ? norm_spoil_name(op, index, &size) : NULL;
  for (int i = 1; name != NULL && i < (int)(sizeof planted_names / sizeof planted_names[0]); ++i)
    if (strlen(planted_names[i]) == size && memcmp(planted_names[i], name, size) == 0) return (planted)i;
  return SPOIL_NONE;
}

/* ---- one head ---------------------------------------------------------------------------------------- */

/* The norm of q or of k, with its weights. */
typedef struct own_norm {
  norm f, right; /* right: f without the planted error */
  double memory[3 * PAGED_MAX_D], shifted[PAGED_MAX_D];
} own_norm;

typedef struct run {
  const assay_call *call;
  const assay_contract *contract;
  bool exact;
  planted spoil;
  norm_spoil norm_spoil;
  own_norm norm[2]; /* [0] q, [1] k */
  rope_append_results to;
} run;

/* A head of a row after its norm, with its angles. sigma: how far the norm may be off. */
typedef struct turned {
  double came[PAGED_MAX_D], x[PAGED_MAX_D], sigma[PAGED_MAX_D], cosine[PAGED_MAX_D / 2], sine[PAGED_MAX_D / 2];
  rope_head head; /* points into this struct */
} turned;

static void make_norm(const assay_call *call, bool q, norm_spoil spoil, own_norm *n) {
  const int64_t D = call->arg[ARG_Q].shape[2];
  n->f = (norm){.kind = call->param[PARAM_KIND] == KIND_UCLIP ? NORM_UCLIP : NORM_RMS,
                .C = D,
                .dtype = call->arg[ARG_Q].dtype,
                .kappa = norm_kappa,
                .eps = (double)(float)call->param[PARAM_EPS],
                .round_inner = call->param[PARAM_ROUND_INNER] != 0};
  n->f.weight = norm_load_weight(call, q ? "q_gamma" : "k_gamma", n->memory, &n->f.weight_step);
  n->f.alpha = norm_load_weight(call, q ? "q_alpha" : "k_alpha", n->memory + D, &n->f.alpha_step);
  n->right = n->f;
  norm_spoil_weights(spoil, &n->f, n->shifted);
}

/* Computes the norm of t->came into t->x and t->sigma. before: the head before, or NULL. */
static void norm_head(const run *r, const own_norm *n, const double *before, turned *t) {
  double scratch[2 * PAGED_MAX_D];
  const norm_moments m = norm_spoil_moments(r->norm_spoil, &n->f, t->came, before);
  norm_expect(&n->f, r->contract, m, t->came, t->x, t->sigma);
  norm_spoil_result(r->norm_spoil, &n->f, t->came, t->x);
  norm_spoil_rounding(r->norm_spoil, &n->right, r->contract, t->came, scratch, t->x);
}

static void load_values(const assay_call *call, int32_t arg, int64_t n, int64_t h, double *to) {
  const assay_tensor *x = &call->arg[arg];
  const int64_t D = x->shape[2], row = x->shape[0] > 1 ? n * x->stride[0] : 0;
  assay_load_f64_row(x->data, x->dtype, row + h * D, 1, D, to);
}

static void load_angles(const run *r, int64_t n, int64_t D, turned *t) {
  const assay_call *call = r->call;
  const int64_t half = call->arg[ARG_COS].shape[1], N = call->arg[ARG_Q].shape[0];
  const int64_t from = r->spoil == SPOIL_POSITION_OF_NEIGHBOUR && (n ^ 1) < N ? n ^ 1 : n;
  const int64_t position = plain_integer(&call->arg[ARG_POSITIONS], from);
  assay_load_f64_row(call->arg[ARG_COS].data, ASSAY_F32, position * half, 1, half, t->cosine);
  assay_load_f64_row(call->arg[ARG_SIN].data, ASSAY_F32, position * half, 1, half, t->sine);
  const bool interleaved = call->param[PARAM_STYLE] == INTERLEAVED;
  t->head = (rope_head){t->x, t->cosine, t->sine, 2 * half, D, interleaved != (r->spoil == SPOIL_OTHER_STYLE)};
}

/* Loads a head of q, k or v and applies the norm `own` to it, unless that is NULL. */
static void load_head(const run *r, int32_t arg, const own_norm *own, int64_t n, int64_t h, turned *t) {
  const int64_t D = r->call->arg[arg].shape[2];
  double before[PAGED_MAX_D], y[PAGED_MAX_D];
  load_values(r->call, arg, n, h, t->came);
  load_angles(r, n, D, t);
  if (own == NULL) {
    memcpy(t->x, t->came, (size_t)D * sizeof *t->x);
    memset(t->sigma, 0, (size_t)D * sizeof *t->sigma);
    return;
  }
  if (h > 0) load_values(r->call, arg, n, h - 1, before);
  if (r->spoil == SPOIL_NORM_AFTER_ROPE) {
    rope_rotate(t->came, t->cosine, t->sine, t->head.R, D, t->head.interleaved, y);
    memcpy(t->came, y, (size_t)D * sizeof *y);
  }
  norm_head(r, own, h > 0 ? before : NULL, t);
  for (int64_t d = t->head.R; d < D && r->spoil == SPOIL_REST_NOT_NORMED; ++d)
    t->x[d] = t->came[d];
}

/* Writes y [D]: the head after its rotation; turns false: the head unchanged. */
static void turn(const turned *t, bool turns, double *y) {
  const rope_head *h = &t->head;
  rope_rotate(h->x, h->cosine, h->sine, turns ? h->R : 0, h->D, h->interleaved, y);
}

/* Adds to each channel what the norm may contribute to it: |cos| and |sin| of both channels of its pair, times
 * `factor`. */
static void add_norm(const turned *t, double factor, double *to) {
  const rope_head *h = &t->head;
  for (int64_t i = 0; i < h->R / 2; ++i) {
    int64_t a, b;
    rope_pair(i, h->R, h->interleaved, &a, &b);
    const double c = fabs(h->cosine[i]), s = fabs(h->sine[i]);
    to[a] += factor * (c * t->sigma[a] + s * t->sigma[b]);
    to[b] += factor * (c * t->sigma[b] + s * t->sigma[a]);
  }
  for (int64_t d = h->R; d < h->D; ++d)
    to[d] += factor * t->sigma[d];
}

/* Writes the deviation of the turned head. The norm's part allows what qk_norm allows. */
static void sigma_of(const assay_call *call, const turned *t, double *sigma) {
  rope_sigma(&t->head, call->arg[ARG_Q].dtype, sigma);
  add_norm(t, norm_kappa / call->op->kappa_element, sigma);
}

static const rope_append_loss exactly = {0};

static rope_append_loss loss_of(planted spoil) {
  return (rope_append_loss){.scale = spoil == SPOIL_SCALE_LOST, .rounding = spoil == SPOIL_K_NOT_ROUNDED};
}

/* Refuses, in the exact tier, a head whose norm or rotation is not exact. */
static assay_status admit(const run *r, const own_norm *own, int64_t n, const turned *t, assay_error *error) {
  int64_t channel = 0;
  double bits = 0, sum;
  for (int64_t d = 0; d < t->head.D; ++d)
    if (!norm_uclip_exact(&own->right, d, t->came[d], &sum))
      return rowwise_refuse(r->call, n, d, "alpha x gamma, which f32 must hold", sum, 0x1p24, error);
  if (rope_exact(&t->head, &channel, &bits)) return ASSAY_OK;
  return rowwise_refuse(r->call, n, channel, "significant bits of x_a cos and x_b sin, and of their sum", bits, 24,
                        error);
}

/* Tells whether the cache may hold `got` for channel d of a turned head of k. It may hold the stored form of any number
 * that f32 arithmetic may give, of any norm that qk_norm may give. */
static bool may_hold(const assay_call *call, int64_t h, const turned *t, const double *y, int64_t d, double got) {
  double bound[PAGED_MAX_D];
  rope_bound(&t->head, bound);
  add_norm(t, norm_kappa, bound);
  return got >= rope_append_stored_k(call, h, y[d] - 1.01 * bound[d], exactly) &&
         got <= rope_append_stored_k(call, h, y[d] + 1.01 * bound[d], exactly);
}

/* Turns a head of k whose norm has not been rounded, where the cache then holds what it may not hold. */
static void leave_unrounded(const run *r, const own_norm *own, int64_t h, const turned *t, double *y) {
  turned other = *t;
  double turned_y[PAGED_MAX_D];
  norm_apply(&own->f, norm_measure(&own->f, t->came), t->came, other.x);
  other.head.x = other.x;
  turn(&other, true, turned_y);
  for (int64_t d = 0; d < t->head.D; ++d)
    if (!may_hold(r->call, h, t, y, d, rope_append_stored_k(r->call, h, turned_y[d], exactly))) y[d] = turned_y[d];
}

/* ---- rows -------------------------------------------------------------------------------------------- */

/* Computes head h of row n of q into the result from element `at` on. */
static assay_status q_head(const void *of, int64_t n, int64_t h, int64_t at, assay_error *error) {
  const run *r = of;
  turned t;
  const bool left = r->spoil == SPOIL_PAD_Q_LEFT && r->to.slot < 0;
  load_head(r, ARG_Q, r->spoil == SPOIL_Q_NOT_NORMED || left ? NULL : &r->norm[0], n, h, &t);
  turn(&t, r->spoil != SPOIL_Q_NOT_ROTATED && !left, r->to.q->value + at);
  if (r->to.q->sigma != NULL) sigma_of(r->call, &t, r->to.q->sigma + at);
  return r->exact ? admit(r, &r->norm[0], n, &t, error) : ASSAY_OK;
}

/* Computes a head of k likewise. An f32 cache takes the result of the arithmetic. Any other cache takes the rounded
 * number, and accepts() says which other numbers rounding may give. */
static assay_status k_head(const void *of, int64_t n, int64_t h, int64_t at, assay_error *error) {
  const run *r = of;
  turned t;
  double y[PAGED_MAX_D], sigma[PAGED_MAX_D];
  const own_norm *own = &r->norm[r->spoil == SPOIL_WEIGHTS_OF_Q_FOR_K ? 0 : 1];
  load_head(r, ARG_K, r->spoil == SPOIL_K_NOT_NORMED ? NULL : own, n, h, &t);
  turn(&t, r->spoil != SPOIL_K_NOT_ROTATED, y);
  sigma_of(r->call, &t, sigma);
  if (r->spoil == SPOIL_NOT_ROUNDED_BETWEEN && r->to.slot >= 0) leave_unrounded(r, own, h, &t, y);
  for (int64_t d = 0; d < t.head.D; ++d) {
    const assay_expected *out = r->to.k_out, *to = r->to.cache[0];
    if (out != NULL && r->spoil != SPOIL_ROWS_EXCHANGED) out->value[at + d] = y[d];
    if (out != NULL && out->sigma != NULL) out->sigma[at + d] = sigma[d];
    to->value[at + d] = r->to.slot < 0 ? 0 : rope_append_expected_k(r->call, h, y[d], loss_of(r->spoil));
    if (to->sigma != NULL)
      to->sigma[at + d] = r->call->arg[ARG_K_CACHE].dtype == ASSAY_F32 && r->to.slot >= 0 ? sigma[d] : 0;
  }
  return r->exact ? admit(r, &r->norm[1], n, &t, error) : ASSAY_OK;
}

/* Computes v of row n. Nothing is read of a pad row. */
static void v_head(const void *of, int64_t n, int64_t h, int64_t at) {
  const run *r = of;
  turned t;
  double y[PAGED_MAX_D];
  const int64_t D = r->call->arg[ARG_V].shape[2];
  const bool keys = r->spoil == SPOIL_V_IS_K;
  if (r->to.slot >= 0) {
    load_head(r, keys ? ARG_K : ARG_V, keys || r->spoil == SPOIL_V_NORMED ? &r->norm[1] : NULL, n, h, &t);
    turn(&t, r->spoil == SPOIL_V_ROTATED, y);
  }
  for (int64_t d = 0; d < D; ++d) {
    r->to.cache[1]->value[at + d] = r->to.slot < 0 ? 0 : rope_append_stored_v(r->call, h, y[d], loss_of(r->spoil));
    if (r->to.cache[1]->sigma != NULL) r->to.cache[1]->sigma[at + d] = 0;
  }
}

static const rope_append_heads of_row = {q_head, k_head, v_head};

static assay_status compute(const assay_call *call, const assay_contract *contract, const assay_rows *rows, bool exact,
                            int32_t spoil, assay_expected *expected, assay_error *error) {
  if (exact && call->param[PARAM_KIND] != KIND_UCLIP)
    return assay_fail(error, ASSAY_ERR_INPUT, "exact tier: kind: found rms, allowed uclip: a root is seldom exact");
  run r = {.call = call, .exact = exact, .contract = contract != NULL ? contract : &default_contract};
  r.spoil = planted_of(call->op, spoil);
  r.norm_spoil = spoil >= 0 ? norm_spoil_of(call->op, spoil) : NORM_RIGHT;
  for (int i = 0; i < 2; ++i)
    make_norm(call, i == 0, r.norm_spoil, &r.norm[i]);
  return rope_append_rows(call, rows, &of_row, &r, &r.to, r.spoil == SPOIL_ROWS_EXCHANGED, expected, error);
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  if (seen != NULL) seen->visible_keys = seen->live_keys = 0;
  return compute(call, contract, rows, exact, -1, expected, error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  assay_expected values[ASSAY_MAX_OUTPUTS];
  rope_append_values(call, expected, values);
  return compute(call, contract, rows, false, index, values, error);
}

/* Accepts a stored key in another type than f32 if rounding may give it. Accepts what overflow leaves of a head, from
 * implementations that do not rescale. */
static bool accepts(const assay_call *call, const assay_contract *contract, int32_t output, int64_t element,
                    double got) {
  const bool is_q = output == rowwise_output(call, call->arg[ARG_Q_OUT].data != NULL ? ARG_Q_OUT : ARG_Q);
  const bool stored = output == rowwise_output(call, ARG_K_CACHE);
  const bool keys = stored || (call->arg[ARG_K_OUT].data != NULL && output == rowwise_output(call, ARG_K_OUT));
  if (!is_q && !keys) return false;
  const int64_t heads = call->arg[is_q ? ARG_Q : ARG_K].shape[1], D = call->arg[ARG_K].shape[2];
  const int64_t n = element / (heads * D), h = element / D % heads, d = element % D;
  if (stored && append_slot(&call->arg[ARG_SLOTS], n) < 0) return false;
  run r = {.call = call, .contract = contract != NULL ? contract : &default_contract};
  own_norm *own = &r.norm[is_q ? 0 : 1];
  turned t;
  double y[PAGED_MAX_D];
  make_norm(call, is_q, NORM_RIGHT, own);
  load_head(&r, is_q ? ARG_Q : ARG_K, own, n, h, &t);
  if (!r.contract->rescales && own->f.kind == NORM_RMS &&
      norm_overflows(&own->f, norm_measure(&own->f, t.came), t.came) && norm_overflow_accepts(&own->f, d, got))
    return true;
  if (!stored || call->arg[ARG_K_CACHE].dtype == ASSAY_F32) return false;
  turn(&t, true, y);
  return may_hold(call, h, &t, y, d, got);
}

static assay_status check(const assay_call *call, assay_error *error) {
  assay_status status = rope_append_check(call, error);
  const int64_t D = status == ASSAY_OK ? call->arg[ARG_Q].shape[2] : 0;
  for (int32_t i = ARG_Q_GAMMA; i <= ARG_K_ALPHA && status == ASSAY_OK; ++i) {
    const char *name = call->op->args[i].name;
    if (i >= ARG_Q_ALPHA && call->arg[i].data == NULL) continue;
    if (i >= ARG_Q_ALPHA && call->param[PARAM_KIND] == KIND_RMS)
      status = assay_fail(error, ASSAY_ERR_INPUT, "%s: found a tensor, allowed none with kind rms", name);
    const int64_t shape[1] = {call->arg[i].shape[0] == 1 ? 1 : D};
    if (status == ASSAY_OK) status = check_dense(call, i, call->arg[ARG_Q].dtype, 1, shape, error);
  }
  return status;
}

/* Counts the norms, then what rope_append counts. */
static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  const assay_tensor *q = &call->arg[ARG_Q], *k = &call->arg[ARG_K];
  const double elements = (double)q->shape[0] * (double)(q->shape[1] + k->shape[1]) * (double)q->shape[2];
  assay_cost all = rope_append_cost(call, seen);
  double weights = 0;
  for (int32_t i = ARG_Q_GAMMA; i <= ARG_K_ALPHA; ++i)
    if (call->arg[i].data != NULL) weights += (double)call->arg[i].shape[0];
  all.flops += (call->param[PARAM_KIND] == KIND_RMS ? 4 : 5) * elements;
  all.bytes += weights * (double)assay_dtype_size(q->dtype);
  if (call->arg[ARG_Q_OUT].data == NULL) { /* all channels of q move, not only those that turn */
    const double rest = (double)(q->shape[2] - 2 * call->arg[ARG_COS].shape[1]);
    all.bytes += 2 * (double)q->shape[0] * (double)q->shape[1] * rest * (double)assay_dtype_size(q->dtype);
  }
  return all;
}

/* ---- values for the generator ------------------------------------------------------------------------ */

/* Fills an argument. fp8: k's weights are such that the quotients of its norms fill the codes, with special values
 * beyond the largest. Special values are those of v alone. */
static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  assay_fill own = *from;
  if (from->values == ASSAY_SPECIAL) own.values = ASSAY_NORMAL;
  const bool angles = rope_append_fill_angles(from, arg, value, count);
  const assay_status status = angles ? ASSAY_OK : norm_fill(&own, arg, value, count, error);
  const double size = arg == ARG_K_GAMMA ? rope_append_key_size(from) : 1;
  for (int64_t i = 0; i < count && size != 1; ++i)
    value[i] *= size;
  return status;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    PAGED_N("rows: new tokens"),
    PAGED_H,
    PAGED_H_KV(""),
    PAGED_D,
    ROPE_R,
    ROPE_MAX_POS(64, "positions of the table"),
    {"gamma_n", 1, PAGED_MAX_D, 1, 1, "elements of q_gamma and k_gamma: 1 or D"},
    {"alpha_n", 1, PAGED_MAX_D, 1, 1, "elements of q_alpha and k_alpha: 1 or D"},
    PAGED_BLOCK_SIZE(""),
    PAGED_NUM_BLOCKS(""),
    PAGED_KV_SCALES,
};

static const assay_arg args[ARG_COUNT] = {
    {"q", ASSAY_INOUT, ASSAY_VALUES, false, "f32,f16,bf16", "N,H,D", "queries; the result, unless q_out is present",
     true},
    {"k", ASSAY_IN, ASSAY_VALUES, false, "=q", "N,H_kv,D", "new keys before their norm; the row stride is free", true},
    {"v", ASSAY_IN, ASSAY_V_NEW, false, "=q", "N,H_kv,D", "new values; the row stride is free", true},
    {"q_gamma", ASSAY_IN, ASSAY_VALUES, false, "=q", "gamma_n", "weight of q", false},
    {"k_gamma", ASSAY_IN, ASSAY_VALUES, false, "=q", "gamma_n", "weight of k", false},
    {"q_alpha", ASSAY_IN, ASSAY_VALUES, true, "=q", "alpha_n", "uclip: slope of q before the clip", false},
    {"k_alpha", ASSAY_IN, ASSAY_VALUES, true, "=q", "alpha_n", "uclip: slope of k before the clip", false},
    ROPE_COS,
    ROPE_SIN,
    {"positions", ASSAY_IN, ASSAY_VALUES, false, "i32,i64", "N", "of each row, 0 to max_pos - 1", false},
    PAGED_SLOTS("not written"),
    PAGED_CACHE(ASSAY_INOUT, "=q,e4m3,e5m2"),
    {"q_out", ASSAY_OUT, ASSAY_RESULT, true, "=q", "N,H,D", "the result; q keeps its bits", false},
    {"k_out", ASSAY_OUT, ASSAY_RESULT, true, "=q", "N,H_kv,D",
     "the keys after norm and rotation, before they are stored", false},
};

static const assay_param params[PARAM_COUNT] = {
    {"kind", ASSAY_ENUM, 0, 1, 0, "rms,uclip", "which norm"},
    {"eps", ASSAY_REAL, 1e-12, 1, 1e-6, NULL, "rms: added to the mean square, as f32"},
    {"round_inner", ASSAY_BOOL, 0, 1, 1, NULL, "rms: rounded to the type of q before the weight"},
    PAGED_LAYOUT(""),
    ROPE_STYLE,
    PAGED_SCALE_PER_HEAD,
};

static const assay_op op = {
    .name = "norm_rope_append",
    .title = "norm of every head of q and k and their rotary position embedding, with k and v written to their slots",
    .source = "docs/definitions.md, sections 1, 3 and 4",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .params = params,
    .param_count = PARAM_COUNT,
    .laws = "run_to_run,dead_bytes,renumbering,permutation,in_place,parts",
    .spoils = "weights_of_q_for_k,norm_after_rope,q_not_normed,k_not_normed,v_normed,rest_not_normed,"
              "not_rounded_between,position_of_neighbour,other_style,q_not_rotated,k_not_rotated,v_rotated,pad_q_left,"
              "rows_exchanged,v_is_k,scale_lost,k_not_rounded,neighbour_weight,alpha_lost,eps_lost,"
              "inner_rounding_lost,factor_of_row_before,clip_lost,last_channel_dropped",
    .kappa_element = 3.2,
    .exact_with = "kind=uclip",
    .takes_special = true,
    .confirmed_by = "qk_norm, then rope_append, bit for bit (ref_norm_rope_append_test)",
    .extreme_args = "q,k",
    .largest = 0x1p126,
    .check = check,
    .reference = reference,
    .cost = cost,
    .fill_k = rope_append_fill_k,
    .fill_v = rope_append_fill_v,
    .fill = fill,
    .accepts = accepts,
    .visible = rope_append_visible,
    .spoil = spoil,
    .parts = "qk_norm,rope_append",
};

const assay_op *assay_op_norm_rope_append(void) {
  return &op;
}
