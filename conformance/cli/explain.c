/* explain.c: assay explain DIR: which sums gave these bits. */
#include "conformance/explain/explain.h"

#include "cli.h"

int cli_explain_command(int argc, char **argv) {
  assay_error error = {""};
  explain_log log = {.to = stdout};
  cli_options given;
  assay_status status = cli_parse(argc, argv, "explain", &given, &error);
  if (status == ASSAY_OK && given.words.count != 1)
    status = assay_fail(&error, ASSAY_ERR_INPUT, "explain: needs one folder, found %d words", given.words.count);
  if (status == ASSAY_OK && given.over != NULL) status = explain_over(&log, given.over, &error);
  if (status == ASSAY_OK) status = explain_dir(given.words.item[0], &log, &error);
  if (status == ASSAY_OK) explain_map(&log);
  explain_free(&log);
  if (status != ASSAY_OK) return cli_leave(status, &error);
  return log.unexplained > 0 ? EXIT_BAD : log.explained > 0 ? EXIT_GOOD : EXIT_NOTHING;
}
