/* yaml_scan.h: checks made before a document is built. Private to yaml.c. */
#ifndef ASSAY_CONFORMANCE_TEXT_YAML_SCAN_H
#define ASSAY_CONFORMANCE_TEXT_YAML_SCAN_H

#include <stddef.h>

#include <yaml.h>

#include "assay/status.h"

/* Reads the file (never more than YAML_MAX_BYTES) and passes over its bytes and its events once. The caller frees
 * `*bytes`, after a failure too. Fails with ASSAY_ERR_INPUT or ASSAY_ERR_MEMORY. */
assay_status yaml_scan(const char *path, unsigned char **bytes, size_t *count, assay_error *error);
/* Fails with the parser's own complaint, with line and column. */
assay_status yaml_scan_problem(const char *path, const yaml_parser_t *parser, assay_error *error);
/* Tells MemorySanitizer, where it is in use, that libyaml's document is defined. */
void yaml_scan_defined(const yaml_document_t *document);

#endif
