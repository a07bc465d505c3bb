/* run.c: assay run: suites × variants → results → report. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "choose.h"
#include "claims.h"
#include "conformance/ffi/ffi.h"
#include "conformance/run/run.h"
#include "conformance/text/text.h"
#include "conformance/trial/trial.h"
#include "conformance/models/models.h"
#include "conformance/report/report.h"
#include "core/registry.h"
#include "run_state.h"

void run_note(void *context, int64_t index, const assay_case *one, const case_result *result) {
  run_state *state = context;
  (void)index;
  if (report_is_full(state->out)) return; /* it was under way when the last failure that counts came in */
  const ledger_entry *entry = ledger_note(state->known, one, result);
  if (entry != NULL)
    report_expected(state->out, one, result, entry->reason);
  else
    report_add(state->out, one, result);
  claims_note(state->seen, one, result);
  power_sum_note(state->power, one, result);
  slack_note(state->used, one, result);
  if (entry != NULL) return;
  if (state->failed != NULL) shrink_keep(state->failed, one, result);
}

assay_status cli_load_plugins(const cli_options *options, assay_error *error) {
  assay_status status = ASSAY_OK;
  for (int32_t i = 0; i < options->plugins.count && status == ASSAY_OK; ++i)
    status = assay_plugin_load(options->plugins.item[i], error);
  const int32_t libraries = options->ffi.count, binds = options->binds.count;
  if (status != ASSAY_OK || (libraries == 0 && binds == 0)) return status;
  if (libraries == 0) return assay_fail(error, ASSAY_ERR_INPUT, "--bind: found without --ffi, allowed with it");
  if (binds == 0) return assay_fail(error, ASSAY_ERR_INPUT, "--ffi: found without --bind, allowed with it");
  if (libraries != 1 && libraries != binds)
    return assay_fail(error, ASSAY_ERR_INPUT,
                      "--bind: found %d for %d libraries, allowed any number for one library, or one for each", binds,
                      libraries);
  for (int32_t i = 0; i < binds && status == ASSAY_OK; ++i)
    status = ffi_load(options->ffi.item[libraries == 1 ? 0 : i], options->binds.item[i], options->ffi_runtime, error);
  return status;
}

/* Tries the path of a report before anything runs, so that an hour's work is not lost to a typing error. */
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

bool cli_colour(const cli_options *options) {
  const char *none = getenv("NO_COLOR"), *term = getenv("TERM");
  if (options->color != 0) return options->color == 1;
  if (none != NULL && none[0] != '\0') return false;
  return isatty(STDOUT_FILENO) != 0 && term != NULL && strcmp(term, "dumb") != 0;
}

double cli_own_deadline(const cli_options *options) {
  const double difference = options->deadline_s - CLI_DEADLINE_S;
  return difference < 0 || difference > 0 ? options->deadline_s : 0;
}

static power_mode power_of(const cli_options *options) {
  return options->power < 0 ? POWER_ALL : (power_mode)options->power;
}

/* Reads the results that an earlier run left in its file. They come first, as if they had just been made. */
static assay_status resume_past(const cli_options *options, const assay_device_info *info, const assay_case *cases,
                                int64_t count, uint64_t plan, campaign_past *past, assay_error *error) {
  if (options->resume == NULL) return ASSAY_OK;
  char binary[24];
  report_binary(binary);
  const campaign_id id = {options->device,
                          info->name,
                          report_commit(),
                          options->seed,
                          count,
                          options->shard,
                          options->shards,
                          power_mode_name(power_of(options)),
                          plan,
                          binary,
                          RESULTS_SCHEMA};
  return campaign_resume(options->resume, &id, cases, past, error);
}

/* The cases as a stream that ends when enough of them have failed. */
typedef struct run_stream {
  run_state *state;
  const assay_case *cases;
  int64_t count;
} run_stream;

static execute_more next_case(void *context, int64_t index, const assay_case **one) {
  const run_stream *stream = context;
  if (index >= stream->count || report_is_full(stream->state->out)) return EXECUTE_END;
  *one = &stream->cases[index];
  return EXECUTE_CASE;
}

static void stream_done(void *context, int64_t index, const assay_case *one, const case_result *result) {
  const run_stream *stream = context;
  run_note(stream->state, index, one, result);
}

static assay_status run_cases(run_state *state, const cli_options *options, const assay_case *cases, int64_t count,
                              assay_error *error) {
  const execute_options execution = {options->workers, options->deadline_s, options->in_process, options->threads};
  run_stream stream = {state, cases, count};
  if (options->maxfail == 0) return execute_cases(cases, count, &execution, run_note, state, error);
  return execute_stream(next_case, options->device, &execution, stream_done, &stream, error);
}

static double work_of(const assay_case *cases, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i)
    sum += campaign_cost(&cases[i]);
  return sum;
}

