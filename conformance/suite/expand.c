/* expand.c: makes concrete cases from suite files and folders of them. */
#define _POSIX_C_SOURCE 200809L
#include "expand.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "core/registry.h"
#include "item.h"

enum { MAX_SUITE_OPS = 64 };

/* The top level of a suite file, as read. */
typedef struct outline {
  const assay_op *op[MAX_SUITE_OPS];
  int32_t op_count;
  yaml_node section[SECTION_COUNT]; /* file == NULL: absent */
} outline;

void case_list_thin(case_list *list) {
  int64_t kept = 0;
  for (int64_t i = 0; i < list->count; ++i)
    if (list->cases[i].thinned)
      case_free(&list->cases[i]);
    else
      list->cases[kept++] = list->cases[i];
  list->count = kept;
}

bool case_leaves(const assay_case *one, const char *variant) {
  const size_t size = strcspn(variant, "@");
  for (const char *at = one->night; *at != '\0'; at += *at == ',') {
    const size_t length = strcspn(at, ",");
    if (length == size && strncmp(at, variant, size) == 0) return true;
    at += length;
  }
  return false;
}

assay_status case_list_check_night(const case_list *list, assay_error *error) {
#ifdef ASSAY_FEW_TYPES
  return ASSAY_OK; /* the program lacks the variants of other types: a whole one checks the names */
#endif
  for (int64_t i = 0; i < list->count; ++i) {
    const assay_case *one = &list->cases[i];
    char name[96];
    for (const char *at = one->night; *at != '\0'; at += *at == ',') {
      const size_t length = strcspn(at, ",");
      (void)snprintf(name, sizeof name, "%.*s", (int)length, at);
      at += length;
      if (assay_variant_find(one->op->name, name, "simt") != NULL ||
          assay_variant_find(one->op->name, name, "cuda") != NULL)
        continue;
      return assay_fail(error, ASSAY_ERR_INPUT, "%s/%s/%s: night: found '%s', allowed the variants of %s", one->suite,
                        section_name(one->section), one->name, name, one->op->name);
    }
  }
  return ASSAY_OK;
}

void case_list_free(case_list *list) {
  for (int64_t i = 0; i < list->count; ++i)
    case_free(&list->cases[i]);
  free(list->cases);
  *list = (case_list){0};
}

static assay_status take_op(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  outline *o = context;
  const bool many = yaml_kind(value) == NODE_LIST;
  (void)field;
  for (int32_t i = 0; i < yaml_count(value); ++i) {
    const yaml_node node = many ? yaml_item(value, i) : value;
    const char *name = yaml_kind(node) == NODE_SCALAR ? yaml_text(node) : "a list or a map";
    const assay_op *op = assay_op_find(name);
    if (op == NULL || o->op_count == MAX_SUITE_OPS) {
      char list[512];
      case_op_list(list, sizeof list);
      return yaml_fail(node, error, "op: found '%.60s', allowed %s", name, list);
    }
    for (int32_t k = 0; k < o->op_count; ++k)
      if (o->op[k] == op) return yaml_fail(node, error, "op: found %s twice, allowed once", name);
    o->op[o->op_count++] = op;
  }
  if (o->op_count == 0) return yaml_fail(value, error, "op: found an empty list, allowed one operator or more");
  return ASSAY_OK;
}

static assay_status take_section(void *context, const yaml_field *field, yaml_node value, assay_error *error) {
  outline *o = context;
  for (int32_t i = 0; i < yaml_count(value); ++i)
    if (yaml_kind(yaml_item(value, i)) != NODE_MAP)
      return yaml_fail(yaml_item(value, i), error, "%s: found a value or a list, allowed a map with name, kv_len, ...",
                       field->key);
  for (int32_t i = 0; i < 4; ++i)
    if (strcmp(section_name((case_section)i), field->key) == 0) o->section[i] = value;
  return ASSAY_OK;
}

/* Returns the item's name and its place; NULL where it has none, which reading the item reports. */
static const char *name_of(yaml_node map, yaml_node *at) {
  for (int32_t i = 0; i < yaml_count(map); ++i)
    if (yaml_kind(yaml_key(map, i)) == NODE_SCALAR && strcmp(yaml_text(yaml_key(map, i)), "name") == 0 &&
        yaml_kind(yaml_value(map, i)) == NODE_SCALAR) {
      *at = yaml_value(map, i);
      return yaml_text(*at);
    }
  return NULL;
}

/* Refuses a name that appears twice in a section: a name tells which item a case is from. */
static assay_status check_names(yaml_node section, assay_error *error) {
  for (int32_t i = 1; i < yaml_count(section); ++i) {
    yaml_node at = section, before = section;
    const char *name = name_of(yaml_item(section, i), &at);
    for (int32_t k = 0; name != NULL && k < i; ++k) {
      const char *other = name_of(yaml_item(section, k), &before);
      if (other != NULL && strcmp(name, other) == 0)
        return yaml_fail(at, error, "name: found '%.60s' twice, allowed once in a section", name);
    }
  }
  return ASSAY_OK;
}

