/* sum_counts.h: a line of counts of drawn steps, for evidence. */
#ifndef ASSAY_SELFTEST_SUM_COUNTS_H
#define ASSAY_SELFTEST_SUM_COUNTS_H

#include <cstdint>
#include <cstdio>
#include <cstdlib>

/* Appends a line to the file that ASSAY_SUM_COUNTS names, if it names one. seconds: what the predictor took. depth: the
 * products of a step. */
inline void sum_counts_add(const char *unit, const char *types, int64_t steps, int64_t differ, double seconds,
                           int64_t depth) {
  const char *const path = getenv("ASSAY_SUM_COUNTS");
  FILE *const to = path != nullptr ? fopen(path, "a") : nullptr;
  if (to == nullptr) return;
  const double products = static_cast<double>(steps * depth);
  (void)fprintf(to,
                "{\"unit\": \"%s\", \"types\": \"%s\", \"steps\": %lld, \"differ\": %lld, "
                "\"ns_per_product\": %.2f}\n",
                unit, types, static_cast<long long>(steps), static_cast<long long>(differ),
                products > 0 ? 1e9 * seconds / products : 0.0);
  (void)fclose(to);
}

#endif
