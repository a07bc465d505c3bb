/* sampler_bound.c: the tokens that rounding may reach. Everything is an interval: a token's place in an order, the mass
 * before it, the mass of a kept set. A set of tokens is three-valued: surely in, surely out, or open. */
#include "ref/lib/sampler_bound.h"

#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "ref/lib/error_model.h"
#include "ref/lib/lattice.h"

static const double kappa_sum = 7;     /* deviations of a sum */
static const double half = 0x1p-24;    /* one f32 rounding, relative */
static const double scaled_far = -800; /* exp of this is 0 in f32 and f64 */

enum { OUT, OPEN, IN };

/* ---- one penalised logit ----------------------------------------------------------------------------- */

static double rounding(double value) {
  return assay_round_f64(value, ASSAY_F32) == value ? 0 : 0.5 * assay_ulp(value, ASSAY_F32);
}

static bool power_of_two(double value) {
  return lattice_bits(value) == 1;
}

static bool count_is_power_of_two(int64_t count) {
  return count > 0 && (count & (count - 1)) == 0;
}

static double ulps(const assay_contract *contract) {
  return contract->exp_ulp > 0.5 ? contract->exp_ulp : 0.5;
}

/* Returns the largest error of sampler_penalised in f32, whatever the order of the two subtractions. */
static double penalty_error(const sampler_row *row, const assay_contract *contract, double logit, bool seen,
                            int32_t count) {
  double value = logit, error = 0;
  if (!isfinite(logit)) return 0;
  if (seen) {
    value = logit > 0 ? logit / row->repetition : logit * row->repetition;
    error = rounding(value);
    if (logit > 0 && !power_of_two(row->repetition) && ulps(contract) > 0.5)
      error = ulps(contract) * assay_ulp(value, ASSAY_F32);
  }
  if (count == 0) return error;
  const double product = row->frequency * count, rest = value - product;
  const double step[] = {product, product + row->presence, value - (product + row->presence), rest,
                         value - row->presence};
  bool exact = true;
  for (size_t i = 0; i < sizeof step / sizeof step[0]; ++i)
    exact = exact && rounding(step[i]) == 0;
  if (exact) return error;
  return error + rounding(product) + assay_ulp(fabs(value) + fabs(product) + fabs(row->presence), ASSAY_F32);
}

/* ---- all tokens of a row ----------------------------------------------------------------------------- */

/* A token's place in an order, as an interval; and its contribution to the mass before another token. */
typedef struct entry {
  double key, weight;
} entry;

typedef struct bound {
  const sampler_row *row;
  const sampler_scratch *scratch;
  const assay_contract *contract;
  int64_t V;
  double scale_error;           /* relative error of a scaled logit: 0 for a power of two */
  double *value, *delta, *mass; /* [V] delta: error of value; mass: 0 for banned tokens */
  double *common, *own2;        /* [V] error of the mass: the part that adds up, and the square of its own part */
  double *half_width;           /* [V] half width of the place in the present order */
  double *least, *most;         /* [V] weight before it */
  double *sure, *reach;         /* [V] weight that surely counts, and that may count */
  int32_t *order;               /* [V] value descending, tokens that are alike() together, then id */
  unsigned char *state;         /* [V] OUT, OPEN, IN */
  unsigned char *mass_is_1;     /* [V] in every implementation */
  entry *low, *high;            /* [V] */
} bound;

static void bound_free(bound *b) {
  double *const all[] = {b->value,      b->delta, b->mass, b->common, b->own2,
                         b->half_width, b->least, b->most, b->sure,   b->reach};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i)
    free(all[i]);
  free(b->order);
  free(b->state);
  free(b->mass_is_1);
  free(b->low);
  free(b->high);
}

