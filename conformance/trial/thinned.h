/* thinned.h: what a thinned run (run --thin) leaves out of a case. */
#ifndef ASSAY_CONFORMANCE_TRIAL_THINNED_H
#define ASSAY_CONFORMANCE_TRIAL_THINNED_H

#include "conformance/generate/generate.h"

/* Says whether this run is thinned; workers inherit it. It is not from the beginning: a replay and `assay shrink` ask
 * everything. */
void thinned_use(bool on);
/* Tells whether a part of the case is left out. It then has one of its two further runs, and half of the draws of a law
 * that takes long. All that stays is part of a whole run, with the same draws. False where its item says `whole`. */
bool thinned_case(const assay_case *one);

#endif
