/* spec_fill.c: contents of spec_verify. Probabilities of the exact tier are multiples of 2^-10 with sum 1, coins
 * multiples of 2^-12; a decision of equality has a coin in eighths. */
#include <math.h>
#include <stdlib.h>

#include "core/rng.h"
#include "ref/lib/plain.h"
#include "ref/lib/spec.h"

enum { STREAM_PLAN = 0x73706563, STREAM_COIN, STREAM_TOKEN, STREAM_ROW, STREAM_SPREAD, STREAM_EVEN };
enum { UNITS = 1024, SPREAD = 24, EVEN = 8, PIECE = 1024, HALF = 200 };

/* Names what is special about a request. */
typedef enum spec_kind {
  KIND_USUAL,
  KIND_EQUAL,         /* the rejection is one of equality: coin q = p */
  KIND_RESIDUAL_ZERO, /* p is q but at the rejected draft: nothing of p - q is positive */
  KIND_NAN,           /* in the row that is drawn from */
  KIND_NEGATIVE,
  KIND_NOTHING,   /* that row of p is 0 */
  KIND_OUTSIDE,   /* the draft at the end of the accepted ones is no id */
  KIND_NEAR,      /* coin q is one step of f32 below p at accepted drafts, and above it at the rejected one */
  KIND_ZERO,      /* q is 0 at accepted drafts; p and q are 0 at the rejected one */
  KIND_HEAVY,     /* p sums to more than 1, and has numbers beyond it */
  KIND_LIGHT,     /* the row that is drawn from has 2^-90 of the mass */
  KIND_BAD_DRAFT, /* NaN, -0.25 or Inf in the row of q after a rejection */
  KIND_EVEN       /* a running mass is the target itself: coin and masses of the last row are eighths, or halves */
} spec_kind;

typedef struct plan {
  const assay_fill *fill;
  int64_t b, n, V, drafts, accepted;
  spec_kind kind;
  bool lattice, one_hot, greedy;
} plan;

static plan plan_of(const assay_fill *fill, int64_t b) {
  static const spec_kind kinds[] = {KIND_USUAL,         KIND_USUAL,         KIND_USUAL, KIND_USUAL,    KIND_USUAL,
                                    KIND_EQUAL,         KIND_EQUAL,         KIND_EQUAL, KIND_EQUAL,    KIND_EQUAL,
                                    KIND_RESIDUAL_ZERO, KIND_RESIDUAL_ZERO, KIND_NAN,   KIND_NEGATIVE, KIND_NOTHING,
                                    KIND_OUTSIDE,       KIND_NEAR,          KIND_NEAR,  KIND_ZERO,     KIND_ZERO,
                                    KIND_HEAVY,         KIND_LIGHT,         KIND_LIGHT, KIND_BAD_DRAFT};
  const assay_call *call = fill->call;
  const assay_tensor *p = &call->arg[SPEC_P];
  assay_rng rng = {fill->seed, STREAM_PLAN, 16 * (uint64_t)b};
  plan r = {.fill = fill, .b = b, .n = p->shape[1] - 1, .V = p->shape[2]};
  r.drafts = call->arg[SPEC_N_DRAFT].data != NULL ? assay_rng_range(&rng, 0, r.n) : r.n;
  r.accepted = assay_rng_range(&rng, 0, r.drafts);
  r.kind = kinds[assay_rng_range(&rng, 0, (int64_t)(sizeof kinds / sizeof kinds[0]) - 1)];
  r.lattice = fill->values == ASSAY_LATTICE;
  r.one_hot = call->arg[SPEC_Q].data == NULL;
  r.greedy = call->param[0] == SPEC_GREEDY;
  assay_rng even = {fill->seed, STREAM_EVEN, 16 * (uint64_t)b};
  if (r.kind != KIND_USUAL || r.greedy || call->arg[SPEC_COINS].data == NULL) return r;
  if (assay_rng_range(&even, 0, 1) == 0) return r;
  r.kind = KIND_EVEN;
  r.accepted = r.drafts;
  return r;
}

