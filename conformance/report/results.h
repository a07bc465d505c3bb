/* results.h: the JSONL files of runs, read back for the page, for comparing, and for campaigns in many files. */
#ifndef ASSAY_CONFORMANCE_REPORT_RESULTS_H
#define ASSAY_CONFORMANCE_REPORT_RESULTS_H

#include <stdbool.h>
#include <stdint.h>

#include "assay/status.h"
#include "conformance/judge/judge.h"
#include "replay.h"

/* RESULTS_SCHEMA: of the lines that this program writes and reads; a header without one has it. */
enum { RESULTS_AXES = 4, RESULTS_SCHEMA = 1, RESULTS_MOST_SHARDS = 999999 };

/* A case of a run. Strings live as long as the results. Equal strings have one address, except descriptors. */
typedef struct results_case {
  const char *descriptor, *message;
  const char *op, *variant, *device, *suite, *section, *name, *tier, *check, *path;
  const char *laws, *spoils_seen, *spoils_unseen, *spoils_void, *spoils_weak; /* names with commas */
  const char *axis[RESULTS_AXES]; /* its values along the operator's axes (case_axes), in order; "" after the last */
  verdict verdict;
  double ratio_element, ratio_row, ratio_request, reference_ms, run_ms;
  int64_t size, batch, live_keys; /* size: the longest kv_len; plain operators: elements of all tensors */
  uint64_t seed;
  int32_t run;
  bool expected; /* a failure that a ledger lists */
} results_case;

typedef struct results_run {
  const char *file, *version, *device, *device_name, *driver, *toolkit, *commit, *binary;
  const char *shard;        /* "i/n" with 1 <= i <= n; "": not a shard */
  const char *power, *plan; /* "": not a run of suites, or of an older program */
  uint64_t seed;
  int64_t planned, cases;
  int64_t end_cases; /* cases by its last line; -1: it has none that says so */
  uint64_t hash;     /* the hash of all its lines */
  int64_t spoils;    /* planted errors that it says it tried */
  bool whole, every_variant, ended;
  bool stopped;        /* by --maxfail, with cases left */
  const char *plugins; /* "op/variant=file" of each variant from a plug-in, one per line */
  const char *files;   /* these files, one per line */
  const char *forced;  /* as in replay.h */
  double deadline_s;   /* as in replay.h */
  double seconds;
} results_run;

/* The line of a run about one planted error. */
typedef struct results_power {
  const char *op, *spoil;
  int64_t seen, unseen, weak, empty;
  int32_t run;
} results_power;

typedef struct results_mutant {
  const char *id, *op, *variant, *ids, *check, *expected, *replay;
  const char *allclose;       /* "vllm=1,ggml=0": who would have caught it */
  uint64_t hash;              /* the hash of its line */
  bool killed, control, good; /* good: killed by a check it was made for; a control: passed */
  int64_t cases;
  double seconds;
} results_mutant;

/* A failure without a case: a claim without a PASS, or a planted error that a suite would miss. */
typedef struct results_note {
  const char *subject, *text;
} results_note;

/* A run that was given before, in the same or in another file: its lines are the same, and are not counted again. */
typedef struct results_copy {
  const char *file, *of;
} results_copy;

typedef struct results {
  results_run *runs;
  results_case *cases;
  results_mutant *mutants;
  results_note *notes;
  results_power *powers;
  results_copy *copies;
  int64_t run_count, case_count, mutant_count, note_count, power_count, copy_count;
  int64_t strange;           /* cases with a verdict that this program does not know: they count as FAIL */
  const char *strange_names; /* an example; NULL: none */
  struct results_memory *memory;
} results;

/* Adds a file. A last line that was cut off is left out, and the run is then not ended. A run or a mutant that is there
 * already counts once; `copies` names the run. Refuses another schema and a shard that is none. Error messages have the
 * form "file:line: what was found". */
assay_status results_read(const char *path, results *r, assay_error *error);
/* Adds a failure of all files together, unless a file has said it already. */
assay_status results_note_add(results *r, const char *subject, const char *text, assay_error *error);
void results_free(results *r);
/* Reads "i/n" with 1 <= i <= n <= RESULTS_MOST_SHARDS; false: it is no such text. */
bool results_shard(const char *text, int32_t *shard, int32_t *shards);
/* Says what keeps a run from having all its cases; "": nothing. */
void results_lacks(const results_run *run, char *text, size_t size);
/* Returns true for PASS, REFUSED, UNSUPPORTED, and for a failure that was expected. */
bool results_good(const results_case *one);
int64_t results_count(const results *r, verdict v);
/* Fills in the command that runs a case again. Its strings are those of `r` and `file`. `file` has room for the name
 * of a plug-in. */
void results_replay(const results *r, const results_case *one, char *file, size_t size, replay *made);
/* Returns true if `word` is one of `list`, whose items are separated by commas. */
bool results_listed(const char *list, const char *word);

#endif
