/* folders.h: where suites and fixtures are: $ASSAY_SUITES or $ASSAY_FIXTURES, else share/assay beside the bin/ that the
 * program is in, else where it was built. */
#ifndef ASSAY_CONFORMANCE_FOLDERS_H
#define ASSAY_CONFORMANCE_FOLDERS_H

const char *folder_of_suites(void);
const char *folder_of_fixtures(void);

#endif
