/* error_model.c: how far a correct implementation may be off, as standard deviations. */
#include "ref/lib/error_model.h"

#include <math.h>
#include <string.h>

#include "core/dtype.h"
#include "core/wide.h"
#include "ref/lib/lattice.h"
#include "ref/lib/vector.h"

const assay_contract default_contract = {.qk_lanes = 1, .pv_lanes = 1, .exp_ulp = 2, .zero_p_v = ASSAY_V_MULTIPLIED};

double rounding_bound(double value, assay_dtype dtype) {
  return assay_round_f64(value, dtype) == value ? 0 : 0.5 * assay_ulp(value, dtype);
}

double storing_variance(double value, assay_dtype dtype) {
  const double ulp = assay_ulp(value, dtype);
  return ulp * ulp / 12;
}

double rounding_variance(double value, assay_dtype dtype) {
  if (dtype == ASSAY_NONE || assay_round_f64(value, dtype) == value) return 0;
  return storing_variance(value, dtype);
}

double accumulation_variance(double terms, double lanes) {
  const double chain = terms / lanes;
  return f32_variance * (chain / (3 * lanes) + 2);
}

double outlier_variance(double size, double square, double terms, double lanes) {
  const double alike = accumulation_variance(terms, lanes);
  const double whole = size * size;
  if (!(whole > 0x1p-1000)) return alike;
  const double rounding = storing_variance(size, ASSAY_F32) / whole;
  const double combining = lanes > 1 ? 2 * fmax(rounding - f32_variance, 0) : 0;
  return fmax(alike + combining, (terms / lanes + ceil(log2(lanes))) * rounding * (square / whole));
}

int cut_bits(assay_dtype dtype) {
  return dtype == ASSAY_F16 ? 11 : dtype == ASSAY_BF16 ? 8 : 0;
}

/* Returns the variance that cutting in tensor cores adds. A step adds contract->cut products to a running sum. All of
 * them, and the sum before, lose the bits below 2^-25 of the largest, towards zero. Then the sum loses what is below 24
 * bits. A term thus loses up to
 *
 *   u = 2^-25 max(top, |running sum|)          top >= sqrt(sum x^2) here
 *
 * at random, which is u^2 / 3 per term. A loss has the sign of the term that loses it. Terms of one sign thus add up
 * their losses, u / 2 per term, unless a product has no bits below u. A product of two numbers of b bits ends 2 (b - 1)
 * bits below its first bit; a usual term ends at 2^(-2 (b - 1)) sum |x| / (2 n). |sum x| / sum |x| tells how far terms
 * have one sign. The sum itself loses half its ulp per step, over a running sum that grows from 0. A running sum of
 * terms of both signs can be far from 0 and end near it. Its drift then says what it loses in the order of the terms.
 * A start c is the largest for the terms of its running sum alone, and those lose at its u once more.
 */
double cut_variance(const assay_contract *contract, const product_sum *s) {
  if (contract->cut <= 0 || s->bits == 0 || !(s->abs > 0)) return 0;
  const double sum = fabs(s->whole), steps = s->terms / s->lanes / contract->cut;
  const double largest = fmax(fmax(s->top, sqrt(s->square)), sum / s->lanes), unit = 0x1p-25 * largest;
  const double ends = ldexp(s->abs / (2 * s->terms), -2 * (s->bits - 1));
  double of_terms = unit > ends ? s->terms * unit / 2 * (sum / s->abs) : 0, of_start = 0;
  if (s->start != 0) {
    const double coarse = 0x1p-25 * fmax(fabs(s->start), fabs(s->start + s->whole / s->lanes));
    of_start = (s->terms / s->lanes + ceil(steps)) * coarse * coarse / 3;
    if (coarse > ends) of_terms += s->terms / s->lanes * coarse / 2 * (sum / s->abs);
  }
  const double of_drift = fabs(s->drift) * 0x1p-24 / (s->lanes * contract->cut);
  const double of_sums = fmax(ceil(steps) * 0x1p-24 * fabs(2 * s->start + s->whole) / 2, of_drift);
  return (s->terms + ceil(steps) * s->lanes) * unit * unit / 3 + of_start + (of_terms + of_sums) * (of_terms + of_sums);
}

