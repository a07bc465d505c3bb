/* spec_verify: accepts or rejects the tokens that a draft model proposes, by rejection sampling. Request b has m drafts
 * x_0 … (n_draft, or n), probabilities q_i of the draft model and p_i of the target, and coins c_i in [0, 1):
 *
 *   for i = 0, 1, …:  draft i is accepted iff c_i · q_i(x_i) < p_i(x_i)
 *   at the first rejection, at i:   draw from r(v) = max(p_i(v) - q_i(v), 0); from p_i where all of r is 0 (choice)
 *   all accepted:                   draw from p_m
 *   the draw: the lowest id whose running mass exceeds c_m · (whole mass)
 *
 * tokens = the accepted drafts, the drawn token, then -1. accepted counts drafts. Without q, q_i is 1 at x_i and 0
 * elsewhere. Without coins c_i is Philox' (step, i, request) under the key seed, so that m = 0 is the sampler's draw.
 * draw = greedy: a draft is accepted iff it is the lowest id of the largest p_i; that id is the token that ends the
 * request, and neither coins nor q are read.
 *
 * A number that is read and is NaN, negative or infinite, or a row without mass, gives status 1. A draft that is read
 * and is no id gives status 4. tokens are -1 then, and accepted is 0. An accepted row of p and q is read at x_i alone.
 * Rows after the first rejection, and from m on, are not read. n_draft outside [0, n] and coins outside [0, 1) are
 * input errors. Source: docs/definitions.md, section 11. */
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "ref/lib/error_model.h"
#include "ref/lib/lattice.h"
#include "ref/lib/plain.h"
#include "ref/lib/rowwise.h"
#include "ref/lib/spec.h"

const assay_op *assay_op_spec_verify(void);

enum { STATUS_OK = 0, STATUS_NUMBER = 1, STATUS_DRAFT = 4 };

typedef enum spec_spoil {
  SPOIL_NONE = -1,
  SPOIL_ACCEPT_AT_EQUAL,
  SPOIL_RESIDUAL_WITHOUT_CLIP,       /* p - q, negative ones too */
  SPOIL_DRAW_FROM_P_AFTER_REJECTION, /* not from what p has more than q */
  SPOIL_EMITS_PAST_N_DRAFT,          /* m is n */
  SPOIL_NAN_GIVES_V,                 /* the drawn token is V, status 0 */
  SPOIL_COIN_REUSED,                 /* the draw takes the coin of the last decision */
  SPOIL_TAIL_NOT_MINUS_ONE           /* 0 after the drawn token */
} spec_spoil;

/* One request of a call. */
typedef struct draft_request {
  const assay_call *call;
  int64_t b, n, V, drafts;
  bool greedy;
  spec_spoil spoil;
} draft_request;

typedef struct outcome {
  int64_t accepted, token; /* token: the one drawn */
  int32_t status;
  int64_t row;   /* the row that was drawn from; -1: none */
  bool residual; /* from what p has more than q */
  int64_t close; /* the last decision so close that f32 may turn it; -1: none */
} outcome;

/* ---- contents ---------------------------------------------------------------------------------------- */

static double number_of(const draft_request *r, int32_t arg, int64_t i, int64_t v) {
  const assay_tensor *t = &r->call->arg[arg];
  const int64_t apart = t->shape[0] > 1 ? t->stride[0] : 0;
  return (double)((const float *)t->data)[r->b * apart + i * r->V + v];
}

static int64_t draft_of(const draft_request *r, int64_t i) {
  return plain_integer(&r->call->arg[SPEC_DRAFT], r->b * r->n + i);
}

static double p_of(const draft_request *r, int64_t i, int64_t v) {
  return number_of(r, SPEC_P, i, v);
}

static double q_of(const draft_request *r, int64_t i, int64_t v) {
  if (r->call->arg[SPEC_Q].data == NULL) return v == draft_of(r, i) ? 1 : 0;
  return number_of(r, SPEC_Q, i, v);
}

