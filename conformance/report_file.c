/* report_file.c: the two formats for machines. */
#include <inttypes.h>

#include "power.h"
#include "report_file.h"
#include "report_text.h"

#ifndef ASSAY_VERSION
#define ASSAY_VERSION "0.1.0"
#endif
#ifndef ASSAY_COMMIT
#define ASSAY_COMMIT "unknown"
#endif

const char *file_tier_name(case_tier tier) {
  return tier == TIER_EXACT ? "exact" : "calibrated";
}

const char *file_section_name(case_section section) {
  static const char *const name[] = {"check", "edge", "refuse", "bench"};
  return (unsigned)section < sizeof name / sizeof name[0] ? name[section] : "?";
}

const char *report_commit(void) {
  return ASSAY_COMMIT;
}

/* ---- JSONL: an object a line ------------------------------------------------------------------------- */

static void json_text(FILE *to, const char *key, const char *value) {
  (void)fprintf(to, ",\"%s\":", key);
  text_json(to, value);
}

static void json_number(FILE *to, const char *key, double value) {
  (void)fprintf(to, ",\"%s\":", key);
  text_json_number(to, value);
}

static void json_integer(FILE *to, const char *key, int64_t value) {
  (void)fprintf(to, ",\"%s\":%" PRId64, key, value);
}

/* FNV-1a, 64 bits, of the running program. */
static uint64_t binary_hash(void) {
  static unsigned char bytes[1 << 16];
  uint64_t hash = 1469598103934665603U;
  FILE *self = fopen("/proc/self/exe", "rb");
  if (self == NULL) return 0;
  for (size_t got; (got = fread(bytes, 1, sizeof bytes, self)) > 0;)
    for (size_t i = 0; i < got; ++i)
      hash = (hash ^ bytes[i]) * 1099511628211U;
  (void)fclose(self);
  return hash;
}

void file_jsonl_header(FILE *to, const report_options *options) {
  const assay_device_info *info = options->info;
  (void)fputs("{\"assay\":", to);
  text_json(to, ASSAY_VERSION);
  json_text(to, "device", options->device != NULL ? options->device : "");
  json_text(to, "device_name", info != NULL ? info->name : "");
  json_text(to, "driver", info != NULL ? info->driver : "");
  json_text(to, "toolkit", info != NULL ? info->toolkit : "");
  json_text(to, "commit", ASSAY_COMMIT);
  (void)fprintf(to, ",\"binary\":\"%016" PRIx64 "\",\"seed\":%" PRIu64 ",\"cases\":%" PRId64 ",\"whole\":%s",
                binary_hash(), options->seed, options->total, options->whole ? "true" : "false");
  if (options->power != NULL) {
    json_text(to, "power", options->power);
    (void)fprintf(to, ",\"every_variant\":%s,\"plan\":\"%016" PRIx64 "\"", options->every_variant ? "true" : "false",
                  options->plan);
  }
  if (options->shards > 0) (void)fprintf(to, ",\"shard\":\"%d/%d\"", options->shard, options->shards);
  (void)fputs("}\n", to);
}

/* A list of names, given as text with commas. */
static void json_names(FILE *to, const char *key, const char *names) {
  char name[64];
  (void)fprintf(to, ",\"%s\":[", key);
  for (bool first = true; *names != '\0'; first = false) {
    const size_t size = strcspn(names, ",");
    (void)snprintf(name, sizeof name, "%.*s", (int)size, names);
    if (!first) (void)fputc(',', to);
    text_json(to, name);
    names += size + (names[size] == ',');
  }
  (void)fputc(']', to);
}

/* One number for each limit of kappa.c, those behind the last that is not 0 left out. */
static void json_rms(FILE *to, const float *rms) {
  int32_t count = RESULT_MAX_RMS;
  while (count > 0 && !(rms[count - 1] > 0))
    --count;
  (void)fputs(",\"rms\":[", to);
  for (int32_t i = 0; i < count; ++i)
    (void)fprintf(to, "%s%.3g", i > 0 ? "," : "", (double)rms[i]);
  (void)fputc(']', to);
}

