/* results_power.h: planted errors over the files of a campaign. A shard has a part of the cases. It cannot say that too
 * few cases were changed by a planted error; all shards together say what one run would have said. */
#ifndef ASSAY_CONFORMANCE_REPORT_RESULTS_POWER_H
#define ASSAY_CONFORMANCE_REPORT_RESULTS_POWER_H

#include "run_report.h"
#include "results.h"

/* Returns 1 if a run's cases, its lines about planted errors and its last line name the same numbers. Returns 1 for a
 * file that is no run of suites as well. Returns 0 and writes what does not agree, or -1 if there is no memory. */
int results_power_adds_up(const results *r, int64_t run, char *what, size_t size);

/* Sums up each whole run, and each run in shards, in files without gaps (groups_gaps). Writes to `out` what a run
 * writes. Adds the planted errors that a suite would miss to the notes of `r`. */
assay_status results_power_join(results *r, report *out, assay_error *error);

#endif
