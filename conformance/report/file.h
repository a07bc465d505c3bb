/* file.h: results as JSONL, and the totals of a run. Private to the report. */
#ifndef ASSAY_CONFORMANCE_REPORT_FILE_H
#define ASSAY_CONFORMANCE_REPORT_FILE_H

#include "run_report.h"

/* The totals of a run. */
typedef struct report_totals {
  int64_t verdicts[VERDICT_WEAK + 1], expected, unclaimed, weak; /* weak: planted errors that suites would miss */
  int64_t spoils;                                                /* planted errors tried, over all cases */
  double seconds;
  bool stopped; /* by --maxfail, with cases left */
} report_totals;

/* Writes the first line: what the run is, and what its replay lines need. */
void file_jsonl_header(FILE *to, const report_options *options);
/* Writes a result. `descriptor`: the case as one line; `expected`: the reason of a failure that is expected, or NULL.
 */
void file_jsonl_case(FILE *to, const assay_case *one, const case_result *result, const char *descriptor,
                     const char *expected);
/* Writes what the run was to confirm and did not: a claim of a variant, a forced variant, a law of an operator. */
void file_jsonl_unclaimed(FILE *to, const char *subject, const char *what, const char *why);
void file_jsonl_power(FILE *to, const char *op, const char *spoil, int64_t seen, int64_t unseen, int64_t weak,
                      int64_t empty);
void file_jsonl_weak(FILE *to, const char *suite, const char *spoil, const char *why);
/* Writes the last line: a file without it is not whole. */
void file_jsonl_end(FILE *to, const report_totals *totals, int64_t cases);

#endif
