/* compare.h: two runs of the same cases: what failed anew, what was fixed, and how accuracy moved inside the limits. */
#ifndef ASSAY_CONFORMANCE_COMPARE_H
#define ASSAY_CONFORMANCE_COMPARE_H

#include <stdio.h>

#include "results.h"

typedef enum compare_verdict { COMPARE_SAME, COMPARE_BETTER, COMPARE_WORSE, COMPARE_AMBIGUOUS } compare_verdict;

/* One variant in both runs. */
typedef struct compare_group {
  const char *op, *variant;
  int64_t joined, only_a, only_b; /* cases in both, in one */
  int64_t new_failures, fixed;
  int64_t rated, up, down; /* pairs with an error ratio in both; larger in b; smaller in b */
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
  int64_t pair_count;
  int64_t new_failures;
} comparison;

/* Cases are joined by their descriptors without device, suite, section and name. */
assay_status compare_make(const results *a, const results *b, comparison *made, assay_error *error);
void compare_free(comparison *c);
void compare_print(const comparison *c, FILE *to);
const char *compare_verdict_name(compare_verdict v);
/* Two-sided: chance of at most min(up, down) of one sign among up + down fair coins, doubled, at most 1. */
double compare_sign_test(int64_t up, int64_t down);

#endif
