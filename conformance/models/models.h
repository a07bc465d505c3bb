/* models.h: suites of forward passes, and prompts through a model. This is the only header of this folder that other
 * folders include. */
#ifndef ASSAY_CONFORMANCE_MODELS_MODELS_H
#define ASSAY_CONFORMANCE_MODELS_MODELS_H

#include "engine.h"
#include "open.h"
#include "run.h"
#include "sample.h"
#include "steps.h"
#include "suite.h"
#include "taps.h"

#endif
