/* contracts.h: one run of a case, judged under several contracts. */
#ifndef ASSAY_CONFORMANCE_JUDGE_CONTRACTS_H
#define ASSAY_CONFORMANCE_JUDGE_CONTRACTS_H

#include "conformance/trial/trial.h"

enum { CONTRACTS_MOST = RESULT_MAX_RMS };

/* Asks for these contracts in all cases judged from here on; workers inherit the setting. With a count of 0, cases are
 * judged as usual. `list` must stay. */
void contracts_ask(const assay_contract *list, int32_t count);
/* Returns the number of contracts that are asked for. */
int32_t contracts_asked(void);
/* Runs the variant once, and judges the values under each contract. The largest ratio under contract i goes to
 * result->rms[i]; it is infinite where the reference has no usable values under that contract. No law is asked. The
 * verdict is FAIL if the first contract does not hold. `elements_judged` is 0 if there was nothing to judge; the
 * verdict then says why. */
void contracts_judge(trial *t, case_result *result);

#endif
