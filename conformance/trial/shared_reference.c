/* shared_reference.c: the operators whose references have parts. */
#include <string.h>

#include "trial.h"

const assay_shared_reference *trial_shared_reference(const assay_op *op) {
  static const struct {
    const char *op;
    const assay_shared_reference *shared;
  } table[] = {{"gated_delta_rule", &assay_shared_gated_delta_rule}};
  for (size_t i = 0; i < sizeof table / sizeof table[0]; ++i)
    if (strcmp(op->name, table[i].op) == 0) return table[i].shared;
  return NULL;
}
