/* spec.h: arguments and parameters of spec_verify, and its values for the generator. */
#ifndef ASSAY_REF_SPEC_H
#define ASSAY_REF_SPEC_H

#include "assay/op.h"

enum {
  SPEC_DRAFT,
  SPEC_N_DRAFT,
  SPEC_Q,
  SPEC_P,
  SPEC_COINS,
  SPEC_SEED,
  SPEC_STEP,
  SPEC_REQUEST,
  SPEC_TOKENS,
  SPEC_ACCEPTED,
  SPEC_STATUS,
  SPEC_ARGS
};
enum { SPEC_SAMPLED, SPEC_GREEDY };

/* Returns coin i of a request without coins: Philox with key seed and counter (step, i, request). */
double spec_philox(uint64_t seed, uint32_t step, uint32_t i, uint64_t request);

/* Fills an argument. Each request has a plan of its own, drawn from the seed and its number. The plan says how many
 * drafts are accepted and what is wrong with the request. All that the operator does not read is NaN. */
assay_status spec_fill(const assay_fill *fill, int32_t arg, double *value, int64_t count, assay_error *error);

#endif
