/* far.h: the source of the law `far`'s ranges of addresses. */
#ifndef ASSAY_CONFORMANCE_LAWS_FAR_H
#define ASSAY_CONFORMANCE_LAWS_FAR_H

#include "assay/sparse.h"

/* Sets the source of ranges for the device of this name. All other devices use the host's memory. */
void far_memory(const char *device, const assay_sparse *sparse);

#endif