static bool bound_make(bound *b) {
  double **const all[] = {&b->value,      &b->delta, &b->mass, &b->common, &b->own2,
                          &b->half_width, &b->least, &b->most, &b->sure,   &b->reach};
  bool good = true;
  for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) {
    *all[i] = calloc((size_t)b->V, sizeof(double));
    good = good && *all[i] != NULL;
  }
  b->order = malloc((size_t)b->V * sizeof *b->order);
  b->state = malloc((size_t)b->V);
  b->mass_is_1 = calloc((size_t)b->V, 1);
  b->low = malloc((size_t)b->V * sizeof *b->low);
  b->high = malloc((size_t)b->V * sizeof *b->high);
  return good && b->order != NULL && b->state != NULL && b->mass_is_1 != NULL && b->low != NULL && b->high != NULL;
}

/* The numbers that a token's penalties are made of: equal ones make equal results. */
typedef struct ranked {
  double value, logit, product; /* product: frequency · count */
  int32_t exact, seen, present, id;
} ranked;

static ranked ranked_of(const bound *b, int32_t i) {
  const sampler_row *row = b->row;
  const int32_t count = b->scratch->count[i];
  return (ranked){.value = b->value[i],
                  .logit = row->logit[i],
                  .product = row->frequency * count,
                  .exact = b->delta[i] == 0,
                  .seen = b->scratch->seen[i],
                  .present = count > 0 && row->presence != 0,
                  .id = i};
}

/* Compares by value, descending. Tokens whose numbers are equal in every implementation then stand together: exact
 * values, or the same logit and penalties. Returns 0 if only the id differs. */
static int compare_kinds(const ranked *x, const ranked *y) {
  if (x->value != y->value) return x->value > y->value ? -1 : 1;
  if (x->exact != y->exact) return x->exact > y->exact ? -1 : 1;
  if (x->exact != 0) return 0;
  if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
  if (x->product != y->product) return x->product > y->product ? -1 : 1;
  if (x->seen != y->seen) return x->seen - y->seen;
  return x->present - y->present;
}

static int compare_ranked(const void *a, const void *b) {
  const ranked *x = a, *y = b;
  const int kinds = compare_kinds(x, y);
  return kinds != 0 ? kinds : x->id - y->id;
}

static bool alike(const bound *b, int32_t i, int32_t j) {
  const ranked x = ranked_of(b, i), y = ranked_of(b, j);
  return compare_kinds(&x, &y) == 0;
}

static int compare_entries(const void *a, const void *b) {
  const entry *x = a, *y = b;
  return x->key == y->key ? 0 : x->key > y->key ? -1 : 1;
}

static bool rank(bound *b) {
  ranked *list = malloc((size_t)b->V * sizeof *list);
  if (list == NULL) return false;
  for (int32_t i = 0; i < b->V; ++i)
    list[i] = ranked_of(b, i);
  qsort(list, (size_t)b->V, sizeof *list, compare_ranked);
  for (int64_t i = 0; i < b->V; ++i)
    b->order[i] = list[i].id;
  free(list);
  return true;
}

/* Returns the sum of the weights whose key is above `key` (or, with `equal`, at it). Entries are sorted; weights are
 * running sums. */
static double weight_above(const entry *list, int64_t count, double key, bool equal) {
  int64_t first = 0, end = count;
  while (first < end) {
    const int64_t middle = first + (end - first) / 2;
    if (list[middle].key > key || (equal && list[middle].key == key))
      first = middle + 1;
    else
      end = middle;
  }
  return first > 0 ? list[first - 1].weight : 0;
}

/* Computes least[i] and most[i], the bounds of the weight before token i. least has the tokens that surely come before
 * it and surely count; most has those that may. */
