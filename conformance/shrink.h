/* shrink.h: a failing case made minimal while it fails for the same reason, and what makes the difference. */
#ifndef ASSAY_CONFORMANCE_SHRINK_H
#define ASSAY_CONFORMANCE_SHRINK_H

#include <stdio.h>

#include "execute.h"

typedef struct shrink_options {
  execute_options execution; /* deadline_s: of one candidate */
  int64_t cases;             /* run at most; 0: 2000 */
  double seconds;            /* 0: 60 */
} shrink_options;

typedef struct shrink_outcome {
  assay_case smallest; /* owned */
  case_result failure; /* what was to be shrunk */
  case_result result;  /* of the smallest case, explained */
  int32_t runs, fails; /* of the smallest case, in the end */
  int64_t cases;       /* run in all */
  bool reproduced;     /* false: on its own the case did not fail that way; nothing was shrunk */
  bool exhausted;      /* the budget ended before nothing could be made smaller */
  char difference[1600];
} shrink_outcome;

/* `failure`: how it failed, or NULL: however it fails now. Every candidate runs in a worker process. Fails only
 * where workers cannot be made, or on SIGINT or SIGTERM. */
assay_status shrink_case(const assay_case *one, const case_result *failure, const shrink_options *options,
                         shrink_outcome *made, assay_error *error);
void shrink_free(shrink_outcome *made);

/* Same verdict, check and kind; where a check has no kind, the same beginning of its message. */
bool shrink_same_reason(const case_result *a, const case_result *b);

/* What is printed for people. `plugin`: where the variant came from, or NULL; `suite`: the file written, or NULL. */
void shrink_print(FILE *to, const shrink_outcome *made, const char *plugin, const char *suite);
/* The smallest case as a suite of one item. */
void shrink_yaml(FILE *to, const shrink_outcome *made, const char *plugin);
/* "OP-VARIANT-CHECK", a name that a suite may have. */
void shrink_name(const assay_case *one, const char *check, char *text, size_t size);

#endif
