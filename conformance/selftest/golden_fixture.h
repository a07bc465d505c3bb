/* golden_fixture.h: text beside golden/KIND.txt, byte for byte. ASSAY_GOLDEN_WRITE=1 writes the files instead, for a
 * change that is meant. */
#ifndef ASSAY_SELFTEST_GOLDEN_FIXTURE_H
#define ASSAY_SELFTEST_GOLDEN_FIXTURE_H

#include <stdio.h>

#include "conformance/case/types.h"

void golden_compare(const char *kind, const char *text);
void golden_print(const char *kind, void (*print)(void *context, FILE *to), void *context);
/* Shrinks, prints, compares; the suite that was written is read back, and its case fails in the same way. Takes the
 * case. */
void golden_case(const char *kind, assay_case one, double deadline_s);

#endif
