/* junit.c: see junit.h. The counts of a suite stand before its cases in the file, and are known after them. Cases are
 * therefore written to a file without a name, and copied suite by suite in the end. */
#define _POSIX_C_SOURCE 200809L
#include "junit.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "conformance/case/case.h"

/* Failures that belong to no suite. */
static const char CLAIMS[] = "claims";

typedef struct junit_suite {
  char name[64];
  int64_t tests, failures, errors, skipped;
  double seconds; /* sum of its cases */
  time_t started;
} junit_suite;

/* Cases of one suite that stand together in the file without a name. */
typedef struct junit_chunk {
  int32_t suite;
  long from, to;
} junit_chunk;

struct junit {
  text_file file;
  FILE *cases;
  junit_suite *suite;
  junit_chunk *chunk;
  int64_t suites, chunks;
  int why; /* errno of the first failure; 0: none */
};

assay_status junit_open(const char *path, junit **made, assay_error *error) {
  junit *j = calloc(1, sizeof *j);
  if (j == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "report: out of memory");
  assay_status status = text_open(&j->file, path, error);
  if (status == ASSAY_OK && (j->cases = tmpfile()) == NULL)
    status = assay_fail(error, ASSAY_ERR_IO, "%s: no temporary file can be made: %s", path, strerror(errno));
  if (status != ASSAY_OK) {
    junit_discard(j);
    return status;
  }
  *made = j;
  return ASSAY_OK;
}

void junit_discard(junit *j) {
  if (j == NULL) return;
  text_discard(&j->file);
  if (j->cases != NULL) (void)fclose(j->cases);
  free(j->suite);
  free(j->chunk);
  free(j);
}

static void note_failure(junit *j) {
  if (j->why == 0 && ferror(j->cases)) j->why = errno != 0 ? errno : EIO;
}

/* Returns room for one more element, doubled at powers of two; NULL: no memory. */
static void *one_more(void **list, int64_t *count, size_t size) {
  if ((*count & (*count - 1)) == 0) {
    void *grown = realloc(*list, (size_t)(*count > 0 ? 2 * *count : 1) * size);
    if (grown == NULL) return NULL;
    *list = grown;
  }
  return (char *)*list + (size_t)(*count)++ * size;
}

/* Returns the suite of that name, to which what is written next belongs; NULL: no memory. */
static junit_suite *begin(junit *j, const char *name) {
  int64_t s = 0;
  while (s < j->suites && strcmp(j->suite[s].name, name) != 0)
    ++s;
  if (s == j->suites) {
    junit_suite *made = one_more((void **)&j->suite, &j->suites, sizeof *made);
    if (made == NULL) return j->why = ENOMEM, NULL;
    *made = (junit_suite){.started = time(NULL)};
    (void)snprintf(made->name, sizeof made->name, "%s", name);
  }
  if (j->chunks == 0 || j->chunk[j->chunks - 1].suite != s) {
    junit_chunk *made = one_more((void **)&j->chunk, &j->chunks, sizeof *made);
    if (made == NULL) return j->why = ENOMEM, NULL;
    *made = (junit_chunk){(int32_t)s, ftell(j->cases), 0};
  }
  ++j->suite[s].tests;
  return &j->suite[s];
}

static void end(junit *j) {
  j->chunk[j->chunks - 1].to = ftell(j->cases);
  note_failure(j);
}

/* ---- cases ------------------------------------------------------------------------------------------- */

static void attribute(FILE *to, const char *key, const char *value) {
  (void)fprintf(to, " %s=\"", key);
  text_xml(to, value);
  (void)fputc('"', to);
}

static void outcome(junit *j, const char *tag, const case_result *result, const replay *again) {
  FILE *to = j->cases;
  char *command = replay_text(again);
  if (command == NULL && j->why == 0) j->why = ENOMEM;
  (void)fprintf(to, "\n      <%s", tag);
  attribute(to, "type", result->check);
  attribute(to, "message", result->message);
  (void)fputc('>', to);
  text_xml(to, command != NULL ? command : "");
  (void)fprintf(to, "</%s>\n    ", tag);
  free(command);
}

void junit_case(junit *j, const assay_case *one, const case_result *result, const replay *again, const char *expected) {
  char name[256];
  FILE *to = j->cases;
  junit_suite *suite = begin(j, one->suite);
  if (suite == NULL) return;
  (void)fputs("\n    <testcase", to);
  (void)snprintf(name, sizeof name, "%s.%s.%s", one->device, one->op->name, one->variant);
  attribute(to, "classname", name);
  (void)snprintf(name, sizeof name, "%s/%s/%s seed=%" PRIu64, one->suite, section_name(one->section), one->name,
                 one->seed);
  attribute(to, "name", name);
  const double seconds = 1e-3 * (result->reference_ms + result->run_ms);
  suite->seconds += seconds;
  (void)fprintf(to, " time=\"%.6f\">", seconds);
  switch (expected != NULL ? VERDICT_UNSUPPORTED : result->verdict) {
  case VERDICT_PASS:
  case VERDICT_REFUSED:
    break;
  case VERDICT_UNSUPPORTED:
    ++suite->skipped;
    (void)fputs("\n      <skipped", to);
    if (expected != NULL) attribute(to, "type", expected);
    attribute(to, "message", result->message);
    (void)fputs("/>\n    ", to);
    break;
  case VERDICT_HANG:
  case VERDICT_CRASH:
  case VERDICT_STATE:
  case VERDICT_HOST:
    ++suite->errors;
    outcome(j, "error", result, again);
    break;
  case VERDICT_FAIL:
  case VERDICT_WEAK:
    ++suite->failures;
    outcome(j, "failure", result, again);
    break;
  }
  (void)fputs("</testcase>", to);
  end(j);
}

