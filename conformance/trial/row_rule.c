/* row_rule.c: the operators whose results of a row must fit together, and the look at rows from elsewhere. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trial.h"

const assay_row_rule *trial_row_rule(const assay_op *op) {
  return strcmp(op->name, "moe_router") == 0 ? &assay_row_rule_moe_router : NULL;
}

assay_status foreign_fits(const foreign_call *f, const void *const *got, bool *fits, char *why, size_t size,
                          assay_error *error) {
  const assay_row_rule *const rule = trial_row_rule(f->op);
  const double *from[ASSAY_MAX_OUTPUTS];
  int64_t all = 0;
  *fits = true;
  if (rule == NULL) return ASSAY_OK;
  for (int32_t o = 0; o < f->count; ++o) {
    if (got[o] == NULL) return ASSAY_OK; /* the rule is one of all outputs */
    all += foreign_width(f, o);
  }
  double *const values = malloc((size_t)(all + 1) * sizeof *values);
  if (values == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "judge: out of memory");
  for (int64_t row = 0; row < foreign_rows(f, 0) && *fits; ++row) {
    char said[200];
    double *at = values;
    for (int32_t o = 0; o < f->count; ++o) {
      const int64_t width = foreign_width(f, o);
      from[o] = at;
      for (int64_t e = 0; e < width; ++e)
        *at++ = foreign_load(got[o], f->arg[f->output[o]].dtype, row * width + e);
    }
    *fits = rule->fits(&(assay_call){f->op, f->arg, f->param}, &f->contract, row, from, said, sizeof said);
    if (!*fits)
      (void)snprintf(why, size, "row %lld: each result may stand there, but not all together: %s", (long long)row,
                     said);
  }
  free(values);
  return ASSAY_OK;
}
