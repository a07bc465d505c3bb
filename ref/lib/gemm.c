/* gemm.c: dot products of rows. */
#include "ref/lib/gemm.h"

#include <math.h>

#include "ref/lib/error_model.h"
#include "ref/lib/lattice.h"

double gemm_dot(const double *a, const double *b, int64_t K) {
  double sum = 0;
  for (int64_t k = 0; k < K; ++k)
    sum += a[k] * b[k];
  return sum;
}

gemm_sum gemm_walk(const double *a, const double *b, int64_t K) {
  gemm_sum s = {0, 0, 0, 0};
  for (int64_t k = 0; k < K; ++k) {
    const double x = a[k] * b[k];
    s.sum += x;
    s.abs += fabs(x);
    s.walk += s.sum * s.sum;
    s.square += x * x;
  }
  return s;
}

/* Every addition rounds a running sum: f32_variance · sum_k S_k^2. Taken for the terms as they stand and as the mean
 * over all orders, chain · ((S^2 - Q) / (3 lanes) + Q / 2) with Q = sum x^2; the larger counts. On l lanes each running
 * sum is about S_k / l. Products may be rounded (Q), and the lanes' sums are combined. At most the bound for terms of
 * one sign. */
double gemm_variance(const gemm_sum *s, const assay_contract *contract, int64_t K) {
  const double lanes = contract->lanes > 0 ? contract->lanes : 1, chain = (double)K / lanes;
  const double S = s->sum * s->sum, Q = s->square;
  const double standing = s->walk / (lanes * lanes);
  const double shuffled = (chain + 1) * ((S > Q ? (S - Q) / (3 * lanes) : 0) + Q / 2);
  const double own = f32_variance * ((standing > shuffled ? standing : shuffled) + Q + 2 * (S > Q ? S : Q));
  const double bound = accumulation_variance((double)K, lanes) * s->abs * s->abs;
  const double f32 = own < bound ? own : bound;
  const bool narrow = contract->partial != ASSAY_NONE && contract->partial != ASSAY_F32;
  return narrow ? f32 + storing_variance(s->sum, contract->partial) : f32;
}

bool gemm_admits(const gemm_sum *s, const assay_contract *contract, int low_a, int low_b) {
  return lattice_admits(s->abs, low_a + low_b, lattice_width(contract->partial));
}
