/* explain.h: finds the sum contract that predicts the bits of recorded products (docs/last-bit.md). This is the only
 * header of this folder that other folders include. */
#ifndef ASSAY_CONFORMANCE_EXPLAIN_EXPLAIN_H
#define ASSAY_CONFORMANCE_EXPLAIN_EXPLAIN_H

#include <stdint.h>
#include <stdio.h>

#include "assay/status.h"

/* A log with one line per case. */
typedef struct explain_log {
  FILE *to;
  int64_t explained, unexplained;
} explain_log;

/* Explains each case of DIR/manifest.json, a folder as assay judge reads it. The operator is gemm, without bias, alpha
 * and beta; a and b may also be fp8, and scale_a and scale_b may stand beside them. Prints a line per case. Fails with
 * ASSAY_ERR_INPUT if the manifest or a file is not as it must be. */
assay_status explain_dir(const char *folder, explain_log *log, assay_error *error);

#endif
