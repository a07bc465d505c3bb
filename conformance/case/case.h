/* case.h: one concrete case, its keys, its descriptor and its shapes. This is the only header of this folder that other
 * folders include. */
#ifndef ASSAY_CONFORMANCE_CASE_CASE_H
#define ASSAY_CONFORMANCE_CASE_CASE_H

#include "contract.h"
#include "keys.h"
#include "sections.h"
#include "shape.h"
#include "types.h"

#endif
