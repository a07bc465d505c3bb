/* gemm.c: dot products of rows. */
#include "ref/lib/gemm.h"

#include <math.h>
#include <string.h>

#include "core/dtype.h"
#include "ref/lib/error_model.h"
#include "ref/lib/lattice.h"

/* Uses eight running sums, which let the compiler use vector registers without reordering anything written here. */
double gemm_dot(const double *a, const double *b, int64_t K) {
  enum { LANES = 8 };
  double lane[LANES] = {0}, rest = 0;
  int64_t k = 0;
  for (; k + LANES <= K; k += LANES)
    for (int i = 0; i < LANES; ++i)
      lane[i] += a[k + i] * b[k + i];
  for (; k < K; ++k)
    rest += a[k] * b[k];
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7])) + rest;
}

/* Returns the largest power of two that is at most |value|, with the sign of value; 0 for 0. */
static double signed_binade(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  bits &= 0xFFF0000000000000u;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline gemm_sum walk_from(double start, const double *a, const double *b, int64_t K) {
  gemm_sum s = {.start = start};
  double running = start;
  for (int64_t k = 0; k < K; ++k) {
    const double x = a[k] * b[k], square = x * x;
    s.sum += x;
    running += x;
    s.abs += fabs(x);
    const double binade = signed_binade(running);
    s.walk += binade * binade;
    s.drift += binade;
    s.square += square;
    if (square > s.largest) s.largest = square;
    if ((double)(float)x != x) s.rounded += square;
  }
  return s;
}

gemm_sum gemm_walk(const double *a, const double *b, int64_t K) {
  return walk_from(0, a, b, K);
}

gemm_sum gemm_walk_from(double start, const double *a, const double *b, int64_t K) {
  return walk_from(start, a, b, K);
}

double gemm_start(const assay_contract *contract, double alpha, double added) {
  return contract->start == ASSAY_START_BIAS && alpha == 1 ? added : 0;
}

/* Returns the variance of an addition that has the term x in its sum, for the largest term or the start; `square` is
 * x^2. It rounds at that term's ulp, or at the whole sum's if that term is most of it. It is one draw again and again,
 * for which the mean over a binade is up to half too little. */
static double large_rounded(double square, double sum) {
  const double ulp = assay_ulp(sqrt(square), ASSAY_F32), whole = assay_ulp(sum, ASSAY_F32);
  const double coarse = sum * sum < 4 * square && whole > ulp ? whole : ulp;
  return fmax(f32_variance * square, coarse * coarse / 12);
}

/* Returns the sum of the terms of less than half an ulp of `size`. A running sum of that size does not change by them.
 * Those of one sign are lost together, so that chance does not cancel them. */
static double lost_beside(double size, const double *a, const double *b, int64_t K) {
  enum { LANES = 8 };
  const double half = assay_ulp(size, ASSAY_F32) / 2;
  double lane[LANES] = {0}, rest = 0;
  int64_t k = 0;
  for (; k + LANES <= K; k += LANES)
    for (int i = 0; i < LANES; ++i) {
      const double x = a[k + i] * b[k + i];
      lane[i] += fabs(x) < half ? x : 0;
    }
  for (; k < K; ++k) {
    const double x = a[k] * b[k];
    rest += fabs(x) < half ? x : 0;
  }
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7])) + rest;
}

/* Returns the variance of what running sums lose of small terms. Each of them ends at S / l. One of them has the
 * largest term, or the start. The loss is uniform between nothing and all of it. */
static double lost_variance(const gemm_sum *s, double lanes, const double *a, const double *b, int64_t K) {
  const double end = fabs(s->sum) / lanes;
  double largest = sqrt(s->largest);
  if (s->start != 0) largest = fmax(largest, fmax(fabs(s->start), fabs(s->start + s->sum / lanes)));
  const double of_all = lost_beside(end, a, b, K);
  const double of_one = largest > end ? (lost_beside(largest, a, b, K) - of_all) / lanes : 0;
  const double lost = fabs(of_all) + fabs(of_one);
  return lost * lost / 3;
}

/* Returns the variance of an accumulation. Every addition rounds a running sum. On one lane, in the order of the terms,
 * it is ulp(S_k)^2 / 12 each. On l lanes, and for other orders, it is the mean over all orders, f32_variance · chain ·
 * ((S^2 - Q) / (3 l) + Q / 2) with Q = sum x^2. As much again is added of the largest term, which may come first. The
 * larger one counts. Lanes are combined in log2 l levels: Q each, as long as terms differ in sign, and at most 2 S^2.
 * In Q the largest term counts with its ulp; the part beyond Q counts with the sum's ulp.
 *
 * A start c is in each sum of one lane, which adds chain · (c^2 + c S / l), and it is combined as a term is. Where all
 * products are 0 nothing is rounded beside it. */
double gemm_variance(const gemm_sum *s, const assay_contract *contract, const double *a, const double *b, int64_t K,
                     assay_dtype dtype) {
  const double lanes = contract->lanes > 0 ? contract->lanes : 1, chain = (double)K / lanes;
  const double Q = s->square, beyond = s->sum * s->sum > Q ? s->sum * s->sum - Q : 0;
  const bool started = s->start != 0 && s->largest > 0;
  const double standing = s->start != 0 && !started ? 0 : s->walk * 0x1p-46 / 12 / (lanes * lanes);
  const double whole = s->start + s->sum, square = Q + s->start * s->start;
  const double first = started ? large_rounded(s->start * s->start, whole) : 0;
  const double heavy = large_rounded(s->largest, s->sum), terms = f32_variance * (Q - s->largest) + heavy;
  double shuffled = (chain + 1) * (f32_variance * beyond / (3 * lanes) + terms / 2 + heavy / 2);
  if (started) shuffled += (chain + 1) * (first + f32_variance * s->start * s->sum / lanes);
  const double level =
      whole * whole > square ? fmax(f32_variance, storing_variance(whole, ASSAY_F32) / (whole * whole)) : 0;
  const double apart = whole * whole > square ? whole * whole - square : 0;
  const double combined = lanes > 1 ? ceil(log2(lanes)) * (terms + first) + 2 * level * apart : 0;
  double f32 = (standing > shuffled ? standing : shuffled) + f32_variance * s->rounded + combined +
               lost_variance(s, lanes, a, b, K);
  /* Products and sums below the normal numbers round at 2^-149. */
  if (s->largest > 0 && s->largest < 0x1p-200) f32 += 2 * (double)K * storing_variance(0, ASSAY_F32);
  if (contract->cut > 0 && cut_bits(dtype) > 0) {
    const double top = cut_top(a, b, K, dtype, s->abs);
    const product_sum products = {s->sum, s->abs,          s->square, top,     (double)K,
                                  lanes,  cut_bits(dtype), s->drift,  s->start};
    f32 += cut_variance(contract, &products);
  }
  const bool narrow = contract->partial != ASSAY_NONE && contract->partial != ASSAY_F32;
  return narrow ? f32 + storing_variance(fmax(fabs(whole), fabs(s->start)), contract->partial) : f32;
}

bool gemm_admits(const gemm_sum *s, const assay_contract *contract, int low_a, int low_b) {
  const int low = low_a + low_b, of_start = lattice_low(s->start);
  return lattice_admits(s->abs + fabs(s->start), of_start < low ? of_start : low, lattice_width(contract->partial));
}