static double coin_of(const draft_request *r, int64_t i) {
  const assay_tensor *arg = r->call->arg;
  if (arg[SPEC_COINS].data != NULL) return (double)((const float *)arg[SPEC_COINS].data)[r->b * (r->n + 1) + i];
  return spec_philox((uint64_t)plain_integer(&arg[SPEC_SEED], r->b), (uint32_t)plain_integer(&arg[SPEC_STEP], r->b),
                     (uint32_t)i, (uint64_t)plain_integer(&arg[SPEC_REQUEST], r->b));
}

/* ---- the definition ---------------------------------------------------------------------------------- */

static bool is_probability(double value) {
  return value >= 0 && value < (double)INFINITY;
}

/* Returns the mass of id v in the row that is drawn from. */
static double mass_of(const draft_request *r, const outcome *o, int64_t v) {
  const double p = p_of(r, o->row, v);
  if (!o->residual) return p;
  const double more = p - q_of(r, o->row, v);
  return more > 0 || r->spoil == SPOIL_RESIDUAL_WITHOUT_CLIP ? more : 0;
}

static double whole_of(const draft_request *r, const outcome *o) {
  double whole = 0;
  for (int64_t v = 0; v < r->V; ++v)
    whole += mass_of(r, o, v);
  return whole;
}

/* Tells whether all that the draw reads is a probability. */
static bool is_row_legal(const draft_request *r, const outcome *o) {
  for (int64_t v = 0; v < r->V; ++v)
    if (!is_probability(p_of(r, o->row, v)) || (o->residual && !is_probability(q_of(r, o->row, v)))) return false;
  return true;
}

/* Returns the coin of the draw. */
static double last_coin(const draft_request *r, const outcome *o) {
  return coin_of(r, r->spoil == SPOIL_COIN_REUSED ? o->row : r->drafts);
}

static void refuse(outcome *o, int32_t status) {
  *o = (outcome){.token = -1, .status = status, .row = -1, .close = -1};
}

/* Draws from row o->row. */
static void draw(const draft_request *r, outcome *o) {
  if (!is_row_legal(r, o)) {
    const int64_t accepted = o->accepted;
    refuse(o, STATUS_NUMBER);
    if (r->spoil == SPOIL_NAN_GIVES_V) *o = (outcome){.accepted = accepted, .token = r->V, .row = -1, .close = -1};
    return;
  }
  if (o->residual && r->spoil == SPOIL_DRAW_FROM_P_AFTER_REJECTION) o->residual = false;
  if (o->residual && whole_of(r, o) == 0) o->residual = false;
  const double whole = whole_of(r, o), target = last_coin(r, o) * whole;
  double running = 0;
  o->token = r->V - 1;
  if (whole == 0) {
    refuse(o, STATUS_NUMBER);
    return;
  }
  for (int64_t v = 0; v < r->V; ++v) {
    running += mass_of(r, o, v);
    if (!(running > target)) continue;
    o->token = v;
    return;
  }
}

/* Returns the lowest id of the largest p_i; -1 where the row has no mass, or a number that is no probability. */
static int64_t largest(const draft_request *r, int64_t i) {
  int64_t best = -1;
  double most = 0;
  for (int64_t v = 0; v < r->V; ++v) {
    const double p = p_of(r, i, v);
    if (!is_probability(p)) return -1;
    if (p > most) best = v, most = p;
  }
  return best;
}

static void verify_greedy(const draft_request *r, outcome *o) {
  for (; o->status == STATUS_OK && o->token < 0; ++o->accepted) {
    const int64_t i = o->accepted, best = largest(r, i), x = i < r->drafts ? draft_of(r, i) : -1;
    o->row = i;
    if (i < r->drafts && (x < 0 || x >= r->V)) {
      refuse(o, STATUS_DRAFT);
      return;
    }
    if (best < 0) {
      const int64_t accepted = o->accepted;
      refuse(o, STATUS_NUMBER);
      if (r->spoil == SPOIL_NAN_GIVES_V) *o = (outcome){.accepted = accepted, .token = r->V, .row = -1, .close = -1};
      return;
    }
    if (i < r->drafts && best == x) continue;
    o->token = best;
    return;
  }
}

