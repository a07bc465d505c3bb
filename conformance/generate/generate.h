/* generate.h: tensors in memory from a case. This is the only header of this folder that other folders include. */
#ifndef ASSAY_CONFORMANCE_GENERATE_GENERATE_H
#define ASSAY_CONFORMANCE_GENERATE_GENERATE_H

#include "image.h"
#include "logical.h"
#include "place.h"

#endif