double spec_philox(uint64_t seed, uint32_t step, uint32_t i, uint64_t request) {
  const assay_philox word = assay_philox4x32(seed, step, i, (uint32_t)request, (uint32_t)(request >> 32));
  return (double)(word.x[0] >> 8) * 0x1p-24;
}

/* ---- small arguments --------------------------------------------------------------------------------- */

/* Tells whether the last row has the same masses before and after a border of pieces. */
static bool in_halves(const plan *r) {
  return r->kind == KIND_EVEN && !r->lattice && r->V > PIECE;
}

static int64_t token_of(const plan *r, int64_t i) {
  assay_rng rng = {r->fill->seed, STREAM_TOKEN + ((uint64_t)r->b << 32), 16 * (uint64_t)i};
  const int64_t id = assay_rng_range(&rng, 0, r->V - 1);
  if (i == r->accepted && r->kind == KIND_OUTSIDE) return id % 2 == 0 ? r->V : -1 - id;
  return id;
}

static double word_of(const assay_fill *fill, int32_t arg, int64_t b) {
  assay_rng rng = {fill->seed, STREAM_COIN + ((uint64_t)arg << 32), 4 * (uint64_t)b};
  return (double)(assay_rng_u64(&rng) >> (arg == SPEC_STEP ? 40 : 20));
}

static double coin_of(const plan *r, int64_t i) {
  const assay_fill *fill = r->fill;
  assay_rng rng = {fill->seed, STREAM_COIN + ((uint64_t)r->b << 32), 16 * (uint64_t)i};
  if (fill->call->arg[SPEC_COINS].data == NULL)
    return spec_philox((uint64_t)word_of(fill, SPEC_SEED, r->b), (uint32_t)word_of(fill, SPEC_STEP, r->b), (uint32_t)i,
                       (uint64_t)word_of(fill, SPEC_REQUEST, r->b));
  if ((r->kind == KIND_EQUAL && i == r->accepted) || (r->kind == KIND_NEAR && i < r->drafts))
    return 0.125 * (double)assay_rng_range(&rng, 1, 7);
  if (in_halves(r) && i == r->drafts) return 0.5;
  if (r->kind == KIND_EVEN && i == r->drafts) return (double)assay_rng_range(&rng, 1, EVEN - 1) / EVEN;
  const int64_t end =
      assay_rng_range(&rng, 0, 15); /* the first and the last coin are as likely as all others are rare */
  if (end == 0) return 0;
  if (end == 1) return r->lattice ? 1 - 0x1p-12 : 1 - 0x1p-24;
  return r->lattice ? 0x1p-12 * (double)assay_rng_range(&rng, 0, 4095)
                    : 0x1p-20 * (double)assay_rng_range(&rng, 0, 900000);
}

/* ---- probabilities ----------------------------------------------------------------------------------- */

/* Holds a draft's own entries of p and q. */
typedef struct pair {
  double p, q;
} pair;

static pair pair_of(const plan *r, int64_t i) {
  assay_rng rng = {r->fill->seed, STREAM_ROW + ((uint64_t)r->b << 32), 16 * (uint64_t)i};
  const bool equal = r->kind == KIND_EQUAL && r->fill->call->arg[SPEC_COINS].data != NULL;
  const double coin = coin_of(r, i), eighths = 0x1p-7 * (double)assay_rng_range(&rng, 1, 48);
  const double unit = assay_rng_unit(&rng);
  const bool near = r->kind == KIND_NEAR && r->fill->call->arg[SPEC_COINS].data != NULL;
  const bool short_q = r->lattice || near || (equal && i == r->accepted);
  pair x = {.q = r->one_hot ? 1 : short_q ? eighths : 0.02 + 0.4 * unit};
  if (r->kind == KIND_ZERO && !r->one_hot) x.q = 0;
  const double product = coin * x.q;
  const double steps = floor(product * UNITS), more = (double)assay_rng_range(&rng, 1, 64);
  const double other = assay_rng_unit(&rng);
  if (r->kind == KIND_ZERO && !r->one_hot)
    x.p = i < r->accepted ? 0x1p-9 * (double)assay_rng_range(&rng, 1, 64) : 0;
  else if (near)
    x.p = (double)nextafterf((float)product, i < r->accepted ? 2 : 0);
  else if (i < r->accepted)
    x.p = r->lattice ? (steps + more) / UNITS : product * 1.05 + 0.01 + 0.3 * other;
  else if (equal)
    x.p = product;
  else
    x.p = r->lattice ? floor(steps * other) / UNITS : product * 0.9 * other;
  if (x.p > 1) x.p = 1;
  if (r->kind == KIND_HEAVY && i < r->accepted) x.p += 1;
  return x;
}

