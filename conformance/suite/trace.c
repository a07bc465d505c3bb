/* trace.c: a strict reader of two formats: CSV (Azure traces) and JSON lines (Mooncake trace). */
#define _POSIX_C_SOURCE 200809L
#include "trace.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/files/bytes.h"

const char trace_names[] = "azure_conv, azure_code, mooncake";

static const char csv_header[] = "TIMESTAMP,ContextTokens,GeneratedTokens";

enum { MOST_TOKENS = 1 << 24 };

static const char *const names[] = {"azure_conv", "azure_code", "mooncake"};

const char *trace_file(const char *name) {
  static const char *const files[] = {"traces/azure2023/AzureLLMInferenceTrace_conv.csv",
                                      "traces/azure2023/AzureLLMInferenceTrace_code.csv",
                                      "traces/mooncake/conversation_trace_first5980.jsonl"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i)
    if (strcmp(names[i], name) == 0) return files[i];
  return NULL;
}

void trace_free(trace *t) {
  free(t->request);
  free(t->hash);
  *t = (trace){0};
}

/* A file being read line by line; lines are terminated in place. */
typedef struct reader {
  const char *path;
  char *text, *next;
  int64_t line;
} reader;

static assay_status bad_line(const reader *r, const char *found, const char *allowed, assay_error *error) {
  return assay_fail(error, ASSAY_ERR_INPUT, "%s:%lld: found '%.60s', allowed %s", r->path, (long long)r->line, found,
                    allowed);
}

static assay_status read_whole(const char *path, char **text, assay_error *error) {
  FILE *file = NULL;
  int64_t size = 0;
  assay_status status = file_open(path, &file, &size, error);
  if (status != ASSAY_OK) return status;
  size_t used = 0, room = 1 << 16;
  *text = malloc(room + 1);
  while (*text != NULL) {
    used += fread(*text + used, 1, room - used, file);
    if (used < room || room > TRACE_MAX_BYTES) break;
    room *= 2;
    char *bigger = realloc(*text, room + 1);
    if (bigger == NULL) free(*text);
    *text = bigger;
  }
  if (*text == NULL)
    status = assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", path);
  else if (ferror(file) != 0)
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: cannot be read: %s", path, strerror(errno));
  else if (used > TRACE_MAX_BYTES)
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: found more than %d bytes, allowed at most %d", path,
                        TRACE_MAX_BYTES, TRACE_MAX_BYTES);
  else if (memchr(*text, '\0', used) != NULL)
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: found a NUL byte, allowed text", path);
  else
    (*text)[used] = '\0';
  (void)fclose(file);
  return status;
}

/* Returns the next line, or NULL at the end. A line ends at \n or \r\n; the last one may lack it. */
static char *next_line(reader *r) {
  if (*r->next == '\0') return NULL;
  char *line = r->next;
  char *end = strchr(line, '\n');
  r->next = end != NULL ? end + 1 : line + strlen(line);
  if (end != NULL) *end = '\0';
  const size_t n = strlen(line);
  if (n > 0 && line[n - 1] == '\r') line[n - 1] = '\0';
  ++r->line;
  return line;
}

/* Reads digits of a number in [low, high] at *at, and moves *at past them. */
static bool take_number(char **at, int64_t low, int64_t high, int32_t *value) {
  int64_t number = 0;
  char *p = *at;
  for (; *p >= '0' && *p <= '9' && number <= high; ++p)
    number = number * 10 + (*p - '0');
  if (p == *at || number < low || number > high) return false;
  *at = p;
  *value = (int32_t)number;
  return true;
}

/* Reads `literal`, in which a blank stands for any number of blanks. */
static bool take_text(char **at, const char *literal) {
  char *p = *at;
  for (; *literal != '\0'; ++literal) {
    if (*literal == ' ')
      p += strspn(p, " ");
    else if (*p == *literal)
      ++p;
    else
      return false;
  }
  *at = p;
  return true;
}

/* Returns "2023-11-16 18:15:46.6805900,..." as seconds of the month, or -1. No trace crosses the end of a month. */
static double seconds_of(const char *line) {
  int year = 0, month = 0, day = 0, hour = 0, minute = 0, used = 0;
  if (sscanf(line, "%4d-%2d-%2d %2d:%2d:%n", &year, &month, &day, &hour, &minute, &used) != 5 || used == 0) return -1;
  char *end = NULL;
  const double second = strtod(line + used, &end);
  if (end == line + used || *end != ',' || !(second >= 0 && second < 61)) return -1;
  return ((day * 24.0 + hour) * 60 + minute) * 60 + second;
}

