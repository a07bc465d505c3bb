/* router.c: which experts a row of scores chooses, and draws of logits whose choice no rounding can tip.
 *
 * Calibrated draws: two chosen experts, or a chosen one and another, have the same bits or lie apart. The distance is
 * 64 times what f32 may be off. Groups on either side of the last one kept lie apart too. A row that does not hold to
 * this is drawn again. Exact draws: logits of two levels, whose scores are powers of two or 0. The sum of the chosen
 * scores is a power of two.
 *
 * Other magnitudes: a softmax over the chosen logits ranks logits themselves, whatever their size. Its rows have
 * factors then, and with `mixed` also ties and neighbours far above the others. */
#include "ref/lib/router.h"

#include <math.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/plain.h"

/* ---- choosing ---------------------------------------------------------------------------------------- */

/* Returns the score of a group: the sum of its two largest b with bias, else its largest. */
double router_group_score(const router *r, const double *b, int64_t group) {
  const int64_t size = r->E / r->groups;
  double first = -(double)INFINITY, second = -(double)INFINITY;
  for (int64_t e = group * size; e < (group + 1) * size; ++e) {
    if (b[e] > first) {
      second = first;
      first = b[e];
    } else if (b[e] > second) {
      second = b[e];
    }
  }
  return r->biased && size > 1 ? first + second : first;
}

static void keep_groups(const router *r, const double *b, bool *kept) {
  for (int64_t g = 0; g < r->groups; ++g) {
    const double own = router_group_score(r, b, g);
    int64_t before = 0;
    for (int64_t h = 0; h < r->groups; ++h) {
      const double other = router_group_score(r, b, h);
      before += other > own || (other == own && h < g);
    }
    kept[g] = before < r->topk_groups;
  }
}

void router_choose(const router *r, const double *b, bool *kept, int64_t *ids) {
  bool taken[ROUTER_MOST_EXPERTS] = {false};
  keep_groups(r, b, kept);
  for (int64_t j = 0; j < r->k; ++j) {
    int64_t best = -1;
    for (int64_t e = 0; e < r->E; ++e)
      if (!taken[e] && kept[e / (r->E / r->groups)] && (best < 0 || b[e] > b[best])) best = e;
    ids[j] = best;
    if (best >= 0) taken[best] = true;
  }
}

/* ---- functions without libm -------------------------------------------------------------------------- */

/* e^x for |x| <= 100: (e^(x / 1024))^1024, the inner one by its series. */
static double own_exp(double x) {
  const double y = x / 1024;
  double term = 1, sum = 1;
  for (int i = 1; i < 12; ++i) {
    term *= y / i;
    sum += term;
  }
  for (int i = 0; i < 10; ++i)
    sum *= sum;
  return sum;
}

/* ln y for y >= 1: 2 atanh((m - 1) / (m + 1)) + e ln 2 with y = m 2^e. */
static double own_log(double y) {
  double e = 0, sum = 0;
  while (y > 1.5) {
    y *= 0.5;
    e += 1;
  }
  const double z = (y - 1) / (y + 1);
  double power = z;
  for (int i = 1; i < 60; i += 2) {
    sum += power / i;
    power *= z * z;
  }
  return 2 * sum + e * 0.69314718055994530942;
}

static void own_scores(const router *r, const double *x, double *s) {
  double largest = x[0], total = 0;
  for (int64_t e = 1; e < r->E; ++e)
    if (x[e] > largest) largest = x[e];
  for (int64_t e = 0; e < r->E; ++e) {
    if (r->score == ROUTER_SOFTMAX) s[e] = x[e] - largest < -100 ? 0 : own_exp(x[e] - largest);
    if (r->score == ROUTER_SIGMOID) s[e] = x[e] < -100 ? 0 : x[e] > 100 ? 1 : 1 / (1 + own_exp(-x[e]));
    if (r->score == ROUTER_SQRT_SOFTPLUS) s[e] = x[e] < -100 ? 0 : sqrt(x[e] > 40 ? x[e] : own_log(1 + own_exp(x[e])));
    total += s[e];
  }
  for (int64_t e = 0; e < r->E && r->score == ROUTER_SOFTMAX; ++e)
    s[e] /= total;
}

/* ---- gaps -------------------------------------------------------------------------------------------- */