static assay_status read_sections(suite *s, const outline *o, assay_error *error) {
  for (int32_t k = 0; k < 4; ++k) {
    if (o->section[k].file == NULL) continue;
    assay_status status = check_names(o->section[k], error);
    for (int32_t i = 0; i < yaml_count(o->section[k]) && status == ASSAY_OK; ++i)
      for (int32_t p = 0; p < o->op_count && status == ASSAY_OK; ++p)
        status = item_expand(s, o->op[p], (case_section)k, yaml_item(o->section[k], i), error);
    if (status != ASSAY_OK) return status;
  }
  return ASSAY_OK;
}

/* Takes the stem of the file as the name that results carry. */
static assay_status name_suite(const char *path, suite *s, assay_error *error) {
  const char *slash = strrchr(path, '/');
  const char *file = slash != NULL ? slash + 1 : path;
  const size_t length = strlen(file);
  const size_t stem = length > 5 && strcmp(file + length - 5, ".yaml") == 0 ? length - 5 : 0;
  bool allowed = stem > 0 && stem < sizeof s->name;
  for (size_t i = 0; allowed && i < stem; ++i)
    allowed = (file[i] >= 'a' && file[i] <= 'z') || (file[i] >= 'A' && file[i] <= 'Z') ||
              (file[i] >= '0' && file[i] <= '9') || file[i] == '_' || file[i] == '-';
  if (!allowed)
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "%s: found the file name '%.80s', allowed NAME.yaml with up to %zu letters, digits, _ and -",
                      path, file, sizeof s->name - 1);
  memcpy(s->name, file, stem);
  s->name[stem] = '\0';
  return ASSAY_OK;
}

static assay_status expand_file(const char *path, uint64_t seed, case_list *list, assay_error *error) {
  static const yaml_field fields[] = {{"op", NODE_SCALAR | NODE_LIST, true, take_op, NULL},
                                      {"check", NODE_LIST, false, take_section, NULL},
                                      {"edge", NODE_LIST, false, take_section, NULL},
                                      {"refuse", NODE_LIST, false, take_section, NULL},
                                      {"bench", NODE_LIST, false, take_section, NULL}};
  suite s = {.seed = seed, .traces = {.suite = path}, .list = list, .room = list->count};
  outline o = {0};
  yaml_file *file = NULL;
  const int64_t before = list->count;
  assay_status status = yaml_open(path, &file, error);
  if (status == ASSAY_OK) status = name_suite(path, &s, error);
  if (status == ASSAY_OK) status = yaml_walk(yaml_root(file), fields, 5, &o, error);
  if (status == ASSAY_OK) status = read_sections(&s, &o, error);
  if (status == ASSAY_OK && list->count == before)
    status = yaml_fail(yaml_root(file), error, "found no case, allowed items in check, edge, refuse or bench");
  trace_set_free(&s.traces);
  yaml_close(file);
  return status;
}

/* ---- folders ---------------------------------------------------------------------------------------------- */

static int is_suite(const struct dirent *entry) {
  const size_t n = strlen(entry->d_name);
  return entry->d_name[0] != '.' && n > 5 && strcmp(entry->d_name + n - 5, ".yaml") == 0;
}

/* Orders by the bytes of the names, whatever the locale. */
static int by_name(const struct dirent **a, const struct dirent **b) {
  return strcmp((*a)->d_name, (*b)->d_name);
}

bool suite_is_models(const char *path) {
  yaml_file *file = NULL;
  assay_error ignored = {""};
  bool found = false;
  const size_t n = strlen(path);
  if (n < 5 || strcmp(path + n - 5, ".yaml") != 0 || yaml_open(path, &file, &ignored) != ASSAY_OK) return false;
  const yaml_node root = yaml_root(file);
  for (int32_t i = 0; yaml_kind(root) == NODE_MAP && i < yaml_count(root); ++i)
    found = found || strcmp(yaml_text(yaml_key(root, i)), "models") == 0;
  yaml_close(file);
  return found;
}

static assay_status expand_folder(const char *path, uint64_t seed, case_list *list, assay_error *error) {
  struct dirent **entries = NULL;
  assay_status status = ASSAY_OK;
  const int count = scandir(path, &entries, is_suite, by_name);
  if (count < 0) return assay_fail(error, ASSAY_ERR_INPUT, "%s: cannot be read: %s", path, strerror(errno));
  if (count == 0) status = assay_fail(error, ASSAY_ERR_INPUT, "%s: found no suite, allowed a folder with *.yaml", path);
  for (int i = 0; i < count; ++i) {
    char file[4096];
    const size_t n = strlen(path);
    const char *between = n > 0 && path[n - 1] == '/' ? "" : "/";
    if (status == ASSAY_OK &&
        (size_t)snprintf(file, sizeof file, "%s%s%s", path, between, entries[i]->d_name) >= sizeof file)
      status = assay_fail(error, ASSAY_ERR_INPUT, "%s: the path is too long", path);
    /* Suites of models run on their own. */
    if (status == ASSAY_OK && !suite_is_models(file)) status = expand_file(file, seed, list, error);
    free(entries[i]);
  }
  free(entries);
  return status;
}

assay_status expand_suite(const char *path, uint64_t seed, case_list *list, assay_error *error) {
  struct stat about;
  const int64_t before = list->count;
  const bool folder = stat(path, &about) == 0 && S_ISDIR(about.st_mode);
  const assay_status status = folder ? expand_folder(path, seed, list, error) : expand_file(path, seed, list, error);
  while (status != ASSAY_OK && list->count > before)
    case_free(&list->cases[--list->count]);
  if (list->count == 0) case_list_free(list);
  return status;
}
