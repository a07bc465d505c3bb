/* error_model.c: how far a correct implementation may be off, as standard deviations. */
#include "ref/lib/error_model.h"

#include <math.h>

#include "core/dtype.h"
#include "ref/lib/lattice.h"

const assay_contract plain_contract = {.qk_lanes = 1, .pv_lanes = 1, .exp_ulp = 2, .zero_p_v = ASSAY_V_MULTIPLIED};

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

/* Running sums that a sum over `keys` keys is spread over. */
static double lanes_of(const assay_contract *contract, int64_t keys) {
  double lanes = contract->pv_lanes > 0 ? contract->pv_lanes : 1;
  if (contract->keys_per_split > 0 && contract->keys_per_split < keys)
    lanes *= (double)((keys + contract->keys_per_split - 1) / contract->keys_per_split);
  return lanes;
}

double key_sum_variance(const assay_contract *contract, int64_t keys, int64_t terms) {
  return accumulation_variance((double)terms, lanes_of(contract, keys));
}

void key_sum_start(key_sum *sum, int64_t D) {
  double *const all[] = {sum->abs, sum->running, sum->walk, sum->square};
  for (int i = 0; i < 4; ++i)
    for (int64_t d = 0; d < D; ++d)
      all[i][d] = 0;
  sum->terms = 0;
}

void key_sum_add(key_sum *sum, double p, const double *v, int64_t D) {
  double *restrict total = sum->abs, *restrict running = sum->running;
  double *restrict walk = sum->walk, *restrict square = sum->square;
  for (int64_t d = 0; d < D; ++d) {
    const double x = p * v[d], s = running[d] + x;
    total[d] += fabs(x);
    running[d] = s;
    walk[d] += s * s;
    square[d] += x * x;
  }
  ++sum->terms;
}

/* On l lanes each running sum is about S_k / l, and their errors add up: sum S_k^2 / l^2. The products may be
 * rounded too (Q), and the lanes' sums are combined (two roundings of the result's size). */
void key_sum_finish(const key_sum *sum, const assay_contract *contract, int64_t keys, int64_t D, double *variance) {
  const double lanes = lanes_of(contract, keys), chain = (double)sum->terms / lanes;
  const double most = key_sum_variance(contract, keys, sum->terms);
  for (int64_t d = 0; d < D; ++d) {
    const double S = sum->running[d] * sum->running[d], Q = sum->square[d];
    const double standing = sum->walk[d] / (lanes * lanes);
    const double shuffled = (chain + 1) * ((S > Q ? (S - Q) / (3 * lanes) : 0) + Q / 2);
    const double own = f32_variance * ((standing > shuffled ? standing : shuffled) + Q + 2 * (S > Q ? S : Q));
    const double bound = most * sum->abs[d] * sum->abs[d];
    variance[d] += own < bound ? own : bound;
  }
}

/* The accumulation's formula takes the terms for alike. A term that outweighs the others (a channel that all keys
 * share) is rounded again with every later addition of its running sum: chain · x^2. What sum x^2 has above that of
 * products of normal values, (pi / 2)^2 (sum |x|)^2 / D, is counted so. A relative rounding of every k_d adds
 * sum (q_d k_d)^2 of its relative variance. */
double dot_variance(const assay_contract *contract, int64_t D, double abs_dot, double square_dot, bool k_is_rounded) {
  const double lanes = contract->qk_lanes > 0 ? contract->qk_lanes : 1;
  double variance = abs_dot * abs_dot * accumulation_variance((double)D, lanes);
  const double heavy = square_dot - 2.4674 * abs_dot * abs_dot / (double)D;
  if (heavy > 0) variance += f32_variance * ((double)D / lanes) * heavy;
  if (k_is_rounded) {
    /* f32_variance belongs to 24 bits; each bit less is four times as much. */
    const int lost = 24 - lattice_width(contract->k);
    variance += square_dot * f32_variance * (double)(1ull << (2 * lost));
  }
  return variance;
}
