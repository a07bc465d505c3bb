/* repeats.c: a table of rows by the hash of their bits. */
#include "repeats.h"

#include <stdlib.h>
#include <string.h>

bool repeats_open(repeats *r, int64_t rows) {
  uint64_t size = 2;
  while (size < 2 * (uint64_t)rows)
    size *= 2;
  r->mask = size - 1;
  r->place = calloc(size, sizeof *r->place);
  r->request = calloc(size, sizeof *r->request);
  return r->place != NULL && r->request != NULL;
}

void repeats_clear(repeats *r) {
  memset(r->place, 0, (r->mask + 1) * sizeof *r->place);
}

void repeats_close(repeats *r) {
  free(r->place);
  free(r->request);
  r->place = r->request = NULL;
}

static uint64_t hash_of(uint64_t hash, const double *value, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    uint64_t bits = 0;
    memcpy(&bits, value + i, sizeof bits);
    hash = (hash ^ bits) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  }
  return hash;
}

bool repeats_row(repeats *r, const double *value, const double *sigma, int64_t width, int64_t row, int64_t request) {
  const size_t bytes = (size_t)width * sizeof *value;
  uint64_t at = hash_of((uint64_t)request, value + row * width, width);
  at = hash_of(at, sigma + row * width, width);
  for (at &= r->mask; r->place[at] != 0; at = (at + 1) & r->mask) {
    const int64_t other = (r->place[at] - 1) * width;
    if (r->request[at] == request && memcmp(value + other, value + row * width, bytes) == 0 &&
        memcmp(sigma + other, sigma + row * width, bytes) == 0)
      return true;
  }
  r->place[at] = row + 1;
  r->request[at] = request;
  return false;
}
