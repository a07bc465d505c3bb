/* moe_router: chooses k of E experts for every token. For the logits x of a row:
 *
 *   s = softmax(x), 1 / (1 + e^-x), or sqrt(ln(1 + e^x))            a score below 2^-150 is 0: f32 has no such number
 *   b = s + bias, or x + bias with select_on = logits
 *
 * Experts come in `groups` groups of neighbours. A group's score is the sum of its two largest b, or its largest b
 * without bias. The topk_groups best groups stay, ties to the lower group. ids are the k largest b of the groups that
 * stay, in descending order, ties to the lower id. The weights do not have the bias:
 *
 *   w_j = s[ids_j];    renormalise: w <- w / max(sum w, floor);    w <- w · route_scale
 *
 * With select_on = logits, softmax and renormalise the weights are the softmax over the k chosen logits alone. A row
 * with valid 0, with NaN, with +Inf (sigmoid takes it) or, for softmax, with nothing but -Inf has ids -1 and weights 0.
 * Source: docs/definitions.md, section 10. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "core/row_rule.h"
#include "ref/lib/error_model.h"
#include "ref/lib/lattice.h"
#include "ref/lib/plain.h"
#include "ref/lib/router.h"
#include "ref/lib/rowwise.h"

enum { ARG_X, ARG_BIAS, ARG_VALID, ARG_IDS, ARG_WEIGHTS, ARG_COUNT };
enum {
  PARAM_SCORE,
  PARAM_SELECT_ON,
  PARAM_GROUPS,
  PARAM_TOPK_GROUPS,
  PARAM_RENORMALISE,
  PARAM_FLOOR,
  PARAM_ROUTE_SCALE,
  PARAM_COUNT
};

const assay_op *assay_op_moe_router(void);

typedef enum router_spoil {
  SPOIL_NONE = -1,
  SPOIL_WEIGHT_IS_BIASED,   /* w = b */
  SPOIL_DROPPED_GROUP_ZERO, /* b of a dropped group is 0, which beats a negative b */
  SPOIL_TIES_BY_HIGHER_ID,
  SPOIL_SOFTPLUS_NAIVE,   /* ln(1 + e^x) in f32: overflows, or loses what is small beside 1 */
  SPOIL_NAN_ROW_ID_E,     /* a row without a choice has ids E */
  SPOIL_GROUP_BY_MAX,     /* a group's score is its largest b, with bias too */
  SPOIL_SCALE_BEFORE_SUM, /* route_scale is lost in the quotient */
  SPOIL_RENORMALISE_LOST  /* weights are not divided by their sum */
} router_spoil;

static router read_router(const assay_call *call) {
  const double *p = call->param;
  return (router){.E = call->arg[ARG_X].shape[1],
                  .k = call->arg[ARG_IDS].shape[1],
                  .groups = (int64_t)p[PARAM_GROUPS],
                  .topk_groups = (int64_t)p[PARAM_TOPK_GROUPS],
                  .score = (int32_t)p[PARAM_SCORE],
                  .on_logits = p[PARAM_SELECT_ON] != 0,
                  .renormalise = p[PARAM_RENORMALISE] != 0,
                  .biased = call->arg[ARG_BIAS].data != NULL,
                  .floor = p[PARAM_FLOOR],
                  .route_scale = p[PARAM_ROUTE_SCALE]};
}

/* ---- the definition ---------------------------------------------------------------------------------- */

/* One row. */
typedef struct route {
  router r;
  double x[ROUTER_MOST_EXPERTS], s[ROUTER_MOST_EXPERTS], b[ROUTER_MOST_EXPERTS], bias[ROUTER_MOST_EXPERTS];
  double largest, total; /* softmax: the largest x, and sum e^(x - largest) */
  int64_t ids[ROUTER_MOST_CHOSEN];
  double weight[ROUTER_MOST_CHOSEN], sum; /* sum: of the chosen scores, before renormalise */
} route;

