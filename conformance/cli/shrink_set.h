/* shrink_set.h: failures that a run keeps while it goes on, and shrinks when it is over. */
#ifndef ASSAY_CONFORMANCE_CLI_SHRINK_H
#define ASSAY_CONFORMANCE_CLI_SHRINK_H

#include "cli.h"
#include "conformance/judge/judge.h"

enum { SHRINK_MOST = 8 };

/* A set of failures: the first of each operator, variant and check, at most SHRINK_MOST. Zero-initialised. */
typedef struct shrink_set {
  assay_case one[SHRINK_MOST];
  case_result result[SHRINK_MOST];
  int32_t count;
} shrink_set;

/* Makes the folder, before anything runs. */
assay_status shrink_folder(const cli_options *options, assay_error *error);
void shrink_keep(shrink_set *set, const assay_case *one, const case_result *result);
/* Shrinks them all into `options->shrink`; frees the set. */
assay_status shrink_all(shrink_set *set, const cli_options *options, assay_error *error);

#endif
