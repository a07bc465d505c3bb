/* statement_check.c: checks a statement. See statement.h. */
#include <stdlib.h>
#include <string.h>

#include "core/files/bytes.h"
#include "core/json.h"
#include "statement.h"

enum { MOST_BYTES = 1 << 30 };

/* A statement in memory. */
typedef struct reading {
  const char *path;
  unsigned char *bytes;
  int64_t size;
  json_reader *reader;
  const json_value *top;
} reading;

static void reading_close(reading *r) {
  if (r->reader != NULL) json_close(r->reader);
  free(r->bytes);
}

static assay_status wrong(const reading *r, assay_error *error, const char *what, const char *found,
                          const char *allowed) {
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: %s: found '%.300s', allowed '%.300s'", r->path, what, found, allowed);
}

/* Refuses a member that statements do not have: no check has looked at it. `names`: with a blank around each. */
static assay_status check_keys(const reading *r, const json_value *object, const char *what, const char *names,
                               assay_error *error) {
  for (const json_value *at = object != NULL ? object->child : NULL; at != NULL; at = at->next) {
    char key[80];
    (void)snprintf(key, sizeof key, " %.70s ", at->key != NULL ? at->key : "");
    if (strstr(names, key) == NULL) return wrong(r, error, what, key, names);
  }
  return ASSAY_OK;
}

static assay_status reading_open(const char *path, reading *r, assay_error *error) {
  assay_error inner = {""};
  *r = (reading){.path = path};
  assay_status status = file_bytes(path, MOST_BYTES, &r->bytes, &r->size, error);
  if (status != ASSAY_OK) return status;
  r->reader = json_open();
  if (r->reader == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", path);
  status = json_parse(r->reader, (const char *)r->bytes, (size_t)r->size, &r->top, &inner);
  if (status != ASSAY_OK) return assay_fail(error, status, "%s: %s", path, inner.text);
  if (json_integer(r->top, "assay_statement", 0) == 1) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s: assay_statement: found none that is 1: no statement", path);
}

static assay_status check_digest(const reading *r, assay_error *error) {
  static const char key[] = "\"digest\": ";
  char hash[SHA256_TEXT];
  sha256 s;
  int64_t at = r->size - (int64_t)sizeof key;
  while (at > 0 && memcmp(r->bytes + at, key, sizeof key - 1) != 0)
    --at;
  sha256_begin(&s);
  sha256_add(&s, r->bytes, (size_t)(at > 0 ? at : 0));
  sha256_end(&s, hash);
  const char *said = json_text(r->top, "digest", "");
  return strcmp(said, hash) == 0 ? ASSAY_OK : wrong(r, error, "digest", said, hash);
}

/* Finds a file by its role and, if it is not NULL, by its hash. */
static const json_value *file_of(const reading *r, const char *role, const char *hash) {
  const json_value *files = json_member(r->top, "files");
  for (const json_value *at = files != NULL ? files->child : NULL; at != NULL; at = at->next)
    if (strcmp(json_text(at, "role", ""), role) == 0 &&
        (hash == NULL || strcmp(json_text(at, "sha256", ""), hash) == 0))
      return at;
  return NULL;
}

static assay_status check_files(const reading *r, const statement_part *parts, int32_t count, assay_error *error) {
  const json_value *files = json_member(r->top, "files");
  for (const json_value *at = files != NULL ? files->child : NULL; at != NULL; at = at->next) {
    const char *hash = json_text(at, "sha256", "");
    const assay_status status = check_keys(r, at, "files: key", " role name sha256 bytes ", error);
    if (status != ASSAY_OK) return status;
    if (strlen(hash) != SHA256_TEXT - 1 || strspn(hash, "0123456789abcdef") != SHA256_TEXT - 1)
      return wrong(r, error, "files: sha256", hash, "64 hexadecimal digits");
  }
  for (int32_t i = 0; i < count; ++i) {
    if (file_of(r, parts[i].role, parts[i].hash) != NULL) continue;
    const json_value *other = file_of(r, parts[i].role, NULL);
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: %s %s: found sha256 '%s', which is not the file's: %s", r->path,
                      parts[i].role, parts[i].path, other != NULL ? json_text(other, "sha256", "") : "none",
                      parts[i].hash);
  }
  return ASSAY_OK;
}

