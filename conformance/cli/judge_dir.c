/* judge_dir.c: assay judge DIR: tensors that another engine has dumped. */
#include "conformance/judge_dir.h"

#include "cli.h"
#include "model_words.h"

int cli_judge_command(int argc, char **argv) {
  assay_error error = {""};
  truth_log log = {.to = stdout};
  model_words given;
  assay_status status = model_words_read(argc, argv, "", &given, &error);
  if (status == ASSAY_OK && given.file_count != 1)
    status = assay_fail(&error, ASSAY_ERR_INPUT, "judge: needs one folder, found %d words", given.file_count);
  if (status == ASSAY_OK) status = judge_dir(given.file[0], &log, &error);
  if (status != ASSAY_OK) return cli_leave(status, &error);
  truth_sum(&log);
  return log.failed > 0 ? EXIT_BAD : log.passed > 0 ? EXIT_GOOD : EXIT_NOTHING;
}
