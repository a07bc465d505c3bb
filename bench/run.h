/* run.h: cases timed one after the other in a worker process; one that crashes, hangs or faults is replaced. */
#ifndef ASSAY_BENCH_RUN_H
#define ASSAY_BENCH_RUN_H

#include "sandwich.h"

/* The device's highest rates, measured by the worker before its first case. */
typedef struct bench_limits {
  bool there;
  double rate[ASSAY_RATES]; /* a second */
  int64_t cache_bytes;
} bench_limits;

/* The device is open; NULL, or without a clock: none. */
assay_status bench_measure(const assay_device *device, bench_limits *limits, assay_error *error);

typedef struct bench_job {
  const assay_case *cases; /* variant and device filled; device "ref": the reference itself */
  /* NULL, or [count]: cases one after the other with the same number are one case with several variants. The first that
   * takes it is timed, and done() is not called for those after it. */
  const int64_t *group;
  int64_t count;
  bench_options options;
  double deadline_s; /* for each case, all of it */
  bool in_process;
  /* In order, each at most once; begun() before all of them, and again where a worker had to be replaced. */
  void (*begun)(void *context, const bench_limits *limits);
  void (*done)(void *context, int64_t index, const bench_result *result);
  void *context;
} bench_job;

assay_status bench_run(const bench_job *job, assay_error *error);

#endif
