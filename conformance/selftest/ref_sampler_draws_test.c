/* ref_sampler_draws_test.c: frequencies of the sampler's draws, by chi square; and what rounding may reach, against
 * samplers in f32 written in three ways and against planted errors. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "ref/lib/sampler_bound.h"
#include "ref/lib/sampler_spoil.h"

/* ---- frequencies ------------------------------------------------------------------------------------- */

/* False alarms: all tests of this file together reject a right sampler with probability 1e-6 at most, had the seeds not
 * been fixed. Each compares its p-value with its share. */
enum { TESTS = 24, DRAWS = 1 << 17, MOST = 64 };
static const double budget = 1e-6 / TESTS;

/* Q(a, x), the upper incomplete gamma function over gamma: a series below a + 1, a continued fraction above. */
static double upper_gamma(double a, double x) {
  const double front = exp(a * log(x) - x - lgamma(a));
  if (x < a + 1) {
    double term = 1 / a, sum = term;
    for (double n = a + 1; term > 1e-17 * sum; n += 1)
      sum += term *= x / n;
    return 1 - front * sum;
  }
  double b = x + 1 - a, c = 1e300, d = 1 / b, h = d;
  for (int i = 1; i < 10000; ++i) {
    const double an = -i * (i - a);
    b += 2;
    d = 1 / (an * d + b);
    c = b + an / c;
    h *= d * c;
    if (fabs(d * c - 1) < 1e-16) break;
  }
  return front * h;
}

/* Tests `count` draws over cells of probability p. Cells of p = 0 must be empty. */
static double p_value(const int *found, const double *p, int cells, double count) {
  double square = 0;
  int freedom = -1;
  for (int i = 0; i < cells; ++i) {
    if (p[i] == 0 && found[i] > 0) return 0;
    if (p[i] == 0) continue;
    cr_assert(p[i] * count > 50, "too few draws for cell %d", i);
    square += (found[i] - p[i] * count) * (found[i] - p[i] * count) / (p[i] * count);
    ++freedom;
  }
  return upper_gamma(freedom / 2.0, square / 2);
}

Test(sampler_draws, chi_square_knows_its_tables) {
  cr_assert(fabs(upper_gamma(0.5, 3.841458820694124 / 2) - 0.05) < 1e-12);
  cr_assert(fabs(upper_gamma(5, 18.307038053275146 / 2) - 0.05) < 1e-12);
  cr_assert(fabs(upper_gamma(50, 149.44925277903886 / 2) - 0.001) < 1e-12);
}

static const double logits[16] = {1.5, 0.25, -1, 1.5, 2, 0, -2, 0.75, 1, 1, -0.5, 0.5, 1.25, -1.5, 1.75, 0.125};
static const int32_t history[8] = {4, 4, 14, 0, 4, 9, -1, -1};

typedef enum shape { PLAIN, COOL, TOP_K, TOP_P, MIN_P, PENALISED, TWO, SHAPES } shape;

static sampler_row row_of(shape s) {
  sampler_row row = sampler_row_neutral;
  row.V = s == TWO ? 2 : 16;
  row.logit = logits;
  if (s == COOL) row.temperature = 0.75;
  if (s == TOP_K) row.top_k = 5;
  if (s == TOP_P) row.top_p = 0.8;
  if (s == MIN_P) row.min_p = 0.3;
  if (s == PENALISED) {
    row.output = history;
    row.output_count = 8;
    row.repetition = 1.25;
    row.frequency = 0.125;
    row.presence = 0.25;
  }
  return row;
}

