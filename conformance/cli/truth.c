/* truth.c: assay truth onnx|tensors|llama2c: the references against results that others have published. */
#include "conformance/truth.h"

#include <string.h>

#include "cli.h"
#include "model_words.h"

int cli_truth_command(int argc, char **argv) {
  assay_error error = {""};
  truth_log log = {.to = stdout};
  model_words given;
  assay_status status = ASSAY_OK;
  const char *what = argc > 0 ? argv[0] : "";
  const bool llama = strcmp(what, "llama2c") == 0, onnx = strcmp(what, "onnx") == 0;
  const int32_t files = llama ? 2 : 1;
  if (!llama && !onnx && strcmp(what, "tensors") != 0)
    status = assay_fail(&error, ASSAY_ERR_INPUT, "truth: found '%s', allowed: onnx, tensors, llama2c", what);
  if (status == ASSAY_OK) status = model_words_read(argc - 1, argv + 1, llama ? "--device" : "", &given, &error);
  if (status == ASSAY_OK && given.file_count != files)
    status = assay_fail(&error, ASSAY_ERR_INPUT, "truth %s: needs %s, found %d words", what,
                        llama ? "a checkpoint and a JSON file" : "one folder", given.file_count);
  if (status == ASSAY_OK)
    status = llama  ? truth_llama2c(given.file[0], given.file[1], given.device, &log, &error)
             : onnx ? truth_onnx(given.file[0], &log, &error)
                    : truth_tensors(given.file[0], &log, &error);
  if (status != ASSAY_OK) return cli_leave(status, &error);
  truth_sum(&log);
  return log.failed > 0 ? EXIT_BAD : log.passed > 0 ? EXIT_GOOD : EXIT_NOTHING;
}
