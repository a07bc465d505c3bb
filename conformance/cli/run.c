/* run.c: assay run and assay replay: suites (or one descriptor) × variants → results → report. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "claims.h"
#include "cli.h"
#include "conformance/campaign.h"
#include "conformance/execute.h"
#include "conformance/expand.h"
#include "conformance/judge_dump.h"
#include "conformance/ledger.h"
#include "conformance/model_suite.h"
#include "conformance/power_sum.h"
#include "conformance/report.h"
#include "core/registry.h"
#include "shrink.h"

typedef struct run_state {
  report *out;
  claims *seen;
  power_sum *power;
  shrink_set *failed; /* NULL: nothing is shrunk */
  ledger *known;      /* expected failures; NULL: none */
} run_state;

static void on_done(void *context, int64_t index, const assay_case *one, const case_result *result) {
  run_state *state = context;
  (void)index;
  const ledger_entry *entry = ledger_note(state->known, one, result);
  if (entry != NULL)
    report_expected(state->out, one, result, entry->reason);
  else
    report_add(state->out, one, result);
  claims_note(state->seen, one, result);
  power_sum_note(state->power, one, result);
  if (entry != NULL) return;
  if (state->failed != NULL) shrink_keep(state->failed, one, result);
}

assay_status cli_load_plugins(const cli_options *options, assay_error *error) {
  assay_status status = ASSAY_OK;
  for (int32_t i = 0; i < options->plugins.count && status == ASSAY_OK; ++i)
    status = assay_plugin_load(options->plugins.item[i], error);
  return status;
}

/* Every --variant names an operator and one of its variants on the device. */
assay_status cli_check_variants(const cli_options *options, assay_error *error) {
  for (int32_t i = 0; i < options->variants.count; ++i) {
    const char *word = options->variants.item[i];
    const char *equals = strchr(word, '=');
    char op[64];
    (void)snprintf(op, sizeof op, "%.*s", (int)(equals - word), word);
    if (assay_op_find(op) == NULL) {
      char known[512] = "";
      for (int32_t o = 0; o < assay_op_count(); ++o)
        (void)snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", o > 0 ? ", " : "",
                       assay_op_at(o)->name);
      return assay_fail(error, ASSAY_ERR_INPUT, "--variant: found operator '%s', allowed: %s", op, known);
    }
    if (assay_variant_find(op, equals + 1, options->device) == NULL) {
      char known[1024] = "";
      for (int32_t v = 0; v < assay_variant_count(); ++v)
        if (strcmp(assay_variant_at(v)->op, op) == 0 && strcmp(assay_variant_at(v)->device, options->device) == 0)
          (void)snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", known[0] != '\0' ? ", " : "",
                         assay_variant_at(v)->name);
      return assay_fail(error, ASSAY_ERR_INPUT, "--variant: found %s variant '%s', allowed on %s: %s", op, equals + 1,
                        options->device, known);
    }
  }
  return ASSAY_OK;
}

bool cli_variant_chosen(const cli_options *options, const assay_variant *v) {
  if (strcmp(v->device, options->device) != 0) return false;
  bool named = false;
  for (int32_t i = 0; i < options->variants.count; ++i) {
    const char *word = options->variants.item[i];
    const char *equals = strchr(word, '=');
    const size_t length = (size_t)(equals - word);
    if (strlen(v->op) != length || strncmp(word, v->op, length) != 0) continue;
    named = true;
    if (strcmp(equals + 1, v->name) == 0) return true;
  }
  return !named;
}

static bool case_chosen(const cli_options *options, const assay_case *one) {
  const unsigned bit = strcmp(options->device, "cuda") == 0 ? CASE_ON_CUDA : CASE_ON_SIMT;
  if ((one->devices & bit) == 0) return false;
  if (options->section != NULL ? strcmp(options->section, cli_section_name(one->section)) != 0
                               : one->section == SECTION_BENCH)
    return false;
  char id[192];
  cli_case_id(one, id, sizeof id);
  for (int32_t i = 0; i < options->filters.count; ++i)
    if (strstr(id, options->filters.item[i]) == NULL) return false;
  return true;
}

