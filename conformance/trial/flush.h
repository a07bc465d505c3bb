/* flush.h: what a contract that says ftz allows. A result may be that of the same inputs without their subnormal
 * numbers, anything in between, and off by one least normal number. Runs and `assay judge` share it. */
#ifndef ASSAY_CONFORMANCE_TRIAL_FLUSH_H
#define ASSAY_CONFORMANCE_TRIAL_FLUSH_H

#include "assay/op.h"

/* Sets numbers of f32 and bf16 below the least normal one to 0; other types keep theirs. */
void flush_numbers(assay_dtype dtype, void *data, int64_t bytes);
/* Widens each sigma of `expected` that flushing touches. `other` has the values without subnormal inputs. */
void flush_widen(assay_expected *expected, const assay_expected *other, int64_t count);

#endif
