/* expand.h: concrete cases from suites. */
#ifndef ASSAY_CONFORMANCE_SUITE_EXPAND_H
#define ASSAY_CONFORMANCE_SUITE_EXPAND_H

#include "conformance/case/case.h"

/* A list of cases; case_list_free frees it. */
typedef struct case_list {
  assay_case *cases; /* variant and device are still empty */
  int64_t count;
} case_list;

/* Appends the cases of a suite file, or of all suite files of a folder except those of models. A case's draws depend
 * only on the seed and its index in its suite. Fails with file:line:column, the value found and the values allowed; the
 * list is then as before. */
assay_status expand_suite(const char *path, uint64_t seed, case_list *list, assay_error *error);
/* Appends the cases of a list: a descriptor per line, without a variant. A line that begins with # is a comment. A
 * descriptor with a device is for that device alone. Fails with file:line and the reason; a case may stand once. */
assay_status expand_list(const char *path, case_list *list, assay_error *error);
/* Takes out of the list what a thinned run leaves out: all but one of `thin` draws of each item (docs/suites.md). */
void case_list_thin(case_list *list);
/* Tells whether a thinned run leaves this variant of the case to the night. A name counts up to its @, which begins the
 * mark of a mutant. */
bool case_leaves(const assay_case *one, const char *variant);
/* Refuses a case whose `night` has a name that no variant of its operator has, on any device. */
assay_status case_list_check_night(const case_list *list, assay_error *error);
/* Tells whether the file is a suite of models (models/models.h), which has no cases of operators. */
bool suite_is_models(const char *path);
void case_list_free(case_list *list);

#endif