typedef struct subject {
  const char *op, *name;
  int64_t passes;
} subject;

typedef struct tally_of {
  subject variant[STATEMENT_VARIANTS];
  int32_t variants;
  int64_t results, counts[VERDICT_WEAK + 1];
} tally_of;

static assay_status read_variants(const reading *r, tally_of *t, assay_error *error) {
  const json_value *list = json_member(r->top, "variants");
  for (const json_value *at = list != NULL ? list->child : NULL; at != NULL; at = at->next) {
    if (t->variants == STATEMENT_VARIANTS) return wrong(r, error, "variants", "more", "64");
    t->variant[t->variants++] = (subject){json_text(at, "op", ""), json_text(at, "variant", ""), 0};
  }
  return t->variants > 0 ? ASSAY_OK : wrong(r, error, "variants", "none", "at least one");
}

static int verdict_of(const char *name) {
  int v = 0;
  while (v <= VERDICT_WEAK && strcmp(name, verdict_name((verdict)v)) != 0)
    ++v;
  return v;
}

/* Checks the next result, which must be this case of this variant. */
static assay_status check_result(const reading *r, const json_value **at, const char *descriptor, int32_t variant,
                                 tally_of *t, assay_error *error) {
  const json_value *one = *at;
  if (one == NULL) return wrong(r, error, "results: the case after the last one", "none", descriptor);
  const char *found = json_text(one, "case", "");
  if (strcmp(found, descriptor) != 0) return wrong(r, error, "results", found, descriptor);
  if (json_integer(one, "variant", -1) != variant) return wrong(r, error, "results: variant", found, "in their order");
  const char *name = json_text(one, "verdict", "");
  const int v = verdict_of(name);
  if (v > VERDICT_WEAK) return wrong(r, error, "results: verdict", name, "PASS, FAIL, ...");
  const double ratio = json_number(one, "ratio", 2);
  if (v == VERDICT_PASS && !(ratio >= 0 && ratio <= 1))
    return wrong(r, error, "results: a PASS with a ratio above 1, or none", found, "none");
  if (v == VERDICT_PASS && json_text(one, "check", "none")[0] != '\0')
    return wrong(r, error, "results: check of a PASS", json_text(one, "check", "none"), "");
  const assay_status status = check_keys(r, one, "results: key", " case variant verdict check ratio ", error);
  if (status != ASSAY_OK) return status;
  ++t->results;
  ++t->counts[v];
  t->variant[variant].passes += v == VERDICT_PASS;
  *at = one->next;
  return ASSAY_OK;
}

static assay_status check_results(const reading *r, const assay_case *cases, int64_t count, tally_of *t,
                                  assay_error *error) {
  static char descriptor[CASE_MAX_LINE];
  const json_value *list = json_member(r->top, "results"), *at = list != NULL ? list->child : NULL;
  const char *device = json_text(r->top, "device", "");
  assay_status status = ASSAY_OK;
  for (int64_t i = 0; i < count && status == ASSAY_OK; ++i) {
    if (!case_runs_on(&cases[i], device)) continue;
    status = case_print(&cases[i], descriptor, sizeof descriptor, error);
    for (int32_t v = 0; v < t->variants && status == ASSAY_OK; ++v)
      if (strcmp(cases[i].op->name, t->variant[v].op) == 0) status = check_result(r, &at, descriptor, v, t, error);
  }
  if (status == ASSAY_OK && at != NULL)
    status = wrong(r, error, "results: the case after the last one", json_text(at, "case", ""), "none");
  return status;
}