/* Spreads `whole` over ids other than x: in the exact tier over a few, in multiples of 2^-10; else over all. Rows with
 * the same `which` have the same shape. */
static void spread(const plan *r, int64_t i, uint64_t which, double whole, int64_t x, double *row) {
  assay_rng rng = {r->fill->seed, STREAM_SPREAD + (which << 16) + ((uint64_t)r->b << 32), 4096 * (uint64_t)i};
  int64_t left = (int64_t)floor(whole * UNITS);
  double sum = 0;
  if (r->V == 1) return;
  for (int64_t k = 0; r->lattice && left > 0; ++k) {
    const int64_t id = assay_rng_range(&rng, 0, r->V - 2), place = id + (x >= 0 && id >= x);
    const int64_t units = k + 1 < SPREAD && left > 1 ? assay_rng_range(&rng, 1, (left + 3) / 4) : left;
    row[place] += (double)units / UNITS;
    left -= units;
  }
  if (r->lattice) return;
  for (int64_t v = 0; v < r->V; ++v) {
    const double unit = assay_rng_unit(&rng);
    row[v] = v == x ? 0 : unit * unit * unit;
    sum += row[v];
  }
  for (int64_t v = 0; v < r->V && sum > 0; ++v)
    row[v] *= whole / sum;
}

/* Puts eighths at ids that may be the same. */
static void spread_evenly(const plan *r, int64_t i, double *row) {
  assay_rng rng = {r->fill->seed, STREAM_EVEN + ((uint64_t)r->b << 32), 16 * (uint64_t)(i + 1)};
  for (int64_t k = 0; k < EVEN; ++k)
    row[assay_rng_range(&rng, 0, r->V - 1)] += 1.0 / EVEN;
}

/* Puts the same masses before and after a border of pieces, in two orders. Half of the whole is the target. Sums round
 * in f64: by one order a piece ends above the target, and by another it does not. */
static void spread_in_halves(const plan *r, int64_t i, double *row) {
  assay_rng rng = {r->fill->seed, STREAM_EVEN + ((uint64_t)r->b << 32), 4096 * (uint64_t)(i + 1)};
  const int64_t pieces = r->V / (2 * PIECE) > 0 ? r->V / (2 * PIECE) : 1, border = PIECE * pieces;
  const int64_t count = r->V - border < HALF ? r->V - border : HALF;
  const int64_t first_step = border / count, second_step = (r->V - border) / count;
  for (int64_t k = 0; k < count; ++k) {
    const int below = (int)assay_rng_range(&rng, 20, 50); /* the first mass of a half is heavy */
    const double mass = ldexp(1 + assay_rng_unit(&rng), k == 0 ? -6 : -6 - below);
    row[k * first_step + assay_rng_range(&rng, 0, first_step - 1)] = mass;
    row[border + (count - 1 - k) * second_step + assay_rng_range(&rng, 0, second_step - 1)] = mass;
  }
}

/* Makes the row of p that the greedy rule reads: its largest number stands at the draft where that is accepted, else at
 * another id. A second id has the same number in half of the rows, and comes later where the draft is accepted. */
static void greedy_row(const plan *r, int64_t i, int64_t x, double *row) {
  assay_rng rng = {r->fill->seed, STREAM_ROW + ((uint64_t)r->b << 32), 16 * (uint64_t)i};
  const double top = 0x1p-2;
  for (int64_t v = 0; v < r->V; ++v)
    row[v] = 0x1p-10 * (double)assay_rng_range(&rng, 0, 7);
  const int64_t second = assay_rng_range(&rng, 0, r->V - 1);
  if (i < r->accepted) {
    row[x] = top;
    if (second > x) row[second] = top;
  } else {
    row[second] = top;
    if (x > second) row[x] = top;
  }
}

