/* sandwich.h: a case judged, timed, and what the timed launches left judged again. No figure without both. */
#ifndef ASSAY_BENCH_SANDWICH_H
#define ASSAY_BENCH_SANDWICH_H

#include "conformance/judge/judge.h"
#include "stats.h"

/* cold: the inputs are in no cache. warm: they were written right before. host: no cache is known, the clock is the
 * host's. */
typedef enum bench_mode { BENCH_COLD, BENCH_WARM, BENCH_HOST, BENCH_MODES } bench_mode;

typedef struct bench_options {
  double target;   /* half the 95 % interval over the median at which sampling ends */
  double budget_s; /* seconds of sampling, for each mode */
  int32_t min_samples, max_samples;
  int64_t memory_bytes; /* for input sets, at most */
  double flops;         /* the reference computes rows worth about so much; 0: all that the case says */
  int64_t large_bytes;  /* a case with more bytes of tensors is not asked laws that need further runs of their own */
} bench_options;

enum { BENCH_MAX_SAMPLES = 1000, BENCH_CONTENTS = 2, BENCH_MIN_SETS = 4, BENCH_GRAPH_SETS = 16, BENCH_MAX_SETS = 64 };
static inline bench_options bench_usual(void) {
  return (bench_options){0.01, 1.0, 20, 300, (int64_t)6 << 30, 4e9, (int64_t)24 << 20};
}

typedef struct bench_figure {
  bool there;
  char why[96];     /* not there: the reason */
  bench_spread us;  /* time of one launch: a sample's time over its launches */
  double halves;    /* later over earlier half of the samples */
  double empty_us;  /* an empty launch in the same form; 0: not measured */
  int32_t launches; /* in a sample, each over input and output memory of its own */
} bench_figure;

/* Plain data: it crosses a pipe. */
typedef struct bench_result {
  case_result judged; /* PASS: before and after; all else: no figure */
  bool after;         /* the mistake was found after the judge had passed the case */
  bench_figure figure[BENCH_MODES];
  assay_cost cost;
  assay_dtype factors;                  /* bench_factors */
  assay_device_state before, behind;    /* the device, before and after the samples */
  double judged_s, contents_s, timed_s; /* where the time of the case went */
} bench_result;

const char *bench_mode_name(bench_mode mode);
/* As judge_case; the device is open. */
void bench_case(const assay_case *one, const assay_variant *variant, const assay_device *device,
                const bench_options *options, bench_result *result);
/* Gives back what bench_case keeps for the next variant of the case. */
void bench_release(void);
/* The reference on the host's clock, values only, judged against itself: the same bits each time. */
void bench_reference(const assay_case *one, const bench_options *options, bench_result *result);
/* Rows for which the reference does about `flops` operations and gives at most 2^21 elements; 0: all of them. */
int32_t bench_rows(const assay_op *op, const assay_call *call, int64_t rows, double flops);

#endif
