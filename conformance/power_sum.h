/* power_sum.h: planted errors over a whole run. A suite is weak when one of its operator's spoils changed the result
 * in fewer than POWER_LEAST_EFFECTIVE cases, or stayed unseen in a case whose exact twin does not see it either. */
#ifndef ASSAY_CONFORMANCE_POWER_SUM_H
#define ASSAY_CONFORMANCE_POWER_SUM_H

#include "power.h"
#include "report.h"

typedef struct power_sum power_sum;

assay_status power_sum_open(power_sum **made, assay_error *error);
void power_sum_note(power_sum *sum, const assay_case *one, const case_result *result);
/* Prints a line for each operator and one for each spoil that was not always seen. `judge`: the suites ran whole, so
 * that a weak one is a failure; an operator is judged if its own suite was among them. */
void power_sum_report(const power_sum *sum, bool judge, report *out);
void power_sum_close(power_sum *sum);

#endif