static void failure(junit *j, const char *in, const char *subject, const char *what, const char *type,
                    const char *why) {
  FILE *to = j->cases;
  junit_suite *suite = begin(j, in);
  if (suite == NULL) return;
  ++suite->failures;
  (void)fputs("\n    <testcase", to);
  attribute(to, "classname", subject);
  attribute(to, "name", what);
  (void)fputs(" time=\"0\"><failure", to);
  attribute(to, "type", type);
  attribute(to, "message", why);
  (void)fputs("/></testcase>", to);
  end(j);
}

void junit_line(junit *j, const char *in, const char *name, verdict v, const char *message) {
  const size_t size = strlen(in), most = sizeof j->suite->name - 1;
  const char *suite_name = size > most ? in + (size - most) : in; /* the end of a path says more than its beginning */
  if (v == VERDICT_FAIL) {
    failure(j, suite_name, suite_name, name, "judge", message);
    return;
  }
  junit_suite *suite = begin(j, suite_name);
  if (suite == NULL) return;
  (void)fputs("\n    <testcase", j->cases);
  attribute(j->cases, "classname", suite_name);
  attribute(j->cases, "name", name);
  (void)fputs(" time=\"0\">", j->cases);
  if (v == VERDICT_UNSUPPORTED) {
    ++suite->skipped;
    (void)fputs("<skipped", j->cases);
    attribute(j->cases, "message", message);
    (void)fputs("/>", j->cases);
  }
  (void)fputs("</testcase>", j->cases);
  end(j);
}

void junit_unclaimed(junit *j, const char *subject, const char *what, const char *why) {
  failure(j, CLAIMS, subject, what, "unclaimed", why);
}

void junit_weak(junit *j, const char *suite, const char *spoil, const char *why) {
  failure(j, suite, suite, spoil, "power", why);
}

/* ---- the file ---------------------------------------------------------------------------------------- */

static void counts(FILE *to, const junit_suite *s) {
  (void)fprintf(to,
                " tests=\"%" PRId64 "\" failures=\"%" PRId64 "\" errors=\"%" PRId64 "\" skipped=\"%" PRId64
                "\" time=\"%.3f\"",
                s->tests, s->failures, s->errors, s->skipped, s->seconds);
}

/* Copies bytes of the file without a name. */
static void copy(junit *j, const junit_chunk *chunk) {
  char bytes[1 << 14];
  if (fseek(j->cases, chunk->from, SEEK_SET) != 0) j->why = errno;
  for (long left = chunk->to - chunk->from; left > 0 && j->why == 0;) {
    const size_t wanted = left < (long)sizeof bytes ? (size_t)left : sizeof bytes;
    const size_t got = fread(bytes, 1, wanted, j->cases);
    if (got == 0) j->why = errno != 0 ? errno : EIO;
    (void)fwrite(bytes, 1, got, j->file.stream);
    left -= (long)got;
  }
}

static void put_suite(junit *j, int32_t s, const char *host) {
  FILE *to = j->file.stream;
  const junit_suite *suite = &j->suite[s];
  char when[32] = "";
  struct tm utc;
  if (gmtime_r(&suite->started, &utc) != NULL) (void)strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &utc);
  (void)fputs("\n  <testsuite", to);
  attribute(to, "name", suite->name);
  counts(to, suite);
  attribute(to, "timestamp", when);
  attribute(to, "hostname", host);
  (void)fputc('>', to);
  for (int64_t i = 0; i < j->chunks; ++i)
    if (j->chunk[i].suite == s) copy(j, &j->chunk[i]);
  (void)fputs("\n  </testsuite>", to);
}

assay_status junit_close(junit *j, double seconds, assay_error *error) {
  if (j == NULL) return ASSAY_OK;
  FILE *to = j->file.stream;
  char host[256] = "";
  junit_suite all = {.seconds = seconds};
  if (gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  for (int64_t s = 0; s < j->suites; ++s) {
    all.tests += j->suite[s].tests;
    all.failures += j->suite[s].failures;
    all.errors += j->suite[s].errors;
    all.skipped += j->suite[s].skipped;
  }
  errno = 0;
  if (fflush(j->cases) != 0 && j->why == 0) j->why = errno;
  (void)fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"assay\"", to);
  counts(to, &all);
  (void)fputc('>', to);
  for (int64_t s = 0; s < j->suites; ++s)
    put_suite(j, (int32_t)s, host);
  (void)fputs("\n</testsuites>\n", to);
  text_note(&j->file);
  assay_status status = ASSAY_OK;
  if (j->why != 0)
    status = assay_fail(error, ASSAY_ERR_IO, "%s: cannot be written: %s", j->file.path, strerror(j->why));
  else
    status = text_close(&j->file, error);
  junit_discard(j);
  return status;
}