static assay_status check_counts(const reading *r, const tally_of *t, bool *conforms, assay_error *error) {
  const json_value *counts = json_member(r->top, "counts");
  char names[200] = " ";
  int64_t good = 0;
  for (int v = 0; v <= VERDICT_WEAK; ++v)
    (void)snprintf(names + strlen(names), sizeof names - strlen(names), "%s ", verdict_name((verdict)v));
  const assay_status status = check_keys(r, counts, "counts: key", names, error);
  if (status != ASSAY_OK) return status;
  for (int v = 0; v <= VERDICT_WEAK; ++v) {
    char found[40], allowed[40];
    const int64_t said = json_integer(counts, verdict_name((verdict)v), -1);
    good += verdict_is_good((verdict)v) ? t->counts[v] : 0;
    if (said == t->counts[v]) continue;
    (void)snprintf(found, sizeof found, "%lld %s", (long long)said, verdict_name((verdict)v));
    (void)snprintf(allowed, sizeof allowed, "%lld", (long long)t->counts[v]);
    return wrong(r, error, "counts", found, allowed);
  }
  *conforms = good == t->results && t->results > 0;
  for (int32_t v = 0; v < t->variants; ++v)
    *conforms = *conforms && t->variant[v].passes > 0;
  if (json_flag(r->top, "conforms", !*conforms) == *conforms) return ASSAY_OK;
  return wrong(r, error, "conforms", *conforms ? "false" : "true", *conforms ? "true" : "false");
}

assay_status statement_list(const char *path, char *name, size_t size, assay_error *error) {
  reading r;
  const assay_status status = reading_open(path, &r, error);
  if (status == ASSAY_OK) (void)snprintf(name, size, "%s", json_text(r.top, "list", ""));
  reading_close(&r);
  return status;
}

assay_status statement_check(const char *path, const assay_case *cases, int64_t case_count, const char *list_hash,
                             const statement_part *parts, int32_t count, statement_facts *facts, assay_error *error) {
  static tally_of t;
  reading r;
  t = (tally_of){.variants = 0};
  *facts = (statement_facts){.conforms = false};
  assay_status status = reading_open(path, &r, error);
  if (status == ASSAY_OK) status = check_digest(&r, error);
  if (status == ASSAY_OK)
    status =
        check_keys(&r, r.top, "key",
                   " assay_statement version commit device device_name driver toolkit list list_cases files variants "
                   "results counts conforms digest ",
                   error);
  if (status == ASSAY_OK && file_of(&r, "list", list_hash) == NULL)
    status = wrong(&r, error, "files: sha256 of the list", json_text(file_of(&r, "list", NULL), "sha256", "none"),
                   list_hash);
  if (status == ASSAY_OK && file_of(&r, "program", NULL) == NULL)
    status = wrong(&r, error, "files: program", "none", "one");
  if (status == ASSAY_OK && json_integer(r.top, "list_cases", -1) != case_count)
    status = wrong(&r, error, "list_cases", "another number", "that of the list");
  if (status == ASSAY_OK) status = check_files(&r, parts, count, error);
  if (status == ASSAY_OK) status = read_variants(&r, &t, error);
  if (status == ASSAY_OK) status = check_results(&r, cases, case_count, &t, error);
  if (status == ASSAY_OK) status = check_counts(&r, &t, &facts->conforms, error);
  facts->results = t.results;
  facts->passes = t.counts[VERDICT_PASS];
  facts->declined = t.counts[VERDICT_UNSUPPORTED];
  (void)snprintf(facts->list, sizeof facts->list, "%s", json_text(r.top, "list", ""));
  (void)snprintf(facts->device_name, sizeof facts->device_name, "%s", json_text(r.top, "device_name", ""));
  (void)snprintf(facts->commit, sizeof facts->commit, "%s", json_text(r.top, "commit", ""));
  reading_close(&r);
  return status;
}
