/* stats.h: a list of times as a median with its interval. */
#ifndef ASSAY_BENCH_STATS_H
#define ASSAY_BENCH_STATS_H

#include <stdint.h>

/* low, high: 95 % interval of the median, by ranks, without an assumption about the distribution; below 6 samples there
 * is none, and they are the smallest and the largest. */
typedef struct bench_spread {
  int64_t count;
  double median, low, high, q1, q3, min, max;
} bench_spread;

/* Sorts `sample`. */
void bench_spread_of(double *sample, int64_t count, bench_spread *made);
/* Half the interval over the median; HUGE_VAL where that says nothing. */
double bench_half_width(const bench_spread *s);
/* Samples in the order they were taken: median of the later half over that of the earlier one. 1 below 8 samples. */
double bench_halves(const double *sample, int64_t count);
/* How many samples lie outside on either side: the interval is from number `rank` to number count - 1 - rank, from 0.
 * -1: no interval of 95 %. */
int64_t bench_interval_rank(int64_t count);

#endif
