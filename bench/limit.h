/* limit.h: the time below which no implementation can be, by what the device was measured to do. */
#ifndef ASSAY_BENCH_LIMIT_H
#define ASSAY_BENCH_LIMIT_H

#include "run.h"

typedef struct bench_bound {
  double us;      /* 0: no limit is known */
  const char *by; /* "bytes", "fma", "mma", "gemm" */
} bench_bound;

/* The larger of two times: bytes over the copy rate, and operations over the rate of the units made for the type. These
 * are plain cores for f32, else tensor cores, by mma.sync or a library's product, the faster of both. */
bench_bound bench_limit(const assay_cost *cost, const bench_limits *limits, assay_dtype dtype);

#endif
