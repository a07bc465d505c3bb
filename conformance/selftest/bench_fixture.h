/* bench_fixture.h: fake_mix on a device with a clock of its own and a cache that can be cold; its kernel can be wrong
 * in one way at a time, after the judge has seen it right. */
#ifndef ASSAY_SELFTEST_BENCH_FIXTURE_H
#define ASSAY_SELFTEST_BENCH_FIXTURE_H

#include "bench/sandwich.h"
#include "fake_plain.h"

typedef enum late_fault {
  LATE_NONE,
  LATE_ALWAYS,       /* wrong from the first call on */
  LATE_AFTER,        /* from call number bench_late on, the first timed one is 1 */
  LATE_ONCE,         /* in that call alone */
  LATE_COLD,         /* in the first call after the cache was flushed */
  LATE_CACHED,       /* writes again what it wrote to the same address last time, from call number bench_late on */
  LATE_OTHER_STREAM, /* the work is done when all of the device is waited for, and not counted by the clock */
  LATE_SLOW_STREAM,  /* likewise, but a part of it that changes no result */
  LATE_GUARD,        /* writes beyond y from that call on */
  LATE_INPUT,        /* changes g */
  LATE_CRASH,
  LATE_FAULT /* the device faults */
} late_fault;

extern late_fault bench_fault;
extern int64_t bench_late;
extern bool bench_large; /* as if the case were large: no laws with runs of their own; a few sets fill the cache */
/* A launch's time by the device's clock, and by how much it varies at random. */
extern double bench_launch_us, bench_jitter;

extern const assay_device bench_device;
extern const assay_variant bench_variant;

/* fake_mix, N 12, C 16, y apart, f32. Calls are counted as timed from the moment the judge is done. */
assay_case bench_fixture_case(void);
void bench_fixture_time(bench_result *result);

#endif
