/* results_power.h: planted errors over the files of a campaign. A shard has a part of the cases, and cannot say of a
 * planted error that too few of them were changed by it; all shards together say what one run would have said. */
#ifndef ASSAY_CONFORMANCE_RESULTS_POWER_H
#define ASSAY_CONFORMANCE_RESULTS_POWER_H

#include "report.h"
#include "results.h"

/* Do a run's cases, its lines about planted errors and its last line name the same numbers? Else writes what does not
 * agree. True for what is no run of suites. */
bool results_power_adds_up(const results *r, int64_t run, char *what, size_t size);

/* Sums up each whole run, and all shards of each other, in files without gaps (groups_gaps), and writes to `out` what
 * a run writes. What a suite would miss is added to the notes of `r`. */
assay_status results_power_join(results *r, report *out, assay_error *error);

#endif
