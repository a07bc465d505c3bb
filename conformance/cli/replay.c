/* replay.c: assay replay: one descriptor → its result → report. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"
#include "conformance/report/report.h"
#include "conformance/run/run.h"
#include "conformance/text/text.h"
#include "conformance/trial/trial.h"
#include "core/registry.h"
#include "run_state.h"

/* Writes the keys that every descriptor must have and this one lacks, all at once; "": none. */
static const char *missing_keys(const char *descriptor, char *text, size_t size) {
  char name[64] = "", mode[16] = "decode";
  static const char *const needed[] = {"device", "variant", "kv_len", "new"};
  size_t used = 0;
  text[0] = '\0';
  (void)sscanf(descriptor, "%63s", name);
  const assay_op *op = assay_op_find(name);
  const char *at = strstr(descriptor, " mode=");
  if (at != NULL) (void)sscanf(at, " mode=%15s", mode);
  const bool paged = op != NULL && op->form == ASSAY_PAGED;
  const bool lists = strcmp(mode, "decode") != 0 && strcmp(mode, "prefill") != 0;
  for (int i = 0; i < (paged ? lists ? 4 : 3 : 2); ++i) {
    char key[16];
    (void)snprintf(key, sizeof key, " %s=", needed[i]);
    if (strstr(descriptor, key) != NULL) continue;
    used += (size_t)snprintf(text + used, size - used, "%s%s", used > 0 ? ", " : "", needed[i]);
  }
  return text;
}

/* Returns the identity of the manifest in the folder of --dump; 0: there is none. A file that is written anew has
 * another one. */
static uint64_t manifest_there(const cli_options *options) {
  char path[4200];
  struct stat about;
  if (options->dump == NULL) return 0;
  (void)snprintf(path, sizeof path, "%s/%s", options->dump, DUMP_MANIFEST);
  return stat(path, &about) == 0 ? (uint64_t)about.st_ino * 1000003 + (uint64_t)about.st_mtim.tv_nsec + 1 : 0;
}

/* Says that a case whose tensors were to be written has none, if so. An empty folder is taken away again. */
static void say_no_dump(const cli_options *options, uint64_t before) {
  if (options->dump == NULL || manifest_there(options) != before) return;
  (void)rmdir(options->dump);
  (void)fprintf(stderr, "assay: --dump: %s: nothing is written: the case was not judged, see its line above\n",
                text_shown(options->dump));
}

int cli_replay_command(int argc, char **argv) {
  int code = EXIT_BAD;
  assay_error error = {""};
  cli_options options;
  assay_case one;
  assay_device_info info;
  run_state state = {.out = NULL};
  memset(&one, 0, sizeof one);
  memset(&info, 0, sizeof info);
  assay_status status = cli_parse(argc, argv, "replay", &options, &error);
  if (status == ASSAY_OK && options.words.count != 1)
    status = assay_fail(&error, ASSAY_ERR_INPUT, "replay: needs one descriptor in quotes, found %d words",
                        options.words.count);
  if (status == ASSAY_OK) status = cli_load_plugins(&options, &error);
  /* An unknown operator or key is worth more than what is missing. */
  if (status == ASSAY_OK) {
    char missing[100];
    assay_error inner = {""};
    const assay_status parsed = cli_case_parse(options.words.item[0], &one, &inner);
    const bool lacks = missing_keys(options.words.item[0], missing, sizeof missing)[0] != '\0';
    if (lacks && (parsed == ASSAY_OK || strstr(inner.text, ": missing") != NULL))
      status = assay_fail(&error, ASSAY_ERR_INPUT,
                          "%s: missing in the descriptor (device is cuda or simt; for variants "
                          "see: assay list variants)",
                          missing);
    else if (parsed != ASSAY_OK)
      status = assay_fail(&error, parsed, "%s", inner.text);
  }
  if (status == ASSAY_OK) status = cli_check_device(one.device, &error);
  if (status == ASSAY_OK && assay_variant_find(one.op->name, one.variant, one.device) == NULL)
    status = cli_unknown_variant("variant", one.op->name, one.variant, one.device, &error);
  if (status == ASSAY_OK)
    status = cli_check_contract(assay_variant_find(one.op->name, one.variant, one.device), &error);
  if (status == ASSAY_OK) status = cli_check_writable("--jsonl", options.jsonl, &error);
  if (status == ASSAY_OK) status = cli_check_writable("--junit", options.junit, &error);
  if (status == ASSAY_OK && options.dump != NULL) status = trial_dump_to(options.dump, &error);
  if (status == ASSAY_OK) status = cli_probe(one.device, &info, &error);
  if (status == ASSAY_OK) status = claims_open(&state.seen, &error);
  if (status == ASSAY_OK) status = power_sum_open(&state.power, &error);
  if (status == ASSAY_OK) status = slack_open(&state.used, &error);
  if (status == ASSAY_OK) {
    const report_options report_choice = {.text = stdout,
                                          .colour = cli_colour(&options),
                                          .jsonl = options.jsonl,
                                          .junit = options.junit,
                                          .deadline_s = cli_own_deadline(&options),
                                          .device = one.device,
                                          .info = &info,
                                          .seed = one.seed,
                                          .total = 1};
    status = report_open(&report_choice, &state.out, &error);
  }
  if (status != ASSAY_OK) {
    code = cli_leave(status, &error);
    goto done;
  }
  power_set(options.power < 0 ? POWER_OFF : (power_mode)options.power);
  const uint64_t dumped = manifest_there(&options);
  const execute_options execution = {1, options.deadline_s, options.in_process, 1};
  status = execute_cases(&one, 1, &execution, run_note, &state, &error);
  power_sum_report(state.power, power_get(), POWER_TOLD, state.out);
  code = report_close(state.out, &error);
  if (status != ASSAY_OK || error.text[0] != '\0')
    code = cli_leave_run(status != ASSAY_OK ? status : ASSAY_ERR_IO, &error);
  say_no_dump(&options, dumped);
done:
  claims_close(state.seen);
  power_sum_close(state.power);
  slack_close(state.used);
  case_free(&one);
  return code;
}
