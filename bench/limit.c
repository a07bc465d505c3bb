/* limit.c: roofline. */
#include "limit.h"

static bool is_eight(assay_dtype dtype) {
  return dtype == ASSAY_E4M3 || dtype == ASSAY_E5M2;
}

/* Returns the fastest unit that can multiply factors of a type. A factor of 8 bits is a bf16 as well. */
static assay_rate unit_of(const bench_limits *limits, assay_dtype factors) {
  static const assay_rate tensor[] = {ASSAY_RATE_MMA, ASSAY_RATE_GEMM, ASSAY_RATE_MMA8, ASSAY_RATE_GEMM8};
  const int units = is_eight(factors) ? 4 : 2;
  if (factors == ASSAY_F32) return ASSAY_RATE_FMA;
  assay_rate best = ASSAY_RATE_MMA;
  for (int i = 1; i < units; ++i)
    if (limits->rate[tensor[i]] > limits->rate[best]) best = tensor[i];
  return best;
}

assay_dtype bench_factors(const assay_case *one, const assay_call *call) {
  const assay_tensor *a = assay_find_arg(call, "a"), *b = assay_find_arg(call, "b");
  return a != NULL && b != NULL && is_eight(a->dtype) && is_eight(b->dtype) ? a->dtype : one->dtype;
}

bench_bound bench_limit(const assay_cost *cost, const bench_limits *limits, assay_dtype factors) {
  static const char *const name[ASSAY_RATES] = {"bytes", "fma", "mma", "gemm", "mma8", "gemm8"};
  const assay_rate unit = unit_of(limits, factors);
  if (!limits->there || !(limits->rate[ASSAY_RATE_COPY] > 0) || !(limits->rate[unit] > 0))
    return (bench_bound){0, "none"};
  const double bytes = cost->bytes / limits->rate[ASSAY_RATE_COPY] * 1e6;
  const double flops = cost->flops / limits->rate[unit] * 1e6;
  if (bytes >= flops) return (bench_bound){bytes, "bytes"};
  return (bench_bound){flops, name[unit]};
}