static void weigh(bound *b, const double *key) {
  for (int32_t i = 0; i < b->V; ++i) {
    b->low[i] = (entry){key[i] - b->half_width[i], b->sure[i]};
    b->high[i] = (entry){key[i] + b->half_width[i], b->reach[i]};
  }
  qsort(b->low, (size_t)b->V, sizeof *b->low, compare_entries);
  qsort(b->high, (size_t)b->V, sizeof *b->high, compare_entries);
  for (int64_t i = 1; i < b->V; ++i) {
    b->low[i].weight += b->low[i - 1].weight;
    b->high[i].weight += b->high[i - 1].weight;
  }
  for (int64_t first = 0, end; first < b->V; first = end) {
    double sure = 0, reach = 0;
    for (end = first; end < b->V && alike(b, b->order[first], b->order[end]); ++end)
      reach += b->reach[b->order[end]];
    for (int64_t at = first; at < end; ++at) { /* alike(): lower ids come before, higher ones do not */
      const int32_t i = b->order[at];
      b->least[i] = weight_above(b->low, b->V, key[i] + b->half_width[i], false) + sure;
      b->most[i] = weight_above(b->high, b->V, key[i] - b->half_width[i], true) - reach;
      sure += b->sure[i];
      reach -= b->reach[i];
    }
  }
}

/* ---- the greedy choice ------------------------------------------------------------------------------- */

/* Marks the possible tokens: i wins if no other token is surely larger, or surely as large with a lower id. */
static void greedy(bound *b, unsigned char *possible) {
  double floor = -(double)INFINITY;
  for (int32_t i = 0; i < b->V; ++i)
    if (b->value[i] - b->delta[i] > floor) floor = b->value[i] - b->delta[i];
  for (int64_t first = 0, end; first < b->V; first = end) {
    const int32_t i = b->order[first]; /* the lowest id of its kind */
    for (end = first; end < b->V && alike(b, i, b->order[end]); ++end)
      possible[b->order[end]] = 0;
    const double reach = b->value[i] + b->delta[i];
    if (!(reach >= floor) || b->value[i] == -(double)INFINITY) continue;
    possible[i] = 1;
    for (int32_t j = 0; reach == floor && j < i; ++j)
      if (b->value[j] - b->delta[j] == floor && !alike(b, i, j)) possible[i] = 0;
  }
}

/* ---- top-k ------------------------------------------------------------------------------------------- */

static double scaled(const bound *b, int32_t i) {
  return b->value[i] / b->row->temperature;
}

static void top_k(bound *b, double *key) {
  const int64_t k = b->row->top_k;
  for (int32_t i = 0; i < b->V; ++i) {
    const bool banned = b->value[i] == -(double)INFINITY;
    b->state[i] = banned ? OUT : IN;
    key[i] = banned ? -1e300 : scaled(b, i); /* after all others; among each other by id */
    b->half_width[i] = banned ? 0 : b->delta[i] / b->row->temperature + b->scale_error * fabs(key[i]);
    b->sure[i] = b->reach[i] = 1;
  }
  if (k == 0 || k >= b->V) return;
  weigh(b, key);
  for (int32_t i = 0; i < b->V; ++i)
    if (b->state[i] == IN) b->state[i] = b->most[i] < (double)k ? IN : b->least[i] < (double)k ? OPEN : OUT;
}

/* ---- masses and their errors ------------------------------------------------------------------------- */

/* Returns how much a mass of exp(x) may grow if its logarithm grows `by` so much. Beyond 1/2 the mass itself may be 0
 * in f64, and as large as any other afterwards. */
static double growth(double x, double by) {
  return fmin(by < 0.5 ? exp(x) * expm1(by) : exp(fmin(x + by, 0)), 1);
}

/* Weighs masses. ln of the mass is x = z - z_max. The errors that all tokens share add up: the scale's own error
 * times x, and that of ln 2 in exp2. The largest token's own error counts at that token. Each token's own errors are
 * the roundings of z, of the difference and of its product, exp, and the division by the sum. */
