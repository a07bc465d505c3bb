/* files_fixture.h: files that a test copies, changes and reads again, in a folder of its own. */
#ifndef ASSAY_SELFTEST_FILES_FIXTURE_H
#define ASSAY_SELFTEST_FILES_FIXTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct test_bytes {
  unsigned char *at; /* size bytes and a NUL */
  size_t size;
} test_bytes;

/* A new folder; files_gone removes it and what is in it. Aborts the test where that cannot be. */
const char *files_folder(void);
void files_gone(void);

test_bytes files_read(const char *path);
/* NAME in the folder; the path is good until the next call but seven. */
const char *files_path(const char *name);
const char *files_put(const char *name, const void *bytes, size_t size);
const char *files_copy(const char *from, const char *name);
/* The first `old` of a text becomes `fresh`; false: there is none. */
bool files_replace(test_bytes *text, const char *old, const char *fresh);
void files_free(test_bytes *b);

/* Returns the text that a function prints to a stream. */
typedef struct test_output {
  void *stream; /* a FILE */
  char *text;
  size_t size;
} test_output;
void output_open(test_output *o);
void output_close(test_output *o); /* text is complete; free it with output_free */
void output_free(test_output *o);

#endif
