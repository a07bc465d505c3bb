/* limit.h: the time below which no implementation can be, by what the device was measured to do. */
#ifndef ASSAY_BENCH_LIMIT_H
#define ASSAY_BENCH_LIMIT_H

#include "run.h"

typedef struct bench_bound {
  double us;      /* 0: no limit is known */
  const char *by; /* "bytes", "fma", "mma", "gemm", "mma8", "gemm8" */
} bench_bound;

/* Returns the type of the factors that a call multiplies. It is that of its arguments a and b where both have 8 bits,
 * else that of the case. */
assay_dtype bench_factors(const assay_case *one, const assay_call *call);
/* Returns the larger of two times: bytes over the copy rate, and operations over the rate of the units made for the
 * factors. These are plain cores for f32, else tensor cores, by mma.sync or a library's product, the faster of both.
 * For factors of 8 bits they are the fastest of those of e4m3 and of bf16. */
bench_bound bench_limit(const assay_cost *cost, const bench_limits *limits, assay_dtype factors);

#endif
