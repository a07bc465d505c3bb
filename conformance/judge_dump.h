/* judge_dump.h: the tensors of the cases judged from here on, as .npy files. Inherited by workers.
 * DIR/<argument>.<dtype>.npy for inputs; DIR/<output>.got.<dtype>.npy, .expected.f64.npy, .sigma.f64.npy; and
 * DIR/manifest.json, with which `assay judge DIR` judges them again (docs/truth.md). */
#ifndef ASSAY_CONFORMANCE_JUDGE_DUMP_H
#define ASSAY_CONFORMANCE_JUDGE_DUMP_H

#include "judge_parts.h"

/* Makes the folder. */
assay_status judge_dump_to(const char *folder, assay_error *error);
/* got == NULL, before the first run: inputs and expectation, which outlive a crash; after it: the outputs. False:
 * could not be written, and the verdict is set. Does nothing where no folder was named. */
bool judge_dump(const trial *t, const outputs *got, case_result *result);

#endif