static void weigh_masses(bound *b, int32_t best, double *key) {
  const double ulp = ulps(b->contract) * 0x1p-23, top = scaled(b, best);
  const double shared = b->scale_error > 0 ? ulp + 0x1p-25 : 0x1p-25;
  const double rounded = b->scale_error > 0 ? half : 0;
  for (int32_t i = 0; i < b->V; ++i) {
    key[i] = -1e300;
    b->half_width[i] = b->mass[i] = b->common[i] = b->own2[i] = 0;
    if (b->state[i] == OUT) continue;
    const double x = scaled(b, i) - top, delta = b->delta[i] / b->row->temperature;
    const bool largest = alike(b, i, best);
    b->mass_is_1[i] = largest;
    const double adds = fabs(x) * shared + delta + (largest ? rounded * fabs(top) : 0);
    const double z = largest ? 0 : rounded * fabs(scaled(b, i)), step = half * fabs(x);
    const double own2 = z * z + 2 * step * step + (largest ? 1 : 2) * ulp * ulp;
    key[i] = x;
    b->half_width[i] =
        adds + 2 * sqrt(own2); /* at most 4 parts: their sum is at most twice the root of their squares */
    b->mass[i] = exp(x);
    b->common[i] = growth(x, adds) + 0x1p-126;
    const double own = growth(x, sqrt(own2));
    b->own2[i] = own * own;
  }
}

/* The error of (mass of a part) - share · (mass of the whole). Masses that are 0 in f32 and f64 alike are no terms. */
typedef struct part {
  double mass, common, own2;
  int64_t terms, ones;
} part;

static void part_add(part *p, const bound *b, int32_t i) {
  if (b->mass[i] == 0) return;
  p->mass += b->mass[i];
  p->common += b->common[i];
  p->own2 += b->own2[i];
  ++p->terms;
  p->ones += b->mass_is_1[i];
}

/* Returns the error of a sum of positive terms on `lanes` running sums. Equal terms round alike, so errors add up along
 * a running sum. Each is half an ulp, of half the sum on average. Then the running sums are combined, two roundings. */
static double sum_error(const bound *b, const part *p) {
  const double lanes = b->contract->lanes > 0 ? b->contract->lanes : 1;
  return half * ((double)p->terms / lanes / 2 + kappa_sum * 0.41 * 1.42) * p->mass;
}

/* Returns the error of a share. For 2^n masses of 1 every sum, share and quotient is exact. */
static double share_error(const bound *b, const part *inside, const part *whole, double share) {
  if (whole->ones == whole->terms && count_is_power_of_two(whole->ones)) return 0;
  const double a = 1 - share, common = a * inside->common + share * (whole->common - inside->common);
  const double own2 = a * a * inside->own2 + share * share * (whole->own2 - inside->own2);
  return common + kappa_sum * sqrt(fmax(own2, 0) / 3) + sum_error(b, inside) + share * sum_error(b, whole) +
         4 * half * share * whole->mass + 0x1p-100;
}

/* ---- top-p ------------------------------------------------------------------------------------------- */

/* Applies top-p. A token is kept if the mass before it is below p of the whole. The whole lies between two masses:
 * top-k's open places are filled with the lightest open tokens in one, with the heaviest in the other. */
static void top_p(bound *b, const double *key) {
  const double p = b->row->top_p;
  part whole = {0}, inside = {0};
  double sure = 0, lightest = (double)INFINITY, heaviest = 0, places = (double)b->row->top_k;
  bool open = false;
  for (int32_t i = 0; i < b->V; ++i) {
    b->sure[i] = b->state[i] == IN ? b->mass[i] : 0;
    b->reach[i] = b->state[i] != OUT ? b->mass[i] : 0;
    if (b->state[i] == IN) sure += b->mass[i];
    if (b->state[i] == IN) places -= 1;
    if (b->state[i] == OPEN) lightest = fmin(lightest, b->mass[i]);
    if (b->state[i] == OPEN) heaviest = fmax(heaviest, b->mass[i]);
    open = open || b->state[i] == OPEN;
    if (b->state[i] != OUT) part_add(&whole, b, i);
  }
  const double least_whole = open ? sure + places * lightest : sure,
               most_whole = open ? sure + places * heaviest : sure;
  weigh(b, key);
  for (int64_t at = 0; at < b->V; ++at) {
    const int32_t i = b->order[at];
    if (b->state[i] == OUT) continue;
    const double error = share_error(b, &inside, &whole, p);
    part_add(&inside, b, i);
    const bool never = b->least[i] - p * most_whole >= error && b->least[i] > 0;
    const bool always = b->most[i] - p * least_whole < -error || b->most[i] <= 0;
    if (never)
      b->state[i] = OUT;
    else if (!always)
      b->state[i] = OPEN;
  }
}

