/* allclose.h: tells whether the usual test would have seen a mutant. It makes one well-shaped call per type with plain
 * random inputs. Every length is a multiple of the block, tables are in order, nothing is dead, rows are dense, and
 * parameters have their defaults. The output is compared with the reference as four projects compare theirs. */
#ifndef ASSAY_CONFORMANCE_KILL_ALLCLOSE_H
#define ASSAY_CONFORMANCE_KILL_ALLCLOSE_H

#include "conformance/judge/judge.h"

enum { ALLCLOSE_VLLM, ALLCLOSE_FLASHINFER, ALLCLOSE_FLASH_ATTENTION, ALLCLOSE_GGML, ALLCLOSE_COUNT };

typedef struct allclose_verdict {
  bool caught[ALLCLOSE_COUNT];
  int32_t cases; /* calls that the variant took */
} allclose_verdict;

const char *allclose_name(int32_t judge); /* "vllm" */

/* Adds the results of the variant's plain calls to `found`. The variant runs in this process, so the caller must be
 * prepared for its death. Fails where a call could not be prepared. */
assay_status allclose_judge(const assay_variant *variant, const assay_device *device, allclose_verdict *found,
                            assay_error *error);

/* Judges one output against the reference; exposed for the tests. `decode`: one row per request. low_error: the largest
 * error of a run in low precision. */
void allclose_compare(const double *got, const double *expected, int64_t count, assay_dtype dtype, bool decode,
                      double low_error, bool caught[ALLCLOSE_COUNT]);

#endif