static void json_spoils(FILE *to, const char *key, const assay_op *op, uint32_t bits) {
  char names[POWER_MAX_SPOILS * 40] = "", name[64];
  if (bits == 0) return;
  for (int32_t i = 0; i < power_count(op); ++i) {
    if ((bits & 1u << i) == 0) continue;
    power_name(op, i, name, sizeof name);
    const size_t used = strlen(names);
    (void)snprintf(names + used, sizeof names - used, "%s%s", used > 0 ? "," : "", name);
  }
  json_names(to, key, names);
}

void file_jsonl_case(FILE *to, const assay_case *one, const case_result *result, const char *descriptor,
                     const char *expected) {
  (void)fputs("{\"case\":", to);
  text_json(to, descriptor);
  json_text(to, "op", one->op->name);
  json_text(to, "variant", one->variant);
  json_text(to, "device", one->device);
  json_text(to, "suite", one->suite);
  json_text(to, "name", one->name);
  json_text(to, "section", file_section_name(one->section));
  json_text(to, "tier", file_tier_name(one->tier));
  json_text(to, "verdict", verdict_name(result->verdict));
  if (expected != NULL) json_text(to, "expected", expected);
  json_text(to, "check", result->check);
  json_text(to, "message", result->message);
  json_text(to, "path", result->path);
  json_number(to, "ratio_element", result->ratio_element);
  json_number(to, "ratio_row", result->ratio_row);
  json_number(to, "ratio_request", result->ratio_request);
  json_rms(to, result->rms);
  json_integer(to, "rows", result->rows_judged);
  json_integer(to, "elements", result->elements_judged);
  json_integer(to, "visible_keys", result->visible_keys);
  json_integer(to, "live_keys", result->live_keys);
  json_names(to, "laws", result->laws);
  json_spoils(to, "spoils_seen", one->op, result->spoils_seen);
  json_spoils(to, "spoils_unseen", one->op, result->spoils_unseen);
  json_spoils(to, "spoils_void", one->op, result->spoils_void);
  json_spoils(to, "spoils_weak", one->op, result->spoils_weak);
  json_number(to, "reference_ms", result->reference_ms);
  json_number(to, "run_ms", result->run_ms);
  (void)fprintf(to, ",\"seed\":%" PRIu64 "}\n", one->seed);
}

void file_jsonl_unclaimed(FILE *to, const char *subject, const char *what, const char *why) {
  (void)fputs("{\"unclaimed\":", to);
  text_json(to, what);
  json_text(to, "variant", subject);
  json_text(to, "message", why);
  json_text(to, "verdict", verdict_name(VERDICT_FAIL));
  (void)fputs("}\n", to);
}

void file_jsonl_power(FILE *to, const char *op, const char *spoil, int64_t seen, int64_t unseen, int64_t weak,
                      int64_t empty) {
  (void)fputs("{\"power\":", to);
  text_json(to, op);
  json_text(to, "spoil", spoil);
  json_integer(to, "seen", seen);
  json_integer(to, "unseen", unseen);
  json_integer(to, "weak", weak);
  json_integer(to, "void", empty);
  (void)fputs("}\n", to);
}

void file_jsonl_weak(FILE *to, const char *suite, const char *spoil, const char *why) {
  (void)fputs("{\"weak\":", to);
  text_json(to, suite);
  json_text(to, "spoil", spoil);
  json_text(to, "message", why);
  json_text(to, "verdict", verdict_name(VERDICT_WEAK));
  (void)fputs("}\n", to);
}

void file_jsonl_end(FILE *to, const report_totals *totals, int64_t cases) {
  (void)fprintf(to, "{\"end\":%" PRId64 ",\"unclaimed\":%" PRId64 ",\"spoils\":%" PRId64 ",\"seconds\":%.3f}\n", cases,
                totals->unclaimed, totals->spoils, totals->seconds);
}

