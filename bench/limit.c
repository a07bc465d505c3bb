/* limit.c: roofline. */
#include "limit.h"

static assay_rate unit_of(const bench_limits *limits, assay_dtype dtype) {
  if (dtype == ASSAY_F32) return ASSAY_RATE_FMA;
  return limits->rate[ASSAY_RATE_GEMM] > limits->rate[ASSAY_RATE_MMA] ? ASSAY_RATE_GEMM : ASSAY_RATE_MMA;
}

bench_bound bench_limit(const assay_cost *cost, const bench_limits *limits, assay_dtype dtype) {
  static const char *const name[ASSAY_RATES] = {"bytes", "fma", "mma", "gemm"};
  const assay_rate unit = unit_of(limits, dtype);
  if (!limits->there || !(limits->rate[ASSAY_RATE_COPY] > 0) || !(limits->rate[unit] > 0))
    return (bench_bound){0, "none"};
  const double bytes = cost->bytes / limits->rate[ASSAY_RATE_COPY] * 1e6;
  const double flops = cost->flops / limits->rate[unit] * 1e6;
  if (bytes >= flops) return (bench_bound){bytes, "bytes"};
  return (bench_bound){flops, name[unit]};
}
