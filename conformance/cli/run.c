/* run.c: assay run and assay replay: suites (or one descriptor) × variants → results → report. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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
#include "shrink_set.h"

typedef struct run_state {
  report *out;
  claims *seen;
  power_sum *power;
  slack *used;
  shrink_set *failed; /* NULL: nothing is shrunk */
  ledger *known;      /* expected failures; NULL: none */
} run_state;

static void on_done(void *context, int64_t index, const assay_case *one, const case_result *result) {
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
  on_done(stream->state, index, one, result);
}

static assay_status run_cases(run_state *state, const cli_options *options, const assay_case *cases, int64_t count,
                              assay_error *error) {
  const execute_options execution = {options->workers, options->deadline_s, options->in_process, options->threads};
  run_stream stream = {state, cases, count};
  if (options->maxfail == 0) return execute_cases(cases, count, &execution, on_done, state, error);
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

int cli_run_command(int argc, char **argv) {
  int code = EXIT_BAD;
  assay_error error = {""};
  cli_options options;
  case_list list = {NULL, 0};
  assay_case *cases = NULL;
  int64_t count = 0;
  assay_device_info info;
  run_state state = {.out = NULL};
  campaign_past past = {.results = NULL};
  memset(&info, 0, sizeof info);
  (void)signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is a failed write */
  assay_status status = cli_parse(argc, argv, "run", &options, &error);
  if (status == ASSAY_OK && options.resume != NULL && options.jsonl != NULL)
    status = assay_fail(&error, ASSAY_ERR_INPUT, "--resume: names the JSONL itself, --jsonl is not given with it");
  if (status == ASSAY_OK && options.resume != NULL) options.jsonl = options.resume;
  char beside[4096];
  if (status == ASSAY_OK && options.html != NULL && options.jsonl == NULL) {
    (void)snprintf(beside, sizeof beside, "%s.jsonl", options.html);
    options.jsonl = beside;
  }
  if (status == ASSAY_OK && options.words.count == 0 && options.list == NULL)
    status = assay_fail(&error, ASSAY_ERR_INPUT, "run: needs at least one suite file or folder");
  if (status == ASSAY_OK && options.words.count > 0 && options.list != NULL)
    status = assay_fail(&error, ASSAY_ERR_INPUT, "--list: found suites beside it, allowed alone");
  if (status == ASSAY_OK) status = cli_load_plugins(&options, &error);
  if (status == ASSAY_OK) status = cli_check_variants(&options, &error);
  if (status == ASSAY_OK) status = cli_check_writable("--jsonl", options.jsonl, &error);
  if (status == ASSAY_OK) status = cli_check_writable("--junit", options.junit, &error);
  bool models = false;
  if (status == ASSAY_OK) status = cli_suite_words(&options.words, 0, &error);
  if (status == ASSAY_OK) status = models_given(&options, &models, &error);
  if (status == ASSAY_OK && models) status = cli_parse(argc, argv, "run with suites of models", &options, &error);
  if (status == ASSAY_OK && models) status = cli_suite_words(&options.words, 0, &error);
  if (status == ASSAY_OK && models) return cli_models_command(&options);
  if (status == ASSAY_OK) status = shrink_folder(&options, &error);
  for (int32_t i = 0; i < options.words.count && status == ASSAY_OK; ++i)
    status = expand_suite(options.words.item[i], options.seed, &list, &error);
  if (status == ASSAY_OK && options.thin) status = case_list_check_night(&list, &error);
  if (status == ASSAY_OK && options.thin) case_list_thin(&list);
  char list_path[4096];
  if (status == ASSAY_OK && options.list != NULL)
    status = cli_read_list(options.list, list_path, sizeof list_path, &list, &error);
  if (status == ASSAY_OK) status = cli_cross(&options, &list, &cases, &count, &error);
  if (status == ASSAY_OK && count == 0) cli_say_none(&options, &list);
  if (status == ASSAY_OK && options.only != NULL && count > 0)
    status = cli_keep_only(options.only, cases, &count, &error);
  const uint64_t plan = status == ASSAY_OK ? campaign_plan(cases, count) : 0;
  if (status == ASSAY_OK && options.shards > 0)
    status = campaign_shard(cases, &count, options.shard, options.shards, &error);
  if (status == ASSAY_OK) status = cli_probe(options.device, &info, &error);
  if (status == ASSAY_OK) status = resume_past(&options, &info, cases, count, plan, &past, &error);
  if (status == ASSAY_OK && options.ledger != NULL) status = ledger_open(options.ledger, &state.known, &error);
  if (status == ASSAY_OK) status = claims_open(&state.seen, &error);
  if (status == ASSAY_OK) status = power_sum_open(&state.power, &error);
  if (status == ASSAY_OK) status = slack_open(&state.used, &error);
  if (status != ASSAY_OK) {
    code = cli_leave(status, &error);
    goto done;
  }

  const bool whole =
      options.section == NULL && options.filters.count == 0 && options.only == NULL && options.list == NULL;
  const report_options report_choice = {.text = stdout,
                                        .progress = isatty(STDERR_FILENO) != 0 && isatty(STDOUT_FILENO) != 0,
                                        .colour = cli_colour(&options),
                                        .all = options.all,
                                        .maxfail = options.maxfail,
                                        .work = work_of(cases + past.count, count - past.count),
                                        .deadline_s = cli_own_deadline(&options),
                                        .jsonl = past.complete ? NULL : options.jsonl,
                                        .junit = options.junit,
                                        .device = options.device,
                                        .info = &info,
                                        .seed = options.seed,
                                        .total = count,
                                        .shard = options.shard,
                                        .shards = options.shards,
                                        .whole = whole,
                                        .thin = options.thin,
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
  for (int64_t i = 0; i < past.count; ++i)
    on_done(&state, i, &cases[i], &past.results[i]);
  status = run_cases(&state, &options, cases + past.count, count - past.count, &error);
  if (status != ASSAY_OK) {
    abandon(state.out, &options);
    code = cli_leave_run(status, &error);
    goto done;
  }
  /* A claim or a law that nothing confirmed can be named after a whole run alone. */
  const bool judged = whole && options.shards == 0 && !report_is_stopped(state.out);
  if (judged)
    for (int32_t v = 0; v < assay_variant_count(); ++v)
      if (cli_variant_chosen(&options, assay_variant_at(v))) claims_report(state.seen, assay_variant_at(v), state.out);
  if (judged && options.variants.count == 0) claims_report_laws(state.seen, options.device, state.out);
  const bool stale = report_ledger(&state);
  slack_report(state.used, options.variants.count > 0, state.out);
  const power_level level = options.variants.count > 0 ? POWER_CHOSEN : judged ? POWER_WHOLE : POWER_TOLD;
  power_sum_report(state.power, power_of(&options), level, state.out);
  code = report_close(state.out, &error);
  if (error.text[0] != '\0')
    code = cli_leave(ASSAY_ERR_IO, &error);
  else if (options.html != NULL && cli_write_page(options.jsonl, options.html, &error) != ASSAY_OK)
    code = cli_leave(ASSAY_ERR_IO, &error);
  if (state.failed != NULL) power_set(POWER_OFF);
  if (state.failed != NULL && shrink_all(state.failed, &options, &error) != ASSAY_OK)
    code = cli_leave(ASSAY_ERR_IO, &error);
  if (stale && code != EXIT_INPUT) code = EXIT_BAD;
  code = cli_written(code);
done:
  ledger_close(state.known);
  claims_close(state.seen);
  power_sum_close(state.power);
  slack_close(state.used);
  campaign_free(&past);
  free(cases);
  case_list_free(&list);
  return code;
}

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
  status = execute_cases(&one, 1, &execution, on_done, &state, &error);
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
