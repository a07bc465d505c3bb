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

/* Returns row b of the call, and writes its logits as f64 to logit [V]. */
sampler_row sampler_row_of(const assay_call *call, int64_t b, double *logit);

/* Fills an argument for the generator. Every row has a recipe of its own, drawn from the seed and its number. The
 * recipe says how the row's logits are spread, tied, banned or broken, and gives parameters that fit them. */
bool sampler_fill_wide(const assay_fill *fill, int32_t arg, int64_t *value, int64_t count);
assay_status sampler_fill(const assay_fill *fill, int32_t arg, double *value, int64_t count, assay_error *error);

#endif
