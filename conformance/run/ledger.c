/* ledger.c: reads the file of expected failures, and compares results with it. */
#include "ledger.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/registry.h"
#include "conformance/laws/laws.h"
#include "conformance/text/text.h"

enum { MAX_ENTRIES = 1000 };

struct ledger {
  ledger_entry *entry;
  int32_t count;
};

/* The field of an entry that a key fills. */
typedef struct entry_text {
  size_t at, size;
} entry_text;

#define TEXT(field) offsetof(ledger_entry, field), sizeof(((const ledger_entry *)NULL)->field)

/* Writes the checks that can decide a failure: those of every case, and the laws. */
static void list_checks(char *text, size_t size) {
  int used =
      snprintf(text, size,
               "exact,element,rounding,row,request,predicted,unwritten,guard,input,dead_bytes,zero_p_v,run_to_run,"
               "renumbering,permutation");
  for (int32_t i = 0; law_at(i) != NULL && used > 0 && (size_t)used < size; ++i)
    used += snprintf(text + used, size - (size_t)used, ",%s", law_at(i)->name);
  if (used > 0 && (size_t)used < size)
    (void)snprintf(text + used, size - (size_t)used, ",race,refusal,hang,crash,deadline,admission,launch,state,power");
}

static bool is_listed(const char *list, const char *word) {
  const size_t n = strlen(word);
  for (const char *at = list; *at != '\0'; at += strspn(at, ",")) {
    const size_t m = strcspn(at, ",");
    if (m == n && strncmp(at, word, n) == 0) return true;
    at += m;
  }
  return false;
}

static assay_status take_text(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  const entry_text *about = field->about;
  const char *text = yaml_text(value);
  if (strspn(text, " \t") == strlen(text))
    return yaml_fail(value, error, "%s: found nothing, allowed a text", field->key);
  if (strlen(text) >= about->size)
    return yaml_fail(value, error, "%s: found %zu characters, allowed %zu", field->key, strlen(text), about->size - 1);
  if (strcmp(field->key, "op") == 0 && assay_op_find(text) == NULL) {
    char list[512];
    case_op_list(list, sizeof list);
    return yaml_fail(value, error, "op: found '%.60s', allowed %s", text, list);
  }
  char checks[512];
  list_checks(checks, sizeof checks);
  if (strcmp(field->key, "check") == 0 && !is_listed(checks, text))
    return yaml_fail(value, error, "check: found '%.60s', allowed %s", text, checks);
  memcpy((char *)context + about->at, text, strlen(text) + 1);
  return ASSAY_OK;
}

static assay_status take_entry(ledger *l, yaml_node map, assay_error *error) {
  static const entry_text op = {TEXT(op)}, variant = {TEXT(variant)}, check = {TEXT(check)}, filter = {TEXT(filter)},
                          reason = {TEXT(reason)};
  static const yaml_field fields[] = {{"op", NODE_SCALAR, true, take_text, &op},
                                      {"variant", NODE_SCALAR, true, take_text, &variant},
                                      {"check", NODE_SCALAR, true, take_text, &check},
                                      {"filter", NODE_SCALAR, false, take_text, &filter},
                                      {"reason", NODE_SCALAR, true, take_text, &reason}};
  ledger_entry *entry = &l->entry[l->count];
  assay_error place = {""};
  *entry = (ledger_entry){.op = ""};
  if (yaml_kind(map) != NODE_MAP)
    return yaml_fail(map, error, "expected: found a value or a list, allowed a map with op, variant, check, reason");
  const assay_status status = yaml_walk(map, fields, 5, entry, error);
  if (status != ASSAY_OK) return status;
  (void)yaml_fail(map, &place, " ");
  (void)snprintf(entry->where, sizeof entry->where, "%.*s", (int)(strlen(place.text) - 3), place.text);
  for (int32_t i = 0; i < l->count; ++i) {
    const ledger_entry *other = &l->entry[i];
    if (strcmp(other->op, entry->op) == 0 && strcmp(other->variant, entry->variant) == 0 &&
        strcmp(other->check, entry->check) == 0 && strcmp(other->filter, entry->filter) == 0)
      return yaml_fail(map, error, "expected: found the same entry as at %s, allowed once", other->where);
  }
  ++l->count;
  return ASSAY_OK;
}

static assay_status take_entries(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  ledger *l = context;
  const int32_t count = yaml_count(value);
  (void)field;
  if (count > MAX_ENTRIES) return yaml_fail(value, error, "expected: found %d entries, allowed %d", count, MAX_ENTRIES);
  l->entry = calloc((size_t)count + 1, sizeof *l->entry);
  if (l->entry == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "ledger: out of memory");
  for (int32_t i = 0; i < count; ++i) {
    const assay_status status = take_entry(l, yaml_item(value, i), error);
    if (status != ASSAY_OK) return status;
  }
  return ASSAY_OK;
}

assay_status ledger_open(const char *path, ledger **opened, assay_error *error) {
  static const yaml_field fields[] = {{"expected", NODE_LIST, true, take_entries, NULL}};
  yaml_file *file = NULL;
  ledger *l = calloc(1, sizeof *l);
  *opened = NULL;
  if (l == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "ledger: out of memory");
  assay_status status = yaml_open(path, &file, error);
  if (status == ASSAY_OK) status = yaml_walk(yaml_root(file), fields, 1, l, error);
  yaml_close(file);
  if (status == ASSAY_OK)
    *opened = l;
  else
    ledger_close(l);
  return status;
}

void ledger_close(ledger *l) {
  if (l != NULL) free(l->entry);
  free(l);
}

static bool names(const ledger_entry *entry, const assay_case *one) {
  char id[192];
  if (strcmp(entry->op, one->op->name) != 0 || strcmp(entry->variant, one->variant) != 0) return false;
  (void)snprintf(id, sizeof id, "%s/%s/%s", one->suite, section_name(one->section), one->name);
  return strstr(id, entry->filter) != NULL;
}

const ledger_entry *ledger_note(ledger *l, const assay_case *one, const case_result *result) {
  const ledger_entry *expected = NULL;
  for (int32_t i = 0; l != NULL && i < l->count; ++i) {
    ledger_entry *entry = &l->entry[i];
    if (result->verdict == VERDICT_UNSUPPORTED || !names(entry, one)) continue;
    ++entry->ran;
    if (verdict_is_good(result->verdict) || strcmp(entry->check, result->check) != 0) continue;
    ++entry->failed;
    if (expected == NULL) expected = entry;
  }
  return expected;
}

const ledger_entry *ledger_at(const ledger *l, int32_t index) {
  return l != NULL && index >= 0 && index < l->count ? &l->entry[index] : NULL;
}

bool ledger_is_stale(const ledger_entry *entry) {
  return entry->ran > 0 && entry->failed == 0;
}
