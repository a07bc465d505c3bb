/* laws_internal.h: the two functions of each law. */
#ifndef ASSAY_CONFORMANCE_LAWS_LAWS_INTERNAL_H
#define ASSAY_CONFORMANCE_LAWS_LAWS_INTERNAL_H

#include "conformance/trial/trial.h"

/* NAME_applies tells whether the law can be asked of this case, variant and device. NAME_check runs the variant as
 * often as the law needs and compares the results with `base`, the outputs of the first run. It returns false with the
 * verdict set if the law does not hold. It adds the law to the result if the law holds, and leaves the result alone
 * where the variant declines the changed call. */
#define LAW(name, id, share, owed, text)                                                                               \
  bool name##_applies(const trial *t);                                                                                 \
  bool name##_check(const trial *t, const outputs *base, case_result *result);
#include "laws.def"
#undef LAW

#endif
