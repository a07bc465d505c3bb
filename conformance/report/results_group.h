/* results_group.h: results by variant: verdicts, times, and which of the combinations that claims are made of passed.
 */
#ifndef ASSAY_CONFORMANCE_REPORT_RESULTS_GROUP_H
#define ASSAY_CONFORMANCE_REPORT_RESULTS_GROUP_H

#include "results.h"

/* An operator with fewer axes has "" in place of the others. */
enum { GROUP_AXES = RESULTS_AXES, GROUP_MAX_CELLS = 512 };

typedef struct group_cell {
  const char *axis[GROUP_AXES];
  int64_t passes;
} group_cell;

typedef struct results_group {
  const char *op, *variant, *device;
  const char *claims;    /* NULL: this program does not know the variant */
  const assay_op *about; /* NULL: nor the operator */
  int32_t axes;
  int64_t cases, verdicts[VERDICT_WEAK + 1];
  double reference_ms, run_ms, worst;
  group_cell *cells;
  int32_t cell_count;
  bool own_suite; /* the operator's own suite was run with it */
} results_group;

typedef struct results_groups {
  results_group *list; /* by operator, variant, device */
  int64_t count;
  int32_t *of_case; /* [case_count] index into list */
} results_groups;

assay_status groups_make(const results *r, results_groups *made, assay_error *error);
void groups_free(results_groups *g);
/* Returns the largest of a case's error ratios. */
double group_ratio(const results_case *one);
int64_t group_passes(const results_group *g, const char *const axis[GROUP_AXES]);
/* Writes a combination such as "bf16 same nhd decode". */
void group_axes_text(const char *const axis[GROUP_AXES], char *text, size_t size);
/* Calls `each` for all claimed combinations. */
void group_claims(const results_group *g, void (*each)(void *context, const results_group *g, const char *const *axis),
                  void *context);

/* Returns the number of things that keep these files from being whole runs, and writes a sentence for each. A shard may
 * be missing, or of other cases or another commit. A run may not have ended, or have fewer cases than planned. Counts
 * of planted errors may not add up. -1: there is no memory to tell. */
int32_t groups_gaps(const results *r, char *text, size_t size);
/* Returns the number of claims without a PASS over all files together, and lists them; 0 if a case was left out. */
int64_t groups_unclaimed(const results *r, const results_groups *g, char *text, size_t size);

#endif
