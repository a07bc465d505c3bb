/* report_text.h: escapes, quoting and whole-file output for reports. Private to the report. */
#ifndef ASSAY_CONFORMANCE_REPORT_TEXT_H
#define ASSAY_CONFORMANCE_REPORT_TEXT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "assay/status.h"

/* A string with its quotes; control characters as \u00XX, bytes that are not UTF-8 as U+FFFD. */
void text_json(FILE *to, const char *text);
/* A number; null where JSON has none for it (NaN, Inf). */
void text_json_number(FILE *to, double value);
/* For attributes and contents; characters that XML 1.0 does not allow become U+FFFD. */
void text_xml(FILE *to, const char *text);
/* One word for a POSIX shell. */
void text_shell(FILE *to, const char *text);
/* 4812 → "4,812". */
void text_count(FILE *to, int64_t count);

/* A file written beside its name, and renamed to it when whole. */
typedef struct text_file {
  FILE *stream;      /* NULL: none */
  char path[4096];   /* the name it gets */
  char beside[4110]; /* the name it has */
  bool partial;      /* stays when it cannot be finished */
  int why;           /* errno of the first failed write; 0: none */
} text_file;

assay_status text_open(text_file *file, const char *path, assay_error *error);
/* The same for a file whose lines shall outlive an interruption: PATH.partial, written line by line, locked against
 * another run. keep_bytes >= 0: its first bytes stay, and what is written comes behind them. */
#define TEXT_PARTIAL ".partial"
assay_status text_open_partial(text_file *file, const char *path, int64_t keep_bytes, assay_error *error);
/* Closes without renaming: PATH.partial stays. */
void text_keep(text_file *file);
/* After writing: keeps the reason of the first write that failed, for text_close to give. */
void text_note(text_file *file);
/* Flushes, checks, renames. Whatever fails leaves nothing behind. */
assay_status text_close(text_file *file, assay_error *error);
void text_discard(text_file *file);

#endif
