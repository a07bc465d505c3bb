/* say.h: words for one wrong element. */
#ifndef ASSAY_CONFORMANCE_TRIAL_SAY_H
#define ASSAY_CONFORMANCE_TRIAL_SAY_H

#include <stddef.h>

#include "assay/tensor.h"

/* Writes "got 1, expected 2, error 1 is 3 times the allowed 0.333". If no more is allowed than half of the least
 * number, the text is "got 1, expected exactly 2, off by 8.389e+06 ulp of f32". */
void say_wrong(assay_dtype dtype, double got, double expected, double allowed, char *text, size_t size);

#endif
