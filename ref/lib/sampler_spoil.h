/* sampler_spoil.h: the token that an implementation with one planted error draws from a row. */
#ifndef ASSAY_REF_SAMPLER_SPOIL_H
#define ASSAY_REF_SAMPLER_SPOIL_H

#include "ref/lib/sampler.h"

/* Names in the order of the enum. */
#define SAMPLER_SPOILS                                                                                                 \
  "highest_id_wins_ties,top_p_drops_crossing,min_p_before_top_p,counter_by_row,temperature_before_penalties,"          \
  "presence_per_occurrence,negatives_divided,top_k_keeps_ties,top_k_one_more,step_lost,seed_high_lost,"                \
  "request_high_lost,prompt_counted,prompt_not_repeated,top_p_of_all,min_p_of_one,draw_at_least"

typedef enum sampler_spoil {
  SPOIL_HIGHEST_ID,
  SPOIL_TOP_P_DROPS_CROSSING,
  SPOIL_MIN_P_FIRST,
  SPOIL_COUNTER_BY_ROW,
  SPOIL_TEMPERATURE_FIRST,
  SPOIL_PRESENCE_PER_OCCURRENCE,
  SPOIL_NEGATIVES_DIVIDED,
  SPOIL_TOP_K_KEEPS_TIES,
  SPOIL_TOP_K_ONE_MORE,
  SPOIL_STEP_LOST,
  SPOIL_SEED_HIGH_LOST,
  SPOIL_REQUEST_HIGH_LOST,
  SPOIL_PROMPT_COUNTED,
  SPOIL_PROMPT_NOT_REPEATED,
  SPOIL_TOP_P_OF_ALL,
  SPOIL_MIN_P_OF_ONE,
  SPOIL_DRAW_AT_LEAST
} sampler_spoil;

/* Returns the token. index: the row's place in the batch. The row's code must be SAMPLER_OK. */
int32_t sampler_spoilt(const sampler_row *row, const sampler_scratch *scratch, sampler_spoil spoil, int64_t index);

#endif
