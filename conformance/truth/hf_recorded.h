/* hf_recorded.h: what the transformers library recorded of a model (docs/truth.md, "hf"). */
#ifndef ASSAY_CONFORMANCE_TRUTH_HF_RECORDED_H
#define ASSAY_CONFORMANCE_TRUTH_HF_RECORDED_H

#include "conformance/models/models.h"
#include "conformance/text/text.h"

enum { HF_PROMPTS = 16 };

typedef struct hf_prompt {
  int32_t *ids, *greedy;
  int64_t count, steps;
} hf_prompt;

/* One stage of one prompt: [tokens, width]. */
typedef struct hf_stage {
  char tap[ASSAY_MODEL_NAME];
  int64_t prompt, width;
  const npy_tensor *file;
  int64_t first;       /* its first element in the file */
  bool ids, unordered; /* unordered: the values of a row are a set, as a router that does not sort returns them */
} hf_stage;

typedef struct hf_recorded {
  model_file model;
  hf_prompt prompt[HF_PROMPTS];
  int64_t prompts;
  npy_tensor *file; /* a stage's file; stages of hidden states share one */
  hf_stage *stage;  /* in the order of a pass, prompt after prompt */
  int64_t files, stages;
} hf_recorded;

/* Reads the model of a folder and its recorded results. The caller frees `g` with hf_recorded_free, after a failure
 * too. Fails with ASSAY_ERR_UNSUPPORTED on a model_type that is not read here. */
assay_status hf_recorded_read(const char *folder, hf_recorded *g, assay_error *error);
void hf_recorded_free(hf_recorded *g);

#endif