/* Tells whether coin · q rounds in f32, and lies so near to p that the rounding decides. */
static bool is_close(double coin, double q, double p) {
  const double product = coin * q;
  return lattice_bits(coin) + lattice_bits(q) > 24 && fabs(product - p) <= 0x1p-22 * product;
}

/* Verifies a request. turned: the number of a decision that falls the other way, or -1. */
static outcome verify(const draft_request *r, int64_t turned) {
  outcome o = {.token = -1, .row = -1, .close = -1};
  if (r->greedy) {
    verify_greedy(r, &o);
    return o;
  }
  for (; o.accepted < r->drafts; ++o.accepted) {
    const int64_t i = o.accepted, x = draft_of(r, i);
    if (x < 0 || x >= r->V) {
      refuse(&o, STATUS_DRAFT);
      return o;
    }
    const double coin = coin_of(r, i), p = p_of(r, i, x), q = q_of(r, i, x);
    if (!is_probability(p) || !is_probability(q)) {
      const int64_t accepted = o.accepted;
      refuse(&o, STATUS_NUMBER);
      if (r->spoil == SPOIL_NAN_GIVES_V) o = (outcome){.accepted = accepted, .token = r->V, .row = -1, .close = -1};
      return o;
    }
    if (is_close(coin, q, p)) o.close = i;
    const bool accepted = r->spoil == SPOIL_ACCEPT_AT_EQUAL ? coin * q <= p : coin * q < p;
    if (accepted == (i == turned)) break;
  }
  o.row = o.accepted;
  o.residual = o.accepted < r->drafts;
  draw(r, &o);
  return o;
}

/* Returns what stands at a place of the request's tokens. */
static double token_at(const draft_request *r, const outcome *o, int64_t place) {
  if (o->status != STATUS_OK || place > o->accepted) return r->spoil == SPOIL_TAIL_NOT_MINUS_ONE ? 0 : -1;
  return (double)(place < o->accepted ? draft_of(r, place) : o->token);
}

/* ---- the error model --------------------------------------------------------------------------------- */

/* Returns how far rounding may move a running mass beside the target. */
static double reach_of(const draft_request *r, const assay_contract *contract, double whole) {
  const double lanes = contract->lanes > 0 ? contract->lanes : 1;
  return whole * (4 * sqrt(accumulation_variance((double)r->V, lanes)) + 0x1p-22);
}

/* Tells whether no rounding can move the draw. Masses are of one lattice then. f32 holds the target, or it lies away
 * from every running mass. */
static bool draws_exactly(const draft_request *r, const outcome *o) {
  const double whole = whole_of(r, o), coin = last_coin(r, o), target = coin * whole;
  double running = 0, nearest = (double)INFINITY;
  int low = LATTICE_ZERO;
  for (int64_t v = 0; v < r->V; ++v) {
    const double mass = mass_of(r, o, v);
    const int own = lattice_low(mass);
    running += mass;
    nearest = fmin(nearest, fabs(running - target));
    if (own < low) low = own;
  }
  if (!lattice_admits(whole, low, 24)) return false;
  return lattice_bits(coin) + lattice_bits(whole) <= 24 || nearest > 0x1p-22 * whole;
}

/* Tells whether rounding may let the draw fall on `token`. */
static bool may_draw(const draft_request *r, const outcome *o, const assay_contract *contract, double token) {
  const double whole = whole_of(r, o), target = last_coin(r, o) * whole, reach = reach_of(r, contract, whole);
  double running = 0;
  for (int64_t v = 0; v < r->V; ++v) {
    const double mass = mass_of(r, o, v);
    if ((double)v == token) return mass > 0 && running <= target + reach && running + mass > target - reach;
    running += mass;
  }
  return false;
}

