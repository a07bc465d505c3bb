/* sample.h: the next token of a generated text, by the sampler's reference. */
#ifndef ASSAY_CONFORMANCE_MODELS_SAMPLE_H
#define ASSAY_CONFORMANCE_MODELS_SAMPLE_H

#include "assay/status.h"

#include <stdint.h>

typedef struct sample_options {
  double repetition, frequency, presence, temperature, top_p, min_p;
  int64_t top_k;
  uint64_t seed;
} sample_options;

/* Reads "temperature=0.8,top_k=40,top_p=0.95,min_p=0,repetition=1,frequency=0,presence=0,seed=1"; options not named are
 * off. Fails with the option, the value found and the values allowed. */
assay_status sample_parse(const char *text, sample_options *options, assay_error *error);
/* Draws token number `step` of request `request`. The history is its prompt and the tokens so far. */
assay_status sample_token(const sample_options *options, const double *logits, int64_t V, int64_t request, int64_t step,
                          const int32_t *prompt, int64_t prompt_count, const int32_t *output, int32_t *token,
                          assay_error *error);

#endif
