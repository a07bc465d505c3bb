/* models.c: assay run of model suites. Everything runs in this process, on one device. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "conformance/model_suite.h"
#include "conformance/report.h"
#include "core/registry.h"

static bool chosen(const cli_options *options, const model_case *one, const char *suite) {
  const assay_case as = model_as_case(one, suite, options->device);
  const unsigned bit = strcmp(options->device, "cuda") == 0 ? CASE_ON_CUDA : CASE_ON_SIMT;
  char id[256];
  (void)snprintf(id, sizeof id, "%s/check/%s/%s", as.suite, as.name, as.variant);
  for (int32_t i = 0; i < options->filters.count; ++i)
    if (strstr(id, options->filters.item[i]) == NULL) return false;
  return (one->devices & bit) != 0 && (!one->nightly || options->filters.count > 0);
}

typedef struct chosen_case {
  const model_case *one;
  const char *suite;
} chosen_case;

static assay_status choose(const cli_options *options, const model_cases *suites, chosen_case **made, int64_t *count,
                           assay_error *error) {
  int64_t room = 1;
  for (int32_t s = 0; s < options->words.count; ++s)
    room += suites[s].count;
  *count = 0;
  *made = calloc((size_t)room, sizeof **made);
  if (*made == NULL) return assay_fail(error, ASSAY_ERR_MEMORY, "run: out of memory");
  for (int32_t s = 0; s < options->words.count; ++s)
    for (int64_t i = 0; i < suites[s].count; ++i)
      if (chosen(options, &suites[s].one[i], options->words.item[s]))
        (*made)[(*count)++] = (chosen_case){&suites[s].one[i], options->words.item[s]};
  return ASSAY_OK;
}

/* A forced variant that no case took has not been looked at. */
static void report_forced(const model_forced *forced, report *out) {
  for (int32_t i = 0; i < forced->count; ++i) {
    char op[64];
    const char *equals = strchr(forced->word[i], '=');
    (void)snprintf(op, sizeof op, "%.*s", (int)(equals - forced->word[i]), forced->word[i]);
    if (forced->taken[i] == 0) report_untaken(out, op, equals + 1);
  }
}

_Static_assert((int)CLI_MAX_LIST <= (int)MODEL_MAX_FORCED, "every --variant has a place");

static void run_all(const cli_options *options, const chosen_case *cases, int64_t count, report *out) {
  model_forced forced = {.count = options->variants.count};
  for (int32_t i = 0; i < forced.count; ++i)
    forced.word[i] = options->variants.item[i];
  for (int64_t i = 0; i < count; ++i) {
    case_result result;
    const assay_case as = model_as_case(cases[i].one, cases[i].suite, options->device);
    model_judge(cases[i].one, options->device, &forced, NULL, &result);
    report_add(out, &as, &result);
    if (result.device_lost) break;
  }
  report_forced(&forced, out);
}

int cli_models_command(const cli_options *options) {
  int code = EXIT_BAD;
  assay_error error = {""};
  assay_device_info info = {.name = ""};
  model_cases *suites = calloc((size_t)options->words.count + 1, sizeof *suites);
  chosen_case *cases = NULL;
  int64_t count = 0;
  report *out = NULL;
  assay_status status = suites != NULL ? ASSAY_OK : assay_fail(&error, ASSAY_ERR_MEMORY, "run: out of memory");
  for (int32_t i = 0; i < options->words.count && status == ASSAY_OK; ++i)
    status = model_suite_read(options->words.item[i], &suites[i], &error);
  if (status == ASSAY_OK) status = choose(options, suites, &cases, &count, &error);
  if (status == ASSAY_OK) status = cli_probe(options->device, &info, &error);
  const report_options choice = {.text = stdout,
                                 .progress = isatty(STDERR_FILENO) != 0 && isatty(STDOUT_FILENO) != 0,
                                 .jsonl = options->jsonl,
                                 .junit = options->junit,
                                 .device = options->device,
                                 .info = &info,
                                 .seed = options->seed,
                                 .total = count,
                                 .whole = options->filters.count == 0};
  if (status == ASSAY_OK) status = report_open(&choice, &out, &error);
  if (status != ASSAY_OK) {
    code = cli_leave(status, &error);
    goto done;
  }
  run_all(options, cases, count, out);
  code = report_close(out, &error);
  if (error.text[0] != '\0') code = cli_leave(ASSAY_ERR_IO, &error);
  if (fflush(stdout) != 0) code = EXIT_BAD;
done:
  for (int32_t i = 0; i < options->words.count && suites != NULL; ++i)
    model_cases_free(&suites[i]);
  free(suites);
  free(cases);
  return code;
}