/* ---- JUnit XML --------------------------------------------------------------------------------------- */

void file_junit_header(FILE *to, const report_totals *totals) {
  const int64_t *v = totals->verdicts;
  int64_t tests = totals->expected + totals->unclaimed + totals->weak;
  for (int i = 0; i <= VERDICT_WEAK; ++i)
    tests += v[i];
  (void)fprintf(to,
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                "<testsuite name=\"assay\" tests=\"%" PRId64 "\" failures=\"%" PRId64 "\" errors=\"%" PRId64
                "\" skipped=\"%" PRId64 "\" time=\"%.3f\">",
                tests, v[VERDICT_FAIL] + v[VERDICT_WEAK] + totals->unclaimed + totals->weak,
                v[VERDICT_HANG] + v[VERDICT_CRASH], v[VERDICT_UNSUPPORTED] + totals->expected, totals->seconds);
}

static void xml_attribute(FILE *to, const char *key, const char *value) {
  (void)fprintf(to, " %s=\"", key);
  text_xml(to, value);
  (void)fputc('"', to);
}

static void xml_outcome(FILE *to, const char *tag, const char *type, const char *message, const char *descriptor) {
  (void)fprintf(to, "\n    <%s", tag);
  xml_attribute(to, "type", type);
  xml_attribute(to, "message", message);
  (void)fputs(">assay replay &apos;", to);
  text_xml(to, descriptor);
  (void)fprintf(to, "&apos;</%s>\n  ", tag);
}

void file_junit_case(FILE *to, const assay_case *one, const case_result *result, const char *descriptor,
                     const char *expected) {
  char name[256];
  (void)fputs("\n  <testcase", to);
  (void)snprintf(name, sizeof name, "%s.%s.%s", one->device, one->op->name, one->variant);
  xml_attribute(to, "classname", name);
  (void)snprintf(name, sizeof name, "%s/%s/%s seed=%" PRIu64, one->suite, file_section_name(one->section), one->name,
                 one->seed);
  xml_attribute(to, "name", name);
  (void)fprintf(to, " time=\"%.6f\">", 1e-3 * (result->reference_ms + result->run_ms));
  switch (expected != NULL ? VERDICT_UNSUPPORTED : result->verdict) {
  case VERDICT_PASS:
  case VERDICT_REFUSED:
    break;
  case VERDICT_UNSUPPORTED:
    (void)fputs("\n    <skipped", to);
    if (expected != NULL) xml_attribute(to, "type", expected);
    xml_attribute(to, "message", result->message);
    (void)fputs("/>\n  ", to);
    break;
  case VERDICT_HANG:
  case VERDICT_CRASH:
    xml_outcome(to, "error", result->check, result->message, descriptor);
    break;
  case VERDICT_FAIL:
  case VERDICT_WEAK:
    xml_outcome(to, "failure", result->check, result->message, descriptor);
    break;
  }
  (void)fputs("</testcase>", to);
}

void file_junit_unclaimed(FILE *to, const char *subject, const char *what, const char *why) {
  (void)fputs("\n  <testcase", to);
  xml_attribute(to, "classname", subject);
  xml_attribute(to, "name", what);
  (void)fputs("><failure type=\"unclaimed\"", to);
  xml_attribute(to, "message", why);
  (void)fputs("/></testcase>", to);
}

void file_junit_weak(FILE *to, const char *suite, const char *spoil, const char *why) {
  (void)fputs("\n  <testcase", to);
  xml_attribute(to, "classname", suite);
  xml_attribute(to, "name", spoil);
  (void)fputs("><failure type=\"power\"", to);
  xml_attribute(to, "message", why);
  (void)fputs("/></testcase>", to);
}

void file_junit_end(FILE *to) {
  (void)fputs("\n</testsuite>\n", to);
}
