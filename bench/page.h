/* page.h: files of assay bench as one page: bars against limit and peers, roofline, densities, scenarios, traces,
 * history over commits. The page needs no other file: no script, no picture, no font from outside. */
#ifndef ASSAY_BENCH_PAGE_H
#define ASSAY_BENCH_PAGE_H

#include "rows.h"

/* Returns true if the first line of the file is that of a bench. */
bool page_is_bench(const char *path);
/* Writes the page of files in the order of their commits; a row is shown as the last file that has it says. Fails if a
 * file cannot be read or the page cannot be written. */
assay_status page_write(const char *const *file, int32_t files, const char *to, assay_error *error);

#endif
