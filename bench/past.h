/* past.h: what an interrupted bench left in FILE.partial, so that the same command goes on. */
#ifndef ASSAY_BENCH_PAST_H
#define ASSAY_BENCH_PAST_H

#include "rows.h"

typedef struct bench_past {
  char **descriptor; /* descriptors of the cases that are done, in the file's order */
  int64_t count, timed, failed, unsupported;
  int64_t bytes; /* bytes of the file that stay; 0: the file is new */
  bool complete; /* FILE itself exists, and is whole */
} bench_past;

/* Reads FILE.partial, or FILE, if one of them exists. The last case of an unfinished file is not counted: a mode of it
 * may be missing. ASSAY_ERR_INPUT with the field, what was found and what is allowed, where another run wrote the file.
 */
assay_status past_read(const char *path, const bench_head *head, bench_past *past, assay_error *error);
bool past_has(const bench_past *past, const char *descriptor);
void past_free(bench_past *past);

#endif