/* Keeps the file of an interrupted run as far as it came, and says how to go on. */
static void abandon(report *out, const cli_options *options) {
  report_abandon(out);
  if (options->jsonl != NULL)
    (void)fprintf(stderr, "assay: %s.partial holds what was done; the same command with --resume %s goes on\n",
                  text_shown(options->jsonl), text_shown(options->jsonl));
}

/* Reports every entry of the ledger. Returns true if one expects a failure that no longer happens; the run then fails.
 */
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

/* Finds out whether the suites are those of models. Refuses a mixture. */
static assay_status models_given(const cli_options *options, bool *models, assay_error *error) {
  int32_t count = 0;
  for (int32_t i = 0; i < options->words.count; ++i)
    count += suite_is_models(options->words.item[i]);
  *models = count > 0;
  if (count == 0 || count == options->words.count) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_INPUT, "run: found suites of models among others, allowed alone");
}

/* A run from its words to its end. */
typedef struct run_job {
  cli_options options;
  char beside[4096]; /* the JSONL of a page whose user asked for none */
  bool models;       /* the suites are those of models */
  case_list list;
  assay_case *cases; /* those that run, crossed with variants */
  int64_t count;
  uint64_t plan; /* hash of all cases before they are cut into shards */
  assay_device_info info;
  campaign_past past;
  run_state state;
  shrink_set failed;
} run_job;

/* Reads the words and checks what can be checked without a case. Nothing has run after a failure. */
static assay_status read_words(run_job *j, int argc, char **argv, assay_error *error) {
  cli_options *options = &j->options;
  assay_status status = cli_parse(argc, argv, "run", options, error);
  if (status == ASSAY_OK && options->resume != NULL && options->jsonl != NULL)
    status = assay_fail(error, ASSAY_ERR_INPUT, "--resume: names the JSONL itself, --jsonl is not given with it");
  if (status == ASSAY_OK && options->resume != NULL) options->jsonl = options->resume;
  if (status == ASSAY_OK && options->html != NULL && options->jsonl == NULL) {
    (void)snprintf(j->beside, sizeof j->beside, "%s.jsonl", options->html);
    options->jsonl = j->beside;
  }
  if (status == ASSAY_OK && options->words.count == 0 && options->list == NULL)
    status = assay_fail(error, ASSAY_ERR_INPUT, "run: needs at least one operator, suite file or folder");
  if (status == ASSAY_OK && options->words.count > 0 && options->list != NULL)
    status = assay_fail(error, ASSAY_ERR_INPUT, "--list: found suites beside it, allowed alone");
  if (status == ASSAY_OK) status = cli_load_plugins(options, error);
  if (status == ASSAY_OK) status = cli_check_variants(options, error);
  if (status == ASSAY_OK) status = cli_check_writable("--jsonl", options->jsonl, error);
  if (status == ASSAY_OK) status = cli_check_writable("--junit", options->junit, error);
  if (status == ASSAY_OK) status = cli_suite_words(&options->words, 0, error);
  if (status == ASSAY_OK) status = models_given(options, &j->models, error);
  if (status != ASSAY_OK || !j->models) return status;
  status = cli_parse(argc, argv, "run with suites of models", options, error);
  return status == ASSAY_OK ? cli_suite_words(&options->words, 0, error) : status;
}

/* Makes the cases that this run has, and reads those that an earlier one has judged. */
static assay_status choose_cases(run_job *j, assay_error *error) {
  const cli_options *options = &j->options;
  char list_path[4096];
  assay_status status = shrink_folder(options, error);
  for (int32_t i = 0; i < options->words.count && status == ASSAY_OK; ++i)
    status = expand_suite(options->words.item[i], options->seed, &j->list, error);
  if (status == ASSAY_OK && options->thin) status = case_list_check_night(&j->list, error);
  if (status == ASSAY_OK && options->thin) case_list_thin(&j->list);
  thinned_use(options->thin);
  if (status == ASSAY_OK && options->list != NULL)
    status = cli_read_list(options->list, list_path, sizeof list_path, &j->list, error);
  if (status == ASSAY_OK) status = cli_cross(options, &j->list, &j->cases, &j->count, error);
  if (status == ASSAY_OK && j->count == 0) cli_say_none(options, &j->list);
  if (status == ASSAY_OK && options->only != NULL && j->count > 0)
    status = cli_keep_only(options->only, j->cases, &j->count, error);
  if (status != ASSAY_OK) return status;
  j->plan = campaign_plan(j->cases, j->count);
  if (options->shards > 0) status = campaign_shard(j->cases, &j->count, options->shard, options->shards, error);
  if (status == ASSAY_OK) status = cli_probe(options->device, &j->info, error);
  return status == ASSAY_OK ? resume_past(options, &j->info, j->cases, j->count, j->plan, &j->past, error) : status;
}

