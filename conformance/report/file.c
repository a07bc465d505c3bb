/* file.c: JSONL. */
#include <inttypes.h>

#include "conformance/case/case.h"
#include "conformance/planted/planted.h"
#include "conformance/text/text.h"
#include "core/dtype.h"
#include "core/hash.h"
#include "core/registry.h"
#include "file.h"
#include "results.h"

#ifndef ASSAY_VERSION
#define ASSAY_VERSION "0.1.0"
#endif
#ifndef ASSAY_COMMIT
#define ASSAY_COMMIT "unknown"
#endif

const char *report_commit(void) {
  return ASSAY_COMMIT;
}

/* ---- JSONL: an object per line ------------------------------------------------------------------------- */

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

/* Writes the FNV-1a hash, 64 bits, of the running program; "unknown" if it cannot be read. */
void report_binary(char text[24]) {
  static unsigned char bytes[1 << 16];
  uint64_t hash = HASH_OLD_START;
  FILE *self = fopen("/proc/self/exe", "rb");
  for (size_t got; self != NULL && (got = fread(bytes, 1, sizeof bytes, self)) > 0;)
    hash = hash_bytes(hash, bytes, got);
  if (self == NULL || ferror(self) || hash == HASH_OLD_START)
    (void)snprintf(text, 24, "unknown");
  else
    (void)snprintf(text, 24, "%016" PRIx64, hash);
  if (self != NULL) (void)fclose(self);
}

/* Writes the file of every variant that came from a plug-in, for replay lines; no key if there is none. */
static void json_plugins(FILE *to, const char *device) {
  int32_t count = 0;
  for (int32_t i = 0; i < assay_variant_count(); ++i) {
    const assay_variant *v = assay_variant_at(i);
    char name[160];
    if (device == NULL || strcmp(v->device, device) != 0 || strcmp(assay_variant_origin(i), "built-in") == 0) continue;
    (void)snprintf(name, sizeof name, "%s/%s", v->op, v->name);
    (void)fputs(count++ == 0 ? ",\"plugins\":{" : ",", to);
    text_json(to, name);
    (void)fputc(':', to);
    text_json(to, assay_variant_origin(i));
  }
  if (count > 0) (void)fputc('}', to);
}

void file_jsonl_header(FILE *to, const report_options *options) {
  const assay_device_info *info = options->info;
  char binary[24];
  report_binary(binary);
  (void)fputs("{\"assay\":", to);
  text_json(to, ASSAY_VERSION);
  json_integer(to, "schema", RESULTS_SCHEMA);
  json_text(to, "device", options->device != NULL ? options->device : "");
  json_text(to, "device_name", info != NULL ? info->name : "");
  json_text(to, "driver", info != NULL ? info->driver : "");
  json_text(to, "toolkit", info != NULL ? info->toolkit : "");
  json_text(to, "commit", ASSAY_COMMIT);
  json_text(to, "binary", binary);
  (void)fprintf(to, ",\"seed\":%" PRIu64 ",\"cases\":%" PRId64 ",\"whole\":%s", options->seed, options->total,
                options->whole ? "true" : "false");
  if (options->power != NULL) {
    json_text(to, "power", options->power);
    (void)fprintf(to, ",\"every_variant\":%s,\"plan\":\"%016" PRIx64 "\"", options->every_variant ? "true" : "false",
                  options->plan);
  }
  if (options->thin) (void)fputs(",\"thin\":true", to);
  if (options->shards > 0) (void)fprintf(to, ",\"shard\":\"%d/%d\"", options->shard, options->shards);
  json_plugins(to, options->device);
  if (options->forced != NULL && options->forced[0] != '\0') json_text(to, "forced", options->forced);
  if (options->deadline_s > 0) (void)fprintf(to, ",\"deadline_s\":%g", options->deadline_s);
  (void)fputs("}\n", to);
}

/* Writes a list of names, which are given as text with commas. */
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

/* Writes one number per limit of kappa.c, without the zeros at the end; null: no finite one. */
static void json_rms(FILE *to, const float *rms) {
  int32_t count = RESULT_MAX_RMS;
  while (count > 0 && !(rms[count - 1] > 0))
    --count;
  (void)fputs(",\"rms\":[", to);
  for (int32_t i = 0; i < count; ++i)
    if (assay_is_finite((double)rms[i]))
      (void)fprintf(to, "%s%.3g", i > 0 ? "," : "", (double)rms[i]);
    else
      (void)fprintf(to, "%snull", i > 0 ? "," : "");
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
  json_text(to, "section", section_name(one->section));
  json_text(to, "tier", tier_name(one->tier));
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
  if (result->batch_size > 0)
    (void)fprintf(to, ",\"batch\":{\"size\":%d,\"differs\":%s}", result->batch_size,
                  result->batch_differs ? "true" : "false");
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
  (void)fprintf(to, "{\"end\":%" PRId64 ",\"unclaimed\":%" PRId64 ",\"spoils\":%" PRId64 ",\"seconds\":%.3f", cases,
                totals->unclaimed, totals->spoils, totals->seconds);
  if (totals->stopped) (void)fputs(",\"stopped\":true", to);
  (void)fputs("}\n", to);
}
