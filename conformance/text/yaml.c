/* yaml.c: libyaml documents, walked by tables. */
#define _POSIX_C_SOURCE 200809L
#include "yaml.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <yaml.h>

#include "words.h"
#include "yaml_scan.h"

struct yaml_file {
  char *path;
  unsigned char *bytes;
  size_t count;
  yaml_document_t document;
  bool loaded;
};

static yaml_node_t *node_of(yaml_node node) {
  /* libyaml has no const accessor; nothing is changed. */
  return yaml_document_get_node((yaml_document_t *)(uintptr_t)&node.file->document, node.id);
}

/* Orders nodes by their text, and those of one text by their place. */
static int by_text(const void *a, const void *b) {
  const yaml_node_t *x = *(yaml_node_t *const *)a, *y = *(yaml_node_t *const *)b;
  const int order = strcmp((const char *)x->data.scalar.value, (const char *)y->data.scalar.value);
  return order != 0                                  ? order
         : x->start_mark.index < y->start_mark.index ? -1
                                                     : x->start_mark.index > y->start_mark.index;
}

/* Refuses a map that has a key twice, at its second place: the reader of the map may take either value. A key is a
 * word: readers look at its text. */
static assay_status check_keys(const yaml_file *file, const yaml_node_t *map, assay_error *error) {
  const yaml_node_pair_t *from = map->data.mapping.pairs.start, *to = map->data.mapping.pairs.top;
  yaml_node_t **key = malloc(((size_t)(to - from) + 1) * sizeof *key);
  size_t count = 0;
  assay_status status = key != NULL ? ASSAY_OK : assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", file->path);
  for (; key != NULL && from < to; ++from) {
    yaml_node_t *n = node_of((yaml_node){file, from->key});
    if (n->type == YAML_SCALAR_NODE)
      key[count++] = n;
    else if (status == ASSAY_OK)
      status =
          assay_fail(error, ASSAY_ERR_INPUT, "%s:%zu:%zu: found a %s as a key, allowed a word", file->path,
                     n->start_mark.line + 1, n->start_mark.column + 1, n->type == YAML_SEQUENCE_NODE ? "list" : "map");
  }
  if (count > 1) qsort(key, count, sizeof *key, by_text);
  for (size_t i = 1; i < count && status == ASSAY_OK; ++i)
    if (strcmp((const char *)key[i - 1]->data.scalar.value, (const char *)key[i]->data.scalar.value) == 0)
      status = assay_fail(error, ASSAY_ERR_INPUT, "%s:%zu:%zu: %.60s: found twice, allowed once", file->path,
                          key[i]->start_mark.line + 1, key[i]->start_mark.column + 1,
                          (const char *)key[i]->data.scalar.value);
  free(key);
  return status;
}

static assay_status check_maps(const yaml_file *file, assay_error *error) {
  assay_status status = ASSAY_OK;
  for (yaml_node_t *n = file->document.nodes.start; n < file->document.nodes.top && status == ASSAY_OK; ++n)
    if (n->type == YAML_MAPPING_NODE) status = check_keys(file, n, error);
  return status;
}

assay_status yaml_open(const char *path, yaml_file **opened, assay_error *error) {
  yaml_parser_t parser;
  bool parsing = false;
  yaml_file *file = calloc(1, sizeof *file);
  assay_status status = ASSAY_OK;
  *opened = NULL;
  if (file != NULL) file->path = strdup(path);
  if (file == NULL || file->path == NULL) {
    status = assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", path);
    goto done;
  }
  status = yaml_scan(path, &file->bytes, &file->count, error);
  if (status != ASSAY_OK) goto done;
  if (!yaml_parser_initialize(&parser)) {
    status = assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", path);
    goto done;
  }
  parsing = true;
  yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
  yaml_parser_set_input_string(&parser, file->bytes, file->count);
  if (!yaml_parser_load(&parser, &file->document)) {
    status = yaml_scan_problem(path, &parser, error);
    goto done;
  }
  yaml_scan_defined(&file->document);
  file->loaded = true;
  status = check_maps(file, error);
done:
  if (parsing) yaml_parser_delete(&parser);
  if (status == ASSAY_OK)
    *opened = file;
  else
    yaml_close(file);
  return status;
}

void yaml_close(yaml_file *file) {
  if (file == NULL) return;
  if (file->loaded) yaml_document_delete(&file->document);
  free(file->bytes);
  free(file->path);
  free(file);
}

yaml_node yaml_root(const yaml_file *file) {
  return (yaml_node){file, 1};
}

node_kind yaml_kind(yaml_node node) {
  const yaml_node_t *n = node_of(node);
  return n->type == YAML_SEQUENCE_NODE ? NODE_LIST : n->type == YAML_MAPPING_NODE ? NODE_MAP : NODE_SCALAR;
}

