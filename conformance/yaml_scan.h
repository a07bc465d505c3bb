/* yaml_scan.h: what is refused before a document is built. Private to yaml.c. */
#ifndef ASSAY_CONFORMANCE_YAML_SCAN_H
#define ASSAY_CONFORMANCE_YAML_SCAN_H

#include <stddef.h>

#include <yaml.h>

#include "assay/status.h"

/* Reads the file (at most YAML_MAX_BYTES, whatever its size) and passes its bytes and its events once. */
assay_status yaml_scan(const char *path, unsigned char **bytes, size_t *count, assay_error *error);
/* The parser's own complaint, with line and column. */
assay_status yaml_scan_problem(const char *path, const yaml_parser_t *parser, assay_error *error);
/* Tells MemorySanitizer, if it is there, that what libyaml wrote is defined. */
void yaml_scan_defined(const yaml_document_t *document);

#endif