/* ---- min-p ------------------------------------------------------------------------------------------- */

static void min_p(bound *b, int32_t best, const double *key) {
  if (!(b->row->min_p > 0)) return;
  const double edge = log(b->row->min_p), of_largest = b->half_width[best];
  for (int32_t i = 0; i < b->V; ++i) {
    if (b->state[i] == OUT || alike(b, i, best)) continue;
    const double width = b->half_width[i] + of_largest + 4 * half + 2 * half * fabs(edge);
    if (key[i] < edge - width)
      b->state[i] = OUT;
    else if (key[i] <= edge + width)
      b->state[i] = OPEN;
  }
}

/* ---- the draw ---------------------------------------------------------------------------------------- */

/* Marks the tokens that may be drawn. Token t is drawn if mass(ids < t) <= u · whole < mass(ids <= t). Each open token
 * is taken as in or as out, whichever favours t. */
static void draw(const bound *b, unsigned char *possible) {
  const double u = sampler_uniform(b->row->seed, b->row->step, b->row->request);
  part whole = {0}, inside = {0};
  double sure = 0, open_behind = 0;
  for (int32_t i = 0; i < b->V; ++i) {
    if (b->state[i] == OUT) continue;
    part_add(&whole, b, i);
    if (b->state[i] == IN) sure += b->mass[i];
    if (b->state[i] == OPEN) open_behind += b->mass[i];
  }
  double sure_before = 0, open_before = 0;
  for (int32_t t = 0; t < b->V; ++t) {
    possible[t] = 0;
    if (b->state[t] == OUT) continue;
    const bool open = b->state[t] == OPEN;
    const double mass = b->mass[t], own = open ? mass : 0; /* t counts as kept here */
    if (open) open_behind -= mass;
    const double error_before = share_error(b, &inside, &whole, u);
    part_add(&inside, b, t);
    const double error_after = share_error(b, &inside, &whole, u);
    const double least = sure_before - u * (sure + own + open_behind);
    const double most = sure_before + open_before + mass - u * (sure + own + open_before);
    possible[t] = least <= error_before && most > -error_after;
    if (open)
      open_before += mass;
    else
      sure_before += mass;
  }
}

/* Tells whether rounding decides between the token and the largest, by a factor without bound. A temperature far below
 * the ulp of a logit makes it so. Each of such tokens may have all of the mass, and then comes first. */
static bool is_rival(const bound *b, int32_t i, int32_t best, const double *key) {
  return !alike(b, i, best) && b->half_width[i] + b->half_width[best] > 0.5 &&
         key[i] + b->half_width[i] + b->half_width[best] >= 0;
}

/* Opens the rivals for the draw. One that ties with the largest has its mass, and moves the border of every token after
 * it; one that stays below has none. */
static void open_rivals(bound *b, int32_t best, const double *key) {
  for (int32_t i = 0; i < b->V; ++i) {
    if (b->state[i] == OUT || !is_rival(b, i, best, key)) continue;
    b->state[i] = OPEN;
    b->mass[i] = 1;
    b->common[i] = b->own2[i] = 0; /* both ends are followed */
  }
}

/* Unmarks tokens that have no mass in f32 and f64, since the largest is always kept and has some. Marks the largest and
 * its rivals, if it has any, and tells so. */
static bool mark_rivals(const bound *b, int32_t best, const double *key, unsigned char *marked) {
  bool any = false;
  for (int32_t i = 0; i < b->V; ++i)
    any = any || is_rival(b, i, best, key);
  for (int32_t i = 0; i < b->V; ++i)
    if (key[i] + b->half_width[i] + b->half_width[best] <= scaled_far)
      marked[i] = 0;
    else if (any && (i == best || is_rival(b, i, best, key)))
      marked[i] = 1;
  return any;
}

