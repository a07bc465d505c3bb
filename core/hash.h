/* hash.h: FNV-1a over bytes, 64 bits. Not for anything an adversary may choose. */
#ifndef ASSAY_CORE_HASH_H
#define ASSAY_CORE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* Start values. HASH_START is FNV's offset basis. HASH_OLD_START lacks its last digit; hashes that decide what is
 * drawn, or that stand in files, keep it, because their values may not change. */
#define HASH_START     UINT64_C(14695981039346656037)
#define HASH_OLD_START UINT64_C(1469598103934665603)

/* Continues `hash` over `count` bytes. */
static inline uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t count) {
  const unsigned char *at = (const unsigned char *)bytes;
  for (size_t i = 0; i < count; ++i)
    hash = (hash ^ at[i]) * UINT64_C(1099511628211);
  return hash;
}

/* Continues `hash` over the characters of a string, without its terminator. */
static inline uint64_t hash_text(uint64_t hash, const char *text) {
  for (; *text != '\0'; ++text)
    hash = (hash ^ (unsigned char)*text) * UINT64_C(1099511628211);
  return hash;
}

#endif
