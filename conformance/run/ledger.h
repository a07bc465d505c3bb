/* ledger.h: expected failures of a user's variant, each with the reason. A failure that an entry names is expected and
 * does not fail the run. An entry is out of date if its cases ran and none failed that way; it then fails the run.
 *
 *   expected:
 *     - op: gate_attention
 *       variant: fast_split           # as in --variant
 *       check: element                # the check that decided (docs/judging.md): exact, element, row, crash, ...
 *       filter: gate_attention/edge   # part of suite/section/name; all cases without it
 *       reason: partial sums in f16, issue 12
 */
#ifndef ASSAY_CONFORMANCE_RUN_LEDGER_H
#define ASSAY_CONFORMANCE_RUN_LEDGER_H

#include "conformance/judge/judge.h"

typedef struct ledger ledger;

typedef struct ledger_entry {
  char op[64], variant[64], check[24], filter[160], reason[400];
  char where[280];     /* file:line:column */
  int64_t ran, failed; /* cases that it names and that were judged; those of them that failed as expected */
} ledger_entry;

/* Reads a ledger, which the caller closes. Fails with file:line:column, the text found and the values allowed. */
assay_status ledger_open(const char *path, ledger **opened, assay_error *error);
void ledger_close(ledger *l);
/* Notes a result and returns the entry that expects it, or NULL. A ledger of NULL expects nothing. */
const ledger_entry *ledger_note(ledger *l, const assay_case *one, const case_result *result);
/* Returns entry number `index`, or NULL after the last. */
const ledger_entry *ledger_at(const ledger *l, int32_t index);
/* Tells whether cases that the entry names ran and none of them failed as it says. */
bool ledger_is_stale(const ledger_entry *entry);

#endif