/* Returns 2^e with 2^e <= |x| < 2^(e + 1) for normal x; 0 for 0. */
static inline double binade(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  bits &= UINT64_C(0x7FF) << 52;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* Returns the top. Subnormals have the exponent of the least normal number; zeros have none. bf16's subnormals
 * matter only in sums that are as small. */
double cut_top(const double *a, const double *b, int64_t count, assay_dtype dtype, double size) {
  if (dtype != ASSAY_F16 && size > 0x1p-90) return 0;
  const double least = dtype == ASSAY_F16 ? 0x1p-14 : 0x1p-126;
  double top = 0;
  for (int64_t k = 0; k < count; ++k) {
    const double x = binade(a[k]), y = binade(b[k]);
    if (x != 0 && y != 0) top = fmax(top, fmax(x, least) * fmax(y, least));
  }
  return top;
}

/* Returns the number of running sums that a sum over `keys` keys is spread over. */
static double lanes_of(const assay_contract *contract, int64_t keys) {
  double lanes = contract->pv_lanes > 0 ? contract->pv_lanes : 1;
  if (contract->keys_per_split > 0 && contract->keys_per_split < keys)
    lanes *= (double)((keys + contract->keys_per_split - 1) / contract->keys_per_split);
  return lanes;
}

double key_sum_variance(const assay_contract *contract, int64_t keys, int64_t terms) {
  return accumulation_variance((double)terms, lanes_of(contract, keys));
}

enum { MOST_LANES = 32 }; /* larger numbers are treated as this one: longer chains */

static int64_t lanes_followed(const assay_contract *contract) {
  const int64_t lanes = contract->pv_lanes > 0 ? contract->pv_lanes : 1;
  return lanes < MOST_LANES ? lanes : MOST_LANES;
}

int64_t key_sum_room(const assay_contract *contract, int64_t D) {
  return (5 + lanes_followed(contract)) * D;
}

void key_sum_place(key_sum *sum, const assay_contract *contract, int64_t D, double *memory) {
  *sum = (key_sum){.contract = contract, .D = D, .lanes = lanes_followed(contract)};
  double **const array[] = {&sum->abs, &sum->walk, &sum->square, &sum->lost, &sum->away, &sum->running};
  for (size_t i = 0; i < sizeof array / sizeof array[0]; ++i)
    *array[i] = memory + (int64_t)i * D;
}

/* Starts a sum. The order of the keys is not part of a contract. Terms that a late large term would swallow thus count
 * as lost too, within a key axis that is not split. away: at most half an ulp of the whole sum. */
void key_sum_start(key_sum *sum, const double *whole, double factor) {
  const int64_t D = sum->D;
  sum->whole = whole;
  sum->factor = factor;
  sum->terms = 0;
  sum->split = 0;
  const double half = sum->contract->keys_per_split > 0 ? 0 : factor * 0x1p-24;
  for (int64_t d = 0; d < D; ++d) {
    sum->abs[d] = sum->walk[d] = sum->square[d] = sum->lost[d] = 0;
    sum->away[d] = half * fabs(whole[d]);
  }
  for (int64_t i = 0; i < sum->lanes * D; ++i)
    sum->running[i] = 0;
}

/* Returns condition ? x : 0, without a branch. */
static inline double where(bool condition, double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  bits &= 0 - (uint64_t)condition;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* Returns x as a running sum s takes it: a multiple of its ulp. away > 0 may make that ulp larger. */
static inline double rounded(double x, double s, double away) {
  const double near = 0x1p-23 * binade(s), far = 2 * binade(away), magic = 0x1.8p52 * (near > far ? near : far);
  return x + magic - magic;
}

/* Adds one term in every channel. */
ASSAY_WIDE static void add_term(int64_t D, double p, const double *restrict v, const double *restrict away,
                                double *restrict total, double *restrict running, double *restrict walk,
                                double *restrict square, double *restrict lost) {
  for (int64_t d = 0; d < D; ++d) {
    const double x = p * v[d], s = running[d] + x, size = fabs(x), near = 0x1p-24 * fabs(s);
    const double half = near > away[d] ? near : away[d], e = where(x != 0, binade(s));
    total[d] += size;
    running[d] = s;
    walk[d] += e * e;
    square[d] += x * x;
    lost[d] += where(size < half, x) + where(size >= half && size < 16 * half, x - rounded(x, s, away[d]));
  }
}

void key_sum_add(key_sum *sum, int64_t key, double p, const double *v) {
  const int64_t D = sum->D, each = sum->contract->keys_per_split;
  if (each > 0 && key / each != sum->split) {
    sum->split = key / each;
    for (int64_t i = 0; i < sum->lanes * D; ++i)
      sum->running[i] = 0;
  }
  add_term(D, p, v, sum->away, sum->abs, sum->running + sum->terms % sum->lanes * D, sum->walk, sum->square, sum->lost);
  ++sum->terms;
}

/* Finishes a sum. The products may be rounded too (Q). The sums of lanes and splits are combined (two roundings of the
 * result's size). The loss is uniform between nothing and all of it. */
void key_sum_finish(const key_sum *sum, int64_t keys, double *variance) {
  const double lanes = lanes_of(sum->contract, keys), chain = (double)sum->terms / lanes;
  const double alike = key_sum_variance(sum->contract, keys, sum->terms);
  const double subnormal = (double)sum->terms * 0x1p-298 / 12;
  for (int64_t d = 0; d < sum->D; ++d) {
    if (!(sum->abs[d] > 0)) continue;
    const double whole = sum->factor * sum->whole[d], S = whole * whole, Q = sum->square[d], lost = sum->lost[d];
    const double standing = sum->walk[d] * 0x1p-46 / 12;
    const double shuffled = f32_variance * (chain + 1) * ((S > Q ? (S - Q) / (3 * lanes) : 0) + Q / 2);
    const double own = (standing > shuffled ? standing : shuffled) + f32_variance * (Q + 2 * (S > Q ? S : Q));
    const double formula = alike * sum->abs[d] * sum->abs[d];
    const product_sum products = {.whole = whole,
                                  .abs = sum->abs[d],
                                  .square = Q,
                                  .terms = (double)sum->terms,
                                  .lanes = lanes,
                                  .bits = sum->bits};
    const double cut = cut_variance(sum->contract, &products);
    const double added = (own > formula ? own : formula) + lost * lost / 3 + subnormal + cut;
    variance[d] += added / (sum->factor * sum->factor);
  }
}

static int64_t slots_of(int64_t terms) {
  int64_t slots = 16;
  while (slots < 2 * terms)
    slots *= 2;
  return slots;
}

int64_t equal_terms_room(int64_t terms) {
  return slots_of(terms) * (int64_t)sizeof(equal_slot);
}

void equal_terms_start(equal_terms *equal, int64_t terms, void *memory) {
  equal->slot = memory;
  equal->slots = slots_of(terms);
  memset(memory, 0, (size_t)equal_terms_room(terms));
}

void equal_terms_add(equal_terms *equal, double x, double running) {
  const float value = (float)x;
  const double ulp = 0x1p-23 * binade(running);
  if (!(value > 0) || !((double)value >= ulp / 2)) return; /* it was lost and counted as such */
  uint32_t code;
  memcpy(&code, &value, sizeof code);
  code >>= 7;
  int64_t at = (int64_t)(code * 0x9E3779B1u) & (equal->slots - 1);
  while (equal->slot[at].code != 0 && equal->slot[at].code != code)
    at = (at + 1) & (equal->slots - 1);
  equal_slot *slot = &equal->slot[at];
  const double steps = (double)value / ulp;                       /* a power of two; running >= value: at most 2^24 */
  const double error = (double)(int64_t)steps != steps ? ulp : 0; /* a multiple of the ulp is added exactly */
  slot->code = code;
  slot->ulps += error;
  slot->ulps2 += error * error;
  slot->value += x;
  slot->value2 += x * x;
}

double equal_terms_additions(const equal_terms *equal) {
  double sum = 0;
  for (int64_t i = 0; i < equal->slots; ++i)
    sum += equal->slot[i].ulps * equal->slot[i].ulps - equal->slot[i].ulps2;
  return sum / 12;
}

double equal_terms_shared(const equal_terms *equal) {
  double sum = 0;
  for (int64_t i = 0; i < equal->slots; ++i)
    sum += equal->slot[i].value * equal->slot[i].value - equal->slot[i].value2;
  return sum;
}

/* Returns the variance of a dot product. The accumulation's formula takes the terms for alike. A term may outweigh the
 * others (a channel that all keys share). It is then rounded again with every later addition of its running sum, at the
 * sum's ulp: chain · ulp^2 / 12. The part of sum x^2 above that of products of normal values, (pi / 2)^2 (sum |x|)^2 /
 * D, is counted in this way. Its ulp is at most 2^-23 of it, and at most that of sum |x|. A relative rounding of every
 * k_d adds sum (q_d k_d)^2 times its relative variance. */
ASSAY_WIDE double dot_variance(const assay_contract *contract, int64_t D, const double *q, const double *k,
                               assay_dtype dtype, bool k_is_rounded) {
  const double abs_dot = vector_dot_abs(q, k, D), square_dot = vector_dot_square(q, k, D);
  const double lanes = contract->qk_lanes > 0 ? contract->qk_lanes : 1;
  double variance = abs_dot * abs_dot * accumulation_variance((double)D, lanes);
  const double heavy = square_dot - 2.4674 * abs_dot * abs_dot / (double)D;
  if (heavy > 0) {
    const double most = binade(abs_dot), size = heavy < most * most ? heavy : most * most;
    variance += (double)D / lanes * size * 0x1p-46 / 12;
  }
  /* Products and sums below the normal numbers round at 2^-149. A large scale makes that visible. */
  if (abs_dot > 0 && abs_dot < 0x1p-100) variance += 2 * (double)D * storing_variance(0, ASSAY_F32);
  if (k_is_rounded) {
    /* f32_variance belongs to 24 bits; each bit less makes it four times as large. */
    const int lost = 24 - lattice_width(contract->k);
    variance += square_dot * f32_variance * (double)(1ull << (2 * lost));
  }
  if (contract->cut > 0 && cut_bits(dtype) > 0) {
    const double top = cut_top(q, k, D, dtype, abs_dot);
    const product_sum products = {.whole = vector_dot(q, k, D),
                                  .abs = abs_dot,
                                  .square = square_dot,
                                  .top = top,
                                  .terms = (double)D,
                                  .lanes = lanes,
                                  .bits = cut_bits(dtype)};
    variance += cut_variance(contract, &products);
  }
  return variance;
}

double below_normal_variance(const double *factor, int32_t count, bool flushes) {
  const unsigned whole = (1u << count) - 1;
  double variance = 0, all = 1;
  bool lost = false;
  for (int32_t i = 0; i < count; ++i)
    all *= factor[i];
  for (unsigned set = 3; set < whole; ++set) {
    double product = 1, rest = 1;
    if ((set & (set - 1)) == 0) continue; /* one factor */
    for (int32_t i = 0; i < count; ++i)
      *((set >> i & 1) != 0 ? &product : &rest) *= factor[i];
    if (product == 0 || fabs(product) >= 0x1p-126) continue;
    variance += rest * rest * storing_variance(0, ASSAY_F32);
    lost = flushes;
  }
  return variance + (lost ? all * all : 0);
}
