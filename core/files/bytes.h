/* bytes.h: opens files of others, and reads a whole file into memory. */
#ifndef ASSAY_CORE_FILES_BYTES_H
#define ASSAY_CORE_FILES_BYTES_H

#include <stdint.h>
#include <stdio.h>

#include "assay/status.h"

/* Opens a regular file for reading; `size` receives its bytes. Refuses a folder, a pipe, a socket and a device by its
 * name, and never waits for a writer. The caller closes `*file`, which is NULL after a failure. */
assay_status file_open(const char *path, FILE **file, int64_t *size, assay_error *error);
/* Refuses a path that exists and is no regular file. A path that does not exist passes. */
assay_status file_check_regular(const char *path, assay_error *error);
/* Reads the next line into `*line` of `*room` bytes, which grows and which the caller frees. `size` receives its bytes,
 * 0 at the end of the file. A failed read, or no memory, is an error with the name `path`, and never the end. */
assay_status file_line(FILE *file, const char *path, char **line, size_t *room, int64_t *size, assay_error *error);
/* Reads all of a regular file and adds a NUL byte after it. Refuses more than `most` bytes. The caller frees `bytes`,
 * which is aligned for any type. */
assay_status file_bytes(const char *path, int64_t most, unsigned char **bytes, int64_t *size, assay_error *error);

#endif
