/* slack.h: the contract by which each variant of a run was judged, and how much of its limits the variant used. */
#ifndef ASSAY_CONFORMANCE_REPORT_SLACK_H
#define ASSAY_CONFORMANCE_REPORT_SLACK_H

#include "run_report.h"

typedef struct slack slack;

assay_status slack_open(slack **made, assay_error *error);
void slack_note(slack *all, const assay_case *one, const case_result *result);
/* Prints one line per variant that ran: "contract rms_norm/mine: exp_ulp 2, lanes 1; showed 0.6 of an element's limit
 * ...". Variants of plug-ins have one; with `chosen`, those that are built in have one too. Variants that do not
 * promise `alone` have a line that says in how many calls of other sizes a row had other bits. */
void slack_report(const slack *all, bool chosen, report *out);
void slack_close(slack *all);

#endif
