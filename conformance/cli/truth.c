/* truth.c: assay truth onnx|tensors|llama2c|hf: the references against results that others have published. */
#include "conformance/truth/truth.h"

#include <string.h>

#include "cli.h"

static int judge_words(const char *what, const cli_options *given, assay_status status, assay_error *error) {
  truth_log log = {.to = stdout};
  const bool llama = strcmp(what, "llama2c") == 0, onnx = strcmp(what, "onnx") == 0;
  const bool hf = strcmp(what, "hf") == 0;
  const assay_model_options options = {.form = given->forms.item, .forms = given->forms.count};
  const char *const *file = given->words.item, *device = given->device_given ? given->device : "ref";
  if (status == ASSAY_OK && given->words.count != (llama ? 2 : 1))
    status = assay_fail(error, ASSAY_ERR_INPUT, "truth %s: needs %s, found %d words", what,
                        llama ? "a checkpoint and a JSON file" : "one folder", given->words.count);
  if (status == ASSAY_OK)
    status = llama  ? truth_llama2c(file[0], file[1], device, &log, error)
             : onnx ? truth_onnx(file[0], &log, error)
             : hf   ? truth_hf(file[0], device, &options, given->dtype, &log, error)
                    : truth_tensors(file[0], &log, error);
  if (status != ASSAY_OK) return cli_leave(status, error);
  truth_sum(&log);
  return log.failed > 0 ? EXIT_BAD : log.passed > 0 ? EXIT_GOOD : EXIT_NOTHING;
}

static int read_words(int argc, char **argv, const char *command) {
  assay_error error = {""};
  cli_options given;
  const assay_status status = cli_parse(argc, argv, command, &given, &error);
  return judge_words(command + strlen("truth "), &given, status, &error);
}

int cli_truth_onnx(int argc, char **argv) {
  return read_words(argc, argv, "truth onnx");
}

int cli_truth_tensors(int argc, char **argv) {
  return read_words(argc, argv, "truth tensors");
}

int cli_truth_llama2c(int argc, char **argv) {
  return read_words(argc, argv, "truth llama2c");
}

int cli_truth_hf(int argc, char **argv) {
  return read_words(argc, argv, "truth hf");
}

/* Reached where the first word is none of the four. */
int cli_truth_command(int argc, char **argv) {
  static const char known[] = "onnx, tensors, llama2c, hf";
  char near[CLI_NEAR];
  assay_error error = {""};
  cli_options given;
  if (argc == 0 || argv[0][0] == '-') {
    const assay_status status = cli_parse(argc, argv, "truth", &given, &error);
    if (status != ASSAY_OK) return cli_leave(status, &error);
  }
  const char *what = argc > 0 ? argv[0] : "(nothing)";
  (void)assay_fail(&error, ASSAY_ERR_INPUT, "truth: found '%s'%s, allowed: %s", what,
                   cli_did_you_mean(what, known, near), known);
  return cli_leave(ASSAY_ERR_INPUT, &error);
}