/* Cases × variants: shallow copies, which share the lists of `list`. */
static assay_status cross(const cli_options *options, const case_list *list, assay_case **made, int64_t *count,
                          assay_error *error) {
  int64_t capacity = 0;
  *made = NULL;
  *count = 0;
  for (int64_t i = 0; i < list->count; ++i) {
    if (!case_chosen(options, &list->cases[i])) continue;
    for (int32_t v = 0; v < assay_variant_count(); ++v) {
      const assay_variant *variant = assay_variant_at(v);
      if (strcmp(variant->op, list->cases[i].op->name) != 0 || !cli_variant_chosen(options, variant)) continue;
      if (*count == capacity) {
        capacity = capacity > 0 ? 2 * capacity : 1024;
        assay_case *grown = realloc(*made, (size_t)capacity * sizeof **made);
        if (grown == NULL)
          return assay_fail(error, ASSAY_ERR_MEMORY, "out of memory for %lld cases", (long long)capacity);
        *made = grown;
      }
      assay_case *one = &(*made)[(*count)++];
      *one = list->cases[i];
      (void)snprintf(one->variant, sizeof one->variant, "%s", variant->name);
      (void)snprintf(one->device, sizeof one->device, "%s", variant->device);
    }
  }
  return ASSAY_OK;
}

/* The paths of reports are tried before anything runs, so that an hour's work is not lost to a typing error. */
assay_status cli_check_writable(const char *option, const char *path, assay_error *error) {
  if (path == NULL) return ASSAY_OK;
  char folder[4096];
  (void)snprintf(folder, sizeof folder, "%s", path);
  char *slash = strrchr(folder, '/');
  if (slash != NULL) slash[slash == folder ? 1 : 0] = '\0';
  if (access(slash != NULL ? folder : ".", W_OK) != 0)
    return assay_fail(error, ASSAY_ERR_INPUT, "%s: found '%s', whose folder cannot be written: %s", option, path,
                      strerror(errno));
  return ASSAY_OK;
}

static power_mode power_of(const cli_options *options) {
  return options->power < 0 ? POWER_ALL : (power_mode)options->power;
}

/* The results that an earlier run left in its file come first, as if they had just been made. */
static assay_status resume_past(const cli_options *options, const assay_device_info *info, const assay_case *cases,
                                int64_t count, uint64_t plan, campaign_past *past, assay_error *error) {
  if (options->resume == NULL) return ASSAY_OK;
  const campaign_id id = {options->device,
                          info->name,
                          report_commit(),
                          options->seed,
                          count,
                          options->shard,
                          options->shards,
                          power_mode_name(power_of(options)),
                          plan};
  return campaign_resume(options->resume, &id, cases, past, error);
}

/* Standard output may be a full disk as well. */
static int check_output(int code) {
  assay_error error = {""};
  if (fflush(stdout) == 0 && !ferror(stdout)) return code;
  (void)assay_fail(&error, ASSAY_ERR_IO, "standard output: cannot be written: %s", strerror(errno));
  return cli_leave(ASSAY_ERR_IO, &error);
}

/* Interrupted: the file stays as far as it came, and how to go on is said. */
static void abandon(report *out, const cli_options *options) {
  report_abandon(out);
  if (options->jsonl != NULL)
    (void)fprintf(stderr, "assay: %s.partial holds what was done; the same command with --resume %s goes on\n",
                  options->jsonl, options->jsonl);
}

/* Every entry of the ledger. True: one of them expects what does not happen any more, and the run fails. */
static bool report_ledger(const run_state *state) {
  const ledger_entry *entry = NULL;
  bool stale = false;
  for (int32_t i = 0; (entry = ledger_at(state->known, i)) != NULL; ++i) {
    char line[1200];
    const bool old = ledger_is_stale(entry);
    stale = stale || old;
    (void)snprintf(line, sizeof line, "%s %s/%s: %s: %lld of %lld cases (%s)%s%s", old ? "FAIL expected" : "expected",
                   entry->op, entry->variant, entry->check, (long long)entry->failed, (long long)entry->ran,
                   entry->reason, old ? ": none failed; take the entry out: " : "", old ? entry->where : "");
    report_line(state->out, line);
  }
  return stale;
}

/* Are the suites those of models? All of them or none. */
static assay_status models_given(const cli_options *options, bool *models, assay_error *error) {
  int32_t count = 0;
  for (int32_t i = 0; i < options->words.count; ++i)
    count += model_suite_is(options->words.item[i]);
  *models = count > 0;
  if (count == 0 || count == options->words.count) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "run: found suites of models among others, allowed alone");
}

