/* listed.c: cases that a file lists by their descriptors. */
#include <stdlib.h>
#include <string.h>

#include "conformance/case/case.h"
#include "core/files/bytes.h"
#include "core/hash.h"
#include "expand.h"

enum { MOST_LISTED = 100000 };

/* Appends a case, which then belongs to the list. */
static assay_status append(case_list *list, const assay_case *one, assay_error *error) {
  if ((list->count & (list->count - 1)) == 0) {
    const size_t room = list->count > 0 ? 2 * (size_t)list->count : 1;
    assay_case *grown = realloc(list->cases, room * sizeof *grown);
    if (grown == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "list: out of memory for %zu cases", room);
    list->cases = grown;
  }
  list->cases[list->count++] = *one;
  return ASSAY_OK;
}

static assay_status take_line(const char *path, int64_t number, const char *line, case_list *list, assay_error *error) {
  assay_case one;
  assay_error inner = {""};
  assay_status status = case_parse(line, &one, &inner);
  if (status == ASSAY_OK && one.variant[0] != '\0')
    status = assay_fail(&inner, ASSAY_ERR_INPUT, "variant: found '%.60s', allowed none in a list", one.variant);
  if (status == ASSAY_OK && one.suite[0] == '\0')
    status = assay_fail(&inner, ASSAY_ERR_INPUT, "suite: missing, needed in a list");
  if (status == ASSAY_OK && one.device[0] != '\0') {
    one.devices = strcmp(one.device, "cuda") == 0 ? CASE_ON_CUDA : CASE_ON_SIMT;
    one.device[0] = '\0';
  }
  if (status != ASSAY_OK) return assay_fail(error, status, "%s:%lld: %s", path, (long long)number, inner.text);
  status = append(list, &one, error);
  if (status != ASSAY_OK) case_free(&one);
  return status;
}

static int by_number(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* Refuses a list that has a line twice. */
static assay_status check_once(const char *path, uint64_t *lines, int64_t count, assay_error *error) {
  qsort(lines, (size_t)count, sizeof *lines, by_number);
  for (int64_t i = 1; i < count; ++i)
    if (lines[i] == lines[i - 1])
      return assay_fail(error, ASSAY_ERR_INPUT, "%s: found a case twice, allowed once", path);
  return ASSAY_OK;
}

static assay_status read_lines(const char *path, FILE *file, case_list *list, assay_error *error) {
  char *line = NULL;
  size_t room = 0;
  int64_t size = 0, number = 0, count = 0;
  uint64_t *seen = malloc(MOST_LISTED * sizeof *seen);
  assay_status status = seen != NULL ? file_line(file, path, &line, &room, &size, error)
                                     : assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", path);
  while (status == ASSAY_OK && size > 0) {
    ++number;
    line[strcspn(line, "\r\n")] = '\0';
    if (line[0] != '#' && line[0] != '\0') {
      if (count == MOST_LISTED)
        status = assay_fail(error, ASSAY_ERR_INPUT, "%s: found more than %d cases", path, MOST_LISTED);
      else
        seen[count++] = hash_text(HASH_START, line);
      if (status == ASSAY_OK) status = take_line(path, number, line, list, error);
    }
    if (status == ASSAY_OK) status = file_line(file, path, &line, &room, &size, error);
  }
  if (status == ASSAY_OK && count == 0)
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: found no descriptor, allowed one per line", path);
  if (status == ASSAY_OK) status = check_once(path, seen, count, error);
  free(seen);
  free(line);
  return status;
}

assay_status expand_list(const char *path, case_list *list, assay_error *error) {
  FILE *file = NULL;
  int64_t size = 0;
  const int64_t before = list->count;
  if (before > 0) return assay_fail(error, ASSAY_ERR_INTERNAL, "list: found cases before it");
  assay_status status = file_open(path, &file, &size, error);
  if (status != ASSAY_OK) return status;
  status = read_lines(path, file, list, error);
  (void)fclose(file);
  if (status != ASSAY_OK) case_list_free(list);
  return status;
}
