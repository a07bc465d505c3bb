/* planted.h: planted errors: whether the judge would see them, and whether one of them explains a wrong result. This is
 * the only header of this folder that other folders include. */
#ifndef ASSAY_CONFORMANCE_PLANTED_PLANTED_H
#define ASSAY_CONFORMANCE_PLANTED_PLANTED_H

#include "explain.h"
#include "power.h"

#endif
