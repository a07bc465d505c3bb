/* sha256.c: see sha256.h. Names are those of FIPS 180-4. */
#include "core/files/sha256.h"

#include <stdio.h>
#include <string.h>

#include "core/files/bytes.h"

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotr(uint32_t x, int n) {
  return x >> n | x << (32 - n);
}

static void compress(uint32_t H[8], const unsigned char M[64]) {
  uint32_t W[64], v[8];
  for (int t = 0; t < 16; ++t)
    W[t] = (uint32_t)M[4 * t] << 24 | (uint32_t)M[4 * t + 1] << 16 | (uint32_t)M[4 * t + 2] << 8 | M[4 * t + 3];
  for (int t = 16; t < 64; ++t) {
    const uint32_t s0 = rotr(W[t - 15], 7) ^ rotr(W[t - 15], 18) ^ W[t - 15] >> 3;
    const uint32_t s1 = rotr(W[t - 2], 17) ^ rotr(W[t - 2], 19) ^ W[t - 2] >> 10;
    W[t] = s1 + W[t - 7] + s0 + W[t - 16];
  }
  memcpy(v, H, sizeof v);
  for (int t = 0; t < 64; ++t) {
    const uint32_t S1 = rotr(v[4], 6) ^ rotr(v[4], 11) ^ rotr(v[4], 25), ch = (v[4] & v[5]) ^ (~v[4] & v[6]);
    const uint32_t S0 = rotr(v[0], 2) ^ rotr(v[0], 13) ^ rotr(v[0], 22);
    const uint32_t maj = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
    const uint32_t T1 = v[7] + S1 + ch + K[t] + W[t], T2 = S0 + maj;
    memmove(&v[1], &v[0], 7 * sizeof *v);
    v[4] += T1;
    v[0] = T1 + T2;
  }
  for (int i = 0; i < 8; ++i)
    H[i] += v[i];
}

void sha256_begin(sha256 *s) {
  static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  memcpy(s->state, start, sizeof start);
  s->bytes = 0;
}

void sha256_add(sha256 *s, const void *bytes, size_t count) {
  const unsigned char *at = bytes;
  while (count > 0) {
    const size_t used = (size_t)(s->bytes % sizeof s->block), room = sizeof s->block - used;
    const size_t n = count < room ? count : room;
    memcpy(s->block + used, at, n);
    s->bytes += n;
    at += n;
    count -= n;
    if (n == room) compress(s->state, s->block);
  }
}

void sha256_end(sha256 *s, char text[SHA256_TEXT]) {
  const uint64_t bits = 8 * s->bytes;
  unsigned char length[8];
  for (int i = 0; i < 8; ++i)
    length[i] = (unsigned char)(bits >> (56 - 8 * i));
  sha256_add(s, "\x80", 1);
  while (s->bytes % sizeof s->block != sizeof s->block - sizeof length)
    sha256_add(s, "", 1);
  sha256_add(s, length, sizeof length);
  for (int i = 0; i < 8; ++i)
    (void)snprintf(text + (size_t)8 * (size_t)i, 9, "%08x", (unsigned)s->state[i]);
}

assay_status sha256_file(const char *path, char text[SHA256_TEXT], int64_t *bytes, assay_error *error) {
  static unsigned char part[1 << 16];
  FILE *file = NULL;
  sha256 s;
  assay_status status = file_open(path, &file, bytes, error);
  if (status != ASSAY_OK) return status;
  sha256_begin(&s);
  for (size_t got = 0; (got = fread(part, 1, sizeof part, file)) > 0;)
    sha256_add(&s, part, got);
  if (ferror(file)) status = assay_fail(error, ASSAY_ERR_IO, "%s: cannot be read", path);
  (void)fclose(file);
  *bytes = (int64_t)s.bytes;
  sha256_end(&s, text);
  return status;
}
