/* shrink.h: makes a failing case minimal while it fails for the same reason, and finds the condition of the failure. */
#ifndef ASSAY_CONFORMANCE_SHRINK_SHRINK_H
#define ASSAY_CONFORMANCE_SHRINK_SHRINK_H

#include <stdio.h>

#include "conformance/run/run.h"

typedef struct shrink_options {
  execute_options execution; /* deadline_s: per candidate, or more where the original needs more */
  double whole_deadline_s;   /* the original's; 0: as the candidates' */
  int64_t cases;             /* most cases to run; 0: 2000 */
  double seconds;            /* 0: 60 */
} shrink_options;

typedef struct shrink_outcome {
  assay_case smallest; /* owned */
  case_result failure; /* the failure to be shrunk */
  case_result result;  /* result of the smallest case, with an explanation */
  int32_t runs, fails; /* final runs of the smallest case, and failures among them */
  int64_t cases;       /* all cases that were run */
  double deadline_s;   /* deadline of each case; a line that replays a hang names it */
  bool reproduced;     /* false: on its own the case did not fail that way; nothing was shrunk */
  bool exhausted;      /* the budget ended before nothing could be made smaller */
  char difference[1600];
} shrink_outcome;

/* Shrinks a case; the caller frees the outcome. `failure` says how the case failed; NULL means any failure that it has
 * now. Every candidate runs in a worker process. Fails only where workers cannot be made, or on SIGINT or SIGTERM. */
assay_status shrink_case(const assay_case *one, const case_result *failure, const shrink_options *options,
                         shrink_outcome *outcome, assay_error *error);
void shrink_free(shrink_outcome *outcome);

/* Tells whether verdict, check and kind are equal. Where a check has no kind, the beginnings of the messages must be
 * equal. */
bool shrink_same_reason(const case_result *a, const case_result *b);

/* Prints the outcome for people. `plugin`: the origin of the variant, or NULL; `suite`: the file written, or NULL. */
void shrink_print(FILE *to, const shrink_outcome *outcome, const char *plugin, const char *suite);
/* Writes the smallest case as a suite of one item. */
void shrink_yaml(FILE *to, const shrink_outcome *outcome, const char *plugin);
/* Writes "OP-VARIANT-CHECK", a legal name of a suite. */
void shrink_name(const assay_case *one, const char *check, char *text, size_t size);

#endif
