/* laws.h: laws: what must not change a result, each asked by further runs of a case that passed so far. The only header
 * of this folder that others include. */
#ifndef ASSAY_CONFORMANCE_LAWS_LAWS_H
#define ASSAY_CONFORMANCE_LAWS_LAWS_H

#include "conformance/trial/trial.h"
#include "far.h"

/* The operators of which a whole run must have asked a law (laws.def). */
typedef enum law_owed {
  OWED_NEVER,
  OWED_ALWAYS,
  OWED_LISTED,
  OWED_PERMUTED,
  OWED_APART,
  OWED_OUTPUT,
  OWED_VAST
} law_owed;

typedef struct law {
  const char *name;
  uint32_t id, share;
  law_owed owed;
  const char *text; /* the change that must not show in the result */
  bool (*applies)(const trial *t);
  bool (*check)(const trial *t, const outputs *base, case_result *result);
} law;

/* Returns number `index` of the table, or NULL after the last. */
const law *law_at(int32_t index);
/* Returns the law of that name, or NULL. */
const law *law_find(const char *name);
/* Asks the case the laws that its seed draws, in the order of the table. Returns false with the verdict set at the
 * first that does not hold. */
bool laws_check(const trial *t, const outputs *base, case_result *result);
/* Tells whether a whole run over the operator's suite must have asked the law of some case. */
bool law_is_owed(const law *l, const assay_op *op);
/* Gives back the memory that laws keep between cases. */
void laws_release(void);

#endif