/* The calibrated row. */
typedef struct drawn {
  const router *r;
  const double *bias; /* may be NULL */
  double x[ROUTER_MOST_EXPERTS], s[ROUTER_MOST_EXPERTS], b[ROUTER_MOST_EXPERTS];
} drawn;

static void rank(drawn *d) {
  const router *r = d->r;
  own_scores(r, d->x, d->s);
  for (int64_t e = 0; e < r->E; ++e)
    d->b[e] = (r->on_logits ? d->x[e] : d->s[e]) + (d->bias != NULL ? d->bias[e] : 0);
}

/* Returns 64 times what b of the expert may be off in f32. */
static double reach(const drawn *d, int64_t e) {
  const double score = d->r->score == ROUTER_SOFTMAX ? 0x1p-20 : 0x1p-22;
  return 64 * (score * (d->r->on_logits ? 0 : d->s[e]) + 0x1p-23 * fabs(d->b[e]));
}

/* Tells whether f32 arithmetic cannot exchange two experts: they are far apart, or the same bits. */
static bool apart(const drawn *d, int64_t e, int64_t f) {
  const bool same = d->x[e] == d->x[f] && (d->bias == NULL || d->bias[e] == d->bias[f]);
  return same || fabs(d->b[e] - d->b[f]) > reach(d, e) + reach(d, f);
}

/* Tells whether the chosen experts are apart from each other and from all kept ones that were not chosen. */
static bool experts_apart(const drawn *d, const bool *kept, const int64_t *ids) {
  const router *r = d->r;
  const int64_t size = r->E / r->groups;
  bool chosen[ROUTER_MOST_EXPERTS] = {false};
  for (int64_t j = 0; j < r->k; ++j) {
    chosen[ids[j]] = true;
    if (j > 0 && !apart(d, ids[j - 1], ids[j])) return false;
  }
  for (int64_t e = 0; e < r->E; ++e)
    if (!chosen[e] && kept[e / size] && !apart(d, ids[r->k - 1], e)) return false;
  return true;
}

/* Tells whether the groups kept are apart from those that are not. */
static bool groups_apart(const drawn *d, const bool *kept) {
  const router *r = d->r;
  double least = (double)INFINITY, most = -(double)INFINITY, off = 0;
  for (int64_t e = 0; e < r->E; ++e)
    off = reach(d, e) > off ? reach(d, e) : off;
  for (int64_t g = 0; g < r->groups; ++g) {
    const double own = router_group_score(r, d->b, g);
    if (kept[g] && own < least) least = own;
    if (!kept[g] && own > most) most = own;
  }
  return r->topk_groups == r->groups || least - most > 4 * off;
}

/* ---- draws ------------------------------------------------------------------------------------------- */

static bool settled(drawn *d) {
  bool kept[ROUTER_MOST_EXPERTS];
  int64_t ids[ROUTER_MOST_CHOSEN];
  rank(d);
  router_choose(d->r, d->b, kept, ids);
  return experts_apart(d, kept, ids) && groups_apart(d, kept);
}

/* Draws one logit of the distribution asked for, from a normal number. A sigmoid tells logits beyond 8 badly apart. */
static double one_logit(const assay_fill *fill, const router *r, double normal, assay_rng *rng) {
  const double most = r->score == ROUTER_SIGMOID ? 8 : 40;
  double value = 2 * normal;
  if (fill->values == ASSAY_HEAVY_TAILED && assay_rng_range(rng, 0, 15) == 0) value *= most / 5;
  if (fill->values == ASSAY_NEEDLES) value = 0.125 * value + (assay_rng_range(rng, 0, 63) == 0 ? 0.75 * most : 0);
  return value > most ? most : value < -most ? -most : value;
}

/* Makes a row of k experts a step apart, from 2 downwards, and of all others at -12. */
static void spaced_row(assay_rng *rng, drawn *d) {
  for (int64_t e = 0; e < d->r->E; ++e)
    d->x[e] = -12;
  for (int64_t j = 0; j < d->r->k;) {
    const int64_t e = assay_rng_range(rng, 0, d->r->E - 1);
    if (d->x[e] > -12) continue;
    d->x[e] = 2 - 0.25 * (double)j++;
  }
}

/* Tells whether a case's rows may have any size. */
static bool takes_sizes(const assay_fill *fill, const router *r) {
  return fill->magnitude != ASSAY_USUAL && r->on_logits && r->score == ROUTER_SOFTMAX && !r->biased && r->groups == 1;
}