static bool has_choice(const route *t) {
  bool any = t->r.score != ROUTER_SOFTMAX;
  for (int64_t e = 0; e < t->r.E; ++e) {
    if (assay_is_nan(t->x[e])) return false;
    if (t->x[e] == (double)INFINITY && t->r.score != ROUTER_SIGMOID) return false;
    any = any || t->x[e] > -(double)INFINITY;
  }
  return any;
}

static void score(route *t) {
  t->largest = -(double)INFINITY;
  t->total = 0;
  for (int64_t e = 0; e < t->r.E; ++e)
    if (t->x[e] > t->largest) t->largest = t->x[e];
  for (int64_t e = 0; e < t->r.E; ++e) {
    const double x = t->x[e];
    if (t->r.score == ROUTER_SOFTMAX) t->s[e] = exp(x - t->largest);
    if (t->r.score == ROUTER_SIGMOID) t->s[e] = 1 / (1 + exp(-x));
    if (t->r.score == ROUTER_SQRT_SOFTPLUS) t->s[e] = sqrt((x > 0 ? x : 0) + log1p(exp(-fabs(x))));
    t->total += t->s[e];
  }
  for (int64_t e = 0; e < t->r.E; ++e) {
    if (t->r.score == ROUTER_SOFTMAX) t->s[e] /= t->total;
    if (t->s[e] < 0x1p-150) t->s[e] = 0;
    t->b[e] = (t->r.on_logits ? t->x[e] : t->s[e]) + t->bias[e];
  }
}

static bool over_chosen(const router *r) {
  return r->on_logits && r->score == ROUTER_SOFTMAX && r->renormalise;
}

static void weigh(route *t) {
  const router *r = &t->r;
  double largest = -(double)INFINITY;
  t->sum = 0;
  for (int64_t j = 0; j < r->k; ++j)
    if (t->x[t->ids[j]] > largest) largest = t->x[t->ids[j]];
  for (int64_t j = 0; j < r->k; ++j) {
    t->weight[j] = over_chosen(r) ? exp(t->x[t->ids[j]] - largest) : t->s[t->ids[j]];
    t->sum += t->weight[j];
  }
  for (int64_t j = 0; j < r->k; ++j) {
    if (r->renormalise) t->weight[j] /= t->sum > r->floor ? t->sum : r->floor;
    t->weight[j] *= r->route_scale;
  }
}

/* ---- the error model --------------------------------------------------------------------------------- */

/* Returns the relative variance of one score in f32: of the exponential and of its argument, of the sums, of the
 * quotient or root. */
static double score_variance(const route *t, int64_t e, const assay_contract *c) {
  const double x = fmax(fmin(t->x[e], 200), -200), function = function_variance(c->exp_ulp) + f32_variance;
  if (t->r.score == ROUTER_SOFTMAX) {
    const double argument = fmax(t->x[e] - t->largest, -200), lanes = c->lanes > 0 ? c->lanes : 1;
    return 2 * function + f32_variance * argument * argument + accumulation_variance((double)t->r.E, lanes);
  }
  if (t->r.score == ROUTER_SIGMOID) {
    const double share = 1 - t->s[e]; /* e^-x divided by 1 + e^-x */
    return share * share * (function + f32_variance * x * x) + f32_variance + function;
  }
  return 3 * function + f32_variance * (1 + x * x);
}

/* Writes sigma of the weights. A renormalised weight moves with its own score and with the sum. A subnormal weight is
 * rounded twice before it is scaled: as a score and as a quotient. */
