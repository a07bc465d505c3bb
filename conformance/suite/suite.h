/* suite.h: suite files and the cases they stand for. This is the only header of this folder that other folders
 * include. */
#ifndef ASSAY_CONFORMANCE_SUITE_SUITE_H
#define ASSAY_CONFORMANCE_SUITE_SUITE_H

#include "expand.h"
#include "item.h"
#include "lengths.h"
#include "spec.h"
#include "trace.h"

#endif
