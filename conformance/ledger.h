/* ledger.h: expected failures of somebody's variant, with the reason. A failure that an entry names is expected and
 * does not fail the run; an entry whose cases ran and of which none failed that way is out of date, and does.
 *
 *   expected:
 *     - op: gate_attention
 *       variant: fast_split           # as in --variant
 *       check: element                # what decided: exact, element, row, dead_bytes, crash, ... (docs/judging.md)
 *       filter: gate_attention/edge   # part of suite/section/name; left out: all cases
 *       reason: partial sums in f16, issue 12
 */
#ifndef ASSAY_CONFORMANCE_LEDGER_H
#define ASSAY_CONFORMANCE_LEDGER_H

#include "judge.h"

typedef struct ledger ledger;

typedef struct ledger_entry {
  char op[64], variant[64], check[24], filter[160], reason[400];
  char where[280];     /* file:line:column */
  int64_t ran, failed; /* cases that it names and that were judged; of these, failed as expected */
} ledger_entry;

/* Messages: file:line:column: what was found, what is allowed. */
assay_status ledger_open(const char *path, ledger **made, assay_error *error);
void ledger_close(ledger *l);
/* One result: notes it, and gives the entry that expects it, or NULL. A ledger of NULL expects nothing. */
const ledger_entry *ledger_note(ledger *l, const assay_case *one, const case_result *result);
/* Entry `index`, or NULL behind the last. */
const ledger_entry *ledger_at(const ledger *l, int32_t index);
/* Cases that the entry names ran, and none of them failed as it says. */
bool ledger_is_stale(const ledger_entry *entry);

#endif