const char *yaml_text(yaml_node scalar) {
  return (const char *)node_of(scalar)->data.scalar.value;
}

bool yaml_is_plain(yaml_node scalar) {
  return node_of(scalar)->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

int32_t yaml_count(yaml_node node) {
  const yaml_node_t *n = node_of(node);
  if (n->type == YAML_SEQUENCE_NODE) return (int32_t)(n->data.sequence.items.top - n->data.sequence.items.start);
  if (n->type == YAML_MAPPING_NODE) return (int32_t)(n->data.mapping.pairs.top - n->data.mapping.pairs.start);
  return 1;
}

yaml_node yaml_item(yaml_node list, int32_t index) {
  return (yaml_node){list.file, node_of(list)->data.sequence.items.start[index]};
}

yaml_node yaml_key(yaml_node map, int32_t index) {
  return (yaml_node){map.file, node_of(map)->data.mapping.pairs.start[index].key};
}

yaml_node yaml_value(yaml_node map, int32_t index) {
  return (yaml_node){map.file, node_of(map)->data.mapping.pairs.start[index].value};
}

const char *yaml_path(yaml_node node) {
  return node.file->path;
}

assay_status yaml_fail(yaml_node at, assay_error *error, const char *format, ...) {
  char text[sizeof(assay_error)];
  va_list list;
  va_start(list, format);
  (void)vsnprintf(text, sizeof text, format, list);
  va_end(list);
  const yaml_mark_t mark = node_of(at)->start_mark;
  return assay_fail(error, ASSAY_ERR_INPUT, "%s:%zu:%zu: %s", at.file->path, mark.line + 1, mark.column + 1, text);
}

assay_status yaml_fail_with(yaml_node at, const assay_error *inner, assay_status status, assay_error *error) {
  if (status != ASSAY_ERR_INPUT) return assay_fail(error, status, "%s", inner->text);
  return yaml_fail(at, error, "%s", inner->text);
}

/* ---- the walk --------------------------------------------------------------------------------------------- */

static const char *kind_names(int32_t kinds) {
  static const char *const names[] = {"nothing", "a value",          "a list",          "a value or a list",
                                      "a map",   "a value or a map", "a list or a map", "a value, a list or a map"};
  return names[kinds & 7];
}

static int32_t find_field(const yaml_field *fields, int32_t count, const char *key) {
  for (int32_t i = 0; i < count; ++i)
    if (strcmp(fields[i].key, key) == 0) return i;
  return -1;
}

static assay_status unknown_key(yaml_node key, const yaml_field *fields, int32_t count, assay_error *error) {
  char list[1400] = "", near[64];
  size_t used = 0;
  for (int32_t i = 0; i < count && used < sizeof list; ++i)
    used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "", fields[i].key);
  const char *guess = word_nearest(yaml_text(key), list, near, sizeof near);
  return yaml_fail(key, error, "%.60s: found an unknown key%s%s%s, allowed are %s", yaml_text(key),
                   guess != NULL ? " (nearest: " : "", guess != NULL ? guess : "", guess != NULL ? ")" : "", list);
}

assay_status yaml_walk(yaml_node map, const yaml_field *fields, int32_t count, void *context, assay_error *error) {
  enum { MAX_FIELDS = 96 };
  int32_t place[MAX_FIELDS];
  if (count > MAX_FIELDS) return assay_fail(error, ASSAY_ERR_INTERNAL, "yaml: a table of %d keys", count);
  for (int32_t i = 0; i < count; ++i)
    place[i] = -1;
  if (yaml_kind(map) != NODE_MAP)
    return yaml_fail(map, error, "found %s, allowed a map", kind_names((int32_t)yaml_kind(map)));
  for (int32_t i = 0; i < yaml_count(map); ++i) {
    const yaml_node key = yaml_key(map, i), value = yaml_value(map, i);
    const int32_t f = find_field(fields, count, yaml_text(key));
    if (f < 0) return unknown_key(key, fields, count, error);
    place[f] = i;
    if (((int32_t)yaml_kind(value) & fields[f].kinds) == 0)
      return yaml_fail(value, error, "%s: found %s, allowed %s", fields[f].key, kind_names((int32_t)yaml_kind(value)),
                       kind_names(fields[f].kinds));
  }
  for (int32_t f = 0; f < count; ++f) {
    if (place[f] < 0 && fields[f].required) return yaml_fail(map, error, "%s: missing", fields[f].key);
    if (place[f] < 0 || fields[f].take == NULL) continue;
    const assay_status status = fields[f].take(context, &fields[f], yaml_value(map, place[f]), error);
    if (status != ASSAY_OK) return status;
  }
  return ASSAY_OK;
}
