/* truth.h: references and forward passes against results that others have computed and published (docs/truth.md). */
#ifndef ASSAY_CONFORMANCE_TRUTH_H
#define ASSAY_CONFORMANCE_TRUTH_H

#include <stdint.h>
#include <stdio.h>

#include "assay/status.h"

/* A line per case, as it is known. */
typedef struct truth_log {
  FILE *to;
  int64_t passed, failed, uncovered;
} truth_log;

#if defined(__GNUC__)
#define TRUTH_TEXT __attribute__((format(printf, 3, 4)))
#else
#define TRUTH_TEXT
#endif
TRUTH_TEXT void truth_pass(truth_log *log, const char *name, const char *format, ...);
TRUTH_TEXT void truth_fail(truth_log *log, const char *name, const char *format, ...);
TRUTH_TEXT void truth_uncovered(truth_log *log, const char *name, const char *format, ...);
/* "12 passed, 0 failed, 3 not covered" */
void truth_sum(const truth_log *log);

/* Node cases of DIR/index.json and DIR/packed.bin. Statuses other than OK: the files are not what they should be. */
assay_status truth_onnx(const char *folder, truth_log *log, assay_error *error);
/* Recorded tensors: DIR is a folder of one model, or holds such folders. */
assay_status truth_tensors(const char *folder, truth_log *log, assay_error *error);
/* Greedy ids and logits of a llama2.c checkpoint. */
assay_status truth_llama2c(const char *model, const char *golden, const char *backend, truth_log *log,
                           assay_error *error);

#endif
