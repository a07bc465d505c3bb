/* report_file.h: one result as JSONL and as JUnit. Private to the report. */
#ifndef ASSAY_CONFORMANCE_REPORT_FILE_H
#define ASSAY_CONFORMANCE_REPORT_FILE_H

#include "report.h"

typedef struct report_totals {
  int64_t verdicts[VERDICT_WEAK + 1], expected, unclaimed, weak; /* weak: planted errors that suites would miss */
  int64_t spoils;                                                /* planted errors tried, over all cases */
  double seconds;
} report_totals;

/* `descriptor`: the case as one line. */
void file_jsonl_header(FILE *to, const report_options *options);
/* `expected`: the reason of a failure that is, or NULL. */
void file_jsonl_case(FILE *to, const assay_case *one, const case_result *result, const char *descriptor,
                     const char *expected);
/* What the run was to confirm and did not: a claim of a variant, a forced variant, a law of an operator. */
void file_jsonl_unclaimed(FILE *to, const char *subject, const char *what, const char *why);
void file_jsonl_power(FILE *to, const char *op, const char *spoil, int64_t seen, int64_t unseen, int64_t weak,
                      int64_t empty);
void file_jsonl_weak(FILE *to, const char *suite, const char *spoil, const char *why);
/* The last line: a file without it is not whole. */
void file_jsonl_end(FILE *to, const report_totals *totals, int64_t cases);
/* The header has the totals, which are known last: it is written twice, at the same length. */
void file_junit_header(FILE *to, const report_totals *totals);
void file_junit_case(FILE *to, const assay_case *one, const case_result *result, const char *descriptor,
                     const char *expected);
void file_junit_unclaimed(FILE *to, const char *subject, const char *what, const char *why);
void file_junit_weak(FILE *to, const char *suite, const char *spoil, const char *why);
void file_junit_end(FILE *to);

const char *file_tier_name(case_tier tier);
const char *file_section_name(case_section section);

#endif
