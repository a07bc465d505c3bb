/* sampler_call.h: a call of the operator `sampler`: its arguments, its rows, and the rows of the generator. */
#ifndef ASSAY_REF_SAMPLER_CALL_H
#define ASSAY_REF_SAMPLER_CALL_H

#include "ref/lib/sampler.h"

enum {
  ARG_LOGITS,
  ARG_SEED,
  ARG_STEP,
  ARG_REQUEST,
  ARG_REPETITION,
  ARG_FREQUENCY,
  ARG_PRESENCE,
  ARG_TEMPERATURE,
  ARG_TOP_K,
  ARG_TOP_P,
  ARG_MIN_P,
  ARG_PROMPT,
  ARG_OUTPUT,
  ARG_TOKEN,
  ARG_STATUS,
  ARG_COUNT
};

/* Row b of the call; logits as f64 into logit [V]. */
sampler_row sampler_row_of(const assay_call *call, int64_t b, double *logit);

/* What the generator puts into an argument. Every row has a recipe of its own, drawn from the seed and its number: how
 * its logits are spread, tied, banned or broken, and parameters that go with them. */
assay_status sampler_fill(const assay_fill *fill, int32_t arg, double *value, int64_t count, assay_error *error);

#endif
