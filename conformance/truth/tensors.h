/* tensors.h: folders that hold recorded tensors. */
#ifndef ASSAY_CONFORMANCE_TRUTH_TENSORS_H
#define ASSAY_CONFORMANCE_TRUTH_TENSORS_H

#include "truth_internal.h"

/* Compares every tensor of a forward pass with its record from PyTorch. */
assay_status truth_gpt(const char *folder, truth_log *log, assay_error *error);
/* Compares one file: input and output of an RMSNorm in bf16. */
assay_status truth_rms_norm(const char *folder, const char *file, truth_log *log, assay_error *error);

#endif
