/* compare.c: assay compare A.jsonl B.jsonl. */
#include <stdio.h>

#include "bench/compare.h"
#include "cli.h"
#include "conformance/report/report.h"

/* Two files of assay bench. *both: that is what they are. */
static assay_status compare_benches(const char *const path[2], bool *both, int *code, assay_error *error) {
  bench_rows_list side[2] = {{.row = NULL}, {.row = NULL}};
  bench_comparison made = {.pair = NULL};
  bool is_bench[2] = {false, false};
  assay_status status = rows_read(path[0], &side[0], &is_bench[0], error);
  if (status == ASSAY_OK) status = rows_read(path[1], &side[1], &is_bench[1], error);
  if (status == ASSAY_OK && is_bench[0] != is_bench[1])
    status = assay_fail(error, ASSAY_ERR_INPUT, "compare: %s is of assay bench, %s is not", path[is_bench[0] ? 0 : 1],
                        path[is_bench[0] ? 1 : 0]);
  *both = is_bench[0] && is_bench[1];
  if (status == ASSAY_OK && *both) status = bench_compare(&side[0], &side[1], BENCH_ONE_CARD, &made, error);
  if (status == ASSAY_OK && *both) {
    bench_compare_print(&made, stdout);
    const bool worse = made.count[BENCH_SLOWER] > 0 || made.broken > 0;
    *code = worse ? EXIT_BAD : made.joined > 0 ? EXIT_GOOD : EXIT_NOTHING;
  }
  bench_compare_free(&made);
  rows_free(&side[0]);
  rows_free(&side[1]);
  return status;
}

int cli_compare_command(int argc, char **argv) {
  int code = EXIT_BAD;
  assay_error error = {""};
  cli_options options;
  results side[2] = {{0}, {0}};
  comparison made = {0};
  assay_status status = cli_parse(argc, argv, "compare", &options, &error);
  if (status == ASSAY_OK && options.words.count != 2)
    status = assay_fail(&error, ASSAY_ERR_INPUT, "compare: needs two files of results, found %d", options.words.count);
  bool benches = false;
  if (status == ASSAY_OK) status = compare_benches(options.words.item, &benches, &code, &error);
  if (status == ASSAY_OK && benches) return code;
  for (int32_t i = 0; i < 2 && status == ASSAY_OK; ++i) {
    status = results_read(options.words.item[i], &side[i], &error);
    if (status == ASSAY_OK) status = compare_check(&side[i], i == 0 ? "A" : "B", &error);
  }
  if (status == ASSAY_OK) status = compare_make(&side[0], &side[1], &made, &error);
  if (status != ASSAY_OK) {
    code = cli_leave(status, &error);
    if (status == ASSAY_ERR_MEMORY) code = EXIT_INPUT; /* nothing was compared */
  } else {
    int64_t joined = 0;
    compare_print(&made, stdout);
    for (int32_t i = 0; i < made.group_count; ++i)
      joined += made.groups[i].joined;
    const bool whole = !made.other_plan && made.lost == 0 && made.gained == 0;
    code = made.new_failures > 0 ? EXIT_BAD : joined == 0 ? EXIT_NOTHING : whole ? EXIT_GOOD : EXIT_BAD;
  }
  compare_free(&made);
  results_free(&side[0]);
  results_free(&side[1]);
  return code;
}
