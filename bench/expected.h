/* expected.h: what a model's first tokens after a prompt must be, by the reference; and what others may be instead. */
#ifndef ASSAY_BENCH_EXPECTED_H
#define ASSAY_BENCH_EXPECTED_H

#include <stdio.h>

#include "assay/model.h"

enum { EXPECTED_STEPS = 8, EXPECTED_BEST = 8 };

/* Greedy from f64 logits. rms: of what rounding where a device stores changes in the logits (mirror mode less exact
 * mode, over the vocabulary, mean of the steps). A token that is not the first may be right where the two are closer
 * than 4 rms. */
typedef struct expected {
  int64_t number, prompt;
  double rms, live; /* live: share of the visible keys in the steps after the prompt; 0: no gate */
  int32_t id[EXPECTED_STEPS][EXPECTED_BEST]; /* by falling logit, the lower id first */
  double logit[EXPECTED_STEPS][EXPECTED_BEST];
} expected;

/* Computes the reference for the first length[i] ids of prompt `number` (assay_model_prompt), i = 0 .. count - 1,
 * ascending. Each length is one prefill in both modes. This takes as long as the longest prompt does, twice. */
assay_status expected_compute(const assay_model_config *config, const assay_model_weights *weights, uint64_t seed,
                              int64_t number, const int64_t *length, int64_t count, expected *made, assay_error *error);
void expected_write(FILE *to, const assay_model_config *config, uint64_t seed, const expected *one);
/* From a file of such lines. *found: there is one for the configuration, seed, prompt. */
assay_status expected_read(const char *path, const assay_model_config *config, uint64_t seed, int64_t number,
                           int64_t prompt, expected *made, bool *found, assay_error *error);
/* `count` tokens of a run. *agreed: so many are the reference's, up to the first that may differ. False: `why` says
 * which is wrong. */
bool expected_check(const expected *one, const int32_t *ids, int64_t count, int64_t *agreed, char *why, size_t size);

/* Logits [V] that token number `step` was chosen from: those of the best ids within 6 rms of the reference's. */
bool expected_check_logits(const expected *one, int64_t step, const double *logits, char *why, size_t size);

#endif
