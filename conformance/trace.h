/* trace.h: recorded requests: lengths of prompts and outputs, and which prompts share a prefix. */
#ifndef ASSAY_CONFORMANCE_TRACE_H
#define ASSAY_CONFORMANCE_TRACE_H

#include <stdint.h>

#include "assay/status.h"

enum { TRACE_BLOCK = 512, TRACE_MAX_BYTES = 64 << 20 };

typedef struct trace_request {
  double arrival_s;               /* by the trace's own clock; -1: its line does not say */
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

/* "azure_conv, azure_code, mooncake" */
extern const char trace_names[];
/* NULL: no such trace. */
const char *trace_file(const char *name);
/* `fixtures` is the folder that holds traces/. Messages name file and line. */
assay_status trace_load(const char *name, const char *fixtures, trace *made, assay_error *error);
void trace_free(trace *t);
/* Tokens at the start of both prompts that are the same KV: whole 512-token blocks of equal ids (and the
 * partial last one, when it is the same in both). */
int64_t trace_common(const trace *t, int32_t a, int32_t b);

#endif
