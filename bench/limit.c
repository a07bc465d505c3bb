/* limit.c: roofline. */
#include "limit.h"

bench_bound bench_limit(const assay_cost *cost, const bench_limits *limits, assay_dtype dtype) {
  const assay_rate unit = dtype == ASSAY_F32 ? ASSAY_RATE_FMA : ASSAY_RATE_MMA;
  if (!limits->there || !(limits->rate[ASSAY_RATE_COPY] > 0) || !(limits->rate[unit] > 0))
    return (bench_bound){0, "none"};
  const double bytes = cost->bytes / limits->rate[ASSAY_RATE_COPY] * 1e6;
  const double flops = cost->flops / limits->rate[unit] * 1e6;
  if (bytes >= flops) return (bench_bound){bytes, "bytes"};
  return (bench_bound){flops, unit == ASSAY_RATE_FMA ? "fma" : "mma"};
}
