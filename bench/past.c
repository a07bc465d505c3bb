/* past.c: the lines of an interrupted bench. */
#define _POSIX_C_SOURCE 200809L
#include "past.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conformance/judge/judge.h"
#include "conformance/text/text.h"
#include "core/files/bytes.h"
#include "core/json.h"

static assay_status other_run(const char *path, const char *field, const char *found, const char *allowed,
                              assay_error *error) {
  return assay_fail(error, ASSAY_ERR_INPUT, "--resume: %s: %s: found '%s', allowed '%s', that of this run", path, field,
                    found, allowed);
}

/* Refuses the head of another run: its figures are not of this program, device or way of sampling. */
static assay_status check_head(const char *path, const json_value *line, const bench_head *head, assay_error *error) {
  const struct {
    const char *field, *allowed;
  } same[] = {{"bench", "run"},
              {"device", head->device},
              {"device_name", head->info->name},
              {"driver", head->info->driver},
              {"commit", head->commit}};
  char seed[32], given[32];
  for (size_t i = 0; i < sizeof same / sizeof *same; ++i) {
    const char *found = json_text(line, same[i].field, "");
    if (strcmp(found, same[i].allowed) != 0) return other_run(path, same[i].field, found, same[i].allowed, error);
  }
  (void)snprintf(seed, sizeof seed, "%llu", (unsigned long long)json_unsigned(line, "seed", head->seed + 1));
  (void)snprintf(given, sizeof given, "%llu", (unsigned long long)head->seed);
  if (strcmp(seed, given) != 0) return other_run(path, "seed", seed, given, error);
  (void)snprintf(seed, sizeof seed, "%.6g", json_number(line, "budget_s", -1));
  (void)snprintf(given, sizeof given, "%.6g", head->options->budget_s);
  return strcmp(seed, given) == 0 ? ASSAY_OK : other_run(path, "budget_s", seed, given, error);
}

/* Where the lines of the last case begin, and what was counted before it. */
typedef struct last_case {
  int64_t at, timed, failed, unsupported;
} last_case;

static assay_status add_case(const json_value *line, int64_t at, bench_past *past, last_case *last,
                             assay_error *error) {
  const verdict unsupported = VERDICT_UNSUPPORTED;
  const char *descriptor = json_text(line, "case", "");
  if (past->count > 0 && strcmp(past->descriptor[past->count - 1], descriptor) == 0) return ASSAY_OK; /* a mode more */
  char **grown = realloc(past->descriptor, (size_t)(past->count + 1) * sizeof *grown);
  if (grown != NULL) past->descriptor = grown;
  char *kept = grown != NULL ? strdup(descriptor) : NULL;
  if (kept == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "bench: out of memory");
  *last = (last_case){at, past->timed, past->failed, past->unsupported};
  past->descriptor[past->count++] = kept;
  if (json_number(line, "median_us", 0) > 0)
    ++past->timed;
  else if (strcmp(json_text(line, "verdict", ""), verdict_name(unsupported)) == 0)
    ++past->unsupported;
  else
    ++past->failed;
  return ASSAY_OK;
}

static assay_status read_lines(const char *path, FILE *file, json_reader *reader, const bench_head *head,
                               bench_past *past, assay_error *error) {
  assay_status status = ASSAY_OK;
  last_case last = {0, 0, 0, 0};
  char *line = NULL;
  size_t room = 0;
  int64_t size = 0, number = 0;
  while (status == ASSAY_OK) {
    const json_value *value = NULL;
    assay_error why = {""};
    status = file_line(file, path, &line, &room, &size, error);
    if (status != ASSAY_OK || size == 0 || line[size - 1] != '\n') break; /* a line that is not whole is cut off */
    ++number;
    if (json_parse(reader, line, (size_t)size, &value, &why) != ASSAY_OK)
      status = assay_fail(error, ASSAY_ERR_INPUT, "--resume: %s:%lld: %s", path, (long long)number, why.text);
    else if (number == 1)
      status = check_head(path, value, head, error);
    else if (strcmp(json_text(value, "bench", ""), "case") == 0)
      status = add_case(value, past->bytes, past, &last, error);
    past->bytes += size;
  }
  free(line);
  if (status != ASSAY_OK || past->complete || past->count == 0) return status;
  free(past->descriptor[--past->count]);
  past->bytes = last.at;
  past->timed = last.timed;
  past->failed = last.failed;
  past->unsupported = last.unsupported;
  return status;
}

assay_status past_read(const char *path, const bench_head *head, bench_past *past, assay_error *error) {
  char partial[4200];
  FILE *file = NULL;
  int64_t size = 0;
  *past = (bench_past){.descriptor = NULL};
  (void)snprintf(partial, sizeof partial, "%s" TEXT_PARTIAL, path);
  if (access(partial, F_OK) != 0) {
    past->complete = access(path, F_OK) == 0;
    if (!past->complete) return ASSAY_OK;
  }
  const char *name = past->complete ? path : partial;
  assay_status status = file_open(name, &file, &size, error);
  if (status != ASSAY_OK) return status;
  json_reader *reader = json_open();
  if (reader == NULL) status = assay_fail(error, ASSAY_ERR_MEMORY, "bench: out of memory");
  if (status == ASSAY_OK) status = read_lines(name, file, reader, head, past, error);
  if (reader != NULL) json_close(reader);
  (void)fclose(file);
  if (status != ASSAY_OK) past_free(past);
  return status;
}

bool past_has(const bench_past *past, const char *descriptor) {
  for (int64_t i = 0; i < past->count; ++i)
    if (strcmp(past->descriptor[i], descriptor) == 0) return true;
  return false;
}

void past_free(bench_past *past) {
  for (int64_t i = 0; i < past->count; ++i)
    free(past->descriptor[i]);
  free(past->descriptor);
  *past = (bench_past){.descriptor = NULL};
}