static void weight_sigma(const route *t, const assay_contract *c, double *sigma) {
  const router *r = &t->r;
  const double function = function_variance(c->exp_ulp) + f32_variance;
  double relative[ROUTER_MOST_CHOSEN], total = 0, largest = -(double)INFINITY;
  for (int64_t j = 0; j < r->k; ++j)
    if (t->x[t->ids[j]] > largest) largest = t->x[t->ids[j]];
  for (int64_t j = 0; j < r->k; ++j) {
    const double argument = t->x[t->ids[j]] - largest, share = r->route_scale != 0 ? t->weight[j] / r->route_scale : 0;
    const bool nothing = t->x[t->ids[j]] == -(double)INFINITY; /* its score is 0 without an error */
    relative[j] = nothing          ? 0
                  : over_chosen(r) ? function + f32_variance * argument * argument
                                   : score_variance(t, t->ids[j], c);
    total += share * share * relative[j];
  }
  for (int64_t j = 0; j < r->k; ++j) {
    const double share = r->route_scale != 0 ? t->weight[j] / r->route_scale : 0;
    double own = relative[j] + f32_variance;
    if (r->renormalise) own += total + accumulation_variance((double)r->k, 1) + function;
    const double step = share > 0 && share < 0x1p-126 ? 2 * storing_variance(0, ASSAY_F32) : 0;
    sigma[j] = sqrt(own * t->weight[j] * t->weight[j] + step * r->route_scale * r->route_scale +
                    storing_variance(t->weight[j], ASSAY_F32));
  }
}

/* ---- the exact tier ---------------------------------------------------------------------------------- */

/* Tells whether a number is a power of two, or 0. */
static bool is_power(double value) {
  return value == 0 || lattice_bits(value) == 1;
}

/* Admits a row of two levels. Its scores are powers of two or 0, b fits 24 bits, and the chosen scores add up to a
 * power of two. A quotient is then exact. */
static assay_status admit(const assay_call *call, const route *t, int64_t row, assay_error *error) {
  for (int64_t e = 0; e < t->r.E; ++e) {
    if (!is_power(t->s[e]))
      return rowwise_refuse(call, row, e, "a score, which must be a power of two or 0", t->s[e], 0, error);
    if (lattice_bits(t->b[e]) > 24) return rowwise_refuse(call, row, e, "bits of b", lattice_bits(t->b[e]), 24, error);
  }
  if (t->r.renormalise && !is_power(t->sum))
    return rowwise_refuse(call, row, 0, "the sum of the chosen scores, a power of two or 0", t->sum, 0, error);
  if (lattice_bits(t->r.route_scale) > 20)
    return rowwise_refuse(call, row, 0, "bits of route_scale", lattice_bits(t->r.route_scale), 20, error);
  return ASSAY_OK;
}

/* ---- adapter ----------------------------------------------------------------------------------------- */

static assay_status check(const assay_call *call, assay_error *error) {
  assay_status status = plain_check_call(call, error);
  if (status != ASSAY_OK) return status;
  const router r = read_router(call);
  if (r.k > r.E)
    return assay_fail(error, ASSAY_ERR_INPUT, "k: found %lld, allowed up to E = %lld", (long long)r.k, (long long)r.E);
  if (r.E % r.groups != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "groups: found %lld, allowed a divisor of E = %lld", (long long)r.groups,
                      (long long)r.E);
  if (r.topk_groups > r.groups || r.topk_groups * (r.E / r.groups) < r.k)
    return assay_fail(error, ASSAY_ERR_INPUT, "topk_groups: found %lld, allowed up to groups, with k experts in them",
                      (long long)r.topk_groups);
  if (r.groups > 1 && r.biased && r.E / r.groups < 2)
    return assay_fail(error, ASSAY_ERR_INPUT, "groups: found one expert a group, allowed two with bias");
  return ASSAY_OK;
}

static assay_status check_bias(const assay_call *call, assay_error *error) {
  const assay_tensor *bias = &call->arg[ARG_BIAS];
  for (int64_t e = 0; bias->data != NULL && e < bias->shape[0]; ++e) {
    const double found = assay_load_f64(bias->data, bias->dtype, e);
    if (!(fabs(found) < (double)INFINITY))
      return assay_fail(error, ASSAY_ERR_INPUT, "bias: found %g for expert %lld, allowed finite numbers", found,
                        (long long)e);
  }
  return ASSAY_OK;
}

