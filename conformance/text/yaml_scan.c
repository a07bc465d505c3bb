/* yaml_scan.c: checks the size, the encoding, and the constructs of YAML that a suite may not use. libyaml's document
 * loader resolves aliases and forgets anchors, so the events are read once before it. */
#define _POSIX_C_SOURCE 200809L
#include "yaml_scan.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/files/bytes.h"
#include "yaml.h"

static assay_status read_file(const char *path, unsigned char **bytes, size_t *count, assay_error *error) {
  FILE *file = NULL;
  int64_t size = 0;
  assay_status status = file_open(path, &file, &size, error);
  if (status != ASSAY_OK) return status;
  if (size > YAML_MAX_BYTES)
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: found %lld bytes, allowed at most %d", path, (long long)size,
                        YAML_MAX_BYTES);
  else if ((*bytes = malloc(YAML_MAX_BYTES + 1)) == NULL)
    status = assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", path);
  if (status == ASSAY_OK) *count = fread(*bytes, 1, YAML_MAX_BYTES + 1, file);
  if (status == ASSAY_OK && ferror(file) != 0)
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: cannot be read: %s", path, strerror(errno));
  else if (status == ASSAY_OK && *count > YAML_MAX_BYTES)
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s: found more than %d bytes, allowed at most %d", path,
                        YAML_MAX_BYTES, YAML_MAX_BYTES);
  (void)fclose(file);
  return status;
}

/* Returns the bytes of the UTF-8 character at `at`, or 0. Overlong forms and surrogates are not characters. */
static size_t character(const unsigned char *at, size_t left, uint32_t *code) {
  static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const unsigned char lead = at[0];
  const size_t n = lead < 0x80             ? 1
                   : (lead & 0xE0) == 0xC0 ? 2
                   : (lead & 0xF0) == 0xE0 ? 3
                   : (lead & 0xF8) == 0xF0 ? 4
                                           : 0;
  if (n == 0 || n > left) return 0;
  *code = n == 1 ? lead : lead & (0x7Fu >> n);
  for (size_t i = 1; i < n; ++i) {
    if ((at[i] & 0xC0) != 0x80) return 0;
    *code = *code << 6 | (at[i] & 0x3Fu);
  }
  return *code < least[n] || (*code >= 0xD800 && *code < 0xE000) || *code > 0x10FFFF ? 0 : n;
}

static bool is_control(uint32_t code) {
  return (code < 0x20 && code != '\t' && code != '\n' && code != '\r') ||
         (code >= 0x7F && code < 0xA0 && code != 0x85) || (code & 0xFFFE) == 0xFFFE || code == 0xFEFF;
}

static assay_status check_encoding(const char *path, const unsigned char *bytes, size_t count, assay_error *error) {
  size_t line = 1, column = 1;
  for (size_t i = 0; i < count;) {
    uint32_t code = 0;
    const size_t n = character(bytes + i, count - i, &code);
    if (n == 0)
      return assay_fail(error, ASSAY_ERR_INPUT, "%s:%zu:%zu: found byte 0x%02x, allowed UTF-8", path, line, column,
                        bytes[i]);
    if (is_control(code))
      return assay_fail(error, ASSAY_ERR_INPUT, "%s:%zu:%zu: found control character U+%04X, allowed text", path, line,
                        column, (unsigned)code);
    const bool ends = code == '\n' || (code == '\r' && !(i + 1 < count && bytes[i + 1] == '\n'));
    line += ends;
    column = ends ? 1 : column + 1;
    i += n;
  }
  return ASSAY_OK;
}

#if defined(__has_feature)
#if __has_feature(memory_sanitizer)
#define UNDER_MSAN 1
#include <sanitizer/msan_interface.h>
#endif
#endif

/* Tells MemorySanitizer that the event is defined: libyaml, which wrote it, is not instrumented. */
static void event_is_defined(yaml_event_t *event) {
#ifdef UNDER_MSAN
  __msan_unpoison(event, sizeof *event);
  if (event->type == YAML_SCALAR_EVENT) __msan_unpoison(event->data.scalar.value, event->data.scalar.length + 1);
#else
  (void)event;
#endif
}

void yaml_scan_defined(const yaml_document_t *document) {
#ifdef UNDER_MSAN
  __msan_unpoison(document, sizeof *document);
  for (yaml_node_t *node = document->nodes.start; node < document->nodes.top; ++node) {
    __msan_unpoison(node, sizeof *node);
    if (node->type == YAML_SCALAR_NODE)
      __msan_unpoison(node->data.scalar.value, node->data.scalar.length + 1);
    else if (node->type == YAML_SEQUENCE_NODE)
      __msan_unpoison(node->data.sequence.items.start,
                      (size_t)((char *)node->data.sequence.items.top - (char *)node->data.sequence.items.start));
    else if (node->type == YAML_MAPPING_NODE)
      __msan_unpoison(node->data.mapping.pairs.start,
                      (size_t)((char *)node->data.mapping.pairs.top - (char *)node->data.mapping.pairs.start));
  }
#else
  (void)document;
#endif
}

