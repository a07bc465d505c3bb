/* page.h: files of assay bench as one page: bars against limit and peers, roofline, densities, scenarios, traces,
 * history over commits. Needs nothing else: no script, no picture, no font from outside. */
#ifndef ASSAY_BENCH_PAGE_H
#define ASSAY_BENCH_PAGE_H

#include "rows.h"

/* True: the first line of the file is that of a bench. */
bool page_is_bench(const char *path);
/* Files in the order of their commits; the last one that has a row is what is shown of it. */
assay_status page_write(const char *const *file, int32_t files, const char *to, assay_error *error);

#endif
