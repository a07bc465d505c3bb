/* prefill.h: a run whose outputs and workspace hold something else than NaN before the call. Laws share it. */
#ifndef ASSAY_CONFORMANCE_LAWS_PREFILL_H
#define ASSAY_CONFORMANCE_LAWS_PREFILL_H

#include "conformance/trial/trial.h"

/* Fills the bytes of output `output`, or of the workspace where it is -1. */
typedef void (*prefill_bytes)(const trial *t, const outputs *base, image *img, int32_t output, unsigned char *bytes,
                              int64_t count);

/* Tells whether the call writes an argument that it must not read. */
bool prefill_applies(const trial *t);
/* Runs the case over bytes of `fill` and compares the result with `base`. `law` names the check, `when` says in
 * messages what was changed. */
bool prefill_check(const trial *t, const outputs *base, prefill_bytes fill, const char *law, const char *when,
                   case_result *result);

#endif