/* Breaks the row that the request draws from. */
static void break_row(const plan *r, double *row) {
  assay_rng rng = {r->fill->seed, STREAM_PLAN + ((uint64_t)r->b << 32), 1 << 20};
  const int64_t v = assay_rng_range(&rng, 0, r->V - 1);
  if (r->kind == KIND_NAN) row[v] = (double)NAN;
  if (r->kind == KIND_NEGATIVE) row[v] = -0.25;
  for (int64_t u = 0; r->kind == KIND_NOTHING && u < r->V; ++u)
    row[u] = 0;
}

/* Breaks the row of q that is taken from p, at an id other than the draft x. */
static void break_q(const plan *r, int64_t x, double *row) {
  static const double list[] = {(double)NAN, -0.25, (double)INFINITY};
  assay_rng rng = {r->fill->seed, STREAM_PLAN + ((uint64_t)r->b << 32), 1 << 21};
  const int64_t v = assay_rng_range(&rng, 0, r->V - 1);
  if (r->kind == KIND_BAD_DRAFT && v != x) row[v] = list[assay_rng_range(&rng, 0, 2)];
}

static void fill_row(const plan *r, int64_t i, bool of_q, double *row) {
  const bool last = i >= r->drafts, read = i <= r->accepted && !(of_q && (last || r->greedy));
  const int64_t x = last ? -1 : token_of(r, i);
  const bool legal = x >= 0 && x < r->V;
  /* Nothing is 0 or -0. */
  for (int64_t v = 0; v < r->V; ++v)
    row[v] = read && (legal || last) && (i == r->accepted || r->greedy) ? (v % 3 == 1 ? -0.0 : 0) : (double)NAN;
  if (!read || (!legal && !last)) return;
  if (r->greedy) {
    greedy_row(r, i, last ? -1 : x, row);
  } else if (last && in_halves(r)) {
    spread_in_halves(r, i, row);
  } else if (last && r->kind == KIND_EVEN) {
    spread_evenly(r, i, row);
  } else if (last) {
    spread(r, i, 0, r->kind == KIND_HEAVY ? 4 : 1, -1, row);
  } else {
    const pair own = pair_of(r, i);
    const bool shared = of_q || (r->kind == KIND_RESIDUAL_ZERO && !r->one_hot);
    const double heavily = r->kind == KIND_HEAVY && !of_q ? 4 : 1, others = fmax(1 - (shared ? own.q : own.p), 0);
    if (i == r->accepted) spread(r, i, shared ? 1 : 0, heavily * others, x, row);
    row[x] = of_q ? own.q : own.p;
  }
  const double lightly = r->kind == KIND_LIGHT && !r->greedy && i == r->accepted ? 0x1p-90 : 1;
  for (int64_t v = 0; v < r->V; ++v)
    row[v] *= lightly;
  if (!of_q && i == r->accepted) break_row(r, row);
  if (of_q && i == r->accepted) break_q(r, x, row);
}

/* ---- all arguments ----------------------------------------------------------------------------------- */

assay_status spec_fill(const assay_fill *fill, int32_t arg, double *value, int64_t count, assay_error *error) {
  (void)error;
  const assay_tensor *p = &fill->call->arg[SPEC_P];
  const int64_t B = p->shape[0], V = p->shape[2], per_request = B > 0 ? count / B : 0;
  for (int64_t b = 0; b < B; ++b) {
    const plan r = plan_of(fill, b);
    double *own = value + b * per_request;
    if (arg == SPEC_N_DRAFT) own[0] = (double)r.drafts;
    if (arg == SPEC_SEED || arg == SPEC_STEP || arg == SPEC_REQUEST) own[0] = word_of(fill, arg, b);
    for (int64_t i = 0; arg == SPEC_DRAFT && i < per_request; ++i)
      own[i] = (double)token_of(&r, i);
    for (int64_t i = 0; arg == SPEC_COINS && i < per_request; ++i)
      own[i] = coin_of(&r, i);
    for (int64_t i = 0; (arg == SPEC_P || arg == SPEC_Q) && i < per_request / V; ++i)
      fill_row(&r, i, arg == SPEC_Q, own + i * V);
  }
  return ASSAY_OK;
}