/* Chooses with planted errors that change the choice. */
static void choose(route *t, router_spoil spoil) {
  bool kept[ROUTER_MOST_EXPERTS];
  router r = t->r;
  double b[ROUTER_MOST_EXPERTS] = {0};
  if (spoil == SPOIL_GROUP_BY_MAX) r.biased = false;
  for (int64_t e = 0; e < r.E; ++e) /* from the last expert to the first, the lower id is the higher one */
    b[spoil == SPOIL_TIES_BY_HIGHER_ID ? r.E - 1 - e : e] = t->b[e];
  router_choose(&r, b, kept, t->ids);
  if (spoil == SPOIL_DROPPED_GROUP_ZERO) {
    for (int64_t e = 0; e < r.E; ++e)
      if (!kept[e / (r.E / r.groups)]) b[e] = 0;
    r.groups = r.topk_groups = 1;
    router_choose(&r, b, kept, t->ids);
  }
  for (int64_t j = 0; j < r.k && spoil == SPOIL_TIES_BY_HIGHER_ID; ++j)
    t->ids[j] = r.E - 1 - t->ids[j];
}

/* Changes scores by a planted error. */
static void spoil_scores(route *t, router_spoil spoil) {
  for (int64_t e = 0; e < t->r.E && spoil == SPOIL_SOFTPLUS_NAIVE && t->r.score == ROUTER_SQRT_SOFTPLUS; ++e) {
    const double power = assay_round_f64(1 + assay_round_f64(exp(t->x[e]), ASSAY_F32), ASSAY_F32);
    t->s[e] = sqrt(log(power));
    t->b[e] = (t->r.on_logits ? t->x[e] : t->s[e]) + t->bias[e];
  }
}

/* Changes weights by a planted error. */
static void spoil_weights(route *t, router_spoil spoil) {
  const router *r = &t->r;
  for (int64_t j = 0; j < r->k; ++j) {
    const int64_t e = t->ids[j];
    if (spoil == SPOIL_WEIGHT_IS_BIASED) t->s[e] = t->b[e];
  }
  if (spoil == SPOIL_RENORMALISE_LOST) t->r.renormalise = false;
  weigh(t);
  for (int64_t j = 0; j < r->k && spoil == SPOIL_SCALE_BEFORE_SUM; ++j)
    if (r->renormalise && r->route_scale != 0) t->weight[j] /= r->route_scale;
}

static assay_status compute(const assay_call *call, const assay_contract *contract, const assay_rows *rows, bool exact,
                            router_spoil spoil, assay_expected *expected, assay_error *error) {
  const assay_tensor *x = &call->arg[ARG_X], *valid = &call->arg[ARG_VALID];
  assay_status status = check_bias(call, error);
  if (status != ASSAY_OK) return status;
  route *t = malloc(sizeof *t);
  if (t == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "moe_router reference: out of memory");
  t->r = read_router(call);
  const router r = t->r;
  for (int64_t e = 0; e < r.E; ++e)
    t->bias[e] = r.biased ? assay_load_f64(call->arg[ARG_BIAS].data, ASSAY_F32, e) : 0;
  const int64_t count = rowwise_count(rows, x->shape[0]);
  for (int64_t i = 0; i < count && status == ASSAY_OK; ++i) {
    const int64_t row = rowwise_index(rows, i);
    double sigma[ROUTER_MOST_CHOSEN] = {0};
    plain_load_row(x, row, t->x);
    const bool chooses = (valid->data == NULL || plain_integer(valid, row) != 0) && has_choice(t);
    if (chooses) {
      t->r = r;
      score(t);
      spoil_scores(t, spoil);
      choose(t, spoil);
      weigh(t);
      if (exact) status = admit(call, t, row, error);
      if (expected[1].sigma != NULL) weight_sigma(t, contract, sigma);
      if (spoil != SPOIL_NONE) spoil_weights(t, spoil);
    }
    for (int64_t j = 0; j < r.k; ++j) {
      const int64_t at = i * r.k + j, none = spoil == SPOIL_NAN_ROW_ID_E ? r.E : -1;
      expected[0].value[at] = chooses ? (double)t->ids[j] : (double)none;
      expected[1].value[at] = chooses ? t->weight[j] : 0;
      if (expected[0].sigma != NULL) expected[0].sigma[at] = 0;
      if (expected[1].sigma != NULL) expected[1].sigma[at] = exact ? 0 : sigma[j];
    }
  }
  free(t);
  return status;
}

