/* mutants_allclose.h: would the usual test have seen it? One well-shaped call a type with plain random inputs: every
 * length a multiple of the block, tables in order, nothing dead, dense rows, parameters at their defaults; its output
 * beside the reference, judged as four projects judge theirs. */
#ifndef ASSAY_CONFORMANCE_MUTANTS_ALLCLOSE_H
#define ASSAY_CONFORMANCE_MUTANTS_ALLCLOSE_H

#include "judge.h"

enum { ALLCLOSE_VLLM, ALLCLOSE_FLASHINFER, ALLCLOSE_FLASH_ATTENTION, ALLCLOSE_GGML, ALLCLOSE_COUNT };

typedef struct allclose_verdict {
  bool caught[ALLCLOSE_COUNT];
  int32_t cases; /* calls that the variant took */
} allclose_verdict;

const char *allclose_name(int32_t judge); /* "vllm" */

/* Adds what the variant's plain calls show. Runs it in this process: whoever asks stands ready for its death. */
assay_status allclose_judge(const assay_variant *variant, const assay_device *device, allclose_verdict *found,
                            assay_error *error);

/* One output, beside the reference; exposed for the tests. `decode`: one row a request. low_error: largest error of
 * a run in low precision. */
void allclose_compare(const double *got, const double *expected, int64_t count, assay_dtype dtype, bool decode,
                      double low_error, bool caught[ALLCLOSE_COUNT]);

#endif
