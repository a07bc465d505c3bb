/* report_html.h: results as one page that needs nothing else: no script from outside, no picture, no font. */
#ifndef ASSAY_CONFORMANCE_REPORT_HTML_H
#define ASSAY_CONFORMANCE_REPORT_HTML_H

#include "results.h"

/* Written beside its name, and renamed when whole. */
assay_status report_html_write(const results *r, const char *path, assay_error *error);

#endif
