/* online.h: serves a trace's requests as they arrive, by continuous batching. Prefills are chunked, blocks are paged,
 * prefixes are cached, and the youngest request is preempted where the pool is full. */
#ifndef ASSAY_BENCH_ONLINE_H
#define ASSAY_BENCH_ONLINE_H

#include "conformance/suite/suite.h"
#include "scenario.h"

typedef struct online_plan {
  const trace *from;
  double scale;                                          /* arrivals come so much faster than recorded */
  double seconds;                                        /* served from the trace's first request on; 0: all */
  int64_t requests;                                      /* at most; 0: all */
  int64_t part;                                          /* prompts and outputs an n-th as long */
  int64_t max_batch, max_tokens, num_blocks, max_length; /* longer requests are cut to that */
} online_plan;

typedef struct online_points {
  double p50, p90, p99, mean; /* ms */
} online_points;

typedef struct online_result {
  bool there;
  char why[400];
  online_points ttft, tpot, itl, e2e;
  double seconds, output_rate, prompt_rate, request_rate, offered_rate; /* a second; offered: requests */
  int64_t requests, output_tokens, prompt_tokens, hit_tokens, preempted, steps, replays, cut, most_open;
  int64_t agreed[2];
} online_result;

assay_status online_run(const scenario_setup *setup, const online_plan *plan, online_result *result,
                        assay_error *error);
void online_points_of(double *ms, int64_t count, online_points *made); /* sorts */
void online_write(FILE *to, const scenario_setup *setup, const online_plan *plan, const online_result *result);

#endif