static assay_status reference(const assay_call *call, const assay_contract *contract, const assay_rows *rows,
                              bool exact, assay_expected *expected, assay_seen *seen, assay_error *error) {
  (void)seen;
  return compute(call, contract, rows, exact, SPOIL_NONE, expected, error);
}

static assay_status spoil(const assay_call *call, const assay_contract *contract, const assay_rows *rows, int32_t index,
                          assay_expected *expected, assay_error *error) {
  assay_expected values[2] = {{expected[0].value, NULL}, {expected[1].value, NULL}};
  return compute(call, contract, rows, false, (router_spoil)index, values, error);
}

/* ---- choices that rounding moves ------------------------------------------------------------------------ */

/* Returns what b of an expert may be off under the contract. Logits without a bias are exact. */
static double reach_of(const route *t, const assay_contract *c, int64_t e) {
  if (!assay_is_finite(t->b[e])) return 0;
  const double sum = t->r.biased ? 0x1p-23 * fabs(t->b[e]) : 0;
  return (t->r.on_logits ? 0 : 4 * t->s[e] * sqrt(score_variance(t, e, c))) + sum;
}

/* Tells whether two experts have the same b in any arithmetic: the lower id then comes first. */
static bool same_b(const route *t, int64_t e, int64_t f) {
  const bool zeros = !t->r.on_logits && t->s[e] == 0 && t->s[f] == 0;
  if (!assay_is_finite(t->b[e]) && t->b[e] == t->b[f]) return true;
  return (t->x[e] == t->x[f] || zeros) && t->bias[e] == t->bias[f];
}

/* How far a thing lies before another one of its kind. */
typedef enum order { ORDER_AFTER, ORDER_EITHER, ORDER_BEFORE } order;

static order order_of(double b, double reach, double other, double other_reach) {
  if (b - reach > other + other_reach) return ORDER_BEFORE;
  return b + reach < other - other_reach ? ORDER_AFTER : ORDER_EITHER;
}

/* Orders group h and group g by their scores. Equal ones are a tie, which the lower group wins. */
static order order_of_groups(const route *t, const double *reach, int64_t h, int64_t g) {
  const int64_t size = t->r.E / t->r.groups;
  const double score = router_group_score(&t->r, t->b, h), other = router_group_score(&t->r, t->b, g);
  double off[2] = {0};
  for (int64_t e = 0; e < size; ++e) {
    off[0] = fmax(off[0], reach[h * size + e]);
    off[1] = fmax(off[1], reach[g * size + e]);
  }
  if (score == other) return h < g ? ORDER_BEFORE : ORDER_AFTER;
  return order_of(score, 2 * off[0], other, 2 * off[1]);
}

/* Tells which groups stay (ORDER_BEFORE), which do not, and which may. */
static void stay_of_groups(const route *t, const double *reach, order *stay) {
  for (int64_t g = 0; g < t->r.groups; ++g) {
    int64_t surely = 0, maybe = 0;
    for (int64_t h = 0; h < t->r.groups; ++h) {
      const order one = h != g ? order_of_groups(t, reach, h, g) : ORDER_AFTER;
      surely += one == ORDER_BEFORE;
      maybe += one != ORDER_AFTER;
    }
    stay[g] = surely >= t->r.topk_groups ? ORDER_AFTER : maybe < t->r.topk_groups ? ORDER_BEFORE : ORDER_EITHER;
  }
}

