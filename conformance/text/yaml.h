/* yaml.h: a strict reading of YAML: one UTF-8 document of at most 1 MB and 8 levels, without anchors, aliases or tags.
 * All messages begin with file:line:column. */
#ifndef ASSAY_CONFORMANCE_TEXT_YAML_H
#define ASSAY_CONFORMANCE_TEXT_YAML_H

#include <stdbool.h>
#include <stdint.h>

#include "assay/status.h"

enum { YAML_MAX_BYTES = 1 << 20, YAML_MAX_DEPTH = 8 };

/* An open document. */
typedef struct yaml_file yaml_file;
typedef enum node_kind { NODE_SCALAR = 1, NODE_LIST = 2, NODE_MAP = 4 } node_kind;
/* A node of an open document; valid until yaml_close. */
typedef struct yaml_node {
  const yaml_file *file; /* NULL: no node */
  int32_t id;
} yaml_node;

/* Reads and checks the file. The caller closes `*file`, which is NULL after a failure. Fails with ASSAY_ERR_INPUT or
 * ASSAY_ERR_MEMORY. */
assay_status yaml_open(const char *path, yaml_file **opened, assay_error *error);
void yaml_close(yaml_file *file);
yaml_node yaml_root(const yaml_file *file);

node_kind yaml_kind(yaml_node node);
const char *yaml_text(yaml_node scalar);
bool yaml_is_plain(yaml_node scalar); /* not quoted, so it may be a number, a boolean or a name */
int32_t yaml_count(yaml_node node);   /* items of a list, pairs of a map, 1 for a scalar */
yaml_node yaml_item(yaml_node list, int32_t index);
yaml_node yaml_key(yaml_node map, int32_t index);
yaml_node yaml_value(yaml_node map, int32_t index);
/* Returns the path of the node's file. */
const char *yaml_path(yaml_node node);

/* Fails with "file:line:column: " and the message. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
assay_status
yaml_fail(yaml_node at, assay_error *error, const char *format, ...);
/* Fails in the same way with a message from elsewhere. A status other than ASSAY_ERR_INPUT passes unchanged. */
assay_status yaml_fail_with(yaml_node at, const assay_error *inner, assay_status status, assay_error *error);

/* One key that a map may have: its allowed kinds, and the function that takes its value. */
typedef struct yaml_field yaml_field;
struct yaml_field {
  const char *key;
  int32_t kinds; /* node_kind, or several or-ed */
  bool required;
  assay_status (*take)(void *context, const yaml_field *field, yaml_node value, assay_error *error);
  const void *about; /* for take */
};
/* Walks a map by a table of keys. First refuses unknown and repeated keys and wrong kinds, in the order of the file.
 * Then calls `take` in the order of the table; a missing required key is refused there. */
assay_status yaml_walk(yaml_node map, const yaml_field *fields, int32_t count, void *context, assay_error *error);

#endif