/* Probabilities by counting what comes before each token. */
static void probabilities(const sampler_row *row, double *p) {
  double l[16], mass[16], sum = 0;
  for (int i = 0; i < row->V; ++i) {
    int times = 0;
    for (int j = 0; j < row->output_count; ++j)
      times += row->output[j] == i;
    l[i] = row->logit[i];
    if (times > 0)
      l[i] = (l[i] > 0 ? l[i] / row->repetition : l[i] * row->repetition) - row->frequency * times - row->presence;
    mass[i] = exp(l[i] / row->temperature);
    sum += mass[i];
  }
  for (int i = 0; i < row->V; ++i) {
    double before = 0, most = 0;
    int places = 0;
    for (int j = 0; j < row->V; ++j) {
      const bool first = l[j] > l[i] || (l[j] == l[i] && j < i);
      before += first ? mass[j] : 0;
      places += first;
      most = fmax(most, mass[j]);
    }
    p[i] = mass[i];
    if ((row->top_k > 0 && places >= row->top_k) || before >= row->top_p * sum || mass[i] < row->min_p * most) p[i] = 0;
  }
  sum = 0;
  for (int i = 0; i < row->V; ++i)
    sum += p[i];
  for (int i = 0; i < row->V; ++i)
    p[i] /= sum;
}

/* n moves the step, the request or the seed. bias: one draw in so many is the last token's neighbour; 0: none. */
static double frequencies(shape s, int axis, int bias, int32_t planted) {
  sampler_row row = row_of(s);
  sampler_scratch scratch;
  assay_error error = {0};
  int found[16] = {0};
  double p[16];
  cr_assert(sampler_scratch_make(row.V, &scratch, &error) == ASSAY_OK);
  for (int n = 0; n < DRAWS; ++n) {
    int32_t token;
    row.step = axis == 0 ? (uint32_t)n : 7;
    row.request = axis == 1 ? (uint64_t)n : 1000;
    row.seed = axis == 2 ? (uint64_t)n : 42;
    cr_assert(sampler_token(&row, &scratch, &token) == SAMPLER_OK && token >= 0 && token < row.V);
    if (planted >= 0) token = sampler_spoilt(&row, &scratch, (sampler_spoil)planted, n);
    if (bias > 0 && n % bias == 0) token = 4 % (int32_t)row.V;
    ++found[token];
  }
  sampler_scratch_free(&scratch);
  probabilities(&row, p);
  return p_value(found, p, (int)row.V, DRAWS);
}

/* SHAPES * 3 of the tests. */
Test(sampler_draws, frequencies) {
  for (shape s = PLAIN; s < SHAPES; ++s)
    for (int axis = 0; axis < 3; ++axis) {
      const double p = frequencies(s, axis, 0, -1);
      cr_assert(p >= budget, "shape %d, axis %d: p = %g", (int)s, axis, p);
    }
}

/* Pairs of neighbouring steps, requests, seeds: 3 of the tests. */
Test(sampler_draws, neighbours_are_independent) {
  enum { V = 8 };
  for (int axis = 0; axis < 3; ++axis) {
    sampler_row row = row_of(PLAIN);
    sampler_scratch scratch;
    assay_error error = {0};
    int found[V * V] = {0}, last = 0;
    double p[V], pair[V * V];
    row.V = V;
    row.temperature = 2;
    cr_assert(sampler_scratch_make(V, &scratch, &error) == ASSAY_OK);
    for (int n = 0; n < 2 * DRAWS; ++n) {
      int32_t token;
      row.step = axis == 0 ? (uint32_t)n : 7;
      row.request = axis == 1 ? (uint64_t)n << 32 : 1000;
      row.seed = axis == 2 ? (uint64_t)n << 32 : 42;
      (void)sampler_token(&row, &scratch, &token);
      if (n % 2 == 1) ++found[last * V + token];
      last = token;
    }
    sampler_scratch_free(&scratch);
    probabilities(&row, p);
    for (int i = 0; i < V * V; ++i)
      pair[i] = p[i / V] * p[i % V];
    const double value = p_value(found, pair, V * V, DRAWS);
    cr_assert(value >= budget, "axis %d: p = %g", axis, value);
  }
}

