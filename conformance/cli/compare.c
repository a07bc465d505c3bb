/* compare.c: assay compare A.jsonl B.jsonl. */
#include <stdio.h>

#include "cli.h"
#include "conformance/compare.h"

int cli_compare_command(int argc, char **argv) {
  int code = EXIT_BAD;
  assay_error error = {""};
  cli_options options;
  results side[2] = {{0}, {0}};
  comparison made = {0};
  assay_status status = cli_parse(argc, argv, "", &options, &error);
  if (status == ASSAY_OK && options.words.count != 2)
    status = assay_fail(&error, ASSAY_ERR_INPUT, "compare: needs two files of results, found %d", options.words.count);
  for (int32_t i = 0; i < 2 && status == ASSAY_OK; ++i) {
    status = results_read(options.words.item[i], &side[i], &error);
    if (status == ASSAY_OK && side[i].case_count == 0)
      status = assay_fail(&error, ASSAY_ERR_INPUT, "compare: %s: no cases", options.words.item[i]);
  }
  if (status == ASSAY_OK) status = compare_make(&side[0], &side[1], &made, &error);
  if (status != ASSAY_OK) {
    code = cli_leave(status, &error);
  } else {
    int64_t joined = 0;
    compare_print(&made, stdout);
    for (int32_t i = 0; i < made.group_count; ++i)
      joined += made.groups[i].joined;
    code = made.new_failures > 0 ? EXIT_BAD : joined > 0 ? EXIT_GOOD : EXIT_NOTHING;
  }
  compare_free(&made);
  results_free(&side[0]);
  results_free(&side[1]);
  return code;
}
