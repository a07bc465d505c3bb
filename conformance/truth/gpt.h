/* gpt.h: a recorded forward pass in memory. Every tensor has the shape that the model gives. */
#ifndef ASSAY_CONFORMANCE_TRUTH_GPT_H
#define ASSAY_CONFORMANCE_TRUTH_GPT_H

#include "conformance/models/models.h"
#include "tensors.h"

typedef struct recorded {
  const char *folder;
  tensor_file golden;
  model_file model;
  int64_t B, T, H, D, C, I, V;
  int32_t *ids; /* [B, T] */
  truth_log *log;
  double noise; /* the largest of the operators (gpt_operators.c) */
} recorded;

/* Returns a tensor of the recording, else a weight by the file's own name. */
const file_tensor *recorded_tensor(const recorded *g, const char *name);

/* gpt_operators.c */
assay_status gpt_operators(recorded *g, assay_error *error);

#endif