/* The same test rejects samplers that are a little wrong. */
Test(sampler_draws, planted_bias_is_found) {
  cr_assert(frequencies(PLAIN, 0, 50, -1) < budget, "one draw in 50 moved");
  cr_assert(frequencies(TWO, 1, 20, -1) < budget, "one draw in 20 moved, two tokens");
  cr_assert(frequencies(PLAIN, 0, 1000000, -1) >= budget, "a bias nobody could see");
  cr_assert(frequencies(TOP_K, 0, 0, SPOIL_TOP_K_ONE_MORE) < budget);
  cr_assert(frequencies(TOP_P, 0, 0, SPOIL_TOP_P_DROPS_CROSSING) < budget);
  cr_assert(frequencies(PENALISED, 0, 0, SPOIL_PRESENCE_PER_OCCURRENCE) < budget);
  cr_assert(frequencies(PENALISED, 0, 0, SPOIL_NEGATIVES_DIVIDED) >= budget, "no negative logit has a history here");
  cr_assert(frequencies(PLAIN, 0, 0, SPOIL_STEP_LOST) < budget);
  cr_assert(frequencies(MIN_P, 0, 0, SPOIL_MIN_P_OF_ONE) < budget);
}

/* ---- samplers in f32 --------------------------------------------------------------------------------- */

typedef enum style {
  STYLE_PROBABILITIES, /* l / T, softmax, sort by probability, running sums of probabilities */
  STYLE_EXP2,          /* (l - max) · (log2 e / T), exp2, no division, sums from the back */
  STYLE_LANES,         /* penalties fused, sums on eight lanes */
  STYLES
} style;

static assay_rng rng;

/* exp as a bad but lawful implementation has it: up to 2 ulp off, by a hash of its argument. */
static float rough(float x, float y) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const int32_t off = (int32_t)((bits * 2654435761u) >> 16 & 3) - (int32_t)((bits * 2654435761u) >> 20 & 1) - 1;
  if (y > 0 && y < 1 && y > 1e-30f)
    for (int32_t i = 0; i < abs(off); ++i)
      y = nextafterf(y, off > 0 ? 2.0f : 0.0f);
  return y;
}

typedef struct candidate {
  float rank, mass;
  int32_t id;
} candidate;

static int descending(const void *a, const void *b) {
  const candidate *x = a, *y = b;
  return x->rank != y->rank ? (x->rank < y->rank ? 1 : -1) : x->id - y->id;
}

static float penalise(const sampler_row *row, style s, float l, bool seen, int32_t times) {
  const float r = (float)row->repetition, f = (float)row->frequency, p = (float)row->presence, n = (float)times;
  if (seen) l = l > 0 ? (s == STYLE_EXP2 ? l * (1 / r) : l / r) : l * r;
  if (times == 0) return l;
  if (s == STYLE_PROBABILITIES) return l - (f * n + p);
  if (s == STYLE_EXP2) return (l - f * n) - p;
  return fmaf(-f, n, l) - p;
}

static float sum_of(const float *x, int64_t count, style s) {
  float lane[8] = {0};
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = s == STYLE_EXP2 ? count - 1 - i : i;
    lane[s == STYLE_LANES ? at % 8 : 0] += x[at];
  }
  float sum = 0;
  for (int i = 0; i < 8; ++i)
    sum += lane[i];
  return sum;
}

