/* bytes.h: a whole file in memory. */
#ifndef ASSAY_CORE_FILES_BYTES_H
#define ASSAY_CORE_FILES_BYTES_H

#include <stdint.h>

#include "assay/status.h"

/* All of a regular file, and a NUL byte behind it. More than `most` bytes are refused. `bytes` is owned by the caller
 * (free) and aligned for any type. */
assay_status file_bytes(const char *path, int64_t most, unsigned char **bytes, int64_t *size, assay_error *error);

#endif
