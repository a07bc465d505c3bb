/* judge_dir.c: assay judge DIR...: tensors that another engine has dumped. */
#include "conformance/truth/truth.h"

#include "cli.h"
#include "conformance/report/report.h"
#include "conformance/text/text.h"

/* Writes the last line of the JSONL, closes both files, and returns the exit status. */
static int leave(truth_log *log, text_file *jsonl, assay_status status, assay_error *error) {
  if (status != ASSAY_OK) {
    text_discard(jsonl);
    junit_discard(log->junit);
    return cli_leave(status, error);
  }
  truth_sum(log);
  if (jsonl->stream != NULL)
    (void)fprintf(jsonl->stream, "{\"end\":%lld,\"passed\":%lld,\"failed\":%lld,\"not_covered\":%lld}\n",
                  (long long)(log->passed + log->failed + log->uncovered), (long long)log->passed,
                  (long long)log->failed, (long long)log->uncovered);
  text_note(jsonl);
  status = text_close(jsonl, error);
  if (status == ASSAY_OK)
    status = junit_close(log->junit, 0, error);
  else
    junit_discard(log->junit);
  if (status != ASSAY_OK) return cli_leave(status, error);
  return cli_written(log->failed > 0 ? EXIT_BAD : log->passed > 0 ? EXIT_GOOD : EXIT_NOTHING);
}

int cli_judge_command(int argc, char **argv) {
  assay_error error = {""};
  truth_log log = {.to = stdout};
  text_file jsonl = {.stream = NULL};
  cli_options given;
  assay_status status = cli_parse(argc, argv, "judge", &given, &error);
  if (status == ASSAY_OK && given.words.count == 0)
    status = assay_fail(&error, ASSAY_ERR_INPUT, "judge: needs a folder, found none");
  if (status == ASSAY_OK && given.jsonl != NULL) status = text_open(&jsonl, given.jsonl, &error);
  if (status == ASSAY_OK && given.junit != NULL) status = junit_open(given.junit, &log.junit, &error);
  log.jsonl = jsonl.stream;
  log.expected = given.write_expected;
  log.tolerance[0] = given.tolerance[0];
  log.tolerance[1] = given.tolerance[1];
  if (status == ASSAY_OK) status = judge_dirs(given.words.item, given.words.count, &log, &error);
  return leave(&log, &jsonl, status, &error);
}
