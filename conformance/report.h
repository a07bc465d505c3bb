/* report.h: text, JSONL, JUnit. Files appear whole (written beside, renamed at the end) or not at all; the JSONL grows
 * as PATH.partial, which an interrupted run leaves behind to be continued. */
#ifndef ASSAY_CONFORMANCE_REPORT_H
#define ASSAY_CONFORMANCE_REPORT_H

#include <stdio.h>

#include "assay/device.h"
#include "judge.h"

typedef struct report report;

typedef struct report_options {
  FILE *text;        /* progress and failures */
  bool progress;     /* a terminal: show a running line */
  const char *jsonl; /* NULL: none */
  const char *junit; /* NULL: none */
  const char *device;
  const assay_device_info *info;
  uint64_t seed;
  int64_t total;
  int32_t shard, shards; /* 0, 0: all of it */
  bool whole;            /* no case of the suites is left out but by sharding: claims can be looked at */
  const char *power;     /* how planted errors are tried; NULL: not a run of suites, and none of the next two */
  bool every_variant;    /* no variant was chosen by name: planted errors can be judged, over all shards at least */
  uint64_t plan;         /* hash of all cases, those of other shards with them (campaign_plan) */
  int64_t past;          /* the first results are in PATH.partial already, in its first past_bytes */
  int64_t past_bytes;
} report_options;

/* The commit this program was built from. */
const char *report_commit(void);

assay_status report_open(const report_options *options, report **made, assay_error *error);
/* One result; prints a line with `assay replay '…'` for all that are not good. */
void report_add(report *r, const assay_case *one, const case_result *result);
/* A failure that a ledger expects: in the files, and no failure of the run. */
void report_expected(report *r, const assay_case *one, const case_result *result, const char *reason);
/* Off: what follows goes into the files alone. */
void report_print(report *r, bool on);
/* Claims without a PASS: called once per (variant, combination). Counts as a failure. */
void report_unclaimed(report *r, const char *variant, const char *combination);
/* law: "<op> on <device>: law <name>", which no case that passed was asked. */
void report_unasked(report *r, const char *op, const char *law);
/* A variant that was forced in models and that no case which passed took. Counts as a failure. */
void report_untaken(report *r, const char *op, const char *variant);
/* What became of one planted error over the run (power.h); `shown`: as a line of text as well. */
void report_power(report *r, const char *op, const char *spoil, int64_t seen, int64_t unseen, int64_t weak,
                  int64_t empty, bool shown);
/* A suite in which a planted error would have passed. Counts as a failure. */
void report_weak(report *r, const char *suite, const char *spoil, const char *why);
/* A line of text and nothing else. */
void report_line(report *r, const char *text);
/* Prints the one summary line, writes the files, gives the exit code: 0, 1, 3 (nothing ran), 77. */
int report_close(report *r, assay_error *error);
/* The run was interrupted: prints the summary, leaves PATH.partial, and nothing under a final name. */
void report_abandon(report *r);

#endif
