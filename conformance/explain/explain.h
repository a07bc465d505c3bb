/* explain.h: finds the sum contract that predicts the bits of recorded products (docs/last-bit.md). This is the only
 * header of this folder that other folders include. */
#ifndef ASSAY_CONFORMANCE_EXPLAIN_EXPLAIN_H
#define ASSAY_CONFORMANCE_EXPLAIN_EXPLAIN_H

#include <stdint.h>
#include <stdio.h>

#include "assay/status.h"

/* Products of one N, K and type with the same contract, which follow each other in M. */
typedef struct explain_class {
  char shape[80], contract[160];
  int64_t first, last; /* M */
} explain_class;

/* A log with one line per case. With `most` above 0 it also has the classes of cases with M from `least` to `most`. */
typedef struct explain_log {
  FILE *to;
  int64_t explained, unexplained;
  int64_t least, most;
  explain_class *classes; /* owned: explain_free */
  int32_t count, room;
} explain_log;

/* Reads "m=1..4096". */
assay_status explain_over(explain_log *log, const char *text, assay_error *error);
/* Prints the map of contracts over M: a line per class. */
void explain_map(explain_log *log);
void explain_free(explain_log *log);

/* Explains each case of DIR/manifest.json, a folder as assay judge reads it. The operator is gemm, without bias, alpha
 * and beta; a and b may also be fp8, and scale_a and scale_b may stand beside them. Members rows and
 * columns of a case are the extents of the whole product, where c is a part of it. Prints a line per case. Fails with
 * ASSAY_ERR_INPUT if the manifest or a file is not as it must be. */
assay_status explain_dir(const char *folder, explain_log *log, assay_error *error);

#endif