static int32_t in_f32(const sampler_row *row, const sampler_scratch *counts, style s) {
  const int64_t V = row->V;
  candidate *c = malloc((size_t)V * sizeof *c);
  float *x = calloc((size_t)V, sizeof *x), *value = malloc((size_t)V * sizeof *value), largest = -INFINITY;
  const float T = (float)row->temperature;
  int32_t best = 0;
  for (int32_t i = 0; i < V; ++i) {
    value[i] = penalise(row, s, (float)row->logit[i], counts->seen[i] != 0, counts->count[i]);
    if (value[i] > largest) best = i;
    largest = fmaxf(largest, value[i]);
  }
  int32_t token = best;
  if (T == 0) goto done;
  for (int32_t i = 0; i < V; ++i)
    c[i] = (candidate){s == STYLE_PROBABILITIES ? value[i] / T : value[i], 0, i};
  qsort(c, (size_t)V, sizeof *c, descending);
  int64_t kept = row->top_k > 0 && row->top_k < V ? row->top_k : V;
  for (int64_t i = 0; i < kept; ++i) {
    const float l = value[c[i].id];
    const float z = s == STYLE_PROBABILITIES ? l / T - largest / T
                    : s == STYLE_EXP2        ? (l - largest) * (1.44269504f / T)
                                             : (l - largest) / T;
    c[i].mass = s == STYLE_EXP2 ? rough(z, exp2f(z)) : rough(z, expf(z));
    if (l == largest) c[i].mass = 1;
    x[i] = c[i].mass;
  }
  float whole = sum_of(x, kept, s);
  if (s == STYLE_PROBABILITIES) {
    for (int64_t i = 0; i < kept; ++i)
      c[i].mass = c[i].rank = c[i].mass / whole;
    qsort(c, (size_t)kept, sizeof *c, descending);
    whole = 1;
  }
  if (row->top_p < 1) {
    float running = 0;
    int64_t i = 0;
    for (; i < kept && (i == 0 || running < (float)row->top_p * whole); ++i)
      running += c[i].mass;
    kept = i;
  }
  const float edge = (float)row->min_p * c[0].mass;
  for (int64_t i = 0; i < V; ++i)
    x[i] = 0;
  for (int64_t i = 0; i < kept; ++i)
    if (c[i].mass >= edge) x[c[i].id] = c[i].mass;
  const float target = (float)sampler_uniform(row->seed, row->step, row->request) * sum_of(x, V, s);
  float running = 0;
  for (int32_t i = 0; i < V; ++i) {
    if (x[i] == 0) continue;
    token = i;
    running += x[i];
    if (running > target) break;
  }
done:
  free(c);
  free(x);
  free(value);
  return token;
}

enum { LARGEST_V = 1000 };

static double logit[LARGEST_V];
static int32_t prompt[16], output[16];

static double one_of(const double *list, int64_t count) {
  return assay_round_f64(list[assay_rng_range(&rng, 0, count - 1)], ASSAY_F32);
}
#define ONE_OF(...)                                                                                                    \
  one_of((const double[]){__VA_ARGS__}, (int64_t)(sizeof((const double[]){__VA_ARGS__}) / sizeof(double)))

/* close: logits a few ulp apart, so that every comparison is near its edge. */
static sampler_row draw_row(bool close) {
  sampler_row row = sampler_row_neutral;
  const int64_t V = (int64_t)ONE_OF(1, 2, 3, 10, 50, 300, close ? 300 : 1000);
  const double spread = close ? 1e-6 : ONE_OF(0.25, 1, 3), offset = ONE_OF(0, 1, 5, -5), step = ONE_OF(0, 0, 0.25);
  assay_rng_normals(rng.seed, 1000 + rng.index, logit, V);
  for (int64_t i = 0; i < V; ++i) {
    logit[i] = assay_round_f64(offset + spread * logit[i], ASSAY_F32);
    if (step > 0 && !close) logit[i] = step * rint(logit[i] / step);
  }
  for (int i = 0; i < 16; ++i) {
    prompt[i] = (int32_t)assay_rng_range(&rng, -1, V < 13 ? V - 1 : 12);
    output[i] = (int32_t)assay_rng_range(&rng, -1, V < 13 ? V - 1 : 12);
  }
  row.V = V;
  row.logit = logit;
  row.prompt = prompt;
  row.output = output;
  row.prompt_count = row.output_count = assay_rng_range(&rng, 0, 1) * 16;
  row.repetition = ONE_OF(1, 1.2, 2, 0.7);
  row.frequency = ONE_OF(0, 0.3, 1, -0.2);
  row.presence = ONE_OF(0, 0.4, 1, -0.5);
  row.temperature = ONE_OF(0, 1, 1, 0.6, 1.7, 0.02);
  row.top_k = (int64_t)ONE_OF(0, 0, 1, 2, 5, 40, (double)(V - 1), (double)V);
  row.top_p = ONE_OF(1, 0.99, 0.9, 0.5, 0.1);
  row.min_p = ONE_OF(0, 0, 0.01, 0.2, 1);
  row.step = (uint32_t)assay_rng_range(&rng, 0, 1000);
  row.seed = assay_rng_u64(&rng);
  row.request = assay_rng_u64(&rng);
  return row;
}

