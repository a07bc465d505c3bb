/* results_group.h: results by variant: verdicts, times, and which of the combinations that claims are made of passed.
 */
#ifndef ASSAY_CONFORMANCE_RESULTS_GROUP_H
#define ASSAY_CONFORMANCE_RESULTS_GROUP_H

#include "results.h"

/* An operator with fewer axes has "" for the others. */
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
/* The largest of a case's error ratios. */
double group_ratio(const results_case *one);
int64_t group_passes(const results_group *g, const char *const axis[GROUP_AXES]);
/* "bf16 same nhd decode" */
void group_axes_text(const char *const axis[GROUP_AXES], char *text, size_t size);
/* Calls `each` for all claimed combinations. */
void group_claims(const results_group *g, void (*each)(void *context, const results_group *g, const char *const *axis),
                  void *context);

/* What is missing for a campaign to be one: shards not there or of other cases, runs that did not end, cases fewer than
 * planned, other commits, counts of planted errors that do not add up. Writes a sentence for each; returns their
 * number. */
int32_t groups_gaps(const results *r, char *text, size_t size);
/* Claims without a PASS over all files together; asked only where nothing was left out. */
int64_t groups_unclaimed(const results *r, const results_groups *g, char *text, size_t size);

#endif
