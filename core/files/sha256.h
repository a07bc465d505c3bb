/* sha256.h: SHA-256 (FIPS 180-4) over bytes and files. */
#ifndef ASSAY_CORE_FILES_SHA256_H
#define ASSAY_CORE_FILES_SHA256_H

#include <stddef.h>
#include <stdint.h>

#include "assay/status.h"

typedef struct sha256 {
  uint32_t state[8];
  unsigned char block[64];
  uint64_t bytes; /* taken so far */
} sha256;

enum { SHA256_TEXT = 65 };

void sha256_begin(sha256 *s);
void sha256_add(sha256 *s, const void *bytes, size_t count);
/* Writes the hash as 64 hexadecimal digits and a NUL. */
void sha256_end(sha256 *s, char text[SHA256_TEXT]);
/* Hashes a regular file, and counts its bytes. */
assay_status sha256_file(const char *path, char text[SHA256_TEXT], int64_t *bytes, assay_error *error);

#endif