/* Tells whether rounding may put expert e into place j. */
static bool may_stand(const route *t, const double *reach, const order *stay, int64_t e, int64_t j) {
  const int64_t size = t->r.E / t->r.groups;
  int64_t surely = 0, maybe = 0;
  if (stay[e / size] == ORDER_AFTER) return false;
  for (int64_t f = 0; f < t->r.E; ++f) {
    if (f == e || stay[f / size] == ORDER_AFTER) continue;
    const order one =
        same_b(t, e, f) ? (f < e ? ORDER_BEFORE : ORDER_AFTER) : order_of(t->b[f], reach[f], t->b[e], reach[e]);
    surely += one == ORDER_BEFORE && stay[f / size] == ORDER_BEFORE;
    maybe += one != ORDER_AFTER;
  }
  return surely <= j && j <= maybe;
}

/* Lists the experts that rounding may put into place j, and returns how many there are. Without groups that rounding
 * moves, b of each is near that of the expert chosen for the place. */
static int64_t list_of_place(const route *t, const double *reach, const order *stay, int64_t j, int64_t *list) {
  bool groups_move = false;
  double most = 0;
  int64_t count = 0;
  for (int64_t g = 0; g < t->r.groups; ++g)
    groups_move = groups_move || stay[g] == ORDER_EITHER;
  for (int64_t e = 0; e < t->r.E; ++e)
    most = fmax(most, reach[e]);
  for (int64_t e = 0; e < t->r.E; ++e) {
    const double off = fabs(t->b[e] - t->b[t->ids[j]]);
    if (!groups_move && off > 2 * most) continue;
    if (may_stand(t, reach, stay, e, j)) list[count++] = e;
  }
  return count;
}

/* Tells whether a weight belongs to place j where an expert stands there that may, and one that may at the end. */
static bool may_weigh(route *t, const assay_contract *c, const double *reach, const order *stay, int64_t j,
                      double got) {
  const int64_t last = t->r.k - 1, chosen_here = t->ids[j], chosen_last = t->ids[last];
  int64_t here[ROUTER_MOST_EXPERTS], end[ROUTER_MOST_EXPERTS];
  const int64_t count = list_of_place(t, reach, stay, j, here), ends = list_of_place(t, reach, stay, last, end);
  if (count <= 1 && ends <= 1) return false;
  for (int64_t i = 0; i < count * ends; ++i) {
    double sigma[ROUTER_MOST_CHOSEN];
    t->ids[last] = end[i % ends];
    t->ids[j] = here[i / ends];
    weigh(t);
    weight_sigma(t, c, sigma);
    t->ids[last] = chosen_last;
    t->ids[j] = chosen_here;
    if (fabs(got - t->weight[j]) <= 4 * sigma[j]) return true;
  }
  return false;
}

/* Loads a row and makes its scores. Returns false if the row chooses no expert. */
static bool load_route(const assay_call *call, int64_t row, route *t) {
  const assay_tensor *valid = &call->arg[ARG_VALID];
  t->r = read_router(call);
  for (int64_t e = 0; e < t->r.E; ++e)
    t->bias[e] = t->r.biased ? assay_load_f64(call->arg[ARG_BIAS].data, ASSAY_F32, e) : 0;
  plain_load_row(&call->arg[ARG_X], row, t->x);
  if ((valid->data != NULL && plain_integer(valid, row) == 0) || !has_choice(t)) return false;
  score(t);
  return true;
}

/* Accepts experts whose b rounding may exchange, and the weights that go with them. The rule of a row (below) sees to
 * it that they belong to each other. */
