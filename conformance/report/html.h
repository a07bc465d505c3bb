/* html.h: results as one page that needs no other file: no script from outside, no picture, no font. */
#ifndef ASSAY_CONFORMANCE_REPORT_HTML_H
#define ASSAY_CONFORMANCE_REPORT_HTML_H

#include "results.h"

/* Writes the page beside its name, and renames it when it is whole. Fails if it cannot be written. */
assay_status report_html_write(const results *r, const char *path, assay_error *error);

#endif
