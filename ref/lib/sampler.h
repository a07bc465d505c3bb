/* sampler.h: makes one token from one row of logits, its parameters and the tokens so far. These are plain functions in
 * f64, for the sampler's reference and for callers that generate text.
 *
 *   sampler_row row = sampler_row_neutral;          no penalties, temperature 1, every filter off
 *   row.V = V, row.logit = logits, row.temperature = 0.7, row.top_k = 40, row.seed = 1, row.step = n, row.request = id;
 *
 *   sampler_scratch scratch;                              serves any number of rows of up to V logits
 *   status = sampler_scratch_make(V, &scratch, error);
 *   code = sampler_token(&row, &scratch, &token);         token is -1 unless code is SAMPLER_OK
 *   sampler_scratch_free(&scratch);
 *
 * temperature 0 is the greedy choice. The same row gives the same token on every machine whose exp is right to a few
 * ulp of f64. */
#ifndef ASSAY_REF_SAMPLER_H
#define ASSAY_REF_SAMPLER_H

#include "assay/op.h"

typedef struct sampler_row {
  int64_t V;
  const double *logit; /* [V]; -Inf bans a token */
  const int32_t *prompt, *output;
  int64_t prompt_count, output_count;     /* entries of the two lists; -1 is no token */
  double repetition, frequency, presence; /* 1, 0, 0: off */
  double temperature;                     /* 0: the largest logit */
  int64_t top_k;                          /* 0: off */
  double top_p, min_p;                    /* 1, 0: off */
  uint64_t seed, request;                 /* Philox key; counter words 2 and 3 */
  uint32_t step;                          /* counter word 0 */
} sampler_row;

extern const sampler_row sampler_row_neutral;

/* The status word of a row. */
typedef enum sampler_code {
  SAMPLER_OK = 0,
  SAMPLER_NOT_FINITE = 1, /* a logit is NaN or +Inf */
  SAMPLER_ALL_BANNED = 2, /* every logit is -Inf */
  SAMPLER_PARAMETER = 3,  /* a parameter is out of its range */
  SAMPLER_HISTORY = 4     /* a token of the history is neither -1 nor below V */
} sampler_code;

/* Working memory of one row. After sampler_token: */
typedef struct sampler_scratch {
  int64_t capacity;
  double *value;       /* [V] logits after the penalties */
  double *mass;        /* [V] exp((value - largest) / temperature) of the kept tokens, 0 of the others */
  int32_t *order;      /* [V] a permutation of the ids, kept tokens first until the draw */
  int32_t *count;      /* [V] occurrences among the outputs */
  unsigned char *seen; /* [V] 1: in prompt or outputs */
} sampler_scratch;

assay_status sampler_scratch_make(int64_t V, sampler_scratch *scratch, assay_error *error);
void sampler_scratch_free(sampler_scratch *scratch);

sampler_code sampler_token(const sampler_row *row, const sampler_scratch *scratch, int32_t *token);

/* Returns the name of the first illegal parameter or history of the row, and what is allowed; NULL if all are legal. */
const char *sampler_illegal_parameter(const sampler_row *row, double *found, const char **allowed);
const char *sampler_illegal_token(const sampler_row *row, int64_t *place, int32_t *found);

/* Returns the uniform number of a row: a multiple of 2^-24 in [0, 1). */
double sampler_uniform(uint64_t seed, uint32_t step, uint64_t request);

/* ---- the steps, in their order ----------------------------------------------------------------------- */

/* Counts the history into scratch. */
void sampler_count(const sampler_row *row, const sampler_scratch *scratch);
/* Returns one logit after the penalties. */
double sampler_penalised(const sampler_row *row, double logit, bool seen, int32_t count);
/* Returns the lowest id of the largest value. */
int32_t sampler_largest(const double *value, int64_t V);
/* Moves the k ids that come first (larger value, then lower id) to the front of the first `count` of order. */
void sampler_front(const double *value, int32_t *order, int64_t count, int64_t k);
/* Returns the length of the shortest prefix of the descending order of the first `count` ids whose mass reaches p of
 * their whole mass. Those ids come to the front. */
int64_t sampler_prefix(const double *value, const double *mass, int32_t *order, int64_t count, double p);
/* Returns the lowest id whose running mass exceeds u of the whole. */
int32_t sampler_draw(const double *mass, int64_t V, double u);

#endif
