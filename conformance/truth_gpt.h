/* truth_gpt.h: a recorded forward pass in memory; every tensor has the shape that the model says. */
#ifndef ASSAY_CONFORMANCE_TRUTH_GPT_H
#define ASSAY_CONFORMANCE_TRUTH_GPT_H

#include "model_open.h"
#include "truth_tensors.h"

typedef struct recorded {
  const char *folder;
  tensor_file golden;
  model_file model;
  int64_t B, T, H, D, C, I, V;
  int32_t *ids; /* [B, T] */
  truth_log *log;
  double noise; /* the largest of the operators (truth_gpt_operators.c) */
} recorded;

/* Of the recording, else a weight by the file's own name. */
const file_tensor *recorded_tensor(const recorded *g, const char *name);

/* truth_gpt_operators.c */
assay_status gpt_operators(recorded *g, assay_error *error);

#endif
