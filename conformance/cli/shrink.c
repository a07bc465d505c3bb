/* shrink.c: assay shrink, and --shrink after a run. */
#include "shrink_set.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conformance/report/report.h"
#include "conformance/shrink/shrink.h"
#include "conformance/text/text.h"
#include "core/registry.h"

enum { CANDIDATE_DEADLINE_S = 5 };

static const char *plugin_of(const assay_case *one) {
  return replay_plugin(one->op->name, one->variant, one->device);
}

/* Limits the deadline: a candidate is smaller than a case that had the whole deadline of the run. */
static shrink_options options_of(const cli_options *options) {
  const double deadline = options->deadline_s < CANDIDATE_DEADLINE_S ? options->deadline_s : CANDIDATE_DEADLINE_S;
  return (shrink_options){.execution = {.workers = options->workers, .deadline_s = deadline},
                          .whole_deadline_s = options->deadline_s,
                          .seconds = options->shrink_budget_s};
}

void shrink_keep(shrink_set *set, const assay_case *one, const case_result *result) {
  if (verdict_is_good(result->verdict) || set->count == SHRINK_MOST) return;
  for (int32_t i = 0; i < set->count; ++i)
    if (set->one[i].op == one->op && strcmp(set->one[i].variant, one->variant) == 0 &&
        strcmp(set->result[i].check, result->check) == 0)
      return;
  if (case_copy(one, &set->one[set->count], NULL) != ASSAY_OK) return;
  set->result[set->count++] = *result;
}

static assay_status write_suite(const char *path, const shrink_outcome *made, const char *plugin, assay_error *error) {
  text_file file;
  memset(&file, 0, sizeof file);
  const assay_status status = text_open(&file, path, error);
  if (status != ASSAY_OK) return status;
  shrink_yaml(file.stream, made, plugin);
  return text_close(&file, error);
}

/* Writes a path that no other failure of this run has. Names may be equal after they are cut to a suite's length. */
static void free_path(const shrink_set *set, int32_t self, const char *folder, char *path, size_t size) {
  char name[64], other[64];
  int32_t same = 0;
  shrink_name(&set->one[self], set->result[self].check, name, sizeof name);
  for (int32_t i = 0; i < self; ++i) {
    shrink_name(&set->one[i], set->result[i].check, other, sizeof other);
    same += strcmp(name, other) == 0;
  }
  if (same == 0)
    (void)snprintf(path, size, "%s/%s.yaml", folder, name);
  else
    (void)snprintf(path, size, "%s/%.44s-%d.yaml", folder, name, same + 1);
}

assay_status shrink_folder(const cli_options *options, assay_error *error) {
  if (options->shrink == NULL) return ASSAY_OK;
  if ((mkdir(options->shrink, 0777) == 0 || errno == EEXIST) && access(options->shrink, W_OK | X_OK) == 0)
    return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "--shrink: found '%s', which cannot be made or written: %s",
                    options->shrink, strerror(errno));
}

assay_status shrink_all(shrink_set *set, const cli_options *options, assay_error *error) {
  const shrink_options choice = options_of(options);
  assay_status status = ASSAY_OK;
  for (int32_t i = 0; i < set->count && status == ASSAY_OK; ++i) {
    static shrink_outcome made;
    char path[4096];
    const char *plugin = plugin_of(&set->one[i]);
    free_path(set, i, options->shrink, path, sizeof path);
    status = shrink_case(&set->one[i], &set->result[i], &choice, &made, error);
    if (status == ASSAY_OK && made.reproduced) status = write_suite(path, &made, plugin, error);
    if (status == ASSAY_OK) shrink_print(stdout, &made, plugin, made.reproduced ? path : NULL);
    shrink_free(&made);
  }
  for (int32_t i = 0; i < set->count; ++i)
    case_free(&set->one[i]);
  set->count = 0;
  return status;
}

/* Ends with 1 if the case still fails, and with 3 if it passes and nothing can be shrunk. */
int cli_shrink_command(int argc, char **argv) {
  assay_error error = {""};
  cli_options options;
  assay_case one;
  static shrink_outcome made;
  int code = EXIT_BAD;
  memset(&one, 0, sizeof one);
  assay_status status = cli_parse(argc, argv, "shrink", &options, &error);
  if (status == ASSAY_OK && options.words.count != 1)
    status = assay_fail(&error, ASSAY_ERR_INPUT, "shrink: needs one descriptor in quotes, found %d words",
                        options.words.count);
  if (status == ASSAY_OK) status = cli_load_plugins(&options, &error);
  if (status == ASSAY_OK) status = cli_case_parse(options.words.item[0], &one, &error);
  if (status == ASSAY_OK) status = cli_check_device(one.device, &error);
  if (status == ASSAY_OK && assay_variant_find(one.op->name, one.variant, one.device) == NULL)
    status = cli_unknown_variant("variant", one.op->name, one.variant, one.device, &error);
  assay_device_info info;
  if (status == ASSAY_OK) status = cli_probe(one.device, &info, &error);
  if (status == ASSAY_OK) {
    const shrink_options choice = options_of(&options);
    const char *plugin = plugin_of(&one);
    status = shrink_case(&one, NULL, &choice, &made, &error);
    if (status == ASSAY_OK && made.reproduced && options.output != NULL)
      status = write_suite(options.output, &made, plugin, &error);
    if (status == ASSAY_OK) shrink_print(stdout, &made, plugin, made.reproduced ? options.output : NULL);
    code = made.reproduced ? EXIT_BAD : EXIT_NOTHING;
    shrink_free(&made);
  }
  if (status != ASSAY_OK) code = cli_leave(status, &error);
  case_free(&one);
  return code;
}
