/* mutants.h: kernels wrong on purpose, as plug-ins, against the suites. A manifest (one line a mutant, columns
 * separated by tabs, "-" for none) says what there is: id plugin operator variants suite section seed filters
 * expected-checks catalogue-ids why device absent. Lists have commas. Expected "pass": a control, an unchanged copy.
 * absent: why this device cannot show it; then nothing runs. */
#ifndef ASSAY_CONFORMANCE_MUTANTS_H
#define ASSAY_CONFORMANCE_MUTANTS_H

#include "mutants_allclose.h"

typedef struct mutant {
  const char *id, *plugin, *op, *variants, *suite, *section, *seed, *filters, *expect, *ids, *why, *device, *absent;
} mutant;

typedef struct mutant_list {
  mutant *items; /* point into text */
  int32_t count;
  char *text;
} mutant_list;

/* Messages: file:line: what was found, what is allowed. */
assay_status mutants_read(const char *path, mutant_list *list, assay_error *error);
void mutants_free(mutant_list *list);
bool mutant_is_control(const mutant *m);
bool mutant_is_absent(const mutant *m);
/* Is `word` one of `list`, whose items are separated by commas? */
bool mutants_list_has(const char *list, const char *word);

/* Plain data: it crosses a pipe. */
typedef struct mutant_result {
  assay_status status; /* not OK: it could not be run; why is in message */
  bool killed;         /* a case is not good */
  bool expected;       /* killed by a check it was made for */
  bool replayed;       /* its descriptor, parsed again, is decided by the same check again; on a GPU by any expected */
  char check[24], variant[64], name[64];
  char message[1600];
  int64_t cases, passes; /* that the variants took, the kill included; good ones */
  int64_t deaths;        /* crashes and hangs; after some, no further case is run */
  double seconds;        /* until the kill, or for all */
  allclose_verdict allclose;
  bool compared;              /* allclose has been asked */
  char replay[CASE_MAX_LINE]; /* descriptor of the kill */
} mutant_result;

/* Runs cases in the order of the suite until a check it was made for decides one (a control: any check), then that case
 * from its descriptor, then allclose. Loads the plug-in here and leaves it: for a process of its own. */
void mutant_run(const mutant *m, const char *suites, double deadline_s, mutant_result *result);

typedef void (*mutants_done)(void *context, int32_t index, const mutant *m, const mutant_result *result);
/* Each chosen mutant in a process of its own, `jobs` at a time; done in the order of the list. */
assay_status mutants_run_all(const mutant_list *list, const bool *chosen, const char *suites, int32_t jobs,
                             double deadline_s, mutants_done done, void *context, assay_error *error);

#endif