static const assay_contract contract = {.exp_ulp = 2, .lanes = 1}, careful = {.exp_ulp = 1, .lanes = 1 << 20};

typedef struct tally {
  int64_t rows, tokens, careful_tokens, moved, changed[32], unseen[32];
} tally;

static void compare(bool close, bool cold, int rows, tally *sum) {
  static unsigned char possible[LARGEST_V], tight[LARGEST_V];
  sampler_scratch scratch;
  assay_error error = {0};
  cr_assert(sampler_scratch_make(LARGEST_V, &scratch, &error) == ASSAY_OK);
  for (int turn = 0; turn < rows; ++turn) {
    sampler_row row = draw_row(close);
    int32_t token;
    if (cold) row.temperature = ONE_OF(1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-20, 1e-36);
    cr_assert(sampler_token(&row, &scratch, &token) == SAMPLER_OK);
    cr_assert(sampler_possible(&row, &scratch, &contract, possible, &error) == ASSAY_OK);
    cr_assert(sampler_possible(&row, &scratch, &careful, tight, &error) == ASSAY_OK);
    cr_assert(possible[token] == 1 && tight[token] == 1, "turn %d: the reference's own token", turn);
    ++sum->rows;
    for (int64_t i = 0; i < row.V; ++i) {
      sum->tokens += possible[i];
      sum->careful_tokens += tight[i];
    }
    for (style s = 0; s < STYLES; ++s) {
      const int32_t found = in_f32(&row, &scratch, s);
      sum->moved += found != token;
      cr_assert(possible[found] == 1,
                "turn %d, style %d: %d instead of %d of %d; T %g k %d p %g m %g r %g f %g a %g close %d", turn, (int)s,
                found, token, (int)row.V, row.temperature, (int)row.top_k, row.top_p, row.min_p, row.repetition,
                row.frequency, row.presence, close);
    }
    for (int32_t planted = 0; planted <= SPOIL_DRAW_AT_LEAST; ++planted) {
      const int32_t wrong = sampler_spoilt(&row, &scratch, (sampler_spoil)planted, turn);
      sum->changed[planted] += wrong != token;
      sum->unseen[planted] += wrong != token && possible[wrong] == 1;
    }
  }
  sampler_scratch_free(&scratch);
}

/* No lawful f32 sampler is refused, and planted errors are. Hardly ever is more than one token right. */
Test(sampler_bounds, hold_for_f32_and_for_little_else) {
  tally sum = {0};
  rng = (assay_rng){.seed = 21};
  compare(false, false, 8000, &sum);
  cr_assert((double)sum.tokens < 1.005 * (double)sum.rows, "%d tokens are possible in %d rows", (int)sum.tokens,
            (int)sum.rows);
  cr_assert((double)sum.careful_tokens < 1.003 * (double)sum.rows, "%d tokens are possible in %d rows",
            (int)sum.careful_tokens, (int)sum.rows);
  for (int32_t planted = 0; planted < SPOIL_DRAW_AT_LEAST;
       ++planted) { /* the last needs whole u · n: the exact tier has it */
    cr_assert(sum.changed[planted] > 40, "planted error %d changes %d rows", planted, (int)sum.changed[planted]);
    cr_assert(sum.unseen[planted] * 25 <= sum.changed[planted], "planted error %d: unseen in %d of %d", planted,
              (int)sum.unseen[planted], (int)sum.changed[planted]);
  }
}

Test(sampler_bounds, hold_where_everything_is_close) {
  tally sum = {0};
  rng = (assay_rng){.seed = 22};
  compare(true, false, 6000, &sum);
  cr_assert(sum.moved > 100, "rounding moves %d tokens", (int)sum.moved);
}

