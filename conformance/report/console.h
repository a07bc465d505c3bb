/* console.h: the text of a run: failures by kind, progress, the tables at its end. Private to the report. */
#ifndef ASSAY_CONFORMANCE_REPORT_CONSOLE_H
#define ASSAY_CONFORMANCE_REPORT_CONSOLE_H

#include "file.h"
#include "replay.h"
#include "run_report.h"
#include "tally.h"

/* The text of one run. `to` is NULL if none is wanted. */
typedef struct console {
  FILE *to;
  bool progress;  /* a terminal: a running line is kept up to date */
  bool colour;    /* verdicts have colours */
  bool all;       /* every failure and every reason is printed */
  bool silent;    /* nothing is printed for now; results are counted nevertheless */
  bool line_open; /* a running line is on the terminal */
  double started_ms, shown_ms;
  tally failures, unsupported;
} console;

/* How far a run is. */
typedef struct console_state {
  int64_t done, total;    /* cases; total 0: not known */
  double work, work_done; /* in units of campaign_cost, cases of an earlier run left out; work 0: not known */
  int64_t past;           /* cases of an earlier run */
  int64_t failed;
} console_state;

void console_open(console *c, const report_options *options);
void console_free(console *c);
/* Prints a line; its first word has a colour if it is a verdict. */
void console_line(console *c, const char *text);
/* Counts a result. Prints a failure with its replay line if it is the first of its kind, or if all are wanted. */
void console_result(console *c, const assay_case *one, const case_result *result, const replay *again);
/* Brings the running line up to date, at most ten times per second. */
void console_progress(console *c, const console_state *state);
/* Prints how many further failures each kind had, and UNSUPPORTED by reason. */
void console_tables(console *c);
/* Prints the counts of all verdicts on one line. `device` may be NULL. */
void console_summary(console *c, const report_totals *totals, int64_t cases, const char *device);
/* Prints a duration such as "1 h 5 min", "2 min 5 s" or "7 s". */
void console_duration(FILE *to, double seconds);

#endif
