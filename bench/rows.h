/* rows.h: figures as lines of JSON, and back. */
#ifndef ASSAY_BENCH_ROWS_H
#define ASSAY_BENCH_ROWS_H

#include <stdio.h>

#include "limit.h"

typedef struct bench_head {
  const char *device, *commit;
  const assay_device_info *info;
  const bench_options *options;
  uint64_t seed;
} bench_head;

void rows_head(FILE *to, const bench_head *head);
void rows_limits(FILE *to, const bench_limits *limits);
/* One line for each mode with a figure; one with verdict, check and message where there is none. */
void rows_case(FILE *to, const assay_case *one, const char *descriptor, const bench_result *result,
               const bench_limits *limits);
/* The last line: a file without it is not whole. */
void rows_end(FILE *to, int64_t timed, int64_t failed, int64_t unsupported, double seconds);

/* A figure read back. */
typedef struct bench_row {
  char *descriptor;
  char op[64], variant[64], mode[8], name[192];
  double median, low, high, halves;
  double empty; /* an empty launch in the same form; 0: not measured */
  int64_t samples;
  bool failed; /* the case has no figure, because it is wrong */
} bench_row;

typedef struct bench_rows_list {
  bench_row *row;
  int64_t count;
  char device[16], device_name[128], commit[64];
  bool ended;
} bench_rows_list;

/* Several runs in one file, one after the other, are joined. A joined row has the median of the medians, an interval
 * that holds all of theirs, and the mean of the empty launches.
 * ASSAY_ERR_INPUT with file and line; *is_bench false and nothing read where the file is no bench's. */
assay_status rows_read(const char *path, bench_rows_list *made, bool *is_bench, assay_error *error);
void rows_free(bench_rows_list *list);

#endif