/* Draws the factor of a row. 32 neighbouring rows have the same one. Small factors lead to subnormal logits, or to some
 * of about 2^-8. Large factors lead to logits of about 64 or about 2^100. */
static double factor_of(const assay_fill *fill, int64_t row, assay_dtype dtype) {
  assay_rng rng = {fill->seed, 0x666163746F7200u + (uint64_t)(row / 32), 0};
  const int64_t word = assay_rng_range(&rng, 0, 7);
  const bool small = fill->magnitude == ASSAY_SMALL || (fill->magnitude == ASSAY_MIXED && word % 2 == 0);
  if (fill->magnitude == ASSAY_MIXED && word < 4) return 1;
  const int64_t exponent = assay_rng_range(&rng, 0, 5);
  if (exponent == 0) return ldexp(1, dtype == ASSAY_F16 ? (small ? -20 : 10) : (small ? -130 : 100));
  return ldexp(1, (int)(small ? -6 - exponent : exponent));
}

/* Changes some rows before they have a factor. In one way all logits are equal, and in another many are. In a third way
 * three eighths of the experts, which are neighbours, lie far above the others. */
static void change_row(const assay_fill *fill, int64_t row, drawn *d) {
  assay_rng rng = {fill->seed, 0x6368616E676500u + 64 * (uint64_t)row, 0};
  const int64_t way = assay_rng_range(&rng, 0, 31), E = d->r->E, from = assay_rng_range(&rng, 0, 5) * (E / 8);
  for (int64_t e = 0; e < E; ++e) {
    if (way == 0) d->x[e] = 1;
    if (way == 1 && e >= from && e < from + 3 * (E / 8)) d->x[e] += 20;
    if (way > 1 && way < 8) d->x[e] = 0.5 * floor(2 * d->x[e]);
  }
}

/* Draws one row of the calibrated tier. If no attempt settles, the row is spaced. */
static void fill_row(const assay_fill *fill, int64_t row, assay_dtype dtype, drawn *d) {
  assay_rng rng = {fill->seed, 0x726F757400000000u + 2 * (uint64_t)row, 0};
  const bool sizes = takes_sizes(fill, d->r);
  const double factor = sizes ? factor_of(fill, row, dtype) : 1;
  for (int32_t attempt = 0; attempt < 32; ++attempt) {
    assay_rng_normals(fill->seed, 0x6E6F726D00000000u + 32 * (uint64_t)row + (uint64_t)attempt, d->x, d->r->E);
    for (int64_t e = 0; e < d->r->E; ++e)
      d->x[e] = one_logit(fill, d->r, d->x[e], &rng);
    if (sizes && fill->magnitude == ASSAY_MIXED) change_row(fill, row, d);
    for (int64_t e = 0; e < d->r->E; ++e)
      d->x[e] = assay_round_f64(factor * d->x[e], dtype);
    if (settled(d)) return;
  }
  spaced_row(&rng, d);
}

/* Puts numbers without a rank into some rows: NaN, infinities of either sign, minus infinity alone. Zeros of both signs
 * are a tie, and so are scores of 0. */
static void make_special(const assay_fill *fill, const router *r, int64_t row, assay_dtype dtype, double *x) {
  assay_rng rng = {fill->seed, 0x737065636961u, 16 * (uint64_t)row};
  const int64_t way = assay_rng_range(&rng, 0, 5), at = assay_rng_range(&rng, 0, r->E - 1);
  if (way == 0) x[at] = (double)NAN;
  if (way == 1) x[at] = (double)INFINITY;
  if (way == 2) x[at] = -(double)INFINITY;
  for (int64_t e = 0; e < r->E && way == 3; ++e)
    x[e] = -(double)INFINITY;
  for (int64_t e = 0; e < r->E && way == 4; ++e)
    x[e] = e % 2 == 0 ? -0.0 : 0.0;
  /* One expert has all. Scores of the others are 0, whatever the order of their logits. sqrt_softplus halves the
   * exponent: there the others are 0, or have roots that f32 ranks although it has no e^x for them. */
  const bool halved = r->score == ROUTER_SQRT_SOFTPLUS, roots = halved && at % 4 == 0;
  for (int64_t e = 0; e < r->E && way == 5 && at % 2 == 0; ++e) {
    const double step = (double)(e * 7 % 16), low = roots ? -110 - step : -200 - step;
    x[e] = e == at ? 1 : halved && !roots ? 2 * low : low;
  }
  if (way != 5 || at % 2 == 0) return;
  /* The largest number and the lowest, which are finite; or nothing but -Inf beside three experts. */
  const double most = dtype == ASSAY_F32 ? 0x1.FFFFFEp127 : dtype == ASSAY_F16 ? 65504 : 0x1.FEp127;
  for (int64_t e = 0; e < r->E; ++e) {
    if (at % 4 == 3 && e != at && e != at / 2 && e != at / 3) x[e] = -(double)INFINITY;
    if (at % 4 == 1 && e % 8 == at % 8) x[e] = e == at ? most : -most;
  }
}

