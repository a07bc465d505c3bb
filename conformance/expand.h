/* expand.h: suites to concrete cases. */
#ifndef ASSAY_CONFORMANCE_EXPAND_H
#define ASSAY_CONFORMANCE_EXPAND_H

#include "case.h"

typedef struct case_list {
  assay_case *cases; /* variant and device still empty */
  int64_t count;
} case_list;

/* A suite file or a folder of them. Appends; each case's draws depend on (seed, its index in its suite) only.
 * Messages: file:line:column: what was found, what is allowed. */
assay_status expand_suite(const char *path, uint64_t seed, case_list *list, assay_error *error);
void case_list_free(case_list *list);

#endif
