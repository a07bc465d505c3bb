/* html_internal.h: the sections of the page of a run. Private to the report. */
#ifndef ASSAY_CONFORMANCE_REPORT_HTML_INTERNAL_H
#define ASSAY_CONFORMANCE_REPORT_HTML_INTERNAL_H

#include <stdio.h>

#include "conformance/text/text.h"
#include "html_cells.h"
#include "results_group.h"

/* The script of the page (html_script.c). */
extern const char html_script[];

/* Failures that are alike: same variant, verdict, check and kind of wrong values. */
typedef struct html_kind {
  int64_t first, count; /* first: index of the first case */
  int32_t group;        /* index into results_groups */
} html_kind;

typedef struct html_kinds {
  html_kind *list;
  int32_t *of_case; /* [case_count] index into list; -1: no failure */
  int64_t count, cases;
} html_kinds;

/* html_failures.c. Out of memory leaves the list empty, with the cases counted, and is a miss. */
void html_kinds_make(const results *r, const results_groups *g, html_kinds *made);
void html_kinds_free(html_kinds *k);
void html_failures(FILE *to, const results *r, const html_kinds *k);
void html_worst(FILE *to, const results *r, const results_groups *g);
/* html_variants.c: verdicts by variant; mutants and what killed them. */
void html_variants(FILE *to, const results *r, const results_groups *g, const html_kinds *k);
void html_mutants(FILE *to, const results *r);
/* html_plot.c: error ratio by length, one plot per operator and device; time by variant. */
void html_ratio_plots(FILE *to, const results *r, const results_groups *g);
void html_time_bars(FILE *to, const results *r, const results_groups *g);
/* html_tables.c */
void html_coverage(FILE *to, const results_groups *g);
void html_laws(FILE *to, const results *r, const results_groups *g);
void html_power(FILE *to, const results *r);
void html_paths(FILE *to, const results *r, const results_groups *g);
/* html_reach.c: values and lengths that the cases reached. */
void html_reach(FILE *to, const results *r);

#endif
