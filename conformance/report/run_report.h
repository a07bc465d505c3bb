/* run_report.h: the results of a run, as text, JSONL and JUnit. Files appear whole or not at all: they are written
 * beside their names and renamed at the end. The JSONL grows as PATH.partial. An interrupted run leaves that file, and
 * can be continued from it. */
#ifndef ASSAY_CONFORMANCE_REPORT_RUN_REPORT_H
#define ASSAY_CONFORMANCE_REPORT_RUN_REPORT_H

#include <stdio.h>

#include "assay/device.h"
#include "conformance/judge/judge.h"

typedef struct report report;

/* A run, and what is wanted of its report. */
typedef struct report_options {
  FILE *text;        /* progress and failures; NULL: none */
  bool progress;     /* a terminal: shows a running line */
  bool colour;       /* verdicts in colours */
  bool all;          /* prints every failure, and every reason of UNSUPPORTED */
  int64_t maxfail;   /* report_is_full after that many failures; 0: never */
  const char *jsonl; /* NULL: none */
  const char *junit; /* NULL: none */
  const char *device;
  const assay_device_info *info;
  uint64_t seed;
  int64_t total;         /* cases; 0: not known */
  double work;           /* sum of campaign_cost over the cases that are still to run; 0: not known */
  int32_t shard, shards; /* 0, 0: all of it */
  bool whole;            /* no case is left out, except by sharding and thinning: claims can be judged */
  bool thin;             /* suites are thinned (case_list_thin) */
  const char *power;     /* how planted errors are tried; NULL: no run of suites, and the next two are not set */
  bool every_variant;    /* no variant was chosen by name: planted errors can be judged, over all shards at least */
  uint64_t plan;         /* hash of all cases, those of other shards included (campaign_plan) */
  int64_t past;          /* number of results that PATH.partial holds already, in its first past_bytes */
  int64_t past_bytes;
  const char *forced; /* models: "op=variant" of each --variant, one per line; NULL: none */
  double deadline_s;  /* where it is not the usual one; else 0 */
} report_options;

/* Returns the commit this program was built from. */
const char *report_commit(void);
/* Writes the hash of the program's file, as the header of a run has it. */
void report_binary(char text[24]);

/* Makes a report. Fails if a file cannot be made; nothing is left of it then. */
assay_status report_open(const report_options *options, report **made, assay_error *error);
/* Adds one result. Prints a failure and its replay line if it is the first of its kind, or with `all`. A result after
 * report_is_full is dropped. */
void report_add(report *r, const assay_case *one, const case_result *result);
/* Adds a failure that a ledger expects: it goes into the files, and is no failure of the run. */
void report_expected(report *r, const assay_case *one, const case_result *result, const char *reason);
/* Returns true after `maxfail` failures: no further case is wanted. */
bool report_is_full(const report *r);
/* Returns true if the run ended by `maxfail` with cases left: it is not whole then. */
bool report_is_stopped(const report *r);
/* Off: results go into the files alone until it is on again. */
void report_print(report *r, bool on);
/* Adds a claim without a PASS, once per variant and combination. Counts as a failure. */
void report_unclaimed(report *r, const char *variant, const char *combination);
/* Adds a law that no case that passed was asked. `law` is "<op> on <device>: law <name>". Counts as a failure. */
void report_unasked(report *r, const char *op, const char *law);
/* Adds a variant that was forced in models and that no case that passed took. Counts as a failure. */
void report_untaken(report *r, const char *op, const char *variant);
/* Adds the counts of one planted error over the run (power.h). `shown`: prints them as well. */
void report_power(report *r, const char *op, const char *spoil, int64_t seen, int64_t unseen, int64_t weak,
                  int64_t empty, bool shown);
/* Adds a suite in which a planted error would have passed. Counts as a failure. */
void report_weak(report *r, const char *suite, const char *spoil, const char *why);
/* Prints a line of text, which goes into no file. */
void report_line(report *r, const char *text);
/* Prints the tables and the one summary line, writes the files, and frees `r`. Returns the exit code: 0 good, 1 a
 * failure, 2 a file cannot be written, 3 nothing ran, 77 no such device. */
int report_close(report *r, assay_error *error);
/* Frees the report of an interrupted run: prints the summary and leaves PATH.partial, nothing under a final name. */
void report_abandon(report *r);

#endif
