/* results.h: the JSONL files of runs, read back: for the page, for comparing, for campaigns in many files. */
#ifndef ASSAY_CONFORMANCE_RESULTS_H
#define ASSAY_CONFORMANCE_RESULTS_H

#include <stdbool.h>
#include <stdint.h>

#include "assay/status.h"
#include "judge.h"

enum { RESULTS_AXES = 4 };

/* Strings live as long as the results; equal ones have one address, descriptors and messages apart. */
typedef struct results_case {
  const char *descriptor, *message;
  const char *op, *variant, *device, *suite, *section, *name, *tier, *check, *path;
  const char *laws, *spoils_seen, *spoils_unseen, *spoils_void, *spoils_weak; /* names with commas */
  const char *axis[RESULTS_AXES]; /* what it is along its operator's axes (case_axes), in order; "" behind the last */
  verdict verdict;
  double ratio_element, ratio_row, ratio_request, reference_ms, run_ms;
  int64_t size, batch, live_keys; /* size: the longest kv_len; plain operators: elements of all tensors */
  uint64_t seed;
  int32_t run;
  bool expected; /* a failure that a ledger lists */
} results_case;

typedef struct results_run {
  const char *file, *version, *device, *device_name, *driver, *toolkit, *commit, *binary, *shard;
  const char *power, *plan; /* "": not a run of suites, or of an older program */
  uint64_t seed;
  int64_t planned, cases;
  int64_t spoils; /* planted errors that it says it tried */
  bool whole, every_variant, ended;
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
  bool killed, control, good; /* good: killed by a check it was made for; a control: passed */
  int64_t cases;
  double seconds;
} results_mutant;

/* A claim without a PASS, or a planted error that a suite would miss. */
typedef struct results_note {
  const char *subject, *text;
} results_note;

typedef struct results {
  results_run *runs;
  results_case *cases;
  results_mutant *mutants;
  results_note *notes;
  results_power *powers;
  int64_t run_count, case_count, mutant_count, note_count, power_count;
  struct results_memory *memory;
} results;

/* Adds a file. A last line that was cut off is left out, and the run is then not ended.
 * Messages: file:line: what was found. */
assay_status results_read(const char *path, results *r, assay_error *error);
/* A failure of all files together; one that a file has already said is not said again. */
assay_status results_note_add(results *r, const char *subject, const char *text, assay_error *error);
void results_free(results *r);
/* PASS, REFUSED, UNSUPPORTED, or a failure that was expected. */
bool results_good(const results_case *one);
int64_t results_count(const results *r, verdict v);
/* Is `word` one of `list`, whose items are separated by commas? */
bool results_listed(const char *list, const char *word);

#endif
