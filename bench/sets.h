/* sets.h: the memory that timed launches run over: input sets, what they hold before, what they must hold after.
 * Private to the bench. */
#ifndef ASSAY_BENCH_SETS_H
#define ASSAY_BENCH_SETS_H

#include "contents.h"

typedef struct bench_sets {
  const assay_device *device;
  const assay_variant *variant;
  bench_contents *contents; /* shared by all sets of the case */
  int64_t workspace, bytes; /* offset of the workspace; of all */
  int32_t count;
  unsigned char *memory[BENCH_MAX_SETS];
  assay_tensor (*arg)[ASSAY_MAX_ARGS]; /* [count] */
  char path[96];                       /* path of the last launch */
} bench_sets;

/* Makes contents with their references, runs each directly twice, judges them, and takes memory for the sets. Returns
 * false where it has set a verdict. */
bool sets_make(bench_sets *s, const assay_case *one, const assay_variant *variant, const assay_device *device,
               const bench_options *options, case_result *result);
/* More sets, up to `wanted` in all where the options' memory has room for them. */
bool sets_add(bench_sets *s, int64_t wanted, const bench_options *options, case_result *result);
void sets_free(bench_sets *s, const case_result *result);
/* Does the host's work that doors need (core/calls.h) for the first `count` sets. It is needed before a launch that
 * follows sets_restore, and before a capture. */
bool sets_plan(const bench_sets *s, int32_t count, case_result *result);
/* One launch over the set's memory, in `stream`. */
bool sets_launch(bench_sets *s, int32_t set, void *stream, case_result *result);
/* The first `count` sets as before a launch, set i with content (i + turn) % BENCH_CONTENTS. */
bool sets_restore(bench_sets *s, int32_t count, int64_t turn, case_result *result);
/* After the launches: outputs, inputs, guards. `all`: values as well, even where all bits are as they were. */
bool sets_check(bench_sets *s, int32_t count, int64_t turn, bool all, case_result *result);

#endif
