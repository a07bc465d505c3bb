/* statement.c: writes a statement. The digest is that of every byte before its line. */
#include "statement.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "core/contract.h"
#include "core/registry.h"
#include "run_report.h"

#ifndef ASSAY_VERSION
#define ASSAY_VERSION "0.1.0"
#endif

static const char *base_of(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash != NULL ? slash + 1 : path;
}

assay_status statement_part_of(const char *role, const char *path, statement_part *part, assay_error *error) {
  *part = (statement_part){.role = role, .path = path};
  return sha256_file(path, part->hash, &part->bytes, error);
}

/* Writes what `print` made, and takes it into the digest. */
static assay_status put(statement *s, char *text, size_t size, assay_error *error) {
  if (text == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "statement: out of memory");
  sha256_add(&s->digest, text, size);
  (void)fwrite(text, 1, size, s->file.stream);
  text_note(&s->file);
  free(text);
  return ASSAY_OK;
}

static void member(FILE *to, const char *key, const char *value, const char *end) {
  (void)fprintf(to, "\"%s\": ", key);
  text_json(to, value);
  (void)fputs(end, to);
}

static void write_head(FILE *to, const assay_device_info *info, const char *device, const char *list, int64_t cases,
                       const statement_part *parts, int32_t count) {
  (void)fputs("{\n\"assay_statement\": 1,\n", to);
  member(to, "version", ASSAY_VERSION, ",\n");
  member(to, "commit", report_commit(), ",\n");
  member(to, "device", device, ",\n");
  member(to, "device_name", info->name, ",\n");
  member(to, "driver", info->driver, ",\n");
  member(to, "toolkit", info->toolkit, ",\n");
  member(to, "list", list, ",\n");
  (void)fprintf(to, "\"list_cases\": %" PRId64 ",\n\"files\": [\n", cases);
  for (int32_t i = 0; i < count; ++i) {
    (void)fputs("{", to);
    member(to, "role", parts[i].role, ", ");
    member(to, "name", base_of(parts[i].path), ", ");
    member(to, "sha256", parts[i].hash, ", ");
    (void)fprintf(to, "\"bytes\": %" PRId64 "}%s\n", parts[i].bytes, i + 1 < count ? "," : "");
  }
  (void)fputs("],\n", to);
}

static void write_variants(FILE *to, const assay_variant *const *variants, int32_t count) {
  (void)fputs("\"variants\": [\n", to);
  for (int32_t i = 0; i < count; ++i) {
    char contract[400];
    contract_text(&variants[i]->contract, contract, sizeof contract);
    (void)fputs("{", to);
    member(to, "op", variants[i]->op, ", ");
    member(to, "variant", variants[i]->name, ", ");
    (void)fprintf(to, "\"built_in\": %s, ", assay_plugin_origin(variants[i]) == NULL ? "true" : "false");
    member(to, "contract", contract, i + 1 < count ? "},\n" : "}\n");
  }
  (void)fputs("],\n\"results\": [", to);
}

assay_status statement_open(statement *s, const char *path, const assay_device_info *info, const char *device,
                            const char *list, int64_t cases, const statement_part *parts, int32_t count,
                            const assay_variant *const *variants, int32_t variant_count, assay_error *error) {
  char *text = NULL;
  size_t size = 0;
  memset(s, 0, sizeof *s);
  s->variants = variant_count;
  sha256_begin(&s->digest);
  const assay_status status = text_open(&s->file, path, error);
  if (status != ASSAY_OK) return status;
  FILE *to = open_memstream(&text, &size);
  if (to == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "statement: out of memory");
  write_head(to, info, device, list, cases, parts, count);
  write_variants(to, variants, variant_count);
  (void)fclose(to);
  return put(s, text, size, error);
}

static double largest(const case_result *result) {
  double most = result->ratio_element;
  if (!(result->ratio_row <= most)) most = result->ratio_row;
  if (!(result->ratio_request <= most)) most = result->ratio_request;
  return most;
}

assay_status statement_add(statement *s, const assay_case *one, int32_t number, const case_result *result,
                           assay_error *error) {
  static char line[CASE_MAX_LINE];
  assay_case bare = *one;
  char *text = NULL;
  size_t size = 0;
  bare.variant[0] = bare.device[0] = '\0';
  const assay_status status = case_print(&bare, line, sizeof line, error);
  if (status != ASSAY_OK) return status;
  FILE *to = open_memstream(&text, &size);
  if (to == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "statement: out of memory");
  (void)fputs(s->results > 0 ? ",\n{" : "\n{", to);
  member(to, "case", line, ", ");
  (void)fprintf(to, "\"variant\": %d, ", number);
  member(to, "verdict", verdict_name(result->verdict), ", ");
  member(to, "check", result->check, ", \"ratio\": ");
  text_json_number(to, largest(result));
  (void)fputs("}", to);
  (void)fclose(to);
  ++s->results;
  ++s->counts[result->verdict];
  s->conforming += verdict_is_good(result->verdict);
  s->passes[number] += result->verdict == VERDICT_PASS;
  return put(s, text, size, error);
}

assay_status statement_close(statement *s, bool *conforms, assay_error *error) {
  char *text = NULL, digest[SHA256_TEXT];
  size_t size = 0;
  FILE *to = open_memstream(&text, &size);
  if (to == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "statement: out of memory");
  *conforms = s->conforming == s->results && s->results > 0;
  for (int32_t v = 0; v < s->variants; ++v)
    *conforms = *conforms && s->passes[v] > 0;
  (void)fputs("\n],\n\"counts\": {", to);
  for (int v = 0; v <= VERDICT_WEAK; ++v)
    (void)fprintf(to, "%s\"%s\": %" PRId64, v > 0 ? ", " : "", verdict_name((verdict)v), s->counts[v]);
  (void)fprintf(to, "},\n\"conforms\": %s,\n", *conforms ? "true" : "false");
  (void)fclose(to);
  assay_status status = put(s, text, size, error);
  if (status != ASSAY_OK) return status;
  sha256_end(&s->digest, digest);
  (void)fprintf(s->file.stream, "\"digest\": \"%s\"\n}\n", digest);
  text_note(&s->file);
  return text_close(&s->file, error);
}

void statement_discard(statement *s) {
  if (s->file.stream != NULL) text_discard(&s->file);
}
