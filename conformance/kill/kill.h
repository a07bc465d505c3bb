/* kill.h: runs kernels that are wrong on purpose, built as plug-ins, against the suites.
 *
 * A manifest has one line per mutant, with columns separated by tabs; "-" stands for an empty column. The columns are:
 * id plugin operator variants suite section seed filters expected-checks catalogue-ids why device absent. Lists are
 * separated by commas. Expected "pass" marks a control, an unchanged copy. absent: the reason why this device cannot
 * show the mutant; nothing runs then. */
#ifndef ASSAY_CONFORMANCE_KILL_KILL_H
#define ASSAY_CONFORMANCE_KILL_KILL_H

#include "allclose.h"
#include "conformance/suite/suite.h"

typedef struct mutant {
  const char *id, *plugin, *op, *variants, *suite, *section, *seed, *filters, *expect, *ids, *why, *device, *absent;
  int32_t every; /* a control judges every such case; 0 and 1: all. Not in a manifest */
  bool thin;     /* its suite is thinned. Not in a manifest */
  bool brief;    /* its kill is not run again, and allclose is not asked. Not in a manifest */
  bool by_list;  /* a file names it as one that a list kills: the list alone judges it. Not in a manifest */
} mutant;

typedef struct mutant_list {
  mutant *items; /* point into text */
  int32_t count;
  char *text;
} mutant_list;

/* Reads a manifest, which the caller frees. Fails with file:line, the text found and the values allowed. */
assay_status mutants_read(const char *path, mutant_list *list, assay_error *error);
void mutants_free(mutant_list *list);
/* Marks (by_list) the mutants that a file names, one per line; a line may begin with #. Fails where a name is no mutant
 * of the manifest, is a control, is not shown on this device or comes twice. Fails if the file has no name. */
assay_status mutants_read_kills(const char *path, mutant_list *list, assay_error *error);
bool mutant_is_control(const mutant *m);
bool mutant_is_absent(const mutant *m);
/* Tells whether `word` is one of `list`, whose items are separated by commas. */
bool mutants_list_has(const char *list, const char *word);

/* The result of running one mutant. Plain data: it crosses a pipe. */
typedef struct mutant_result {
  assay_status status; /* not OK: the mutant could not be run; message says why */
  bool killed;         /* a case is not good */
  bool expected;       /* killed by a check it was made for */
  /* the kill's descriptor, parsed and run again, was decided by the same check; on a GPU any expected check counts. A
   * brief mutant's is not run again */
  bool replayed;
  bool seen_otherwise; /* made for `predicted` alone, and without this check a case of it is not good */
  verdict verdict;     /* the one of the kill */
  char check[24], variant[64], name[64];
  char message[1600];
  int64_t cases, passes; /* cases that the variants took, the kill included; the good ones of them */
  int64_t deaths;        /* crashes and hangs; after some of them, no further case is run */
  double seconds;        /* until the kill, or for all */
  bool listed;           /* a case of the list is not good */
  allclose_verdict allclose;
  bool compared;              /* allclose has been asked */
  char replay[CASE_MAX_LINE]; /* descriptor of the kill */
} mutant_result;

/* Runs cases in the order of the suite until a check that the mutant was made for decides one (for a control: any
 * check). Then runs that case from its descriptor, then allclose. Loads the plug-in and leaves it loaded, so it needs a
 * process of its own. `listed`: cases that are tried before, for themselves, until one is not good; NULL: none. A
 * mutant with by_list is tried by them alone. */
void mutant_run(const mutant *m, const char *suites, const case_list *listed, double deadline_s, mutant_result *result);

typedef void (*mutants_done)(void *context, int32_t index, const mutant *m, const mutant_result *result);
/* Runs each chosen mutant in a process of its own, `jobs` at a time. done() is called in the order of the list. */
assay_status mutants_run_all(const mutant_list *list, const bool *chosen, const char *suites, const case_list *listed,
                             int32_t jobs, double deadline_s, mutants_done done, void *context, assay_error *error);

#endif
