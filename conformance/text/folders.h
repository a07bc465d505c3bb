/* folders.h: the folders of suites, fixtures and the tables of `assay bench`. Each is named by $ASSAY_SUITES,
 * $ASSAY_FIXTURES or $ASSAY_BENCH. Otherwise it is share/assay beside the bin/ that the program is in. Otherwise it is
 * the folder of the source tree that the program was built from. */
#ifndef ASSAY_CONFORMANCE_TEXT_FOLDERS_H
#define ASSAY_CONFORMANCE_TEXT_FOLDERS_H

/* They return a path that the caller does not free. It stays valid until the next call on the same thread. */
const char *folder_of_suites(void);
const char *folder_of_fixtures(void);
const char *folder_of_bench(void);

#endif
