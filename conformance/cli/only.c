/* only.c: assay run --only FILE: the cases that a list of descriptors names. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "core/files/bytes.h"
#include "core/hash.h"

/* A line of the file, by the hash of its descriptor. */
typedef struct wanted_line {
  uint64_t hash;
  int64_t line;
  bool found;
} wanted_line;

static size_t word_size(const char *at, const char *end) {
  size_t n = 0;
  while (at + n < end && at[n] != ' ')
    ++n;
  return n;
}

/* Hashes a descriptor without the choices of a run. An id that ends in a colon may stand before it. */
static uint64_t hash_of(const char *line, const char *end) {
  uint64_t hash = HASH_START;
  bool begun = false;
  for (const char *at = line; at < end;) {
    const size_t n = word_size(at, end);
    const bool choice = n > 7 && (strncmp(at, "variant=", 8) == 0 || strncmp(at, "device=", 7) == 0);
    begun = begun || (n > 0 && at[n - 1] != ':');
    if (begun && n > 0 && !choice) hash = hash_text(hash_bytes(hash, at, n), " ");
    at += n + 1;
  }
  return hash;
}

static int by_hash(const void *a, const void *b) {
  const uint64_t x = ((const wanted_line *)a)->hash, y = ((const wanted_line *)b)->hash;
  return x < y ? -1 : x > y;
}

static int64_t read_lines(const char *text, int64_t size, wanted_line *wanted) {
  int64_t count = 0, number = 0;
  for (const char *at = text; at < text + size;) {
    const char *end = memchr(at, '\n', (size_t)(text + size - at));
    if (end == NULL) end = text + size;
    ++number;
    if (end > at) wanted[count++] = (wanted_line){hash_of(at, end), number, false};
    at = end + 1;
  }
  qsort(wanted, (size_t)count, sizeof *wanted, by_hash);
  return count;
}

assay_status cli_keep_only(const char *path, assay_case *cases, int64_t *count, assay_error *error) {
  static char line[CASE_MAX_LINE];
  unsigned char *text = NULL;
  int64_t size = 0, lines = 1, kept = 0;
  assay_error inner = {""};
  if (file_bytes(path, (int64_t)1 << 30, &text, &size, &inner) != ASSAY_OK)
    return assay_fail(error, ASSAY_ERR_INPUT, "--only: %s", inner.text);
  for (int64_t i = 0; i < size; ++i)
    lines += text[i] == '\n';
  wanted_line *wanted = malloc((size_t)lines * sizeof *wanted);
  assay_status status = wanted != NULL ? ASSAY_OK : assay_fail(error, ASSAY_ERR_MEMORY, "--only: out of memory");
  const int64_t named = status == ASSAY_OK ? read_lines((const char *)text, size, wanted) : 0;
  for (int64_t i = 0; i < *count && status == ASSAY_OK; ++i) {
    status = case_print(&cases[i], line, sizeof line, error);
    const wanted_line key = {.hash = status == ASSAY_OK ? hash_of(line, line + strlen(line)) : 0};
    wanted_line *at = status == ASSAY_OK ? bsearch(&key, wanted, (size_t)named, sizeof *wanted, by_hash) : NULL;
    if (at == NULL) continue;
    at->found = true;
    for (; at > wanted && at[-1].hash == key.hash; --at)
      at[-1].found = true;
    for (; at + 1 < wanted + named && at[1].hash == key.hash; ++at)
      at[1].found = true;
    cases[kept++] = cases[i];
  }
  if (status == ASSAY_OK && named == 0)
    status = assay_fail(error, ASSAY_ERR_INPUT, "--only: %s: found no descriptor, allowed one per line", path);
  for (int64_t i = 0; i < named && status == ASSAY_OK; ++i)
    if (!wanted[i].found)
      status = assay_fail(error, ASSAY_ERR_INPUT, "--only: %s:%lld: found no case of this run", path,
                          (long long)wanted[i].line);
  *count = kept;
  free(wanted);
  free(text);
  return status;
}