/* Tells whether an output's element may be `got` where the decisions fall as in `o`. */
static bool may_be(const draft_request *r, const outcome *o, const assay_contract *contract, int32_t output,
                   int64_t place, double got) {
  if (output == 1) return got == (double)o->accepted;
  if (output == 2) return got == o->status;
  if (got == token_at(r, o, place)) return true;
  return !r->greedy && o->row >= 0 && place == o->accepted && !draws_exactly(r, o) && may_draw(r, o, contract, got);
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

static draft_request request_of(const assay_call *call, int64_t b, spec_spoil spoil) {
  const assay_tensor *p = &call->arg[SPEC_P], *n_draft = &call->arg[SPEC_N_DRAFT];
  draft_request r = {.call = call, .b = b, .n = p->shape[1] - 1, .V = p->shape[2], .spoil = spoil};
  r.drafts = n_draft->data != NULL && spoil != SPOIL_EMITS_PAST_N_DRAFT ? plain_integer(n_draft, b) : r.n;
  r.greedy = call->param[0] == SPEC_GREEDY;
  return r;
}

static bool accepts(const assay_call *call, const assay_contract *contract, int32_t output, int64_t element,
                    double got) {
  const int64_t width = output == 0 ? call->arg[SPEC_P].shape[1] : 1;
  const draft_request r = request_of(call, element / width, SPOIL_NONE);
  const outcome right = verify(&r, -1);
  if (may_be(&r, &right, contract, output, element % width, got)) return true;
  if (right.close < 0) return false;
  const outcome turned = verify(&r, right.close);
  return may_be(&r, &turned, contract, output, element % width, got);
}

static assay_status check_request(const draft_request *r, assay_error *error) {
  if (r->drafts < 0 || r->drafts > r->n)
    return assay_fail(error, ASSAY_ERR_INPUT, "n_draft: found %lld in request %lld, allowed 0 to %lld",
                      (long long)r->drafts, (long long)r->b, (long long)r->n);
  for (int64_t i = 0; !r->greedy && i <= r->n; ++i) {
    const double coin = coin_of(r, i);
    if (!(coin >= 0 && coin < 1))
      return assay_fail(error, ASSAY_ERR_INPUT, "coins: found %g at [%lld, %lld], allowed 0 to below 1", coin,
                        (long long)r->b, (long long)i);
  }
  return ASSAY_OK;
}

static assay_status admit(const draft_request *r, const outcome *o, assay_error *error) {
  if (r->greedy || o->row < 0 || (o->close < 0 && draws_exactly(r, o))) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "exact tier: spec_verify request %lld: found %s, allowed none",
                    (long long)r->b, o->close >= 0 ? "a product that rounds near p" : "a draw that rounds");
}

static assay_status compute(const assay_call *call, const assay_rows *rows, bool exact, spec_spoil spoil,
                            assay_expected *expected, assay_error *error) {
  const int64_t count = rowwise_count(rows, call->arg[SPEC_P].shape[0]), width = call->arg[SPEC_P].shape[1];
  assay_status status = ASSAY_OK;
  for (int64_t k = 0; k < count && status == ASSAY_OK; ++k) {
    const draft_request r = request_of(call, rowwise_index(rows, k), spoil);
    status = check_request(&r, error);
    if (status != ASSAY_OK) break;
    const outcome o = verify(&r, -1);
    for (int64_t i = 0; i < width; ++i)
      expected[0].value[k * width + i] = token_at(&r, &o, i);
    expected[1].value[k] = (double)o.accepted;
    expected[2].value[k] = o.status;
    for (int64_t i = 0; expected[0].sigma != NULL && i < width; ++i)
      expected[0].sigma[k * width + i] = 0;
    for (int32_t output = 1; output < 3; ++output)
      if (expected[output].sigma != NULL) expected[output].sigma[k] = 0;
    if (exact) status = admit(&r, &o, error);
  }
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
  assay_expected values[3] = {{expected[0].value, NULL}, {expected[1].value, NULL}, {expected[2].value, NULL}};
  return compute(call, rows, false, (spec_spoil)index, values, error);
}

