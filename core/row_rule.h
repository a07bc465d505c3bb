/* row_rule.h: what the results of a row must have in common, beyond what each of them may be by itself
 * (assay_op.accepts). */
#ifndef ASSAY_CORE_ROW_RULE_H
#define ASSAY_CORE_ROW_RULE_H

#include <stddef.h>

#include "assay/op.h"

typedef struct assay_row_rule {
  /* Tells whether the row's results fit together. Each of them is the expected one, or one that `accepts` takes.
   * `got`: by output, the row's results. If they do not, `why` says so in a sentence. */
  bool (*fits)(const assay_call *call, const assay_contract *contract, int64_t row, const double *const *got, char *why,
               size_t size);
} assay_row_rule;

/* Each stands beside its reference in ref/. trial_row_rule() has the table of them. */
extern const assay_row_rule assay_row_rule_moe_router;

#endif
