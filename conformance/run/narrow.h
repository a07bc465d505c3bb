/* narrow.h: the search for the narrowest contract that explains a kernel's errors. */
#ifndef ASSAY_CONFORMANCE_RUN_NARROW_H
#define ASSAY_CONFORMANCE_RUN_NARROW_H

#include "assay/op.h"

/* Error ratios of a set of cases under one contract. A contract holds if `largest` is at most 1. */
typedef struct narrow_seen {
  double largest, mean;
} narrow_seen;

/* Judges the set under each of `count` contracts, at most CONTRACTS_MOST. */
typedef assay_status (*narrow_ask)(void *context, const assay_contract *list, int32_t count, narrow_seen *seen,
                                   assay_error *error);

enum { NARROW_OTHERS = 6, NARROW_FIELDS = 13 };

typedef struct narrow_result {
  narrow_seen declared;
  bool found; /* a contract holds */
  /* The narrowest one that was found. If none holds: the widest one that was asked. */
  assay_contract contract;
  narrow_seen seen;
  /* Other contracts that hold and differ from the plainest in one field too. */
  assay_contract other[NARROW_OTHERS];
  narrow_seen other_seen[NARROW_OTHERS];
  int32_t others;
  int32_t asked;               /* contracts that were judged */
  bool matters[NARROW_FIELDS]; /* another value of the field alone changes a ratio */
} narrow_result;

/* Searches. The plainest contract rounds nothing beyond f32 and sums in many lanes. Fields that are no limits of
 * rounding (promises, splits, what is added to the denominator) stay as declared. While no contract holds, one field is
 * widened at a time. Then fields are narrowed as far as the contract still holds, and exchanged for others. If `start`
 * changes a ratio, the same is done once more from the plainest contract whose sums start from the bias. If several
 * contracts hold, the one with the largest mean ratio is the narrowest. The errors are the same, so that its limits are
 * the smallest. Fails only if `ask` fails. */
assay_status narrow_search(const assay_contract *declared, narrow_ask ask, void *context, narrow_result *result,
                           assay_error *error);

/* Returns the name of field `index` of NARROW_FIELDS, which the search varies. */
const char *narrow_field(int32_t index);

#endif
