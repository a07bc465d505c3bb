/* power_sum.h: planted errors over a whole run. A suite is weak if a spoil of its operator changed the result in
 * fewer than POWER_LEAST_EFFECTIVE cases. It is weak too if neither a case nor its exact twin saw the spoil.
 */
#ifndef ASSAY_CONFORMANCE_REPORT_POWER_SUM_H
#define ASSAY_CONFORMANCE_REPORT_POWER_SUM_H

#include "conformance/planted/planted.h"
#include "run_report.h"

typedef struct power_sum power_sum;

assay_status power_sum_open(power_sum **made, assay_error *error);
void power_sum_note(power_sum *sum, const assay_case *one, const case_result *result);
/* Tells what of a run's planted errors is a failure. */
typedef enum power_level {
  POWER_TOLD,  /* nothing: a part of a suite */
  POWER_WHOLE, /* suites ran whole over all variants: a spoil with too few effective cases, or one that stays unseen */
  /* Variants were chosen by name, which may take few calls: a spoil that stays unseen more often than it is seen. In
   * any suite: every effective spoil is unseen, since the limits are then wider than all of them. */
  POWER_CHOSEN
} power_level;

/* Prints one line per operator, one per spoil that was not always seen, and what these lines mean. The order of the
 * cases does not show. An operator is judged if its own suite was among those that ran. */
void power_sum_report(const power_sum *sum, power_mode mode, power_level level, report *out);
/* As power_sum_report; gives each planted error that a suite would miss to `weak` as well. */
typedef void (*power_weak)(void *context, const char *op, const char *spoil, const char *why);
void power_sum_tell(const power_sum *sum, power_mode mode, power_level level, report *out, power_weak weak,
                    void *context);

/* The counts of one planted error. */
typedef struct power_counts {
  const assay_op *op;
  int32_t spoil;
  int64_t seen, unseen, weak, empty;
} power_counts;

/* Fills in error number `index` of all operators that were asked, in the order of the report. Returns false after the
 * last. */
bool power_sum_at(const power_sum *sum, int32_t index, power_counts *counts);
void power_sum_close(power_sum *sum);

#endif
