/* lengths.h: the requests of a drawn case: how many, how long, how much of each is new, what they share. */
#ifndef ASSAY_CONFORMANCE_LENGTHS_H
#define ASSAY_CONFORMANCE_LENGTHS_H

#include "spec.h"
#include "trace.h"

/* Traces are read once, when a suite first names them. */
typedef struct trace_set {
  const char *suite; /* the file that names them, for finding fixtures/ */
  trace loaded[3];
  int32_t count;
} trace_set;

void trace_set_free(trace_set *set);
/* fixtures/: $ASSAY_FIXTURES, else beside the suite's repository or installation, else where it was built. */
assay_status trace_set_get(trace_set *set, yaml_node at, const char *name, const trace **found, assay_error *error);

typedef struct length_specs {
  const spec *kv_len, *new_len, *share; /* new_len and share may be absent */
  const case_key *kv_len_key;
  int32_t batch;      /* -1: as long as the lists say, else 1 */
  double axis_kv_len; /* the value of kv_len's and new's axes in this combination */
  double axis_new;
} length_specs;

/* Fills batch, kv_len, new_len, share_with, share_tokens of a case whose keys are all set. */
assay_status lengths_draw(const length_specs *specs, trace_set *traces, assay_rng *rng, assay_case *one,
                          assay_error *error);

#endif
