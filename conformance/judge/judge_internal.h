/* judge_internal.h: declarations that judge.c and refuse.c share. */
#ifndef ASSAY_CONFORMANCE_JUDGE_JUDGE_INTERNAL_H
#define ASSAY_CONFORMANCE_JUDGE_JUDGE_INTERNAL_H

#include "conformance/trial/trial.h"

/* Judges a case of section refuse: an illegal call must be refused by a message that names the argument, and must write
 * nothing. */
void refuse_judge(trial *t, case_result *result);

#endif