/* Counts the row drawn from: of p, and, as if it came after a rejection, of q. The greedy rule reads rows of p. */
static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *p = &call->arg[SPEC_P];
  const double B = (double)p->shape[0], V = (double)p->shape[2];
  const double rows = call->arg[SPEC_Q].data != NULL && call->param[0] == SPEC_SAMPLED ? 2 : 1;
  return (assay_cost){2 * rows * B * V, 4 * rows * B * V};
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"B", 1, 1 << 20, 4, 1, "requests"},
    {"n", 1, 64, 4, 1, "drafts of a request, at most"},
    {"V", 1, 1 << 20, 256, 1, "ids"},
};

static const assay_arg args[SPEC_ARGS] = {
    {"draft", ASSAY_IN, ASSAY_VALUES, false, "i32", "B,n", "ids that the draft model proposes", false},
    {"n_draft", ASSAY_IN, ASSAY_VALUES, true, "i32", "B", "drafts of each request, 0 to n; absent: n", false},
    {"q", ASSAY_IN, ASSAY_VALUES, true, "f32", "B,n,V", "the draft model's probabilities; absent: 1 at the draft",
     true},
    {"p", ASSAY_IN, ASSAY_VALUES, false, "f32", "B,n+1,V", "the target's probabilities", true},
    {"coins", ASSAY_IN, ASSAY_VALUES, true, "f32", "B,n+1", "numbers in [0, 1); absent: Philox", false},
    {"seed", ASSAY_IN, ASSAY_VALUES, false, "i64", "B", "Philox key", false},
    {"step", ASSAY_IN, ASSAY_VALUES, false, "i32", "B", "Philox counter, word 0; word 1 is the coin's number", false},
    {"request", ASSAY_IN, ASSAY_VALUES, false, "i64", "B", "Philox counter, words 2 and 3", false},
    {"tokens", ASSAY_OUT, ASSAY_RESULT, false, "i32", "B,n+1", "accepted drafts, the drawn token, then -1", false},
    {"accepted", ASSAY_OUT, ASSAY_RESULT, false, "i32", "B", "accepted drafts", false},
    {"status", ASSAY_OUT, ASSAY_RESULT, false, "i32", "B", "0: ok; 1: no probability, or no mass; 4: a draft is no id",
     false},
};

static const assay_param params[] = {
    {"draw", ASSAY_ENUM, 0, 1, SPEC_SAMPLED, "sampled,greedy", "by coins, or the largest p"},
};

static const assay_op op = {
    .name = "spec_verify",
    .title = "drafts accepted or rejected by rejection sampling",
    .source = "docs/definitions.md, section 11",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = SPEC_ARGS,
    .params = params,
    .param_count = (int32_t)(sizeof params / sizeof params[0]),
    .laws = "run_to_run,dead_bytes,permutation",
    .spoils = "accept_at_equal,residual_without_clip,draw_from_p_after_rejection,emits_past_n_draft,nan_gives_V,"
              "coin_reused,tail_not_minus_one",
    .kappa_element = 2.5,
    .form = ASSAY_PLAIN,
    .row_dim = "B",
    .axes = "draw",
    .confirmed_by = "the distribution of the first token over all coins, which is p (ref_spec_test)",
    .extreme_args = "",
    .check = plain_check_call,
    .reference = reference,
    .cost = cost,
    .fill = spec_fill,
    .accepts = accepts,
    .spoil = spoil,
};

const assay_op *assay_op_spec_verify(void) {
  return &op;
}
