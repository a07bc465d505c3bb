/* lengths.h: the requests of a drawn case: their number, lengths, new tokens and shared prefixes. */
#ifndef ASSAY_CONFORMANCE_SUITE_LENGTHS_H
#define ASSAY_CONFORMANCE_SUITE_LENGTHS_H

#include "spec.h"
#include "trace.h"

/* The traces that a suite names. Each is read once, when it is first named. */
typedef struct trace_set {
  const char *suite; /* the file that names them, used to find fixtures/ */
  trace loaded[3];
  int32_t count;
} trace_set;

void trace_set_free(trace_set *set);
/* Returns a trace that the set owns. fixtures/ is $ASSAY_FIXTURES, else beside the suite's repository or installation,
 * else where the program was built. Fails at the node `at`. */
assay_status trace_set_get(trace_set *set, yaml_node at, const char *name, const trace **found, assay_error *error);

/* The item's values for the lists of a case. */
typedef struct length_specs {
  const spec *kv_len, *new_len, *share; /* new_len and share may be absent */
  const case_key *kv_len_key;
  int32_t batch;      /* -1: the length of the lists, else 1 */
  double axis_kv_len; /* the values of kv_len's and new's axes in this combination */
  double axis_new;
} length_specs;

/* Fills batch, kv_len, new_len, share_with and share_tokens of a case whose other keys are set. The case owns the
 * lists. */
assay_status lengths_draw(const length_specs *specs, trace_set *traces, assay_rng *rng, assay_case *one,
                          assay_error *error);

#endif
