/* shared_reference.h: references that consist of parts, none of which needs another. Threads share a long one. */
#ifndef ASSAY_CORE_SHARED_REFERENCE_H
#define ASSAY_CORE_SHARED_REFERENCE_H

#include "assay/op.h"

typedef struct assay_shared_reference {
  /* Returns the number of parts of which all outputs consist: heads, for one. */
  int64_t (*parts)(const assay_call *call);
  /* Computes parts begin to end - 1 as the operator's reference does. Other elements of `expected` stay as they are. */
  assay_status (*reference)(const assay_call *call, const assay_contract *contract, int64_t begin, int64_t end,
                            bool exact, assay_expected *expected, assay_error *error);
} assay_shared_reference;

/* Each stands beside its reference in ref/. trial_shared_reference() has the table of them. */
extern const assay_shared_reference assay_shared_gated_delta_rule;

#endif
