/* run_state.h: what a run gathers from the results of its cases. */
#ifndef ASSAY_CONFORMANCE_CLI_RUN_STATE_H
#define ASSAY_CONFORMANCE_CLI_RUN_STATE_H

#include "claims.h"
#include "conformance/report/report.h"
#include "shrink_set.h"

typedef struct run_state {
  report *out;
  claims *seen;
  power_sum *power;
  slack *used;
  shrink_set *failed; /* NULL: nothing is shrunk */
  ledger *known;      /* expected failures; NULL: none */
} run_state;

/* Adds the result of case number `index`. `context` is a run_state. */
void run_note(void *context, int64_t index, const assay_case *one, const case_result *result);

#endif