/* Writes the kept tokens, or with `drawn` those that the row's number may fall on. */
static assay_status mark(const sampler_row *row, const sampler_scratch *scratch, const assay_contract *contract,
                         bool drawn, bool sure, unsigned char *marked, assay_error *error) {
  const assay_contract *c = contract != NULL ? contract : &default_contract;
  bound b = {.row = row, .scratch = scratch, .contract = c, .V = row->V};
  double *key = calloc((size_t)row->V, sizeof *key);
  bool good = bound_make(&b) && key != NULL, open = false;
  for (int32_t i = 0; i < b.V && good; ++i) {
    b.value[i] = sampler_penalised(row, row->logit[i], scratch->seen[i] != 0, scratch->count[i]);
    b.delta[i] = penalty_error(row, c, row->logit[i], scratch->seen[i] != 0, scratch->count[i]);
  }
  good = good && rank(&b);
  if (good && row->temperature == 0) greedy(&b, marked);
  if (good && row->temperature > 0) {
    const int32_t best = b.order[0];
    b.scale_error = power_of_two(row->temperature) ? 0 : ulps(c) * 0x1p-23;
    top_k(&b, key);
    weigh_masses(&b, best, key);
    top_p(&b, key);
    min_p(&b, best, key);
    if (drawn) {
      open_rivals(&b, best, key);
      draw(&b, marked);
    }
    for (int32_t i = 0; i < b.V && !drawn; ++i) {
      marked[i] = b.state[i] != OUT && b.mass[i] > 0;
      open = open || (b.state[i] == OPEN && b.mass[i] > 0);
    }
    open = mark_rivals(&b, best, key, marked) || open;
  }
  bound_free(&b);
  free(key);
  if (!good) return assay_fail(error, ASSAY_ERR_MEMORY, "sampler: bounds of a row do not fit in memory");
  return open && sure ? ASSAY_ERR_INPUT : ASSAY_OK;
}

assay_status sampler_possible(const sampler_row *row, const sampler_scratch *scratch, const assay_contract *contract,
                              unsigned char *possible, assay_error *error) {
  return mark(row, scratch, contract, true, false, possible, error);
}

assay_status sampler_kept(const sampler_row *row, const sampler_scratch *scratch, const assay_contract *contract,
                          bool sure, unsigned char *kept, assay_error *error) {
  return mark(row, scratch, contract, false, sure, kept, error);
}

/* ---- the exact tier ---------------------------------------------------------------------------------- */

const char *sampler_inexact(const sampler_row *row, const sampler_scratch *scratch, double *found) {
  const double *value = scratch->value;
  for (int64_t i = 0; i < row->V; ++i) {
    *found = row->logit[i];
    if (penalty_error(row, &default_contract, row->logit[i], scratch->seen[i] != 0, scratch->count[i]) != 0)
      return "logit whose penalties round";
  }
  *found = row->temperature;
  if (row->temperature == 0) return NULL;
  if (!power_of_two(row->temperature)) return "temperature, not a power of two";
  const double top = value[sampler_largest(value, row->V)] / row->temperature;
  int64_t largest = 0, drawn = 0;
  for (int64_t i = 0; i < row->V; ++i) {
    const double x = value[i] / row->temperature - top;
    *found = value[i] / row->temperature;
    if (assay_is_finite(*found) && rounding(*found) != 0) return "scaled logit outside f32";
    *found = x;
    if (x != 0 && !(x <= scaled_far)) return "scaled logit below the largest, less than 800 away";
    largest += x == 0;
    drawn += scratch->mass[i] > 0;
  }
  if (row->top_k > 0 && largest > row->top_k) largest = row->top_k;
  *found = (double)largest;
  if (!count_is_power_of_two(largest)) return "number of largest logits after top-k, not a power of two";
  *found = (double)drawn;
  return count_is_power_of_two(drawn) ? NULL : "number of kept tokens, not a power of two";
}
