/* html_cells.h: the style of a page, and the pieces that its tables are made of. */
#ifndef ASSAY_CONFORMANCE_REPORT_HTML_CELLS_H
#define ASSAY_CONFORMANCE_REPORT_HTML_CELLS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Writes the style sheet of a page, without its element (html_style.c). */
void html_style(FILE *to);

/* Writes a <td> with the text escaped; `kind`: its class, or NULL. */
void html_cell(FILE *to, const char *kind, const char *text);
/* Writes a <td> with a count such as 4,812. */
void html_number_cell(FILE *to, int64_t count);
/* Writes "0.123", "∞", or "–" for 0. */
void html_ratio(FILE *to, double value);
/* Writes "1.2 s", "34 ms", "2 min 5 s". */
void html_time(FILE *to, double ms);

/* Notes that a part of the page is missing for lack of memory. */
void html_miss(void);
/* Tells whether one was missing since the last call. */
bool html_missed(void);

/* A column of a table. */
typedef struct html_column {
  const char *name;
  int number; /* not 0: cells are aligned to the right */
} html_column;

/* Begins a table that is `id` on the page, with its heading. On a narrow screen its rows become blocks, in which every
 * cell has the name of its column before it. `classes`: further classes of the table, or "". */
void html_table(FILE *to, const char *id, const char *classes, const html_column *column, int count);
void html_table_end(FILE *to);

#endif