static bool accepts(const assay_call *call, const assay_contract *contract, int32_t output, int64_t element,
                    double got) {
  route *t = malloc(sizeof *t);
  double *reach = calloc(ROUTER_MOST_EXPERTS, sizeof *reach);
  order *stay = calloc(ROUTER_MOST_EXPERTS, sizeof *stay);
  bool accepted = false;
  if (t != NULL && reach != NULL && stay != NULL) {
    const int64_t k = read_router(call).k, row = element / k, j = element % k;
    if (load_route(call, row, t)) {
      choose(t, SPOIL_NONE);
      for (int64_t e = 0; e < t->r.E; ++e)
        reach[e] = reach_of(t, contract, e);
      stay_of_groups(t, reach, stay);
      if (output == 0)
        accepted = got >= 0 && got < (double)t->r.E && may_stand(t, reach, stay, (int64_t)got, j);
      else
        accepted = may_weigh(t, contract, reach, stay, j, got);
    }
  }
  free(t);
  free(reach);
  free(stay);
  return accepted;
}

/* Checks that the ids of a row differ, and that each weight is that of the id beside it among the returned ids. */
static bool fits(const assay_call *call, const assay_contract *contract, int64_t row, const double *const *got,
                 char *why, size_t size) {
  route row_of, *const t = &row_of;
  double sigma[ROUTER_MOST_CHOSEN];
  bool good = true;
  if (load_route(call, row, t)) {
    for (int64_t j = 0; j < t->r.k && good; ++j) {
      t->ids[j] = (int64_t)got[0][j];
      for (int64_t i = 0; i < j && good; ++i)
        if (t->ids[i] == t->ids[j]) {
          (void)snprintf(why, size, "expert %lld stands in places %lld and %lld", (long long)t->ids[j], (long long)i,
                         (long long)j);
          good = false;
        }
    }
    if (good) {
      weigh(t);
      weight_sigma(t, contract, sigma);
    }
    for (int64_t j = 0; j < t->r.k && good; ++j) {
      const bool nan = assay_is_nan(t->weight[j]) && assay_is_nan(got[1][j]); /* scores of 0 by a floor of 0 */
      if (!nan && !(fabs(got[1][j] - t->weight[j]) <= 4 * sigma[j] + 0x1p-149)) {
        (void)snprintf(why, size, "place %lld has expert %lld, whose weight is %.9g, and weight %.9g", (long long)j,
                       (long long)t->ids[j], t->weight[j], got[1][j]);
        good = false;
      }
    }
  }
  return good;
}

const assay_row_rule assay_row_rule_moe_router = {fits};

static assay_cost cost(const assay_call *call, const assay_seen *seen) {
  (void)seen;
  const assay_tensor *x = &call->arg[ARG_X];
  const double T = (double)x->shape[0], E = (double)x->shape[1], k = (double)call->arg[ARG_IDS].shape[1];
  return (assay_cost){4 * T * E, T * (E * (double)assay_dtype_size(x->dtype) + 8 * k)};
}

/* ---- values for the generator ------------------------------------------------------------------------ */

/* Biases are multiples of 2^-6 within 16; in one call of three all of them are -1 or less. Far ones, within 64, are
 * drawn in one call of four of the calibrated tier. */
static void fill_bias(const assay_fill *fill, double *value, int64_t count) {
  assay_rng rng = {fill->seed, 0x62696173, 0};
  const bool negative = assay_rng_range(&rng, 0, 2) == 0;
  const bool far_ones = assay_rng_range(&rng, 0, 3) == 0 && fill->values != ASSAY_LATTICE;
  const int64_t most = far_ones ? 4096 : assay_rng_range(&rng, 0, 1) == 0 ? 1024 : 16;
  for (int64_t e = 0; e < count; ++e) {
    value[e] = 0x1p-6 * (double)assay_rng_range(&rng, -most, most);
    if (negative) value[e] = -1 - (value[e] < 0 ? -value[e] : value[e]);
  }
}

