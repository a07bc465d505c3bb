/* judge.h: runs and judges one case. */
#ifndef ASSAY_CONFORMANCE_JUDGE_JUDGE_H
#define ASSAY_CONFORMANCE_JUDGE_JUDGE_H

#include "conformance/trial/trial.h"
#include "contracts.h"

/* Generates the case, computes the reference, runs the variant as often as the laws need, and judges. It never fails
 * itself: every failure becomes a verdict in `result`. The device must be open. Its memory is kept for the next
 * case. */
void judge_case(const assay_case *one, const assay_variant *variant, const assay_device *device, case_result *result);
/* Tells whether the definition refuses the call of a case of section refuse, as the case breaks it. `why` receives its
 * words. The trial has its shape (trial_shape). */
bool judge_must_refuse(const trial *t, assay_error *why);
/* Gives back the memory that judge_case keeps between cases. */
void judge_release(void);

#endif