assay_status yaml_scan_problem(const char *path, const yaml_parser_t *parser, assay_error *error) {
#ifdef UNDER_MSAN
  __msan_unpoison(parser, sizeof *parser);
#endif
  if (parser->error == YAML_MEMORY_ERROR) return assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", path);
  return assay_fail(error, ASSAY_ERR_INPUT, "%s:%zu:%zu: not YAML: %s%s%s", path, parser->problem_mark.line + 1,
                    parser->problem_mark.column + 1, parser->problem != NULL ? parser->problem : "cannot be read",
                    parser->context != NULL ? ", " : "", parser->context != NULL ? parser->context : "");
}

typedef struct scan {
  const char *path;
  int32_t depth, documents;
} scan;

static assay_status refuse_event(const scan *s, const yaml_event_t *event, const char *what, assay_error *error) {
  return assay_fail(error, ASSAY_ERR_INPUT, "%s:%zu:%zu: %s", s->path, event->start_mark.line + 1,
                    event->start_mark.column + 1, what);
}

static assay_status check_event(scan *s, const yaml_event_t *event, assay_error *error) {
  const yaml_char_t *anchor = NULL, *tag = NULL;
  switch (event->type) {
  case YAML_ALIAS_EVENT:
    return refuse_event(s, event, "found an alias, allowed plain values (write it out)", error);
  case YAML_DOCUMENT_START_EVENT:
    if (event->data.document_start.tag_directives.start != event->data.document_start.tag_directives.end)
      return refuse_event(s, event, "found a tag directive, allowed untagged values", error);
    if (++s->documents > 1) return refuse_event(s, event, "found a second document, allowed one", error);
    return ASSAY_OK;
  case YAML_SCALAR_EVENT:
    anchor = event->data.scalar.anchor;
    tag = event->data.scalar.tag;
    if (strlen((const char *)event->data.scalar.value) != event->data.scalar.length)
      return refuse_event(s, event, "found a NUL character, allowed text", error);
    break;
  case YAML_SEQUENCE_START_EVENT:
    anchor = event->data.sequence_start.anchor;
    tag = event->data.sequence_start.tag;
    ++s->depth;
    break;
  case YAML_MAPPING_START_EVENT:
    anchor = event->data.mapping_start.anchor;
    tag = event->data.mapping_start.tag;
    ++s->depth;
    break;
  case YAML_SEQUENCE_END_EVENT:
  case YAML_MAPPING_END_EVENT:
    --s->depth;
    return ASSAY_OK;
  case YAML_NO_EVENT:
  case YAML_STREAM_START_EVENT:
  case YAML_STREAM_END_EVENT:
  case YAML_DOCUMENT_END_EVENT:
    return ASSAY_OK;
  }
  if (anchor != NULL) return refuse_event(s, event, "found an anchor, allowed plain values (write it out)", error);
  if (tag != NULL) return refuse_event(s, event, "found a tag, allowed untagged values", error);
  if (s->depth > YAML_MAX_DEPTH) {
    char text[64];
    (void)snprintf(text, sizeof text, "found more than %d levels, allowed %d", YAML_MAX_DEPTH, YAML_MAX_DEPTH);
    return refuse_event(s, event, text, error);
  }
  return ASSAY_OK;
}

static assay_status check_events(const char *path, const unsigned char *bytes, size_t count, assay_error *error) {
  yaml_parser_t parser;
  scan s = {.path = path};
  assay_status status = ASSAY_OK;
  bool ended = false;
  if (!yaml_parser_initialize(&parser)) return assay_fail(error, ASSAY_ERR_MEMORY, "%s: out of memory", path);
  yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
  yaml_parser_set_input_string(&parser, bytes, count);
  while (status == ASSAY_OK && !ended) {
    yaml_event_t event;
    if (!yaml_parser_parse(&parser, &event)) {
      status = yaml_scan_problem(path, &parser, error);
      break;
    }
    event_is_defined(&event);
    ended = event.type == YAML_STREAM_END_EVENT;
    status = check_event(&s, &event, error);
    yaml_event_delete(&event);
  }
  if (status == ASSAY_OK && s.documents == 0)
    status = assay_fail(error, ASSAY_ERR_INPUT, "%s:1:1: found no document, allowed one", path);
  yaml_parser_delete(&parser);
  return status;
}

assay_status yaml_scan(const char *path, unsigned char **bytes, size_t *count, assay_error *error) {
  assay_status status = read_file(path, bytes, count, error);
  if (status == ASSAY_OK) status = check_encoding(path, *bytes, *count, error);
  if (status == ASSAY_OK) status = check_events(path, *bytes, *count, error);
  return status;
}