/* Tells whether a row of values special has numbers without a rank. With another magnitude it is one row of eight, so
 * that kernels which take several rows at once meet them beside usual rows. */
static bool is_special(const assay_fill *fill, const router *r, int64_t row) {
  assay_rng rng = {fill->seed, 0x72617265u, (uint64_t)row};
  return !takes_sizes(fill, r) || assay_rng_range(&rng, 0, 7) == 0;
}

/* Tells whether the chosen scores of a row add up to a power of two, or to 0. Scores of the exact tier are exact here.
 * For a softmax over the chosen logits, the number of those at the largest counts. */
static bool sum_is_power(drawn *d) {
  const router *r = d->r;
  bool kept[ROUTER_MOST_EXPERTS];
  int64_t ids[ROUTER_MOST_CHOSEN], same = 0;
  double sum = 0, largest = -(double)INFINITY;
  rank(d);
  router_choose(r, d->b, kept, ids);
  for (int64_t j = 0; j < r->k; ++j) {
    sum += d->s[ids[j]];
    if (d->x[ids[j]] > largest) largest = d->x[ids[j]];
  }
  for (int64_t j = 0; j < r->k; ++j)
    same += d->x[ids[j]] == largest;
  if (!r->renormalise) return true;
  if (r->on_logits && r->score == ROUTER_SOFTMAX) return (same & (same - 1)) == 0;
  int exponent;
  return sum == 0 || frexp(sum, &exponent) == 0.5;
}

/* Draws one row of the exact tier. `many` experts, a power of two for softmax, are at the upper level. */
static void fill_levels(const assay_fill *fill, int64_t row, drawn *d) {
  const router *r = d->r;
  assay_rng rng = {fill->seed, 0x6C6576656Cu + ((uint64_t)row << 24), 0};
  for (int32_t attempt = 0; attempt < 64; ++attempt) {
    int64_t many = 1;
    while (2 * many <= r->E && assay_rng_range(&rng, 0, 3) != 0)
      many *= 2;
    if (r->score != ROUTER_SOFTMAX && assay_rng_range(&rng, 0, 1) == 0) many = assay_rng_range(&rng, 1, r->E);
    if (attempt == 63) many = 1;
    const double high = r->score == ROUTER_SOFTMAX   ? 0
                        : r->score == ROUTER_SIGMOID ? (assay_rng_range(&rng, 0, 1) == 0 ? 0 : 500)
                                                     : (double)(INT64_C(1) << (4 + 2 * assay_rng_range(&rng, 1, 2)));
    for (int64_t e = 0; e < r->E; ++e)
      d->x[e] = -500;
    for (int64_t left = many; left > 0;) {
      const int64_t e = assay_rng_range(&rng, 0, r->E - 1);
      if (d->x[e] == high) continue;
      d->x[e] = high;
      --left;
    }
    if (sum_is_power(d)) return;
  }
}

void router_fill(const assay_fill *fill, const router *r, const double *bias, double *x, int64_t rows,
                 assay_dtype dtype) {
  drawn d = {.r = r, .bias = bias};
  for (int64_t t = 0; t < rows; ++t) {
    if (fill->values == ASSAY_LATTICE)
      fill_levels(fill, t, &d);
    else
      fill_row(fill, t, dtype, &d);
    if (fill->values == ASSAY_SPECIAL && is_special(fill, r, t)) make_special(fill, r, t, dtype, d.x);
    for (int64_t e = 0; e < r->E; ++e)
      x[t * r->E + e] = d.x[e];
  }
}
