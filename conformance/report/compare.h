/* compare.h: two runs of the same cases: new failures, fixed ones, and how accuracy moved inside the limits. */
#ifndef ASSAY_CONFORMANCE_REPORT_COMPARE_H
#define ASSAY_CONFORMANCE_REPORT_COMPARE_H

#include <stdio.h>

#include "results.h"

typedef enum compare_verdict { COMPARE_SAME, COMPARE_BETTER, COMPARE_WORSE, COMPARE_AMBIGUOUS } compare_verdict;

/* One variant in both runs. */
typedef struct compare_group {
  const char *op, *variant;
  int64_t joined, only_a, only_b; /* cases in both, in one */
  int64_t new_failures, fixed;
  int64_t rated, up, down; /* pairs with an error ratio in both; of these, larger in b, smaller in b */
  double median_a, median_b;
  double shift; /* median of ratio b over ratio a, pair by pair */
  double p;     /* sign test, two-sided: the chance of so uneven a split if nothing moved */
  compare_verdict verdict;
} compare_group;

typedef struct compare_pair {
  const results_case *a, *b; /* NULL: not in this run */
  int32_t group;
} compare_pair;

typedef struct comparison {
  compare_group *groups;
  int32_t group_count;
  compare_pair *pairs;
  const results *a, *b; /* the runs, for replay lines: they outlive the comparison */
  int64_t pair_count;
  int64_t new_failures;
  int64_t lost, gained; /* cases that only a has, only b has, of variants that both devices have */
  bool other_plan;      /* the runs were asked other cases, although on one device */
} comparison;

/* Refuses a run that does not have all its cases: one without an end, stopped, cut off, or with lines taken out. */
assay_status compare_check(const results *side, const char *name, assay_error *error);
/* Joins cases by their descriptors, without device, suite, section and name. The caller frees `made`. Fails if there is
 * no memory. */
assay_status compare_make(const results *a, const results *b, comparison *made, assay_error *error);
void compare_free(comparison *c);
void compare_print(const comparison *c, FILE *to);
const char *compare_verdict_name(compare_verdict v);
/* Returns the p-value of the two-sided sign test, at most 1. It is twice the chance of at most min(up, down) heads
 * among up + down fair coins. */
double compare_sign_test(int64_t up, int64_t down);

#endif
