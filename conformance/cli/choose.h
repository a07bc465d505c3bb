/* choose.h: the cases that the options of a command choose. */
#ifndef ASSAY_CONFORMANCE_CLI_CHOOSE_H
#define ASSAY_CONFORMANCE_CLI_CHOOSE_H

#include "cli.h"
#include "conformance/suite/suite.h"

/* Reads the list of --list, a file or the name of one beside the suites; `path` receives the file. */
assay_status cli_read_list(const char *word, char *path, size_t size, case_list *list, assay_error *error);
/* Makes a case for each pair of a chosen case and a chosen variant, whose contract must be believed. They are shallow
 * copies, which share the lists of `list`. */
assay_status cli_cross(const cli_options *options, const case_list *list, assay_case **made, int64_t *count,
                       assay_error *error);
/* Says why no case is left, if the section or a filter is the reason. */
void cli_say_none(const cli_options *options, const case_list *list);

#endif