/* Where the temperature is below the ulp of a logit, rounding decides which token has all of the mass. */
Test(sampler_bounds, hold_where_the_temperature_is_below_an_ulp) {
  tally close = {0}, sum = {0};
  rng = (assay_rng){.seed = 23};
  compare(true, true, 6000, &close);
  cr_assert(close.moved > 30, "rounding moves %d tokens", (int)close.moved);
  compare(false, true, 6000, &sum);
  cr_assert((double)sum.careful_tokens < 1.1 * (double)sum.rows, "%d tokens are possible in %d rows",
            (int)sum.careful_tokens, (int)sum.rows);
}

/* -10 times 0.8 is -8 in f32, and ties with -8. The order of -8 and -8.5 is sure. */
Test(sampler_bounds, a_tie_that_rounding_makes) {
  static const double logits_of_a_tie[3] = {-8.5, -10, -8};
  const int32_t seen[1] = {1};
  unsigned char possible[3];
  sampler_scratch scratch;
  assay_error error = {0};
  cr_assert(sampler_scratch_make(3, &scratch, &error) == ASSAY_OK);
  for (int i = 0; i < 16; ++i) {
    sampler_row row = sampler_row_neutral;
    int32_t token;
    row.V = 3;
    row.logit = logits_of_a_tie;
    row.output = seen;
    row.output_count = 1;
    row.repetition = (double)0.8f;
    row.top_p = i % 2 == 0 ? 1e-6 : 1;
    row.temperature = i % 4 < 2 ? 0x1p-149 : 1e-9;
    row.step = (uint32_t)i;
    cr_assert(sampler_token(&row, &scratch, &token) == SAMPLER_OK);
    cr_assert(sampler_possible(&row, &scratch, &careful, possible, &error) == ASSAY_OK);
    cr_expect(possible[1] == 1 && possible[2] == 1 && possible[0] == 0, "%d", i);
    cr_assert(sampler_kept(&row, &scratch, &careful, false, possible, &error) == ASSAY_OK);
    cr_expect(possible[1] == 1 && possible[2] == 1 && possible[0] == 0, "kept, %d", i);
    cr_expect(sampler_kept(&row, &scratch, &careful, true, possible, &error) == ASSAY_ERR_INPUT, "not sure, %d", i);
  }
  sampler_scratch_free(&scratch);
}

/* 12 / 0.8 - 3 is 12 in f32, and below it by 2e-7 otherwise. Thirty other tokens have 12. The token that rounding
 * decides about has no mass or an equal one, and moves the borders of those after it. */
Test(sampler_bounds, a_tie_that_rounding_makes_moves_the_tokens_after_it) {
  double twelve[31];
  const int32_t seen[2] = {2, 2};
  unsigned char possible[31];
  sampler_scratch scratch;
  assay_error error = {0};
  cr_assert(sampler_scratch_make(31, &scratch, &error) == ASSAY_OK);
  for (int i = 0; i < 31; ++i)
    twelve[i] = 12;
  for (uint32_t step = 0; step < 64; ++step) {
    sampler_row row = sampler_row_neutral;
    row.V = 31;
    row.logit = twelve;
    row.output = seen;
    row.output_count = 2;
    row.repetition = (double)0.8f;
    row.frequency = 1.5;
    row.temperature = 0x1p-126;
    row.step = step;
    int32_t token, tokens = 0;
    cr_assert(sampler_token(&row, &scratch, &token) == SAMPLER_OK);
    cr_assert(sampler_possible(&row, &scratch, &careful, possible, &error) == ASSAY_OK);
    const double u = sampler_uniform(row.seed, row.step, row.request);
    for (int i = 0; i < 31; ++i)
      tokens += possible[i];
    cr_expect(possible[token] == 1 && possible[2] == 1, "step %u: without the tie", step);
    cr_expect(possible[(int)(u * 31)] == 1, "step %u: with it", step);
    cr_expect(tokens <= 5, "step %u: %d tokens", step, tokens); /* these three, and the largest */
  }
  sampler_scratch_free(&scratch);
}