int cli_run_command(int argc, char **argv) {
  int code = EXIT_BAD;
  assay_error error = {""};
  cli_options options;
  case_list list = {NULL, 0};
  assay_case *cases = NULL;
  int64_t count = 0;
  assay_device_info info;
  run_state state = {NULL, NULL, NULL, NULL, NULL};
  campaign_past past = {NULL, 0, 0, false};
  memset(&info, 0, sizeof info);
  (void)signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is a failed write */
  assay_status status =
      cli_parse(argc, argv,
                "--device --variant --filter --section --seed --jsonl --junit --plugin --workers --threads "
                "--deadline --in-process --shard --resume --html --power --ledger --shrink --shrink-budget",
                &options, &error);
  if (status == ASSAY_OK && options.resume != NULL && options.jsonl != NULL)
    status = assay_fail(&error, ASSAY_ERR_INPUT, "--resume: names the JSONL itself, --jsonl is not given with it");
  if (status == ASSAY_OK && options.resume != NULL) options.jsonl = options.resume;
  char beside[4096];
  if (status == ASSAY_OK && options.html != NULL && options.jsonl == NULL) {
    (void)snprintf(beside, sizeof beside, "%s.jsonl", options.html);
    options.jsonl = beside;
  }
  if (status == ASSAY_OK && options.words.count == 0)
    status = assay_fail(&error, ASSAY_ERR_INPUT, "run: needs at least one suite file or folder");
  if (status == ASSAY_OK) status = cli_load_plugins(&options, &error);
  if (status == ASSAY_OK) status = cli_check_variants(&options, &error);
  if (status == ASSAY_OK) status = cli_check_writable("--jsonl", options.jsonl, &error);
  if (status == ASSAY_OK) status = cli_check_writable("--junit", options.junit, &error);
  bool models = false;
  if (status == ASSAY_OK) status = models_given(&options, &models, &error);
  if (status == ASSAY_OK && models)
    status = cli_parse(argc, argv, "--device --variant --filter --seed --jsonl --junit --plugin", &options, &error);
  if (status == ASSAY_OK && models) return cli_models_command(&options);
  if (status == ASSAY_OK) status = shrink_folder(&options, &error);
  for (int32_t i = 0; i < options.words.count && status == ASSAY_OK; ++i)
    status = expand_suite(options.words.item[i], options.seed, &list, &error);
  if (status == ASSAY_OK) status = cross(&options, &list, &cases, &count, &error);
  const uint64_t plan = status == ASSAY_OK ? campaign_plan(cases, count) : 0;
  if (status == ASSAY_OK && options.shards > 0)
    status = campaign_shard(cases, &count, options.shard, options.shards, &error);
  if (status == ASSAY_OK) status = cli_probe(options.device, &info, &error);
  if (status == ASSAY_OK) status = resume_past(&options, &info, cases, count, plan, &past, &error);
  if (status == ASSAY_OK && options.ledger != NULL) status = ledger_open(options.ledger, &state.known, &error);
  if (status == ASSAY_OK) status = claims_open(&state.seen, &error);
  if (status == ASSAY_OK) status = power_sum_open(&state.power, &error);
  if (status != ASSAY_OK) {
    code = cli_leave(status, &error);
    goto done;
  }

  const bool whole = options.section == NULL && options.filters.count == 0;
  const report_options report_choice = {.text = stdout,
                                        .progress = isatty(STDERR_FILENO) != 0 && isatty(STDOUT_FILENO) != 0,
                                        .jsonl = past.complete ? NULL : options.jsonl,
                                        .junit = options.junit,
                                        .device = options.device,
                                        .info = &info,
                                        .seed = options.seed,
                                        .total = count,
                                        .shard = options.shard,
                                        .shards = options.shards,
                                        .whole = whole,
                                        .power = power_mode_name(power_of(&options)),
                                        .every_variant = options.variants.count == 0,
                                        .plan = plan,
                                        .past = past.count,
                                        .past_bytes = past.keep_bytes};
  status = report_open(&report_choice, &state.out, &error);
  if (status != ASSAY_OK) {
    code = cli_leave(status, &error);
    goto done;
  }
  power_set(power_of(&options));
  static shrink_set failed;
  if (options.shrink != NULL) state.failed = &failed;
  const execute_options execution = {options.workers, options.deadline_s, options.in_process, options.threads};
  for (int64_t i = 0; i < past.count; ++i)
    on_done(&state, i, &cases[i], &past.results[i]);
  status = execute_cases(cases + past.count, count - past.count, &execution, on_done, &state, &error);
  if (status != ASSAY_OK) {
    abandon(state.out, &options);
    code = cli_leave(status, &error);
    goto done;
  }
  if (whole && options.shards == 0)
    for (int32_t v = 0; v < assay_variant_count(); ++v)
      if (cli_variant_chosen(&options, assay_variant_at(v))) claims_report(state.seen, assay_variant_at(v), state.out);
  if (whole && options.shards == 0 && options.variants.count == 0)
    claims_report_laws(state.seen, options.device, state.out);
  const bool stale = report_ledger(&state);
  power_sum_report(state.power, power_of(&options), whole && options.shards == 0 && options.variants.count == 0,
                   state.out);
  code = report_close(state.out, &error);
  if (error.text[0] != '\0')
    code = cli_leave(ASSAY_ERR_IO, &error);
  else if (options.html != NULL && cli_write_page(options.jsonl, options.html, &error) != ASSAY_OK)
    code = cli_leave(ASSAY_ERR_IO, &error);
  if (state.failed != NULL) power_set(POWER_OFF);
  if (state.failed != NULL && shrink_all(state.failed, &options, &error) != ASSAY_OK)
    code = cli_leave(ASSAY_ERR_IO, &error);
  if (stale && code != EXIT_INPUT) code = EXIT_BAD;
  code = check_output(code);
done:
  ledger_close(state.known);
  claims_close(state.seen);
  power_sum_close(state.power);
  campaign_free(&past);
  free(cases);
  case_list_free(&list);
  return code;
}

