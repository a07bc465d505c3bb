/* power_sum.h: planted errors over a whole run. A suite is weak when one of its operator's spoils changed the result
 * in fewer than POWER_LEAST_EFFECTIVE cases, or stayed unseen in a case whose exact twin does not see it either. */
#ifndef ASSAY_CONFORMANCE_POWER_SUM_H
#define ASSAY_CONFORMANCE_POWER_SUM_H

#include "power.h"
#include "report.h"

typedef struct power_sum power_sum;

assay_status power_sum_open(power_sum **made, assay_error *error);
void power_sum_note(power_sum *sum, const assay_case *one, const case_result *result);
/* Prints a line for each operator and one for each spoil that was not always seen; the order of the cases does not
 * show. `judge`: the suites ran whole, so that a weak one is a failure; an operator is judged if its own suite was
 * among them. */
void power_sum_report(const power_sum *sum, power_mode mode, bool judge, report *out);
/* The same; each planted error that a suite would miss is given to `weak` as well. */
typedef void (*power_weak)(void *context, const char *op, const char *spoil, const char *why);
void power_sum_tell(const power_sum *sum, power_mode mode, bool judge, report *out, power_weak weak, void *context);

/* What became of one planted error. */
typedef struct power_counts {
  const assay_op *op;
  int32_t spoil;
  int64_t seen, unseen, weak, empty;
} power_counts;

/* Number `index` of the errors of all operators that were asked, in the order of the report; false behind the last. */
bool power_sum_at(const power_sum *sum, int32_t index, power_counts *counts);
void power_sum_close(power_sum *sum);

#endif
