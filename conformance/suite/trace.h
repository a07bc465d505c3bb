/* trace.h: recorded requests: the lengths of prompts and outputs, and shared prefixes of prompts. */
#ifndef ASSAY_CONFORMANCE_SUITE_TRACE_H
#define ASSAY_CONFORMANCE_SUITE_TRACE_H

#include <stdint.h>

#include "assay/status.h"

enum { TRACE_BLOCK = 512, TRACE_MAX_BYTES = 64 << 20 };

typedef struct trace_request {
  double arrival_s;               /* by the trace's own clock; -1: its line has no time */
  int32_t prompt, output;         /* tokens, >= 1 */
  int32_t first_hash, hash_count; /* mooncake: ids of its 512-token prefix blocks, the last one partial */
} trace_request;

typedef struct trace {
  const char *name;
  trace_request *request; /* in order of arrival */
  int32_t count;
  int32_t *hash;
  int64_t hash_total;
} trace;

/* "azure_conv, azure_code, mooncake". */
extern const char trace_names[];
/* Returns the path of a trace's file below fixtures/, or NULL. */
const char *trace_file(const char *name);
/* Reads a trace, which the caller frees. `fixtures` is the folder that holds traces/. Fails with file and line. */
assay_status trace_load(const char *name, const char *fixtures, trace *t, assay_error *error);
void trace_free(trace *t);
/* Returns the number of tokens at the start of both prompts that are the same KV. These are whole 512-token blocks of
 * equal ids, and the partial last block if both have the same. */
int64_t trace_common(const trace *t, int32_t a, int32_t b);

#endif