static bool is_whole(const cli_options *options) {
  return options->section == NULL && options->filters.count == 0 && options->only == NULL && options->list == NULL;
}

static assay_status open_state(run_job *j, assay_error *error) {
  const cli_options *options = &j->options;
  run_state *state = &j->state;
  const report_options choice = {.text = stdout,
                                 .progress = isatty(STDERR_FILENO) != 0 && isatty(STDOUT_FILENO) != 0,
                                 .colour = cli_colour(options),
                                 .all = options->all,
                                 .maxfail = options->maxfail,
                                 .work = work_of(j->cases + j->past.count, j->count - j->past.count),
                                 .deadline_s = cli_own_deadline(options),
                                 .jsonl = j->past.complete ? NULL : options->jsonl,
                                 .junit = options->junit,
                                 .device = options->device,
                                 .info = &j->info,
                                 .seed = options->seed,
                                 .total = j->count,
                                 .shard = options->shard,
                                 .shards = options->shards,
                                 .whole = is_whole(options),
                                 .thin = options->thin,
                                 .power = power_mode_name(power_of(options)),
                                 .every_variant = options->variants.count == 0,
                                 .plan = j->plan,
                                 .past = j->past.count,
                                 .past_bytes = j->past.keep_bytes};
  assay_status status = options->ledger != NULL ? ledger_open(options->ledger, &state->known, error) : ASSAY_OK;
  if (status == ASSAY_OK) status = claims_open(&state->seen, error);
  if (status == ASSAY_OK) status = power_sum_open(&state->power, error);
  if (status == ASSAY_OK) status = slack_open(&state->used, error);
  return status == ASSAY_OK ? report_open(&choice, &state->out, error) : status;
}

/* Judges claims, laws, suites and the ledger, and ends the reports. Returns the exit status. */
static int end_run(run_job *j, assay_error *error) {
  const cli_options *options = &j->options;
  const run_state *state = &j->state;
  /* A claim or a law that nothing confirmed can be named after a whole run alone. */
  const bool judged = is_whole(options) && options->shards == 0 && !report_is_stopped(state->out);
  if (judged)
    for (int32_t v = 0; v < assay_variant_count(); ++v)
      if (cli_variant_chosen(options, assay_variant_at(v))) claims_report(state->seen, assay_variant_at(v), state->out);
  if (judged && options->variants.count == 0) claims_report_laws(state->seen, options->device, state->out);
  const bool stale = report_ledger(state);
  slack_report(state->used, options->variants.count > 0, state->out);
  const power_level level = options->variants.count > 0 ? POWER_CHOSEN : judged ? POWER_WHOLE : POWER_TOLD;
  power_sum_report(state->power, power_of(options), level, state->out);
  int code = report_close(state->out, error);
  if (error->text[0] != '\0')
    code = cli_leave(ASSAY_ERR_IO, error);
  else if (options->html != NULL && cli_write_page(options->jsonl, options->html, error) != ASSAY_OK)
    code = cli_leave(ASSAY_ERR_IO, error);
  if (state->failed != NULL) power_set(POWER_OFF);
  if (state->failed != NULL && shrink_all(state->failed, options, error) != ASSAY_OK)
    code = cli_leave(ASSAY_ERR_IO, error);
  if (stale && code != EXIT_INPUT) code = EXIT_BAD;
  return cli_written(code);
}

static void free_job(run_job *j) {
  ledger_close(j->state.known);
  claims_close(j->state.seen);
  power_sum_close(j->state.power);
  slack_close(j->state.used);
  campaign_free(&j->past);
  free(j->cases);
  case_list_free(&j->list);
}

int cli_run_command(int argc, char **argv) {
  static run_job job; /* large: it holds the failures that --shrink makes small */
  run_job *j = &job;
  assay_error error = {""};
  int code = EXIT_BAD;
  memset(j, 0, sizeof *j);
  (void)signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is a failed write */
  assay_status status = read_words(j, argc, argv, &error);
  if (status == ASSAY_OK && j->models) return cli_models_command(&j->options);
  if (status == ASSAY_OK) status = choose_cases(j, &error);
  if (status == ASSAY_OK) status = open_state(j, &error);
  if (status != ASSAY_OK) {
    code = cli_leave(status, &error);
    free_job(j);
    return code;
  }
  power_set(power_of(&j->options));
  if (j->options.shrink != NULL) j->state.failed = &j->failed;
  for (int64_t i = 0; i < j->past.count; ++i)
    run_note(&j->state, i, &j->cases[i], &j->past.results[i]);
  status = run_cases(&j->state, &j->options, j->cases + j->past.count, j->count - j->past.count, &error);
  if (status == ASSAY_OK) {
    code = end_run(j, &error);
  } else {
    abandon(j->state.out, &j->options);
    code = cli_leave_run(status, &error);
  }
  free_job(j);
  return code;
}