static bool parse_csv_row(char *line, trace_request *request) {
  char *at = strchr(line, ',');
  request->arrival_s = seconds_of(line);
  return at != NULL && at > line && take_text(&at, ",") && take_number(&at, 1, MOST_TOKENS, &request->prompt) &&
         take_text(&at, ",") && take_number(&at, 1, MOST_TOKENS, &request->output) && *at == '\0';
}

/* Reads `{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [0, 1]}`. The ids go to hash[total] and
 * on. */
static bool parse_json_row(char *at, trace_request *request, int32_t *hash, int64_t total) {
  int32_t timestamp = 0;
  if (!(take_text(&at, " { \"timestamp\" : ") && take_number(&at, 0, INT32_MAX, &timestamp) &&
        take_text(&at, " , \"input_length\" : ") && take_number(&at, 1, MOST_TOKENS, &request->prompt) &&
        take_text(&at, " , \"output_length\" : ") && take_number(&at, 1, MOST_TOKENS, &request->output) &&
        take_text(&at, " , \"hash_ids\" : [ ")))
    return false;
  request->arrival_s = timestamp * 1e-3;
  request->first_hash = (int32_t)total;
  request->hash_count = 0;
  do {
    if (!take_number(&at, 0, INT32_MAX, &hash[total + request->hash_count])) return false;
    ++request->hash_count;
    at += strspn(at, " ");
  } while (take_text(&at, ", "));
  return take_text(&at, "] } ") && *at == '\0' &&
         request->hash_count == (request->prompt + TRACE_BLOCK - 1) / TRACE_BLOCK;
}

static assay_status parse_rows(reader *r, bool json, trace *t, assay_error *error) {
  for (char *line = next_line(r); line != NULL; line = next_line(r)) {
    char shown[64];
    (void)snprintf(shown, sizeof shown, "%.60s", line);
    trace_request *request = &t->request[t->count];
    if (json) {
      if (!parse_json_row(line, request, t->hash, t->hash_total))
        return bad_line(r, shown,
                        "{\"timestamp\": MS, \"input_length\": N, \"output_length\": N, \"hash_ids\": [ID, ...]} with "
                        "N >= 1 and one id for each 512 input tokens",
                        error);
      t->hash_total += request->hash_count;
    } else if (!parse_csv_row(line, request)) {
      return bad_line(r, shown, "TIMESTAMP,N,N with N >= 1", error);
    }
    ++t->count;
  }
  return t->count > 0 ? ASSAY_OK : assay_fail(error, ASSAY_ERR_INPUT, "%s: found no request", r->path);
}

assay_status trace_load(const char *name, const char *fixtures, trace *t, assay_error *error) {
  const char *file = trace_file(name);
  char path[4096];
  reader r = {.path = path};
  assay_status status = ASSAY_OK;
  *t = (trace){0};
  if (file == NULL) return assay_fail(error, ASSAY_ERR_INPUT, "trace: found '%.60s', allowed %s", name, trace_names);
  if ((size_t)snprintf(path, sizeof path, "%s/%s", fixtures, file) >= sizeof path)
    return assay_fail(error, ASSAY_ERR_INPUT, "trace: the path of the fixtures is too long");
  status = read_whole(path, &r.text, error);
  if (status != ASSAY_OK) goto done;
  for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i)
    if (strcmp(names[i], name) == 0) t->name = names[i];
  r.next = r.text;
  const bool json = strstr(file, ".jsonl") != NULL;
  if (!json) {
    const char *line = next_line(&r);
    if (line == NULL || strcmp(line, csv_header) != 0) {
      status = bad_line(&r, line != NULL ? line : "", csv_header, error);
      goto done;
    }
  }
  /* Every request takes a line, and every id at least two characters. */
  const size_t left = strlen(r.next);
  size_t lines = 1;
  for (const char *p = r.next; *p != '\0'; ++p)
    lines += *p == '\n';
  t->request = calloc(lines, sizeof *t->request);
  t->hash = json ? calloc(left / 2 + 1, sizeof *t->hash) : NULL;
  if (t->request == NULL || (json && t->hash == NULL))
    status = assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", path);
  else
    status = parse_rows(&r, json, t, error);
done:
  free(r.text);
  if (status != ASSAY_OK) trace_free(t);
  return status;
}

int64_t trace_common(const trace *t, int32_t a, int32_t b) {
  const trace_request *x = &t->request[a], *y = &t->request[b];
  int32_t n = 0;
  while (n < x->hash_count && n < y->hash_count && t->hash[x->first_hash + n] == t->hash[y->first_hash + n])
    ++n;
  const int64_t tokens = (int64_t)n * TRACE_BLOCK;
  const int64_t shorter = x->prompt < y->prompt ? x->prompt : y->prompt;
  return tokens < shorter ? tokens : shorter;
}
