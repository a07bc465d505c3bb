/* judge_far.h: where the law `far` gets its ranges of addresses. */
#ifndef ASSAY_CONFORMANCE_JUDGE_FAR_H
#define ASSAY_CONFORMANCE_JUDGE_FAR_H

#include "assay/sparse.h"

/* Of the device of this name; all others have the host's memory. */
void far_memory(const char *device, const assay_sparse *sparse);

#endif
