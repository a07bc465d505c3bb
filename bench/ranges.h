/* ranges.h: names and borders for a profiler: NVTX ranges, and the region that it is asked to record. Without a
 * profiler, or without its headers, they do nothing. */
#ifndef ASSAY_BENCH_RANGES_H
#define ASSAY_BENCH_RANGES_H

#include <stdbool.h>

/* A range "operator/variant" of this thread. */
void ranges_push(const char *op, const char *variant);
void ranges_pop(void);
/* From here on, or no longer: what nsys --capture-range=cudaProfilerApi and ncu --profile-from-start off record. */
void ranges_profiler(bool on);

#endif