int cli_replay_command(int argc, char **argv) {
  int code = EXIT_BAD;
  assay_error error = {""};
  cli_options options;
  assay_case one;
  assay_device_info info;
  run_state state = {NULL, NULL, NULL, NULL, NULL};
  memset(&one, 0, sizeof one);
  memset(&info, 0, sizeof info);
  assay_status status =
      cli_parse(argc, argv, "--plugin --deadline --in-process --jsonl --junit --dump --power", &options, &error);
  if (status == ASSAY_OK && options.words.count != 1)
    status = assay_fail(&error, ASSAY_ERR_INPUT, "replay: needs one descriptor in quotes, found %d words",
                        options.words.count);
  if (status == ASSAY_OK) status = cli_load_plugins(&options, &error);
  if (status == ASSAY_OK) status = case_parse(options.words.item[0], &one, &error);
  if (status == ASSAY_OK && one.device[0] == '\0')
    status = assay_fail(&error, ASSAY_ERR_INPUT, "device: missing in the descriptor, allowed: cuda, simt");
  if (status == ASSAY_OK && one.variant[0] == '\0')
    status = assay_fail(&error, ASSAY_ERR_INPUT, "variant: missing in the descriptor, see: assay list variants");
  if (status == ASSAY_OK && assay_variant_find(one.op->name, one.variant, one.device) == NULL)
    status = assay_fail(&error, ASSAY_ERR_INPUT, "variant: found '%s', which %s does not have on %s", one.variant,
                        one.op->name, one.device);
  if (status == ASSAY_OK) status = cli_check_writable("--jsonl", options.jsonl, &error);
  if (status == ASSAY_OK) status = cli_check_writable("--junit", options.junit, &error);
  if (status == ASSAY_OK && options.dump != NULL) status = judge_dump_to(options.dump, &error);
  if (status == ASSAY_OK) status = cli_probe(one.device, &info, &error);
  if (status == ASSAY_OK) status = claims_open(&state.seen, &error);
  if (status == ASSAY_OK) status = power_sum_open(&state.power, &error);
  if (status == ASSAY_OK) {
    const report_options report_choice = {.text = stdout,
                                          .jsonl = options.jsonl,
                                          .junit = options.junit,
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
  const execute_options execution = {1, options.deadline_s, options.in_process, 1};
  status = execute_cases(&one, 1, &execution, on_done, &state, &error);
  power_sum_report(state.power, power_get(), false, state.out);
  code = report_close(state.out, &error);
  if (status != ASSAY_OK || error.text[0] != '\0') code = cli_leave(status != ASSAY_OK ? status : ASSAY_ERR_IO, &error);
done:
  claims_close(state.seen);
  power_sum_close(state.power);
  case_free(&one);
  return code;
}
