/* stats.c: order statistics. */
#include "stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double middle(const double *sorted, int64_t count) {
  return count % 2 != 0 ? sorted[count / 2] : 0.5 * (sorted[count / 2 - 1] + sorted[count / 2]);
}

/* The number of samples below the median is binomial (count, 1/2): the largest r with P(fewer than r + 1) <= 2.5 %. */
int64_t bench_interval_rank(int64_t count) {
  const double n = (double)count;
  double below = 0;
  for (int64_t k = 0; k < count; ++k) {
    const double x = (double)k;
    below += exp(lgamma(n + 1) - lgamma(x + 1) - lgamma(n - x + 1) - n * log(2.0));
    if (below > 0.025) return k - 1;
  }
  return -1;
}

void bench_spread_of(double *sample, int64_t count, bench_spread *made) {
  *made = (bench_spread){.count = count};
  if (count < 1) return;
  qsort(sample, (size_t)count, sizeof *sample, by_value);
  const int64_t found = bench_interval_rank(count), rank = found < 0 ? 0 : found;
  made->median = middle(sample, count);
  made->low = sample[rank];
  made->high = sample[count - 1 - rank];
  made->q1 = sample[count / 4];
  made->q3 = sample[count - 1 - count / 4];
  made->min = sample[0];
  made->max = sample[count - 1];
}

double bench_half_width(const bench_spread *s) {
  if (bench_interval_rank(s->count) < 0 || !(s->median > 0)) return HUGE_VAL;
  return 0.5 * (s->high - s->low) / s->median;
}

double bench_halves(const double *sample, int64_t count) {
  const int64_t half = count / 2;
  bench_spread early, late;
  double *copy = count >= 8 ? malloc((size_t)count * sizeof *copy) : NULL;
  if (copy == NULL) return 1;
  memcpy(copy, sample, (size_t)count * sizeof *copy);
  bench_spread_of(copy, half, &early);
  bench_spread_of(copy + count - half, half, &late);
  free(copy);
  return early.median > 0 ? late.median / early.median : 1;
}
