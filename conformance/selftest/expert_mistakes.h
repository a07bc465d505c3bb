/* expert_mistakes.h: mistakes that simt_expert_mutant_test plants in a device's sparse layers, one at a time.
 * expert_mistakes.def says where. */
#ifndef ASSAY_SELFTEST_EXPERT_MISTAKES_H
#define ASSAY_SELFTEST_EXPERT_MISTAKES_H

enum {
  EXPERT_NO_MISTAKE,
  EXPERT_OTHER_SCALE,     /* weights are divided by their sum, or are not, the other way round */
  EXPERT_LOGIT_OF_NEXT,   /* the router reads the logit of the next expert */
  EXPERT_WEIGHTS_OF_NEXT, /* each product has the matrix of the next expert */
  EXPERT_ROWS_OF_NEXT,    /* each product begins one row too late */
  EXPERT_NOT_WEIGHTED,    /* results are added without weights */
  EXPERT_ONE_TOO_FEW,     /* the last expert has no product */
  EXPERT_NOT_SORTED,      /* in one call for all experts, rows have the experts of tokens in their order */
  EXPERT_MISTAKES
};

/* The mistake that is planted now. */
static int expert_mistake;
#define PLANTED(which) (expert_mistake == (which))

#endif
