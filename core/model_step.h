/* model_step.h: checks whether a step can be computed. Every table entry, slot, id and length that the step uses is
 * checked before anything is written. It serves every backend of assay/model.h: kernels cannot check what lives on a
 * device. */
#ifndef ASSAY_CORE_MODEL_STEP_H
#define ASSAY_CORE_MODEL_STEP_H

#include "assay/model.h"

/* The state that a session keeps for the check, and its results. The session owns the memory. */
typedef struct model_step {
  int64_t *written;  /* [num_blocks · block_size] number of the last step that wrote there; 0 at first */
  int32_t *request;  /* [max_tokens] request of each row */
  int64_t *stated;   /* [num_states] number of the last step in which a request had this slot; families with states */
  int64_t *position; /* [max_tokens] position of each row; -1: a pad row */
  int64_t number;    /* number of this step, from 1 */
  int64_t longest;   /* kv_len of the longest request, at least 1 */
} model_step;

/* Checks a step. ASSAY_ERR_INPUT names the request, row or copy, what was found and what is allowed. */
assay_status model_step_check(const assay_model_config *config, const assay_model_limits *limits,
                              const assay_model_batch *batch, model_step *step, assay_error *error);
/* Checks the range of every limit. A message reads "num_blocks: found 0, allowed 1 to 134217727". */
assay_status model_limits_check(const assay_model_config *config, const assay_model_limits *limits, assay_error *error);

#endif
