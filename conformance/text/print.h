/* print.h: escapes, quoting and whole-file output for reports. */
#ifndef ASSAY_CONFORMANCE_TEXT_PRINT_H
#define ASSAY_CONFORMANCE_TEXT_PRINT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "assay/status.h"

/* Writes a string with its quotes: control characters as \u00XX, bytes that are not UTF-8 as U+FFFD. */
void text_json(FILE *to, const char *text);
/* Writes a number, or null where JSON has none for it (NaN, Inf). */
void text_json_number(FILE *to, double value);
/* Writes text for XML attributes and contents. Characters that XML 1.0 does not allow become U+FFFD. */
void text_xml(FILE *to, const char *text);
/* Returns text of others as a terminal may have it: control characters, marks of direction, and bytes that are not
 * UTF-8 as \x1b, \n, \u202e. Text without any is returned itself. Else the result lives until the eighth call after
 * this one; what does not fit into TEXT_SHOWN bytes is cut off. */
enum { TEXT_SHOWN = 8192 };
const char *text_shown(const char *text);
/* Writes text as one word of a POSIX shell. Text with control characters becomes $'...', of which the shell makes the
 * same bytes. */
void text_shell(FILE *to, const char *text);
/* Writes 4812 as "4,812". */
void text_count(FILE *to, int64_t count);

/* A file written under another name beside its own, and renamed when it is whole. */
typedef struct text_file {
  FILE *stream;      /* NULL: none */
  char path[4096];   /* its final name */
  char beside[4110]; /* its name until then */
  bool partial;      /* stays when it cannot be finished */
  int why;           /* errno of the first failed write; 0: none */
} text_file;

/* Opens PATH.<process id> for writing. Fails with ASSAY_ERR_INPUT (length of the path) or ASSAY_ERR_IO. */
assay_status text_open(text_file *file, const char *path, assay_error *error);
/* Opens PATH.partial, for a file whose lines must outlive an interruption. It is written line by line and locked
 * against another run. The first `keep_bytes` bytes stay; writing continues after them. Fails as text_open does, and
 * with ASSAY_ERR_INPUT if another run holds the lock. */
#define TEXT_PARTIAL ".partial"
assay_status text_open_partial(text_file *file, const char *path, int64_t keep_bytes, assay_error *error);
/* Closes without renaming: PATH.partial stays. */
void text_keep(text_file *file);
/* Call after writing: keeps the reason of the first write that failed, for text_close to report. */
void text_note(text_file *file);
/* Flushes, checks, closes and renames. Fails with ASSAY_ERR_IO; the unfinished file is then removed, except
 * PATH.partial. */
assay_status text_close(text_file *file, assay_error *error);
/* Removes the unfinished files of text_open, from a handler of a signal that ends the process. */
void text_remove_pending(void);
/* Closes and removes the unfinished file. Does nothing if it is closed already. */
void text_discard(text_file *file);

#endif