static assay_status fill(const assay_fill *from, int32_t arg, double *value, int64_t count, assay_error *error) {
  (void)error;
  double bias[ROUTER_MOST_EXPERTS];
  const router r = read_router(from->call);
  if (arg == ARG_BIAS) fill_bias(from, value, count);
  if (arg == ARG_VALID)
    for (int64_t t = 0; t < count; ++t) {
      assay_rng rng = {from->seed, 0x76616C6964, 4 * (uint64_t)t};
      value[t] = plain_flag(from, ARG_VALID, t, assay_rng_range(&rng, 0, 4) != 0);
    }
  if (arg != ARG_X) return ASSAY_OK;
  if (r.biased) fill_bias(from, bias, r.E);
  router_fill(from, &r, r.biased ? bias : NULL, value, count / r.E, from->call->arg[ARG_X].dtype);
  return ASSAY_OK;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const assay_dim dims[] = {
    {"T", 1, 1 << 20, 4, 1, "tokens"},
    {"E", 1, ROUTER_MOST_EXPERTS, 16, 1, "experts"},
    {"k", 1, ROUTER_MOST_CHOSEN, 2, 1, "experts of a token, at most E"},
};

static const assay_arg args[ARG_COUNT] = {
    {"x", ASSAY_IN, ASSAY_VALUES, false, "f32,f16,bf16", "T,E", "logits", true},
    {"bias", ASSAY_IN, ASSAY_VALUES, true, "f32", "E", "added where experts are chosen, not to weights", false},
    {"valid", ASSAY_IN, ASSAY_VALUES, true, "i32", "T", "0: the row chooses no expert", false},
    {"ids", ASSAY_OUT, ASSAY_RESULT, false, "i32", "T,k", "the chosen experts; -1: none", false},
    {"weights", ASSAY_OUT, ASSAY_RESULT, false, "f32", "T,k", "their weights", false},
};

static const assay_param params[PARAM_COUNT] = {
    {"score", ASSAY_ENUM, 0, 2, 0, "softmax,sigmoid,sqrt_softplus", "what makes scores of logits"},
    {"select_on", ASSAY_ENUM, 0, 1, 0, "scores,logits", "what the bias is added to"},
    {"groups", ASSAY_INTEGER, 1, 64, 1, NULL, "groups of neighbouring experts"},
    {"topk_groups", ASSAY_INTEGER, 1, 64, 1, NULL, "groups that stay"},
    {"renormalise", ASSAY_BOOL, 0, 1, 0, NULL, "weights are divided by their sum"},
    {"floor", ASSAY_REAL, 0, 1, 1e-20, NULL, "least sum that weights are divided by"},
    {"route_scale", ASSAY_REAL, 0, 64, 1, NULL, "factor of every weight"},
};

static const assay_op op = {
    .name = "moe_router",
    .title = "the experts of each token, and their weights",
    .source = "docs/definitions.md, section 10",
    .dims = dims,
    .dim_count = (int32_t)(sizeof dims / sizeof dims[0]),
    .args = args,
    .arg_count = ARG_COUNT,
    .params = params,
    .param_count = PARAM_COUNT,
    .laws = "run_to_run,dead_bytes,permutation",
    .spoils = "weight_is_biased,dropped_group_zero,ties_by_higher_id,softplus_naive,nan_row_id_E,"
              "group_by_max,scale_before_sum,renormalise_lost",
    .kappa_element = 4.0,
    .form = ASSAY_PLAIN,
    .row_dim = "T",
    .takes_special = true,
    .axes = "dtype,score",
    .confirmed_by = "closed forms of two experts, and a sort of all experts by qsort (ref_moe_test)",
    .extreme_args = "",
    .check = check,
    .reference = reference,
    .cost = cost,
    .fill = fill,
    .accepts = accepts,
    .spoil = spoil,
};

const assay_op *assay_op_moe_router(void) {
  return &op;
}
