/* report_html_parts.h: the sections of the page. Private to the report. */
#ifndef ASSAY_CONFORMANCE_REPORT_HTML_PARTS_H
#define ASSAY_CONFORMANCE_REPORT_HTML_PARTS_H

#include <stdio.h>

#include "report_text.h"
#include "results_group.h"

extern const char html_style[], html_script[];

/* <td>, escaped; `kind`: a class, or NULL. */
void html_cell(FILE *to, const char *kind, const char *text);
void html_number_cell(FILE *to, int64_t count);
/* "0.123", "∞", "–" for 0. */
void html_ratio(FILE *to, double value);
/* "1.2 s", "34 ms", "2 min 5 s". */
void html_time(FILE *to, double ms);

/* report_html_plot.c: error ratio against length, a plot for each operator and device. */
void html_ratio_plots(FILE *to, const results *r, const results_groups *g);
void html_time_bars(FILE *to, const results *r, const results_groups *g);
/* report_html_tables.c */
void html_coverage(FILE *to, const results_groups *g);
void html_laws(FILE *to, const results *r, const results_groups *g);
void html_power(FILE *to, const results *r);
void html_paths(FILE *to, const results *r, const results_groups *g);
/* report_html_reach.c: values and lengths that the cases reached. */
void html_reach(FILE *to, const results *r);

#endif
