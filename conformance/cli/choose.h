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
/* Refuse a choice of --variant that would have no effect, because its operator is none of these, or of this list. */
assay_status cli_refuse_idle(const cli_options *options, const assay_op *const *op, int32_t count, assay_error *error);
assay_status cli_refuse_idle_in(const cli_options *options, const case_list *list, assay_error *error);
/* Tells whether a case is of the section and has the texts of every filter. */
bool cli_case_matches(const cli_options *options, const assay_case *one);
/* Says why no case is left, if the section or a filter is the reason. */
void cli_say_none(const cli_options *options, const case_list *list);

#endif
