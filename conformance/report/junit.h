/* junit.h: results as JUnit XML, a testsuite per suite. Private to the report. */
#ifndef ASSAY_CONFORMANCE_REPORT_JUNIT_H
#define ASSAY_CONFORMANCE_REPORT_JUNIT_H

#include <stdio.h>

#include "conformance/judge/judge.h"
#include "conformance/text/text.h"
#include "replay.h"

typedef struct junit junit;

/* Begins a file that gets its name `path` in junit_close. */
assay_status junit_open(const char *path, junit **made, assay_error *error);
/* Adds a result. `expected`: the reason of a failure that is expected, or NULL. */
void junit_case(junit *j, const assay_case *one, const case_result *result, const replay *again, const char *expected);
/* Adds a failure that belongs to no case: a claim, a law or a forced variant without a PASS. */
void junit_unclaimed(junit *j, const char *subject, const char *what, const char *why);
/* Adds a result that is no case of a suite: PASS, FAIL, or UNSUPPORTED for what is not covered. */
void junit_line(junit *j, const char *in, const char *name, verdict v, const char *message);
/* Adds a planted error that the suite would miss. */
void junit_weak(junit *j, const char *suite, const char *spoil, const char *why);
/* Writes the file with the counts of every suite, and frees `j`. NULL is no file. Fails if a write failed; nothing is
 * left under the name then. */
assay_status junit_close(junit *j, double seconds, assay_error *error);
/* Removes what was written, and frees `j`. */
void junit_discard(junit *j);

#endif
